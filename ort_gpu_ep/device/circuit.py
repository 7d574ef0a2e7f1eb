"""A circuit breaker: after a failure an adapter is left alone for a while, then tried with a probe, then used again.
Partitions have one each, too: one that fails again and again is left to the CPU, and the adapter to the others.

Source: Nygard, Release It!, "Circuit Breaker".
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Hashable

log = logging.getLogger("ort_gpu_ep")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
"""The pause after the first failure; it doubles with each failure that follows, up to the longest."""

LONGEST_AFTER_KILL_S = 4.0
"""The longest pause after the worker process was killed from outside: that says nothing about the adapter. Were it the
system, for want of memory, it would kill the next one too."""

PATIENCE = 3
"""Failures in a row that open a circuit where one alone may be chance (memory, a device that another session's run has
lost)."""

SUSPICION_S = 300.0
"""Wrong results of two models within this time are the adapter's fault, whatever its probe says."""

LAST_S = 2.0
"""How long the process waits at its end for a probe under way: a software adapter's driver crashes where it ends
meanwhile."""

_probes: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def _in_background(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work, name="ort_gpu_ep-probe", daemon=True)
    _probes.add(thread)
    thread.start()


def _let_probes_end() -> None:
    for thread in list(_probes):
        thread.join(LAST_S)


atexit.register(_let_probes_end)


class Circuit:
    """The trust in one adapter, or in one partition on it. Thread-safe.

    check: the probe that closes it again; it raises where the adapter does not work. None: it closes when its pause is
    over. clock: in seconds. start: runs a probe without holding up a run. test: that of an adapter in use, `check` if
    there is no other. what: names it in the log. is_closed: whether it is in use. doubted: whether a success would tell
    it anything new. Runs ask for both each time: plain attributes.
    """

    def __init__(
        self,
        check: Callable[[], None] | None,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] = _in_background,
        test: Callable[[], None] | None = None,
        what: str = "the GPU",
    ) -> None:
        self._check, self._test, self._clock, self._start, self._what = check, test or check, clock, start, what
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Trusts the adapter as if nothing had happened."""
        with self._lock:
            self.is_closed, self.doubted, self._probing = True, False, False
            self._failures, self._pause_s, self._until = 0, 0.0, 0.0
            self._suspects: dict[Hashable, float] = {}

    @property
    def state(self) -> str:
        """`closed` (in use), `open` (left alone) or `probing`."""
        return "closed" if self.is_closed else "probing" if self._probing else "open"

    def allows(self) -> bool:
        """Whether a run may use the GPU now. When the pause is over, the first caller starts the probe."""
        if self.is_closed:
            return True
        with self._lock:
            due = not self.is_closed and not self._probing and self._clock() >= self._until
            if due and self._check is None:
                self.is_closed = True
            self._probing = self._probing or (due and not self.is_closed)
        if due and self._check is not None:
            self._start(self._close_again)
        return self.is_closed

    def succeeded(self) -> None:
        """A run on the GPU was right: the next failure is a first one again."""
        with self._lock:
            if self.is_closed:
                self._failures, self._pause_s, self.doubted = 0, 0.0, False

    def failed(self, why: str, at_once: bool, killed: bool = False) -> None:
        """A run on the GPU failed. at_once: opens the circuit now; otherwise PATIENCE such failures in a row do, or one
        behind a pause.

        killed: as GpuEpError has it.
        """
        with self._lock:
            self._failures += 1
            self.doubted = True
            opens = self.is_closed and (at_once or self._pause_s > 0.0 or self._failures >= PATIENCE)
            if opens:
                self._open(killed)
        if opens:
            self._say(logging.WARNING, why)

    def suspect(self, why: str, model: Hashable = None) -> None:
        """A run has failed by what may be its own model's fault. The adapter stays in use and is probed beside the
        runs.

        model: whose result was wrong. Of two models within SUSPICION_S it is the adapter's fault. None where a probe
        that passes says enough: it compiles, binds and takes memory, too.
        """
        with self._lock:
            now = self._clock()
            if not self.is_closed:
                return
            if model is not None:
                self._suspects = {m: s for m, s in self._suspects.items() if now - s < SUSPICION_S} | {model: now}
            opens = len(self._suspects) > 1
            if opens:
                self._suspects = {}
                self._open(False)
            due = not opens and not self._probing and now >= self._until
            self._probing = self._probing or due
        if opens:
            self._say(logging.WARNING, f"results of two models were wrong, the last time: {why}")
        if due:
            log.info("%s is probed: %s", self._what, why)
            self._start(self._look)

    def _open(self, killed: bool) -> None:
        self._pause_s = min(
            self._pause_s * 2 or FIRST_PAUSE_S, max(self._pause_s, LONGEST_AFTER_KILL_S) if killed else LONGEST_PAUSE_S
        )
        self._until = self._clock() + self._pause_s
        self.is_closed, self.doubted = False, True

    def _say(self, level: int, why: str) -> None:
        then = "then probed" if self._check is not None else "then tried again"
        log.log(
            level,
            "%s is left alone for %g s, %s; runs go to the CPU meanwhile: %s",
            self._what,
            self._pause_s,
            then,
            why,
        )

    def _close_again(self) -> None:
        """The probe of an adapter that is left alone."""
        assert self._check is not None, "else nothing is probed"
        problem = _raised(self._check)
        with self._lock:
            self._probing = False
            if problem is not None:
                self._open(getattr(problem, "killed", False))
        if problem is None:
            self.passed()
        else:
            self._say(logging.INFO, f"the probe failed: {problem}")

    def passed(self) -> None:
        """The adapter has passed its probe, or what says as much: if it was left alone, it is used again."""
        with self._lock:
            again, self.is_closed = not self.is_closed, True
            if again:
                self._failures = 0
        if again:
            log.warning("%s passed its probe and is used again", self._what)

    def _look(self) -> None:
        """The probe of an adapter in use. Passed, it says enough for a while."""
        assert self._test is not None, "a partition is not probed"
        problem = _raised(self._test)
        with self._lock:
            self._probing = False
            opens = problem is not None and self.is_closed
            if opens:
                self._open(getattr(problem, "killed", False))
            elif self.is_closed:
                self._until = self._clock() + FIRST_PAUSE_S
        if opens:
            self._say(logging.WARNING, f"the probe failed: {problem}")


def _raised(check: Callable[[], None]) -> Exception | None:
    try:
        check()
    except Exception as error:  # whatever a driver raises means: it does not work
        return error
    return None
