"""Transfers, submission, mapping and waiting: calls of wgpu-native on the handles of objects.py.

Anything that can be refused by validation goes through `checked`: an invalid command buffer must raise here, because submitting it
would abort the process.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any

from ort_gpu_ep import interrupts
from ort_gpu_ep.device import objects, waiting
from ort_gpu_ep.device.library import GPUError, GPUOutOfMemoryError, checked, ffi, lib
from ort_gpu_ep.errors import DeviceError, DeviceHangError, DeviceLostError

_tokens = itertools.count(1)
_done: dict[int, int] = {}


@ffi.callback("WGPUBufferMapCallback", onerror=interrupts.late)  # type: ignore[untyped-decorator]  # cffi has none
@interrupts.callback
def _mapped(status: int, message: Any, token: Any, unused: Any) -> None:
    _done[int(ffi.cast("uintptr_t", token))] = status


def watch(gpu: Any) -> None:
    """Sets gpu.lost when the driver drops its device."""
    watched = weakref.ref(gpu)

    def lost(text: str) -> None:
        dropped = watched()
        if dropped is not None:
            dropped.lost = dropped.lost or (text.strip().splitlines() or ["for no reason that it told"])[-1]

    gpu.device.on_loss = lost


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error of wgpu means that memory ran out: wgpu-native 29 reports the driver's own refusals as validation errors."""
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


def write(device: Any, buffer: Any, offset_bytes: int, address: int, nbytes: int) -> None:
    """queue.write_buffer from an address; nbytes is a multiple of 4."""
    checked.wgpuQueueWriteBuffer(device.queue, buffer, offset_bytes, ffi.cast("void *", address), nbytes)


def address_of(data: bytes) -> int:
    """Address of a bytes object's content, valid as long as the object lives."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(data)))


def copy_buffer(encoder: Any, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int) -> None:
    checked.wgpuCommandEncoderCopyBufferToBuffer(encoder.handle, source, source_offset, target, target_offset, nbytes)


_LEAKING_VERSION = 29 << 24 | 1 << 8 | 1
"""wgpu-native 29.0.1.1: releasing a command buffer that was never submitted leaks it, and with it its device, its memory, a thread.

Its struct is {context pointer, id: u64, submitted: bool}, and its release gives back only what has `submitted` set. Seen by
tests/leaks/test_devices.py; other versions are left as they are.
"""

_leaks = lib.wgpuGetVersion() == _LEAKING_VERSION and ffi.sizeof("void *") == 8


def finish(encoder: Any) -> Any:
    """encoder.finish(), as a command buffer that may be dropped without being submitted."""
    command_buffer = encoder.finish()
    if _leaks:
        ffi.cast("uint8_t *", command_buffer.handle)[16] = 1
    return command_buffer


def submit(device: Any, command_buffers: list[Any]) -> int:
    """Submits in order. Returns the submission's index, to wait for."""
    array = ffi.new("WGPUCommandBuffer[]", [c.handle for c in command_buffers])
    return int(checked.wgpuQueueSubmitForIndex(device.queue, len(command_buffers), array))


def map_read(buffer: Any, nbytes: int) -> int:
    """Starts mapping a staging buffer. Returns a token for `wait`."""
    return _map(buffer, nbytes, lib.WGPUMapMode_Read)


def _map(buffer: Any, nbytes: int, mode: int) -> int:
    token = next(_tokens)
    info = ffi.new("WGPUBufferMapCallbackInfo *")
    info.mode, info.callback, info.userdata1 = lib.WGPUCallbackMode_AllowProcessEvents, _mapped, ffi.cast("void *", token)
    checked.wgpuBufferMapAsync(buffer, mode, 0, nbytes, info[0])
    return token


def map_write(gpu: Any, buffer: Any, nbytes: int) -> int:
    """Address of a staging buffer's content, to be overwritten; the GPU is done with the buffer. Raises: DeviceLostError, DeviceError."""
    token = _map(buffer, nbytes, lib.WGPUMapMode_Write)
    lib.wgpuDevicePoll(gpu.device.handle, False, ffi.NULL)
    _await(gpu, token)
    return int(ffi.cast("uintptr_t", lib.wgpuBufferGetMappedRange(buffer, 0, nbytes)))


def mapped(buffer: Any, nbytes: int) -> int:
    """Address of the content of a buffer that was mapped for reading."""
    return int(ffi.cast("uintptr_t", lib.wgpuBufferGetConstMappedRange(buffer, 0, nbytes)))


def unmap(buffer: Any) -> None:
    lib.wgpuBufferUnmap(buffer)


_pause = threading.Event()


def wait(gpu: Any, index: int, token: int | None) -> None:
    """Blocks (without the GIL) until the submission is done and the mapping, if any, is there.

    The queue is stuck behind hung work, so a device that hangs counts as lost. Raises: DeviceLostError, DeviceHangError, DeviceError.
    """
    if not gpu.hang_timeout_s:
        waiting.block(gpu.device, index)
    elif not waiting.wait_until(gpu, index, token):
        gpu.lost = f"it did not finish within hang_timeout_ms={gpu.hang_timeout_s * 1e3:.0f}"
        raise DeviceHangError(
            f"{gpu.info.name}: the GPU did not finish within {gpu.hang_timeout_s * 1e3:.0f} ms; nothing more is sent to this device. "
            "Raise hang_timeout_ms if the model is that slow, or update the driver.")
    if token is not None:
        _await(gpu, token)


def _await(gpu: Any, token: int) -> None:
    """The end of a mapping that nothing on the GPU stands before."""
    while token not in _done and not gpu.lost:
        _pause.wait(20e-6)          # another thread's poll is about to call the callback
        lib.wgpuDevicePoll(gpu.device.handle, False, ffi.NULL)
    status = _done.pop(token, 0)
    if status == lib.WGPUMapAsyncStatus_Success:
        return
    if gpu.lost:
        raise DeviceLostError(f"{gpu.info.name}: the driver dropped the device ({gpu.lost}).")
    raise DeviceError(f"{gpu.info.name}: mapping a buffer failed (map status {status}).")


def finished(gpu: Any, token: int | None) -> bool:
    """Whether a readback has arrived; without a token, whether the queue is empty. Does not wait."""
    empty = lib.wgpuDevicePoll(gpu.device.handle, False, ffi.NULL)
    return bool(empty) if token is None else token in _done


def trusted_module(device: Any, label: str, code: str) -> Any:
    """A shader module without bounds and loop checks (wgpu-native's wgpuDeviceCreateShaderModuleTrusted)."""
    return device.create_shader_module_trusted(label, code)


def dispatch(compute_pass: Any, pipeline: Any, bind_group: Any, groups: tuple[int, int, int], offset: int | None = None) -> None:
    """Three unchecked calls: what they may refuse is reported by the encoder's `finish`, before anything is submitted.

    offset: where in their buffer the parameters of the shader begin, in bytes; None for a shader without.
    """
    handle = compute_pass.handle
    lib.wgpuComputePassEncoderSetPipeline(handle, pipeline.handle)
    if offset is None:
        lib.wgpuComputePassEncoderSetBindGroup(handle, 0, bind_group.handle, 0, ffi.NULL)
    else:
        lib.wgpuComputePassEncoderSetBindGroup(handle, 0, bind_group.handle, 1, ffi.new("uint32_t[1]", (offset,)))
    lib.wgpuComputePassEncoderDispatchWorkgroups(handle, *groups)


def timestamp_period_ns(device: Any) -> float:
    """Nanoseconds that one tick of a timestamp query stands for."""
    return float(lib.wgpuQueueGetTimestampPeriod(device.queue))
