"""Ops that replace or update elements of a copy of a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.kernels import case, ceil_div, integers, normal, record
from ort_gpu_ep.ops.axes import axis_of, replaced, strides_of
from ort_gpu_ep.ops.indexing import check_rank, in_range, tuple_consts, tuple_length
from ort_gpu_ep.registry import BoundNode, Kernel, Lowering, Strided, kernel, op
from ort_gpu_ep.symbolic import is_symbolic
from ort_gpu_ep.types import ANY, INTS, NUMBERS, UINT32, Shape, TensorType, names

TILE = 4096
"""Places that a workgroup of scatter_owner.wgsl looks after: 4 bytes each, in WebGPU's 16 KiB of workgroup memory."""

WORKGROUP_SIZE = 256

MAX_COMPARISONS = 1 << 31
"""Of an update's place with others; more would run for seconds on a slow adapter."""

_REDUCTIONS = {"add": 0, "mul": 1, "max": 2, "min": 3}

_ONE_ROW = case("ScatterND", 18, normal(5003), integers(0, 5003, 1000, 1), normal(1000))
"""Beyond a workgroup's tile; some places have several updates."""

record("scatter_places.wgsl", "gather", loop_bound=lambda k: k["TUPLE"], cases=[_ONE_ROW])
record(
    "scatter_owner.wgsl", "gather", data_indices=True,
    loop_bound=lambda k: ceil_div(k["UPDATES"] + 2 * k["TILE"], k.workgroup_size) + 3,
    flops=lambda k: 2 * ceil_div(k["ROWS"], k["TILE"]) * k["UPDATES"], cases=[_ONE_ROW])
record("scatter_replace.wgsl", "gather", data_indices=True, cases=[_ONE_ROW])
record(
    "scatter_reduce.wgsl", "gather", loop_bound=lambda k: k["COUNT"], flops=lambda k: 2 * k.size("y") * k["COUNT"],
    cases=[case("ScatterElements", 18, normal(7, 33), integers(0, 7, 5, 33), normal(5, 33), axis=0, reduction="add")])


@dataclass(frozen=True, slots=True)
class _Scatter:
    """What ScatterND and ScatterElements have in common: updates n go to places in the data, rows of `row` elements each.

    base, first: as in gather.wgsl, over the updates. dims, strides: of the data that a tuple of indices selects from.
    candidates: update k < COUNT that may go to element i of y is candidates(i) + k * step.
    """

    updates: int
    row: int
    base: Strided
    first: Strided
    dims: Shape
    strides: tuple[int, ...]
    candidates: Strided
    count: int
    step: int


@op("ScatterND", since=11, dtypes={"T": ANY}, bindings="x indices updates -> y")
def scatter_nd(node: BoundNode) -> Lowering:
    """y = x, then y[indices[n]] = updates[n] (or combined by `reduction`); of several updates of one place the last wins."""
    x, indices, updates = node.input(0), node.input(1), node.input(2)
    length = tuple_length(node, x.shape, indices.shape)
    if updates.shape != (*indices.shape[:-1], *x.shape[length:]):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"ScatterND into {x.type} by {indices.type} of {updates.type}")
    dims, count = x.shape[:length], math.prod(indices.shape[:-1])
    return _scattered(node, _Scatter(
        count, math.prod(x.shape[length:]), Strided((count,), (0,)), Strided((count,), (length,)), dims, strides_of(dims),
        Strided(x.shape, (0,) * x.rank), count, 1))


def scatter_elements(node: BoundNode) -> Lowering:
    """y = x, then y[c with indices[c] along `axis`] = updates[c]; of several updates of one place the last wins."""
    x, indices, updates = node.input(0), node.input(1), node.input(2)
    axis = axis_of(node, int(node.attr("axis")), x.rank)
    check_rank(node, indices.shape, x.shape, axis)
    if updates.shape != indices.shape:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} by {indices.type} of {updates.type}")
    strides, own = strides_of(x.shape), strides_of(indices.shape)
    return _scattered(node, _Scatter(
        indices.size, 1, Strided(indices.shape, replaced(strides, axis, 0)), Strided(indices.shape, own),
        (x.shape[axis],), (strides[axis],), Strided(x.shape, replaced(own, axis, 0)), indices.shape[axis], own[axis]))


for _name, _since in {"ScatterElements": 11, "Scatter": 9}.items():
    op(_name, since=_since, dtypes={"T": ANY, "Tind": INTS}, bindings="x indices updates -> y")(scatter_elements)


def _scattered(node: BoundNode, scatter: _Scatter) -> Lowering:
    """The place of each update, then for each place who writes it, or with a reduction the sum over those who do."""
    x, reduction = node.input(0), node.attr("reduction") or "none"
    rows = x.size // max(scatter.row, 1)
    places = TensorType(UINT32, (scatter.updates,))
    find = kernel(
        "scatter_places.wgsl", [places], consts=tuple_consts(node, node.input(1).dtype, scatter.dims, scatter.strides),
        indices={"base": scatter.base, "first": scatter.first}, raw=True, reads={"indices": 1}, writes={"places": "places"},
        reports=not in_range(node.input(1), scatter.dims))
    if not scatter.updates or not x.size:
        return Lowering((x.type,), views=((0, 0),))
    if reduction == "none":
        _check_cost(node, -(-rows // TILE) * scatter.updates)
        owners = TensorType(UINT32, (rows,))
        return Lowering(
            (x.type,), (find, *_replacing(x.type, owners, scatter)), (("places", places), ("owners", owners)))
    _check_cost(node, x.size * scatter.count)
    return Lowering((x.type,), (find, _reducing(node, scatter, reduction)), (("places", places),))


def _check_cost(node: BoundNode, comparisons: int) -> None:
    if comparisons > MAX_COMPARISONS:
        raise UnsupportedNodeError(Code.COST, f"{node.op} of {node.input(0).type} by {node.input(1).type}: {comparisons} comparisons")


def _replacing(out: TensorType, owners: TensorType, scatter: _Scatter) -> tuple[Kernel, Kernel]:
    tile = TILE if is_symbolic(owners.size) else min(TILE, owners.size)
    own = kernel(
        "scatter_owner.wgsl", [owners], consts={"ROWS": owners.size, "UPDATES": scatter.updates, "TILE": tile},
        groups=-(-owners.size // tile), workgroup_size=WORKGROUP_SIZE, workgroup_nbytes=4 * tile, reads={"places": "places"},
        writes={"owners": "owners"})
    take = kernel("scatter_replace.wgsl", [out], consts={"ROW": scatter.row}, raw=True, reads={"x": 0, "updates": 2, "owners": "owners"})
    return own, take


def _reducing(node: BoundNode, scatter: _Scatter, reduction: str) -> Kernel:
    x = node.input(0)
    if reduction not in _REDUCTIONS:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with reduction {reduction!r}; taken: none, {', '.join(_REDUCTIONS)}")
    if x.dtype not in NUMBERS:
        raise UnsupportedNodeError(Code.DTYPE, f"{node.op} with reduction {reduction} of {x.dtype}; taken: {names(NUMBERS)}")
    consts = {"ROW": scatter.row, "UPDATES": scatter.updates, "COUNT": scatter.count, "STEP": scatter.step}
    return kernel(
        "scatter_reduce.wgsl", [x.type], consts=consts | {"KIND": _REDUCTIONS[reduction]}, indices={"candidates": scatter.candidates},
        reads={"x": 0, "updates": 2, "places": "places"})
