"""Convolutions on an adapter's matrix units, channels last: the window is read in place (matrix_product.wgsl, IM2COL).

Beside the forms in register tiles and Winograd's, where matrix_units.py says that products may use the units. Groups of
enough channels and filters are as many products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from ort_gpu_ep.ir.symbolic import hint, is_symbolic
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, HALF, DType, TensorType
from ort_gpu_ep.kernels.forms import Form
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Scales, Strided, kernel
from ort_gpu_ep.kernels.target import FRAGMENTS, MATRIX_UNITS, SUBGROUP_MATRIX, TF32, Choice, no_matrix_units
from ort_gpu_ep.ops import matrix_units, tiles
from ort_gpu_ep.ops.matrix_units import LEAST, PLAIN_WIDTH, UnitTile
from ort_gpu_ep.ops.tile_weights import Weights
from ort_gpu_ep.ops.tiles import TiledProduct
from ort_gpu_ep.ops.window import OUTPUT_AXES

PARTS_ALIGNED = 2048
"""Vectors of a part of an image, at least, of which part_scales.wgsl finds the largest."""
SCALES_WORKGROUP_SIZE = 256
APART = 4
"""Images of a workgroup's rows for each of which a lane keeps the largest magnitude, rather than in workgroup
memory."""
STORED_WIDTH, SCALED_WIDTH = 2.4, 3.4
"""Bytes that an element of x counts for in `f16acc` and `tf32`: in the first, most are stored in float16, which nothing
tells here."""
DEEP_AXES = ("DEPTH", "OUT_DEPTH", "WINDOW_Z")
"""Sizes of the third spatial dimension, which shaders leave out where all of them are 1."""
MOST_PARTS = 512
"""Of an image whose scales its producer gives: with more, what reads them waits longer than a look at the image
takes."""

record("part_scales.wgsl", "reduction", loop_bound=lambda k: ceil_div(k["PER"], 4 * k.workgroup_size))


@dataclass(frozen=True, slots=True)
class UnitConvolution:
    """A convolution as one product (of groups, one each), which matrix units may do. images: of x, each of `size`
    elements. scaled: as UnitProduct's. constant: that x is. dtype: of x and the weights.
    """

    product: TiledProduct
    images: int
    size: int
    scaled: bool
    constant: bool = False
    dtype: DType = FLOAT32

    @property
    def k(self) -> int:
        return self.product.weights.taps * self.product.weights.padded

    @property
    def parts(self) -> int:
        """Of an image: so many that all of them keep the units busy."""
        units, most = self.product.target.figures.units, max(1, int(hint(self.size)) // (4 * PARTS_ALIGNED))
        return max(1, min(64, most, ceil_div(2 * units, max(1, int(hint(self.images))))))


def may_use(node: BoundNode) -> bool:
    """Whether a Conv may use matrix units, as far as its types and the adapter say: float16 always, float32 if the
    precision says so."""
    limits = node.target.limits
    return (node.input(0).dtype is FLOAT16 or limits.precision in (TF32, "f16acc")) and not no_matrix_units(limits)


def of(node: BoundNode, product: TiledProduct) -> UnitConvolution | None:
    """None where it is to stay off matrix units. product: the convolution in register tiles."""
    limits, weights = node.target.limits, product.weights
    if not may_use(node):
        return None
    if product.batch > 1 or not weights.constant or tiles.are_wide(node):
        return None
    if min(product.m, weights.taps * weights.channels, int(hint(product.rows))) < LEAST:
        return None
    x = node.input(0)
    images = x.shape[0]
    if not hint(images):
        return None
    scaled = limits.precision == TF32 and x.dtype is FLOAT32
    return UnitConvolution(product, images, x.size // images, scaled, scaled and x.is_constant, x.dtype)


def forms(units: UnitConvolution | None) -> dict[str, Form]:
    """In each tile that may be taken, with k whole and in the number of parts that is estimated to be the best."""
    if units is None:
        return {}
    product, limits = units.product, units.product.target.limits
    by_name = dict[str, Form]()
    for tile in matrix_units.TILES:
        if not (
            tile.fits(limits, w_rows=True)
            and max(ceil_div(int(hint(product.rows)), tile.n), ceil_div(product.m, tile.m), product.groups)
            <= limits.max_groups_per_dimension
        ):
            continue
        by_name[tile.name] = Form(estimate_ns(units, tile), partial(_lowered, units, tile, 1))
        times = {split: matrix_units.CUT_FACTOR * estimate_ns(units, tile, split) for split in _splits(units, tile)}
        if times:
            split = min(times, key=lambda split: times[split])
            by_name[f"{tile.name}*{split}"] = Form(times[split], partial(_lowered, units, tile, split))
    return by_name


def _splits(units: UnitConvolution, tile: UnitTile) -> Iterator[int]:
    """Parts of k, each of enough steps, where the whole would leave compute units idle."""
    product = units.product
    return (
        matrix_units.splits(product.target, tile, product.rows, product.m, units.k) if product.groups == 1 else iter(())
    )


def estimate_ns(units: UnitConvolution, tile: UnitTile, split: int = 1) -> float:
    """As matrix_units.estimate_ns: w is in float16 already. Scales of an image in planes, a network's input, take a
    look at all of it; others most often come from what wrote x.
    """
    product, by = units.product, units.product.target.figures
    x_width = PLAIN_WIDTH if units.dtype is FLOAT16 else SCALED_WIDTH if units.scaled else STORED_WIDTH
    time = matrix_units.tile_ns(
        by, tile, int(hint(product.rows)), product.m, units.k, product.groups, 1.0, split, (x_width, PLAIN_WIDTH)
    )
    if units.scaled and product.planes:
        time += by.dispatch_ns + 4 * int(hint(units.images)) * int(hint(units.size)) * by.byte_ns
    return time


def _lowered(units: UnitConvolution, tile: UnitTile, split: int, choice: Choice, out: TensorType) -> Lowering:
    """The scales of x; the product, of weights that were packed once. split: parts of k."""
    return matrix_units.in_parts(
        _whole(units, tile, choice, out), tile, units.product.rows, units.product.m, units.k, split
    )


def _whole(units: UnitConvolution, tile: UnitTile, choice: Choice, out: TensorType) -> Lowering:
    product = units.product
    weights, columns = product.weights, product.columns
    rows = product.packed_rows
    if not units.scaled:
        packed = TensorType(weights.dtype, (rows, columns))
        plain = (tiles.packing(weights, packed), _product(units, tile, choice, out, {"x": 0, "w": "packed"}))
        return Lowering((out,), plain, (("packed", packed),))
    parts, w_scales = TensorType(FLOAT32, (units.images, units.parts)), TensorType(FLOAT32, (columns,))
    packed = TensorType(HALF, (rows, columns))
    read: dict[str, int | str] = {"x": 0, "w": "packed", "x_scales": "x_scales", "w_scales": "w_scales"}
    built = _product(units, tile, choice, out, read)
    kernels = (*_scaled_weights(weights, packed), _scales(units, parts), built)
    temps = [("w_scales", w_scales), ("packed", packed), ("x_scales", parts)]
    if product.spread:
        temps.append(("columns", replace(packed, dtype=weights.dtype)))
    return Lowering((out,), kernels, tuple(temps), scaled=() if units.constant else (("x_scales", 0, True),))


def _scaled_weights(weights: Weights, packed: TensorType) -> tuple[Kernel, ...]:
    """`w_scales` of columns, and `packed`. Where a column is no line of the weights (a phase's, or none of their
    filters), by way of `columns`."""
    rows, columns = packed.shape
    if weights.phases is None and not weights.filters:
        length = weights.taps * weights.channels
        of_lines = matrix_units.weight_scales(weights.source, columns, length, weights.m_stride, 1)
        return of_lines, matrix_units.ready_weights(packed, weights)
    ordered = tiles.packing(weights, replace(packed, dtype=weights.dtype), "columns")
    of_columns = matrix_units.weight_scales("columns", columns, rows, 1, columns)
    there = Weights("columns", rows, 1, 1, columns, 0, True, multiple=1)
    return ordered, of_columns, matrix_units.ready_weights(packed, there)


def _scales(units: UnitConvolution, parts: TensorType) -> Kernel:
    fours = not units.product.planes
    size = units.size // 4 if fours else units.size
    return kernel(
        "part_scales.wgsl",
        [parts],
        consts={"SIZE": size, "PER": ceil_div(size, units.parts), "PARTS": units.parts, "FOURS": fours},
        workgroup_size=SCALES_WORKGROUP_SIZE,
        workgroup_nbytes=4,
        grid=(units.parts, units.images, 1),
        reads={"x": 0},
        writes={"scales": "x_scales"},
        vectors=("x",) if fours else (),
    )


def _product(
    units: UnitConvolution, tile: UnitTile, choice: Choice, out: TensorType, reads: dict[str, int | str]
) -> Kernel:
    product = units.product
    limits, fours, bias = product.target.limits, not product.planes, {} if product.bias is None else {"c": product.bias}
    by_elements = product.spread is not None and product.spread.planes
    is_space = product.spread is not None and len(product.spread.steps) == 3
    deep = is_space or any(is_symbolic(product.window[name]) or product.window[name] != 1 for name in DEEP_AXES)
    plain, eights, w_eights = units.dtype is FLOAT16, fours and product.weights.padded % 8 == 0, product.m % 8 == 0
    consts: dict[str, Const] = {
        **matrix_units.consts_of(tile, limits),
        "BATCH": 1,
        "N": product.rows,
        "M": product.m,
        "K": units.k,
        "X_FOURS": fours,
        "W_FOURS": True,
        "X_EIGHTS": plain and eights,
        "W_EIGHTS": w_eights,
        "X_ROWS": True,
        "W_ROWS": True,
        "W_M": 1,
        "W_K": product.columns,
        "K_WHOLE": units.k % tile.k == 0,
        "X_PLAIN": plain,
        "W_PLAIN": plain,
        "X_SCALED": units.scaled,
        "W_SCALED": units.scaled,
        "X_BATCHES": False,
        "W_BATCHES": product.groups > 1,
        "Y_FOURS": not by_elements,
        "C_FOURS": not by_elements,
        "GROUP_COUNT": product.groups,
        "ALPHA": product.alpha,
        "BETA": 1.0,
        "IM2COL": True,
        "DEEP": deep,
        "POINTWISE": product.pointwise,
        "PLANES": product.planes > 0,
        "CHANNELS": product.planes,
        "C": product.weights.padded,
        "PARTS": units.parts,
        "GIVES": 0,
        "X_SPANNED": spanned(product, tile),
        **product.window,
        **(product.spread.consts if product.spread else {}),
    }
    flat, side = Strided((1,), (0,)), product.groups > 1
    of_groups = [
        Strided((product.groups,), (width,)) if side else flat for width in (product.weights.channels, product.m)
    ]
    built = kernel(
        "matrix_product.wgsl",
        [out],
        consts=consts,
        workgroup_size=tile.workgroup_size(limits.unit_subgroup(FRAGMENTS)),
        workgroup_nbytes=tile.workgroup_nbytes(True, limits),
        indices={"x_base": of_groups[0], "w_base": of_groups[1], "c_index": flat},
        grid=(ceil_div(product.m, tile.m), ceil_div(product.rows, tile.n), product.groups),
        reads={**reads, **bias},
        writes={"y": 0},
        vectors=("w", *(("x",) if fours else ()), *(() if by_elements else ("y", *bias))),
        words=tuple(name for name, by_eight in (("x", plain and eights), ("w", w_eights)) if by_eight),
        choice=choice,
        features=(FLOAT16.feature, "subgroup", SUBGROUP_MATRIX, MATRIX_UNITS),
    )
    return replace(
        built,
        workgroup_nbytes=built.workgroup_nbytes + (4 * spanned(product, tile) if units.scaled else 0),
        scales=given_scales(units, tile) if units.scaled else None,
        rounded=() if units.scaled or plain else (matrix_units.rounded(eights),),
    )


def pixels_of(product: TiledProduct) -> int:
    """Of an image of y."""
    depth, height, width = (cast("int", product.window[name]) for name in OUTPUT_AXES)
    return depth * height * width


def spanned(product: TiledProduct, tile: UnitTile) -> int:
    """Images of y, at most, that a workgroup has rows of."""
    if is_symbolic(pixels_of(product)):
        return tile.n
    pixels = pixels_of(product)
    return 1 if pixels % tile.n == 0 else (tile.n + pixels - 2) // pixels + 1


def given_scales(units: UnitConvolution, tile: UnitTile) -> Scales | None:
    """Of y's images: a part for each workgroup that has rows of one. None where sizes vary, there are too
    many, or y is stored by elements."""
    product = units.product
    if is_symbolic(pixels_of(product)) or (product.spread is not None and product.spread.planes):
        return None
    pixels, images = pixels_of(product), spanned(product, tile)
    tiles = pixels // tile.n if pixels % tile.n == 0 else (pixels + tile.n - 2) // tile.n + 1
    parts = tiles * ceil_div(product.m, tile.m) * product.groups
    consts = (("GIVES", parts), ("SPANNED", images), ("APART", APART))
    return None if parts > MOST_PARTS else Scales(units.images, parts, consts, 4 * images)
