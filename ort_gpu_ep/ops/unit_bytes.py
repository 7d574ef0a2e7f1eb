"""Products of bytes on an adapter's matrix units (byte_units.wgsl): the sums of byte_product.wgsl, and exact like
them."""

from __future__ import annotations

from dataclasses import replace

from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.kernels.built import PINNED_SUBGROUP
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import Const, Kernel
from ort_gpu_ep.kernels.target import BYTE_FRAGMENTS, MATRIX_BYTES, SUBGROUP_MATRIX, Choice, Limits, no_byte_units
from ort_gpu_ep.ops import matrix_units
from ort_gpu_ep.ops.matrix_units import LEAST, UnitTile
from ort_gpu_ep.ops.tiles import TILES as TILES_OF_REGISTERS
from ort_gpu_ep.ops.tiles import TiledProduct, consts_of

TILES: tuple[UnitTile, ...] = (
    UnitTile("byte units 128x128", 128, 128, 64, 2, 2, 1.22, 2, 1.31, 10.3),
    UnitTile("byte units 64x128", 64, 128, 64, 2, 2, 0.92, 3, 1.07, 2.6),
    UnitTile("byte units 64x64x64", 64, 64, 64, 2, 2, 0.64, 8, 0.94),
    UnitTile("byte units 64x64", 64, 64, 128, 2, 2, 0.69, 4, 1.0, 3.1),
)
"""k is in bytes. Fitted to ResNet-50's convolutions of 32 images in each of them."""
GAIN = 1.6
"""What the units do in bytes, over figures.matrix_fma_per_ns: 471 TOP/s on an H200."""
QUADS = 16
"""Rows of packed weights are a multiple of it, in quads of 16 bytes: what any tile's step reads."""

record(
    "byte_units.wgsl", "product", loop_bound=lambda k: k["STEPS"], flops=lambda k: 64 * k["ROWS"] * k["M4"] * k["KQ"]
)
record("pack_byte_rows.wgsl", "movement", loop_bound=lambda k: 4)


def tiles_of(product: TiledProduct) -> dict[str, UnitTile]:
    """Those that may be taken, by name. product: over words of four bytes."""
    limits, rows = product.target.limits, int(hint(product.rows))
    if no_byte_units(limits) or product.batch > 1 or min(rows, product.m, 16 * product.fours) < LEAST:
        return {}
    return {
        tile.name: tile
        for tile in TILES
        if fits(tile, limits)
        and max(ceil_div(rows, tile.n), ceil_div(product.m, tile.m)) <= limits.max_groups_per_dimension
    }


def fits(tile: UnitTile, limits: Limits) -> bool:
    """Whether the adapter can run it."""
    fragment, subgroup = limits.byte_fragment, limits.unit_subgroup(BYTE_FRAGMENTS)
    return (
        fragment is not None
        and tile.divides(subgroup, fragment)
        and tile.workgroup_size(subgroup) <= limits.max_invocations
        and _nbytes(tile, limits) <= limits.max_workgroup_nbytes
    )


def _nbytes(tile: UnitTile, limits: Limits) -> int:
    """Of workgroup memory: both operands, or the sums on their way out."""
    _, gn = tile.teams(limits.unit_subgroup(BYTE_FRAGMENTS))
    lines = limits.byte_fragment.n if limits.byte_fragment is not None else 0
    return 16 * max((tile.n + tile.m) * (tile.k // 16 + 1), gn * lines * (tile.m // 4 + 2))


def estimate_ns(product: TiledProduct, tile: UnitTile) -> float:
    """As matrix_units.tile_ns: half as many bytes a product."""
    by, halves = product.target.figures, replace(tile, k=tile.k // 2)
    return matrix_units.tile_ns(by, halves, int(hint(product.rows)), product.m, 8 * product.fours, 1, GAIN / 2)


def row_quads(product: TiledProduct) -> int:
    """Of a row of packed weights."""
    return ceil_div(product.fours, QUADS) * QUADS


def on_units(product: TiledProduct, tile: UnitTile, built: Kernel, choice: Choice) -> Kernel:
    """The kernel in register tiles, as one of matrix units."""
    quads, limits = tile.k // 16, product.target.limits
    subgroup, pinned, fragment = (
        limits.unit_subgroup(BYTE_FRAGMENTS),
        limits.pinned_subgroup(BYTE_FRAGMENTS),
        limits.byte_fragment,
    )
    assert fragment is not None, "no_byte_units says so"
    gm, gn = tile.teams(subgroup)
    own: dict[str, Const] = {
        **({} if str(fragment) == "16x16x32" else {"FN": fragment.n, "FM": fragment.m, "FK": fragment.k}),
        **({PINNED_SUBGROUP: pinned} if pinned else {}),
        "TM": tile.m,
        "TN": tile.n,
        "TQ": quads,
        "GM": gm,
        "GN": gn,
        "W_ROW": row_quads(product),
        "STEPS": ceil_div(product.fours, quads),
    }
    left_out = {*consts_of(TILES_OF_REGISTERS[0]), "PER", "SPLIT", "LAST"}
    consts = {name: own.get(name, value) for name, value in built.consts if name not in left_out} | own
    consts["TAPS"] = bool(consts["TAPS"]) and product.weights.padded // 4 % quads == 0
    return replace(
        built,
        shader="byte_units.wgsl",
        consts=tuple(consts.items()),
        workgroup_size=tile.workgroup_size(subgroup),
        workgroup_nbytes=_nbytes(tile, limits),
        grid=(ceil_div(product.m, tile.m), ceil_div(product.rows, tile.n), 1),
        choice=choice,
        features=("subgroup", SUBGROUP_MATRIX, MATRIX_BYTES),
    )
