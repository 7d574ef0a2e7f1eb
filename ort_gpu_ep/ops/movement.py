"""Ops that move elements by an affine map of their coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import greater, hint, lesser, same
from ort_gpu_ep.ir.types import ANY, Shape, TensorType
from ort_gpu_ep.kernels.registry import (
    BoundNode,
    ChannelsLast,
    Kernel,
    Strided,
    View,
    broadcast,
    broadcast_strides,
    kernel,
    op,
)
from ort_gpu_ep.ops.axes import axes_of, ints_of, strides_of
from ort_gpu_ep.ops.channels_last import TO_CHANNELS_LAST, TO_PLAIN, ints, own, stored
from ort_gpu_ep.ops.transposition import moving_ns, swap_of, swapping, transposed
from ort_gpu_ep.shaders.indices import merged


def moves_bits(node: BoundNode) -> bool:
    """Whether the kernels of a node bind their tensors raw: fused steps need values, not bits."""
    return not node.has_steps


def _is_copy(index: Strided, size: int) -> bool:
    """Whether an index map onto a tensor of `size` elements is the identity."""
    shape, strides = merged(index.shape, index.strides)
    return (
        same(index.offset, 0)
        and (not strides or (len(strides) == 1 and same(strides[0], 1)))
        and same(math.prod(shape), size)
    )


def moved(node: BoundNode, shape: Shape, index: Strided) -> Kernel | View:
    """y[i] = x[index(i)] for the node's one output; a view where that changes nothing but the shape."""
    x = node.input(0)
    out = TensorType(x.dtype, shape)
    if same(out.size, x.size) and _is_copy(index, x.size) and not node.has_steps:
        return View(out)
    return reading(node, out, index)


def reading(node: BoundNode, out: TensorType, index: Strided, target: int = 0) -> Kernel:
    """y[i] = x[index(i)] for the output `target`."""
    swap = swap_of(index)
    lowering = swapping(node, swap, out, target) if swap else None
    if isinstance(lowering, Kernel):
        return lowering
    return kernel(
        "strided.wgsl",
        [out],
        indices={"x_index": index},
        raw=moves_bits(node),
        reads={"x": 0},
        writes={"y": target},
        choice=lowering,
    )


def _transposed(node: BoundNode, shape: Shape, order: tuple[int, ...], out: Shape) -> Kernel | View:
    """x seen as `shape`, its dimensions in another order, then seen as `out`."""
    return moved(node, out, transposed(shape, order))


def _is_view(shape: Shape, perm: Sequence[int]) -> bool:
    """Whether a Transpose moves nothing but dimensions of size 1."""
    moved_axes = [axis for axis in perm if hint(shape[axis]) != 1]
    return moved_axes == sorted(moved_axes)


def _transpose_layout(node: BoundNode) -> ChannelsLast | None:
    """From channel-last, it is a Transpose by another perm; to [N, C, H, W] from [N, H, W, C], one that makes a
    channel-last value."""
    x, perm = node.input(0), tuple(node.attr("perm") or (3, 2, 1, 0))
    if x.rank != 4:
        return None
    perm = axes_of(node, perm, 4)
    writes = perm == TO_PLAIN
    other = (0, 1, 2, 3) if writes else tuple(TO_CHANNELS_LAST.index(axis) for axis in perm)
    shape = x.shape if writes else tuple(x.shape[k] for k in TO_CHANNELS_LAST)
    costs = [
        0.0
        if _is_view(its, order) and not node.has_steps
        else moving_ns(transposed(its, order), x.dtype, node.target.figures)
        for its, order in ((x.shape, perm), (shape, other))
    ]
    return ChannelsLast(() if writes else (0,), writes, {"perm": other}, gain_ns=costs[0] - costs[1])


@op("Transpose", dtypes={"T": ANY}, bindings="x -> y", epilogue=True, channels_last=_transpose_layout)
def transpose(node: BoundNode) -> Kernel | View:
    """y[c] = x[c permuted by `perm`]; without `perm` the dimensions are reversed."""
    x, perm = node.input(0), node.attr("perm")
    order = axes_of(node, perm, x.rank) if perm is not None else tuple(reversed(range(x.rank)))
    if len(order) != x.rank:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Transpose of {x.type} by perm {perm}")
    return _transposed(node, x.shape, order, tuple(x.shape[k] for k in order))


def _slice_layout(node: BoundNode) -> ChannelsLast | None:
    starts, scales_given = ints_of(node, "starts", 1) or (), ints_of(node, "axes", 3)
    axes = tuple(stored(axis) for axis in (range(len(starts)) if scales_given is None else scales_given))
    return (
        ChannelsLast((0,), attributes={"axes": axes})
        if node.version < 10
        else ChannelsLast((0,), constants={3: ints(axes)})
    )


@op(
    "Slice",
    dtypes={"T": ANY},
    bindings="x _starts? _ends? _axes? _steps? -> y",
    epilogue=True,
    channels_last=_slice_layout,
)
def slice_(node: BoundNode) -> Kernel | View:
    """y[c] = x[start + c * step] along each of `axes`; starts and ends count from the end where negative, and are
    clamped."""
    x = node.input(0)
    starts, ends = ints_of(node, "starts", 1) or (), ints_of(node, "ends", 2) or ()
    numbers = ints_of(node, "axes", 3)
    axes = axes_of(node, range(len(starts)) if numbers is None else numbers, x.rank)
    steps = node.input(4).ints() if node.has(4) else (1,) * len(axes)
    if not len(starts) == len(ends) == len(set(axes)) == len(axes) == len(steps) or 0 in steps:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"Slice with starts {starts}, ends {ends}, axes {axes}, steps {steps}"
        )
    shape, strides, offset = list(x.shape), list(strides_of(x.shape)), 0
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        start, shape[axis] = _clamped(start, end, step, x.shape[axis])
        offset += start * strides[axis]
        strides[axis] *= step
    return moved(node, tuple(shape), Strided(tuple(shape), tuple(strides), offset))


def _clamped(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """First element and number of elements of a slice of `size` elements. Source: ONNX Slice, on clamping."""
    start, end = (v + size if v < 0 else v for v in (start, end))
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first = lesser(greater(start, 0), high)
    last = lesser(greater(end, low), high)
    return first, greater(0, -((first - last) // step))


@op("Expand", since=8, dtypes={"T": ANY}, bindings="x _shape -> y", epilogue=True)
def expand(node: BoundNode) -> Kernel | View:
    """y = x broadcast against the given shape (which may also have dimensions of size 1)."""
    x, target = node.input(0), node.input(1).ints()
    if any(d < 0 for d in target):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Expand of {x.type} to {target}")
    try:
        shape = broadcast(x.shape, target)
    except ValueError as error:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Expand of {x.type} to {target}: {error}") from error
    return moved(node, shape, Strided(shape, broadcast_strides(x.shape, shape)))


@op("Tile", since=6, dtypes={"T": ANY}, bindings="x _repeats -> y", epilogue=True)
def tile(node: BoundNode) -> Kernel | View:
    """y = x repeated along each dimension: dimension k of y is (repeats[k], d_k), the first with stride 0."""
    x, repeats = node.input(0), node.input(1).ints()
    if len(repeats) != x.rank or any(r < 0 for r in repeats):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Tile of {x.type} with repeats {repeats}")
    pairs = list(zip(repeats, x.shape, strides_of(x.shape), strict=True))
    index = Strided(tuple(n for r, d, _ in pairs for n in (r, d)), tuple(n for _, _, s in pairs for n in (0, s)))
    return moved(node, tuple(r * d for r, d, _ in pairs), index)


def _blocks(node: BoundNode, shape: Shape, channels: bool) -> tuple[int, int, int, int, int]:
    """N, C, H, W and the block size, checked: C (or H and W) must be divisible."""
    size = int(node.attr("blocksize"))
    if len(shape) != 4:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} of rank {len(shape)}; ONNX defines rank 4")
    n, c, h, w = (shape[k] for k in TO_PLAIN) if node.node.channels_last else shape
    if size < 1 or (c % (size * size) if channels else h % size or w % size):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} of {shape} by blocks of {size}")
    return n, c, h, w, size


MOVED = own(0)
"""The layout rule of ops that move channels: their builders look at the layout."""


@op("DepthToSpace", dtypes={"T": ANY}, bindings="x -> y", epilogue=True, channels_last=MOVED)
def depth_to_space(node: BoundNode) -> Kernel | View:
    """y[n, c, h * b + i, w * b + j] = x[n, (i, j, c), h, w]; mode CRD: x[n, (c, i, j), h, w]."""
    n, c, h, w, b = _blocks(node, node.input(0).shape, channels=True)
    depth = c // (b * b)
    if node.node.channels_last:
        shape, order = (
            ((n, h, w, depth, b, b), (0, 1, 4, 2, 5, 3))
            if node.attr("mode") == "CRD"
            else ((n, h, w, b, b, depth), (0, 1, 3, 2, 4, 5))
        )
        return _transposed(node, shape, order, (n, h * b, w * b, depth))
    out = (n, depth, h * b, w * b)
    if node.attr("mode") == "CRD":
        return _transposed(node, (n, depth, b, b, h, w), (0, 1, 4, 2, 5, 3), out)
    return _transposed(node, (n, b, b, depth, h, w), (0, 3, 4, 1, 5, 2), out)


@op("SpaceToDepth", dtypes={"T": ANY}, bindings="x -> y", epilogue=True, channels_last=MOVED)
def space_to_depth(node: BoundNode) -> Kernel | View:
    """y[n, (i, j, c), h, w] = x[n, c, h * b + i, w * b + j]; mode CRD: y[n, (c, i, j), h, w]."""
    n, c, h, w, b = _blocks(node, node.input(0).shape, channels=False)
    if node.node.channels_last:
        order = (0, 1, 3, 5, 2, 4) if node.attr("mode") == "CRD" else (0, 1, 3, 2, 4, 5)
        return _transposed(node, (n, h // b, b, w // b, b, c), order, (n, h // b, w // b, c * b * b))
    order = (0, 1, 3, 5, 2, 4) if node.attr("mode") == "CRD" else (0, 3, 5, 1, 2, 4)
    return _transposed(node, (n, c, h // b, b, w // b, b), order, (n, c * b * b, h // b, w // b))


@op("ChannelShuffle", domain="ort_gpu_ep", dtypes={}, bindings="x -> y", epilogue=True, channels_last=MOVED)
def channel_shuffle(node: BoundNode) -> Kernel | View:
    """y[n, (j, i), h, w] = x[n, (i, j), h, w] for i of `groups` groups of channels."""
    shape, groups = node.input(0).shape, int(node.attr("groups"))
    if node.node.channels_last:
        return _transposed(node, (*shape[:3], groups, shape[3] // groups), (0, 1, 2, 4, 3), shape)
    return _transposed(node, (shape[0], groups, shape[1] // groups, *shape[2:]), (0, 2, 1, 3, 4), shape)
