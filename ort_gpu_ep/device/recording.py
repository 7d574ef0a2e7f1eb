"""Command buffers: what a run records, as data that serves any number of recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ort_gpu_ep.device import native
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.library import GPUError

BufferCopy: TypeAlias = tuple[Any, int, Any, int, int]
"""(source handle, offset in bytes, target handle, offset in bytes, bytes: a multiple of 4)."""

Part: TypeAlias = native.Steps | BufferCopy


def lone_dispatch(gpu: Gpu, label: str, step: native.Step) -> Any:
    """A command buffer with one dispatch, which no timer notes. Raises wgpu's GPUError."""
    encoder = gpu.device.create_command_encoder(label)
    compute = encoder.begin_compute_pass(None)
    native.Steps([step]).record(compute)
    compute.end()
    return native.finish(encoder)


def encode(
    gpu: Gpu, owner: object, label: str, parts: Sequence[Part], copies: Sequence[Part], what: Callable[[], str],
) -> list[Any]:
    """The command buffers of parts in order: one, or with `submit_each` one a part. copies: those the last one ends with.

    owner: whose times a timer notes. what: says, in an error, what this is. Raises DeviceError.
    """
    wanted = [[part] for part in parts] or [[]] if gpu.submit_each else [[*parts]]
    wanted[-1] += copies
    try:
        return [_encode(gpu, owner, label, some) for some in wanted]
    except GPUError as error:
        raise gpu.failure(error, f"{label}: {what()}") from error


def _encode(gpu: Gpu, owner: object, label: str, parts: Sequence[Part]) -> Any:
    encoder = gpu.device.create_command_encoder(label)
    timer, timing = gpu.timer, None
    for part in parts:
        if isinstance(part, native.Steps):
            if timer is not None:
                timing = timing or timer.recording(owner, part.first)
            compute = encoder.begin_compute_pass(timing.writes(part.first) if timing else None)
            part.record(compute)
            compute.end()
        else:
            native.copy_buffer(encoder, *part)
    if timing:
        timing.resolve(encoder)
    return native.finish(encoder)
