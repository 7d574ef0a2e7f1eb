"""matrix_product.wgsl and line_scales.wgsl: whether an adapter's matrix units give right results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, probe
from ort_gpu_ep.ir.graph import Array, Graph, Node, Value
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.target import MATRIX_UNITS, SUBGROUP_MATRIX, TF32
from ort_gpu_ep.ops import matrix_units
from ort_gpu_ep.ops.matrix_units import TILES, UnitTile


@contextmanager
def in_tile(tile: UnitTile) -> Iterator[None]:
    """Every product that matrix units may do is done by them meanwhile, in this tile (a worker probes in one thread)."""
    usual = matrix_units.TILES, matrix_units.estimate_ns
    matrix_units.TILES, matrix_units.estimate_ns = (tile,), lambda units, tile: 0.0
    try:
        with apart():
            yield
    finally:
        matrix_units.TILES, matrix_units.estimate_ns = usual


def _product(trial: Trial, rows: int, columns: int, k: int, precision: str, transposed: bool) -> None:
    """Of whole numbers whose sums float16 and float32 hold: nothing is rounded. tf32: each line is so many powers of two larger."""
    a, b = (trial.integers(-4, 5, *shape).astype(np.float32) for shape in ((rows, k), (k, columns)))
    if precision == TF32:
        a *= np.exp2(trial.integers(-40, 41, rows, 1)).astype(np.float32)
        b *= np.exp2(trial.integers(-40, 41, 1, columns)).astype(np.float32)
    given, bias = np.ascontiguousarray(b.T) if transposed else b, np.zeros(columns, np.float32)
    arrays: list[Array] = [a, given, bias]
    values = {name: Value(name, FLOAT32, array.shape) for name, array in zip("abc", arrays, strict=True)}
    node = Node("Gemm", ("a", "b", "c"), ("y",), version=13, attributes={"transB": int(transposed)})
    got, = trial.graph(Graph("probe", ("a", "b", "c"), ("y",), (node,), values), arrays, precision)
    agree(f"{precision} {rows} x {k} x {columns}", got, a @ b, 0.0)


@probe("matrix units", "kernels", disables=(MATRIX_UNITS, "matrix_product.wgsl", "line_scales.wgsl"),
       fault=(r"\b(n|line) < (N && m < M|BATCH \* LINES)\)", r"\1 + 1u < \2)"), trusts=True)
def units(trial: Trial) -> str:
    """Products around the edges of each tile: rounded to float16, and brought into its range by lines."""
    for feature in (SUBGROUP_MATRIX, FLOAT16.feature, "subgroup"):
        trial.need(feature)
    usual = trial.gpu.limits
    trial.gpu.limits = replace(usual, features=usual.features | {MATRIX_UNITS})
    ran = [tile for tile in TILES if tile.fits(usual, w_rows=False)]
    try:
        for _ in range(trial.rounds):
            for tile in ran:
                precision = TF32 if tile is ran[-1] else "f16acc"
                with in_tile(tile):
                    _product(trial, tile.n + 5, tile.m + 4, 2 * tile.k + 4, precision, precision != TF32)
    finally:
        trial.gpu.limits = usual
    return f"{len(ran)} tiles"
