"""Bindings of a dispatch: pieces of buffers, in the order of the shader's bindings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ort_gpu_ep.device.buffers import Buffer
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.pipelines import bind_group_layout
from ort_gpu_ep.kernels.registry import parts
from ort_gpu_ep.scheduler.plan import Dispatch, Kind, Place
from ort_gpu_ep.webgpu.library import GPUError


@dataclass(frozen=True, slots=True)
class Bound:
    """What a step binds, whatever the run. outer: whether an input or an output is among it.

    pieces: (place, offset in it, bytes) of each binding; bytes is None for the whole buffer: the bind group serves
    every size that fits. awaited: places bound behind all, by a word each: what is bound of a buffer does not matter to
    the barrier that serves it.
    """

    label: str
    outer: bool
    pieces: tuple[tuple[Place, int, int | None], ...]
    parameter_nbytes: int
    layout: Any
    awaited: tuple[Place, ...] = ()


def bound_of(gpu: Gpu, step: Dispatch, parameter_nbytes: int = 0) -> Bound:
    """parameter_nbytes: of the uniform struct with what a run brings, 0 without one."""
    pieces, written = list[tuple[Place, int, int | None]](), list[bool]()
    for tensor in step.tensors:
        bits = tensor.bound.dtype.bits
        for first, elements in parts(tensor.bound, gpu.limits.max_binding_nbytes):
            size = (
                max((-(-elements * bits // 8) + 3) & ~3, 8 if bits == 64 else 4) if isinstance(elements, int) else None
            )
            pieces.append((tensor.place, int(first) * bits // 8, size))
            written.append(tensor.written)
    return Bound(
        step.label,
        any(t.place.kind in (Kind.INPUT, Kind.OUTPUT) for t in step.tensors),
        tuple(pieces),
        parameter_nbytes,
        bind_group_layout(gpu, tuple(written), parameter_nbytes > 0, len(step.awaited)),
        step.awaited,
    )


def bind_group(
    gpu: Gpu, bound: Bound, buffer_of: Callable[[Place], tuple[Buffer, int]], parameters: Buffer | None = None
) -> Any:
    """A bind group. buffer_of: (buffer, offset in bytes) of a place. Raises DeviceError."""
    bindings: list[tuple[Any, int, int]] = []
    for place, first, size in bound.pieces:
        buffer, offset = buffer_of(place)
        if size is None:
            size = min(buffer.nbytes - offset - first, gpu.limits.max_binding_nbytes) & ~3
        bindings.append((buffer.native, offset + first, size))
    if bound.parameter_nbytes and parameters is not None:
        bindings.append((parameters.native, 0, bound.parameter_nbytes))
    bindings += [(buffer.native, offset, 4) for buffer, offset in map(buffer_of, bound.awaited)]
    try:
        return gpu.device.create_bind_group(bound.label, bound.layout, bindings)
    except GPUError as error:
        raise gpu.failure(error, f"{bound.label}: a bind group") from error
