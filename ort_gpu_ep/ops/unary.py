"""Elementwise ops of one input."""

from __future__ import annotations

import math
from collections.abc import Callable

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.types import BOOL, TensorType
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, kernel, op
from ort_gpu_ep.ops.elementwise import FLOATING, INTEGERS, NUMERIC, REAL, SIGNED, by_type, elementwise
from ort_gpu_ep.shaders.composer import literal


def with_attributes(text: str, *names: str) -> Callable[[BoundNode], str]:
    """A formula with {name} for each of the node's float attributes `names`. Raises UnsupportedNodeError for a factor
    of 0, or infinity: compilers take 0 * x for 0, but it is NaN where x is NaN or infinite.
    """
    factors = [name for name in names if f"{{{name}}} *" in text]

    def formula(node: BoundNode) -> str:
        for name in factors:
            if not node.attr(name) or not math.isfinite(node.attr(name)):
                raise UnsupportedNodeError(
                    Code.ATTRIBUTE, f"{node.op} {name}={node.attr(name)}; taken: finite numbers but 0"
                )
        return text.format(**{name: literal(node.attr(name)) for name in names})

    formula.__doc__ = f"`{text}`"
    return formula


for _name, _text in {
    "Sigmoid": "sigmoid_f32(x)",
    "Tanh": "tanh_f32(x)",
    "Erf": "erf_f32(x)",
    "Softplus": "softplus_f32(x)",
    "Softsign": "x / (1.0 + abs(x))",
    "Mish": "mish_f32(x)",
    "HardSwish": "x * clamp_f32(x / 6.0 + 0.5, 0.0, 1.0)",
    "Sin": "sin_f32(x)",
    "Cos": "cos_f32(x)",
    "Tan": "tan_f32(x)",
    "Asin": "asin_f32(x)",
    "Acos": "acos_f32(x)",
    "Atan": "atan_f32(x)",
    "Sinh": "sinh_f32(x)",
    "Cosh": "cosh_f32(x)",
    "Asinh": "asinh_f32(x)",
    "Acosh": "acosh_f32(x)",
    "Atanh": "atanh_f32(x)",
}.items():
    elementwise(_name, _text)

for _name, _text in {
    "Exp": "exp_f32(x)",
    "Log": "log_f32(x)",
    "Sqrt": "sqrt_f32(x)",
    "Reciprocal": "reciprocal_f32(x)",
    "Floor": "floor(x)",
    "Ceil": "ceil(x)",
    "Round": "round(x)",
}.items():
    elementwise(_name, by_type(_text, ""), types=REAL)

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

elementwise("Abs", by_type("abs(x)", "abs(x)", "x"), types=NUMERIC, pairs=by_type("", "abs_64(x)", "x"))
elementwise("Neg", "-x", types=REAL + SIGNED, pairs="sub_64(vec2<u32>(), x)")
elementwise(
    "Relu",
    by_type("select(max(x, 0.0), x, is_nan_f32(x))", "max(x, T(0))"),
    types=REAL + SIGNED,
    pairs="select(x, vec2<u32>(), (x.y >> 31u) == 1u)",
)
elementwise("Sign", by_type("select(sign(x), x, is_nan_f32(x))", "sign(x)", "min(x, T(1))"), types=NUMERIC)
elementwise("Not", "!x", types=(BOOL,))
elementwise("BitwiseNot", "~x", types=INTEGERS, pairs="~x")
elementwise("IsNaN", by_type("is_nan_f32(x)", ""), types={"T1": REAL}, result=BOOL)


def is_inf(node: BoundNode) -> str:
    """`abs(x) == inf`, or one sign only."""
    positive, negative = node.attr("detect_positive"), node.attr("detect_negative")
    if positive and negative:
        return "is_inf_f32(x)"
    return "x == inf_f32()" if positive else "x == -inf_f32()" if negative else "false"


GELU = "0.5 * x * (1.0 + erf_f32(x * 0.70710678))"
TANH_GELU = "x * sigmoid_f32(1.59576912 * (x + 0.044715 * x * x * x))"
"""`x sigmoid(2 u)` is `x / 2 (1 + tanh u)`."""


def gelu(node: BoundNode) -> str:
    """`x / 2 (1 + erf(x / sqrt 2))`, or its tanh form."""
    approximate = node.attr("approximate")
    if approximate == "none":
        return GELU
    if approximate == "tanh":
        return TANH_GELU
    raise UnsupportedNodeError(Code.ATTRIBUTE, f"Gelu approximate={approximate!r}; taken: 'none', 'tanh'")


elementwise("IsInf", is_inf, types={"T1": FLOATING}, result=BOOL)
elementwise("Gelu", gelu)
elementwise("Gelu", GELU, domain=DOMAIN)
elementwise("BiasGelu", GELU.replace("x", "(x + y)"), domain=DOMAIN, bindings="x bias -> y", keeps_shape=True)
elementwise("QuickGelu", with_attributes("x * sigmoid_f32({alpha} * x)", "alpha"), domain=DOMAIN)


def fast_gelu(node: BoundNode) -> str:
    """The tanh form of Gelu of x, or of x + bias."""
    return TANH_GELU.replace("x", "(x + y)") if node.has(1) else TANH_GELU


elementwise("FastGelu", fast_gelu, domain=DOMAIN, bindings="x bias? -> y", keeps_shape=True)
elementwise("BiasAdd", "x + y + z", domain=DOMAIN, bindings="x bias skip -> y", keeps_shape=True)

record("bias_split_gelu.wgsl", "elementwise")


@op("BiasSplitGelu", domain=DOMAIN, dtypes={"T": FLOATING}, bindings="x bias -> y", epilogue=True)
def bias_split_gelu(node: BoundNode) -> Kernel:
    """y = l * gelu(r), with l and r the halves of the last axis of x + bias. x: [..., 2 D]; bias: [2 D]; y: [...,
    D]."""
    x, bias = node.input(0), node.input(1)
    if not x.rank or bias.shape != x.shape[-1:] or x.shape[-1] % 2:
        raise UnsupportedNodeError(
            Code.RANK, f"BiasSplitGelu of {x.type} with bias {bias.type}; taken: an even last axis and its bias"
        )
    half = x.shape[-1] // 2
    return kernel("bias_split_gelu.wgsl", [TensorType(x.dtype, (*x.shape[:-1], half))], consts={"D": half})
