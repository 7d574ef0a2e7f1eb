"""Real time in tests, so that a busy machine makes a test slower and not red: only what never comes true within
PATIENCE_S fails."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType, SimpleNamespace

import pytest

from ort_gpu_ep.drills import faults

PATIENCE_S = 300.0
"""As many seconds as nobody waits for where the code is right, on a machine with many times the load that it can
take."""


def until(condition: Callable[[], object], what: str | Callable[[], str] = "", seconds: float = PATIENCE_S) -> None:
    """Returns as soon as the condition holds. Fails with `what` if it does not in time."""
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, f"not in {seconds:g} s: {what() if callable(what) else what or condition}"
        time.sleep(0.01)


def steps(action: Callable[[], object]) -> int:
    """Bytecode instructions of Python that an action executes on this thread: what it costs, whatever the machine does
    meanwhile."""
    count = 0

    def traced(frame: FrameType, event: str, argument: object) -> Callable[..., object]:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


HANG_S = 0.1


def brief_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs on purpose in this process is waited for HANG_S; what really runs, on a busy machine, for as long as
    the session says."""
    monkeypatch.setattr(
        faults,
        "time",
        SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda seconds: time.sleep(min(seconds, HANG_S))),
    )


class Clock:
    """Put in place of the module `time` in modules under test: it moves only when it is told to, and by tick_s when
    somebody looks.

    now_s: what all clocks of the system say. spent_s: what the thread's own says.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: object, tick_s: float = 0.0) -> None:
        self.now_s, self.spent_s, self.tick_s = 1000.0, 0.0, tick_s
        told = SimpleNamespace(
            monotonic=self.look,
            perf_counter=self.look,
            thread_time=lambda: self.spent_s,
            monotonic_ns=lambda: round(self.look() * 1e9),
            sleep=self.rest,
        )
        for module in modules:
            monkeypatch.setattr(module, "time", told)

    def look(self) -> float:
        self.now_s += self.tick_s
        return self.now_s

    def rest(self, seconds: float) -> None:
        self.now_s += seconds
