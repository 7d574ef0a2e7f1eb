"""What becomes of many runs of one set of sizes under way at once: whether they are submitted together, see coalescing.py.

Nothing says that together is faster on an adapter: it is measured, runs one by one first and then together, and the faster way stays.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import background, coalescing
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.in_flight import nbytes_of
from ort_gpu_ep.device.run_group import Apart, GroupedRun, RunGroup
from ort_gpu_ep.errors import OutOfDeviceMemoryError, forget_frames
from ort_gpu_ep.graph import Graph
from ort_gpu_ep.scheduler.template import Filled, Template

log = logging.getLogger("ort_gpu_ep")

IDLE_S = 10.0
"""After so long without runs together, the next run that is alone frees what they need."""

WINDOW = 128
"""Runs over which it is measured how fast runs of several threads are, one by one and together."""

TRIAL = 32
"""Runs together before they are measured: the first ones make bind groups."""


class Pace:
    """Seconds a run takes where several threads have one under way all the time. clock: tells the time in seconds."""

    def __init__(self, skip: int = 0, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._skip, self._begin_s, self._runs = clock, skip, 0.0, 0
        self.seconds: float | None = None

    def note(self) -> None:
        """Another run begins, with others under way."""
        if self.seconds is not None:
            return
        if self._skip:
            self._skip -= 1
            return
        now = self._clock()
        self._begin_s = self._begin_s if self._runs else now
        if self._runs >= WINDOW:
            self.seconds = (now - self._begin_s) / WINDOW
        self._runs += 1

    def forget(self) -> None:
        """A run was alone: what was measured so far is not of several threads."""
        self._runs = 0


class Program(Protocol):
    """What has the plans, see program.py."""

    lock: threading.Lock
    config: Config
    graph: Graph

    def apart(self, base: Template, filled: Filled) -> tuple[Template, list[Any]]:
        """A plan of the same sizes, each value with memory of its own, and its pipelines. Without the lock."""

    def placed(self, template: Template, compiled: list[Any]) -> Apart:
        """Such a plan on the device. Under the lock."""


class Plan(Protocol):
    """A plan on the device, see prepared.py."""

    gpu: Gpu
    template: Template
    closed: bool


class Owner(coalescing.Owner, Protocol):
    """The runs of one set of sizes, see steady.py."""

    @property
    def program(self) -> Program: ...

    @property
    def prepared(self) -> Plan: ...

    @property
    def filled(self) -> Filled: ...


class Contention:
    """Of one Steady, since CONTENDED runs of it were under way. Thread-safe.

    coalescer: what submits runs together, None while they go one by one. why: why they always will, empty while that is open.
    """

    def __init__(self, owner: Owner, measured: bool) -> None:
        self._owner, self._lock = owner, threading.Lock()
        self.coalescer: coalescing.Coalescer | None = None
        self.why = ""
        self.apart, self.together = Pace(), Pace(TRIAL)
        self._measured, self._asked, self._closed = measured, False, False

    @staticmethod
    def of(owner: Owner) -> Contention | None:
        """None where runs are never submitted together."""
        gpu, option = owner.prepared.gpu, owner.program.config.join_runs
        if option == "0" or owner.prepared.template.varies or (option == "auto" and gpu.info.is_software):
            return None
        return Contention(owner, option == "auto")

    def run(self, under_way: int) -> GroupedRun | None:
        """What a run that begins has in a group, None where it goes by itself. under_way: runs that do."""
        together = self.coalescer
        others = under_way + (together.inside if together is not None else 0)
        if others < coalescing.CONTENDED - 1 or self.why or self._owner.prepared.gpu.timer is not None:
            if not others:
                self._alone(together)
            return None
        if together is None:
            if self._measured:
                self.apart.note()
            if not self._measured or self.apart.seconds is not None:
                self._ask()
            return None
        if self._measured:
            self.together.note()
            if self.together.seconds is not None:
                self._judge(together, self.together.seconds)
        return together.join()

    def _alone(self, together: coalescing.Coalescer | None) -> None:
        """A run begins with no other under way."""
        self.apart.forget()
        self.together.forget()
        if together is not None and time.monotonic() - together.used_s > IDLE_S:
            self._stop()

    def _judge(self, together: coalescing.Coalescer, seconds: float) -> None:
        self._measured = False
        if self.apart.seconds is not None and seconds > self.apart.seconds:
            self.why = f"together they take {seconds * 1e6:.0f} us each, one by one {self.apart.seconds * 1e6:.0f}"
            self._stop()

    def _ask(self) -> None:
        with self._lock:
            if self._asked or self._closed:
                return
            self._asked = True
        background.background.add(self._make)

    def _make(self) -> None:
        """On the thread of background.py."""
        try:
            made = self._coalescer()
        except Exception as error:      # runs go on one by one
            self.why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            forget_frames(error)
            log.warning("runs of several threads are not submitted together: %s", self.why)
            return
        with self._lock:
            if not self._closed:
                self.coalescer, made = made, None
        if made is not None:
            made.close()

    def _coalescer(self) -> coalescing.Coalescer | None:
        owner, program, filled = self._owner, self._owner.program, self._owner.filled
        template, compiled = program.apart(owner.prepared.template, filled)
        found = template.fill(filled.inputs)
        assert found is not None, "a template holds for the sizes that it was made for"
        groups = list[RunGroup]()
        try:
            for _ in range(coalescing.MAX_GROUPS):
                with program.lock:
                    if owner.prepared.closed or self._closed or background.ending():
                        raise _GoneError
                    groups.append(_group(program, owner.prepared.gpu, template, compiled, found))
        except BaseException as error:
            for group in groups:
                group.free()
            if isinstance(error, _GoneError):
                return None
            raise
        return coalescing.Coalescer(owner, groups)

    def _stop(self) -> None:
        """Frees what runs together need; they may be wanted again."""
        with self._lock:
            together, self.coalescer, self._asked = self.coalescer, None, False
        if together is not None:
            together.close()

    def close(self) -> None:
        """There will be no further run."""
        with self._lock:
            self._closed = True
        self._stop()


class _GoneError(Exception):
    """The plan is gone."""


def _group(program: Program, gpu: Gpu, template: Template, compiled: list[Any], filled: Filled) -> RunGroup:
    """Under the program's lock. Raises DeviceError."""
    nbytes = template.plan.slot_nbytes + nbytes_of(gpu, filled)
    runs = min(coalescing.MAX_RUNS, coalescing.MAX_NBYTES // (coalescing.MAX_GROUPS * nbytes))
    if runs < 2:
        raise OutOfDeviceMemoryError(
            f"{program.graph.name}: values of one run take {nbytes >> 20} MiB; two groups of two may have {coalescing.MAX_NBYTES >> 20}")
    sets = list[Apart]()
    try:
        for _ in range(runs):
            sets.append(program.placed(template, compiled))
        return RunGroup(program.graph.name, sets, filled)
    except BaseException:
        for prepared in sets:
            prepared.close()
        raise
