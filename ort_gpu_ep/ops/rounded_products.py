"""Products of many vectors with packed weights where the model lets the vectors be rounded to bytes (MatMulNBits,
accuracy_level 4).

Each block of a vector gets a scale, so that its largest element becomes 127, as ONNX Runtime's CPU does it; four
products are one instruction then. Weights are read as the model stores them, or nibbles in the order in which few
vectors meet them.
"""

from __future__ import annotations

from functools import partial

from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOATS, UINT32, TensorType
from ort_gpu_ep.kernels.forms import Form
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Strided, kernel
from ort_gpu_ep.kernels.target import Choice, Target
from ort_gpu_ep.ops.packed_operands import Columns, Layout, Weights, are_rows

ROUNDED = "vectors as bytes"
"""The form of a product, beside those of packed.py."""
TILE_N, STEP = 64, 32
"""rounded_product.wgsl: rows of weights of a workgroup, and codes of a step."""
TILES = (128, 64, 32)
"""Vectors of a workgroup."""
WORKGROUP_SIZE = 64

record("quantize_blocks.wgsl", "reduction_held", loop_bound=lambda k: k["BLOCK"] // 4)
record(
    "rounded_product.wgsl",
    "product",
    flops=lambda k: 2 * k["M"] * k["N"] * STEP * k["STEPS"],
    loop_bound=lambda k: k["STEPS"],
)


def takes(node: BoundNode, weights: Weights, columns: Columns) -> bool:
    """Whether there is this form: blocks of whole steps, words of codes in rows, zero points that are codes (with
    others, and with codes of 2 bits, onnxruntime rounds nothing), and vectors one after another.
    """
    limits = node.target.limits
    lies_right = are_rows(weights, columns) and weights.inner == 1 and weights.outer * weights.bits % 32 == 0
    fits = (
        weights.bits in (4, 8)
        and weights.block >= STEP
        and weights.block % STEP == 0
        and not (weights.codebook or weights.signed)
    )
    whole = weights.zp is None or weights.zp_bits > 0
    return bool(
        lies_right
        and fits
        and whole
        and node.input(columns.source).dtype in FLOATS
        and limits.allow("rounded_product.wgsl")
        and limits.allow("quantize_blocks.wgsl")
        and TILES[-1] <= limits.max_invocations
    )


def _steps_ns(target: Target, weights: Weights, count: int, tile: int) -> float:
    """Of all steps of a product in such tiles: a step has its latency, or the products of the workgroups that a unit
    has in turn."""
    by, groups = target.figures, ceil_div(count, tile) * ceil_div(weights.rows, TILE_N)
    work = max(tile, TILES[1]) * TILE_N * STEP // 4 * by.dot_ns  # a lone subgroup of a unit waits for its own sums
    return float(ceil_div(weights.k, STEP) * max(by.step_ns, ceil_div(groups, by.units) * work))


def _tile(target: Target, weights: Weights, count: int) -> int:
    """Vectors of a workgroup."""
    fitting = [tile for tile in TILES if tile <= target.limits.max_invocations]
    return min(fitting, key=lambda tile: (_steps_ns(target, weights, count, tile), abs(tile - count)))


def together(weights: Weights) -> bool:
    """Whether codes in the order of few vectors are taken, too: nibbles with scales of blocks."""
    return weights.bits == 4 and weights.block < weights.k


def form(node: BoundNode, weights: Weights, columns: Columns, rows: Layout, bias: tuple[int, Strided] | None) -> Form:
    """The vectors as bytes, and their product. rows: the order of the codes, as the model stores them or together."""
    return Form(estimate_ns(node.target, weights, columns), partial(_lowered, node, weights, columns, rows, bias))


def estimate_ns(target: Target, weights: Weights, columns: Columns) -> float:
    """Of both kernels: the rounding reads each element, and writes and reads a byte of it, and its numbers."""
    by, count = target.figures, int(hint(columns.count))
    rounding_ns = by.dispatch_ns + 8 * count * weights.k * by.byte_ns
    return float(rounding_ns + by.launch_ns + _steps_ns(target, weights, count, _tile(target, weights, count)))


def _lowered(
    node: BoundNode,
    weights: Weights,
    columns: Columns,
    rows: Layout,
    bias: tuple[int, Strided] | None,
    choice: Choice,
    out: TensorType,
) -> Lowering:
    count, blocks = columns.count, ceil_div(weights.k, weights.block)
    fours, padded = ceil_div(count, 4), ceil_div(count, 4) * 4
    codes = TensorType(UINT32, (blocks * weights.block // 4, padded))
    numbers = TensorType(UINT32, (2 * blocks, padded))
    vectors = weights.k % 8 == 0
    rounding = kernel(
        "quantize_blocks.wgsl",
        [codes, numbers],
        consts={
            "ROWS": count,
            "PADDED": padded,
            "K": weights.k,
            "BLOCK": weights.block,
            "BLOCKS": blocks,
            "PAIRED": weights.bits == 4 and not rows.together,
            "X4": vectors,
        },
        groups=ceil_div(padded * blocks, WORKGROUP_SIZE),
        workgroup_size=WORKGROUP_SIZE,
        reads={"x": columns.source},
        writes={"codes": "codes", "numbers": "numbers"},
        vectors=("x",) if vectors else (),
    )
    product = _product(node, weights, rows, count, fours, out, bias, choice)
    return Lowering(
        (out,),
        (*rows.kernels, rounding, product),
        (*rows.temps, ("codes", codes), ("numbers", numbers)),
    )


def _product(
    node: BoundNode,
    weights: Weights,
    rows: Layout,
    count: int,
    fours: int,
    out: TensorType,
    bias: tuple[int, Strided] | None,
    choice: Choice,
) -> Kernel:
    tile, shift = _tile(node.target, weights, int(hint(count))), 128 if weights.bits == 8 else 0
    tiles_n = ceil_div(weights.rows, TILE_N)
    consts: dict[str, Const] = {
        "M": count,
        "N": weights.rows,
        "M4": fours,
        "TILES_N": tiles_n,
        "STEPS": ceil_div(weights.k, STEP),
        "TM": tile,
        "BITS": weights.bits,
        "WORDS": rows.words,
        "TOGETHER": rows.together,
        "BLOCKS": ceil_div(weights.k, weights.block),
        "HAS_ZEROS": "zeros" in rows.sources,
        "STEPS_OF": weights.block // STEP,
        "TABLE_ROW": weights.table_strides[0],
        "TABLE_BLOCK": weights.table_strides[1],
        "ZP_BITS": weights.zp_bits,
        "ZP_ROW": weights.zp_strides[0],
        "ZP_BLOCK": weights.zp_strides[1],
        "ZERO": float(-shift),
        "TAKEN": int(weights.zero) - shift,
    }
    reads: dict[str, int | str] = {"x": "codes", "numbers": "numbers", **rows.sources}
    reads |= {} if rows.together else {"table": weights.table, **({"zp": weights.zp} if weights.zp is not None else {})}
    reads |= {"c": bias[0]} if bias else {}
    zeros = 512 if weights.zp is not None else 0
    return kernel(
        "rounded_product.wgsl",
        [out],
        consts=consts,
        indices={"c_index": bias[1] if bias else Strided((1,), (0,))},
        groups=tiles_n * ceil_div(count, tile),
        workgroup_size=tile,
        workgroup_nbytes=16 * 5 * tile + 4096 + 512 + zeros,
        reads=reads,
        writes={"y": 0},
        vectors=("x", "numbers", *(("w",) if rows.together else ())),
        choice=choice,
    )
