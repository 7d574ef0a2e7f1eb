"""Products on matrix units whose k is cut into parts, each of another workgroup: where few tiles would leave compute units idle."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ort_gpu_ep.ir.symbolic import is_symbolic
from ort_gpu_ep.ir.types import FLOAT32, UINT32, TensorType
from ort_gpu_ep.kernels.records import ceil_div
from ort_gpu_ep.kernels.registry import Const, Lowering
from ort_gpu_ep.kernels.target import LAST_ARRIVING, Target
from ort_gpu_ep.ops.matrix_units import UnitTile

MOST_SPLIT, LEAST_STEPS, MOST_WAVES, CUT_FACTOR = 8, 4, 4, 1.1
"""Parts of k, and steps of each; k is cut where each compute unit has fewer workgroups than that, and where that wins clearly."""


def splits(target: Target, tile: UnitTile, rows: int, columns: int, k: int) -> Iterator[int]:
    """Parts that k may be cut into, each of enough steps; none where the whole keeps the compute units busy, or rows are the run's."""
    if is_symbolic(rows) or not target.limits.allow("matrix_product.wgsl", LAST_ARRIVING):
        return
    steps, there = ceil_div(k, tile.k), ceil_div(rows, tile.n) * ceil_div(columns, tile.m)
    for split in range(2, MOST_SPLIT + 1) if there < MOST_WAVES * target.figures.units else ():
        fits = 4 * split * there * tile.m * tile.n <= target.limits.max_binding_nbytes
        if fits and steps >= split * LEAST_STEPS and ceil_div(steps, ceil_div(steps, split)) == split:
            yield split


def in_parts(whole: Lowering, tile: UnitTile, rows: int, columns: int, k: int, split: int) -> Lowering:
    """The same, whose last kernel is matrix_product.wgsl, in so many parts: the workgroup of a tile that arrives last adds them up."""
    if split == 1:
        return whole
    built, there = whole.kernels[-1], ceil_div(rows, tile.n) * ceil_div(columns, tile.m)
    parts, arrived = TensorType(FLOAT32, (split * there * tile.m * tile.n,)), TensorType(UINT32, (there,))
    own: dict[str, Const] = {**dict(built.consts), "SPLIT": split, "PER": ceil_div(ceil_div(k, tile.k), split) * tile.k}
    grid = (ceil_div(columns, tile.m), ceil_div(rows, tile.n), split)
    cut = replace(
        built, outputs=(*built.outputs, parts, arrived), writes=(("y", 0), ("parts", "parts"), ("arrived", "arrived")),
        atomics=("arrived",), vectors=(*built.vectors, "parts"), features=(*built.features, LAST_ARRIVING), consts=tuple(own.items()),
        grid=grid, groups=math.prod(grid), workgroup_nbytes=built.workgroup_nbytes + 4)
    temps = (*whole.temps, ("parts", parts), ("arrived", arrived))
    return replace(whole, kernels=(*whole.kernels[:-1], cut), temps=temps, kept=("arrived",))
