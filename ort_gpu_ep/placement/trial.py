"""Compares candidates by running them in turn on the inputs of a run; the fastest is kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from types import MappingProxyType

BLOCK, BLOCK_S, MAX_BLOCKS = 5, 0.05, 4
"""Runs in a row of one candidate that count, at least and for so long, and how often its turn comes at most. Steady runs are what is
decided about: run by run in turn, each would meet the other's threads, which onnxruntime lets spin after a run, and its caches."""

WARM_UPS, WARM_UP_S = 3, 0.04
"""Runs before a block that don't count, at least and for so long: the first makes pipelines and buffers, the second records ahead."""

WAKE_S, RAMP = 1.2, 6.0
"""How long a GPU is run before its first block, unless the race is clear: one that was left alone for a second or two raises its clock
only after 0.4 s of work, sometimes more than 0.6, and then by RAMP at most (an H200: from 345 to 1,980 MHz, ResNet-50 from 5.2 to 1.9 ms).
"""

PATIENCE = 2.5
"""How many times as long a GPU is run that loses against its prediction: after work that used little of it, an H200 stayed slow for more
than 0.8 s, and what is decided is kept."""

AWAKE = 1.3
"""A candidate that is faster than the CPU, and takes no longer than predicted by this factor, is awake."""

REST_S = 0.01
"""Pause before a block, in which the threads of the candidate before go to sleep."""

CLEAR = 1.5
"""A race is over after two blocks if all others are slower than the best by this factor."""


def race(
    runs: Mapping[str, Callable[[], object]], budget_s: float, wake_s: float = 0.0, predicted_s: Mapping[str, float] = MappingProxyType({}),
    clock: Callable[[], float] = time.perf_counter, rest: Callable[[float], object] = time.sleep, told_s: float = 0.0,
) -> dict[str, float]:
    """Median seconds of each candidate, in blocks; every other round backwards, so that a drift of the machine hits all of them.

    runs: the first one is the CPU. predicted_s: of the others, where known. wake_s: WAKE_S for a GPU, 0 for a software adapter. budget_s:
    after it, waking not counted, no run begins that is not needed: each candidate gets one run to warm up and one that counts in any case.
    told_s: what the CPU takes, where that is known: it is not run then. Raises what a run raises.
    """
    start, asleep_s, cpu = clock(), 0.0, next(iter(runs))
    times: dict[str, list[float]] = {name: [] for name in runs}
    if told_s:
        times[cpu].append(told_s)
    raced = [name for name in runs if not (told_s and name == cpu)]

    def late() -> bool:
        return clock() - start - asleep_s > budget_s

    for done in range(MAX_BLOCKS):
        for name in reversed(raced) if done % 2 else raced:
            rest(REST_S)
            if done == 0 and times[cpu]:
                asleep_s += _wake(runs[name], median(times[cpu]), predicted_s.get(name, 0.0), wake_s, clock)
            times[name] += _block(runs[name], late, clock)
        if late():
            break
        best = min(median(t) for t in times.values())
        if done and sum(median(t) <= CLEAR * best for t in times.values()) == 1:
            break
    return {name: median(t) for name, t in times.items()}


def _wake(run: Callable[[], object], cpu_s: float, predicted_s: float, wake_s: float, clock: Callable[[], float]) -> float:
    """Runs until the GPU is awake, or it is plain that it wins asleep or can't win awake. Returns the seconds that took."""
    start, times = clock(), deque[float](maxlen=5)
    wins_s = max(cpu_s / CLEAR, min(cpu_s, AWAKE * predicted_s))
    patient_s = wake_s * (PATIENCE if 0 < predicted_s < cpu_s else 1)
    while clock() - start < (patient_s if not times or median(times) > cpu_s else wake_s):
        begin = clock()
        run()
        times.append(clock() - begin)
        if len(times) == 5 and not wins_s < median(times) < cpu_s * RAMP:
            break
    return clock() - start


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
