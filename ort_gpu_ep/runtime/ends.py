"""Where the inputs of a run come from and where its outputs go: buffers that are given, or host memory by buffers of
its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ort_gpu_ep.device import copying, index_check, staging
from ort_gpu_ep.device.allowance import RUNS
from ort_gpu_ep.device.buffers import STAGING, Buffer, size_class
from ort_gpu_ep.device.copying import Copy, copy_all, copy_results, read_threads
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import DeviceError, OutOfDeviceMemoryError
from ort_gpu_ep.ir.types import FLOAT16, TensorType
from ort_gpu_ep.kernels.target import ALIGNMENT
from ort_gpu_ep.runtime.commands import BufferCopy
from ort_gpu_ep.runtime.error_words import Words
from ort_gpu_ep.scheduler.template import Filled
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.library import GPUError, ffi, lib


class Ends:
    """Buffers that are given.

    inputs, outputs: tensors on the device; none while whoever gives them keeps their memory. before, behind: commands
    that bring the inputs there, and the outputs away. stay: the outputs stay there. A word of the run's own then says
    whether an index was out of range; else the plan's is read with the outputs.
    """

    __slots__ = ("_memory", "before", "behind", "inputs", "outputs", "stay")

    def __init__(self, inputs: list[Tensor], outputs: list[Tensor], stay: bool = True) -> None:
        self.inputs, self.outputs, self.stay = inputs, outputs, stay
        self.before, self.behind = list[BufferCopy](), list[BufferCopy]()
        self._memory = [tensor.buffer.forgotten for tensor in (*inputs, *outputs)]

    def are_there(self) -> bool:
        """Whether the memory of all tensors has not gone back to the driver."""
        return all(memory.alive for memory in self._memory)


class HostEnds(Ends):
    """Host memory, which may be other memory in each run: what one run under way has to itself.

    words: in which its kernels note an index out of range. arrival: what its readback reports to. large: what its
    inputs come through where they are large. mappings: its staging buffers, which its submission maps, and what that
    reports to.
    """

    __slots__ = (
        "_gpu",
        "_places",
        "_readers",
        "_sizes",
        "_staging",
        "_word_place",
        "arrival",
        "large",
        "mappings",
        "words",
    )

    def __init__(self, gpu: Gpu, filled: Filled, words: Words | None, rounded: Collection[int]) -> None:
        """rounded: inputs that come in float32 and go in float16, by position. Raises DeviceError where the device has
        no room for it."""
        super().__init__([], [], stay=False)
        sent, outputs = brought(filled.inputs, rounded), filled.outputs
        places, staging_nbytes = places_of(outputs, words)
        self._gpu, self.words = gpu, words
        self._sizes = [(t.nbytes, k in rounded) for k, t in enumerate(sent)]
        self._places, self._word_place = (
            [(place, t.nbytes) for place, t in zip(places, outputs, strict=False)],
            places[-1],
        )
        self._readers = read_threads(sum(t.nbytes for t in outputs), gpu.info.is_software)
        self.arrival = native.Arrival(lib.WGPUMapMode_Read)
        self._staging: Buffer | None = None
        self.large: LargeInputs | None = None
        try:
            for tensors, types in ((self.inputs, sent), (self.outputs, outputs)):
                for tensor in types:
                    tensors.append(Tensor(gpu.allocate(tensor.nbytes, RUNS), 0, tensor))
            self._staging = gpu.create(size_class(staging_nbytes), STAGING)
            self.large = LargeInputs.of(gpu, self.inputs, *places_of(sent), rounded)
        except DeviceError:
            self.free()
            raise
        self.mappings: tuple[tuple[Buffer, native.Arrival], ...] = ((self._staging, self.arrival),)
        if self.large is not None:
            self.mappings += ((self.large.buffer, self.large.arrival),)
            self.before = self.large.copies
        target = self._staging.native
        self.behind = [
            BufferCopy(t.buffer.native, 0, target, place, (t.type.nbytes + 3) & ~3)
            for t, place in zip(self.outputs, places, strict=False)
        ]
        if words is not None:
            self.behind.append(BufferCopy(words.shared.buffer.native, 0, target, places[-1], index_check.NBYTES))

    def upload(self, sources: Sequence[Any]) -> None:
        """Brings the inputs from cffi pointers: in the queue before whatever is submitted next, by whomever; large ones
        by what the run records. Raises DeviceError.
        """
        gpu = self._gpu
        gpu.check_alive()
        try:
            if self.large is not None:
                self.large.fill(sources)
                return
            for source, tensor, (nbytes, rounds) in zip(sources, self.inputs, self._sizes, strict=True):
                whole = source
                if rounds:
                    whole = ffi.new("char[]", nbytes)
                    copy_all([Copy(whole, source, nbytes, True)])
                native.write(gpu.device, tensor.buffer.native, 0, whole, nbytes)
        except GPUError as error:  # the driver found no memory to stage them in
            raise gpu.failure(error, f"an upload of {sum(nbytes for nbytes, _ in self._sizes)} B") from error

    def read(self, targets: Sequence[Any]) -> None:
        """Copies the outputs, which have arrived, to cffi pointers, None for one that is not wanted. Raises InputError:
        the word is set."""
        assert self._staging is not None, "a run has its readback"
        handle = self._staging.native
        try:
            mapped = ffi.cast("char *", lib.wgpuBufferGetConstMappedRange(handle, 0, self._staging.nbytes))
            noted = ffi.cast("uint32_t *", mapped + self._word_place)[0] if self.words is not None else 0
            if self.words is not None and noted:
                self.words.clear()
                index_check.check((self.words.shared,), (noted,))
            copy_results(
                [
                    (target, mapped + place, nbytes)
                    for target, (place, nbytes) in zip(targets, self._places, strict=True)
                    if target is not None
                ],
                self._readers,
            )
        finally:
            lib.wgpuBufferUnmap(handle)

    def free(self, broken: bool = False) -> None:
        """Gives its memory back. broken: its run may still be under way, so that staging buffers go when the driver is
        done with them."""
        for tensor in (*self.inputs, *self.outputs):
            self._gpu.free(tensor.buffer)
        if self._staging is not None and not broken:
            self._gpu.destroy(self._staging)
        if self.large is not None:
            self.large.free(broken)
        self.inputs, self.outputs, self._staging, self.large, self.mappings = [], [], None, None, ()


class LargeInputs:
    """Memory that the inputs of a run are written to, and copied from by the first commands of its recording. Not
    thread-safe.

    copies: those commands. arrival: what the mapping reports to: each run's submission starts the one for the next run.
    """

    def __init__(
        self, gpu: Gpu, inputs: Sequence[Tensor], places: Sequence[int], nbytes: int, rounded: Collection[int] = ()
    ) -> None:
        """places: of each input. nbytes: of all. What is beyond an input's end stays zero. rounded: inputs that come in
        float32 and go in float16, by position. Raises DeviceError.
        """
        self._gpu = gpu
        self._places = [
            (place, t.type.nbytes, k in rounded) for k, (place, t) in enumerate(zip(places, inputs, strict=True))
        ]
        # the driver's threads have the cores
        self._threads = 1 if gpu.info.is_software else copying.usable_threads()
        self.arrival = native.Arrival(lib.WGPUMapMode_Write)
        self.buffer = gpu.create(size_class(nbytes), staging.USAGE)
        self.copies = [
            BufferCopy(self.buffer.native, place, t.buffer.native, t.offset_bytes, (t.type.nbytes + 3) & ~3)
            for place, t in zip(places, inputs, strict=True)
        ]

    @staticmethod
    def of(
        gpu: Gpu, inputs: Sequence[Tensor], places: Sequence[int], nbytes: int, rounded: Collection[int] = ()
    ) -> LargeInputs | None:
        """None where they are written by the queue: they are small, or there is no memory. Raises DeviceLostError."""
        if not rounded and not staging.large_nbytes(gpu, nbytes):
            return None
        try:
            return LargeInputs(gpu, inputs, places, nbytes, rounded)
        except OutOfDeviceMemoryError:
            return None

    def fill(self, sources: Sequence[Any]) -> None:
        """Writes the inputs, from cffi pointers, for the submission that comes next. Raises GPUError, DeviceError."""
        begin = ffi.cast("char *", native.map_write(self._gpu, self.buffer.native, self.buffer.nbytes, self.arrival))
        try:
            copying.copy_all(
                [
                    copying.Copy(begin + place, source, nbytes, rounds)
                    for source, (place, nbytes, rounds) in zip(sources, self._places, strict=True)
                ],
                self._threads,
            )
        finally:
            native.unmap(self.buffer.native)

    def keep(self) -> None:
        """The submission that comes next has the inputs of the one before. Raises GPUError, DeviceError."""
        native.map_write(self._gpu, self.buffer.native, self.buffer.nbytes, self.arrival)
        native.unmap(self.buffer.native)

    def give_up(self) -> None:
        """The run failed: a submission that names the buffer is allowed nevertheless. A device that hangs is not asked
        for anything."""
        if not self._gpu.lost:
            native.give_up(self._gpu.device, self.buffer.native, self.arrival)

    def free(self, broken: bool) -> None:
        """Gives the memory back. broken: the GPU may still read it, so that it goes when the driver is done with it."""
        if broken:
            self.give_up()
        else:
            self._gpu.destroy(self.buffer)
        native.forget(self._gpu.device, self.arrival)


def brought(inputs: Sequence[TensorType], rounded: Collection[int]) -> tuple[TensorType, ...]:
    """The types in which inputs go to the device, where these are rounded on the way."""
    return tuple(TensorType(FLOAT16, t.shape) if k in rounded else t for k, t in enumerate(inputs))


def nbytes_of(
    gpu: Gpu, inputs: Sequence[TensorType], outputs: Sequence[TensorType], rounded: Collection[int] = ()
) -> int:
    """What a run under way takes, but for the word. inputs: as it brings them. rounded: as LargeInputs has it."""
    (_, sent), (_, received) = places_of(inputs), places_of(outputs)
    return sent + (sent if rounded else staging.large_nbytes(gpu, sent)) + 2 * received


def places_of(types: Sequence[TensorType], words: Words | None = None) -> tuple[list[int], int]:
    """Where in a staging buffer each of these tensors is, and behind them the plan's word if there is one; and the
    bytes of all."""
    places, end = [], 0
    for nbytes in (*(t.nbytes for t in types), *((index_check.NBYTES,) if words is not None else ())):
        places.append(end)
        end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return places, end
