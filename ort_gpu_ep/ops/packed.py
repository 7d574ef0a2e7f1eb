"""Products whose weights stay packed: which codes a weight is made of, in which order the kernels want them, which
kernel sums them.

A weight is a matrix of rows (outputs) of k codes of a few bits: `Weights` says where each code, its scale and its zero
point are. The kernels read words in an order of their own (packed_operands.py); what is on the device is always packed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import LARGEST_HALF
from ort_gpu_ep.ir.symbolic import hint, is_symbolic
from ort_gpu_ep.ir.types import FLOAT32, FLOATS, TensorType
from ort_gpu_ep.kernels.forms import Form, best_ns, lower
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Strided, kernel
from ort_gpu_ep.kernels.target import Choice, Target
from ort_gpu_ep.ops import rounded_products, tiles, unit_packed, unit_vectors
from ort_gpu_ep.ops.packed_operands import NO_WINDOW, PLANES, Columns, Layout, Weights, are_rows, interleaved, rows_of
from ort_gpu_ep.ops.packed_vectors import MAX_VECTORS, grouped, lower_vectors, rounds_few

TILE_ROWS, TILE_COLUMNS = 64, (64, 16)
"""packed_product.wgsl: a workgroup's rows, its columns (many, few)."""
FEW_COLUMNS = 3.3
"""What tiles of few columns take over their estimate, beside the form in groups: on an H200 the products of 16 vectors
with the weights of an 8B model took 55 ms, where the estimates added up to 16.7."""
UNPACKED_GAIN = 0.8
"""A weight is written out for a run, into a slot of its dense size, where that takes so much less by estimate."""
DENSE_SHARE = 0.75
"""What unpacking and the dense product took of their estimate on an H200: 0.67 to 0.79 for 512 vectors and weights of
2048 to 8192 rows."""
IN_TILES, BEFORE = "unpacked in tiles", "unpacked before"
"""Forms of a product of many vectors: packed_product.wgsl; unpack_product.wgsl and a dense product."""
UNPACK_WORKGROUP_SIZE = 64

TOGETHER, UNPACK_ROWS = "unpack_interleaved.wgsl", 64
"""Writes out codes that rows share words of; the rows of its workgroups."""

record("unpack_product.wgsl", "movement", loop_bound=lambda k: 32 // k["BITS"])
record(TOGETHER, "movement", loop_bound=lambda k: 128 // k["BITS"])
record(
    "packed_product.wgsl",
    "product",
    flops=lambda k: 2 * k.size("y") * k["K"],
    loop_bound=lambda k: ceil_div(k["K"], k["STEP"]) * (1 + 3 * k["STEP"] * k["TN"] // k.workgroup_size) + 16 + 256,
)


def lower_packed(
    node: BoundNode,
    weights: Weights,
    columns: Columns,
    out: TensorType,
    bias: tuple[int, Strided] | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    rounds: bool = False,
) -> Lowering:
    """The kernels of a product with packed weights. Raises UnsupportedNodeError.

    bias: its input, and where an element of y finds it. rounds: the vectors may be rounded to bytes, where alpha and
    beta are 1.
    """
    check_weights(node, weights)
    if columns.batches * weights.groups == 1 and not columns.window and columns.count <= MAX_VECTORS:
        return lower_vectors(node, weights, columns, out, bias, alpha, beta, rounds)
    rounds = rounds and rounded_products.takes(node, weights, columns)
    rows = _layout(node, weights, columns, rounds)
    keeps, dense = node.target.limits.keeps_dense, _dense(node, weights, columns, bias, alpha, beta)
    in_bytes = rounds and rounds_few(node, weights)
    in_groups = (
        grouped(node, weights, columns, bias, alpha, beta, in_bytes) if in_bytes or rows.together else dict[str, Form]()
    )
    gain = (1 if keeps or dense is None else UNPACKED_GAIN) * (FEW_COLUMNS if in_groups else 1)
    forms = {
        IN_TILES: Form(
            gain * product_ns(node.target, weights, columns),
            partial(_in_tiles, node, weights, columns, rows, bias, alpha, beta),
        )
    }
    if dense is not None:
        unpacked_ns = best_ns(tiles.forms(dense)) + (0 if keeps else unpack_ns(node.target, weights))
        forms[BEFORE] = Form(DENSE_SHARE * unpacked_ns, partial(_unpacked, node, weights, rows, dense))
    stored = rows_of(weights)
    forms |= unit_packed.forms(
        node,
        weights,
        columns,
        stored,
        bias,
        (alpha, beta),
        partial(_unpacking, node, weights, stored, scaled=True),
        unpack_ns(node.target, weights),
        _described(node, weights, stored),
    )
    forms |= in_groups
    if in_groups and not in_bytes:
        powers = unit_packed.powers_of(node, weights)
        forms |= unit_vectors.forms(node, weights, columns, rows, bias, (alpha, beta), powers)
    if rounds:
        forms[rounded_products.ROUNDED] = rounded_products.form(node, weights, columns, rows, bias)
    varying = "+" if is_symbolic(columns.count) else ""
    key = dense.key if dense else f"packed {hint(columns.count)}x{weights.rows}x{weights.k}{varying}"
    return lower(
        node.target, f"{key}, {weights.bits} bits{', kept' if keeps else ''}{', rounded' if rounds else ''}", forms, out
    )


def _layout(node: BoundNode, weights: Weights, columns: Columns, rounds: bool) -> Layout:
    """The order of the codes that many vectors meet: the one of few vectors, where the same weight may meet these, so
    that it is on the device once. What stays dense (option weights) or is read as the model stores it has no use for
    that. Matrix units read rows, and so do few vectors that are rounded.
    """
    limits, alone = node.target.limits, columns.batches * weights.groups == 1 and not columns.window
    as_stored = (
        limits.keeps_dense
        or weights.codebook
        or (rounds and (not rounded_products.together(weights) or rounds_few(node, weights)))
    )
    few = alone and not as_stored and weights.bits in (2, 4, 8)
    return interleaved(node, weights) if few and limits.allow(TOGETHER) else rows_of(weights)


def _in_tiles(
    node: BoundNode,
    weights: Weights,
    columns: Columns,
    rows: Layout,
    bias: tuple[int, Strided] | None,
    alpha: float,
    beta: float,
    choice: Choice,
    out: TensorType,
) -> Lowering:
    """packed_product.wgsl, whose tiles are unpacked on their way in."""
    built = replace(_product(weights, columns, rows, out), choice=choice)
    reads: dict[str, int | str] = {"x": columns.source, **_read(weights, rows)} | ({"c": bias[0]} if bias else {})
    last = replace(
        built,
        reads=tuple(reads.items()),
        writes=(("y", 0),),
        consts=(
            *built.consts,
            *_described(node, weights, rows).items(),
            ("ALPHA", float(alpha)),
            ("BETA", float(beta)),
        ),
        indices=(("c_index", bias[1] if bias else Strided((1,), (0,))),),
    )
    return Lowering((out,), (*rows.kernels, last), rows.temps)


def _dense(
    node: BoundNode,
    weights: Weights,
    columns: Columns,
    bias: tuple[int, Strided] | None,
    alpha: float,
    beta: float,
) -> tiles.TiledProduct | None:
    """The same product, once its weights are written out as rows along K; None where product.wgsl does not take it."""
    count, n, k = columns.count, weights.rows, weights.k
    x, c = node.input(columns.source), node.optional(bias[0]) if bias else None
    lies_right = are_rows(weights, columns) and k > 0 and n > 0 and k % tiles.PACKED_ROWS == n % 4 == 0
    takes_bias = bias is None or (
        bias[1] == Strided((count, n), (0, 1)) and beta == 1 and c is not None and c.dtype in FLOATS
    )
    allowed = node.target.limits.allow("unpack_product.wgsl") and tiles.fits(node.target)
    if (
        not (lies_right and takes_bias and allowed and x.dtype in FLOATS)
        or 4 * n * k > node.target.limits.max_binding_nbytes
    ):
        return None
    rows = tiles.Weights("unpacked", k, 1, 1, n, 0, False)
    return tiles.TiledProduct(
        count, n, rows, bias[0] if bias else None, alpha, target=node.target, wide=_is_wide(node, weights)
    )


def _is_wide(node: BoundNode, weights: Weights) -> bool:
    """Whether a weight may be one that float16 does not reach to, in f16acc: scales that are too large to be looked at
    count as such."""
    if node.target.limits.precision != "f16acc":
        return False
    table, zp = node.input(weights.table).value, node.optional(weights.zp) if weights.zp is not None else None
    if table is None or (zp is not None and zp.value is None and zp.dtype.bits > 8):
        return True
    largest = float(np.abs(table).max(initial=0.0))
    if not weights.codebook:
        zero = (
            abs(weights.zero)
            if zp is None or zp.value is None
            else float(np.abs(zp.value.astype(np.float64)).max(initial=0.0))
        )
        largest *= (1 << weights.bits) + max(zero, 1 << weights.bits)
    return not largest <= LARGEST_HALF


def _unpacked(
    node: BoundNode, weights: Weights, rows: Layout, dense: tiles.TiledProduct, choice: Choice, out: TensorType
) -> Lowering:
    """The weights written out, for this run or, where a dense copy may stay, for all; and the dense product."""
    written = ("unpacked", TensorType(FLOAT32, (weights.k, weights.rows)))
    unpack = _unpacking(node, weights, rows, written[1], choice)
    product = tiles.lower_tiled(dense, out)
    return replace(
        product,
        kernels=(*rows.kernels, unpack, *product.kernels),
        temps=(*rows.temps, written, *product.temps),
        dense=("unpacked",),
    )


def _unpacking(
    node: BoundNode,
    weights: Weights,
    rows: Layout,
    written: TensorType,
    choice: Choice,
    scaled: bool = False,
) -> Kernel:
    """Writes the weights out, [k, n]. scaled: of scales [blocks, n] in the temporary `scaled`."""
    described = {**_described(node, weights, rows), **({"TABLE_ROW": 1, "TABLE_BLOCK": weights.rows} if scaled else {})}
    groups, nbytes = ceil_div(rows.words * weights.rows, UNPACK_WORKGROUP_SIZE), 0
    if rows.together:
        per = 32 // weights.bits
        tiles_n, nbytes = ceil_div(weights.rows, UNPACK_ROWS), 4 * (UNPACK_ROWS // per) * (4 * per + 1)
        described["TILES_N"], groups = tiles_n, tiles_n * ceil_div(weights.k, 4 * per)
    return kernel(
        TOGETHER if rows.together else "unpack_product.wgsl",
        [written],
        consts=described,
        groups=groups,
        workgroup_nbytes=nbytes,
        workgroup_size=UNPACK_WORKGROUP_SIZE,
        choice=choice,
        reads=_read(weights, rows, "scaled" if scaled else None),
        writes={"y": "unpacked"},
        vectors=("w",) if rows.together else (),
    )


def _read(weights: Weights, rows: Layout, scaled: str | None = None) -> dict[str, int | str]:
    """WGSL name -> where it is, of codes, scales and zero points. scaled: a temporary that stands for scales of
    rows."""
    reads = {**rows.sources, **({} if "scales" in rows.sources else {"table": scaled or weights.table})}
    return reads | ({"zp": weights.zp} if weights.zp is not None and "zeros" not in reads else {})


def product_ns(target: Target, weights: Weights, columns: Columns) -> float:
    """Of packed_product.wgsl, by the figures of gemm.wgsl, whose tiles are alike; a code takes two loads."""
    by, (tile, step) = target.figures, _tile(weights, columns)
    groups = (
        ceil_div(weights.rows, TILE_ROWS) * ceil_div(hint(columns.count), tile) * hint(columns.batches) * weights.groups
    )
    work = TILE_ROWS * tile * step * by.tile_fma_ns + (2 * TILE_ROWS + tile) * step * by.load_ns
    return float(by.launch_ns + ceil_div(weights.k, step) * max(by.step_ns, ceil_div(groups, by.units) * work))


def unpack_ns(target: Target, weights: Weights) -> float:
    """Of writing a weight out: a dispatch, 4 bytes an element, and a memory sector of 32 for each word of codes."""
    by, size = target.figures, weights.rows * weights.groups * weights.k
    return float(by.dispatch_ns + (4 * size + 32 * (size * weights.bits / 32)) * by.byte_ns)


def check_weights(node: BoundNode, weights: Weights) -> None:
    """Raises UnsupportedNodeError where they are no constants, or a scale is of other codes than the kernels take."""
    sources = [i for i in (weights.source, weights.table, weights.zp) if i is not None]
    for i in sources:
        if not node.input(i).is_constant:
            raise UnsupportedNodeError(
                Code.NOT_CONSTANT, f"{node.op}: {node.input(i).name!r} is no constant of the model"
            )
    per = 32 // PLANES[weights.bits][0]
    if weights.block and weights.block % per and weights.block < weights.k:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op}: a scale for {weights.block} codes of {weights.bits} bits; taken: multiples of {per}",
        )


def _described(node: BoundNode, weights: Weights, rows: Layout) -> dict[str, Const]:
    """The constants that the kernels know the weights by."""
    zp = node.optional(weights.zp) if weights.zp is not None else None
    block = weights.block if weights.block < weights.k else 0
    together = (
        {"BLOCKS": ceil_div(weights.k, block or weights.k), "HAS_ZEROS": "zeros" in rows.sources}
        if rows.together
        else {}
    )
    return {
        **together,
        **weights.known_levels,
        "TOGETHER": rows.together,
        "SCALES": "scales" in rows.sources,
        "BITS": rows.bits,
        "HIGH": rows.high,
        "FLIP": rows.flip,
        "WORDS": rows.words,
        "N": weights.rows,
        "K": weights.k,
        "BLOCK": block,
        "TABLE_ROW": weights.table_strides[0],
        "TABLE_BLOCK": weights.table_strides[1],
        "CODEBOOK": weights.codebook,
        "ENTRIES": 1 << weights.bits if weights.codebook else 1,
        "TABLE_SIZE": node.input(weights.table).size,
        "ZP_BITS": weights.zp_bits,
        "ZP_ROW": weights.zp_strides[0],
        "ZP_BLOCK": weights.zp_strides[1],
        "ZERO": float(weights.flip + (weights.zero if zp is None else 0.0)),
        "WHOLE": (zp is None and float(weights.zero).is_integer())
        or (zp is not None and zp.dtype.value in ("u32", "i32")),
    }


def _tile(weights: Weights, columns: Columns) -> tuple[int, int]:
    """Columns of a workgroup, and codes of a step: all within the 16 KB that every adapter has."""
    return TILE_COLUMNS[0] if hint(columns.count) > 2 * TILE_COLUMNS[1] else TILE_COLUMNS[
        1
    ], 16 if weights.codebook else 32


def _product(weights: Weights, columns: Columns, rows: Layout, out: TensorType) -> Kernel:
    tile, step = _tile(weights, columns)
    tiles_n, tiles_j = ceil_div(weights.rows, TILE_ROWS), ceil_div(columns.count, tile)
    return kernel(
        "packed_product.wgsl",
        [out],
        consts={
            "J": columns.count,
            "TILES_N": tiles_n,
            "TILES_J": tiles_j,
            "TN": TILE_ROWS,
            "TJ": tile,
            "STEP": step,
            "GROUPS_X": weights.groups,
            "X_BATCH": columns.batch,
            "X_GROUP": columns.group,
            "X_COL": columns.column,
            "X_K": columns.k,
            "X_K_FAST": not is_symbolic(columns.k) and columns.k == 1 and not columns.window,
            "Y_COL": columns.y_column,
            "Y_ROW": columns.y_row,
            "Y_OUTER": columns.y_outer,
            "IM2COL": bool(columns.window),
            **(columns.window or NO_WINDOW),
        },
        groups=tiles_n * tiles_j * columns.batches * weights.groups,
        workgroup_size=TILE_ROWS * tile // 16,
        vectors=[name for name in ("w", "scales") if name in rows.sources] if rows.together else (),
        workgroup_nbytes=4 * step * (TILE_ROWS + tile) + (4 << weights.bits if weights.codebook else 0),
    )
