"""Load of GPU and CPU by other processes, when this process last used a GPU, and how many of its threads run a model,
as plain data."""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import dataclass

BANDS = ("idle", "low", "medium", "high")
EDGES = (0.10, 0.40, 0.80)
"""Where one band ends and the next begins. A load of 25, 60 or 95 % (drills/generator.py) lies in the middle of low,
medium, high."""


@dataclass(frozen=True, slots=True)
class Load:
    """One smoothed reading, without the work of this process.

    gpu: part of the time in which others keep the adapter busy, 0 to 1; None: unknown. cpu: the same of the usable
    cores. cores: how many cores this process may use. source: what was read, or why nothing could be. when_s: monotonic
    clock.
    """

    gpu: float | None
    cpu: float
    cores: int
    source: str
    when_s: float

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.when_s

    def as_dict(self) -> dict[str, object]:
        return {"gpu": self.gpu, "cpu": self.cpu, "cores": self.cores, "source": self.source, "age_s": self.age_s}


UNKNOWN = Load(None, 0.0, 1, "not measured", 0.0)
"""The load of a session without a sampler: no run is moved."""


SLEEPS_S = 0.03
"""Rest after which a GPU may lower its clock: an H200 runs as ever after 20 ms, and at 345 of 1,980 MHz after 100."""

AWAKE_S = 0.6
"""How long a GPU that has slept works until its clock is up: an H200 0.4 s, sometimes more."""


class Uses:
    """When this process has used an adapter. sleeps: it is a GPU, not a driver that computes on the CPU. Times by
    time.perf_counter."""

    def __init__(self, sleeps: bool = True) -> None:
        self.sleeps = sleeps
        self.last_s = self._since_s = -math.inf

    def begin(self, now_s: float) -> None:
        if now_s - self.last_s > SLEEPS_S:
            self._since_s = now_s

    def end(self, now_s: float) -> None:
        self.last_s = max(self.last_s, now_s)

    def awake(self, now_s: float) -> bool:
        """Whether its clock is up, if a run begins now."""
        return not self.sleeps or (now_s - self.last_s <= SLEEPS_S and now_s - self._since_s >= AWAKE_S)


_running: dict[int, None] = {}
"""The threads of this process that have a run under way, of sessions that choose between candidates."""


def run_begins() -> int:
    """This thread begins a run. Returns how many other threads have one under way. No lock, less than 0.2 us."""
    _running[threading.get_ident()] = None
    return len(_running) - 1


def run_ends() -> None:
    """This thread's run is over."""
    _running.pop(threading.get_ident(), None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # the other threads are the parent's
