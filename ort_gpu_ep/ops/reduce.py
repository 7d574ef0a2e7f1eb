"""Reductions over any set of axes, and the split of a tensor into rows that they share with the normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ort_gpu_ep.errors import Code, InternalError, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import at_most, hint, is_zero
from ort_gpu_ep.ir.types import (
    BOOL,
    FLOAT64,
    FLOATS,
    INT8,
    INT32,
    INT64,
    NUMBERS,
    UINT8,
    UINT32,
    DType,
    Shape,
    TensorType,
    summed,
)
from ort_gpu_ep.kernels.halves import widened
from ort_gpu_ep.kernels.problems import Known, Random, integers, problem
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import (
    BoundNode,
    ChannelsLast,
    Const,
    Kernel,
    Lowering,
    Strided,
    UnknownValueError,
    kernel,
    op,
)
from ort_gpu_ep.ops.axes import vector_of
from ort_gpu_ep.ops.channels_last import TO_CHANNELS_LAST, ints, of_any_rank, stored

WORKGROUP_SIZE = 256
"""Invocations a workgroup: WebGPU's guaranteed maximum."""

BUSY = 1 << 16
"""Invocations that keep a large GPU busy: below it, more of them share a row."""

SHORT = 32
"""Up to this row length, a plan for longer rows is not used."""

LONG = 1 << 14
"""From this row length on, few rows are cut into pieces that different workgroups reduce."""

record("reduce.wgsl", "reduction", pairs=True, loop_bound=lambda k: k.rows(1) * k["P"])
record("reduce_empty.wgsl", "elementwise")
record(
    "log_sum_exp_f64.wgsl",
    "reduction",
    loop_bound=lambda k: 40 * k["N"] + 300,  # an exponential has loops, too
    problems=[problem("ReduceLogSumExp", 18, Random((5, 19), "float64"), Known([1]))],
)
record(
    "convert.wgsl",
    "elementwise",
    problems=[problem("ReduceMax", 20, integers(-100, 100, 33, 67, dtype="int8"))],
    inverse=widened,
)
record(
    "arg_reduce.wgsl",
    "reduction",
    pairs=True,
    loop_bound=lambda k: k.rows(1),
    problems=[
        problem(op, 13, integers(-20, 20, *shape, dtype="int32"), axis=1, select_last_index=last, keepdims=1)
        for shape in ((5, 1), (3, 31), (7, 257), (300, 9), (2, 1025), (1, 40_001))
        for op, last in (("ArgMax", 0), ("ArgMin", 1))
    ],
)


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor seen as `count` rows of `length` elements, each reduced by `team` invocations.

    start: row -> position of its first element. step: k -> offset of its element k.
    """

    count: int
    length: int
    team: int
    adjacent: bool
    start: Strided
    step: Strided
    workgroup_size: int = WORKGROUP_SIZE

    @property
    def groups(self) -> int:
        return -(-self.count * self.team // self.workgroup_size)

    @property
    def consts(self) -> dict[str, Const]:
        return {"ROWS": self.count, "N": self.length, "TEAM": self.team, "ADJACENT": self.adjacent}

    @property
    def indices(self) -> dict[str, Strided]:
        return {"row_start": self.start, "row_step": self.step}


def rows_of(shape: Shape, axes: Sequence[int]) -> Rows:
    """Rows along `axes` (non-negative). Where the innermost axis is kept, neighbouring invocations take neighbouring
    rows."""
    strides = tuple(prod(shape[a + 1 :]) for a in range(len(shape)))
    kept = [a for a in range(len(shape)) if a not in axes]
    start = Strided(tuple(shape[a] for a in kept), tuple(strides[a] for a in kept))
    step = Strided(tuple(shape[a] for a in axes), tuple(strides[a] for a in axes))
    count, length = prod(start.shape), prod(step.shape)
    wide = [a for a in range(len(shape)) if shape[a] != 1]
    adjacent = bool(wide) and wide[-1] not in axes
    return Rows(count, length, team_of(count, length, adjacent), adjacent, start, step)


def team_of(count: int, length: int, adjacent: bool) -> int:
    """Invocations a row, a power of two: an element or more for each, enough of them to fill the GPU."""
    team = 1
    while team < WORKGROUP_SIZE and 4 * team < hint(length) and (not adjacent or hint(count) * team < BUSY):
        team *= 2
    # a guard: many short rows with a workgroup each take a hundred times as long
    if team > SHORT // 4 and at_most(length) <= SHORT:
        raise InternalError(f"{team} invocations for a row of {length}")
    return team


def reduced_shape(shape: Shape, axes: Sequence[int], keep: bool) -> Shape:
    if keep:
        return tuple(1 if a in axes else d for a, d in enumerate(shape))
    return tuple(d for a, d in enumerate(shape) if a not in axes)


def normal_axes(node: BoundNode, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Sorted, non-negative, distinct. Raises UnsupportedNodeError(ATTRIBUTE) for an axis outside the rank."""
    if any(not -rank <= a < rank for a in axes):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} over axes {tuple(axes)} of rank {rank}")
    return tuple(sorted({a % rank for a in axes}))


def _axes(node: BoundNode) -> tuple[int, ...]:
    """The axes to reduce: an attribute or (ReduceSum from 13, the others from 18) an input; none given means all or
    none."""
    rank, operand = node.input(0).rank, node.optional(1)
    if operand is not None and operand.value is None and operand.later:
        shape = node.input(0).shape if node.attr("keepdims") else node.input(0).shape[: max(rank - operand.size, 0)]
        raise UnknownValueError(operand.name, True, (TensorType(node.input(0).dtype, shape),))
    axes = vector_of(node, operand) if operand else tuple(node.attr("axes") or ())
    if not axes:
        return () if node.attr("noop_with_empty_axes") else tuple(range(rank))
    return normal_axes(node, axes, rank)


REALS = (*FLOATS, FLOAT64)
TAKEN = (*NUMBERS, FLOAT64)


@dataclass(frozen=True, slots=True)
class Fold:
    """What a reduction computes, as codes of reduce.wgsl. empty: code of reduce_empty.wgsl for no elements."""

    formula: str
    fold: int = 0
    prepare: int = 0
    finish: int = 0
    empty: int = 0
    dtypes: tuple[DType, ...] = TAKEN


NARROW = {INT8: INT32, UINT8: UINT32, BOOL: UINT32}
"""Packed element types, and the type that workgroups reduce them in: only a kernel with an invocation for each element
packs."""

FOLDS = {
    "ReduceSum": Fold("sum x"),
    "ReduceMean": Fold("mean x", finish=1),
    "ReduceProd": Fold("product of x", fold=1, empty=1),
    "ReduceMax": Fold("max x", fold=2, empty=2, dtypes=(*TAKEN, *NARROW)),
    "ReduceMin": Fold("min x", fold=3, empty=3, dtypes=(*TAKEN, *NARROW)),
    "ReduceL1": Fold("sum |x|", prepare=1),
    "ReduceL2": Fold("sqrt sum x^2", prepare=2, finish=2, dtypes=REALS),
    "ReduceSumSquare": Fold("sum x^2", prepare=2),
    "ReduceLogSum": Fold("log sum x", finish=3, empty=2, dtypes=REALS),
}


def reduction(node: BoundNode, fold: Fold, axes: Sequence[int], out: TensorType, p: int = 1) -> Kernel | Lowering:
    """y = fold of x over `axes`; elements of less than 16 bits in 32, and back."""
    x = node.input(0)
    rows = rows_of(x.shape, axes)
    is_sum = fold.empty < 2 and fold.finish not in (1, 3)  # of none it comes out right, also by the other kernel
    if rows.length == 0 if is_sum else is_zero(rows.length):
        return _empty(node, fold, out)
    if out.dtype not in NARROW:
        return _folded(rows, fold, out, p)
    wide = TensorType(NARROW[out.dtype], out.shape)
    source: int | str = "numbers" if x.dtype is BOOL else 0
    numbers = TensorType(UINT32, x.shape)
    inner = _folded(rows, fold, wide, p, source, "wide")
    kernels = [kernel("convert.wgsl", [numbers], reads={"x": 0}, writes={"y": "numbers"})] if source else []
    kernels += [*inner.kernels, kernel("convert.wgsl", [out], reads={"x": "wide"}, writes={"y": 0})]
    temps = (*inner.temps, ("wide", wide), *((("numbers", numbers),) if source else ()))
    return Lowering((out,), tuple(kernels), temps)


def _folded(rows: Rows, fold: Fold, out: TensorType, p: int, source: int | str = 0, target: int | str = 0) -> Lowering:
    """Few long rows in two steps, the first over pieces of them, which keep all digits and magnitudes of the sums."""
    cut = _cut(rows)
    if cut is None:
        return Lowering((out,), (_fold(rows, fold, out, p, rows.length, source, target),))
    parts, pieces = cut.count // rows.count, TensorType(summed(out.dtype), (cut.count,))
    first = _fold(cut, Fold("", fold.fold, fold.prepare), pieces, p, rows.length, source, "pieces")
    rest = rows_of((rows.count, parts), (1,))
    last = _fold(rest, Fold("", fold.fold, 0, fold.finish), out, p, parts, "pieces", target, mean_of=rows.length)
    return Lowering((out,), (first, last), temps=(("pieces", pieces),))


def _cut(rows: Rows) -> Rows | None:
    """Few long rows in pieces, each a row; None where they stay whole."""
    if rows.count == 0 or hint(rows.length) < LONG or hint(rows.count) * rows.team >= BUSY:
        return None
    parts = min(-(-hint(rows.length) // (LONG // 8)), max(1, BUSY // (hint(rows.count) * WORKGROUP_SIZE)) * 2)
    piece = -(-rows.length // parts)
    count = rows.count * -(-rows.length // piece)
    return Rows(count, piece, team_of(count, piece, rows.adjacent), False, rows.start, rows.step)


def _fold(
    rows: Rows,
    fold: Fold,
    out: TensorType,
    p: int,
    length: int,
    source: int | str = 0,
    target: int | str = 0,
    mean_of: int = 0,
) -> Kernel:
    consts: dict[str, Const] = {
        **rows.consts,
        "PARTS": max(1, -(-length // rows.length)),
        "LENGTH": length,
        "COUNT": mean_of or length,
        "P": p,
        "FOLD": fold.fold,
        "PREPARE": fold.prepare,
        "FINISH": fold.finish,
        "FLOAT": out.dtype in REALS,
    }
    return kernel(
        "reduce.wgsl",
        [out],
        consts=consts,
        indices=rows.indices,
        groups=rows.groups,
        workgroup_size=rows.workgroup_size,
        workgroup_nbytes=rows.workgroup_size * 8,
        reads={"x": source},
        writes={"y": target},
    )


def _empty(node: BoundNode, fold: Fold, out: TensorType) -> Kernel:
    if out.dtype is BOOL:
        # false, true
        return kernel("reduce_empty.wgsl", [out], consts={"KIND": fold.empty - 2}, reads={}, writes={"y": 0})
    if fold.empty > 1 and out.dtype not in REALS:
        raise UnsupportedNodeError(Code.DTYPE, f"{node.op} of {out.dtype} over no elements has no value")
    return kernel("reduce_empty.wgsl", [out], consts={"KIND": fold.empty}, reads={}, writes={"y": 0})


def _reduction_layout(node: BoundNode) -> ChannelsLast | None:
    """Over the stored axes. Without the reduced ones, what is left must be in the order that it has in plain."""
    if node.input(0).rank != 4:
        return None
    axes, keep = _axes(node), bool(node.attr("keepdims"))
    left = [axis for axis in TO_CHANNELS_LAST if axis not in axes]
    if not keep and (left != sorted(left) or not axes):
        return None
    places = tuple(stored(axis) for axis in axes)
    if node.has(1) and axes:
        return ChannelsLast((0,), keep, constants={1: ints(places)})
    return ChannelsLast((0,), keep, {"axes": places} if node.attr("axes") else {})


def _reduce(name: str, fold: Fold) -> None:
    """Adds the row of a reduction."""

    def build(node: BoundNode) -> Kernel | Lowering:
        x, axes = node.input(0), _axes(node)
        if fold.finish and x.dtype.is_wide_integer and not node.target.limits.int64:
            raise UnsupportedNodeError(Code.DTYPE, f"{name} of {x.dtype} needs the adapter feature {x.dtype.feature}")
        return reduction(
            node, fold, axes, TensorType(x.dtype, reduced_shape(x.shape, axes, bool(node.attr("keepdims"))))
        )

    build.__doc__ = (
        f"y = {fold.formula} over `axes`.\n\nx: any shape; y: without the reduced axes, or 1 there (keepdims)."
    )
    op(name, dtypes={"T": fold.dtypes}, bindings="x _axes? -> y", epilogue=True, channels_last=_reduction_layout)(build)


for _name, _fold_of_op in FOLDS.items():
    _reduce(_name, _fold_of_op)


@op("ReduceLogSumExp", dtypes={"T": REALS}, bindings="x _axes? -> y", epilogue=True, channels_last=_reduction_layout)
def reduce_log_sum_exp(node: BoundNode) -> Kernel:
    """y = max x + log sum exp(x - max x) over `axes`.

    x: any shape; y: without the reduced axes, or 1 there (keepdims).
    """
    x, axes = node.input(0), _axes(node)
    out = TensorType(x.dtype, reduced_shape(x.shape, axes, bool(node.attr("keepdims"))))
    rows = rows_of(x.shape, axes)
    if rows.length == 0:
        return kernel("reduce_empty.wgsl", [out], consts={"KIND": 2}, reads={})
    if x.dtype is FLOAT64:
        return kernel("log_sum_exp_f64.wgsl", [out], consts={"N": rows.length}, indices=rows.indices)
    return kernel(
        "softmax.wgsl",
        [out],
        consts={"KIND": 2, **rows.consts},
        indices=rows.indices,
        groups=rows.groups,
        workgroup_size=rows.workgroup_size,
        workgroup_nbytes=4 * rows.workgroup_size,
    )


def _global(node: BoundNode, fold: Fold, p: int = 1) -> Kernel | Lowering:
    x = node.input(0)
    if not 3 <= x.rank <= 5:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} of rank {x.rank}; taken, as by ONNX Runtime's CPU: 3 to 5")
    axes = range(1, x.rank - 1) if node.node.channels_last else range(2, x.rank)
    return reduction(node, fold, axes, TensorType(x.dtype, reduced_shape(x.shape, axes, True)), p)


@op("GlobalAveragePool", dtypes={"T": FLOATS}, bindings="x -> y", epilogue=True, channels_last=of_any_rank)
def global_average_pool(node: BoundNode) -> Kernel | Lowering:
    """y = mean of x over the spatial axes. x: [N, C, spatial...], y: [N, C, 1...]."""
    return _global(node, replace(FOLDS["ReduceMean"], empty=4))


@op("GlobalMaxPool", dtypes={"T": FLOATS}, bindings="x -> y", epilogue=True, channels_last=of_any_rank)
def global_max_pool(node: BoundNode) -> Kernel | Lowering:
    """y = max of x over the spatial axes. x: [N, C, spatial...], y: [N, C, 1...]."""
    return _global(node, FOLDS["ReduceMax"])


@op("GlobalLpPool", since=2, dtypes={"T": FLOATS}, bindings="x -> y", epilogue=True, channels_last=of_any_rank)
def global_lp_pool(node: BoundNode) -> Kernel | Lowering:
    """y = (sum of |x|^p over the spatial axes)^(1/p). x: [N, C, spatial...], y: [N, C, 1...]."""
    p = int(node.attr("p"))
    if not 1 <= p <= 64:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"GlobalLpPool with p = {p}; taken: 1 to 64")
    folds = {1: FOLDS["ReduceL1"], 2: FOLDS["ReduceL2"]}
    return _global(node, folds.get(p, Fold("", prepare=3, finish=4)), p)


@op("ArgMax", dtypes={"T": (*NUMBERS, INT8, UINT8)}, bindings="x -> y")
@op("ArgMin", dtypes={"T": (*NUMBERS, INT8, UINT8)}, bindings="x -> y")
def arg(node: BoundNode) -> Lowering:
    """y = position of the maximum (ArgMin: minimum) along `axis`, of equals the first or (select_last_index) the last.

    x: any shape; y: without the axis, or 1 there (keepdims).
    """
    x = node.input(0)
    (axis,) = normal_axes(node, (int(node.attr("axis")),), x.rank)
    rows = rows_of(x.shape, (axis,))
    if is_zero(rows.length):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} over axis {axis} of {x.type}, which is empty")
    out = TensorType(INT64, reduced_shape(x.shape, (axis,), bool(node.attr("keepdims"))))
    rule: dict[str, Const] = {
        "LARGEST": node.op == "ArgMax",
        "LAST": bool(node.attr("select_last_index")),
        "LENGTH": rows.length,
    }
    cut = _cut(rows)
    if cut is None:
        return Lowering((out,), (_best(rows, out, {**rule, "PIECES": 1, "GIVEN": False}, {"x": 0}, 0),))
    pieces, indices = cut.count // rows.count, TensorType(UINT32, (cut.count,))
    first = _best(cut, indices, {**rule, "PIECES": pieces, "GIVEN": False}, {"x": 0}, "found")
    rest = replace(rows, length=pieces, team=team_of(rows.count, pieces, False), adjacent=False)
    last = _best(rest, out, {**rule, "PIECES": 1, "GIVEN": True}, {"x": 0, "found": "found"}, 0)
    return Lowering((out,), (first, last), temps=(("found", indices),))


def _best(
    rows: Rows, out: TensorType, consts: dict[str, Const], reads: dict[str, int | str], target: int | str
) -> Kernel:
    return kernel(
        "arg_reduce.wgsl",
        [out],
        consts={**rows.consts, **consts},
        indices=rows.indices,
        groups=rows.groups,
        workgroup_size=rows.workgroup_size,
        workgroup_nbytes=12 * rows.workgroup_size,
        reads=reads,
        writes={"y": target},
    )
