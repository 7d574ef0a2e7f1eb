"""Matrix products: MatMul and Gemm."""

from __future__ import annotations

import math
from typing import Any

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.symbolic import is_symbolic
from ort_gpu_ep.ir.types import FLOAT64, FLOATS, Shape, TensorType
from ort_gpu_ep.kernels.forms import Forms, lower
from ort_gpu_ep.kernels.registry import BoundNode, Lowering, Strided, broadcast, broadcast_strides, op
from ort_gpu_ep.ops import contraction, matrix_units, pruned, sparse_products, tiles
from ort_gpu_ep.ops.composed import Composed
from ort_gpu_ep.ops.contraction import Matrix, Product
from ort_gpu_ep.shaders.composer import literal_f64

TAKEN = (*FLOATS, FLOAT64)


@op("MatMul", dtypes={"T": TAKEN}, bindings="a b c? -> y", epilogue=True, weights=(0, 1))
def matmul(node: BoundNode) -> Lowering:
    """y = a b over the last two dimensions, as numpy.matmul.

    a: [..., m, k] or [k]; b: [..., k, n] or [k]; leading dimensions broadcast. A rank-2 `b` takes a's batches as more
    rows.
    """
    return _matmul(node)


@op("FusedMatMul", domain=DOMAIN, dtypes={"T": TAKEN}, bindings="a b c? -> y", epilogue=True, weights=(0, 1))
def fused_matmul(node: BoundNode) -> Lowering:
    """y = alpha a' b', a' and b' with their last two axes exchanged where transA and transB say so. Shapes as
    MatMul's."""
    if node.attr("transBatchA") or node.attr("transBatchB"):
        raise UnsupportedNodeError(Code.ATTRIBUTE, "FusedMatMul with transBatchA or transBatchB")
    turned = [bool(node.attr(name)) and node.input(i).rank > 1 for i, name in enumerate(("transA", "transB"))]
    return _matmul(node, turned[0], turned[1], float(node.attr("alpha")))


def _matmul(node: BoundNode, turns_a: bool = False, turns_b: bool = False, alpha: float = 1.0) -> Lowering:
    """A product over the last two dimensions. turns_a, turns_b: those are exchanged before."""
    a, b = node.input(0), node.input(1)
    if not a.rank or not b.rank:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} of {a.type} and {b.type}: a scalar is not a matrix")
    left = a.shape if a.rank > 1 else (1, *a.shape)
    right = b.shape if b.rank > 1 else (*b.shape, 1)
    m, k = left[-2:][::-1] if turns_a else left[-2:]
    inner, n = right[-2:][::-1] if turns_b else right[-2:]
    if inner != k:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} of {a.type} and {b.type}: inner dimensions differ")
    if a.dtype is FLOAT64:
        first, second = "...km" if turns_a else "...mk", "...nk" if turns_b else "...kn"
        equation = f"{first if a.rank > 1 else 'k'},{second if b.rank > 1 else 'k'}->...{'m' * (a.rank > 1)}{'n' * (b.rank > 1)}"
        return _of_doubles(node, equation, alpha)
    batches: Shape = broadcast(left[:-2], right[:-2])
    shape = batches + ((m,) if a.rank > 1 else ()) + ((n,) if b.rank > 1 else ())
    if math.prod(right[:-2]) == 1 and (not turns_a or math.prod(left[:-2]) == 1):
        batches, m = (), m if turns_a else math.prod(left[:-1])
        left, right = (m, k), (k, n)
    product = Product(
        math.prod(batches),
        m,
        n,
        k,
        Matrix(0, _batches(left, batches), *((1, m) if turns_a else (k, 1))),
        Matrix(1, _batches(right, batches), *((k, 1) if turns_b else (1, n))),
        None,
        alpha,
        target=node.target,
        fours=a.dtype in FLOATS,
    )
    if batches or turns_a:
        return lower(node.target, *_dense_forms(node, product, None), TensorType(a.dtype, shape))
    return _by_zeros(
        node, product, tiles.of_matrices(node, m, n, k, turns_b, None, alpha), turns_b, TensorType(a.dtype, shape)
    )


def _of_doubles(node: BoundNode, equation: str, alpha: float, beta: float = 0.0) -> Lowering:
    """A product in float64, which no tile is written for; with input 2, times beta, added."""
    composed = Composed(node)
    if alpha == 1 and not node.has(2):
        composed.add("Einsum", composed.given(0), composed.given(1), version=12, to=0, equation=equation)
        return composed.lowering()
    if node.has_steps:  # the last kernel is a step itself
        raise UnsupportedNodeError(
            Code.DTYPE, f"{node.op} of float64 with a factor or a third input, and steps behind it"
        )
    product = composed.add("Einsum", composed.given(0), composed.given(1), version=12, equation=equation)
    scaled = f"x * {literal_f64(float(alpha))}"
    if not node.has(2):
        composed.elementwise(scaled, product, dtype=FLOAT64, to=0)
    else:
        composed.elementwise(
            f"{scaled} + y * {literal_f64(float(beta))}", product, composed.given(2), dtype=FLOAT64, to=0
        )
    return composed.lowering()


def _by_zeros(
    node: BoundNode, product: Product, tiled: tiles.TiledProduct | None, transposed: bool, out: TensorType
) -> Lowering:
    """One product of two matrices, in the ways that are open to it: without its zeros where that is faster than the
    dense one.

    transposed: the weights are stored [n, k].
    """
    vectors, n, k, of_x = product.m, product.n, product.k, (product.a.outer, product.a.k)
    key, dense = _dense_forms(node, product, tiled)
    few = pruned.of_matrices(node, vectors, n, k, of_x, transposed, product.bias, product.alpha, product.beta)
    if few is not None:
        return lower(node.target, few.key, pruned.forms(few) | dense, out)
    sparse = sparse_products.of_dense(node, transposed) if node.input(1).rank == 2 else None
    bias = None if product.bias is None else (2, product.bias)
    many = sparse_products.of_matrices(node, vectors, sparse, of_x, bias, product.alpha, product.beta)
    if many is not None and (tiled is not None or not is_symbolic(vectors)):
        return lower(node.target, many.key, sparse_products.forms(many) | dense, out)
    return lower(node.target, key, dense, out)


def _dense_forms(node: BoundNode, product: Product, tiled: tiles.TiledProduct | None) -> tuple[str, Forms]:
    """What a choice is made for, and the forms of a product with its zeros: on matrix units, in register tiles
    (`tiled`), or in general."""
    units = matrix_units.forms(matrix_units.of_product(node, product))
    if tiled is not None:
        return tiled.key, tiles.forms(tiled) | units
    return product.key, contraction.forms(product) | units


def _batches(shape: Shape, batches: Shape) -> Strided:
    """Offset of each batch of an operand [..., rows, columns] that broadcasts over `batches`."""
    matrix = shape[-2] * shape[-1]
    return Strided(batches, tuple(s * matrix for s in broadcast_strides(shape[:-2], batches)))


@op("Gemm", since=7, dtypes={"T": TAKEN}, bindings="a b c? -> y", epilogue=True, weights=(0, 1))
def gemm(node: BoundNode) -> Lowering:
    """y = alpha * a' b' + beta * c, a' and b' transposed where transA and transB say so.

    a': [m, k]; b': [k, n]; c broadcasts to [m, n].
    With output_shape (partitioner/fusions.py) y has that shape, its rows those of [m, n].
    """
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if a.rank != 2 or b.rank != 2:
        raise UnsupportedNodeError(Code.RANK, f"Gemm of {a.type} and {b.type}: matrices are taken")
    m, k = a.shape[::-1] if node.attr("transA") else a.shape
    inner, n = b.shape[::-1] if node.attr("transB") else b.shape
    bias: Any = None
    if inner != k or (c and broadcast(c.shape, (m, n)) != (m, n)):
        raise UnsupportedNodeError(Code.RANK, f"Gemm of {a.type}, {b.type} and {c and c.type}: shapes do not fit")
    if a.dtype is FLOAT64 and node.attr("output_shape"):
        raise UnsupportedNodeError(Code.DTYPE, "Gemm of rows in float64")
    if a.dtype is FLOAT64:
        equation = f"{'km' if node.attr('transA') else 'mk'},{'nk' if node.attr('transB') else 'kn'}->mn"
        return _of_doubles(node, equation, node.attr("alpha"), node.attr("beta"))
    if c:
        bias = Strided((m, n), broadcast_strides(c.shape, (m, n)))
    out, factors, transposed = (
        TensorType(a.dtype, node.attr("output_shape") or (m, n)),
        (node.attr("alpha"), node.attr("beta")),
        bool(node.attr("transB")),
    )
    tiled: tiles.TiledProduct | None = None
    if not node.attr("transA") and (
        c is None or (c.shape in ((n,), (1, n)) and node.attr("beta") == 1 and c.dtype is a.dtype)
    ):
        tiled = tiles.of_matrices(node, m, n, k, transposed, 2 if c else None, node.attr("alpha"))
    left = Matrix(0, Strided((1,), (0,)), *((1, m) if node.attr("transA") else (k, 1)))
    right = Matrix(1, Strided((1,), (0,)), *((k, 1) if transposed else (1, n)))
    product = Product(1, m, n, k, left, right, bias, *factors, target=node.target, fours=a.dtype in FLOATS)
    return _by_zeros(node, product, tiled, transposed, out)
