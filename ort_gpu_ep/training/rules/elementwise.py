"""Ops of one tensor, element by element: dx = dy f'(x), from y where that is cheaper."""

from __future__ import annotations

import math
from collections.abc import Callable

from onnx import helper

from ort_gpu_ep.training.gradient import STOPS, Gradients, Rule, Site, gradient
from ort_gpu_ep.training.writer import Value

STOPS.update(
    (
        "And",
        "ArgMax",
        "ArgMin",
        "BitShift",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "Ceil",
        "ConstantOfShape",
        "Equal",
        "EyeLike",
        "Floor",
        "Greater",
        "GreaterOrEqual",
        "Hardmax",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "NonZero",
        "Not",
        "OneHot",
        "Or",
        "Range",
        "Round",
        "Shape",
        "Sign",
        "Size",
        "Xor",
    )
)


def where(condition: Value, yes: Value | float, no: Value | float, like: Value) -> Value:
    """Where, with numbers as scalars of `like`'s type."""
    return like.writer.op("Where", condition, like.writer.like(yes, like), like.writer.like(no, like))


def compare(op: str, x: Value, bound: float) -> Value:
    return x.writer.op(op, x, x.writer.like(bound, x))


def _gated(n: Site, condition: Value) -> Gradients:
    """dy where a condition holds, else 0."""
    return [where(condition, n.dy, 0.0, n.dy)]


@gradient("Cast", "CastLike")
def cast(n: Site) -> Gradients:
    """Between floats; integers pass no gradient."""
    if not n.x.is_float:
        return []
    return [
        n.writer.op("CastLike", n.dy, n.x) if n.writer.opset >= 15 else n.writer.op("Cast", n.dy, to=_onnx_type(n.x))
    ]


def _onnx_type(value: Value) -> int:
    assert value.dtype is not None
    return int(helper.np_dtype_to_tensor_dtype(value.dtype))


@gradient("Clip")
def clip(n: Site) -> Gradients:
    """Nothing at the bounds, as a ReLU6 that an exporter has written has it."""
    low, high = (n.optional(i) for i in (1, 2))
    inside = [n.writer.op(op, n.x, bound) for op, bound in (("Greater", low), ("Less", high)) if bound is not None]
    if not inside:
        return [n.dy]
    return _gated(n, inside[0] if len(inside) == 1 else n.writer.op("And", *inside))


@gradient("HardSwish")
def hard_swish(n: Site) -> Gradients:
    """0, x / 3 + 1 / 2, 1 below, between and above -3 and 3."""
    slope = where(compare("Greater", n.x, 3.0), 1.0, n.x / 3.0 + 0.5, n.x)
    return [n.dy * where(compare("Less", n.x, -3.0), 0.0, slope, n.x)]


@gradient("Elu", "Celu", "Selu")
def elu(n: Site) -> Gradients:
    """Below 0 the slope is y + alpha (Elu), y / alpha + 1 (Celu), y + alpha gamma (Selu)."""
    alpha, gamma = n.attr("alpha"), n.attr("gamma") if n.node.op_type == "Selu" else 1.0
    slope = n.y / alpha + 1.0 if n.node.op_type == "Celu" else n.y + alpha * gamma
    return [n.dy * where(compare("Greater", n.x, 0.0), gamma, slope, n.x)]


@gradient("Softsign")
def softsign(n: Site) -> Gradients:
    """1 / (1 + |x|)^2 = (1 - |y|)^2."""
    rest = 1.0 - n.writer.op("Abs", n.y)
    return [n.dy * rest * rest]


def _gelu(n: Site) -> Value:
    """Exact: Phi(x) + x phi(x). The tanh form by its own derivative."""
    if n.attr("approximate") == "tanh":
        root = math.sqrt(2.0 / math.pi)
        t = n.writer.op("Tanh", (n.x + n.x * n.x * n.x * 0.044715) * root)
        return (1.0 + t) * 0.5 + n.x * (1.0 - t * t) * (1.0 + n.x * n.x * (3 * 0.044715)) * (0.5 * root)
    phi = n.writer.op("Exp", n.x * n.x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return (n.writer.op("Erf", n.x * math.sqrt(0.5)) + 1.0) * 0.5 + n.x * phi


def _mish(n: Site) -> Value:
    """t + x sigmoid(x) (1 - t^2) with t = tanh(softplus(x))."""
    t = n.writer.op("Tanh", n.writer.op("Softplus", n.x))
    return t + n.x * n.writer.op("Sigmoid", n.x) * (1.0 - t * t)


def _swish(n: Site) -> Value:
    alpha = float(n.attr("alpha"))
    s = n.writer.op("Sigmoid", n.x * alpha)
    return s + n.x * alpha * s * (1.0 - s)


@gradient("HardSigmoid")
def hard_sigmoid(n: Site) -> Gradients:
    inside = n.writer.op("And", compare("Greater", n.y, 0.0), compare("Less", n.y, 1.0))
    return [where(inside, n.dy * n.attr("alpha"), 0.0, n.dy)]


@gradient("CumSum")
def cumsum(n: Site) -> Gradients:
    """The sum from the other end."""
    return [n.writer.op("CumSum", n.dy, n.input(1), exclusive=n.attr("exclusive"), reverse=1 - n.attr("reverse"))]


@gradient("Trilu")
def trilu(n: Site) -> Gradients:
    inputs = [v for v in (n.dy, n.optional(1)) if v is not None]
    return [n.writer.op("Trilu", *inputs, upper=n.attr("upper"))]


_SLOPES: dict[str, Callable[[Site], Value]] = {
    "Abs": lambda n: n.writer.op("Sign", n.x),
    "Acos": lambda n: -1.0 / n.writer.op("Sqrt", 1.0 - n.x * n.x),
    "Acosh": lambda n: 1.0 / n.writer.op("Sqrt", n.x * n.x - 1.0),
    "Asin": lambda n: 1.0 / n.writer.op("Sqrt", 1.0 - n.x * n.x),
    "Asinh": lambda n: 1.0 / n.writer.op("Sqrt", n.x * n.x + 1.0),
    "Atan": lambda n: 1.0 / (1.0 + n.x * n.x),
    "Atanh": lambda n: 1.0 / (1.0 - n.x * n.x),
    "Cos": lambda n: -n.writer.op("Sin", n.x),
    "Cosh": lambda n: n.writer.op("Sinh", n.x),
    "Erf": lambda n: n.writer.op("Exp", -(n.x * n.x)) * (2.0 / math.sqrt(math.pi)),
    "Exp": lambda n: n.y,
    "Gelu": _gelu,
    "Mish": _mish,
    "Reciprocal": lambda n: -(n.y * n.y),
    "Sigmoid": lambda n: n.y * (1.0 - n.y),
    "Sin": lambda n: n.writer.op("Cos", n.x),
    "Sinh": lambda n: n.writer.op("Cosh", n.x),
    "Softplus": lambda n: n.writer.op("Sigmoid", n.x),
    "Swish": _swish,
    "Tan": lambda n: 1.0 + n.y * n.y,
    "Tanh": lambda n: 1.0 - n.y * n.y,
}
"""f'(x) of an op."""

_RULES: dict[str, Rule] = {
    "Dropout": lambda n: [n.dy],  # only where the step leaves it as it is: then it passes everything
    "Identity": lambda n: [n.dy],
    "LeakyRelu": lambda n: [where(compare("Less", n.x, 0.0), n.dy * n.attr("alpha"), n.dy, n.dy)],
    "Log": lambda n: [n.dy / n.x],
    "Neg": lambda n: [-n.dy],
    "Relu": lambda n: _gated(n, compare("Greater", n.y, 0.0)),
    "Shrink": lambda n: _gated(n, compare("Greater", n.writer.op("Abs", n.x), n.attr("lambd"))),
    "Sqrt": lambda n: [n.dy * 0.5 / n.y],
    "ThresholdedRelu": lambda n: _gated(n, compare("Greater", n.x, n.attr("alpha"))),
    **{op: lambda n, slope=slope: [n.dy * slope(n)] for op, slope in _SLOPES.items()},  # type: ignore[misc]
}
"""The rules of one expression."""

for _op, _rule in _RULES.items():
    gradient(_op)(_rule)
