"""The proof by running: candidates take turns on the inputs of a run, and the fastest stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

BLOCK, BLOCK_S, MAX_BLOCKS = 5, 0.05, 4
"""Runs in a row of one candidate that count, at least and for so long, and how often its turn comes at most. Steady runs are what is
decided about: run by run in turn, each would meet the other's threads, which onnxruntime lets spin after a run, and its caches."""

WARM_UPS, WARM_UP_S = 3, 0.04
"""Runs before a block that don't count, at least and for so long: the first makes pipelines and buffers, the second records ahead for the
third, and a GPU that was left alone raises its clock over tens of milliseconds (an H200 from 345 to 1,725 MHz)."""

REST_S = 0.01
"""Pause before a block, in which the threads of the candidate before go to sleep."""

CLEAR = 1.5
"""A race is over after two blocks if all others are slower than the best by this factor."""


def race(
    runs: Mapping[str, Callable[[], object]], budget_s: float, clock: Callable[[], float] = time.perf_counter,
    rest: Callable[[float], object] = time.sleep,
) -> dict[str, float]:
    """Median seconds of each candidate, in blocks; every other round backwards, so that a drift of the machine hits all of them.

    budget_s: after it no run begins that is not needed: each candidate gets one run to warm up and one that counts in any case.
    Raises what a run raises.
    """
    start = clock()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for done in range(MAX_BLOCKS):
        for name in reversed(list(runs)) if done % 2 else list(runs):
            rest(REST_S)
            times[name] += _block(runs[name], lambda: clock() - start > budget_s, clock)
        if clock() - start > budget_s:
            break
        best = min(median(t) for t in times.values())
        if done and sum(median(t) <= CLEAR * best for t in times.values()) == 1:
            break
    return {name: median(t) for name, t in times.items()}


def _block(run: Callable[[], object], late: Callable[[], bool], clock: Callable[[], float]) -> list[float]:
    """Seconds of some runs after some that don't count: one of each at least, and no more where it is late."""
    begin, done = clock(), 0
    while not done or not (late() or (done >= WARM_UPS and clock() - begin > WARM_UP_S)):
        run()
        done += 1
    times: list[float] = []
    while not times or not (late() or (len(times) >= BLOCK and sum(times) > BLOCK_S)):
        begin = clock()
        run()
        times.append(clock() - begin)
    return times
