"""Fast path for repeated input shapes: buffers, bind groups and a pre-recorded command buffer.

Such a run writes its inputs into buffers of its own, submits once what was recorded during an earlier run, readback included, and copies
its outputs from the memory that the driver maps. Several may be under way at a time: each has an InFlight. Those of
three threads and more may be submitted together, see joined_runs.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from ort_gpu_ep.device import index_check
from ort_gpu_ep.device.copying import Copy, copy_all, copy_results, read_threads
from ort_gpu_ep.errors import InputError, OutOfDeviceMemoryError
from ort_gpu_ep.runtime.in_flight import InFlight, brought, nbytes_of, places_of
from ort_gpu_ep.runtime.joined_runs import CONTENDED, Contention, GroupedRun
from ort_gpu_ep.runtime.prepared import Prepared
from ort_gpu_ep.scheduler.template import Filled
from ort_gpu_ep.webgpu import native, waiting
from ort_gpu_ep.webgpu.library import GPUError, checked, ffi, lib

MAX_IN_FLIGHT = 8
"""Runs of one set of sizes that are under way at the same time: two keep a GPU busy, more wait behind each other."""

MAX_IN_FLIGHT_NBYTES = 256 << 20
"""What the inputs, outputs and staging buffers of all runs of one set of sizes take at most; there is one in any case."""


class Steady:
    """Runs of a plan with one set of sizes. Thread-safe. sent: the types in which inputs go to the device."""

    def __init__(self, prepared: Prepared, filled: Filled) -> None:
        self.prepared, self.filled, self._gpu = prepared, filled, prepared.gpu
        places, _ = places_of(filled.outputs, prepared.words)
        rounded = prepared.rounded(filled)
        self.sent = brought(filled.inputs, rounded)
        self._places = [(place, t.nbytes) for place, t in zip(places, filled.outputs, strict=False)]
        self._word_place = places[-1]
        self._input_nbytes, self._output_nbytes = sum(t.nbytes for t in self.sent), sum(t.nbytes for t in filled.outputs)
        self._readers = read_threads(self._output_nbytes, prepared.gpu.info.is_software)
        self._run_nbytes = nbytes_of(prepared.gpu, self.sent, filled.outputs, rounded)
        self._made, self._closed = 0, False
        self._idle: list[InFlight] = []
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

    def _run(self, own: InFlight, sources: Sequence[Any], targets: Sequence[Any]) -> bool:
        gpu, begin_s = self._gpu, time.perf_counter()
        self._upload(own, sources)
        sent_s = time.perf_counter()
        submission = self._submit(own)
        if submission is None:
            return False
        submitted_s = time.perf_counter()
        self._record_ahead(own)
        pace = self._pace
        if pace is not None:
            pace.rest(submitted_s)
        native.wait(gpu, submission, own.arrival)
        waited_s = time.perf_counter() - submitted_s
        if pace is not None:
            pace.note(waited_s)
        if isinstance(own, GroupedRun):
            own.done()
        try:
            self._read(own, targets)
        except InputError:
            again = self._submit(own, afresh=True) if not isinstance(own, GroupedRun) else None
            if again is None:
                raise
            native.wait(gpu, again, own.arrival)
            self._read(own, targets)
        gpu.exchanged(
            (len(sources), self._input_nbytes, sent_s - begin_s), (len(targets), self._output_nbytes, sent_s, waited_s))
        return True

    def _read(self, own: InFlight, targets: Sequence[Any]) -> None:
        """Copies the results to their targets. Raises InputError where the word is set."""
        assert own.staging is not None, "a run has its readback"
        handle = own.staging.native
        try:
            mapped = ffi.cast("char *", lib.wgpuBufferGetConstMappedRange(handle, 0, own.staging.nbytes))
            noted = ffi.cast("uint32_t *", mapped + self._word_place)[0] if own.words is not None else 0
            if own.words is not None and noted:
                own.words.clear()
                index_check.check((own.words.shared,), (noted,))
            copy_results([(target, mapped + place, nbytes) for target, (place, nbytes) in zip(targets, self._places, strict=True)
                          if target is not None], self._readers)
        finally:
            lib.wgpuBufferUnmap(handle)

    def _upload(self, own: InFlight, sources: Sequence[Any]) -> None:
        """Into buffers of its own: in the queue before whatever is submitted next, by whomever; large ones by what the run records."""
        gpu = self._gpu
        gpu.check_alive()
        queue = gpu.device.queue
        try:
            if own.large is not None:
                own.large.fill(sources)
                return
            for given, tensor, (whole, nbytes, rounds) in zip(sources, own.inputs, own.sizes, strict=True):
                source = given
                if rounds:
                    source = ffi.new("char[]", nbytes)
                    copy_all([Copy(source, given, nbytes, True)])
                if whole:
                    checked.wgpuQueueWriteBuffer(queue, tensor.buffer.native, 0, source, whole)
                if whole != nbytes:
                    tail = bytes(ffi.buffer(source, nbytes)[whole:]).ljust(4, b"\0")
                    checked.wgpuQueueWriteBuffer(queue, tensor.buffer.native, whole, ffi.from_buffer(tail), 4)
        except GPUError as error:       # the driver found no memory to stage them in
            raise gpu.failure(error, f"an upload of {self._input_nbytes} B") from error

    def _submit(self, own: InFlight, afresh: bool = False) -> int | None:
        """Submits a run and asks for its outputs. None where the plan is gone meanwhile.

        afresh: with the word cleared and no other run of the plan in between: what is noted in it then is this run's own.
        """
        if isinstance(own, GroupedRun):
            return own.submitted()
        prepared, gpu = self.prepared, self._gpu
        with prepared.context.lock:
            if prepared.closed or self._closed:
                return None
            prepared.used()
            commands = self._commands(own, prepared.current(self.filled))
            if afresh and own.words is not None:
                own.words.clear()
            if afresh and own.large is not None:
                own.large.keep()
            return gpu.run(commands, own.mappings)

    def _commands(self, own: InFlight, shape: Any) -> list[Any]:
        """The recording that was made ahead, if it still holds, else a new one. Under the context's lock. Raises DeviceError."""
        prepared = self.prepared
        ahead, own.ahead = own.ahead, None
        if ahead is not None and ahead[2] is shape and ahead[1] == prepared.version and ahead[0] is prepared.gpu.timer:
            return ahead[3]
        known, timer = own.parts, prepared.gpu.timer
        if known is None or known[2] is not shape or known[1] != prepared.version or known[0] is not timer:
            groups = prepared.bind(own.inputs, own.outputs)
            parts = [*own.uploads, *prepared.parts(shape, groups, own.inputs, own.outputs)]
            known = own.parts = timer, prepared.version, shape, parts
        return prepared.encode(known[3], own.copies)

    def _record_ahead(self, own: InFlight) -> None:
        """While the GPU is at work. What is recorded is looked at again before it is submitted, so this needs no lock."""
        if own.parts is not None and own.parts[0] is self._gpu.timer:
            timer, version, shape, parts = own.parts
            own.ahead = timer, version, shape, self.prepared.encode(parts, own.copies)

    def _take(self) -> InFlight | None:
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
            return InFlight(self.prepared, self.filled)
        except OutOfDeviceMemoryError:
            with self._lock:
                self._made -= 1
            return None

    def _give_back(self, own: InFlight, whole: bool) -> None:
        """whole: its run came to an end, so that it can have another one."""
        if isinstance(own, GroupedRun):
            own.leave(whole)
            return
        with self._lock:
            if whole and not self._closed:
                self._idle.append(own)
                return
            self._made -= 1
        own.free(self._gpu, not whole)

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
            own.free(self._gpu)
