"""Products of many vectors with packed weights on matrix units. The weights are decoded to float16 on their way into a
tile, or before.

Decoded before, a weight costs 2 bytes of device memory and, unless it stays there, a dispatch that writes it in each
run: 37 us for 2048 x 8192 weights on an H200, where their product with 512 vectors takes 97. Decoded in the tile it
takes no memory, and each tile of rows decodes it again: 4 instructions a weight, beside the 64 or 128 multiply-adds
that the units do with it there (113 us). So this costs a part of the product (DECODED), that a constant time: prompts
of up to about 1,200 tokens decode in the tile. Where a dense copy stays on the device anyway (`weights`), it is read
instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, TensorType
from ort_gpu_ep.kernels.forms import Build, Form
from ort_gpu_ep.kernels.records import ceil_div
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Strided
from ort_gpu_ep.kernels.target import FRAGMENTS, TF32, Choice, no_matrix_units
from ort_gpu_ep.ops import matrix_units, tiles
from ort_gpu_ep.ops.contraction import Matrix, Product
from ort_gpu_ep.ops.matrix_units import LEAST, UnitProduct, UnitTile
from ort_gpu_ep.ops.packed_operands import Columns, Layout, Weights, are_rows

DECODED = 0.86
"""How much slower a product is that decodes codes on their way in."""
WRITTEN = 0.55
"""What writing weights out in float16 takes of packed.py's estimate, which is of float32."""


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """What a form needs besides its tile. unpack: the kernel that writes [k, n] into `unpacked`, with `scaled` [blocks,
    n] in place of the scales, which are those times a power of two for each column. powers: as powers_of has them. bias:
    its input, or none. codes: constants of what is decoded in the tile; None where it can't be.
    """

    units: UnitProduct
    weights: Weights
    powers: int
    rows: Layout
    unpack: Callable[[TensorType, Choice], Kernel]
    bias: int | None
    keeps: bool
    codes: Mapping[str, Const] | None

    @property
    def source(self) -> int:
        """The input with the vectors."""
        source = self.units.product.a.source
        assert isinstance(source, int), "of a node that stands alone"
        return source

    @property
    def blocks(self) -> int:
        """Scales of a row."""
        return ceil_div(self.weights.k, self.weights.block) if self.weights.block else 1

    def codes_in(self, tile: UnitTile) -> Mapping[str, Const]:
        """With how a lane reads them: all that it has of a step lies in a row."""
        invocations = tile.workgroup_size(self.units.product.target.limits.unit_subgroup(FRAGMENTS))
        words = tile.m * tile.k // invocations * self.rows.bits // 32
        return {**(self.codes or {}), "CODE_FOURS": words % 4 == self.rows.words % 4 == 0 and words > 0}


def forms(
    node: BoundNode,
    weights: Weights,
    columns: Columns,
    rows: Layout,
    bias: tuple[int, Strided] | None,
    factors: tuple[float, float],
    unpack: Callable[[TensorType, Choice], Kernel],
    unpack_ns: float,
    described: Mapping[str, Const],
) -> dict[str, Form]:
    """In each tile that may be taken.

    factors: of the sums and of the bias. unpack_ns: what it takes to write the weights out. described: their constants.
    """
    units = _of(node, weights, columns, bias, factors)
    if units is None:
        return {}
    packed = PackedProduct(
        units,
        weights,
        powers_of(node, weights),
        rows,
        unpack,
        bias[0] if bias else None,
        node.target.limits.keeps_dense,
        _codes(node, weights, rows, described),
    )
    once = 0.0 if packed.keeps else WRITTEN * unpack_ns
    by_name = _of_tiles(packed, False, once)
    along = replace(units, w=replace(units.w, along_k=True))  # as codes lie
    return by_name if packed.codes is None else by_name | _of_tiles(replace(packed, units=along), True)


def _of_tiles(packed: PackedProduct, in_tile: bool, once_ns: float = 0.0) -> dict[str, Form]:
    """In each tile, with k whole and in the number of parts that is estimated to be the best. once_ns: what comes
    before."""
    units, by_name = packed.units, dict[str, Form]()
    product, of_codes, what = units.product, DECODED if in_tile else 0.0, "decoded in" if in_tile else "unpacked for"
    for tile in matrix_units.tiles_of(units):
        whole = partial(_lowered, packed, tile, in_tile)
        by_name[f"{what} {tile.name}"] = Form(once_ns + matrix_units.estimate_ns(units, tile, of_codes), whole)
        times = {
            split: once_ns + matrix_units.CUT_FACTOR * matrix_units.estimate_ns(units, tile, of_codes, split)
            for split in matrix_units.splits(product.target, tile, product.m, product.n, product.k)
        }
        if times:
            split = min(times, key=lambda split: times[split])
            by_name[f"{what} {tile.name}*{split}"] = Form(times[split], partial(_cut, whole, packed, tile, split))
    return by_name


def _cut(whole: Build, packed: PackedProduct, tile: UnitTile, split: int, choice: Choice, out: TensorType) -> Lowering:
    """With k in so many parts."""
    product = packed.units.product
    return matrix_units.in_parts(whole(choice, out), tile, product.m, product.n, product.k, split)


def _codes(
    node: BoundNode, weights: Weights, rows: Layout, described: Mapping[str, Const]
) -> Mapping[str, Const] | None:
    """What matrix_product.wgsl wants to know of codes; None for codes that it does not decode: in two planes, eights
    that differ in their scale, zero points beyond bytes.
    """
    zp = node.optional(weights.zp) if weights.zp is not None else None
    if rows.high or rows.bits not in (2, 4, 8) or int(described["BLOCK"]) % 8 or (zp is not None and zp.dtype.bits > 8):
        return None
    names = ("WORDS", "FLIP", "BLOCK", "ZP_BITS", "ZP_ROW", "ZP_BLOCK", "ZERO")
    return {**{name: described[name] for name in names}, "CODES": rows.bits}


def _of(
    node: BoundNode,
    weights: Weights,
    columns: Columns,
    bias: tuple[int, Strided] | None,
    factors: tuple[float, float],
) -> UnitProduct | None:
    """None where it is to stay off matrix units."""
    limits, x = node.target.limits, node.input(columns.source)
    count, n, k, plain = columns.count, weights.rows, weights.k, x.dtype is FLOAT16
    if (
        not (plain or limits.precision in (TF32, "f16acc"))
        or x.dtype not in (FLOAT16, FLOAT32)
        or no_matrix_units(limits)
    ):
        return None
    lies_right = are_rows(weights, columns) and k % 4 == n % 8 == 0
    if not (lies_right and min(int(hint(count)), n, k) >= LEAST and limits.allow("unpack_product.wgsl")):
        return None
    if 2 * n * k > limits.max_binding_nbytes or not powers_of(node, weights):
        return None
    flat = Strided((1,), (0,))
    product = Product(
        1,
        count,
        n,
        k,
        Matrix(columns.source, flat, k, 1),
        Matrix(weights.source, flat, 1, n),
        bias[1] if bias else None,
        *factors,
        target=node.target,
        fours=True,
    )
    x_operand, w_operand = (
        matrix_units.operand(m, outer, k, constant, True)
        for m, outer, constant in ((product.a, count, False), (product.b, n, True))
    )
    return UnitProduct(product, x_operand, w_operand, limits.precision == TF32 and not plain, plain, halves=True)


def powers_of(node: BoundNode, weights: Weights) -> int:
    """How many powers of two a weight may be larger than its scale; 0: that is not known."""
    zp = node.optional(weights.zp) if weights.zp is not None else None
    whole = zp is None or zp.dtype.value in ("u32", "i32")
    return (
        0
        if weights.codebook or not whole
        else 1 + max(weights.bits, 0 if zp is None else weights.zp_bits or zp.dtype.bits)
    )


def _lowered(packed: PackedProduct, tile: UnitTile, in_tile: bool, choice: Choice, out: TensorType) -> Lowering:
    units = packed.units
    product = units.product
    (row, block), blocks = packed.weights.table_strides, packed.blocks
    scaled = ("scaled", TensorType(FLOAT32, (blocks, product.n)))
    of_w = matrix_units.weight_scales(packed.weights.table, product.n, blocks, row, block, packed.powers)
    table = tiles.Weights(packed.weights.table, blocks, 1, row, block, 0, True, multiple=1)
    kernels = [*packed.rows.kernels, of_w, matrix_units.ready_weights(scaled[1], table, "scaled")]
    temps = [*packed.rows.temps, ("w_scales", of_w.outputs[0]), scaled]
    reads: dict[str, int | str] = {"x": product.a.source, "w_scales": "w_scales"}
    if in_tile:
        reads |= {
            **packed.rows.sources,
            "table": "scaled",
            **({} if packed.weights.zp is None else {"zp": packed.weights.zp}),
        }
    else:
        written = ("unpacked", TensorType(FLOAT16, (product.k, product.n)))
        kernels.append(packed.unpack(written[1], choice))
        temps.append(written)
        reads["w"] = "unpacked"
    reads |= {} if packed.bias is None else {"c": packed.bias}
    if units.scaled:
        scales = matrix_units.scales(product, units.x, "x_scales")
        kernels.append(scales)
        temps.append(("x_scales", scales.outputs[0]))
        reads["x_scales"] = "x_scales"
    kernels.append(
        matrix_units.product_kernel(units, tile, choice, out, reads, packed.codes_in(tile) if in_tile else None)
    )
    return Lowering(
        (out,),
        tuple(kernels),
        tuple(temps),
        dense=() if in_tile else ("unpacked",),
        scaled=(("x_scales", packed.source, False),) if units.scaled else (),
    )
