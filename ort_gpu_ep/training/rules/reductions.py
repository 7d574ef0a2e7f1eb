"""Reductions: the gradient spreads over what was reduced."""

from __future__ import annotations

import math

from ort_gpu_ep.training.gradient import Gradients, Rule, Site, axes_of, axis_of, gradient
from ort_gpu_ep.training.writer import Value


def _axes(n: Site) -> list[int]:
    """The axes that are reduced: all, where none are given and that does not mean none."""
    axes = axes_of(n)
    return axes if axes or n.attr("noop_with_empty_axes") else list(range(n.x.rank))


def _kept(n: Site, value: Value) -> Value:
    """A result of the reduction with its reduced axes of size 1, so that it broadcasts to x."""
    axes = _axes(n)
    return n.writer.reshape(value, [1 if i in axes else size for i, size in enumerate(n.x.shape)])


def _spread(n: Site, value: Value) -> Value:
    return n.writer.expand(_kept(n, value), n.x.shape)


@gradient("ReduceL2")
def reduce_l2(n: Site) -> Gradients:
    """x / y dy; where the norm is 0, 0 / tiny."""
    tiny = n.writer.like(1e-30, n.x)
    return [n.x * _kept(n, n.dy / n.writer.op("Max", n.y, tiny))]


@gradient("ReduceMax", "ReduceMin")
def reduce_extremum(n: Site) -> Gradients:
    """In equal parts to all that are the result."""
    taken = n.writer.op("Equal", n.x, _kept(n, n.y))
    ones = n.writer.op("Where", taken, n.writer.like(1.0, n.x), n.writer.like(0.0, n.x))
    count = n.writer.reduce("ReduceSum", ones, _axes(n))
    return [ones * (_kept(n, n.dy) / count)]


@gradient("Softmax")
def softmax(n: Site) -> Gradients:
    """y (dy - sum(dy y))."""
    product = n.dy * n.y
    return [product - n.y * n.writer.reduce("ReduceSum", product, [axis_of(n)])]


@gradient("LogSoftmax")
def log_softmax(n: Site) -> Gradients:
    """dy - exp(y) sum(dy)."""
    return [n.dy - n.writer.op("Exp", n.y) * n.writer.reduce("ReduceSum", n.dy, [axis_of(n)])]


_RULES: dict[str, Rule] = {
    "ReduceL1": lambda n: [n.writer.op("Sign", n.x) * _kept(n, n.dy)],
    "ReduceLogSum": lambda n: [_spread(n, n.dy / n.writer.op("Exp", n.y))],
    "ReduceLogSumExp": lambda n: [n.writer.op("Exp", n.x - _kept(n, n.y)) * _kept(n, n.dy)],
    "ReduceMean": lambda n: [_spread(n, n.dy * (1.0 / math.prod(n.x.shape[a] for a in _axes(n))))],
    "ReduceSum": lambda n: [_spread(n, n.dy)],
    "ReduceSumSquare": lambda n: [n.x * _kept(n, n.dy * 2.0)],
}

for _op, _rule in _RULES.items():
    gradient(_op)(_rule)
