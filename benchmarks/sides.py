"""The sides of placement=auto: plain ONNX Runtime on the CPU, `placement=gpu` and `placement=auto`, in one process and
in turn."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
from rich.console import Console

from benchmarks import cases
from ort_gpu_ep import InferenceSession

SIDES = ("cpu", "gpu", "auto")

LAW_FACTOR, LAW_MS = 1.05, 0.05
"""The law: auto takes at most 1.05 x the better side + 50 us."""

WAKE_S = 0.7
"""Runs of a side that don't count, for so long: a GPU that has slept raises its clock only after 0.4 s of work or
more."""

WIDTH = 120
"""Columns of a table that is written to a file or a pipe."""

Feeds = Mapping[str, Any]


def console() -> Console:
    made = Console()
    return made if made.is_terminal else Console(width=WIDTH)


def wake_s(side: str) -> float:
    """Seconds of runs that don't count."""
    return 0.1 if side == "cpu" else WAKE_S


@dataclass
class Row:
    """What the sides took for one case, in milliseconds. first_ms: the first run of each side, and of auto also the
    second and third."""

    name: str
    median_ms: dict[str, float]
    first_ms: dict[str, float] = field(default_factory=dict)
    chosen: str = ""
    source: str = ""

    @property
    def better_ms(self) -> float:
        return min(self.median_ms["cpu"], self.median_ms["gpu"])

    @property
    def over(self) -> float:
        return self.median_ms["auto"] / self.better_ms

    @property
    def lawful(self) -> bool:
        return self.median_ms["auto"] <= LAW_FACTOR * self.better_ms + LAW_MS

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "median_ms": self.median_ms,
            "first_ms": self.first_ms,
            "chosen": self.chosen,
            "source": self.source,
            "over": self.over,
            "lawful": self.lawful,
        }


def open_sides(model: Any, options: Mapping[str, str]) -> dict[str, Any]:
    """A session for each side."""
    return {
        "cpu": onnxruntime.InferenceSession(model, cases.quiet(), providers=["CPUExecutionProvider"]),
        "gpu": InferenceSession(model, cases.quiet(), provider_options={**options, "placement": "gpu"}),
        "auto": cases.waited(InferenceSession(model, cases.quiet(), provider_options={**options, "placement": "auto"})),
    }


def timed_ms(session: Any, feeds: Feeds) -> float:
    start = time.perf_counter()
    session.run(None, feeds)
    return (time.perf_counter() - start) * 1e3


def steady_ms(session: Any, feeds: Feeds, runs: int, seconds: float, wake_s: float) -> list[float]:
    """Of so many runs, or as many as fit, after some that don't count."""
    start = time.perf_counter()
    while time.perf_counter() - start < wake_s:
        session.run(None, feeds)
    start, times = time.perf_counter(), list[float]()
    while len(times) < 3 or (len(times) < runs and time.perf_counter() - start < seconds):
        times.append(timed_ms(session, feeds))
    return times


def paused_ms(session: Any, feeds: Feeds, runs: int, rest_s: float, uncounted: int) -> list[float]:
    """Of runs that come after a pause each, the first ones not counted."""
    times = []
    for _ in range(uncounted + runs):
        time.sleep(rest_s)
        times.append(timed_ms(session, feeds))
    return times[uncounted:]


def chosen_by(session: Any, feeds: Feeds) -> tuple[str, str]:
    """(candidate, source) of what auto decided for these inputs; it has just run them."""
    shapes = ", ".join(f"{name}{list(np.shape(array))}" for name, array in feeds.items())
    decided = dict(session.explain().decisions)
    found = decided.get(shapes) or decided.get("every run")
    return (found.candidate, found.source) if found is not None else ("cpu", "no choice")


def summary(rows: Sequence[Row]) -> str:
    bad = [row.name for row in rows if not row.lawful]
    text = (
        f"ms; within {LAW_FACTOR - 1:.0%} + {LAW_MS * 1e3:.0f} us of the better side: {len(rows) - len(bad)} of "
        f"{len(rows)}"
    )
    return f"{text}; not: {', '.join(bad)}" if bad else text
