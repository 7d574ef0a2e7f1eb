"""The error word of a plan on the device, and copies of it for single runs."""

from __future__ import annotations

from typing import Any

from ort_gpu_ep.device.allowance import CONSTANTS
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.index_check import NBYTES, Word
from ort_gpu_ep.webgpu import native

_ZERO = bytes(NBYTES)


class Words:
    """The word that a plan's kernels write to, and words of single runs: what it is copied to where others may run
    before it is read.

    Those lie behind a zero, as many as a buffer holds. Not thread-safe.
    """

    def __init__(self, gpu: Gpu, shared: Any, graph: str, nodes: tuple[str, ...]) -> None:
        self.shared = Word(shared, 0, graph, nodes)
        self._gpu = gpu
        self._buffer: Any = None
        self._end = 0

    def own(self) -> Word:
        """Of a run that is recorded now; its buffer begins with 0, and goes with it. Raises DeviceError."""
        if self._buffer is None or self._end + NBYTES > self._buffer.nbytes:
            buffer = self._gpu.allocate(NBYTES, CONSTANTS)  # as much as the pool's smallest
            self._gpu.upload(buffer, 0, native.address_of(_ZERO), NBYTES)
            self._buffer, self._end = buffer, NBYTES
        self._end += NBYTES
        return Word(self._buffer, self._end - NBYTES, self.shared.graph, self.shared.nodes)

    def clear(self) -> None:
        """Of the plan's word, for the runs that follow. Those under way may be taken for bad ones: they are then done
        again, and right."""
        self._gpu.upload(self.shared.buffer, 0, native.address_of(_ZERO), NBYTES)
