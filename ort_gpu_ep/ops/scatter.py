"""Ops that copy a tensor and replace or update elements of the copy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import is_symbolic
from ort_gpu_ep.ir.types import ANY, FLOATS, INT64, INTS, NUMBERS, UINT32, Shape, TensorType, names
from ort_gpu_ep.kernels.problems import integers, normal, problem
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, InPlace, Kernel, Lowering, Strided, kernel, op
from ort_gpu_ep.ops.axes import axis_of, replaced, strides_of
from ort_gpu_ep.ops.indexing import check_rank, in_range, tuple_consts, tuple_length

TILE = 4096
"""Places that a workgroup of scatter_owner.wgsl looks after: 4 bytes each, in WebGPU's 16 KiB of workgroup memory."""

WORKGROUP_SIZE = 256

MAX_COMPARISONS = 1 << 31
"""Of an update's place with others; more would run for seconds on a slow adapter."""

_REDUCTIONS = {"add": 0, "mul": 1, "max": 2, "min": 3}

_ONE_ROW = problem("ScatterND", 18, normal(5003), integers(0, 5003, 1000, 1), normal(1000))
"""Beyond a workgroup's tile; some places have several updates."""

record("scatter_places.wgsl", "gather", loop_bound=lambda k: k["TUPLE"], problems=[_ONE_ROW])
record(
    "scatter_owner.wgsl",
    "gather",
    data_indices=True,
    loop_bound=lambda k: ceil_div(k["UPDATES"] + 2 * k["TILE"], k.workgroup_size) + 3,
    flops=lambda k: 2 * ceil_div(k["ROWS"], k["TILE"]) * k["UPDATES"],
    problems=[_ONE_ROW],
)
record("scatter_replace.wgsl", "gather", data_indices=True, problems=[_ONE_ROW])
record(
    "scatter_reduce.wgsl",
    "gather",
    loop_bound=lambda k: k["COUNT"],
    flops=lambda k: 2 * k.size("y") * k["COUNT"],
    problems=[
        problem("ScatterElements", 18, normal(7, 33), integers(0, 7, 5, 33), normal(5, 33), axis=0, reduction="add")
    ],
)


record(
    "tensor_scatter.wgsl",
    "gather",
    problems=[
        problem(
            "TensorScatter",
            24,
            *(integers(0, 100, 2, rows, 5, dtype="int32") for rows in (9, 4)),
            integers(0, 6, 2),
            mode=mode,
        )
        for mode in ("linear", "circular")
    ],
)
record(
    "put_rows.wgsl",
    "gather",
    problems=[
        problem("TensorScatter", 24, normal(2, 9, 5), normal(2, 4, 5), integers(0, 6, 2), mode=mode)
        for mode in ("linear", "circular")
    ],
)
record(
    "put_row.wgsl",
    "gather",
    data_indices=True,
    loop_bound=lambda k: k["TUPLE"],
    problems=[problem("ScatterND", 18, normal(5, 70), integers(0, 5, 1, 1), normal(1, 70))],
)


PUT_WORKGROUP_SIZE = 64


@dataclass(frozen=True, slots=True)
class _Scatter:
    """What ScatterND and ScatterElements have in common: updates n go to places in the data, rows of `row` elements
    each.

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
    """y = x, then y[indices[n]] = updates[n] (or combined by `reduction`); of several updates of one place the last
    wins."""
    x, indices, updates = node.input(0), node.input(1), node.input(2)
    length = tuple_length(node, x.shape, indices.shape)
    if updates.shape != (*indices.shape[:-1], *x.shape[length:]):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"ScatterND into {x.type} by {indices.type} of {updates.type}")
    dims, count = x.shape[:length], math.prod(indices.shape[:-1])
    return _scattered(
        node,
        _Scatter(
            count,
            math.prod(x.shape[length:]),
            Strided((count,), (0,)),
            Strided((count,), (length,)),
            dims,
            strides_of(dims),
            Strided(x.shape, (0,) * x.rank),
            count,
            1,
        ),
    )


def scatter_elements(node: BoundNode) -> Lowering:
    """y = x, then y[c with indices[c] along `axis`] = updates[c]; of several updates of one place the last wins."""
    x, indices, updates = node.input(0), node.input(1), node.input(2)
    axis = axis_of(node, int(node.attr("axis")), x.rank)
    check_rank(node, indices.shape, x.shape, axis)
    if updates.shape != indices.shape:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} by {indices.type} of {updates.type}")
    strides, own = strides_of(x.shape), strides_of(indices.shape)
    return _scattered(
        node,
        _Scatter(
            indices.size,
            1,
            Strided(indices.shape, replaced(strides, axis, 0)),
            Strided(indices.shape, own),
            (x.shape[axis],),
            (strides[axis],),
            Strided(x.shape, replaced(own, axis, 0)),
            indices.shape[axis],
            own[axis],
        ),
    )


for _name, _since in {"ScatterElements": 11, "Scatter": 9}.items():
    op(_name, since=_since, dtypes={"T": ANY, "Tind": INTS}, bindings="x indices updates -> y")(scatter_elements)


def _scattered(node: BoundNode, scatter: _Scatter) -> Lowering:
    """The place of each update, then for each place who writes it, or with a reduction the sum over those who do."""
    x, reduction = node.input(0), node.attr("reduction") or "none"
    rows = x.size // max(scatter.row, 1)
    places = TensorType(UINT32, (scatter.updates,))
    find = kernel(
        "scatter_places.wgsl",
        [places],
        consts=tuple_consts(node, node.input(1).dtype, scatter.dims, scatter.strides),
        indices={"base": scatter.base, "first": scatter.first},
        raw=True,
        reads={"indices": 1},
        writes={"places": "places"},
        reports=not in_range(node.input(1), scatter.dims),
    )
    if not scatter.updates or not x.size:
        return Lowering((x.type,), views=((0, 0),))
    if reduction == "none":
        _check_cost(node, -(-rows // TILE) * scatter.updates)
        owners = TensorType(UINT32, (rows,))
        lowering = _replacing(x.type, owners, scatter.updates, scatter.row, {"x": 0, "updates": 2})
        temps = (("places", places), ("owners", owners))
        return Lowering((x.type,), (find, *lowering), temps, in_place=_put_row(node, scatter))
    _check_cost(node, x.size * scatter.count)
    return Lowering((x.type,), (find, _reducing(node, scatter, reduction)), (("places", places),))


def _put_row(node: BoundNode, scatter: _Scatter) -> InPlace | None:
    """A single update of ScatterND, which no other one can win over: the rest of the data stays as it is."""
    x, indices = node.input(0), node.input(1)
    if node.op != "ScatterND" or is_symbolic(scatter.updates) or scatter.updates != 1 or x.dtype not in FLOATS:
        return None
    consts = tuple_consts(node, indices.dtype, scatter.dims, scatter.strides)
    put = kernel(
        "put_row.wgsl",
        [x.type],
        consts={**consts, "SIZE": scatter.row},
        groups=ceil_div(scatter.row, PUT_WORKGROUP_SIZE),
        workgroup_size=PUT_WORKGROUP_SIZE,
        reads={"indices": 1, "updates": 2},
        writes={"y": 0},
        reports=not in_range(indices, scatter.dims),
    )
    return InPlace(((0, 0),), (put,))


def _check_cost(node: BoundNode, comparisons: int) -> None:
    if comparisons > MAX_COMPARISONS:
        raise UnsupportedNodeError(
            Code.COST, f"{node.op} of {node.input(0).type} by {node.input(1).type}: {comparisons} comparisons"
        )


@op("MaxUnpool", since=9, dtypes={"T1": FLOATS, "T2": (INT64,)}, bindings="x indices _shape? -> y")
def max_unpool(node: BoundNode) -> Lowering:
    """y = x at the places that `indices` names, in the whole of y, else 0: where MaxPool found the maxima.

    x, indices: [N, C, spatial...]; y: as large as what MaxPool's windows cover. Without output_shape.
    """
    x, taps = node.input(0), tuple(node.attr("kernel_shape"))
    axes = len(taps)
    strides, pads = tuple(node.attr("strides") or (1,) * axes), tuple(node.attr("pads") or (0,) * (2 * axes))
    if node.has(2):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, "MaxUnpool with output_shape, where ONNX and onnxruntime place elements differently"
        )
    if x.rank != axes + 2 or node.input(1).shape != x.shape or {len(strides), len(pads) // 2} != {axes} or not x.size:
        raise UnsupportedNodeError(Code.RANK, f"MaxUnpool of {x.type} with {node.input(1).type}, kernel_shape {taps}")
    sizes = [(n - 1) * strides[a] - pads[a] - pads[a + axes] + taps[a] for a, n in enumerate(x.shape[2:])]
    out, count = TensorType(x.dtype, (*x.shape[:2], *sizes)), x.size
    owners = TensorType(UINT32, (out.size,))
    _check_cost(node, -(-out.size // TILE) * count)
    zeros = kernel("fill.wgsl", [out], consts={"LOW": 0, "HIGH": 0}, raw=True, reads={}, writes={"y": "zeros"})
    find = kernel(
        "scatter_places.wgsl",
        [TensorType(UINT32, (count,))],
        consts=tuple_consts(node, INT64, (out.size,), (1,)),
        indices={"base": Strided((count,), (0,)), "first": Strided((count,), (1,))},
        raw=True,
        reads={"indices": 1},
        writes={"places": "places"},
        reports=True,
    )
    placed = _replacing(out, owners, count, 1, {"x": "zeros", "updates": 0})
    return Lowering(
        (out,), (zeros, find, *placed), (("zeros", out), ("places", TensorType(UINT32, (count,))), ("owners", owners))
    )


def _replacing(
    out: TensorType,
    owners: TensorType,
    updates: int,
    row: int,
    reads: Mapping[str, int | str],
) -> tuple[Kernel, Kernel]:
    """What leaves in owners who writes each row, and takes it from there. reads: x and updates."""
    tile = TILE if is_symbolic(owners.size) else min(TILE, owners.size)
    own = kernel(
        "scatter_owner.wgsl",
        [owners],
        consts={"ROWS": owners.size, "UPDATES": updates, "TILE": tile},
        groups=-(-owners.size // tile),
        workgroup_size=WORKGROUP_SIZE,
        workgroup_nbytes=4 * tile,
        reads={"places": "places"},
        writes={"owners": "owners"},
    )
    take = kernel(
        "scatter_replace.wgsl",
        [out],
        consts={"ROW": row},
        raw=True,
        reads={**reads, "owners": "owners"},
        writes={"y": 0},
    )
    return own, take


def _reducing(node: BoundNode, scatter: _Scatter, reduction: str) -> Kernel:
    x = node.input(0)
    if reduction not in _REDUCTIONS:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{node.op} with reduction {reduction!r}; taken: none, {', '.join(_REDUCTIONS)}"
        )
    if x.dtype not in NUMBERS:
        raise UnsupportedNodeError(
            Code.DTYPE, f"{node.op} with reduction {reduction} of {x.dtype}; taken: {names(NUMBERS)}"
        )
    consts = {"ROW": scatter.row, "UPDATES": scatter.updates, "COUNT": scatter.count, "STEP": scatter.step}
    return kernel(
        "scatter_reduce.wgsl",
        [x.type],
        consts=consts | {"KIND": _REDUCTIONS[reduction]},
        indices={"candidates": scatter.candidates},
        reads={"x": 0, "updates": 2, "places": "places"},
    )


@op("TensorScatter", since=24, dtypes={"T": ANY}, bindings="past update places? -> y")
def tensor_scatter(node: BoundNode) -> Lowering:
    """y = past with the rows of `update` along `axis`, of each batch from places[batch] on; circular: rows past the end
    begin again.

    past, y: [B, ..., rows, ...]; update: the same with fewer rows; places: [B].
    """
    past, update, places, mode = node.input(0), node.input(1), node.optional(2), node.attr("mode")
    axis = axis_of(node, int(node.attr("axis")), past.rank)
    if mode not in ("linear", "circular") or axis == 0:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"TensorScatter with mode {mode!r}, axis {axis}; taken: linear, circular, axes but 0"
        )
    count = update.shape[axis] if update.rank == past.rank else 0
    if (
        replaced(past.shape, axis, count) != update.shape
        or count > past.shape[axis]
        or (places and places.shape != past.shape[:1])
    ):
        raise UnsupportedNodeError(
            Code.RANK,
            f"TensorScatter of {update.type} into {past.type} at {places and places.type}; expected fewer rows, "
            f"a place each",
        )
    consts = {
        "INNER": math.prod(past.shape[axis + 1 :]),
        "LENGTH": past.shape[axis],
        "COUNT": count,
        "BATCH": math.prod(past.shape[1:]),
        "CIRCULAR": mode == "circular",
    }
    reads = {"past": 0, "update": 1, **({"places": 2} if places else {})}
    whole = kernel(
        "tensor_scatter.wgsl",
        [past.type],
        consts=consts,
        raw=True,
        reports=places is not None,
        reads=reads,
        writes={"y": 0},
    )
    stays = None
    if past.dtype in FLOATS and update.size:
        put = kernel(
            "put_rows.wgsl",
            [past.type],
            consts={**consts, "SIZE": update.size},
            groups=ceil_div(update.size, PUT_WORKGROUP_SIZE),
            workgroup_size=PUT_WORKGROUP_SIZE,
            reads={n: at for n, at in reads.items() if n != "past"},
            writes={"y": 0},
            reports=places is not None,
        )
        stays = InPlace(((0, 0),), (put,))
    return Lowering((past.type,), (whole,), in_place=stays)
