"""Elementwise ops of two or three inputs that broadcast against each other."""

from __future__ import annotations

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.types import BOOL, INT32, INT64, UINT32, UINT64, DType
from ort_gpu_ep.kernels.registry import BoundNode
from ort_gpu_ep.ops.elementwise import (
    COMPUTABLE,
    FLOATING,
    INTEGERS,
    NUMERIC,
    REAL,
    UNSIGNED,
    Expression,
    by_type,
    common_shape,
    constant,
    elementwise,
    in_pairs,
    paired,
)
from ort_gpu_ep.shaders.composer import literal

PAIR = "x y -> z"

for _name, _text, _pairs in (
    ("Add", "x + y", "add_64(x, y)"),
    ("Sub", "x - y", "sub_64(x, y)"),
    ("Mul", "x * y", "mul_64(x, y)"),
):
    elementwise(_name, _text, types=NUMERIC, bindings=PAIR, since=7, pairs=_pairs)
for _name, _text, _pairs in (
    ("Less", "x < y", "less_T(x, y)"),
    ("Greater", "x > y", "less_T(y, x)"),
    ("LessOrEqual", "x <= y", "!less_T(y, x)"),
    ("GreaterOrEqual", "x >= y", "!less_T(x, y)"),
):
    elementwise(_name, _text, types=NUMERIC, result=BOOL, bindings=PAIR, since=7, pairs=_pairs)
for _name, _text in {"And": "x && y", "Or": "x || y", "Xor": "x != y"}.items():
    elementwise(_name, _text, types=(BOOL,), bindings=PAIR, since=7)
for _name, _text in {"BitwiseAnd": "x & y", "BitwiseOr": "x | y", "BitwiseXor": "x ^ y"}.items():
    elementwise(_name, _text, types=INTEGERS, bindings=PAIR, pairs=_text)
elementwise("Equal", "x == y", types=COMPUTABLE, result=BOOL, bindings=PAIR, since=7, pairs="all(x == y)")
elementwise(
    "Where",
    "select(z, y, x)",
    types={"B": (BOOL,), "T": COMPUTABLE},
    result=1,
    bindings="x y z -> w",
    pairs="select(z, y, x)",
)
elementwise(
    "PRelu",
    by_type("select(x, y * x, x < 0.0)", "select(x, y * x, x < T(0))", "x"),
    bindings=PAIR,
    since=7,
    keeps_shape=True,
    types=(*FLOATING, INT32, INT64, UINT32, UINT64),
)


def bit_shift(node: BoundNode) -> str:
    """`x << y` or `x >> y`; a y outside the number of bits shifts everything out (WGSL would take it modulo that
    number)."""
    dtype, direction = node.input(0).dtype, node.attr("direction")
    zero, width = constant(0, dtype), 8 * dtype.nbytes
    outside = f"y < {zero} || y >= {constant(width, dtype)}"
    if direction == "LEFT":
        return f"select(x << u32(y), {zero}, {outside})"
    if direction != "RIGHT":
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"BitShift direction={direction!r}; taken: 'LEFT', 'RIGHT'")
    if dtype in UNSIGNED:
        return f"select(x >> u32(y), {zero}, {outside})"
    return f"x >> select(u32(y), {width - 1}u, {outside})"


def divisor(node: BoundNode) -> str:
    """`y`; where a run may bring an integer y of 0, that is noted."""
    dtype, constant = node.input(1).dtype, node.input(1).value
    if dtype in REAL or (constant is not None and constant.all()):
        return "y"
    return "divisor_64(y)" if in_pairs(node) else f"divisor_{dtype.value}(y)"


def divide(node: BoundNode) -> Expression:
    """`x / y`, of integers towards zero."""
    dtype, y = node.input(0).dtype, divisor(node)
    text = "divide_f32(x, y).x" if dtype in FLOATING else f"x / {y}"  # drivers divide float64 as IEEE 754 has it
    if in_pairs(node):
        text = f"divide{'' if dtype in UNSIGNED else '_signed'}_64(x, {y})"
    return Expression(text, dtype, (0, 1), divides=y != "y")


def mod(node: BoundNode) -> Expression:
    """`x mod y` with the sign of y, or of x where fmod is set."""
    y = divisor(node)
    return Expression(_mod_text(node, y), node.input(0).dtype, (0, 1), divides=y != "y")


def _mod_text(node: BoundNode, y: str) -> str:
    dtype, fmod = node.input(0).dtype, node.attr("fmod")
    if dtype in REAL:
        if not fmod and node.version < 28:
            raise UnsupportedNodeError(Code.ATTRIBUTE, f"Mod of {dtype} with fmod=0; ONNX defines it from opset 28 on")
        return f"{'fmod' if fmod else 'mod'}_{dtype.value}(x, y)"
    if in_pairs(node):
        return (
            f"sub_64(x, mul_64(divide_64(x, {y}), y))"
            if dtype in UNSIGNED
            else f"rest_signed_64(x, {y}, {str(not fmod).lower()})"
        )
    if dtype in UNSIGNED:
        return f"x % {y}"
    # not %: Vulkan leaves its result open where an operand is negative
    noted, rest = (f"(x - x / {by} * y)" for by in (y, "y"))
    zero = constant(0, dtype)
    return noted if fmod else f"{noted} + select({zero}, y, {rest} != {zero} && ({rest} ^ y) < {zero})"


def power_in_pairs(node: BoundNode) -> str | Expression:
    """`power` where the exponent is part of the text, and the base no 64-bit integer."""
    formula = power(node)
    if node.input(0).dtype in FLOATING and isinstance(formula, Expression):
        return formula
    return paired(node, "")


def power(node: BoundNode) -> str | Expression:
    """`x^y` in x's element type; an exponent that the host knows becomes part of the text."""
    base, exponent = node.input(0).dtype, node.input(1)
    number = None
    if exponent.value is not None and exponent.size == 1 and common_shape(node, (0, 1)) == node.input(0).shape:
        number = exponent.value.reshape(-1)[0]
    if base in FLOATING:
        if number is not None:
            return Expression(_float_power(float(number)), base, (0,))
        return _power_text(exponent.dtype)
    if exponent.dtype in FLOATING and (number is None or not float(number).is_integer()):
        if number is not None:
            return Expression(f"pow_{base.value}(x, {literal(float(number))})", base, (0,))
        return f"pow_{base.value}(x, y)"
    if number is not None:
        whole = int(number)
        size = abs(whole) if abs(whole) < 1 << 32 else _EVEN | abs(whole) & 1
        return Expression(f"ipow_{base.value}(x, {size}u, {str(whole < 0).lower()})", base, (0,))
    magnitude, negative = ("y", "false") if exponent.dtype in UNSIGNED else ("abs(y)", "y < 0")
    steps = f"u32({magnitude})"
    if exponent.dtype.nbytes == 8:
        steps = f"select({steps}, {_EVEN}u | ({steps} & 1u), {magnitude} > {constant((1 << 32) - 1, exponent.dtype)})"
    return f"ipow_{base.value}(x, {steps}, {negative})"


_EVEN = (1 << 32) - 2
"""Stands for a whole exponent that 32 bits do not hold, but for its parity: it decides on powers of 0, 1 and -1, the
others overflow."""


def _float_power(y: float) -> str:
    cheap = {
        0.0: "1.0",
        1.0: "x",
        2.0: "x * x",
        3.0: "x * x * x",
        -1.0: "reciprocal_f32(x)",
        0.5: "select(sqrt_f32(x), abs(x), is_inf_f32(x))",
    }
    return cheap.get(y) or f"pow_f32(x, {literal(y)})"


def _power_text(exponent: DType) -> str:
    """A large whole number may round to an even f32, so its parity is taken before."""
    if exponent in FLOATING:
        return "pow_f32(x, y)"
    return f"pow_parity_f32(x, f32(y), true, (y & {constant(1, exponent)}) != {constant(0, exponent)})"


elementwise("BitShift", bit_shift, types=INTEGERS, bindings=PAIR)
# A driver may divide with an error of 2.5 ULP: enough to turn a half the other way in exported quantisation (seen on
# NVIDIA).
elementwise("Div", divide, types=NUMERIC, bindings=PAIR, since=7, pairs=divide)
elementwise("Mod", mod, types=NUMERIC, bindings=PAIR, pairs=mod)
elementwise(
    "Pow",
    power,
    types={"T": (*FLOATING, INT32, INT64), "T1": FLOATING + INTEGERS},
    bindings=PAIR,
    since=7,
    pairs=power_in_pairs,
)


def swiglu(node: BoundNode) -> str:
    """`x sigmoid(alpha x) y`."""
    if node.input(0).shape != node.input(1).shape:
        raise UnsupportedNodeError(
            Code.RANK, f"SwiGLU of {node.input(0).type} and {node.input(1).type}; expected the same shape"
        )
    return f"x * sigmoid_f32({literal(node.attr('alpha'))} * x) * y"


elementwise("SwiGLU", swiglu, bindings="x y -> z", since=28)


def clamped_swiglu(node: BoundNode) -> str:
    """`x sigmoid(alpha x) (y + beta)`, with x and y kept within `limit` where that is positive."""
    if not node.has(1) or node.attr("round_activation") or node.input(0).shape != node.input(1).shape:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, "SwiGLU of two halves in one input, of other shapes, or with round_activation"
        )
    alpha, beta, limit = (literal(float(node.attr(name))) for name in ("activation_alpha", "activation_beta", "limit"))
    x, y = (f"min(x, {limit})", f"clamp(y, -{limit}, {limit})") if node.attr("limit") > 0 else ("x", "y")
    return f"{x} * sigmoid_f32({alpha} * {x}) * ({y} + {beta})"


elementwise("SwiGLU", clamped_swiglu, bindings="x up? -> z", domain=DOMAIN)
