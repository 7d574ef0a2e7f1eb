"""Elementwise ops: makes a kernel from one WGSL expression. The ops are in unary, binary, variadic and cast; fusion
makes chains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Step
from ort_gpu_ep.ir.types import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
    Shape,
    TensorType,
)
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, broadcast, kernel, op
from ort_gpu_ep.ops import channels_last
from ort_gpu_ep.shaders.composer import literal, literal_f64

FLOATING = (FLOAT32, FLOAT16)
SIGNED = (INT32, INT64, INT8, INT16)
UNSIGNED = (UINT32, UINT64, UINT8, UINT16)
INTEGERS = SIGNED + UNSIGNED
REAL = (*FLOATING, FLOAT64)
NUMERIC = REAL + INTEGERS
COMPUTABLE = (*NUMERIC, BOOL)
"""Every element type that WGSL calculates with (float16 as f32, integers of 8 and 16 bits as 32)."""

record("elementwise.wgsl", "elementwise", pairs=True)


class Expression(NamedTuple):
    """An elementwise op as WGSL. text: over x, y, z, w; dtype: of the result; inputs: the node's input that each of x,
    y, z, w is.

    Inputs that are not listed are part of the text (Clip's constant bounds) or don't matter (CastLike's second).
    divides: as graph.Step has it.
    """

    text: str
    dtype: DType
    inputs: tuple[int, ...]
    divides: bool = False


Formula: TypeAlias = str | Callable[[BoundNode], str | Expression]


def elementwise(
    name: str,
    formula: Formula,
    *,
    types: Sequence[DType] | Mapping[str, Sequence[DType]] = FLOATING,
    result: DType | int = 0,
    bindings: str = "x -> y",
    since: int = 1,
    keeps_shape: bool = False,
    domain: str = "",
    pairs: Formula = "",
) -> None:
    """Adds a row whose kernel is one expression over its inputs x, y, z, w, broadcast against each other.

    formula: WGSL, or a function of the node that gives WGSL over all its inputs or a whole Expression. types: element
    types taken, of `T` or by type parameter of the schema. result: the output's element type, or the input that has it.
    keeps_shape: input 0 has the output's shape; the others broadcast to it. since: oldest since-version taken. pairs:
    the formula for 64-bit integers that are pairs of words (see `paired`); without one such a node is declined.
    """

    def build(node: BoundNode) -> Kernel:
        expression = paired(node, pairs) if in_pairs(node) else formula if isinstance(formula, str) else formula(node)
        if isinstance(expression, str):
            dtype = result if isinstance(result, DType) else node.input(result).dtype
            expression = Expression(expression, dtype, tuple(i for i in range(len(node.inputs)) if node.has(i)))
        out = TensorType(expression.dtype, common_shape(node, expression.inputs))
        if keeps_shape and out.shape != node.input(0).shape:
            raise UnsupportedNodeError(
                Code.RANK, f"{name} of {node.input(0).type}: another input makes it {list(out.shape)}"
            )
        operands = {f"e{k}": i for k, i in enumerate(expression.inputs)}
        step = Step(
            name, wrapped(expression.text, expression.dtype), tuple(operands), expression.dtype, expression.divides
        )
        return kernel("elementwise.wgsl", [out], reads=operands, writes={"y": 0}, epilogue=[step])

    build.__doc__ = f"`{formula}`" if isinstance(formula, str) else formula.__doc__
    taken = types if isinstance(types, Mapping) else {"T": types}
    op(name, since=since, domain=domain, dtypes=taken, bindings=bindings, channels_last=channels_last.elementwise)(
        build
    )


def in_pairs(node: BoundNode) -> bool:
    """Whether the node reads 64-bit integers, and they are pairs of words on its adapter."""
    return not node.target.limits.int64 and any(o.dtype.is_wide_integer for o in node.given())


def paired(node: BoundNode, formula: Formula) -> str | Expression:
    """A formula over pairs of words, the lower one first: `less_T` becomes the comparison of signed or of unsigned
    ones.

    Raises: UnsupportedNodeError, where there is none.
    """
    if not formula:
        raise UnsupportedNodeError(
            Code.DTYPE, f"{node.op} of 64-bit integers needs the adapter feature {INT64.feature}"
        )
    expression = formula if isinstance(formula, str) else formula(node)
    less = "less_signed_64" if any(o.dtype is INT64 for o in node.given()) else "less_64"
    return expression.replace("less_T(", f"{less}(") if isinstance(expression, str) else expression


def common_shape(node: BoundNode, inputs: Sequence[int]) -> Shape:
    """The common shape of some inputs."""
    return broadcast(*(node.input(i).shape for i in inputs))


def by_type(floating: str, signed: str, unsigned: str = "") -> Callable[[BoundNode], str]:
    """A formula that depends on the element type of input 0; T stands for the WGSL type. `unsigned` defaults to
    `signed`. For float64, the functions of the library have another ending.
    """

    def formula(node: BoundNode) -> str:
        value = node.input(0).dtype.value
        text = {"f": floating, "u": unsigned or signed}.get(value[0], signed)
        return text.replace("T(", f"{value}(").replace("_f32(", f"_{value}(" if value[0] == "f" else "_f32(")

    formula.__doc__ = f"`{floating}`"
    return formula


def wrapped(text: str, dtype: DType) -> str:
    """Smaller integers are calculated in 32 bits: an expression's result goes back into their range, as two's
    complement does it."""
    return f"extractBits({text}, 0u, {dtype.bits}u)" if dtype.bits < 32 and dtype in INTEGERS else text


_SUFFIX = {"i32": "i", "u32": "u", "i64": "li", "u64": "lu"}


def constant(value: object, dtype: DType, pairs: bool = False) -> str:
    """A WGSL literal of `dtype`'s value type. pairs: a 64-bit integer as its two words."""
    if dtype.value == "f32":
        return literal(float(value))  # type: ignore[arg-type]
    if dtype.value == "f64":
        return literal_f64(float(value))  # type: ignore[arg-type]
    number, suffix = int(value), _SUFFIX[dtype.value]  # type: ignore[call-overload]
    if pairs and dtype.is_wide_integer:
        return f"vec2<u32>({number & 0xFFFFFFFF}u, {number >> 32 & 0xFFFFFFFF}u)"
    if number in (-(1 << 31), -(1 << 63)):  # its magnitude is no literal
        return f"({number + 1}{suffix} - 1{suffix})"
    return f"{number}{suffix}" if number >= 0 else f"({number}{suffix})"


@op(
    "Elementwise",
    domain="ort_gpu_ep",
    dtypes={},
    bindings="-> y",
    epilogue=True,
    channels_last=channels_last.elementwise,
)
def chain(node: BoundNode) -> Kernel:
    """Several elementwise ops in one kernel: all arithmetic is in the node's steps.

    y: the broadcast shape of the operands.
    """
    shape = broadcast(*(o.shape for o in node.operands))
    return kernel("elementwise.wgsl", [TensorType(node.operands[0].dtype, shape)], writes={"y": 0})
