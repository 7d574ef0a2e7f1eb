"""Products of few vectors of float16 with packed weights on matrix units: the rows of a batch. The weights are decoded
once for all of them.

Times of 16 vectors on an H200, each product behind the one before: 59 us with 14336 x 4096 and 4096 x 14336 weights of 4
bits, where groups of eight vectors on the ALUs take 125. The loads of fragments bound it, so that more vectors than a
fragment has cost as much again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from ort_gpu_ep.ir.types import FLOAT16, HALF, TensorType
from ort_gpu_ep.kernels.forms import Form
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Lowering, Strided, kernel
from ort_gpu_ep.kernels.target import FRAGMENTS, MATRIX_UNITS, SUBGROUP_MATRIX, Choice, Limits, Target, no_matrix_units
from ort_gpu_ep.ops import matrix_units, split_k
from ort_gpu_ep.ops.packed_operands import Columns, Layout, Weights, are_rows

SHADER = "unit_vectors.wgsl"
VECTORS = 16
"""The most that it takes: rows of its sums."""
BITS, PER = 4, 8
"""Of a code, and codes of a word."""
MOST_SPLIT = 8
"""Parts that K may be cut into."""
AHEAD = 2
"""Steps whose loads are under way. One takes 10 % longer, four as long."""
STEP, LOAD_CLOCKS, ARRIVAL = 0.83, 20, 0.27
"""What a step takes of figures.matrix_step_ns at least; of a unit, a load of a fragment; what parts that are added up take
of figures.matrix_arrival_ns."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A workgroup's columns, k of a step, and subgroups."""

    m: int
    k: int
    subgroups: int

    def workgroup_size(self, limits: Limits) -> int:
        return limits.unit_subgroup(FRAGMENTS) * self.subgroups

    @property
    def nbytes(self) -> int:
        """Of workgroup memory: both operands of a step, or the sums of each subgroup."""
        return 16 * max((VECTORS + self.m) * (self.k // 8 + 1), self.subgroups * VECTORS * (self.m // 4 + 2))

    def fits(self, limits: Limits) -> bool:
        size, fragment = self.workgroup_size(limits), limits.fragment
        return (
            fragment is not None
            and self.m % fragment.m == self.k % (fragment.k * self.subgroups) == VECTORS % fragment.n == 0
            and self.m * self.k % (64 * size) == VECTORS * self.m % (4 * size) == 0
            and size <= limits.max_invocations
            and self.nbytes + split_k.PLACE_NBYTES <= limits.max_workgroup_nbytes
        )


SHAPES = (Shape(64, 64, 2), Shape(64, 128, 2), Shape(64, 64, 1))
"""The first that an adapter has subgroups and workgroup memory for is taken: 11 KiB let four workgroups share a unit of an
H200."""

record(SHADER, "product", loop_bound=lambda k: ceil_div(k["K"], k["TK"]), flops=lambda k: 2 * k["N"] * k["M"] * k["K"])


def forms(
    node: BoundNode,
    weights: Weights,
    columns: Columns,
    layout: Layout,
    bias: tuple[int, Strided] | None,
    factors: tuple[float, float],
    powers: int,
) -> dict[str, Form]:
    """With k in each number of parts; none where it is not taken.

    layout: of the codes, as packed_operands.interleaved has it. factors: of the sums and of the bias. powers: how many
    powers of two a weight may be larger than its scale, 0 where that is not known.
    """
    limits = node.target.limits
    shape = next((shape for shape in SHAPES if shape.fits(limits)), None)
    if shape is None or not _takes(node, weights, columns, layout, bias, powers):
        return {}
    return {
        f"vectors on units*{split}": Form(
            estimate_ns(node.target, shape, weights.rows, weights.k, split),
            partial(_lowered, node, weights, columns, layout, bias, factors, powers, shape, split),
        )
        for split in _splits(limits, shape, weights)
    }


def estimate_ns(target: Target, shape: Shape, rows: int, k: int, split: int) -> float:
    """Rounds of workgroups, a step of which takes its time whoever is beside it, or the loads of fragments of those that
    share a unit."""
    by, steps, groups = target.figures, ceil_div(ceil_div(k, shape.k), split), ceil_div(rows, shape.m) * split
    fragment = target.limits.fragment
    if fragment is None:
        return math.inf
    loads = shape.k // fragment.k * (VECTORS // fragment.n + shape.m // fragment.m)
    resident = max(1, by.unit_workgroup_nbytes // shape.nbytes)
    waits_ns = ceil_div(groups, resident * by.units) * steps * STEP * by.matrix_step_ns
    loads_ns = ceil_div(groups, by.units) * steps * loads * LOAD_CLOCKS / by.clocks_per_ns
    arrival_ns = ARRIVAL * by.matrix_arrival_ns if split > 1 else 0.0
    return float(by.matrix_launch_ns + max(waits_ns, loads_ns) + arrival_ns)


def _takes(
    node: BoundNode, weights: Weights, columns: Columns, layout: Layout, bias: tuple[int, Strided] | None, powers: int
) -> bool:
    limits, x, n, k = node.target.limits, node.input(columns.source), weights.rows, weights.k
    has_order = layout.together and "scales" in layout.sources and (weights.zp is None or "zeros" in layout.sources)
    return (
        x.dtype is FLOAT16
        and weights.bits == BITS
        and bool(powers)
        and are_rows(weights, columns)
        and has_order
        and columns.count <= VECTORS
        and k % 32 == n % PER == weights.block % 8 == 0
        and (bias is None or (bias[1].strides == (0, 1) and bias[1].offset == 0))
        and not no_matrix_units(limits)
        and limits.allow(SHADER)
    )


def _splits(limits: Limits, shape: Shape, weights: Weights) -> Iterator[int]:
    steps, there = ceil_div(weights.k, shape.k), ceil_div(weights.rows, shape.m)
    for split in range(1, MOST_SPLIT + 1):
        size = split * there * VECTORS * shape.m
        may_be_cut = split_k.may_arrive(limits, SHADER, shape.nbytes, size)
        if split == 1 or (may_be_cut and ceil_div(steps, ceil_div(steps, split)) == split):
            yield split


def _lowered(
    node: BoundNode,
    weights: Weights,
    columns: Columns,
    layout: Layout,
    bias: tuple[int, Strided] | None,
    factors: tuple[float, float],
    powers: int,
    shape: Shape,
    split: int,
    choice: Choice,
    out: TensorType,
) -> Lowering:
    limits, n, (row, block) = node.target.limits, weights.rows, weights.table_strides
    blocks, there, size = ceil_div(weights.k, weights.block), ceil_div(n, shape.m), shape.workgroup_size(limits)
    of_w = matrix_units.weight_scales(weights.table, n, blocks, row, block, powers)
    scaled = TensorType(HALF, (n // PER, blocks, PER))
    scales = kernel(
        "interleave_scales.wgsl",
        [scaled],
        reads={"table": weights.table, "w_scales": "w_scales"},
        writes={"y": "scaled"},
        consts={"N": n, "PER": PER, "BLOCKS": blocks, "TABLE_ROW": row, "TABLE_BLOCK": block, "POWERS": True},
    )
    codes = {name: source for name, source in layout.sources.items() if name != "scales"}
    product = kernel(
        SHADER,
        [out],
        consts={
            **matrix_units.fragment_consts(limits),
            "WORDS": layout.words,
            "BLOCK": weights.block,
            "BLOCKS": blocks,
            "ZERO": float(weights.flip + weights.zero),
            "HAS_ZEROS": weights.zp is not None,
            "TM": shape.m,
            "TK": shape.k,
            "GK": shape.subgroups,
            "AHEAD": AHEAD,
            "N": columns.count,
            "M": n,
            "K": weights.k,
            "ALPHA": float(factors[0]),
            "BETA": float(factors[1]),
            "SPLIT": split,
            "PER": ceil_div(ceil_div(weights.k, shape.k), split) * shape.k,
        },
        workgroup_size=size,
        workgroup_nbytes=shape.nbytes,
        grid=(there, split, 1),
        reads={
            "x": columns.source,
            **codes,
            "scales": "scaled",
            "w_scales": "w_scales",
            **({"c": bias[0]} if bias else {}),
        },
        writes={"y": 0},
        vectors=("x", "w", "scales", "y", *(("c",) if bias else ())),
        words=("x", "scales"),
        choice=choice,
        features=(FLOAT16.feature, "subgroup", SUBGROUP_MATRIX, MATRIX_UNITS),
    )
    temps = (*layout.temps, ("w_scales", of_w.outputs[0]), ("scaled", scaled))
    whole = Lowering((out,), (*layout.kernels, of_w, scales, product), temps)
    return whole if split == 1 else split_k.in_last_arriving(whole, there, split * there * VECTORS * shape.m, {})
