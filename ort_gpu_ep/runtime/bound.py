"""Runs of a plan with the same inputs and outputs each time: bound once, recorded while the host waits for earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ort_gpu_ep.device.index_check import Word
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.runtime.prepared import Prepared
from ort_gpu_ep.runtime.recording import Part
from ort_gpu_ep.scheduler.template import Filled


class Bound:
    """Runs with these inputs and outputs. Used by one thread at a time.

    prepared: their plan. allowed: it was seen that no tensor is empty, and that the plan takes outputs that are inputs.
    """

    def __init__(self, prepared: Prepared, filled: Filled, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self.inputs, self.outputs, self.gpu = list(inputs), list(outputs), prepared.gpu
        self.prepared, self._filled, self._lock = prepared, filled, prepared.context.lock
        self.allowed = False
        self._parts: tuple[tuple[Any, ...], list[Part]] | None = None               # each with what it holds for
        self._ahead: tuple[tuple[Any, ...], tuple[list[Any], Word | None]] | None = None

    @property
    def closed(self) -> bool:
        """Whether the plan is gone: there will be no further run."""
        return self.prepared.closed

    def run(self) -> Word | Literal[False] | None:
        """Enqueues one run. Returns the word to read with its results, if there is one, or False: the plan is gone. Raises DeviceError."""
        with self._lock:
            if self.prepared.closed:
                return False
            self.prepared.used()
            return self.enqueue(self._filled)

    def enqueue(self, filled: Filled) -> Word | None:
        """The same with other numbers of the plan, which is noted as used already. Under the context's lock."""
        shape = self.prepared.current(filled)
        ahead, self._ahead = self._ahead, None
        commands, word = ahead[1] if ahead is not None and ahead[0] == self._state(shape) else self._record(shape)
        self.gpu.execute(commands)
        return word

    def record_ahead(self) -> bool:
        """Records the next run, if it goes as the one before. Whether that was to be done."""
        if self._parts is None or self._ahead is not None or not self._lock.acquire(blocking=False):
            return False
        try:
            state = self._parts[0]
            if state == self._state(state[-1]):
                self._ahead = state, self.prepared.recorded(self._parts[1])
        finally:
            self._lock.release()
        return self._ahead is not None

    def _state(self, shape: Any) -> tuple[Any, ...]:
        """What a recording holds for."""
        return self.gpu.timer, self.prepared.version, shape

    def _record(self, shape: Any) -> tuple[list[Any], Word | None]:
        state = self._state(shape)
        if self._parts is None or self._parts[0] != state:
            groups = self.prepared.bind(self.inputs, self.outputs)
            self._parts = state, self.prepared.parts(shape, groups, self.inputs, self.outputs)
        return self.prepared.recorded(self._parts[1])
