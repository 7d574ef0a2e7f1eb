"""Real time in tests, so that a busy machine makes a test slower and not red: only what never comes true within PATIENCE_S fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import TypeVar

import pytest

from ort_gpu_ep.device import faults

PATIENCE_S = 120.0
"""As many seconds as nobody waits for where the code is right, on a machine with many times the load that it can take."""


def until(condition: Callable[[], object], what: str = "", seconds: float = PATIENCE_S) -> None:
    """Returns as soon as the condition holds. Fails with `what` if it does not in time."""
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, f"not in {seconds:g} s: {what or condition}"
        time.sleep(0.01)


def least_s(action: Callable[[], object], enough_s: float, times: int = 1, seconds: float = 10.0, attempts: int = 20) -> float:
    """Seconds of an action, the least of as many attempts as it takes to get below `enough_s`. times: it is done so often in each.

    It gives up after so many seconds, but not before so many attempts: a process that is stopped lets time pass without any.
    """
    end_s, best_s, tried = time.monotonic() + seconds, float("inf"), 0
    while best_s >= enough_s and (tried < attempts or time.monotonic() < end_s):
        tried += 1
        start_s = time.perf_counter()
        for _ in range(times):
            action()
        best_s = min(best_s, (time.perf_counter() - start_s) / times)
    return best_s


def work_s(action: Callable[[], object]) -> float:
    """What an action makes this process compute, all its threads together, in seconds of a CPU."""
    start_s = time.process_time()
    action()
    return time.process_time() - start_s


T = TypeVar("T")


def at_once(action: Callable[[], T], most_s: float = 2.0) -> T:
    """What an action gives, which computes for less than that and waits for nothing but, on a busy machine, for a core."""
    start_s, worked_s = time.monotonic(), time.process_time()
    found = action()
    assert time.process_time() - worked_s < most_s
    assert time.monotonic() - start_s < PATIENCE_S
    return found


HANG_S = 0.1


def brief_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs on purpose in this process is waited for HANG_S; what really runs, on a busy machine, for as long as the session says."""
    monkeypatch.setattr(faults, "time", SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda seconds: time.sleep(min(seconds, HANG_S))))


class Clock:
    """Put in place of the module `time` in modules under test: it moves only when it is told to, and by tick_s when somebody looks.

    now_s: what all clocks of the system say. spent_s: what the thread's own says.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: object, tick_s: float = 0.0) -> None:
        self.now_s, self.spent_s, self.tick_s = 1000.0, 0.0, tick_s
        told = SimpleNamespace(monotonic=self.look, perf_counter=self.look, thread_time=lambda: self.spent_s,
                               monotonic_ns=lambda: round(self.look() * 1e9), sleep=self.rest)
        for module in modules:
            monkeypatch.setattr(module, "time", told)

    def look(self) -> float:
        self.now_s += self.tick_s
        return self.now_s

    def rest(self, seconds: float) -> None:
        self.now_s += seconds
