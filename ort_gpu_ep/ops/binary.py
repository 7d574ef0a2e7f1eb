"""Elementwise ops of two or three inputs that broadcast against each other."""

from __future__ import annotations

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ops.elementwise import (
    COMPUTABLE,
    FLOATING,
    INTEGERS,
    NUMERIC,
    UNSIGNED,
    Expression,
    by_type,
    common_shape,
    constant,
    elementwise,
)
from ort_gpu_ep.registry import BoundNode
from ort_gpu_ep.shaders.composer import literal
from ort_gpu_ep.types import BOOL, INT32, INT64, UINT32, UINT64, DType

PAIR = "x y -> z"

for _name, _text in {"Add": "x + y", "Sub": "x - y", "Mul": "x * y"}.items():
    elementwise(_name, _text, types=NUMERIC, bindings=PAIR, since=7)
for _name, _text in {"Less": "x < y", "Greater": "x > y", "LessOrEqual": "x <= y", "GreaterOrEqual": "x >= y"}.items():
    elementwise(_name, _text, types=NUMERIC, result=BOOL, bindings=PAIR, since=7)
for _name, _text in {"And": "x && y", "Or": "x || y", "Xor": "x != y"}.items():
    elementwise(_name, _text, types=(BOOL,), bindings=PAIR, since=7)
for _name, _text in {"BitwiseAnd": "x & y", "BitwiseOr": "x | y", "BitwiseXor": "x ^ y"}.items():
    elementwise(_name, _text, types=INTEGERS, bindings=PAIR)
elementwise("Equal", "x == y", types=COMPUTABLE, result=BOOL, bindings=PAIR, since=7)
elementwise("Where", "select(z, y, x)", types={"B": (BOOL,), "T": COMPUTABLE}, result=1, bindings="x y z -> w")
elementwise(
    "PRelu", by_type("select(x, y * x, x < 0.0)", "select(x, y * x, x < T(0))", "x"), bindings=PAIR, since=7, keeps_shape=True,
    types=(*FLOATING, INT32, INT64, UINT32, UINT64))


def bit_shift(node: BoundNode) -> str:
    """`x << y` or `x >> y`; a y outside the number of bits shifts everything out (WGSL would take it modulo that number)."""
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
    dtype, known = node.input(1).dtype, node.input(1).value
    return "y" if dtype in FLOATING or (known is not None and known.all()) else f"divisor_{dtype.value}(y)"


def divide(node: BoundNode) -> Expression:
    """`x / y`, of integers towards zero."""
    dtype, y = node.input(0).dtype, divisor(node)
    return Expression("divide_f32(x, y).x" if dtype in FLOATING else f"x / {y}", dtype, (0, 1), divides=y != "y")


def mod(node: BoundNode) -> Expression:
    """`x mod y` with the sign of y, or of x where fmod is set."""
    y = divisor(node)
    return Expression(_mod_text(node, y), node.input(0).dtype, (0, 1), divides=y != "y")


def _mod_text(node: BoundNode, y: str) -> str:
    dtype, fmod = node.input(0).dtype, node.attr("fmod")
    if dtype in FLOATING:
        if not fmod and node.version < 28:
            raise UnsupportedNodeError(Code.ATTRIBUTE, f"Mod of {dtype} with fmod=0; ONNX defines it from opset 28 on")
        return "fmod_f32(x, y)" if fmod else "mod_f32(x, y)"
    if dtype in UNSIGNED:
        return f"x % {y}"
    noted, rest = (f"(x - x / {by} * y)" for by in (y, "y"))    # not %: Vulkan leaves its result open where an operand is negative
    zero = constant(0, dtype)
    return noted if fmod else f"{noted} + select({zero}, y, {rest} != {zero} && ({rest} ^ y) < {zero})"


def power(node: BoundNode) -> str | Expression:
    """`x^y` in x's element type; an exponent that the host knows becomes part of the text."""
    base, exponent = node.input(0).dtype, node.input(1)
    known = None
    if exponent.value is not None and exponent.size == 1 and common_shape(node, (0, 1)) == node.input(0).shape:
        known = exponent.value.reshape(-1)[0]
    if base in FLOATING:
        if known is not None:
            return Expression(_float_power(float(known)), base, (0,))
        return _power_text(exponent.dtype)
    if exponent.dtype in FLOATING and (known is None or not float(known).is_integer()):
        if known is not None:
            return Expression(f"pow_{base.value}(x, {literal(float(known))})", base, (0,))
        return f"pow_{base.value}(x, y)"
    if known is not None:
        whole = int(known)
        size = abs(whole) if abs(whole) < 1 << 32 else _EVEN | abs(whole) & 1
        return Expression(f"ipow_{base.value}(x, {size}u, {str(whole < 0).lower()})", base, (0,))
    magnitude, negative = ("y", "false") if exponent.dtype in UNSIGNED else ("abs(y)", "y < 0")
    steps = f"u32({magnitude})"
    if exponent.dtype.nbytes == 8:
        steps = f"select({steps}, {_EVEN}u | ({steps} & 1u), {magnitude} > {constant((1 << 32) - 1, exponent.dtype)})"
    return f"ipow_{base.value}(x, {steps}, {negative})"


_EVEN = (1 << 32) - 2
"""Stands for a whole exponent that 32 bits do not hold, but for its parity: it decides on powers of 0, 1 and -1, the others overflow."""


def _float_power(y: float) -> str:
    cheap = {0.0: "1.0", 1.0: "x", 2.0: "x * x", 3.0: "x * x * x", -1.0: "1.0 / x", 0.5: "select(sqrt(x), abs(x), is_inf_f32(x))"}
    return cheap.get(y) or f"pow_f32(x, {literal(y)})"


def _power_text(exponent: DType) -> str:
    """A large whole number may round to an even f32, so its parity is taken before."""
    if exponent in FLOATING:
        return "pow_f32(x, y)"
    return f"pow_parity_f32(x, f32(y), true, (y & {constant(1, exponent)}) != {constant(0, exponent)})"


elementwise("BitShift", bit_shift, types=INTEGERS, bindings=PAIR)
# A driver may divide with an error of 2.5 ULP: enough to turn a half the other way in exported quantisation (seen on NVIDIA).
elementwise("Div", divide, types=NUMERIC, bindings=PAIR, since=7)
elementwise("Mod", mod, types=NUMERIC, bindings=PAIR)
elementwise("Pow", power, types={"T": (*FLOATING, INT32, INT64), "T1": NUMERIC}, bindings=PAIR, since=7)
