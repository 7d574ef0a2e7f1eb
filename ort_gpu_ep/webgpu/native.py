"""Transfers, submission, mapping and waiting: calls of webgpu.h on the handles of objects.py.

Anything that can be refused by validation goes through `checked`: an invalid command buffer must raise here, because
submitting it would abort the process.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from ort_gpu_ep.errors import DeviceError, DeviceHangError, DeviceLostError
from ort_gpu_ep.shim import loops as shim
from ort_gpu_ep.shim.declarations import ffi as shim_ffi
from ort_gpu_ep.webgpu import objects, waiting
from ort_gpu_ep.webgpu.implementation import own
from ort_gpu_ep.webgpu.library import GPUError, GPUOutOfMemoryError, address, checked, ffi, lib

POLLS = 64
"""Polls in one call of the shim: between two looks at the clock they take some 0.1 ms, or less where a result is
there."""


def _pointers() -> tuple[Any, ...]:
    """What the shim's loops call, in the order of `ort_gpu_ep_use`."""
    names = (
        "wgpuComputePassEncoderSetPipeline",
        "wgpuComputePassEncoderSetBindGroup",
        "wgpuComputePassEncoderDispatchWorkgroups",
    )
    return (*map(address, names), *own.polling())


RECORDS_LATE = own.records_late
"""Whether a submission takes as long as there are commands in it."""

loops: Any = shim.loops(*_pointers())
_mapped = ffi.cast(
    "WGPUBufferMapCallback", int(shim_ffi.cast("uintptr_t", shim_ffi.addressof(loops, "ort_gpu_ep_mapped")))
)


class Arrival:
    """What the mapping of a buffer reports to, one mapping after another. info: as wgpu-native takes it."""

    __slots__ = ("info", "mode", "word")

    def __init__(self, mode: int) -> None:
        self.word, self.info = ffi.new("int *"), ffi.new("WGPUBufferMapCallbackInfo *")
        self.info.mode, self.info.callback, self.info.userdata1 = (
            lib.WGPUCallbackMode_AllowProcessEvents,
            _mapped,
            self.word,
        )
        self.mode = mode

    @property
    def status(self) -> int:
        """0 until it is there, then a WGPUMapAsyncStatus."""
        return int(self.word[0])


def watch(gpu: Any) -> None:
    """Sets gpu.lost when the driver drops its device."""
    watched = weakref.ref(gpu)

    def lost(text: str) -> None:
        dropped = watched()
        if dropped is not None:
            dropped.lost = dropped.lost or (text.strip().splitlines() or ["for no reason that it told"])[-1]

    gpu.device.on_loss = lost


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error of wgpu means that memory ran out: wgpu-native 29 reports the driver's own refusals as
    validation errors."""
    return isinstance(error, GPUOutOfMemoryError) or "Not enough memory" in str(error)


def is_lost(device: Any, error: Exception) -> bool:
    """Whether wgpu refuses this device from now on."""
    if "is lost" in str(error):
        return True
    try:
        device.create_buffer("alive?", 4, objects.COPY_DST)
    except GPUError as refused:
        return "is lost" in str(refused)
    return False


def write(device: Any, buffer: Any, offset_bytes: int, source: Any, nbytes: int) -> None:
    """Host memory into a buffer, by the queue: before whatever is submitted next, by whomever. Zeros follow up to a
    multiple of 4 bytes.

    source: an address or a cffi pointer; the memory may be reused on return. Raises GPUError.
    """
    begin, whole = ffi.cast("char *", source), nbytes & ~3
    if whole:
        checked.wgpuQueueWriteBuffer(device.queue, buffer, offset_bytes, begin, whole)
    if whole != nbytes:
        tail = bytes(ffi.buffer(begin + whole, nbytes - whole)).ljust(4, b"\0")
        checked.wgpuQueueWriteBuffer(device.queue, buffer, offset_bytes + whole, ffi.from_buffer(tail), 4)


def address_of(data: bytes) -> int:
    """Address of a bytes object's content, valid as long as the object lives."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(data)))


def copy_buffer(encoder: Any, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int) -> None:
    checked.wgpuCommandEncoderCopyBufferToBuffer(encoder.handle, source, source_offset, target, target_offset, nbytes)


def clear_buffer(encoder: Any, target: Any, nbytes: int) -> None:
    checked.wgpuCommandEncoderClearBuffer(encoder.handle, target, 0, nbytes)


def finish(encoder: Any) -> Any:
    """encoder.finish(), as a command buffer that may be dropped without being submitted."""
    command_buffer = encoder.finish()
    own.droppable(command_buffer)
    return command_buffer


def submit(device: Any, command_buffers: list[Any]) -> int:
    """Submits in order. Returns the submission's index, to wait for."""
    array = ffi.new("WGPUCommandBuffer[]", [c.handle for c in command_buffers])
    return own.submit(device, len(command_buffers), array)


def map_read(device: Any, buffer: Any, nbytes: int) -> Arrival:
    """Starts mapping a staging buffer for reading. Returns what to `wait` for."""
    return start_mapping(device, buffer, nbytes, Arrival(lib.WGPUMapMode_Read))


def start_mapping(device: Any, buffer: Any, nbytes: int, arrival: Arrival) -> Arrival:
    """Starts mapping a staging buffer as `arrival` says, which is of no other mapping now. Returns it."""
    arrival.word[0] = 0
    device.expected.add(arrival)
    try:
        checked.wgpuBufferMapAsync(buffer, arrival.mode, 0, nbytes, arrival.info[0])
    except GPUError:
        forget(device, arrival)
        raise
    return arrival


def map_write(gpu: Any, buffer: Any, nbytes: int, arrival: Arrival | None = None) -> int:
    """Address of a staging buffer's content, to be overwritten; the GPU is done with the buffer. Raises:
    DeviceLostError, DeviceError.

    arrival: what the mapping reports to, where it may have been started already.
    """
    if arrival is None or arrival not in gpu.device.expected:
        arrival = start_mapping(gpu.device, buffer, nbytes, arrival or Arrival(lib.WGPUMapMode_Write))
    if not arrival.status:
        own.poll(gpu.device)
    _await(gpu, arrival)
    return int(ffi.cast("uintptr_t", lib.wgpuBufferGetMappedRange(buffer, 0, nbytes)))


def mapped(buffer: Any, nbytes: int) -> int:
    """Address of the content of a buffer that was mapped for reading."""
    return int(ffi.cast("uintptr_t", lib.wgpuBufferGetConstMappedRange(buffer, 0, nbytes)))


def unmap(buffer: Any) -> None:
    lib.wgpuBufferUnmap(buffer)


def give_up(device: Any, buffer: Any, arrival: Arrival) -> None:
    """Ends a mapping that was started and nobody has waited for, whether it is there or not; nothing where there is
    none."""
    if arrival in device.expected:
        unmap(buffer)
        forget(device, arrival)


def forget(device: Any, arrival: Arrival) -> None:
    """Nobody waits for this mapping any more. One whose buffer was unmapped or destroyed has been reported; any other
    may yet be."""
    if arrival.status:
        device.expected.discard(arrival)


_pause = threading.Event()


def wait(gpu: Any, index: int, arrival: Arrival | None) -> None:
    """Blocks (without the GIL) until the submission is done and the mapping, if any, is there.

    The queue is stuck behind hung work, so a device that hangs counts as lost. Raises: DeviceLostError,
    DeviceHangError, DeviceError.
    """
    if not gpu.hang_timeout_s:
        waiting.block(gpu.device, index)
    elif not waiting.wait_until(gpu, index, arrival):
        gpu.lost = f"it did not finish within hang_timeout_ms={gpu.hang_timeout_s * 1e3:.0f}"
        raise DeviceHangError(
            f"{gpu.info.name}: the GPU did not finish within {gpu.hang_timeout_s * 1e3:.0f} ms; nothing more is "
            f"sent to this device. "
            "Raise hang_timeout_ms if the model is that slow, or update the driver."
        )
    if arrival is not None:
        _await(gpu, arrival)


def _await(gpu: Any, arrival: Arrival) -> None:
    """The end of a mapping that nothing on the GPU stands before."""
    while not arrival.status and not gpu.lost:
        _pause.wait(20e-6)  # another thread's poll is about to call the callback
        own.poll(gpu.device)
    status = arrival.status
    if status:
        gpu.device.expected.discard(arrival)
    if status == lib.WGPUMapAsyncStatus_Success:
        return
    if gpu.lost:
        raise DeviceLostError(f"{gpu.info.name}: the driver dropped the device ({gpu.lost}).")
    raise DeviceError(f"{gpu.info.name}: mapping a buffer failed (map status {status}).")


def finished(gpu: Any, arrival: Arrival | None) -> bool:
    """Whether a readback has arrived, after POLLS polls at most; without one, whether the queue is empty, after one.
    Without the GIL."""
    if arrival is None:
        return own.poll(gpu.device)
    return bool(loops.ort_gpu_ep_poll(gpu.device.polled, arrival.word, POLLS))


def trusted_module(device: Any, label: str, code: str) -> Any:
    """A shader module without bounds and loop checks, where the library can make one."""
    return device.create_shader_module_trusted(label, code)


Step = tuple[Any, Any, tuple[int, int, int], int | None, int]
"""(pipeline, bind group, workgroups, where in their buffer the parameters of the shader begin, in bytes; None for a
shader without, how often in a row it is dispatched)."""


class Steps:
    """Dispatches as the shim's loop takes them, for any number of recordings. Holds what they name. first: the number
    of the first. ends: a command buffer ends with them, although more follows.
    """

    __slots__ = ("_array", "_steps", "ends", "first")

    def __init__(self, steps: Sequence[Step], first: int = 0, ends: bool = False) -> None:
        self.first, self.ends, self._steps = first, ends, steps
        self._array = shim_ffi.new(
            "Step[]",
            [
                (pipeline.handle, group.handle, *groups, offset is not None, offset or 0, times)
                for pipeline, group, groups, offset, times in steps
            ],
        )

    def __len__(self) -> int:
        return len(self._steps)

    def record(self, compute_pass: Any) -> None:
        """Unchecked, without the GIL: what may be refused is reported by the encoder's `finish`, before anything is
        submitted."""
        loops.ort_gpu_ep_record(compute_pass.handle, self._array, len(self._steps))

    def in_two(self, count: int) -> tuple[Steps, Steps]:
        """The first so many, with which a command buffer ends, and the others."""
        return Steps(self._steps[:count], self.first, True), Steps(self._steps[count:], self.first + count)


def dispatch(
    compute_pass: Any, pipeline: Any, bind_group: Any, groups: tuple[int, int, int], offset: int | None = None
) -> None:
    """Records one dispatch, see `Steps`."""
    Steps([(pipeline, bind_group, groups, offset, 1)]).record(compute_pass)


def timestamp_period_ns(device: Any) -> float:
    """Nanoseconds that one tick of a timestamp query stands for."""
    return own.timestamp_period_ns(device.queue)
