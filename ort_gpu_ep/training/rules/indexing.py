"""Gathers: the gradient adds up where elements came from."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.training.gradient import Gradients, Site, axis_of, gradient
from ort_gpu_ep.training.rules.movement import pick
from ort_gpu_ep.training.writer import Value

PRODUCT_ELEMENTS = 1 << 24
"""Elements of a matrix of zeros and ones up to which rows are added up by a product: no GPU waits for another place's
row then."""


@gradient("Gather")
def gather(n: Site) -> Gradients:
    """Rows by a product with the indices' one-hot matrix; by ScatterElements where that matrix is too large."""
    axis, size, indices = axis_of(n), n.x.shape[axis_of(n)], n.input(1)
    count = int(np.prod(indices.shape, dtype=np.int64))
    rows = n.writer.reshape(n.dy, [*n.x.shape[:axis], count, *n.x.shape[axis + 1 :]])
    if indices.content is not None:
        taken = indices.content.reshape(-1) % size
        if len(set(taken.tolist())) == count:
            places = np.full(size, -1)
            places[taken] = np.arange(count)
            return [_placed(n, rows, axis, places)]
        return [n.writer.along(rows, axis, np.eye(size)[taken])]
    if count * size > PRODUCT_ELEMENTS and n.writer.opset >= 16:
        return [_scattered(n, rows, axis, n.writer.reshape(indices, [count]))]
    return [_product(n, rows, axis, size, n.writer.reshape(indices, [count]))]


def _placed(n: Site, rows: Value, axis: int, places: Array) -> Value:
    """Rows, all from different places, back at these; by zeros around them where they are neighbours."""
    taken = np.flatnonzero(places >= 0)
    if np.array_equal(places[taken], np.arange(len(taken))) and taken[-1] - taken[0] == len(taken) - 1:
        around = (
            [count if i == axis else 0 for i in range(rows.rank)]
            for count in (int(taken[0]), len(places) - 1 - int(taken[-1]))
        )
        return n.writer.pad(rows, *around)
    return pick(n.writer, rows, axis, places)


def _product(n: Site, rows: Value, axis: int, size: int, indices: Value) -> Value:
    """The transposed one-hot matrix [size, count] times the rows [count, rest]."""
    onehot = n.writer.op(
        "OneHot", indices, n.writer.ints(size), n.writer.constant(np.array([0, 1], rows.dtype)), axis=0
    )
    perm = [axis] + [i for i in range(rows.rank) if i != axis]
    first = n.writer.transpose(rows, perm)
    flat = n.writer.reshape(first, [first.shape[0], int(np.prod(first.shape[1:], dtype=np.int64))])
    added = n.writer.reshape(n.writer.op("MatMul", onehot, flat), [size, *first.shape[1:]])
    return n.writer.transpose(added, [int(i) for i in np.argsort(perm)])


def _scattered(n: Site, rows: Value, axis: int, indices: Value) -> Value:
    shape = [1] * rows.rank
    shape[axis] = rows.shape[axis]
    index = n.writer.expand(n.writer.reshape(indices, shape), rows.shape)
    return n.writer.op("ScatterElements", n.writer.zeros(n.x.shape, n.x.dtype), index, rows, axis=axis, reduction="add")


@gradient("GatherElements")
def gather_elements(n: Site) -> Gradients:
    if n.writer.opset < 16:
        raise n.unsupported("it needs a model of opset 16 or newer")
    zeros = n.writer.zeros(n.x.shape, n.x.dtype)
    return [n.writer.op("ScatterElements", zeros, n.input(1), n.dy, axis=axis_of(n), reduction="add")]


@gradient("GatherND")
def gather_nd(n: Site) -> Gradients:
    if n.attr("batch_dims") or n.writer.opset < 16:
        raise n.unsupported("it needs batch_dims=0 and a model of opset 16 or newer")
    return [n.writer.op("ScatterND", n.writer.zeros(n.x.shape, n.x.dtype), n.input(1), n.dy, reduction="add")]
