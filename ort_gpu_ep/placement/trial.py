"""The proof by running: candidates take turns on the inputs of a run, and the fastest stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

MIN_ROUNDS, MAX_ROUNDS = 5, 40

CLEAR = 1.5
"""A race is over after MIN_ROUNDS if all others are slower than the best by this factor."""

WARM_UPS = 3
"""Runs before the clock counts: the first makes pipelines and buffers, the second records ahead for the third."""


def race(
    runs: Mapping[str, Callable[[], object]], budget_s: float, clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each candidate. They take turns, every other round backwards, so that a drift of the machine hits all of them.

    budget_s: after it no run begins that is not needed: each candidate gets one run to warm up and one that counts in any case.
    Raises what a run raises.
    """
    start = clock()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for done in range(WARM_UPS):
            if done and clock() - start > budget_s:
                break
            run()
    for done in range(MAX_ROUNDS):
        for name in reversed(list(runs)) if done % 2 else list(runs):
            begin = clock()
            runs[name]()
            times[name].append(clock() - begin)
        if clock() - start > budget_s:
            break
        if done + 1 >= MIN_ROUNDS:
            best = min(median(t) for t in times.values())
            if sum(median(t) <= CLEAR * best for t in times.values()) == 1:
                break
    return {name: median(t) for name, t in times.items()}
