"""Axes and row-major layout: shape arithmetic that the ops share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.types import Shape
from ort_gpu_ep.kernels.registry import BoundNode, Operand


def axis_of(node: BoundNode, axis: int, rank: int) -> int:
    """The axis counted from the front. Raises UnsupportedNodeError(ATTRIBUTE) where a tensor of `rank` has no such
    axis."""
    if not -rank <= axis < rank:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} along axis {axis} of a tensor of rank {rank}")
    return axis % rank


def axes_of(node: BoundNode, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Each axis counted from the front. Raises UnsupportedNodeError(ATTRIBUTE) for a missing or a repeated axis."""
    positions = tuple(axis_of(node, axis, rank) for axis in axes)
    if len(set(positions)) < len(positions):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} names an axis twice: {tuple(axes)} at rank {rank}")
    return positions


def ints_of(node: BoundNode, name: str, index: int, or_scalar: bool = False) -> tuple[int, ...] | None:
    """What older forms of an op take as attribute `name` and newer ones as input `index`; None where it is left out."""
    operand = node.optional(index)
    if operand is not None:
        return operand.ints() if or_scalar and operand.rank == 0 else vector_of(node, operand)
    value = node.attr(name)
    return None if value is None else tuple(int(v) for v in value)


def vector_of(node: BoundNode, operand: Operand) -> tuple[int, ...]:
    """What a steering input of one dimension holds; of another rank onnxruntime refuses it."""
    if operand.rank != 1:
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} with {operand.name!r} of shape {list(operand.shape)}; taken: one dimension"
        )
    return operand.ints()


def number_of(node: BoundNode, index: int) -> int:
    """What a steering input of one element holds, a scalar or in one dimension; of another form onnxruntime refuses
    it."""
    operand = node.input(index)
    if operand.rank > 1 or operand.size != 1:
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} with {operand.name!r} of shape {list(operand.shape)}; taken: one number"
        )
    return operand.ints()[0]


def strides_of(shape: Shape) -> tuple[int, ...]:
    """Row-major strides in elements."""
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def around(shape: Shape, axis: int) -> tuple[int, int, int]:
    """The shape flattened to (outer, size of the axis, inner)."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def replaced(shape: Shape, axis: int, size: int) -> Shape:
    """The shape with another size along one axis."""
    return (*shape[:axis], size, *shape[axis + 1 :])
