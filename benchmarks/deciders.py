"""What each part of the decider of placement gains: a session's runs on a simulated machine, over those of an oracle.

    python -m benchmarks.deciders [--scenarios PATTERN] [--parts PATTERN] [--seeds 3] [--json FILE]

Nothing runs but the decider: the clock is virtual. The oracle takes the quickest candidate in each run, and its GPU is
awake as if all runs had been there; of several threads, it is the best of all fixed divisions of the models. Each five
seconds count alike.
"""

from __future__ import annotations

import json as json_module
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from itertools import groupby, product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.deciders_machine import SCENARIOS, Decider, Fixed, Ran, Winner, played
from ort_gpu_ep.placement import decider, estimate, rhythm
from ort_gpu_ep.utilization import SLEEPS_S, Uses

SLICE_S, MATTERS = 5.0, 1.02

Change = tuple[Any, str, Any]


def _nearest(times: Any, size: Any, now_s: float) -> Any:
    """A size takes what the nearest one takes."""
    cell = min(
        (c for key, c in times._cells.items() if key != size.key), key=lambda c: abs(math.log(c.work / size.work))
    )
    return estimate.Estimate(cell.seconds, 0.3, 0, 1)


def _alone(self: Any, now_s: float, others: int = 0, begin: Any = rhythm.Rhythm.begin) -> None:
    begin(self, now_s)


def _guessed(self: Any, place: Any, name: str, expected: Any, load: Any) -> float:
    """The chance of meeting a deadline, whatever was seen."""
    return 0.5 * (1.0 + math.erf(math.log(self.host.deadline_s / expected.seconds) / decider.SPREAD / math.sqrt(2.0)))


def nothing(*given: Any, **named: Any) -> Any:
    return None


HUGE = 10**9
WHOLE = {"all but the race": Winner}

PARTS: dict[str, Sequence[Change]] = {
    "the load": [(decider.Decider, "_follow", nothing)],
    "rest: PAUSED": [(rhythm, "RESTS_S", (SLEEPS_S, SLEEPS_S))],
    "rest: RARE": [(rhythm, "RESTS_S", (SLEEPS_S, HUGE))],
    "rest: both": [(rhythm, "RESTS_S", (HUGE, HUGE))],
    "rest: CONCURRENT": [(rhythm.Rhythm, "begin", _alone)],
    "kind: WAKING": [(Uses, "awake", lambda self, now_s: True)],
    "kind: FIRST": [(decider, "NOVEL", HUGE)],
    "waking that has to pay": [(decider.Decider, "_worth_waking", lambda *given: True)],
    "waking on credit": [(decider.Decider, "_account", nothing)],
    "runs asleep as steady": [(decider, "SLEPT", 0.0)],
    "trials": [(decider.Decider, "_trial", nothing)],
    "trials of the untried": [(decider, "UNTRIED_RUNS", HUGE)],
    "doubt of the race": [(decider, "RACED", 0.0)],
    "best of few runs": [(estimate._Cell, "least_s", math.inf)],
    "line over sizes": [(estimate.Times, "_fit", _nearest)],
    "robust fit": [(estimate, "ROUNDS", 1)],
    "assumed growth": [(estimate, "GROWTH", HUGE)],
    "sizes beside few runs": [
        (decider, "joined", lambda mine, others: mine),
        (estimate, "joined", lambda mine, others: mine),
    ],
    "ageing": [(estimate, "AGEING", 0.0)],
    "stay at a near tie": [(decider, "STAY", 1.0), (decider, "STAY_S", 0.0)],
    "longer retries": [(decider, "LONGEST_RETRY_S", decider.RETRY_S)],
    "proof beside others": [(decider, "PROVEN", 1)],
    "tails beside others": [(estimate, "TAIL", HUGE), (decider, "TAIL", HUGE)],
    "queues beside others": [(decider.Decider, "_queue", lambda self, name: 1.0)],
    "forgetting beside others": [(estimate.Times, "forget", nothing)],
    "runs under load apart": [(decider, "LOADED", (HUGE,))],
    "doubt of the load's model": [(decider, "SUFFERS", 0.0)],
    "flap damping": [(decider, "LONGEST_DWELL_S", decider.DWELL_S)],
    "dwelling at all": [(decider, "LONGEST_DWELL_S", 0.0), (decider, "DWELL_S", 0.0)],
    "hysteresis": [(decider, "LEAVE", 1.0), (decider, "TRIFLE_S", 0.0)],
    "settled runs only": [(decider, "SETTLE_S", 0.0)],
    "chances as seen": [(decider.Decider, "_chance", _guessed)],
}
"""What is left out -> what decides without it, or what is changed for that."""


def scored(ran: Sequence[Ran], deadline_s: float, best: Sequence[Ran] | None = None) -> dict[str, float]:
    """Over the oracle's: time and p99; switches; the share of time that trials took. With a deadline, time is 1 + the
    share of late runs. best: of several threads, the runs of the best division."""
    took_s, best_s = [r.seconds for r in ran], [r.seconds for r in best] if best else [r.oracle_s for r in ran]
    slices = [list(group) for _, group in groupby(ran, lambda r: r.when_s // SLICE_S)]
    time = (
        len(best) / len(ran)
        if best
        else fmean(sum(r.seconds for r in s) / sum(r.oracle_s for r in s) for s in slices[:-1])
    )
    if deadline_s:
        time = (1.0 + fmean(s > deadline_s for s in took_s)) / (1.0 + fmean(s > deadline_s for s in best_s))
    last, switches = dict[Any, str](), 0
    for r in ran:
        if not r.trial:
            switches += last.get((r.model, r.work), r.name) != r.name
            last[r.model, r.work] = r.name
    return {
        "time": time,
        "p99": float(np.percentile(took_s, 99) / np.percentile(best_s, 99)),
        "switches": float(switches),
        "trials": sum(r.seconds for r in ran if r.trial) / sum(took_s),
    }


@cache
def divided(name: str, seed: int) -> list[Ran]:
    """The most runs that a fixed division of the models over the candidates makes."""
    scenario = SCENARIOS[name]
    ways = product(*(sides for sides in scenario.models.values()))
    return max(
        (played(scenario, seed, partial(Fixed, dict(zip(scenario.models, way, strict=True)))) for way in ways), key=len
    )


def measured(name: str, seeds: int, made: Any = Decider, changes: Sequence[Change] = ()) -> dict[str, float]:
    """The means over so many seeds."""
    with ExitStack() as changed:
        for change in changes:
            changed.enter_context(patch.object(*change))
        ran = [played(SCENARIOS[name], seed, made) for seed in range(seeds)]
    found = [
        scored(r, SCENARIOS[name].deadline_s, divided(name, seed) if SCENARIOS[name].models else None)
        for seed, r in enumerate(ran)
    ]
    return {key: fmean(f[key] for f in found) for key in found[0]}


def lost(without: dict[str, dict[str, float]], whole: dict[str, dict[str, float]]) -> Iterator[tuple[float, str, str]]:
    """(factor, time or p99, scenario), the largest loss first, the largest gain last."""
    yield from sorted(
        ((without[name][key] / whole[name][key], key, name) for name in without for key in ("time", "p99")),
        reverse=True,
    )


def main(
    scenarios: Annotated[str, typer.Option(help="A regular expression.")] = "",
    parts: Annotated[str, typer.Option(help="Those to leave out, one after the other: a regular expression.")] = "",
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    json: Annotated[Path | None, typer.Option(help="Write the figures here, too.")] = None,
) -> None:
    """Play each scenario with all parts, and without each."""
    console, names = Console(), [name for name in SCENARIOS if re.search(scenarios, name)]
    found: dict[str, dict[str, dict[str, float]]] = {"": {name: measured(name, seeds) for name in names}}
    table = Table("scenario", "time", "p99", "switches", "trials")
    for name, row in found[""].items():
        table.add_row(name, f"{row['time']:.3f}", f"{row['p99']:.2f}", f"{row['switches']:.0f}", f"{row['trials']:.1%}")
    console.print(table)
    table = Table("without", "most is lost, in", "gained, in")
    for part in (part for part in (*WHOLE, *PARTS) if re.search(parts, part)):
        found[part] = {name: measured(name, seeds, WHOLE.get(part, Decider), PARTS.get(part, ())) for name in names}
        factors = list(lost(found[part], found[""]))
        shown = [f"{f - 1.0:+.0%} {key}, {name}" for f, key, name in factors if f > MATTERS][:2]
        gained = [f"{f - 1.0:+.0%} {key}, {name}" for f, key, name in factors[-1:] if f < 1.0 / MATTERS]
        table.add_row(part, "\n".join(shown), "\n".join(gained))
    console.print(table)
    if json is not None:
        json.write_text(json_module.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
