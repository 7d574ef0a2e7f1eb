"""The proof by running: candidates take turns on the inputs of a run, and the fastest stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

BLOCK, MAX_BLOCKS = 6, 8
"""Runs in a row of one candidate, and how often its turn comes at most. Steady runs are what is decided about: run by run in turn, each
would meet the other's threads, which onnxruntime lets spin after a run, and the caches that it has filled."""

WARM_UPS = 3
"""Runs before the first block: the first makes pipelines and buffers, the second records ahead for the third."""

REST_S = 0.01
"""Pause before a block, in which the threads of the candidate before go to sleep; a block's first run, from that sleep, does not count."""

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
            times[name] += _block(runs[name], WARM_UPS if done == 0 else 1, lambda: clock() - start > budget_s, clock)
        if clock() - start > budget_s:
            break
        best = min(median(t) for t in times.values())
        if done and sum(median(t) <= CLEAR * best for t in times.values()) == 1:
            break
    return {name: median(t) for name, t in times.items()}


def _block(run: Callable[[], object], warm_ups: int, late: Callable[[], bool], clock: Callable[[], float]) -> list[float]:
    """Seconds of up to BLOCK runs after some that don't count: one of each at least."""
    for done in range(warm_ups):
        if done and late():
            break
        run()
    times: list[float] = []
    while len(times) < BLOCK and not (times and late()):
        begin = clock()
        run()
        times.append(clock() - begin)
    return times
