"""Ops that only move elements: the gradient moves back."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.training.gradient import Gradients, Site, axis_of, gradient
from ort_gpu_ep.training.writer import Value, Writer


@gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(n: Site) -> Gradients:
    return [n.writer.reshape(n.dy, n.x.shape)]


@gradient("Transpose")
def transpose(n: Site) -> Gradients:
    perm = n.attr("perm") or tuple(reversed(range(n.x.rank)))
    return [n.writer.transpose(n.dy, [int(i) for i in np.argsort(perm)])]


@gradient("Expand")
def expand(n: Site) -> Gradients:
    return [n.writer.reduce_to(n.dy, n.x.shape)]


@gradient("Tile")
def tile(n: Site) -> Gradients:
    """The sum over the copies."""
    repeats = n.constant(1)
    assert repeats is not None
    parts = [int(p) for pair in zip(repeats, n.x.shape, strict=True) for p in pair]
    return [n.writer.reduce("ReduceSum", n.writer.reshape(n.dy, parts), range(0, 2 * n.x.rank, 2), keepdims=False)]


@gradient("Concat")
def concat(n: Site) -> Gradients:
    axis, start, gradients = axis_of(n), 0, list[Value | None]()
    for i in range(len(n.inputs)):
        size = n.input(i).shape[axis]
        gradients.append(n.writer.slice(n.dy, axis, start, start + size) if n.wants(i) else None)
        start += size
    return gradients


@gradient("Split")
def split(n: Site) -> Gradients:
    """The parts side by side, zeros for those that the loss does not depend on."""
    parts = [
        grad if grad is not None else n.writer.zeros(value.shape, value.dtype)
        for value, grad in zip(n.outputs, n.grads, strict=True)
        if value is not None
    ]
    return [n.writer.op("Concat", *parts, axis=axis_of(n)) if len(parts) > 1 else parts[0]]


@gradient("Slice")
def slice_(n: Site) -> Gradients:
    """Zeros around what was taken; between it, where the step is not 1."""
    starts, ends = n.constant(1), n.constant(2)
    assert starts is not None
    assert ends is not None
    axes, steps = n.constant(3), n.constant(4)
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones(len(starts), np.int64) if steps is None else steps
    before, after, grad = [0] * n.x.rank, [0] * n.x.rank, n.dy
    for axis, start, end, step in zip(axes.tolist(), starts.tolist(), ends.tolist(), steps.tolist(), strict=True):
        axis %= n.x.rank
        taken = range(*slice(start, _end(end), step).indices(n.x.shape[axis]))
        if step == 1:
            before[axis], after[axis] = taken.start, n.x.shape[axis] - taken.start - len(taken)
        else:
            places = np.full(n.x.shape[axis], -1)
            places[list(taken)] = np.arange(len(taken))
            grad = pick(n.writer, grad, axis, places)
    return [n.writer.pad(grad, before, after)]


def _end(end: int) -> int | None:
    """An end as Python's slices have it: the smallest integers mean `to the front`."""
    return None if end <= -(2**31) + 1 else end


def pick(writer: Writer, x: Value, axis: int, places: Array) -> Value:
    """x at constant places along an axis; -1: zero."""
    if (places < 0).any():
        after = [int(i == axis) for i in range(x.rank)]
        places = np.where(places < 0, x.shape[axis], places)
        x = writer.pad(x, [0] * x.rank, after)
    return writer.op("Gather", x, writer.constant(places.astype(np.int64)), axis=axis)


@gradient("Pad")
def pad(n: Site) -> Gradients:
    """What lies inside; other modes than constant add to where they took from: a product along each axis."""
    pads = n.constant(1)
    assert pads is not None
    axes = n.constant(3)
    picked = range(n.x.rank) if axes is None else [int(a) % n.x.rank for a in axes]
    half, mode, grad = len(pads) // 2, n.attr("mode"), n.dy
    for axis, before, after in zip(picked, pads[:half].tolist(), pads[half:].tolist(), strict=True):
        size = n.x.shape[axis]
        if mode == "constant":
            start, stop = max(before, 0), grad.shape[axis] - max(after, 0)
            grad = n.writer.slice(grad, axis, start, stop)
            ends = [[max(-p, 0) if i == axis else 0 for i in range(n.x.rank)] for p in (before, after)]
            grad = n.writer.pad(grad, *ends)
        elif before or after:
            grad = n.writer.along(grad, axis, _padding_matrix(n, size, before, after, mode))
    return [grad]


def _padding_matrix(n: Site, size: int, before: int, after: int, mode: str) -> Array:
    """[size + before + after, size]: which element each one is a copy of."""
    if before < 0 or after < 0:
        raise n.unsupported(f"mode {mode} with negative pads")
    copies = np.pad(np.arange(size), (before, after), mode={"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[mode])  # type: ignore[call-overload]
    return np.asarray(np.eye(size)[copies])


@gradient("DepthToSpace")
def depth_to_space(n: Site) -> Gradients:
    b, (batch, channels, height, width) = n.attr("blocksize"), n.x.shape
    rest = channels // (b * b)
    grad = n.writer.reshape(n.dy, [batch, rest, height, b, width, b])
    perm = [0, 1, 3, 5, 2, 4] if n.attr("mode") == "CRD" else [0, 3, 5, 1, 2, 4]
    return [n.writer.reshape(n.writer.transpose(grad, perm), n.x.shape)]


@gradient("SpaceToDepth")
def space_to_depth(n: Site) -> Gradients:
    b, (batch, channels, height, width) = n.attr("blocksize"), n.x.shape
    crd = n.attr("mode") == "CRD"
    blocks = (channels, b, b) if crd else (b, b, channels)
    grad = n.writer.reshape(n.dy, [batch, *blocks, height // b, width // b])
    return [n.writer.reshape(n.writer.transpose(grad, [0, 1, 4, 2, 5, 3] if crd else [0, 3, 4, 1, 5, 2]), n.x.shape)]
