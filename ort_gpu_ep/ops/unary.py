"""Elementwise ops of one input."""

from __future__ import annotations

import math
from collections.abc import Callable

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ops.elementwise import FLOATING, INTEGERS, NUMERIC, SIGNED, by_type, elementwise
from ort_gpu_ep.registry import BoundNode
from ort_gpu_ep.shaders.composer import literal
from ort_gpu_ep.types import BOOL


def with_attributes(text: str, *names: str) -> Callable[[BoundNode], str]:
    """A formula with {name} for each of the node's float attributes `names`. Raises UnsupportedNodeError for a factor of 0, or infinity:
    compilers take 0 * x for 0, but it is NaN where x is NaN or infinite.
    """
    factors = [name for name in names if f"{{{name}}} *" in text]

    def formula(node: BoundNode) -> str:
        for name in factors:
            if not node.attr(name) or not math.isfinite(node.attr(name)):
                raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} {name}={node.attr(name)}; taken: finite numbers but 0")
        return text.format(**{name: literal(node.attr(name)) for name in names})

    formula.__doc__ = f"`{text}`"
    return formula


for _name, _text in {
    "Sigmoid": "sigmoid_f32(x)", "Tanh": "tanh_f32(x)", "Exp": "exp_f32(x)", "Log": "log_f32(x)", "Sqrt": "sqrt(x)",
    "Reciprocal": "1.0 / x", "Floor": "floor(x)", "Ceil": "ceil(x)", "Round": "round(x)", "Erf": "erf_f32(x)",
    "Softplus": "softplus_f32(x)", "Softsign": "x / (1.0 + abs(x))", "Mish": "mish_f32(x)",
    "HardSwish": "x * clamp_f32(x / 6.0 + 0.5, 0.0, 1.0)",
    "Sin": "sin_f32(x)", "Cos": "cos_f32(x)", "Tan": "tan_f32(x)", "Asin": "asin_f32(x)", "Acos": "acos_f32(x)",
    "Atan": "atan_f32(x)", "Sinh": "sinh_f32(x)", "Cosh": "cosh_f32(x)", "Asinh": "asinh_f32(x)", "Acosh": "acosh_f32(x)",
    "Atanh": "atanh_f32(x)",
}.items():
    elementwise(_name, _text)

for _name, _text, _attributes in (
    ("LeakyRelu", "select(x, {alpha} * x, x < 0.0)", ("alpha",)),
    ("Elu", "select(x, {alpha} * expm1_f32(x), !(x >= 0.0))", ("alpha",)),
    ("Selu", "{gamma} * select(x, {alpha} * expm1_f32(x), !(x > 0.0))", ("alpha", "gamma")),
    ("Celu", "select(x, {alpha} * expm1_f32(x / {alpha}), !(x > 0.0))", ("alpha",)),
    ("ThresholdedRelu", "select(0.0, x, x > {alpha})", ("alpha",)),
    ("HardSigmoid", "clamp_f32({alpha} * x + {beta}, 0.0, 1.0)", ("alpha", "beta")),
    ("Swish", "x * sigmoid_f32({alpha} * x)", ("alpha",)),
    ("Shrink", "select(select(0.0, x - {bias}, x > {lambd}), x + {bias}, x < -{lambd})", ("bias", "lambd")),
):
    elementwise(_name, with_attributes(_text, *_attributes))

elementwise("Abs", by_type("abs(x)", "abs(x)", "x"), types=NUMERIC)
elementwise("Neg", "-x", types=FLOATING + SIGNED)
elementwise("Relu", by_type("select(max(x, 0.0), x, is_nan_f32(x))", "max(x, T(0))"), types=FLOATING + SIGNED)
elementwise("Sign", by_type("select(sign(x), x, is_nan_f32(x))", "sign(x)", "min(x, T(1))"), types=NUMERIC)
elementwise("Not", "!x", types=(BOOL,))
elementwise("BitwiseNot", "~x", types=INTEGERS)
elementwise("IsNaN", "is_nan_f32(x)", types={"T1": FLOATING}, result=BOOL)


def is_inf(node: BoundNode) -> str:
    """`abs(x) == inf`, or one sign only."""
    positive, negative = node.attr("detect_positive"), node.attr("detect_negative")
    if positive and negative:
        return "is_inf_f32(x)"
    return "x == inf_f32()" if positive else "x == -inf_f32()" if negative else "false"


def gelu(node: BoundNode) -> str:
    """`x / 2 (1 + erf(x / sqrt 2))`; the tanh form as `x sigmoid(2 u)`, which is `x / 2 (1 + tanh u)`."""
    approximate = node.attr("approximate")
    if approximate == "none":
        return "0.5 * x * (1.0 + erf_f32(x * 0.70710678))"
    if approximate == "tanh":
        return "x * sigmoid_f32(1.59576912 * (x + 0.044715 * x * x * x))"
    raise UnsupportedNodeError(Code.ATTRIBUTE, f"Gelu approximate={approximate!r}; taken: 'none', 'tanh'")


elementwise("IsInf", is_inf, types={"T1": FLOATING}, result=BOOL)
elementwise("Gelu", gelu)
