"""`bench --load`: latency of each candidate while another process keeps the adapter busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from ort_gpu_ep.cli import shared
from ort_gpu_ep.config import resolve
from ort_gpu_ep.device.adapter import choose, order_among_equals
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.device.timed_dispatch import LazyTimedDispatch
from ort_gpu_ep.drills.generator import DUTY, LoadGenerator
from ort_gpu_ep.load import Sampler, open_sampler
from ort_gpu_ep.session.session import InferenceSession

IDLE = "none"
"""No load is added; others may keep the GPU busy all the same."""
LEVELS = (IDLE, *DUTY)


Level = StrEnum("Level", ["LOW", "MEDIUM", "HIGH", "ALL"])
"""What `--load` may say; typer takes no Literal in a list."""

SHORTEST_S = 1.5
"""Of measuring, as the load is read ten times a second, and of the runs that are not counted after it has begun:
smoothing (0.25 s), two readings and a dwell of 0.5 s are over then."""


@dataclass
class Row:
    """One candidate under one load. times_ms: of its runs in turn with the others. chosen: what auto ran, candidate ->
    part of its runs."""

    level: str
    candidate: str
    times_ms: list[float] = field(repr=False)
    gpu_load: float | None = None
    cpu_load: float = 0.0
    source: str = ""
    chosen: dict[str, float] = field(default_factory=dict)

    def quantile(self, part: float) -> float:
        return float(np.quantile(self.times_ms, part))

    def as_dict(self) -> dict[str, object]:
        """For JSON: quantiles instead of the times."""
        fields = asdict(self)
        del fields["times_ms"]
        return {**fields, "runs": len(self.times_ms), **{f"p{p}_ms": self.quantile(p / 100) for p in (50, 95, 99)}}


def sessions(model: Any, options: Mapping[str, str]) -> dict[str, Any]:
    """candidate -> session: onnxruntime's own on the CPU, all on the GPU, and what the options say (placement=auto by
    default)."""
    chooses = InferenceSession(model, shared.quiet(), provider_options=dict(options))
    chooses.wait_ready()
    return {
        "cpu": shared.cpu_session(model),
        "gpu": InferenceSession(
            model, shared.quiet(), provider_options={**options, "placement": "gpu", "unit_plans": "wait"}
        ),
        "auto": chooses,
    }


def sampler_of(options: Mapping[str, str]) -> tuple[AdapterInfo, Sampler]:
    """The adapter that the options ask for, and who reads its load, whatever the option `load` says. Raises
    AdapterError."""
    config = resolve(options)
    info = choose(config.adapter)[0]
    source = "auto" if config.load == "off" else config.load
    sampler = open_sampler(info, source, LazyTimedDispatch(info), order_among_equals(info))
    assert sampler is not None
    return info, sampler


def measure(
    candidates: Mapping[str, Any],
    feeds: Mapping[str, Any],
    info: AdapterInfo,
    sampler: Sampler,
    levels: Sequence[str],
    runs: int,
    settle_s: float = SHORTEST_S,
    tell: Callable[[str], object] = lambda level: None,
) -> list[Row]:
    """A row for each level and candidate. runs: of each, at least. tell: called with a level before it is measured.

    Raises: AdapterError, where the load can't be made.
    """
    rows = []
    for level in levels:
        tell(level)
        with nullcontext() if level == IDLE else LoadGenerator(info, level):
            for _ in _turns(candidates, feeds, sampler, 1, settle_s):
                pass
            before = _counts(candidates["auto"])
            turns = list(_turns(candidates, feeds, sampler, runs, SHORTEST_S))
            chosen = _chosen(candidates["auto"], before)
        loads = [load.gpu for _, load in turns if load.gpu is not None]
        for candidate in candidates:
            rows.append(
                Row(
                    level,
                    candidate,
                    [times[candidate] for times, _ in turns],
                    float(np.mean(loads)) if loads else None,
                    float(np.mean([load.cpu for _, load in turns])),
                    sampler.latest.source,
                    chosen if candidate == "auto" else {},
                )
            )
    return rows


def _turns(
    candidates: Mapping[str, Any],
    feeds: Mapping[str, Any],
    sampler: Sampler,
    runs: int,
    seconds: float,
) -> Iterator[tuple[Any, Any]]:
    """(milliseconds by candidate, load) of rounds in which each candidate runs once, every other one backwards, for so
    many and so long."""
    start, done = time.monotonic(), 0
    while done < runs or time.monotonic() - start < seconds:
        times, load = {}, sampler.latest
        for candidate in reversed(list(candidates)) if done % 2 else candidates:
            begin = time.perf_counter()
            candidates[candidate].run(None, feeds)
            times[candidate] = (time.perf_counter() - begin) * 1e3
        done += 1
        yield times, load


def _counts(session: Any) -> dict[str, int]:
    """Runs of each candidate that the session has chosen between; none where it has only one."""
    policy = session.stats().get("policy")
    return {candidate: int(seen["runs"]) for candidate, seen in policy["candidates"].items()} if policy else {}


def _chosen(session: Any, before: Mapping[str, int]) -> dict[str, float]:
    """Parts of the runs since `before`; of a session without a choice, the side that all of its nodes or some are
    on."""
    counts = {candidate: count - before.get(candidate, 0) for candidate, count in _counts(session).items()}
    total = sum(counts.values())
    if total:
        return {candidate: count / total for candidate, count in counts.items() if count}
    explained = session.explain()
    return {"cpu" if not explained.count("gpu") else "gpu" if not explained.count("cpu") else "cut": 1.0}
