"""Whole runs with other work of the CPU between them, the next run recorded by the run's own thread and by another one.

    python -m benchmarks.between [NAME ...] [--between none,memory,cpu] [--runs 120] [--adapter A] [--json FILE]

What programs do between two runs empties the caches, and recording then takes longer. none: nothing; memory: 64 MiB are written; cpu:
onnxruntime's CPU provider runs the model. Medians of placement=gpu in ms, in blocks that take turns. in line: recorded while this thread
would wait for the GPU; on the thread: see ort_gpu_ep/device/recorder.py; by rule: what sessions do, and where the rule records at the end
(a session of its own, so that the other sides' runs do not count for it).
"""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import cases
from ort_gpu_ep import InferenceSession
from ort_gpu_ep.device import recorder
from ort_gpu_ep.utilization import AWAKE_S

console = Console()
DEFAULT = ("mobilenet_v2", "squeezenet1_1", "resnet50")
SIDES = {"in line": False, "on the thread": True, "by rule": None}
BLOCKS = 6
UNCOUNTED = 3
"""Runs at the beginning of a block: the first one takes what the block before it has recorded."""

WRITTEN_NBYTES = 64 << 20


def works(model: Any, feeds: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """What is done between two runs, by name."""
    written = np.zeros(WRITTEN_NBYTES, np.uint8)
    cpu = onnxruntime.InferenceSession(model, cases.quiet(), providers=["CPUExecutionProvider"])
    return {"none": lambda: None, "memory": lambda: written.__iadd__(1), "cpu": lambda: cpu.run(None, feeds)}


def block(session: Any, feeds: dict[str, Any], work: Callable[[], object], runs: int) -> list[float]:
    """Milliseconds of each run, those left out that do not count."""
    times = []
    for _ in range(UNCOUNTED + runs):
        work()
        start = time.perf_counter()
        session.run(None, feeds)
        times.append((time.perf_counter() - start) * 1e3)
    return times[UNCOUNTED:]


def measure(name: str, between: list[str], runs: int, adapter: str) -> dict[str, dict[str, Any]]:
    model, feeds = cases.load(name)
    options = {"placement": "gpu", **({"adapter": adapter} if adapter else {})}
    told, free = (InferenceSession(model, cases.quiet(), provider_options=options) for _ in range(2))
    sides = {side: told if forced is not None else free for side, forced in SIDES.items()}
    known, found = works(model, feeds), dict[str, dict[str, Any]]()
    until = time.perf_counter() + AWAKE_S
    while time.perf_counter() < until:
        for session in (told, free):
            block(session, feeds, known["none"], 1)
    for work in between:
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        for number in range(BLOCKS):
            for side in reversed(list(SIDES)) if number % 2 else SIDES:
                recorder.FORCED = SIDES[side]
                times[side] += block(sides[side], feeds, known[work], -(-runs // BLOCKS))
        recorder.FORCED = None
        (forms,) = free.direct._known.values()
        found[work] = {side: float(np.median(ms)) for side, ms in times.items()}
        found[work]["rule"] = "on the thread" if forms[()].steady._rule.elsewhere else "in line"
    return found


def main(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    between: Annotated[str, typer.Option(help="What is done between two runs.")] = "none,memory,cpu",
    runs: Annotated[int, typer.Option(min=BLOCKS)] = 120,
    adapter: Annotated[str, typer.Option()] = "",
    json: Annotated[Path | None, typer.Option()] = None,
) -> None:
    results = dict[str, Any]()
    table = Table("ms", "between", *SIDES, "the rule's")
    for name in names or DEFAULT:
        results[name] = measure(name, between.split(","), runs, adapter)
        for work, row in results[name].items():
            table.add_row(name, work, *(f"{row[side]:.3f}" for side in SIDES), row["rule"])
        if json is not None:        # after each model: nothing is lost where the time is over
            json.write_text(json_module.dumps(results, indent=1))
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
