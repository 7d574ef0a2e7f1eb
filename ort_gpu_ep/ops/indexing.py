"""Ops that select or replace elements by a tensor of indices.

Indices are read as words, so that int64 needs no device feature; negative ones count from the end. One that is out of
range reads the nearest element (Gather...) or writes nothing (Scatter...), and is noted: the run is then the CPU's,
which says what is wrong.
"""

from __future__ import annotations

import math

import numpy as np

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import counts_of, is_symbolic
from ort_gpu_ep.ir.types import ANY, BOOL, FLOAT32, FLOAT64, INT32, INT64, INTS, UINT32, DType, Shape, TensorType
from ort_gpu_ep.kernels.problems import Known, integers, normal, problem
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Operand, Strided, kernel, op, result_dtype
from ort_gpu_ep.ops.axes import around, axis_of, number_of, replaced, strides_of

MAX_TUPLE = 8
"""Length of the tables in gather.wgsl and scatter_places.wgsl."""

record(
    "gather.wgsl",
    "gather",
    loop_bound=lambda k: k["TUPLE"],
    nbytes=lambda k: k.nbytes("indices") + 2 * k.nbytes("y"),
    problems=[
        problem("Gather", 13, normal(13, 7, 5), integers(-7, 7, 3, 2), axis=1),
        problem("GatherElements", 13, normal(13, 7, 5), integers(0, 13, 4, 7, 5, dtype="int32"), axis=0),
        problem("GatherND", 13, normal(13, 7, 5), integers(0, 7, 6, 2)),
    ],
)
record(
    "one_hot.wgsl",
    "gather",
    data_indices=True,
    problems=[problem("OneHot", 11, integers(0, 11, 7, 3), Known(11), normal(2))],
)
record("eye_like.wgsl", "movement", problems=[problem("EyeLike", 9, integers(0, 9, 13, 17, dtype="int32"), k=2)])
record(
    "reverse_sequence.wgsl",
    "gather",
    problems=[problem("ReverseSequence", 10, normal(7, 5, 3), integers(1, 8, 5), time_axis=0, batch_axis=1)],
)


def tuple_consts(node: BoundNode, dtype: DType, shape: Shape, strides: tuple[int, ...]) -> dict[str, int]:
    """Constants of a body that reads tuples of indices of this type into dimensions of these sizes and strides."""
    if len(shape) > MAX_TUPLE:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} by tuples of {len(shape)} indices; taken: {MAX_TUPLE}")
    fill = MAX_TUPLE - len(shape)
    sizes = {f"SIZE{k}": d for k, d in enumerate((*shape, *(1,) * fill))}
    steps = {f"STEP{k}": s for k, s in enumerate((*strides, *(0,) * fill))}
    return {"TUPLE": len(shape), "WIDE": dtype.nbytes == 8, **sizes, **steps}


def _gathered(
    node: BoundNode, shape: Shape, base: Strided, first: Strided, dims: Shape, strides: tuple[int, ...]
) -> Kernel:
    """y[i] = x[base(i) + sum over k of indices[first(i) + k] * strides[k]]."""
    x = node.input(0)
    out = TensorType(x.dtype, shape)
    if out.size and not x.size:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} picks {out} from {x.type}, which has no elements")
    return kernel(
        "gather.wgsl",
        [out],
        consts=tuple_consts(node, node.input(1).dtype, dims, strides),
        indices={"base": base, "first": first},
        raw=True,
        reports=not in_range(node.input(1), dims),
    )


def in_range(indices: Operand, dims: Shape) -> bool:
    """Whether these indices, one after another of each dimension, are known before the run and select something there.

    0 and -1 do of every dimension that is not empty.
    """
    value = indices.value
    if value is None or not value.size or counts_of(*dims):
        return False
    columns = zip(value.reshape(-1, len(dims)).T, dims, strict=True) if len(dims) > 1 else [(value, dims[0])]
    return all(
        bool(np.isin(column, (0, -1)).all())
        or (not is_symbolic(size) and -size <= column.min() and column.max() < size)
        for column, size in columns
    )


def are_lengths(lengths: Operand, steps: int) -> bool:
    """Whether these lengths of sequences are known before the run, and none is longer than the steps."""
    value = lengths.value
    return value is not None and not is_symbolic(steps) and bool(((value >= 0) & (value <= steps)).all())


@op("Gather", dtypes={"T": ANY, "Tind": INTS}, bindings="x indices -> y")
def gather(node: BoundNode) -> Kernel:
    """y[o, j, i] = x[o, indices[j], i]: x flattened around `axis`, all of the indices in a row."""
    x, indices = node.input(0), node.input(1)
    axis = axis_of(node, int(node.attr("axis")), x.rank)
    outer, n, inner = around(x.shape, axis)
    rows = (outer, indices.size, inner)
    return _gathered(
        node,
        (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]),
        Strided(rows, (n * inner, 0, 1)),
        Strided(rows, (0, 1, 0)),
        (n,),
        (inner,),
    )


@op("GatherElements", since=11, dtypes={"T": ANY, "Tind": INTS}, bindings="x indices -> y")
def gather_elements(node: BoundNode) -> Kernel:
    """y[c] = x[c with indices[c] along `axis`]."""
    x, indices = node.input(0), node.input(1)
    axis = axis_of(node, int(node.attr("axis")), x.rank)
    check_rank(node, indices.shape, x.shape, axis)
    strides = strides_of(x.shape)
    return _gathered(
        node,
        indices.shape,
        Strided(indices.shape, replaced(strides, axis, 0)),
        Strided(indices.shape, strides_of(indices.shape)),
        (x.shape[axis],),
        (strides[axis],),
    )


def check_rank(node: BoundNode, indices: Shape, shape: Shape, axis: int) -> None:
    """Indices have the rank of the data, and are no larger except along the axis."""
    if len(indices) != len(shape) or any(
        i > d for k, (i, d) in enumerate(zip(indices, shape, strict=True)) if k != axis
    ):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{node.op} along axis {axis} of {shape} with indices of shape {indices}"
        )


@op("GatherND", since=11, dtypes={"T": ANY}, bindings="x indices -> y")
def gather_nd(node: BoundNode) -> Kernel:
    """y[b, t] = x[b, indices[b, t, 0], indices[b, t, 1], ...], the rest of x's dimensions following."""
    x, indices, batch = node.input(0), node.input(1), int(node.attr("batch_dims") or 0)
    if not 0 <= batch < min(x.rank, indices.rank) or x.shape[:batch] != indices.shape[:batch]:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"GatherND of {x.type} by {indices.type} with {batch} batch dimensions"
        )
    length = tuple_length(node, x.shape[batch:], indices.shape)
    rows = (math.prod(x.shape[:batch]), math.prod(indices.shape[batch:-1]), math.prod(x.shape[batch + length :]))
    return _gathered(
        node,
        (*indices.shape[:-1], *x.shape[batch + length :]),
        Strided(rows, (math.prod(x.shape[batch:]), 0, 1)),
        Strided(rows, (rows[1] * length, length, 0)),
        x.shape[batch : batch + length],
        strides_of(x.shape)[batch : batch + length],
    )


def tuple_length(node: BoundNode, shape: Shape, indices: Shape) -> int:
    if not indices or not 1 <= indices[-1] <= len(shape):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} into {shape} with indices of shape {indices}")
    return indices[-1]


@op("OneHot", since=9, dtypes={"T1": (FLOAT32, *INTS), "T3": ANY}, bindings="indices _depth values -> y")
def one_hot(node: BoundNode) -> Kernel:
    """y[o, k, i] = values[1] where indices[o, i] is k (or k - depth), else values[0]; k runs along `axis` of y."""
    indices, depth, values = node.input(0), number_of(node, 1), node.input(2)
    axis = axis_of(node, int(node.attr("axis")), indices.rank + 1)
    if depth < 1:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"OneHot of depth {depth}")
    if values.shape != (2,):
        raise UnsupportedNodeError(Code.RANK, f"OneHot with values {values.type}; taken: off and on")
    out = TensorType(values.dtype, (*indices.shape[:axis], depth, *indices.shape[axis:]))
    consts = {"DEPTH": depth, "INNER": math.prod(indices.shape[axis:]), "FLOATING": indices.dtype is FLOAT32}
    return kernel("one_hot.wgsl", [out], consts=consts | {"WIDE": indices.dtype.nbytes == 8}, raw=True)


@op("EyeLike", since=9, dtypes={"T1": ANY}, bindings="_x -> y")
def eye_like(node: BoundNode) -> Kernel:
    """y[r, c] = 1 where c - r is `k`, else 0."""
    x, onnx_type = node.input(0), node.attr("dtype")
    dtype = x.dtype if onnx_type is None else result_dtype(int(onnx_type))
    if x.rank != 2 or dtype not in (FLOAT32, FLOAT64, INT32, UINT32, INT64, BOOL):
        raise UnsupportedNodeError(Code.DTYPE if x.rank == 2 else Code.RANK, f"EyeLike of {x.type} as {dtype}")
    rows, columns = x.shape
    diagonal = min(max(int(node.attr("k")), -rows), columns)  # beyond these there is no one
    return kernel("eye_like.wgsl", [TensorType(dtype, x.shape)], consts={"COLUMNS": columns, "DIAGONAL": diagonal})


@op("ReverseSequence", since=10, dtypes={"T": ANY}, bindings="x lengths -> y")
def reverse_sequence(node: BoundNode) -> Kernel:
    """y[t, b] = x[lengths[b] - 1 - t, b] for t < lengths[b], else x[t, b]; time and batch are the first two axes."""
    x, time, batch = node.input(0), int(node.attr("time_axis")), int(node.attr("batch_axis"))
    if x.rank < 2 or {time, batch} != {0, 1}:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"ReverseSequence of {x.type} with time axis {time}, batch axis {batch}"
        )
    if node.input(1).shape != (x.shape[batch],):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"ReverseSequence of {x.type} with {node.input(1).type} lengths, not one for each batch"
        )
    strides = strides_of(x.shape)
    consts = {
        "TIMES": x.shape[time],
        "TIME_STEP": strides[time],
        "BATCHES": x.shape[batch],
        "BATCH_STEP": strides[batch],
    }
    return kernel(
        "reverse_sequence.wgsl",
        [x.type],
        consts=consts,
        raw=True,
        reports=not are_lengths(node.input(1), x.shape[time]),
    )
