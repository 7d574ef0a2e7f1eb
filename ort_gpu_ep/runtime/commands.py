"""The commands of a run as data, and the command buffers that record them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.library import GPUError


class BufferCopy(NamedTuple):
    """Handles, offsets in bytes; nbytes is a multiple of 4."""

    source: Any
    source_offset: int
    target: Any
    target_offset: int
    nbytes: int


class Cut:
    """Between two dispatches: the first is submitted before the second."""


CUT = Cut()

Command: TypeAlias = native.Step | BufferCopy | Cut
"""What steps of a plan record."""

Part: TypeAlias = native.Steps | BufferCopy

HEAD_LEAST, HEAD_PART = 16, 8
"""Of so many dispatches and more, the first eighth is a command buffer of its own, where a library records for the
driver in a submission: on an H200 through Dawn, runs of ResNet-50 (57 dispatches) take 3.97 ms instead of 4.07, of
BERT-base 8.51 instead of 8.72."""


def in_rows(commands: Sequence[Sequence[Command]], each: bool) -> list[Part]:
    """Dispatches in a row as one part, copies between them. commands: of each step. each: every dispatch is a part of
    its own."""
    parts, row, first = list[Part](), list[native.Step](), 0
    for index, some in enumerate(commands):
        for command in some:
            if row and (each or isinstance(command, (BufferCopy, Cut))):
                parts.append(native.Steps(row, first, isinstance(command, Cut)))
                row = []
            if isinstance(command, BufferCopy):
                parts.append(command)
            elif not isinstance(command, Cut):
                first = first if row else index
                row.append(command)
    return [*parts, native.Steps(row, first)] if row else parts


def with_head(parts: list[Part]) -> list[Part]:
    """The same in two command buffers: the GPU is at work on the first one while the library records the second."""
    for index, part in enumerate(parts):
        if isinstance(part, native.Steps) and len(part) >= HEAD_LEAST:
            return [*parts[:index], *part.in_two(len(part) // HEAD_PART), *parts[index + 1 :]]
    return parts


def enqueue_alone(gpu: Gpu, label: str, step: native.Step) -> None:
    """Enqueues one dispatch, which belongs to no run: no timer notes it. Raises DeviceError."""
    try:
        encoder = gpu.device.create_command_encoder(label)
        compute = encoder.begin_compute_pass(None)
        native.Steps([step]).record(compute)
        compute.end()
        commands = native.finish(encoder)
    except GPUError as error:
        raise gpu.failure(error, f"{label}: a recording of it alone") from error
    gpu.enqueue(commands)


def encode(
    gpu: Gpu,
    owner: object,
    label: str,
    parts: Sequence[Part],
    copies: Sequence[Part],
    what: Callable[[], str],
) -> list[Any]:
    """The command buffers of parts in order: one, or more where parts have a head or are cut, or with `submit_each` one
    a part. copies: those the last one ends with.

    owner: whose times a timer notes. what: says, in an error, what this is. Raises DeviceError.
    """
    buffers = list[list[Part]]([[]])
    for part in parts:
        buffers[-1].append(part)
        if part is not parts[-1] and (gpu.submit_each or (isinstance(part, native.Steps) and part.ends)):
            buffers.append([])
    buffers[-1] += copies
    try:
        return [_encode(gpu, owner, label, some) for some in buffers]
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
