"""matrix_product.wgsl, what scales its operands, attention_units.wgsl and byte_units.wgsl: whether an adapter's matrix
units are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ort_gpu_ep.health.probe import SUMS_OF_PRODUCTS, Trial, Unsupported, agree, graph_of, probe, reference
from ort_gpu_ep.ir.graph import Array, Node
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.target import (
    ATTENTION_UNIT_SHADERS,
    BYTE_UNIT_SHADERS,
    LAST_ARRIVING,
    MATRIX_ATTENTION,
    MATRIX_BYTES,
    MATRIX_UNITS,
    TF32,
    UNIT_SHADERS,
    Limits,
    no_attention_units,
    no_byte_units,
    no_matrix_units,
)
from ort_gpu_ep.ops import attention_units, matrix_units, unit_bytes, unit_vectors
from ort_gpu_ep.ops.matrix_units import TILES, UnitTile

CODES_BLOCK = 32
ATTENTION_HEADS = (TF32, 64, 128), ("f16acc", 72, 40), ("f16acc", 136, 256)
"""Elements of a query and of a value. Those of the first go through workgroup memory in two parts; of the others a part
is zeros; the last are for the form with four invocations of a query."""
ATTENTION_TOLERANCE = 4e-3
"""Of the largest result, 1 or so: scores of 3 are off by 2^-10 of the sum of |q k|, 40 / 8, at most. A wrong lane makes
0.1 and more."""


@contextmanager
def _shown(trial: Trial, why_not: Callable[[Limits], str], *features: str) -> Iterator[Limits]:
    """The adapter has these features meanwhile. Raises Unsupported, where the units could not be used with them,
    either."""
    usual = trial.gpu.limits
    limits = replace(usual, features=usual.features | {*features})
    if why_not(limits):
        raise Unsupported(why_not(limits))
    trial.gpu.limits = limits
    try:
        yield limits
    finally:
        trial.gpu.limits = usual


@contextmanager
def in_tile(tile: UnitTile) -> Iterator[None]:
    """Every product that matrix units may do is done by them meanwhile, in this tile (a worker probes in one
    thread)."""
    usual, matrix_units.TILES = matrix_units.TILES, (tile,)
    try:
        with forced(tile.name):
            yield
    finally:
        matrix_units.TILES = usual


def _quickest(tiles: list[UnitTile], trial: Trial) -> list[UnitTile]:
    """All of them; on a software adapter, which compiles the largest for minutes, the smallest that is square and one
    that is not."""
    if not trial.gpu.info.is_software:
        return tiles
    smallest = {
        tile.m < tile.n: tile for tile in sorted(tiles, key=lambda tile: tile.m * tile.n * tile.k, reverse=True)
    }
    return [tile for tile in tiles if tile in smallest.values()]


def _product(trial: Trial, rows: int, columns: int, k: int, precision: str, transposed: bool) -> None:
    """Of whole numbers whose sums float16 and float32 hold: nothing is rounded. tf32: each line is so many powers of
    two larger."""
    a, b = (trial.integers(-4, 5, *shape).astype(np.float32) for shape in ((rows, k), (k, columns)))
    if precision == TF32:
        a *= np.exp2(trial.integers(-40, 41, rows, 1)).astype(np.float32)
        b *= np.exp2(trial.integers(-40, 41, 1, columns)).astype(np.float32)
    weights, bias = np.ascontiguousarray(b.T) if transposed else b, np.zeros(columns, np.float32)
    arrays = {"a": a, "b": weights, "c": bias}
    node = Node("Gemm", ("a", "b", "c"), ("y",), version=13, attributes={"transB": int(transposed)})
    (got,) = trial.graph(graph_of(arrays, {}, node), [*arrays.values()], precision)
    agree(f"{precision} {rows} x {k} x {columns}", got, a @ b, 0.0)


def _convolutions(trial: Trial, filters: int, precision: str) -> None:
    """Likewise, two behind each other, 3 x 3 with k in two parts and 1 x 1, of constant weights: the first gives the
    second its scales. The last number of each image is by far its largest, and alone in its windows, so that float16
    holds what is between the two.
    """
    image = trial.integers(-4, 5, 2, 32, 27, 5).astype(np.float32)
    image[:, :, -3:, -3:] = 0.0
    image[:, -1, -1, -1] = 2.0**17
    image *= np.exp2(trial.integers(-30, 31, 2, 1, 1, 1)).astype(np.float32)
    weights = [
        trial.integers(-1, 2, filters, 32, 3, 3).astype(np.float32),
        trial.integers(-4, 5, 20, filters, 1, 1).astype(np.float32),
    ]
    weights[0][0, -1] = 1.0
    stored = np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    attributes: tuple[dict[str, Any], ...] = ({"pads": (1, 1, 1, 1), "strides": (2, 1)}, {})
    nodes = tuple(
        Node("Conv", (("x", "v")[k], f"w{k}"), (("v", "y")[k],), "", "", 11, attributes[k], channels_last=True, id=k)
        for k in range(2)
    )
    (got,) = trial.graph(graph_of({"x": stored}, {"w0": weights[0], "w1": weights[1]}, *nodes), [stored], precision)
    (between,) = reference("Conv", 11, [image, weights[0]], **attributes[0])
    (want,) = reference("Conv", 11, [between, weights[1]])
    agree(f"{precision} convolutions", got, want.transpose(0, 2, 3, 1), 0.0)


def _nbits(trial: Trial, columns: int, k: int) -> tuple[Node, Array, Array, Array]:
    """A MatMulNBits of x, w and s; codes of 4 bits, their scales, which are powers of two, and the weights."""
    codes = trial.integers(0, 16, columns, k)
    scales = np.exp2(trial.integers(-3, 1, columns, k // CODES_BLOCK)).astype(np.float32)
    stored = (codes[:, ::2] + 16 * codes[:, 1::2]).astype(np.uint8).reshape(columns, k // CODES_BLOCK, -1)
    attributes: dict[str, Any] = {"K": k, "N": columns, "bits": 4, "block_size": CODES_BLOCK}
    node = Node("MatMulNBits", ("x", "w", "s"), ("y",), "", "com.microsoft", 1, attributes)
    return node, stored, scales, (codes.astype(np.float32) - 8) * np.repeat(scales, CODES_BLOCK, 1)


def _codes(trial: Trial, rows: int, columns: int, k: int, precision: str) -> None:
    """Likewise of codes of 4 bits, their scales powers of two."""
    x, (node, stored, scales, dense) = trial.integers(-4, 5, rows, k).astype(np.float32), _nbits(trial, columns, k)
    (tile,) = matrix_units.TILES
    with forced(f"decoded in {tile.name}"):
        (got,) = trial.graph(graph_of({"x": x}, {"w": stored, "s": scales}, node), [x], precision)
    agree(f"{precision} codes {rows} x {k} x {columns}", got, x @ dense.T, 0.0)


def _few_vectors(trial: Trial) -> None:
    """Likewise of float16, of fewer vectors than a fragment has rows."""
    rows, columns, k = unit_vectors.VECTORS - 5, 72, 3 * 128 + 32
    x, (node, stored, scales, dense) = trial.integers(-4, 5, rows, k).astype(np.float16), _nbits(trial, columns, k)
    with forced("vectors on units*1"):
        (got,) = trial.graph(graph_of({"x": x}, {"w": stored, "s": scales.astype(np.float16)}, node), [x])
    agree(f"codes {rows} x {k} x {columns}", got, (x @ dense.T).astype(np.float16), 0.0)


@probe(
    "matrix units",
    "kernels",
    disables=(MATRIX_UNITS, *UNIT_SHADERS),
    fault=(
        r"\b(n\d+_\d+|line\d*|k|channel) < (N && m\d+_\d+ < M|N\)|BATCH \* LINES|end|CHANNELS && tap < TAPS)",
        r"\1 + 1u < \2",
    ),
    ops=SUMS_OF_PRODUCTS,
)
def units(trial: Trial) -> str:
    """Products around the edges of each tile, two of codes, and convolutions: rounded to float16, in range by lines and
    images."""
    with _shown(trial, no_matrix_units, MATRIX_UNITS, LAST_ARRIVING) as limits:
        ran = _quickest([tile for tile in TILES if tile.fits(limits, w_rows=True)], trial)
        for _ in range(trial.rounds):
            for tile in ran:
                with in_tile(tile):
                    if tile.m < tile.n:
                        with forced(f"{tile.name}*2", tile.name):
                            _convolutions(trial, tile.m + 4, TF32)
                    else:
                        precision = TF32 if tile is ran[-1] else "f16acc"
                        _product(trial, tile.n + 5, tile.m + 4, 2 * tile.k + 4, precision, precision != TF32)
                        if tile is ran[-1]:
                            _few_vectors(trial)
                            _codes(trial, tile.n + 5, tile.m + 8, 2 * tile.k + 32, precision)
        return f"{len(ran)} tiles, fragments of {limits.fragment}"


@probe(
    "matrix units of attention",
    "kernels",
    disables=(MATRIX_ATTENTION, *ATTENTION_UNIT_SHADERS),
    fault=(r"\bi < SQ\b", "i + 1u < SQ"),
    ops=SUMS_OF_PRODUCTS,
)
def attention(trial: Trial) -> str:
    """Of queries and keys around the edges of blocks, with a mask and values in several parts: as they are, and brought
    into range."""
    ran = attention_units.FORMS
    with _shown(trial, no_attention_units, MATRIX_UNITS, MATRIX_ATTENTION) as limits:
        for _ in range(trial.rounds):
            for form in ran:
                for precision, width, values in ((TF32, 16, 16),) if trial.gpu.info.is_software else ATTENTION_HEADS:
                    if not form.takes(width, values):
                        continue
                    shapes = (
                        (2, 2, form.queries + 5, width),
                        (2, 2, 2 * form.keys + 3, width),
                        (2, 2, 2 * form.keys + 3, values),
                    )
                    arrays = [trial.normal(*shape) for shape in shapes]
                    arrays.append(trial.normal(1, 1, form.queries + 5, 2 * form.keys + 3))
                    graph = graph_of(
                        dict(zip("qkvm", arrays, strict=True)), {}, Node("Attention", tuple("qkvm"), ("y",), version=23)
                    )
                    with forced(form.name):
                        (got,) = trial.graph(graph, arrays, precision)
                    agree(
                        f"{precision} attention {shapes}",
                        got,
                        reference("Attention", 23, arrays)[0],
                        ATTENTION_TOLERANCE,
                    )
        return f"{len(ran)} forms, fragments of {limits.fragment}"


def _sums(trial: Trial, rows: int, columns: int, k: int) -> None:
    """A MatMulInteger, exactly."""
    a, b = (trial.integers(-128, 128, *shape).astype(np.int8) for shape in ((rows, k), (k, columns)))
    node = Node("MatMulInteger", ("a", "b"), ("y",), version=10)
    (got,) = trial.graph(graph_of({"a": a}, {"b": b}, node), [a])
    agree(f"bytes {rows} x {k} x {columns}", got, a.astype(np.int32) @ b.astype(np.int32), 0.0)


@probe(
    "matrix units of bytes",
    "kernels",
    disables=(MATRIX_BYTES, *BYTE_UNIT_SHADERS),
    fault=(r"\b(o\d+_\d+|e) < (ROWS && m\d+_\d+ < M4|min\(4u)", r"\1 + 1u < \2"),
    ops=SUMS_OF_PRODUCTS,
)
def byte_units(trial: Trial) -> str:
    """Sums around the edges of each tile."""
    with _shown(trial, no_byte_units, MATRIX_BYTES) as limits:
        ran = _quickest([tile for tile in unit_bytes.TILES if unit_bytes.fits(tile, limits)], trial)
        for _ in range(trial.rounds):
            for tile in ran:
                with forced(tile.name):
                    _sums(trial, tile.n + 5, tile.m + 4, 2 * tile.k + 36)
        return f"{len(ran)} tiles"
