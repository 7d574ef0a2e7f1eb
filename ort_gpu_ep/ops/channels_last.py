"""Rules of rows for values of rank 4 that are stored [N, H, W, C] (`op(..., channels_last=RULE)`);
partitioner/layouts.py asks them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.ir.symbolic import is_symbolic
from ort_gpu_ep.kernels.registry import BoundNode, ChannelsLast, LayoutRule, spec_of

TO_CHANNELS_LAST = (0, 2, 3, 1)
"""Transpose's perm from [N, C, H, W] to [N, H, W, C]."""

TO_PLAIN = (0, 3, 1, 2)


def stored(axis: int) -> int:
    """Where an axis of [N, C, H, W] is in [N, H, W, C]; both from the front."""
    return TO_CHANNELS_LAST.index(axis % 4)


def seen(node: BoundNode) -> tuple[int, ...]:
    """The positions of the inputs that the node's kernel sees."""
    spec = spec_of(node.node)
    bound = [b.bound for b in spec.inputs] if spec else []
    return tuple(k for k in range(len(node.inputs)) if node.has(k) and bound and bound[min(k, len(bound) - 1)])


def elementwise(node: BoundNode) -> ChannelsLast | None:
    """Each element by itself: the same node, over all inputs that its kernel sees."""
    return None if node.wants(1) else ChannelsLast(seen(node))


def one_scale(node: BoundNode) -> ChannelsLast | None:
    """Of rows whose inputs are x, a scale and a zero point: elementwise where one scale is that of all elements."""
    return ChannelsLast((0,)) if node.input(1).size == 1 and not node.attr("block_size") else None


def own(*inputs: int) -> LayoutRule:
    """The builder itself looks at `node.channels_last`; inputs: the positions that it reads channel-last then."""
    return lambda node: None if node.wants(1) else ChannelsLast(inputs)


def along_axis(node: BoundNode) -> ChannelsLast | None:
    """The same node, along the stored axis; all inputs that its kernel sees are of rank 4."""
    inputs = seen(node)
    if any(node.input(k).rank != 4 for k in inputs):
        return None
    return ChannelsLast(inputs, attributes={"axis": stored(int(node.attr("axis")))})


def permuted(values: Iterable[Any]) -> tuple[Any, ...]:
    """Numbers for the axes of [N, C, H, W], in the order of [N, H, W, C]. Raises UnsupportedNodeError for other than
    four of them."""
    items = tuple(values)
    if len(items) != len(TO_CHANNELS_LAST):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{len(items)} numbers for four axes")
    return tuple(items[k] for k in TO_CHANNELS_LAST)


def ints(values: Iterable[int]) -> Array:
    """An input that holds axes or sizes; those that a run brings stay what they are."""
    return numbers(values, np.int64)


def numbers(values: Iterable[float], kind: DTypeLike) -> Array:
    """An input of that element type; numbers that a run brings stay what they are."""
    items = tuple(values)
    return np.array(items, object if any(map(is_symbolic, items)) else kind)
