"""Rows a second of a session, by batch size and by number of threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.profiling.measure import WARM_RUNS


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of one side. batch: rows, 1 where none were asked for. median_ms: of a run. per_s: rows in a second, by all
    threads together."""

    side: str
    batch: int
    threads: int
    median_ms: float
    per_s: float


def numbers(text: str, flag: str) -> list[int]:
    """`1,8,32` as numbers; none of an empty text. Raises ModelError."""
    parts = text.split(",") if text else []
    if not all(p.isdecimal() and int(p) for p in parts):
        raise ModelError(f"{flag} {text}: expected numbers like 1,8,32")
    return [int(p) for p in parts]


def batched(session: Any, feeds: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Inputs with that many rows: those whose first dimension the model leaves open, their rows repeated. Raises
    ModelError if none is."""
    batch = dict(feeds)
    open_inputs = [
        i.name for i in session.get_inputs() if i.shape and not (isinstance(i.shape[0], int) and i.shape[0] > 0)
    ]
    if not open_inputs and size != 1:
        shapes = ", ".join(f"{i.name} {i.shape}" for i in session.get_inputs())
        raise ModelError(
            f"--batch {size}: the model fixes the first dimension of all inputs ({shapes}); export it with an open one"
        )
    for name in open_inputs:
        batch[name] = np.resize(feeds[name], (size, *feeds[name].shape[1:]))
    return batch


def measure(
    sides: Mapping[str, Any],
    feeds: Mapping[int, Mapping[str, Any]],
    threads: int,
    runs: int,
    tell: Callable[[str, float], None],
) -> list[Throughput]:
    """A row for each batch and side, sides in turn. sides: sessions. feeds: batch -> inputs. runs: of each thread, at
    least."""
    rows, total = list[Throughput](), len(feeds) * len(sides)
    for batch, values in feeds.items():
        for side, session in sides.items():
            tell(f"{side}, batch {batch}", len(rows) / total)
            for _ in range(WARM_RUNS):
                session.run(None, dict(values))
            times, seconds = _timed(partial(session.run, None, dict(values)), threads, runs)
            rows.append(Throughput(side, batch, threads, median(times) * 1e3, batch * len(times) / seconds))
    return rows


def _timed(run: Callable[[], object], threads: int, runs: int) -> tuple[Sequence[float], float]:
    """Seconds of each run, and of all of them together."""

    def several() -> list[float]:
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return times

    start = time.perf_counter()
    if threads == 1:
        times = several()
    else:
        with ThreadPoolExecutor(threads, "bench") as pool:
            times = [t for work in [pool.submit(several) for _ in range(threads)] for t in work.result()]
    return times, time.perf_counter() - start
