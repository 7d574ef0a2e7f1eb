"""Rules of rows for values that are stored [N, spatial..., C] (`op(..., channels_last=RULE)`); partitioner/layouts.py
asks them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.ir.symbolic import is_symbolic
from ort_gpu_ep.kernels.registry import BoundNode, ChannelsLast, LayoutRule, spec_of

IMAGE_RANKS = (3, 4, 5)
"""Of values with one to three spatial axes."""


def to_channels_last(rank: int) -> tuple[int, ...]:
    """Transpose's perm from [N, C, spatial...] to [N, spatial..., C]."""
    return (0, *range(2, rank), 1)


def to_plain(rank: int) -> tuple[int, ...]:
    """Its inverse."""
    return (0, rank - 1, *range(1, rank - 1))


TO_CHANNELS_LAST, TO_PLAIN = to_channels_last(4), to_plain(4)


def stored(axis: int, rank: int = 4) -> int:
    """Where an axis of [N, C, spatial...] is in [N, spatial..., C]; both from the front."""
    return to_channels_last(rank).index(axis % rank)


def seen(node: BoundNode) -> tuple[int, ...]:
    """The positions of the inputs that the node's kernel sees."""
    spec = spec_of(node.node)
    bound = [b.bound for b in spec.inputs] if spec else []
    return tuple(k for k in range(len(node.inputs)) if node.has(k) and bound and bound[min(k, len(bound) - 1)])


def elementwise(node: BoundNode) -> ChannelsLast | None:
    """Each element by itself: the same node, over all inputs that its kernel sees."""
    inputs = seen(node)
    rank = max((operand.rank for operand in (*map(node.input, inputs), *node.operands)), default=0)
    return None if node.wants(1) or rank not in IMAGE_RANKS else ChannelsLast(inputs, rank=rank)


def one_scale(node: BoundNode) -> ChannelsLast | None:
    """Of rows whose inputs are x, a scale and a zero point: elementwise where one scale is that of all elements."""
    rank = node.input(0).rank
    takes = node.input(1).size == 1 and not node.attr("block_size") and rank in IMAGE_RANKS
    return ChannelsLast((0,), rank=rank) if takes else None


def own(*inputs: int) -> LayoutRule:
    """The builder itself looks at `node.channels_last`; inputs: the positions that it reads channel-last then."""
    return lambda node: None if node.wants(1) else ChannelsLast(inputs)


def of_any_rank(node: BoundNode) -> ChannelsLast | None:
    """Likewise of x, with one to three spatial axes."""
    rank = node.input(0).rank
    return None if node.wants(1) or rank not in IMAGE_RANKS else ChannelsLast((0,), rank=rank)


def along_axis(node: BoundNode) -> ChannelsLast | None:
    """The same node, along the stored axis; all inputs that its kernel sees are of one rank."""
    inputs = seen(node)
    rank = node.input(0).rank
    if rank not in IMAGE_RANKS or any(node.input(k).rank != rank for k in inputs):
        return None
    return ChannelsLast(inputs, attributes={"axis": stored(int(node.attr("axis")), rank)}, rank=rank)


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
