"""The process that keeps an adapter busy, started by drills/generator.py with the arguments ADAPTER DUTY.

It computes for DUTY (0 to 1) of each PERIOD_S, prints `ready` when it begins, and ends when its standard input is
closed, so that it does not outlive who started it.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from ort_gpu_ep.device.adapter import choose
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.device.timed_dispatch import TimedDispatch

PERIOD_S = 0.05
"""Of the duty cycle: shorter than the sample periods of all sources, so that they see its mean."""

DISPATCH_S = 0.001
"""Of each dispatch: others get in between on a GPU that switches only there. NVIDIA's time slices are about 2 ms."""

TOGETHER = 5
"""Dispatches in one submission: the pause behind it, 0.1 to 0.2 ms of Python, is then 2 to 4 %."""

GROUPS = {"software": 64}
"""Workgroups of 64; elsewhere 8192: 524,288 invocations, twice what the largest GPU (132 x 2048 on an H200) holds at a
time."""


def main(adapter: str, duty: float) -> None:
    """Computes until standard input ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work = _calibrated(choose(adapter)[0])
    print("ready", flush=True)
    while True:
        start = time.perf_counter()
        while time.perf_counter() - start < duty * PERIOD_S:
            work(TOGETHER)
        time.sleep(max(PERIOD_S - (time.perf_counter() - start), 0.0))


def _end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock would be missed at exit
        pass
    os._exit(0)


def _calibrated(info: AdapterInfo) -> TimedDispatch:
    """Dispatches that take about DISPATCH_S."""
    groups, iterations = GROUPS.get(info.type, 8192), 256
    while True:
        work = TimedDispatch(info, groups, iterations)
        work()
        took_s = min(work(TOGETHER) for _ in range(3)) / TOGETHER
        if took_s > DISPATCH_S / 2 or iterations > 1 << 22:
            return work
        work.close()
        iterations = int(iterations * min(max(DISPATCH_S / took_s, 2.0), 64.0))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
