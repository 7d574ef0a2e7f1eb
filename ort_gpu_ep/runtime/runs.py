"""The runs of one plan: those whose buffers are given, by these, and those with memory of their own, by their sizes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ort_gpu_ep.device.index_check import Word
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.runtime.ends import Ends
from ort_gpu_ep.runtime.joined_runs import Contention
from ort_gpu_ep.runtime.prepared import Prepared
from ort_gpu_ep.runtime.recording import Recording
from ort_gpu_ep.runtime.steady import Steady
from ort_gpu_ep.scheduler.template import Filled

MAX_RECORDINGS = 16
"""Sets of sizes and of given buffers that a plan keeps recordings for, with their bind groups."""

MAX_STEADY = 4
"""Sets of sizes that a plan keeps inputs, outputs and recordings for, see Steady."""


class Runs:
    """Not thread-safe: the context's lock is held.

    Buffers that take turns come in the same order again: behind a run that was foreseen, the one that came next before is recorded.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.prepared, self._version = prepared, prepared.version
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
        ends.inputs, ends.outputs = [], []      # whoever gives them keeps their memory
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
        if self._version != self.prepared.version:      # their bind groups name buffers that the plan has no more
            self.forget()
        key = (shape, *((t.buffer.serial, t.offset_bytes) for t in (*inputs, *outputs)))
        recording = self._given.get(key)
        if recording is None:
            recording = self._given[key] = Recording(self.prepared, Ends(inputs, outputs))
            if len(self._given) > MAX_RECORDINGS:
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
            steady = self.steadies[filled.numbers] = Steady(self.prepared, filled, Contention.of)
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
