"""Softmax and its relatives."""

from __future__ import annotations

from math import prod

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.kernels import case, normal, record
from ort_gpu_ep.ops.channels_last import along_axis
from ort_gpu_ep.ops.reduce import Rows, rows_of
from ort_gpu_ep.registry import BoundNode, ChannelsLast, Kernel, kernel, op
from ort_gpu_ep.types import FLOATS, Shape

record("softmax.wgsl", "reduction", loop_bound=lambda k: k.rows(3))
record(
    "hardmax.wgsl", "reduction", loop_bound=lambda k: k["N"],
    flops=lambda k: 32 * k.size("y"),       # of a random row, an element meets a larger one after some ln N
    cases=[case("Hardmax", 13, normal(13, 65), axis=axis) for axis in (0, 1)])


def _axis_split(node: BoundNode) -> tuple[Shape, int]:
    """The input's shape and the axis along which to normalise: before opset 13, x flattened to [before axis, from axis on]."""
    shape, axis = node.input(0).shape, int(node.attr("axis"))
    rank = len(shape)
    if not -rank <= axis < max(rank, 1):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with axis {axis} for rank {rank}")
    axis %= max(rank, 1)
    if node.version < 13:
        return (prod(shape[:axis]), prod(shape[axis:])), 1
    return (shape or (1,)), axis


def _softmax(node: BoundNode, kind: int) -> Kernel:
    shape, axis = _axis_split(node)
    rows: Rows = rows_of(shape, (axis,))
    return kernel(
        "softmax.wgsl", [node.input(0).type], consts={"KIND": kind, **rows.consts}, indices=rows.indices, groups=rows.groups,
        workgroup_size=rows.workgroup_size, workgroup_nbytes=4 * rows.workgroup_size)


def _layout(node: BoundNode) -> ChannelsLast | None:
    return along_axis(node) if node.version >= 13 else None


@op("Softmax", dtypes={"T": FLOATS}, bindings="x -> y", epilogue=True, channels_last=_layout)
def softmax(node: BoundNode) -> Kernel:
    """y = exp(x - max x) / sum exp(x - max x) along `axis`.

    x, y: any shape; before opset 13 the row is everything from `axis` on.
    """
    return _softmax(node, 0)


@op("LogSoftmax", dtypes={"T": FLOATS}, bindings="x -> y", epilogue=True, channels_last=_layout)
def log_softmax(node: BoundNode) -> Kernel:
    """y = x - max x - log sum exp(x - max x) along `axis`.

    x, y: any shape; before opset 13 the row is everything from `axis` on.
    """
    return _softmax(node, 1)


@op("Hardmax", dtypes={"T": FLOATS}, bindings="x -> y", epilogue=True, channels_last=_layout)
def hardmax(node: BoundNode) -> Kernel:
    """y = 1 at the first maximum along `axis`, else 0.

    x, y: any shape; before opset 13 the row is everything from `axis` on.
    """
    shape, axis = _axis_split(node)
    return kernel("hardmax.wgsl", [node.input(0).type], consts={"N": shape[axis], "INNER": prod(shape[axis + 1:])})
