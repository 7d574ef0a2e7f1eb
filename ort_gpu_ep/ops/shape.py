"""Ops that change only the shape (views, without a dispatch), and ops that create a tensor of a shape."""

from __future__ import annotations

import math

import numpy as np

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import CountError, counts_of, derived
from ort_gpu_ep.ir.types import ANY, FLOAT16, FLOAT32, FLOATS, INT32, INT64, Shape, TensorType, dtype_of
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, View, kernel, op
from ort_gpu_ep.ops.axes import axes_of, ints_of, number_of


def _view(node: BoundNode, shape: Shape) -> View:
    return View(TensorType(node.input(0).dtype, shape))


@op("Reshape", since=5, dtypes={"T": ANY}, bindings="x _shape -> y")
def reshape(node: BoundNode) -> View:
    """y = x with another shape.

    _shape: 0 keeps the dimension of x (unless `allowzero`), -1 stands for what remains.
    """
    x, shape = node.input(0), list(node.input(1).ints())
    if not node.attr("allowzero"):
        if any(d == 0 and i >= x.rank for i, d in enumerate(shape)):
            raise UnsupportedNodeError(
                Code.ATTRIBUTE, f"Reshape of {x.type} to {shape}: 0 stands for a dimension that the input lacks"
            )
        shape = [x.shape[i] if d == 0 else d for i, d in enumerate(shape)]
    if shape.count(-1) == 1:
        others = math.prod(d for d in shape if d != -1)
        if others:
            shape[shape.index(-1)] = x.size // others
    if any(d < 0 for d in shape) or math.prod(shape) != x.size:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Reshape of {x.type} to {node.input(1).ints()}: the sizes differ")
    return _view(node, tuple(shape))


@op("Flatten", dtypes={"T": ANY}, bindings="x -> y")
def flatten(node: BoundNode) -> View:
    """y = x as a matrix: the dimensions before `axis`, and the rest."""
    x, axis = node.input(0), int(node.attr("axis"))
    if not -x.rank <= axis <= x.rank:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Flatten of {x.type} at axis {axis}")
    axis = axis + x.rank if axis < 0 else axis
    return _view(node, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@op("Squeeze", dtypes={"T": ANY}, bindings="x _axes? -> y")
def squeeze(node: BoundNode) -> View:
    """y = x without the given dimensions of size 1, or without all such."""
    x, numbers = node.input(0), ints_of(node, "axes", 1, or_scalar=True)
    if not numbers and counts_of(*x.shape):
        raise CountError(f"which dimensions of {x.type} are 1 only the run's data tell")
    axes = axes_of(node, numbers, x.rank) if numbers else tuple(i for i, d in enumerate(x.shape) if d == 1)
    if any(x.shape[i] != 1 for i in axes):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Squeeze of {x.type} along {numbers}: a dimension is not 1")
    return _view(node, tuple(d for i, d in enumerate(x.shape) if i not in axes))


@op("Unsqueeze", dtypes={"T": ANY}, bindings="x _axes? -> y")
def unsqueeze(node: BoundNode) -> View:
    """y = x with dimensions of size 1 at `axes`, counted in y."""
    x, numbers = node.input(0), ints_of(node, "axes", 1, or_scalar=True) or ()
    rank = x.rank + len(numbers)
    axes, sizes = axes_of(node, numbers, rank), iter(x.shape)
    return _view(node, tuple(1 if i in axes else next(sizes) for i in range(rank)))


record("fill.wgsl", "elementwise")
record("range.wgsl", "elementwise")
record("range_float.wgsl", "elementwise")


@op("ConstantOfShape", since=9, dtypes={}, bindings="_shape -> y")
def constant_of_shape(node: BoundNode) -> Kernel:
    """y = the value everywhere; _shape: its shape."""
    value = node.attr("value")
    array = np.zeros(1, np.float32) if value is None else value.reshape(-1)
    bits = array.tobytes().ljust(8, b"\0")
    words = {name: int.from_bytes(bits[k : k + 4], "little") for name, k in (("LOW", 0), ("HIGH", 4))}
    shape = node.input(0).ints()
    if any(d < 0 for d in shape):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"ConstantOfShape of shape {shape}")
    return kernel("fill.wgsl", [TensorType(dtype_of(array), shape)], consts=words, raw=True)


@op("Range", since=11, dtypes={"T": (FLOAT32, FLOAT16, INT32, INT64)}, bindings="_start _limit _delta -> y")
def range_(node: BoundNode) -> Kernel:
    """y[i] = start + i * delta while that is before the limit. Before the run, the host computes a range of floats that
    it knows."""
    if node.input(0).dtype in FLOATS:
        return _range_of_floats(node)
    start, limit, delta = (number_of(node, k) for k in range(3))
    if delta == 0:
        raise UnsupportedNodeError(Code.ATTRIBUTE, "Range with delta 0")
    count = max(-(-(limit - start) // delta), 0)
    out = TensorType(node.input(0).dtype, (count,))
    consts = {
        f"{name}_{word}": derived(part, value)
        for name, value in (("START", start), ("DELTA", delta))
        for word, part in (("LOW", _low_word), ("HIGH", _high_word))
    }
    return kernel("range.wgsl", [out], consts=consts, raw=True)


def _low_word(number: int) -> int:
    return number & 0xFFFFFFFF


def _high_word(number: int) -> int:
    return number >> 32 & 0xFFFFFFFF


def _range_of_floats(node: BoundNode) -> Kernel:
    start, limit, delta = (node.input(k).floats()[0] for k in range(3))
    try:
        count = derived(_count, start, limit, delta)
    except (ArithmeticError, ValueError) as error:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Range from {start} to {limit} by {delta}: {error}") from error
    return kernel(
        "range_float.wgsl", [TensorType(node.input(0).dtype, (count,))], consts={"START": start, "DELTA": delta}
    )


def _count(start: float, limit: float, delta: float) -> int:
    """How many steps there are. Raises ArithmeticError or ValueError where there is no number. Source: onnxruntime,
    range.cc."""
    return max(math.ceil(float(np.float32(limit) - np.float32(start)) / delta), 0)
