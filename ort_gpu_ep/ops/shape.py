"""Ops that change only the shape (views: nothing is dispatched), and ops that only the host computes."""

from __future__ import annotations

import math

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ops.axes import axes_of, ints_of
from ort_gpu_ep.registry import BoundNode, Kernel, View, op
from ort_gpu_ep.types import ANY, Shape, TensorType


def _view(node: BoundNode, shape: Shape) -> View:
    return View(TensorType(node.input(0).dtype, shape))


@op("Reshape", since=5, dtypes={"T": ANY}, bindings="x _shape -> y")
def reshape(node: BoundNode) -> View:
    """y = x with another shape.

    _shape: 0 keeps the dimension of x (unless `allowzero`), -1 stands for what remains.
    """
    x, wanted = node.input(0), list(node.input(1).ints())
    if not node.attr("allowzero"):
        if any(d == 0 and i >= x.rank for i, d in enumerate(wanted)):
            raise UnsupportedNodeError(Code.ATTRIBUTE, f"Reshape of {x.type} to {wanted}: 0 stands for a dimension that the input lacks")
        wanted = [x.shape[i] if d == 0 else d for i, d in enumerate(wanted)]
    if wanted.count(-1) == 1:
        others = math.prod(d for d in wanted if d != -1)
        if others:
            wanted[wanted.index(-1)] = x.size // others
    if min(wanted, default=0) < 0 or math.prod(wanted) != x.size:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Reshape of {x.type} to {node.input(1).ints()}: the sizes differ")
    return _view(node, tuple(wanted))


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
    x, given = node.input(0), ints_of(node, "axes", 1)
    axes = axes_of(node, given, x.rank) if given is not None else tuple(i for i, d in enumerate(x.shape) if d == 1)
    if any(x.shape[i] != 1 for i in axes):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Squeeze of {x.type} along {given}: a dimension is not 1")
    return _view(node, tuple(d for i, d in enumerate(x.shape) if i not in axes))


@op("Unsqueeze", dtypes={"T": ANY}, bindings="x _axes? -> y")
def unsqueeze(node: BoundNode) -> View:
    """y = x with dimensions of size 1 at `axes`, counted in y."""
    x, given = node.input(0), ints_of(node, "axes", 1) or ()
    rank = x.rank + len(given)
    axes, sizes = axes_of(node, given, rank), iter(x.shape)
    return _view(node, tuple(1 if i in axes else next(sizes) for i in range(rank)))


def _host_only(node: BoundNode) -> Kernel:
    """The host computes it when it knows the inputs: no kernel ever does, since the size of the output depends on them."""
    for operand in node.given():
        operand.require()
    raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with these inputs has no kernel: {', '.join(str(i.type) for i in node.given())}")


for _name, _bindings in {"ConstantOfShape": "_shape -> y", "Range": "_start _limit _delta -> y"}.items():
    op(_name, dtypes={}, bindings=_bindings)(_host_only)
