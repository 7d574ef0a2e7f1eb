"""Fast path for repeated input shapes: buffers, bind groups and a pre-recorded command buffer.

Such a run writes its inputs into buffers of its own, submits once what was recorded during an earlier run, readback included, and copies
its outputs from the memory that the driver maps. Several may be under way at a time, each with ends of its own. Those of
three threads and more may be submitted together, see joined_runs.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from ort_gpu_ep.errors import InputError, OutOfDeviceMemoryError
from ort_gpu_ep.runtime.ends import HostEnds, brought, nbytes_of
from ort_gpu_ep.runtime.joined_runs import CONTENDED, Contention, GroupedRun
from ort_gpu_ep.runtime.prepared import Prepared
from ort_gpu_ep.runtime.recording import Recording, host_ends
from ort_gpu_ep.scheduler.template import Filled
from ort_gpu_ep.webgpu import native, waiting

MAX_IN_FLIGHT = 8
"""Runs of one set of sizes that are under way at the same time: two keep a GPU busy, more wait behind each other."""

MAX_IN_FLIGHT_NBYTES = 256 << 20
"""What the inputs, outputs and staging buffers of all runs of one set of sizes take at most; there is one in any case."""


class Steady:
    """Runs of a plan with one set of sizes. Thread-safe. sent: the types in which inputs go to the device."""

    def __init__(self, prepared: Prepared, filled: Filled) -> None:
        self.prepared, self.filled, self._gpu = prepared, filled, prepared.gpu
        rounded = prepared.rounded(filled)
        self.sent = brought(filled.inputs, rounded)
        self._input_nbytes, self._output_nbytes = sum(t.nbytes for t in self.sent), sum(t.nbytes for t in filled.outputs)
        self._run_nbytes = nbytes_of(prepared.gpu, self.sent, filled.outputs, rounded)
        self._made, self._closed = 0, False
        self._idle: list[Recording[HostEnds]] = []
        self._pace = None if prepared.gpu.info.is_software else waiting.Pace()      # software computes with the core that would poll
        self.contention: Contention | None = None       # since so many runs were under way
        self._lock = threading.Lock()

    @staticmethod
    def fits(filled: Filled) -> bool:
        """Whether runs with these types can be such ones: no tensor is empty."""
        return all(t.nbytes for t in (*filled.inputs, *filled.outputs))

    def run(self, sources: Sequence[Any], targets: Sequence[Any]) -> bool:
        """One run. sources, targets: cffi pointers to the bytes of each input, and to memory for each output or None.

        Returns False, and has done nothing, where so many runs are under way or the plan is gone. Raises DeviceError, InputError.
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

    def _run(self, own: Recording[HostEnds], sources: Sequence[Any], targets: Sequence[Any]) -> bool:
        gpu, ends, begin_s = self._gpu, own.ends, time.perf_counter()
        ends.upload(sources)
        sent_s = time.perf_counter()
        submission = self._submit(own)
        if submission is None:
            return False
        submitted_s = time.perf_counter()
        pace = self._pace
        if not isinstance(own, GroupedRun):
            own.record_ahead()
        if pace is not None:
            pace.rest(submitted_s)
        native.wait(gpu, submission, ends.arrival)
        waited_s = time.perf_counter() - submitted_s
        if pace is not None:
            pace.note(waited_s)
        if isinstance(own, GroupedRun):
            own.done()
        try:
            ends.read(targets)
        except InputError:
            again = self._submit(own, afresh=True) if not isinstance(own, GroupedRun) else None
            if again is None:
                raise
            native.wait(gpu, again, ends.arrival)
            ends.read(targets)
        gpu.exchanged(
            (len(sources), self._input_nbytes, sent_s - begin_s), (len(targets), self._output_nbytes, sent_s, waited_s))
        return True

    def _submit(self, own: Recording[HostEnds], afresh: bool = False) -> int | None:
        """Submits a run and asks for its outputs. None where the plan is gone meanwhile.

        afresh: with the word cleared and no other run of the plan in between: what is noted in it then is this run's own.
        """
        if isinstance(own, GroupedRun):
            return own.submitted()
        prepared, gpu, ends = self.prepared, self._gpu, own.ends
        with prepared.context.lock:
            if prepared.closed or self._closed:
                return None
            prepared.used()
            commands, _ = own.commands(prepared.current(self.filled))
            if afresh and ends.words is not None:
                ends.words.clear()
            if afresh and ends.large is not None:
                ends.large.keep()
            return gpu.run(commands, ends.mappings)

    def _take(self) -> Recording[HostEnds] | None:
        contention = self.contention
        if contention is not None:
            grouped = contention.run(self._made - len(self._idle))
            if grouped is not None:
                return grouped
        try:
            return self._idle.pop()
        except IndexError:
            pass
        with self._lock:
            few = self._made < MAX_IN_FLIGHT and (self._made + 1) * self._run_nbytes <= MAX_IN_FLIGHT_NBYTES
            if self._closed or self.prepared.closed or (self._made and not few):
                return None
            self._made += 1
            if self._made == CONTENDED and self.contention is None:
                self.contention = Contention.of(self.prepared, self.filled)
        try:
            return Recording(self.prepared, host_ends(self.prepared, self.filled))
        except OutOfDeviceMemoryError:
            with self._lock:
                self._made -= 1
            return None

    def _give_back(self, own: Recording[HostEnds], whole: bool) -> None:
        """whole: its run came to an end, so that it can have another one."""
        if isinstance(own, GroupedRun):
            own.leave(whole)
            return
        with self._lock:
            if whole and not self._closed:
                self._idle.append(own)
                return
            self._made -= 1
        own.ends.free(not whole)

    def close(self) -> None:
        """Frees what runs have, those under way when they end."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._made -= len(idle)
            contention, self.contention = self.contention, None
        if contention is not None:
            contention.close()
        for own in idle:
            own.ends.free()
