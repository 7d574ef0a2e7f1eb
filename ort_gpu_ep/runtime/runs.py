"""The runs of one plan: those whose buffers are given, by these, and those with memory of their own, by their sizes.

A run with memory of its own (Steady) writes its inputs into its buffers, submits once what was recorded during an
earlier run, readback included, and copies its outputs from the memory that the driver maps. Several may be under way at
a time, each with ends of its own. Those of three threads and more may be submitted together, see joined_runs.py.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from ort_gpu_ep.config import MEMORY_NBYTES
from ort_gpu_ep.device.gpu import MAX_IN_FLIGHT
from ort_gpu_ep.device.index_check import Word
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import InputError, OutOfDeviceMemoryError
from ort_gpu_ep.runtime.context import SHARE
from ort_gpu_ep.runtime.ends import Ends, brought, nbytes_of
from ort_gpu_ep.runtime.prepared import MAX_TURNS, Prepared
from ort_gpu_ep.runtime.recording import HostRun, Recording
from ort_gpu_ep.scheduler.template import Filled
from ort_gpu_ep.webgpu import native, waiting

MAX_STEADY = 4
"""Sets of sizes that a plan keeps inputs, outputs and recordings for, see Steady."""

MAX_IN_FLIGHT_NBYTES = MEMORY_NBYTES // SHARE
"""What the inputs, outputs and staging buffers of all runs of one set of sizes take at most; there is one in any
case."""


class Joining(Protocol):
    """A policy of submission: runs of several threads together, see joined_runs.py."""

    def run(self, under_way: int) -> HostRun | None:
        """What a run that begins has with others, None where it goes by itself. under_way: runs that do."""

    def close(self) -> None:
        """There will be no further run."""


Joins: TypeAlias = "Callable[[Prepared, Filled, int], Joining | None]"
"""Gives the policy for runs of a plan with one set of sizes, where so many are under way at the same time; None where
they are few."""


class Steady:
    """Runs of a plan with one set of sizes, by host memory. Thread-safe. sent: the types in which inputs go to the
    device.

    made: how many of them have buffers. idle: those of them that are not under way. closed: there will be no further
    run.
    """

    def __init__(self, prepared: Prepared, filled: Filled, joins: Joins) -> None:
        self.prepared, self.filled, self._gpu = prepared, filled, prepared.gpu
        rounded = prepared.rounded(filled)
        self.sent = brought(filled.inputs, rounded)
        self._input_nbytes, self._output_nbytes = (
            sum(t.nbytes for t in self.sent),
            sum(t.nbytes for t in filled.outputs),
        )
        self._run_nbytes = nbytes_of(prepared.gpu, self.sent, filled.outputs, rounded)
        self.made, self.closed = 0, False
        self.idle: list[HostRun] = []
        # software computes with the core that would poll
        self._pace = None if prepared.gpu.info.is_software else waiting.Pace()
        self._joins = joins
        self.contention: Joining | None = None  # since several runs were under way
        self._lock = threading.Lock()

    @staticmethod
    def fits(filled: Filled) -> bool:
        """Whether runs with these types can be such ones: no tensor is empty."""
        return all(t.nbytes for t in (*filled.inputs, *filled.outputs))

    def run(self, sources: Sequence[Any], targets: Sequence[Any]) -> bool:
        """One run. sources, targets: cffi pointers to the bytes of each input, and to memory for each output or None.

        Returns False, and has done nothing, where so many runs are under way or the plan is gone. Raises DeviceError,
        InputError.
        """
        own = self._take()
        if own is None:
            return False
        whole = False
        try:
            done = self._run(own, sources, targets)
            whole = True
        except InputError:
            whole = True
            raise
        finally:
            self._give_back(own, whole)
        return done

    def _run(self, own: HostRun, sources: Sequence[Any], targets: Sequence[Any]) -> bool:
        gpu, ends, begin_s = self._gpu, own.ends, time.perf_counter()
        ends.upload(sources)
        sent_s = time.perf_counter()
        submission = own.submit()
        if submission is None:
            return False
        submitted_s = time.perf_counter()
        pace = self._pace
        own.record_ahead()
        if pace is not None:
            pace.rest(submitted_s)
        native.wait(gpu, submission, ends.arrival)
        waited_s = time.perf_counter() - submitted_s
        if pace is not None:
            pace.note(waited_s)
        if own.joined:
            own.arrive()
        try:
            ends.read(targets)
        except InputError:
            again = own.submit(afresh=True)
            if again is None:
                raise
            native.wait(gpu, again, ends.arrival)
            ends.read(targets)
        gpu.exchanged(
            (len(sources), self._input_nbytes, sent_s - begin_s), (len(targets), self._output_nbytes, sent_s, waited_s)
        )
        return True

    def _take(self) -> HostRun | None:
        contention = self.contention
        if contention is not None:
            grouped = contention.run(self.made - len(self.idle))
            if grouped is not None:
                return grouped
        try:
            return self.idle.pop()
        except IndexError:
            pass
        with self._lock:
            few = self.made < MAX_IN_FLIGHT and (self.made + 1) * self._run_nbytes <= MAX_IN_FLIGHT_NBYTES
            if self.closed or self.prepared.closed or (self.made and not few):
                return None
            self.made += 1
            if self.contention is None:
                self.contention = self._joins(self.prepared, self.filled, self.made)
        try:
            return HostRun(self.prepared, self.filled)
        except OutOfDeviceMemoryError:
            with self._lock:
                self.made -= 1
            return None

    def _give_back(self, own: HostRun, whole: bool) -> None:
        """whole: its run came to an end, so that it can have another one."""
        if own.joined:
            own.leave(whole)
            return
        with self._lock:
            if whole and not self.closed:
                self.idle.append(own)
                return
            self.made -= 1
        own.ends.free(not whole)

    def close(self) -> None:
        """Frees what runs have, those under way when they end."""
        with self._lock:
            self.closed = True
            idle, self.idle = self.idle, []
            self.made -= len(idle)
            contention, self.contention = self.contention, None
        if contention is not None:
            contention.close()
        for own in idle:
            own.ends.free()


class Runs:
    """Not thread-safe: the context's lock is held.

    Buffers that take turns come in the same order again: behind a run that was foreseen, the one that came next before
    is recorded.
    """

    def __init__(self, prepared: Prepared, joins: Joins) -> None:
        self.prepared, self._version, self._joins = prepared, prepared.version, joins
        self._given: OrderedDict[tuple[Any, ...], Recording[Ends]] = OrderedDict()
        self._next: Recording[Ends] | None = None
        self.steadies: OrderedDict[tuple[int, ...], Steady] = OrderedDict()

    def run(self, filled: Filled, inputs: list[Tensor], outputs: list[Tensor]) -> Word | None:
        """Enqueues one run. Returns the word to read with its results, if there is one. Raises DeviceError."""
        prepared = self.prepared
        if not prepared.template.plan.steps:
            return None
        shape = prepared.current(filled)
        if not prepared.is_warm:
            prepared.warm_up_all(shape, inputs, outputs)
        recording = self._recording(shape, inputs, outputs)
        ends = recording.ends
        ends.inputs, ends.outputs = inputs, outputs
        word = recording.enqueue(shape)
        ends.inputs, ends.outputs = [], []  # whoever gives them keeps their memory
        before, shape.last = shape.last, recording
        self._next = None
        if before is not None:
            expected, before.next = before.next, recording
            if before is recording or expected is recording:
                self._next = recording.next
                prepared.gpu.on_wait(self)
        return word

    def _recording(self, shape: Any, inputs: list[Tensor], outputs: list[Tensor]) -> Recording[Ends]:
        """That of these sizes and buffers; the least recently used one goes where there are too many."""
        if self._version != self.prepared.version:  # their bind groups name buffers that the plan has no more
            self.forget()
        key = (shape, *((t.buffer.serial, t.offset_bytes) for t in (*inputs, *outputs)))
        recording = self._given.get(key)
        if recording is None:
            recording = self._given[key] = Recording(self.prepared, Ends(inputs, outputs))
            if len(self._given) > MAX_TURNS:
                self._given.popitem(last=False)[1].next = None
        self._given.move_to_end(key)
        return recording

    def while_waiting(self) -> None:
        """Records what most likely comes next."""
        following = self._next
        if following is not None:
            following.record_ahead()

    def steady(self, filled: Filled) -> Steady:
        """What further runs of these sizes go by, with memory of their own."""
        steady = self.steadies.get(filled.numbers)
        if steady is None:
            steady = self.steadies[filled.numbers] = Steady(self.prepared, filled, self._joins)
            if len(self.steadies) > MAX_STEADY:
                self.steadies.popitem(last=False)[1].close()
        self.steadies.move_to_end(filled.numbers)
        return steady

    def end(self, filled: Filled) -> None:
        """Runs of these sizes go another way: frees what they had to themselves."""
        steady = self.steadies.pop(filled.numbers, None)
        if steady is not None:
            steady.close()

    def forget(self) -> None:
        """Drops the recordings for given buffers."""
        for recording in self._given.values():
            recording.next = None
        self._given.clear()
        self._next, self._version = None, self.prepared.version

    def free(self) -> None:
        """Frees all that is there for runs alone."""
        self.forget()
        for steady in self.steadies.values():
            steady.close()
        self.steadies.clear()
