"""Ops of several tensors that broadcast: each gradient is summed over what its input was broadcast along."""

from __future__ import annotations

from ort_gpu_ep.training.gradient import Gradients, Site, gradient
from ort_gpu_ep.training.rules.elementwise import compare, where
from ort_gpu_ep.training.writer import Value


def _to(n: Site, index: int, grad: Value) -> Value:
    """A gradient in the shape of an input."""
    return n.writer.reduce_to(grad, n.input(index).shape)


@gradient("Add")
def add(n: Site) -> Gradients:
    return [_to(n, i, n.dy) if n.wants(i) else None for i in (0, 1)]


@gradient("Sub")
def sub(n: Site) -> Gradients:
    return [_to(n, 0, n.dy) if n.wants(0) else None, -_to(n, 1, n.dy) if n.wants(1) else None]


@gradient("Mul")
def mul(n: Site) -> Gradients:
    return [_to(n, i, n.dy * n.input(1 - i)) if n.wants(i) else None for i in (0, 1)]


@gradient("Div")
def div(n: Site) -> Gradients:
    """dy / b and -dy y / b."""
    quotient = n.dy / n.input(1)
    return [_to(n, 0, quotient) if n.wants(0) else None, -_to(n, 1, quotient * n.y) if n.wants(1) else None]


@gradient("Pow")
def power(n: Site) -> Gradients:
    """b a^(b-1) and y log a; the exponent's only where a > 0, as it is nowhere else differentiable."""
    a, b = n.x, n.input(1)
    if b.dtype != a.dtype:
        b = n.writer.op("CastLike", b, a) if n.writer.opset >= 15 else n.writer.op("Cast", b, to=1)
    base = _to(n, 0, n.dy * b * n.writer.op("Pow", a, b - 1.0)) if n.wants(0) else None
    if not n.wants(1):
        return [base]
    log = n.writer.op("Log", where(compare("Greater", a, 0.0), a, 1.0, a))
    return [base, _to(n, 1, n.dy * n.y * log)]


@gradient("PRelu")
def prelu(n: Site) -> Gradients:
    below, slope = compare("Less", n.x, 0.0), n.input(1)
    dx = where(below, n.dy * slope, n.dy, n.dy) if n.wants(0) else None
    return [dx, _to(n, 1, where(below, n.dy * n.x, 0.0, n.dy)) if n.wants(1) else None]


@gradient("Where")
def where_(n: Site) -> Gradients:
    yes = _to(n, 1, where(n.x, n.dy, 0.0, n.dy)) if n.wants(1) else None
    return [None, yes, _to(n, 2, where(n.x, 0.0, n.dy, n.dy)) if n.wants(2) else None]


@gradient("Sum", "Mean")
def sums(n: Site) -> Gradients:
    share = n.dy * (1.0 / len(n.inputs)) if n.node.op_type == "Mean" else n.dy
    return [_to(n, i, share) if n.wants(i) else None for i in range(len(n.inputs))]


@gradient("Max", "Min")
def extremum(n: Site) -> Gradients:
    """To the first of the inputs that is the result."""
    left, gradients = n.dy, list[Value | None]()
    for i in range(len(n.inputs)):
        taken = n.writer.op("Equal", n.input(i), n.y)
        gradients.append(_to(n, i, where(taken, left, 0.0, left)) if n.wants(i) else None)
        if i + 1 < len(n.inputs):
            left = where(taken, 0.0, left, left)
    return gradients
