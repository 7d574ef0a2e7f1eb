"""Products of many vectors with packed weights on matrix units: the weights are written out in float16 before, once or for a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, TensorType
from ort_gpu_ep.kernels.forms import Form
from ort_gpu_ep.kernels.records import ceil_div
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Lowering, Strided
from ort_gpu_ep.kernels.target import TF32, Choice, no_matrix_units
from ort_gpu_ep.ops import matrix_units, tiles
from ort_gpu_ep.ops.contraction import Matrix, Product
from ort_gpu_ep.ops.matrix_units import LEAST, UnitProduct, UnitTile
from ort_gpu_ep.ops.packed_operands import Columns, Layout, Weights


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """What a form needs besides its tile. unpack: the kernel that writes [k, n] into `unpacked`, with `scaled` [blocks, n] in place of the
    scales, which are those times a power of two for each column. powers: as _powers has them. bias: its input, or none.
    """

    units: UnitProduct
    weights: Weights
    powers: int
    rows: Layout
    unpack: Callable[[TensorType, Choice], Kernel]
    bias: int | None
    keeps: bool


def forms(
    node: BoundNode, weights: Weights, columns: Columns, rows: Layout, bias: tuple[int, Strided] | None, factors: tuple[float, float],
    unpack: Callable[[TensorType, Choice], Kernel], unpack_ns: float,
) -> dict[str, Form]:
    """In each tile that may be taken. factors: of the sums and of the bias. unpack_ns: what the weights take."""
    units = _of(node, weights, columns, bias, factors)
    if units is None:
        return {}
    packed = PackedProduct(units, weights, _powers(node, weights), rows, unpack, bias[0] if bias else None, node.target.limits.keeps_dense)
    once = 0.0 if packed.keeps else unpack_ns
    return {f"unpacked for {tile.name}": Form(matrix_units.estimate_ns(units, tile) + once, partial(_lowered, packed, tile))
            for tile in matrix_units.tiles_of(units)}


def _of(
    node: BoundNode, weights: Weights, columns: Columns, bias: tuple[int, Strided] | None, factors: tuple[float, float],
) -> UnitProduct | None:
    """None where it is to stay off matrix units."""
    limits, x = node.target.limits, node.input(columns.source)
    count, n, k, plain = columns.count, weights.rows, weights.k, x.dtype is FLOAT16
    if not (plain or limits.precision in (TF32, "f16acc")) or x.dtype not in (FLOAT16, FLOAT32) or no_matrix_units(limits):
        return None
    is_plain = not columns.window and columns.batches == weights.groups == columns.k == columns.y_row == 1
    lies_right = columns.column == k and columns.y_column == n and k % 4 == n % 8 == 0
    if not (is_plain and lies_right and min(int(hint(count)), n, k) >= LEAST and limits.allow("unpack_product.wgsl")):
        return None
    if 2 * n * k > limits.max_binding_nbytes or not _powers(node, weights):
        return None
    flat = Strided((1,), (0,))
    product = Product(
        1, count, n, k, Matrix(columns.source, flat, k, 1), Matrix(weights.source, flat, 1, n), bias[1] if bias else None, *factors,
        target=node.target, fours=True)
    x_operand, w_operand = (matrix_units.operand(m, outer, k, constant, True) for m, outer, constant in (
        (product.a, count, False), (product.b, n, True)))
    return UnitProduct(product, x_operand, w_operand, limits.precision == TF32 and not plain, plain, halves=True)


def _powers(node: BoundNode, weights: Weights) -> int:
    """How many powers of two a weight may be larger than its scale; 0: that is not known."""
    zp = node.optional(weights.zp) if weights.zp is not None else None
    whole = zp is None or zp.dtype.value in ("u32", "i32")
    return 0 if weights.codebook or not whole else 1 + max(weights.bits, 0 if zp is None else weights.zp_bits or zp.dtype.bits)


def _lowered(packed: PackedProduct, tile: UnitTile, choice: Choice, out: TensorType) -> Lowering:
    units = packed.units
    product = units.product
    written, (row, block) = ("unpacked", TensorType(FLOAT16, (product.k, product.n))), packed.weights.table_strides
    blocks = ceil_div(product.k, packed.weights.block) if packed.weights.block else 1
    scaled = ("scaled", TensorType(FLOAT32, (blocks, product.n)))
    of_w = matrix_units.weight_scales(packed.weights.table, product.n, blocks, row, block, packed.powers)
    table = tiles.Weights(packed.weights.table, blocks, 1, row, block, 0, True, multiple=1)
    kernels = [*packed.rows.kernels, of_w, matrix_units.ready_weights(scaled[1], table, "scaled"), packed.unpack(written[1], choice)]
    temps = [*packed.rows.temps, ("w_scales", of_w.outputs[0]), scaled, written]
    reads: dict[str, int | str] = {"x": product.a.source, "w": "unpacked", "w_scales": "w_scales"}
    reads |= {} if packed.bias is None else {"c": packed.bias}
    if units.scaled:
        scales = matrix_units.scales(product, units.x, "x_scales")
        kernels.append(scales)
        temps.append(("x_scales", scales.outputs[0]))
        reads["x_scales"] = "x_scales"
    kernels.append(matrix_units.product_kernel(units, tile, choice, out, reads))
    kept = (written,) if packed.keeps else ()
    return replace(
        Lowering((out,), tuple(kernels), tuple(temps)),
        once=("w_scales", "scaled", *(name for name, _ in (*packed.rows.temps, *kept))),
        dense=tuple(name for name, _ in kept), inverses=packed.rows.inverses)
