"""A circuit breaker: after a failure an adapter is left alone for a while, then tried with a probe, then used again.

Source: Nygard, Release It!, "Circuit Breaker".
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("ort_gpu_ep")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
"""The pause after the first failure; it doubles with each failure that follows, up to the longest."""

LONGEST_AFTER_KILL_S = 4.0
"""The longest pause after the worker process was killed from outside: that says nothing about the adapter. Were it the system, for want of
memory, it would kill the next one too."""

PATIENCE = 3
"""Failures in a row that open the circuit where one of them may be the run's own fault (memory, a shader)."""


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="ort_gpu_ep-probe", daemon=True).start()


class Circuit:
    """The trust in one adapter. Thread-safe.

    check: the probe; it raises where the adapter does not work. clock: seconds. start: runs the probe without holding up a run.
    """

    def __init__(
        self, check: Callable[[], None], clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] = _in_background,
    ) -> None:
        self._check, self._clock, self._start = check, clock, start
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Trusts the adapter as if nothing had happened."""
        with self._lock:
            self._open = self._probing = False
            self._failures, self._pause_s, self._until = 0, 0.0, 0.0

    @property
    def state(self) -> str:
        """`closed` (in use), `open` (left alone) or `probing`."""
        return "probing" if self._probing else "open" if self._open else "closed"

    @property
    def is_closed(self) -> bool:
        """Whether the adapter is in use."""
        return not self._open

    def allows(self) -> bool:
        """Whether a run may use the GPU now. When the pause is over, the first caller starts the probe."""
        if not self._open:
            return True
        with self._lock:
            due = self._open and not self._probing and self._clock() >= self._until
            self._probing = self._probing or due
        if due:
            self._start(self._probe)
        return not self._open

    def succeeded(self) -> None:
        """A run on the GPU was right: the next failure is a first one again."""
        if not self._open and (self._failures or self._pause_s):
            with self._lock:
                if not self._open:
                    self._failures, self._pause_s = 0, 0.0

    def failed(self, why: str, at_once: bool, killed: bool = False) -> None:
        """A run on the GPU failed. at_once: opens the circuit now; otherwise PATIENCE such failures in a row do.

        killed: as GpuEpError has it.
        """
        with self._lock:
            self._failures += 1
            if self._open or not (at_once or self._failures >= PATIENCE):
                return
            self._trip(killed)
        log.warning("the GPU is left alone for %g s, then probed; runs go to the CPU meanwhile: %s", self._pause_s, why)

    def _trip(self, killed: bool) -> None:
        self._pause_s = min(self._pause_s * 2 or FIRST_PAUSE_S, max(self._pause_s, LONGEST_AFTER_KILL_S) if killed else LONGEST_PAUSE_S)
        self._until = self._clock() + self._pause_s
        self._open = True

    def _probe(self) -> None:
        problem: Exception | None = None
        try:
            self._check()
        except Exception as error:   # whatever a driver raises means: not yet
            problem = error
        with self._lock:
            self._probing = False
            if problem is None:
                self._open, self._failures = False, 0
            else:
                self._trip(getattr(problem, "killed", False))
        if problem is None:
            log.warning("the GPU passed its probe and is used again")
        else:
            log.info("the GPU failed its probe, the next one is in %g s: %s", self._pause_s, problem)
