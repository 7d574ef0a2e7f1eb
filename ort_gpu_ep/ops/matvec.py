"""A matrix times a vector, bound by reading the matrix: which kernel, and how a workgroup's invocations share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from ort_gpu_ep.ir.symbolic import hint, is_symbolic
from ort_gpu_ep.ir.types import Shape, TensorType
from ort_gpu_ep.kernels.problems import Problem, normal, problem
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import Kernel, Strided, kernel
from ort_gpu_ep.kernels.target import Target

SPLITS = 32
"""Parts of K, at most."""

WORKGROUP_SIZE = 128
"""matvec.wgsl: invocations of a workgroup."""
COLUMN_THREADS = 8
"""How many of them read neighbouring columns, where not K but the columns are contiguous: 32 bytes, a memory sector."""
SIDES = (8, 32)
"""matvec_columns.wgsl: likewise, in vectors of 16 bytes."""
ITERATIONS = 8
"""K is split while an invocation keeps at least so many loads of it to add up."""

ROWS = (8, 4, 2)
"""matvec_rows.wgsl: outputs of a workgroup."""
LANES = 32
"""matvec_rows.wgsl: invocations of a workgroup for each of its outputs."""


def _problems(shapes: Sequence[Shape], turned: Sequence[bool], forms: Sequence[str]) -> list[Problem]:
    """Products of m x k x n, of which the second matrix is constant; turned: whether it is stored as its rows."""
    return [
        problem(
            "Gemm",
            13,
            normal(m, k),
            normal(*((n, k) if rows else (k, n))),
            normal(n),
            tolerance=1e-5,
            forms=forms,
            alpha=0.5,
            beta=2.0,
            transB=int(rows),
        )
        for m, k, n in shapes
        for rows in turned
    ]


record(
    "matvec.wgsl",
    "matvec",
    loop_bound=lambda k: ceil_div(k["PART"] * k["SIDE"], k.workgroup_size) + k.workgroup_size,
    flops=lambda k: 2 * k["BATCH"] * k["COUNT"] * k["K"],
    problems=_problems(
        ((1, 2051, 1000), (1, 33, 7), (1001, 130, 1), (5, 4099, 1), (1, 5000, 3)), (False, True), ("any",)
    ),
)
record(
    "matvec_rows.wgsl",
    "matvec",
    loop_bound=lambda k: ceil_div(k["K4"] * k["ROWS"], k.workgroup_size) + k["ROWS"] + 12,
    flops=lambda k: 8 * k["BATCH"] * k["COUNT"] * k["K4"],
    problems=[
        *_problems(
            ((1, 4, 1), (1, 508, 9), (1, 2052, 1001), (1001, 132, 1), (1, 40_000, 3)),
            (True,),
            [f"rows {rows}" for rows in ROWS],
        ),
        problem("MatMul", 13, normal(3, 77, 516), normal(3, 516, 1), forms=[f"rows {rows}" for rows in ROWS]),
    ],
)
record(
    "matvec_columns.wgsl",
    "matvec",
    loop_bound=lambda k: ceil_div(k["PART"] * k["SIDE"], k.workgroup_size) + k.workgroup_size,
    flops=lambda k: 8 * k["BATCH"] * k["COUNT4"] * k["K"],
    problems=[
        *_problems(
            ((1, 1, 4), (1, 33, 8), (1, 2051, 1000), (1, 130, 1004), (1, 20_001, 36)),
            (False,),
            [f"columns {side}" for side in SIDES],
        ),
        problem("MatMul", 13, normal(3, 1, 260), normal(3, 260, 36), forms=[f"columns {side}" for side in SIDES]),
    ],
)


Make: TypeAlias = Callable[[TensorType], Kernel]
"""Makes the kernel of a form, for its result."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand of a product: an input or a temporary, where each batch begins, and the strides of its outer (row or
    column) and its K index.
    """

    source: int | str
    base: Strided
    outer: int
    k: int


@dataclass(frozen=True, slots=True)
class VectorProduct:
    """`wide` [count, k] of each batch times `vector` [k]. fours: both are float32 and may be read by fours."""

    batch: int
    count: int
    k: int
    wide: Matrix
    vector: Matrix
    fours: bool
    target: Target

    @property
    def nbytes(self) -> int:
        """Of the matrices."""
        return int(4 * hint(self.batch * self.count * self.k))

    def vectors(self, *sizes: int) -> bool:
        """Whether elements can be read by fours: all sizes of the model, and multiples of four."""
        strides = (*self.wide.base.strides, *self.vector.base.strides, self.wide.base.offset, self.vector.base.offset)
        return (
            self.fours and not any(map(is_symbolic, (*sizes, *strides))) and all(s % 4 == 0 for s in (*sizes, *strides))
        )

    def split(self, blocks: int, lanes_a_column: int) -> int:
        """Into how many parts K is cut so that the workgroups fill the adapter."""
        iterations = -(-hint(self.k) // lanes_a_column)
        filled = self.target.figures.units // max(1, hint(self.batch * blocks))
        return int(max(1, min(SPLITS, filled, iterations // ITERATIONS)))


def kernels(given: VectorProduct) -> dict[str, tuple[float, Make]]:
    """By the name of each form its estimated nanoseconds, and what makes its kernel, without what happens to the sums;
    SPLIT parts of K."""
    forms: dict[str, tuple[float, Make]] = {"any": (_any_ns(given), partial(_any, given))}
    if given.wide.k == 1 and given.vector.k == 1 and given.vectors(given.k, given.wide.outer):
        if given.target.limits.allow("matvec_rows.wgsl"):
            forms |= {f"rows {rows}": (_rows_ns(given, rows), partial(_rows, given, rows=rows)) for rows in ROWS}
    elif (
        given.wide.outer == 1
        and given.vectors(given.count, given.wide.k)
        and given.target.limits.allow("matvec_columns.wgsl")
    ):
        forms |= {f"columns {side}": (_columns_ns(given, side), partial(_columns, given, side=side)) for side in SIDES}
    return forms


def _any(given: VectorProduct, out: TensorType) -> Kernel:
    side = 1 if given.wide.k == 1 else COLUMN_THREADS
    blocks = -(-given.count // (4 * side))
    split = given.split(blocks, WORKGROUP_SIZE // side)
    return kernel(
        "matvec.wgsl",
        [out],
        consts={
            "COUNT": given.count,
            "K": given.k,
            "BATCH": given.batch,
            "BLOCKS": blocks,
            "SIDE": side,
            "SPLIT": split,
            "PART": -(-given.k // split),
            "W_OUTER": given.wide.outer,
            "W_K": given.wide.k,
            "V_K": given.vector.k,
        },
        indices={"w_base": given.wide.base, "v_base": given.vector.base},
        groups=given.batch * blocks * split,
        workgroup_size=WORKGROUP_SIZE,
        workgroup_nbytes=16 * WORKGROUP_SIZE,
        reads={"w": given.wide.source, "v": given.vector.source},
    )


def _any_ns(given: VectorProduct) -> float:
    """Memory as fast as single elements are read; where it is split, another dispatch adds up."""
    by = given.target.figures
    side = 1 if given.wide.k == 1 else COLUMN_THREADS
    split = given.split(-(-given.count // (4 * side)), WORKGROUP_SIZE // side)
    return float(by.matvec_launch_ns + given.nbytes / by.matvec_bytes_per_ns + (by.dispatch_ns if split > 1 else 0))


def _rows(given: VectorProduct, out: TensorType, rows: int) -> Kernel:
    blocks = -(-given.count // rows)
    subgroups = given.target.limits.allow("matvec_rows.wgsl", "subgroup")
    workgroup_size = LANES * rows
    return kernel(
        "matvec_rows.wgsl",
        [out],
        consts={
            "COUNT": given.count,
            "K4": given.k // 4,
            "BATCH": given.batch,
            "BLOCKS": blocks,
            "ROWS": rows,
            "SPLIT": 1,
            "W_OUTER4": given.wide.outer // 4,
            "SUBGROUPS": subgroups,
        },
        indices={"w_base": given.wide.base, "v_base": given.vector.base},
        groups=given.batch * blocks,
        workgroup_size=workgroup_size,
        workgroup_nbytes=0 if subgroups else 4 * workgroup_size,
        reads={"w": given.wide.source, "v": given.vector.source},
        vectors=("w", "v"),
        features=("subgroup",) if subgroups else (),
    )


def _rows_ns(given: VectorProduct, rows: int) -> float:
    """Memory, or what a subgroup waits for: 128 vectors at a time, as many subgroups at once as a unit holds."""
    by = given.target.figures
    waits = (
        by.rows_wait_ns
        * -(-hint(given.k) // 512)
        * -(-hint(given.batch * given.count) // (by.unit_subgroups * by.units))
    )
    uneven = by.rows_uneven_ns * rows if hint(given.batch * given.count) < 8 * rows * by.units else by.rows_even_ns
    return float(by.rows_launch_ns + max(given.nbytes / by.rows_bytes_per_ns, waits) + uneven)


def _columns(given: VectorProduct, out: TensorType, side: int) -> Kernel:
    workgroup_size = min(256, given.target.limits.max_invocations)
    blocks, split = _columns_grid(given, side)
    return kernel(
        "matvec_columns.wgsl",
        [out],
        consts={
            "COUNT4": given.count // 4,
            "K": given.k,
            "BATCH": given.batch,
            "BLOCKS": blocks,
            "SIDE": side,
            "SPLIT": split,
            "PART": -(-given.k // split),
            "W_K4": given.wide.k // 4,
            "V_K": given.vector.k,
        },
        indices={"w_base": given.wide.base, "v_base": given.vector.base},
        groups=given.batch * blocks * split,
        workgroup_size=workgroup_size,
        workgroup_nbytes=16 * workgroup_size,
        reads={"w": given.wide.source, "v": given.vector.source},
        vectors=("w", "y"),
    )


def _columns_grid(given: VectorProduct, side: int) -> tuple[int, int]:
    """Blocks of columns, and parts of K such that each unit has two workgroups."""
    blocks = -(-given.count // (4 * side))
    splits = -(-2 * given.target.figures.units // max(1, hint(given.batch * blocks)))
    return blocks, int(max(1, min(SPLITS, splits, hint(given.k) // (256 // side * ITERATIONS))))


def _columns_ns(given: VectorProduct, side: int) -> float:
    """Memory, as far as the workgroups fill it; the narrow form needs fewer parts."""
    by = given.target.figures
    blocks, split = _columns_grid(given, side)
    filled = min(1.0, hint(given.batch * blocks) * split / (2 * by.units))
    read_ns = given.nbytes / (by.columns_bytes_per_ns * filled)
    return float(by.columns_launch_ns + side + read_ns + (by.dispatch_ns if split > 1 else 0))
