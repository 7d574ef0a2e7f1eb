"""Matrix products: the gradient of each operand is a product with the other one."""

from __future__ import annotations

import math

from ort_gpu_ep.training.gradient import Gradients, Site, gradient
from ort_gpu_ep.training.writer import Value, Writer


@gradient("MatMul")
def matmul(n: Site) -> Gradients:
    """da = dy b', db = a' dy, summed over broadcast batches; vectors as matrices of one row or column."""
    w, a, b = n.writer, n.x, n.input(1)
    rows = w.reshape(a, [1, *a.shape]) if a.rank == 1 else a
    columns = w.reshape(b, [*b.shape, 1]) if b.rank == 1 else b
    batch = n.dy.shape[: n.dy.rank - (a.rank > 1) - (b.rank > 1)]
    dy = w.reshape(n.dy, [*batch, rows.shape[-2], columns.shape[-1]])
    da = db = None
    if columns.rank == 2:
        flat, flat_dy = _flat(w, rows), _flat(w, dy)
        da = w.reshape(w.op("Gemm", flat_dy, columns, transB=1), a.shape) if n.wants(0) else None
        db = w.reshape(w.op("Gemm", flat, flat_dy, transA=1), b.shape) if n.wants(1) else None
        return [da, db]
    if n.wants(0):
        da = w.reshape(w.reduce_to(w.op("MatMul", dy, turned(w, columns)), rows.shape), a.shape)
    if n.wants(1):
        db = w.reshape(w.reduce_to(w.op("MatMul", turned(w, rows), dy), columns.shape), b.shape)
    return [da, db]


def _flat(writer: Writer, x: Value) -> Value:
    """All rows in one matrix."""
    return writer.reshape(x, [math.prod(x.shape[:-1]), x.shape[-1]])


def turned(writer: Writer, x: Value) -> Value:
    """The last two axes exchanged."""
    return writer.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


@gradient("Gemm")
def gemm(n: Site) -> Gradients:
    """y = alpha a' b' + beta c, each transposition in the product of its gradient."""
    w, alpha, a_turned, b_turned = n.writer, n.attr("alpha"), n.attr("transA"), n.attr("transB")
    a, b, dy = n.x, n.input(1), n.dy
    da = db = dc = None
    if n.wants(0):
        da = (
            w.op("Gemm", b, dy, alpha=alpha, transA=b_turned, transB=1)
            if a_turned
            else w.op("Gemm", dy, b, alpha=alpha, transB=1 - b_turned)
        )
    if n.wants(1):
        db = (
            w.op("Gemm", dy, a, alpha=alpha, transA=1, transB=a_turned)
            if b_turned
            else w.op("Gemm", a, dy, alpha=alpha, transA=1 - a_turned)
        )
    if n.wants(2):
        dc = w.reduce_to(dy if n.attr("beta") == 1.0 else dy * n.attr("beta"), n.input(2).shape)
    return [da, db, dc]


@gradient("Einsum")
def einsum(n: Site) -> Gradients:
    """The gradient of an operand is the Einsum of dy and the other operands over its own labels."""
    equation = n.attr("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    labels = left.split(",")
    if not arrow:
        right = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    if "." in equation or any(len(set(text)) < len(text) for text in labels):
        raise n.unsupported(f"the equation {equation!r} has an ellipsis or a diagonal")
    return [_operand(n, labels, right, i) if n.wants(i) else None for i in range(len(labels))]


def _operand(n: Site, labels: list[str], right: str, index: int) -> Value:
    others = [k for k in range(len(labels)) if k != index]
    there = set(right).union(*(labels[k] for k in others))
    kept = "".join(c for c in labels[index] if c in there)
    equation = ",".join([right, *(labels[k] for k in others)]) + "->" + kept
    grad = n.writer.op("Einsum", n.dy, *(n.input(k) for k in others), equation=equation)
    shape = n.input(index).shape
    alone = [size if c in there else 1 for c, size in zip(labels[index], shape, strict=True)]
    return n.writer.expand(n.writer.reshape(grad, alone), shape)
