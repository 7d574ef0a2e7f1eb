"""Resources of one submitted run: inputs, outputs, and the memory for their readback."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ort_gpu_ep.device import index_check
from ort_gpu_ep.device.allowance import RUNS
from ort_gpu_ep.device.buffers import STAGING, Buffer, size_class
from ort_gpu_ep.device.gpu import ALIGNMENT, Gpu
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import DeviceError
from ort_gpu_ep.ir.types import FLOAT16, TensorType
from ort_gpu_ep.runtime import staging
from ort_gpu_ep.runtime.error_words import Words
from ort_gpu_ep.runtime.prepared import Prepared
from ort_gpu_ep.runtime.recording import BufferCopy, Part
from ort_gpu_ep.scheduler.template import Filled
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.library import lib


class InFlight:
    """What one run under way has to itself. Raises DeviceError where the device has no room for it.

    parts, ahead: what it records, and the recording for its next run, each with what it holds for. uploads, copies: those that begin and
    end it. words: in which its kernels note an index out of range; the plan's is read back behind its outputs. large: what its inputs come
    through where they are large. sizes: of each, the bytes that are written as they are, all, and whether it comes in float32 and goes in
    float16. mappings: its staging buffers, which its submission maps, and what that reports to.
    """

    __slots__ = ("ahead", "arrival", "copies", "inputs", "large", "mappings", "outputs", "parts", "sizes", "staging", "uploads", "words")

    def __init__(self, prepared: Prepared, filled: Filled) -> None:
        gpu, words = prepared.gpu, prepared.words
        self.inputs, self.outputs = list[Tensor](), list[Tensor]()
        rounded = prepared.rounded(filled)
        sent = brought(filled.inputs, rounded)
        self.sizes = [(t.nbytes & ~3, t.nbytes, k in rounded) for k, t in enumerate(sent)]
        self.arrival = native.Arrival(lib.WGPUMapMode_Read)
        self.parts: tuple[Any, int, Any, list[Part]] | None = None
        self.ahead: tuple[Any, int, Any, list[Any]] | None = None
        self.words = words
        places, staging_nbytes = places_of(filled.outputs, words)
        self.staging: Buffer | None = None
        self.large: staging.LargeInputs | None = None
        try:
            for tensors, types in ((self.inputs, sent), (self.outputs, filled.outputs)):
                for tensor in types:
                    tensors.append(Tensor(gpu.allocate(tensor.nbytes, RUNS), 0, tensor))
            self.staging = gpu.create(size_class(staging_nbytes), STAGING)
            self.large = staging.LargeInputs.of(gpu, self.inputs, *places_of(sent), rounded)
        except DeviceError:
            self.free(gpu)
            raise
        self.mappings: tuple[tuple[Buffer, native.Arrival], ...] = ((self.staging, self.arrival),)
        self.uploads = list[BufferCopy]()
        if self.large is not None:
            self.mappings += ((self.large.buffer, self.large.arrival),)
            self.uploads = self.large.copies
        self.copies = [
            BufferCopy(t.buffer.native, 0, self.staging.native, place, (t.type.nbytes + 3) & ~3)
            for t, place in zip(self.outputs, places, strict=False)]
        if words is not None:
            self.copies.append(BufferCopy(words.shared.buffer.native, 0, self.staging.native, places[-1], index_check.NBYTES))

    def free(self, gpu: Gpu, broken: bool = False) -> None:
        """Gives its memory back. broken: its run may still be under way, so that staging buffers go when the driver is done with them."""
        self.ahead = self.parts = None
        for tensor in (*self.inputs, *self.outputs):
            gpu.free(tensor.buffer)
        if self.staging is not None and not broken:
            gpu.destroy(self.staging)
        if self.large is not None:
            self.large.free(broken)
        self.inputs, self.outputs, self.staging, self.large, self.mappings = [], [], None, None, ()


def brought(inputs: Sequence[TensorType], rounded: Collection[int]) -> tuple[TensorType, ...]:
    """The types in which inputs go to the device, where these are rounded on the way."""
    return tuple(TensorType(FLOAT16, t.shape) if k in rounded else t for k, t in enumerate(inputs))


def nbytes_of(gpu: Gpu, inputs: Sequence[TensorType], outputs: Sequence[TensorType], rounded: Collection[int] = ()) -> int:
    """What a run under way takes, but for the word. inputs: as it brings them. rounded: as LargeInputs has it."""
    (_, sent), (_, received) = places_of(inputs), places_of(outputs)
    return sent + (sent if rounded else staging.large_nbytes(gpu, sent)) + 2 * received


def places_of(types: Sequence[TensorType], words: Words | None = None) -> tuple[list[int], int]:
    """Where in a staging buffer each of these tensors is, and behind them the plan's word if there is one; and the bytes of all."""
    places, end = [], 0
    for nbytes in (*(t.nbytes for t in types), *((index_check.NBYTES,) if words is not None else ())):
        places.append(end)
        end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return places, end
