"""Softmax and its relatives."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOATS, Shape
from ort_gpu_ep.kernels.problems import normal, problem
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, ChannelsLast, Kernel, kernel, op
from ort_gpu_ep.ops.channels_last import along_axis
from ort_gpu_ep.ops.reduce import Rows, rows_of
from ort_gpu_ep.ops.row_forms import any_ns, estimates_ns, forms, length_of

SHORTEST = 32
"""softmax_rows.wgsl: rows that are shorter leave most of a subgroup idle."""

record("softmax.wgsl", "reduction", loop_bound=lambda k: k.rows(3))
record(
    "softmax_rows.wgsl",
    "reduction_held",
    loop_bound=lambda k: 3 * (ceil_div(k["UNITS"] * k["PER_GROUP"], k.workgroup_size) + 64),
    problems=[
        problem(op, 13, normal(*shape), axis=-1)
        for op, shape in (
            ("Softmax", (7, 132)),
            ("Softmax", (3, 4100)),
            ("LogSoftmax", (5, 77)),
            ("LogSoftmax", (2, 40_004)),
        )
    ],
)
record(
    "hardmax.wgsl",
    "reduction",
    loop_bound=lambda k: k["N"],
    flops=lambda k: 32 * k.size("y"),  # of a random row, an element meets a larger one after some ln N
    problems=[problem("Hardmax", 13, normal(13, 65), axis=axis) for axis in (0, 1)],
)


def _axis_split(node: BoundNode) -> tuple[Shape, int]:
    """The input's shape and the axis along which to normalise: before opset 13, x flattened to [before axis, from axis
    on]."""
    shape, axis = node.input(0).shape, int(node.attr("axis"))
    rank = len(shape)
    if not -rank <= axis < max(rank, 1):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with axis {axis} for rank {rank}")
    axis %= max(rank, 1)
    if node.version < 13:
        return (prod(shape[:axis]), prod(shape[axis:])), 1
    return (shape or (1,)), axis


def normalized(node: BoundNode, kind: int) -> Kernel:
    """Softmax (kind 0) or its logarithm (1)."""
    shape, axis = _axis_split(node)
    rows: Rows = rows_of(shape, (axis,))
    return _held(node, kind, shape, rows) if axis == len(shape) - 1 else _any(node, kind, rows)


def _any(node: BoundNode, kind: int, rows: Rows) -> Kernel:
    return kernel(
        "softmax.wgsl",
        [node.input(0).type],
        consts={"KIND": kind, **rows.consts},
        indices=rows.indices,
        groups=rows.groups,
        workgroup_size=rows.workgroup_size,
        workgroup_nbytes=4 * rows.workgroup_size,
    )


def _held(node: BoundNode, kind: int, shape: Shape, rows: Rows) -> Kernel:
    """Rows that lie together, in registers where that can be and is estimated to be faster."""
    x, target, n = node.input(0), node.target, length_of(shape[-1:])
    if (
        n < SHORTEST
        or x.dtype not in FLOATS
        or not all(target.limits.allow(shader) for shader in ("softmax.wgsl", "softmax_rows.wgsl"))
    ):
        return _any(node, kind, rows)
    fours = n % 4 == 0
    units = n // 4 if fours else n
    by_name = forms(target, units)
    choice = target.choose(
        f"softmax {n}, about {1 << hint(rows.count).bit_length()} rows",
        {**estimates_ns(target, by_name, rows.count, units), "any": any_ns(target, rows)},
    )
    if choice.form == "any":
        return replace(_any(node, kind, rows), choice=choice)
    form = by_name[choice.form]
    return kernel(
        "softmax_rows.wgsl",
        [x.type],
        consts={
            "COUNT": rows.count,
            "UNITS": units,
            "FOURS": fours,
            "KIND": kind,
            **form.consts(target, "softmax_rows.wgsl"),
        },
        groups=form.groups(rows.count),
        workgroup_size=form.workgroup_size,
        features=form.features(target, "softmax_rows.wgsl"),
        workgroup_nbytes=form.workgroup_nbytes(target, "softmax_rows.wgsl"),
        vectors=("x", "y") if fours else (),
        choice=choice,
    )


def _layout(node: BoundNode) -> ChannelsLast | None:
    return along_axis(node) if node.version >= 13 else None


@op("Softmax", dtypes={"T": FLOATS}, bindings="x -> y", epilogue=True, channels_last=_layout)
@op("LogSoftmax", dtypes={"T": FLOATS}, bindings="x -> y", epilogue=True, channels_last=_layout)
def softmax(node: BoundNode) -> Kernel:
    """y = exp(x - max x) / sum exp(x - max x) along `axis`, or (LogSoftmax) x - max x - log sum exp(x - max x).

    x, y: any shape; before opset 13 the row is everything from `axis` on.
    """
    return normalized(node, int(node.op == "LogSoftmax"))


@op("Hardmax", dtypes={"T": FLOATS}, bindings="x -> y", epilogue=True, channels_last=_layout)
def hardmax(node: BoundNode) -> Kernel:
    """y = 1 at the first maximum along `axis`, else 0.

    x, y: any shape; before opset 13 the row is everything from `axis` on.
    """
    shape, axis = _axis_split(node)
    return kernel("hardmax.wgsl", [node.input(0).type], consts={"N": shape[axis], "INNER": prod(shape[axis + 1 :])})
