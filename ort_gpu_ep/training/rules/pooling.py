"""Pools, without a scatter: what a place gets is read from the windows that hold it."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.training.functions import function
from ort_gpu_ep.training.gradient import Gradients, Site, gradient
from ort_gpu_ep.training.rules.convolution import Windows, windows
from ort_gpu_ep.training.rules.elementwise import where
from ort_gpu_ep.training.writer import Value


def _windows(n: Site) -> Windows:
    return windows(n, n.attr("kernel_shape"), n.x.shape[2:], n.y.shape[2:])


@gradient("GlobalAveragePool")
def global_average_pool(n: Site) -> Gradients:
    return [n.writer.expand(n.dy * (1.0 / math.prod(n.x.shape[2:])), n.x.shape)]


@gradient("GlobalMaxPool")
def global_max_pool(n: Site) -> Gradients:
    """In equal parts to all that are the maximum."""
    ones = where(n.writer.op("Equal", n.x, n.y), 1.0, 0.0, n.x)
    return [ones * (n.dy / n.writer.reduce("ReduceSum", ones, range(2, n.x.rank)))]


@gradient("AveragePool")
def average_pool(n: Site) -> Gradients:
    """Each place's share of the windows that hold it. The body is a transposed convolution, map by map, by windows of
    ones."""
    lay, x, rank = _windows(n), n.x.shape, n.x.rank - 2
    share = np.ones(())
    for axis in range(rank):
        share = share[..., None] * _share(
            lay, axis, x[2 + axis], n.y.shape[2 + axis], bool(n.attr("count_include_pad"))
        )
    end = [(n.y.shape[2 + a] - 1) * lay.strides[a] + lay.reach(a) - lay.before[a] - x[2 + a] for a in range(rank)]
    return n.writer.call(
        function("AveragePoolGradient", n.writer.opset),
        [(n.x.dtype, x)],
        n.dy,
        n.writer.constant(share[None, None].astype(n.x.dtype)),
        kernel_shape=list(lay.kernel),
        strides=list(lay.strides),
        dilations=list(lay.dilations),
        before=list(lay.before),
        planes=[-1, 1, *n.y.shape[2:]],
        taps=[1, 1, *lay.kernel],
        pads=[*lay.before, *(max(e, 0) for e in end)],
        beyond=[max(-e, 0) for e in end],
        shape=list(x),
    )


def _share(lay: Windows, axis: int, size: int, count: int, padding_counts: bool) -> Array:
    """[count]: what a place has of each window's average along an axis: they divide by a product over the axes, too."""
    taps = (
        np.arange(count)[:, None] * lay.strides[axis]
        - lay.before[axis]
        + np.arange(lay.kernel[axis]) * lay.dilations[axis]
    )
    there = taps < size + lay.after[axis] if padding_counts else (taps >= 0) & (taps < size)
    return np.asarray(1.0 / there.sum(1))


@gradient("MaxPool")
def max_pool(n: Site) -> Gradients:
    """Of the windows that hold a place (as many as a kernel is strides long), those whose maximum it is.

    The forward node also gives its indices. From opset 16 on the rest is a function, whose body scatters. Before, a
    window's gradient is read at each place that may be in it, by a Gather along each axis with constant indices; it is
    kept where the window's index is that place.
    """
    if n.attr("storage_order"):
        raise n.unsupported("storage_order=1")
    lay, x, w = _windows(n), n.x, n.writer
    space, rank = x.shape[2:], len(lay.kernel)
    index = w.op("Cast", w.add_output(n.node, 1, np.int64, n.y.shape), to=6)
    if w.opset >= 16:
        return w.call(
            function("MaxPoolGradient", w.opset),
            [(x.dtype, x.shape)],
            n.dy,
            index,
            kernel_shape=list(lay.kernel),
            strides=list(lay.strides),
            dilations=list(lay.dilations),
            before=list(lay.before),
            count=[math.prod(x.shape)],
            shape=list(x.shape),
        )
    index = index - w.constant(_first_places(x.shape))
    steps = [range(math.ceil(lay.reach(a) / lay.strides[a])) for a in range(rank)]
    parts: list[Value] = []
    for shift in product(*steps):
        at, grad = index, n.dy
        for a in range(rank):
            taken = _window_of(lay, a, space[a], n.y.shape[2 + a], shift[a])
            at, grad = (w.op("Gather", v, w.constant(taken), axis=2 + a) for v in (at, grad))
        part = where(w.op("Equal", at, w.constant(_places(n, lay, shift))), grad, 0.0, grad)
        parts.append(part)
    return [sum(parts[1:], parts[0])]


def _first_places(shape: tuple[int, ...]) -> Array:
    """[N, C, 1...]: the index of each map's first element."""
    batch, channels, *space = shape
    return (np.arange(batch * channels, dtype=np.int32) * math.prod(space)).reshape(
        batch, channels, *(1 for _ in space)
    )


def _last_window(lay: Windows, axis: int, size: int) -> Array:
    """The last window that begins at or before each place."""
    return np.asarray((np.arange(size) + lay.before[axis]) // lay.strides[axis])


def _window_of(lay: Windows, axis: int, size: int, count: int, shift: int) -> Array:
    """Index of the window so many before the last one that may hold each place, clipped to those that exist."""
    return np.asarray(np.clip(_last_window(lay, axis, size) - shift, 0, count - 1).astype(np.int64))


def _exists(lay: Windows, axis: int, size: int, count: int, shift: int) -> Array:
    last = _last_window(lay, axis, size) - shift
    return np.asarray((last >= 0) & (last < count))


def _places(n: Site, lay: Windows, shift: tuple[int, ...]) -> Array:
    """Index of each place in its map; -1 where it has no such window: the one that is read there is another shift's."""
    there = np.ones((), bool)
    for a, s in enumerate(shift):
        there = there[..., None] & _exists(lay, a, n.x.shape[2 + a], n.y.shape[2 + a], s)
    space = n.x.shape[2:]
    return np.asarray(np.where(there, np.arange(math.prod(space)).reshape(space), -1), np.int32)
