"""Rows of products with packed weights: MatMulNBits, and what fusion makes of a decoder of constants before MatMul,
Gemm and Conv."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN as CONTRIB
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, INT8, INT32, PACKED_INTS, UINT8, Shape, TensorType
from ort_gpu_ep.kernels.forms import best_ns, elsewhere, lower
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Lowering, Strided, broadcast, broadcast_strides, kernel, op
from ort_gpu_ep.kernels.target import Target
from ort_gpu_ep.ops import contraction, sparse_products, tiles
from ort_gpu_ep.ops.composed import Composed, known
from ort_gpu_ep.ops.contraction import Matrix, Product
from ort_gpu_ep.ops.conv import written_out_ns
from ort_gpu_ep.ops.decoders import check_codebook, check_sparse, decoded_shape, unpack_sparse_ns
from ort_gpu_ep.ops.in_place import check_not_kept, plain, read_in_place
from ort_gpu_ep.ops.packed import UNPACKED_GAIN, lower_packed, product_ns, unpack_ns
from ort_gpu_ep.ops.packed_operands import Columns, Weights
from ort_gpu_ep.ops.packed_vectors import MAX_VECTORS, lower_sparse
from ort_gpu_ep.ops.sparse_products import DENSE, of_entries, of_filters, of_matrices
from ort_gpu_ep.ops.window import INPUT_AXES, OUTPUT_AXES, Window, conv_window

TAKEN = {"T": (FLOAT32, FLOAT16, UINT8, INT8, INT32, *PACKED_INTS)}
MIN_ROWS = 8
"""A group of a convolution with fewer filters has no use for a tile: each invocation decodes what it reads."""

FEW_ENTRIES = 0.15
"""Part of the elements of filters up to which sparse ones are read where dense ones could stay. Of 90 % of zeros, which
are 12.6 % entries (some bridge a distance), five of six networks took 0.76 to 0.93 times the dense one's time on an
H200; of 80 % four of six took more."""

ROUNDS = 4
"""The accuracy_level of MatMulNBits with which x may be rounded to bytes."""

GROUPING, BIAS = 4, 5
"""Inputs of MatMulNBits: in which order codes belong to blocks, and what is added."""

record("order_codes.wgsl", "gather")

NBITS = {"T1": (FLOAT32, FLOAT16), "T2": (UINT8,), "T3": (UINT8, FLOAT32, FLOAT16), "T4": (INT32,)}


@op("MatMulNBits", domain=CONTRIB, dtypes=NBITS, bindings="x w table zp? g_idx? c? -> y", epilogue=True)
def matmul_nbits(node: BoundNode) -> Lowering:
    """y = x w' + bias, w' of [K, N] stored as N rows of blocks of 2-, 4- or 8-bit codes: (code - zero point) * scale.

    x: [..., K]; scales and zero points: one a block; g_idx: [K], the block that each k belongs to, each block as long
    as without.
    """
    x, k, n = node.input(0), node.attr("K"), node.attr("N")
    weights = nbits_weights(node, n, 1)
    if (
        node.has(GROUPING)
        and node.input(GROUPING).size
        and (order := _other_order(node, k, node.attr("block_size"))) is not None
    ):
        return _in_order(node, order)
    out = TensorType(x.dtype, (*x.shape[:-1], n))
    bias = (BIAS, Strided((out.size // max(n, 1), n), (0, 1))) if node.has(BIAS) else None
    columns = Columns(0, math.prod(x.shape[:-1]), k, 1, n, 1)
    return lower_packed(node, weights, columns, out, bias, rounds=node.attr("accuracy_level") == ROUNDS)


def nbits_weights(node: BoundNode, n: int, at: int) -> Weights:
    """The weights of a MatMulNBits: codes, scales and perhaps zero points from input `at` on. Raises
    UnsupportedNodeError."""
    x, bits, size, k = node.input(0), node.attr("bits"), node.attr("block_size"), node.attr("K")
    blocks, codes, zp = ceil_div(k, size), node.input(at), node.optional(at + 2)
    if bits not in (2, 4, 8) or codes.dtype is not UINT8 or codes.size * 8 != n * blocks * size * bits:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"MatMulNBits with bits {bits} and {codes.type}; taken: 2, 4 and 8 in bytes"
        )
    if not x.rank or x.shape[-1] != k or node.input(at + 1).size != n * blocks:
        raise UnsupportedNodeError(
            Code.RANK, f"MatMulNBits of {x.type} with K {k}, N {n} and scales {node.input(at + 1).type}"
        )
    zp_bits, zp_row = (bits, ceil_div(blocks * bits, 8) * 8 // bits) if zp and zp.dtype is UINT8 else (0, blocks)
    return Weights(
        n,
        k,
        blocks * size,
        1,
        bits,
        at,
        at + 1,
        zp=at + 2 if zp else None,
        block=size,
        table_strides=(blocks, 1),
        zp_strides=(zp_row, 1),
        zp_bits=zp_bits,
        zero=float(1 << bits - 1),
    )


def _other_order(node: BoundNode, k: int, size: int) -> Array | None:
    """g_idx of each k, None where blocks lie one after another. Raises UnsupportedNodeError for blocks of other
    lengths."""
    index, blocks = np.asarray(node.input(GROUPING).ints(), np.int64)[:k], np.arange(k) // size
    if len(index) < k or not np.array_equal(np.sort(index), blocks):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"MatMulNBits with g_idx: blocks of other lengths than {size}; taken: those, in any order"
        )
    return None if np.array_equal(index, blocks) else index


def _in_order(node: BoundNode, index: Array) -> Lowering:
    """The same product with x and, once, the codes in the order of the blocks."""
    composed, (x, w) = Composed(node), (node.input(0), node.input(1))
    _, places = composed.add_all(
        "TopK",
        (composed.given(GROUPING).seen((len(index),)), known([len(index)])),
        (None, None),
        version=11,
        attributes={"axis": 0, "largest": 0, "sorted": 1},
    )
    ordered = composed.add("Gather", composed.given(0), places, axis=x.rank - 1)
    codes = composed.computed(
        kernel(
            "order_codes.wgsl",
            [w.type],
            consts={"K": len(index), "BITS": node.attr("bits"), "LENGTH": w.size // max(node.attr("N"), 1)},
            reads={"w": 1, **({"places": places.source} if places.source is not None else {})},
        )
    )
    codes = replace(codes, operand=replace(codes.operand, constant=True))
    names = ("K", "N", "bits", "block_size", "accuracy_level")
    composed.add(
        "MatMulNBits",
        ordered,
        codes,
        composed.given(2),
        composed.optional(3),
        None,
        composed.optional(BIAS),
        version=1,
        domain=CONTRIB,
        to=0,
        **{name: node.attr(name) for name in names},
    )
    return composed.lowering()


BLOCKS_OF_FOUR = {
    0: (
        0.0,
        0.005208333333,
        2 / 3,
        1.0,
        1 / 3,
        0.5,
        1 / 6,
        0.25,
        0.0,
        -0.005208333333,
        -2 / 3,
        -1.0,
        -1 / 3,
        -0.5,
        -1 / 6,
        -0.25,
    ),
    1: (
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ),
}
"""By the quant_type of MatMulBnb4, what its codes stand for: FP4 and NF4 of bitsandbytes."""


@op(
    "MatMulBnb4",
    domain=CONTRIB,
    dtypes={"T1": (FLOAT32, FLOAT16), "T2": (UINT8,)},
    bindings="x w table zp? c? -> y",
    epilogue=True,
)
def matmul_bnb4(node: BoundNode) -> Lowering:
    """y = x w', w' of [K, N] stored as N rows of 4-bit codes, FP4 or NF4: the number of a code, times the largest of
    its block.

    x: [..., K]; w: [N K / 2], the first code of a byte in its high bits; table: [N K / block_size].
    """
    x, k, n, size, kind = (
        node.input(0),
        node.attr("K"),
        node.attr("N"),
        node.attr("block_size"),
        node.attr("quant_type"),
    )
    if kind not in BLOCKS_OF_FOUR or not node.attr("transB"):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"MatMulBnb4 with quant_type {kind}, transB {node.attr('transB')}; taken: 0 and 1, 1"
        )
    if k % size:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"MatMulBnb4 of K {k} in blocks of {size}, which do not end with a row"
        )
    if not x.rank or x.shape[-1] != k or 2 * node.input(1).size != n * k or node.input(2).size * size != n * k:
        raise UnsupportedNodeError(
            Code.RANK,
            f"MatMulBnb4 of {x.type} with K {k}, N {n}, codes {node.input(1).type} and scales {node.input(2).type}",
        )
    weights = Weights(
        n,
        k,
        k,
        1,
        4,
        1,
        2,
        codebook=True,
        block=size,
        table_strides=(k // size, 1),
        levels=BLOCKS_OF_FOUR[kind],
        swapped=True,
    )
    return lower_packed(
        node, weights, Columns(0, math.prod(x.shape[:-1]), k, 1, n, 1), TensorType(x.dtype, (*x.shape[:-1], n))
    )


@op("PackedMatMul", domain="ort_gpu_ep", dtypes=TAKEN, bindings="x w table zp? c? -> y", epilogue=True)
def packed_matmul(node: BoundNode) -> Lowering | Kernel:
    """MatMul with a packed matrix on the right: x [..., k], w [k, n]."""
    x, shape = node.input(0), _dense(node, 2)
    k, n = shape
    if not x.rank or x.shape[-1] != k:
        raise UnsupportedNodeError(Code.RANK, f"MatMul of {x.type} and {list(shape)}: inner dimensions differ")
    columns, out = Columns(0, math.prod(x.shape[:-1]), k, 1, n, 1), TensorType(x.dtype, (*x.shape[:-1], n))
    if columns.count > MAX_VECTORS:
        check_not_kept(node)
    if node.attr("weight_sparse"):
        return _sparse_product(node, n, k, False, columns, out)
    return lower_packed(node, _weights(node, shape, row_axis=1), columns, out)


@op("PackedGemm", domain="ort_gpu_ep", dtypes=TAKEN, bindings="x w table zp? c? -> y", epilogue=True)
def packed_gemm(node: BoundNode) -> Lowering | Kernel:
    """Gemm with a packed matrix on the right."""
    x, shape, c = node.input(0), _dense(node, 2), node.optional(4)
    if x.rank != 2:
        raise UnsupportedNodeError(Code.RANK, f"Gemm of {x.type}: matrices are taken")
    m, k = x.shape[::-1] if node.attr("transA") else x.shape
    inner, n = shape[::-1] if node.attr("transB") else shape
    if inner != k or (c and broadcast(c.shape, (m, n)) != (m, n)):
        raise UnsupportedNodeError(Code.RANK, f"Gemm of {x.type}, {list(shape)} and {c and c.type}: shapes do not fit")
    row_axis = 0 if node.attr("transB") else 1
    columns = Columns(0, m, *((1, m) if node.attr("transA") else (k, 1)), n, 1)
    bias = (4, Strided((m, n), broadcast_strides(c.shape, (m, n)))) if c else None
    out, factors = TensorType(x.dtype, (m, n)), (node.attr("alpha"), node.attr("beta"))
    if m > MAX_VECTORS:
        check_not_kept(node)
    if node.attr("weight_sparse"):
        return _sparse_product(node, n, k, row_axis == 0, columns, out, bias, *factors)
    return lower_packed(node, _weights(node, shape, row_axis), columns, out, bias, *factors)


@op("PackedConv", domain="ort_gpu_ep", dtypes=TAKEN, bindings="x w table zp? c? -> y", epilogue=True)
def packed_conv(node: BoundNode) -> Lowering:
    """Conv with packed filters, as a product of them and the windows, which are read in place."""
    x, shape, groups, c = node.input(0), _dense(node), node.attr("group"), node.optional(4)
    if (
        len(shape) != x.rank
        or not 3 <= x.rank <= 5
        or x.shape[1] != shape[1] * groups
        or shape[0] % groups
        or (c and c.shape != shape[:1])
        or tuple(node.attr("kernel_shape") or shape[2:]) != shape[2:]
    ):
        raise UnsupportedNodeError(
            Code.RANK, f"Conv of {x.type} and {list(shape)} with group {groups}: shapes do not fit"
        )
    rows, channels = shape[0] // groups, shape[1]
    if not node.attr("weight_sparse") or node.input(1).size > FEW_ENTRIES * math.prod(shape):
        check_not_kept(node)
    if groups > 1 and rows < MIN_ROWS and not node.attr("weight_sparse"):
        return read_in_place(node, "Conv")
    window = conv_window(node, x.shape[2:], shape[2:])
    if node.attr("weight_sparse"):
        return _sparse_conv(node, shape, window)
    pixels, plane = math.prod(window.small), channels * math.prod(window.large)
    sliding = {} if window.is_pointwise else window.consts(INPUT_AXES, OUTPUT_AXES)
    columns = Columns(0, pixels, 1, pixels, 1, pixels, x.shape[0], groups * plane, plane, rows * pixels, window=sliding)
    out = TensorType(x.dtype, (x.shape[0], shape[0], *window.small))
    bias = (4, Strided((x.shape[0], shape[0], pixels), (0, 1, 0))) if c else None
    weights = _weights(node, shape, row_axis=0, groups=groups)
    packed_ns = product_ns(node.target, weights, columns)
    dense_ns = unpack_ns(node.target, weights) + written_out_ns(plain(node, "Conv", shape, 1))
    # what the host knows it would write out once for all
    if dense_ns < UNPACKED_GAIN * packed_ns and node.input(1).value is None:
        raise UnsupportedNodeError(
            Code.COST,
            f"Conv: with its filters written out before, {dense_ns / 1e3:.0f} us are estimated instead of "
            f"{packed_ns / 1e3:.0f}",
        )
    return lower_packed(node, weights, columns, out, bias)


def _sparse_conv(node: BoundNode, shape: Shape, window: Window) -> Lowering:
    """Conv with sparse filters, where that is faster than with dense ones, which are written out in each run."""
    x, rows, depth = node.input(0), shape[0], math.prod(shape[1:])
    _check_sparse(node, tuple(range(len(shape))), (rows, depth))
    product = of_filters(node, window, of_entries(node, rows, depth), 4 if node.has(4) else None)
    if product is None:
        raise UnsupportedNodeError(Code.COST, "Conv with sparse filters: this convolution runs with dense filters")
    dense_ns = written_out_ns(plain(node, "Conv", shape, 1)) + unpack_sparse_ns(node.target, math.prod(shape))
    dense = elsewhere(dense_ns, "Conv with sparse filters: estimated to be slower than with dense filters")
    return lower(
        node.target,
        product.key,
        sparse_products.forms(product) | {DENSE: dense},
        TensorType(x.dtype, (x.shape[0], rows, *window.small)),
    )


def _written_out_ns(target: Target, rows: int, k: int, transposed: bool, columns: Columns) -> float:
    """Of a product of many vectors with a matrix that each run writes out, in the better of its kernels."""
    count, start = int(hint(columns.count)), Strided((1,), (0,))
    weights = Matrix(1, start, *((k, 1) if transposed else (1, rows)))
    product = Product(
        1, count, rows, k, Matrix(0, start, columns.column, columns.k), weights, target=target, fours=True
    )
    dense_ns = best_ns(contraction.forms(product))
    if transposed or k % tiles.PACKED_ROWS or rows % 4 or columns.k != 1 or not tiles.fits(target):
        return dense_ns
    return min(
        dense_ns,
        best_ns(tiles.forms(tiles.TiledProduct(count, rows, tiles.Weights(1, k, 1, 1, rows, 0, False), target=target))),
    )


def _dense(node: BoundNode, rank: int | None = None) -> Shape:
    """The shape of the weight that the codes stand for. Raises UnsupportedNodeError for another rank."""
    stored = tuple(node.attr("weight_shape"))
    shape = decoded_shape(stored, tuple(node.attr("weight_perm"))) if stored else node.input(1).shape
    if rank is not None and len(shape) != rank:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} of packed {list(shape)}: matrices are taken")
    return shape


def _weights(node: BoundNode, shape: Shape, row_axis: int, groups: int = 1) -> Weights:
    """The weights of a fused decoder: of `shape`, with an output for each index of `row_axis`; all other axes are
    summed over."""
    codes, table = node.input(1), node.input(2)
    rows, k = shape[row_axis], math.prod(shape) // max(shape[row_axis], 1)
    outer, inner = (k, 1) if row_axis == 0 else (1, rows)
    of_a_group = rows // groups
    if node.attr("weight_bits"):
        stored, perm = node.attr("weight_shape"), node.attr("weight_perm")
        check_codebook(node, 1, 2, node.attr("weight_bits"), math.prod(stored))
        strides = [math.prod(stored[a + 1 :]) for a in range(len(stored))]
        if len(shape) == 2:
            outer, inner = strides[perm[row_axis]], strides[perm[1 - row_axis]]
        elif tuple(perm) != tuple(range(len(perm))):
            raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with filters permuted by {list(perm)}")
        return Weights(of_a_group, k, outer, inner, node.attr("weight_bits"), 1, 2, codebook=True, groups=groups)
    scale_strides, block = (0, 0), 0
    if table.size != 1 or node.attr("weight_block"):
        scale_strides, block = _scale_strides(node, shape, table.shape, row_axis)
    zp = node.optional(3)
    if zp and zp.size != table.size:
        raise UnsupportedNodeError(
            Code.RANK, f"packed weights with scale {list(table.shape)} and zero point {list(zp.shape)}"
        )
    return Weights(
        of_a_group,
        k,
        outer,
        inner,
        codes.dtype.bits,
        1,
        2,
        signed=codes.dtype.value == "i32",
        zp=3 if zp else None,
        block=block,
        table_strides=scale_strides,
        zp_strides=scale_strides,
        groups=groups,
    )


def _check_sparse(node: BoundNode, perm: Shape, rows: Shape) -> None:
    """Raises UnsupportedNodeError, where the rows that are stored, with axes permuted so, are not those of the
    product."""
    if tuple(node.attr("weight_perm")) != perm:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op}: sparse rows that are not those of the product")
    check_sparse(node, 1, 3, 2, rows)


def _sparse_product(
    node: BoundNode,
    rows: int,
    k: int,
    transposed: bool,
    columns: Columns,
    out: TensorType,
    bias: tuple[int, Strided] | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Lowering | Kernel:
    """MatMul or Gemm with sparse rows: of few vectors; of many, where that is faster than with a dense matrix, written
    out in each run.

    transposed: the dense matrix would be [rows, k].
    """
    _check_sparse(node, (0, 1) if transposed else (1, 0), tuple(node.attr("weight_shape")))
    if columns.count <= MAX_VECTORS:
        return lower_sparse(node, rows, k, columns, out, bias, alpha, beta)
    product = of_matrices(
        node, columns.count, of_entries(node, rows, k), (columns.column, columns.k), bias, alpha, beta
    )
    if product is None:
        raise UnsupportedNodeError(
            Code.COST,
            f"{node.op}: batch of {hint(columns.count)}: a dense copy of the sparse weight is estimated to be faster",
        )
    dense_ns = unpack_sparse_ns(node.target, rows * k) + _written_out_ns(node.target, rows, k, transposed, columns)
    dense = elsewhere(dense_ns, f"{node.op}: estimated to be slower than with a dense matrix")
    return lower(node.target, product.key, sparse_products.forms(product) | {DENSE: dense}, out)


def _scale_strides(node: BoundNode, shape: Shape, scales: Shape, row_axis: int) -> tuple[tuple[int, int], int]:
    """Strides of a row and of a block in the scales, and codes of a block. Raises UnsupportedNodeError for other
    arrangements."""
    axis, block = node.attr("weight_axis") % len(shape), node.attr("weight_block")
    if not block and axis == row_axis and scales == (shape[row_axis],):
        return (1, 0), 0
    if block and len(shape) == 2 and axis != row_axis:
        blocks = ceil_div(shape[axis], block)
        if scales == tuple(blocks if k == axis else s for k, s in enumerate(shape)):
            return ((blocks, 1) if row_axis == 0 else (1, shape[row_axis])), block
    raise UnsupportedNodeError(
        Code.RANK,
        f"packed weights {list(shape)} with scales {list(scales)} along axis {axis}, block_size {block}: "
        "taken in a product: a scale for all, for each output, or for each block that is summed over",
    )
