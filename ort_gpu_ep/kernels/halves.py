"""Stores weights in float16 on the device if the option `precision` asks for it, by changing finished lowerings.

What a program computes once from such a weight (another order of it) is stored in float16 then; a kernel that reads the
weight as the model has it gets a copy, made once. Kernels read float32 all the same: the composer writes the
conversion. The float32 original leaves the device, as that of any weight that was packed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ort_gpu_ep.ir.types import FLOAT32, HALF, TensorType
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Lowering, Operand, kernel
from ort_gpu_ep.kernels.target import HALVED

ORDER = "pack_rows.wgsl"


def halved(built: Lowering, bound: BoundNode, weights: Iterable[int]) -> Lowering:
    """With those of the inputs `weights` in float16 that are constants and fit, where they are read as they are, or in
    another order.

    Not what is calculated from them: Winograd's transform makes errors larger, and a pruned matrix has become smaller
    another way.
    """
    for index, operand in _weights(bound, weights):
        packing = [k for k in built.kernels if built.runs_once(k) and _reads(k, index)]
        stored = [tensor for k in packing for tensor in k.outputs] or [operand.type]
        may_bind = all(_half(tensor).nbytes <= bound.target.limits.max_binding_nbytes for tensor in stored)
        if operand.fits_half and may_bind and {k.shader for k in packing} <= {ORDER}:
            built = _halved(built, index, operand.type, packing)
    return built


def widened(packing: Sequence[Kernel], stored: TensorType) -> Kernel | None:
    """What gives a weight in float32 back that lies in float16; None for any other conversion."""
    (half,), ((_, copy),) = packing[0].outputs, packing[0].writes or ()
    return kernel("convert.wgsl", [stored], reads={"x": copy}, writes={"y": "restored"}) if half.dtype is HALF else None


def left_whole(bound: BoundNode, weights: Iterable[int]) -> tuple[str, ...]:
    """Names of the weights that stay float32 because float16 does not reach to their numbers."""
    return tuple(operand.name for _, operand in _weights(bound, weights) if not operand.fits_half)


def halved_nbytes(lowering: Lowering) -> int:
    """Bytes of what a lowering computes once and keeps in float16."""
    return sum(
        tensor.nbytes for k in lowering.kernels if lowering.runs_once(k) for tensor in k.outputs if tensor.dtype is HALF
    )


def _weights(bound: BoundNode, weights: Iterable[int]) -> Iterator[tuple[int, Operand]]:
    if bound.target.limits.precision in HALVED:
        for index in weights:
            operand = bound.optional(index)
            if operand is not None and operand.is_weight:
                yield index, operand


def _halved(built: Lowering, index: int, weight: TensorType, packing: list[Kernel]) -> Lowering:
    """With input `index` in float16. packing: the kernels that put it in order, once."""
    copy, packed = f"half{index}", {target for k in packing for _, target in k.writes or ()}
    temps = {name: _half(tensor) if name in packed else tensor for name, tensor in built.temps}
    kernels = [
        replace(k, outputs=tuple(map(_half, k.outputs)))
        if k in packing
        else replace(k, reads=tuple((name, copy if source == index else source) for name, source in k.reads or ()))
        for k in built.kernels
    ]
    if all(k in packing or not _reads(k, index) for k in built.kernels):
        return replace(built, kernels=tuple(kernels), temps=tuple(temps.items()))
    stored = _half(weight)
    lowering = kernel("convert.wgsl", [stored], reads={"x": index}, writes={"y": copy})
    return replace(built, kernels=(lowering, *kernels), temps=(*temps.items(), (copy, stored)))


def _half(tensor: TensorType) -> TensorType:
    return TensorType(HALF, tensor.shape) if tensor.dtype is FLOAT32 else tensor


def _reads(built: Kernel, index: int) -> bool:
    return any(source == index for _, source in built.reads or ())
