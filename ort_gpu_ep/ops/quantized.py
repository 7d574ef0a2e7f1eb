"""ONNX Runtime's ops from bytes to bytes, each with the scales and zero points of what it reads and writes: QLinearAdd
and the like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite, prod
from typing import TypeAlias

import numpy as np

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Step
from ort_gpu_ep.ir.symbolic import hint, same
from ort_gpu_ep.ir.types import FLOAT32, INT8, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, ChannelsLast, Const, Kernel, Lowering, broadcast, kernel, op
from ort_gpu_ep.ops import channels_last
from ort_gpu_ep.ops.axes import axis_of
from ort_gpu_ep.ops.in_place import with_decoder
from ort_gpu_ep.ops.joining import joined_type, packed_concat
from ort_gpu_ep.ops.pool import in_words, pool, word_pool
from ort_gpu_ep.ops.quantize import (
    BYTES,
    byte_decoder,
    dequantizing,
    limits_of,
    number,
    quantizing,
    saturated,
    stepwise,
)
from ort_gpu_ep.ops.softmax import normalized
from ort_gpu_ep.shaders.composer import literal

DOMAIN = "com.microsoft"
Float: TypeAlias = np.float32
TAKEN = {"T": BYTES}
OPERANDS = 3
"""Inputs that stand for a tensor: bytes, scale, zero point."""
WORKGROUP_SIZE = 64
MOST_PLACES = 1 << 23
"""Places whose bytes have a sum that 32 bits hold."""

record(
    "global_average_bytes.wgsl",
    "reduction",
    loop_bound=lambda k: ceil_div(k["PLACES"], k["TEAM"]) + k["TEAM"].bit_length(),
)


def _scalars(node: BoundNode, *positions: int) -> None:
    for position in positions:
        operand = node.optional(position)
        if operand is not None and operand.size != 1:
            raise UnsupportedNodeError(Code.RANK, f"{node.op} with {operand.name!r} {operand.type}; taken: scalars")


PAIR = "a a_scale a_zp? b b_scale b_zp? y_scale y_zp? -> y"
ONE = "x x_scale x_zp? y_scale y_zp? -> y"
SCALARS = (1, 2, 4, 5, 6, 7)
"""Inputs of an op of two tensors of bytes: scale and zero point of a, of b, of y."""


def _binary(node: BoundNode, name: str, expression: str, known: Callable[..., str]) -> Kernel:
    """known: WGSL over the bytes x and y of what is rounded, from the numbers at SCALARS. It follows ONNX Runtime's
    kernels."""
    _scalars(node, *SCALARS)
    a, b = node.input(0), node.input(OPERANDS)
    shape, numbers = broadcast(a.shape, b.shape), [number(node, k) for k in SCALARS]
    if all(n is not None and isfinite(n) for n in numbers) and numbers[4]:
        text = known(*(np.float32(n) for n in numbers if n is not None))
        return stepwise(shape, [Step(node.op, saturated(f"round({text})", a.dtype), ("e0", f"e{OPERANDS}"), a.dtype)])
    steps = [
        dequantizing(node, 0),
        dequantizing(node, OPERANDS),
        Step(name, expression, ("s0", "s1"), FLOAT32),
        quantizing("s2", node, 6, 7, a.dtype, inside=True),
    ]
    return stepwise(shape, steps)


def _sum(a_scale: Float, a_zero: Float, b_scale: Float, b_zero: Float, y_scale: Float, y_zero: Float) -> str:
    """a ra + (b rb + fixed), each + rounded once, and what zero points add in a number of its own: MLAS,
    qladd_avx2.cpp."""
    ra, rb = a_scale / y_scale, b_scale / y_scale
    zeros = np.float32(np.float64(ra) * np.float64(a_zero) + np.float64(rb * b_zero))
    inner = f"fma_of_byte_f32(f32(y), {literal(float(rb))}, {literal(float(y_zero - zeros))})"
    return f"fma_of_byte_f32(f32(x), {literal(float(ra))}, {inner})"


def _product(a_scale: Float, a_zero: Float, b_scale: Float, b_zero: Float, y_scale: Float, y_zero: Float) -> str:
    """The product of integers, times one ratio: MLAS, qlmul.cpp."""
    ratio, zero = literal(float(a_scale * b_scale / y_scale)), literal(float(y_zero))
    return f"f32((i32(x) - ({int(a_zero)})) * (i32(y) - ({int(b_zero)}))) * {ratio} + {zero}"


@op("QLinearAdd", domain=DOMAIN, dtypes=TAKEN, bindings=PAIR, epilogue=True, channels_last=channels_last.elementwise)
@op("QLinearMul", domain=DOMAIN, dtypes=TAKEN, bindings=PAIR, epilogue=True, channels_last=channels_last.elementwise)
def qlinear_pair(node: BoundNode) -> Kernel:
    """y = saturate(round((a + b or a b) / y_scale + y's zero point)) of the numbers that bytes stand for, halves to
    even; broadcast."""
    return _binary(node, "Add", "x + y", _sum) if node.op == "QLinearAdd" else _binary(node, "Mul", "x * y", _product)


@op(
    "QLinearLeakyRelu",
    domain=DOMAIN,
    dtypes=TAKEN,
    bindings=ONE,
    epilogue=True,
    channels_last=channels_last.elementwise,
)
@op("QLinearSigmoid", domain=DOMAIN, dtypes=TAKEN, bindings=ONE, epilogue=True, channels_last=channels_last.elementwise)
def qlinear_unary(node: BoundNode) -> Kernel:
    """y = LeakyRelu(x) or Sigmoid(x), of the numbers that bytes stand for."""
    _scalars(node, 1, 2, 3, 4)
    x, name = node.input(0), node.op.removeprefix("QLinear")
    text = "sigmoid_f32(x)" if name == "Sigmoid" else f"select(x, {literal(node.attr('alpha'))} * x, x < 0.0)"
    steps = [dequantizing(node, 0), Step(name, text, ("s0",), FLOAT32), quantizing("s1", node, 3, 4, x.dtype)]
    return stepwise(x.shape, steps)


def _own_layout(node: BoundNode) -> None:
    if node.attr("channels_last"):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with channels_last; taken: [N, C, spatial...]")


@op(
    "QLinearWhere",
    domain=DOMAIN,
    dtypes=TAKEN,
    bindings="condition x x_scale x_zp y y_scale y_zp z_scale z_zp -> z",
    epilogue=True,
)
def qlinear_where(node: BoundNode) -> Kernel:
    """z = x where the condition holds, else y, of the numbers that bytes stand for."""
    _scalars(node, 2, 3, 5, 6, 7, 8)
    x, y = 1, 1 + OPERANDS
    steps = [
        dequantizing(node, x),
        dequantizing(node, y),
        Step("Where", "select(z, y, x)", ("e0", "s0", "s1"), FLOAT32),
        quantizing("s2", node, 7, 8, node.input(x).dtype),
    ]
    return stepwise(broadcast(*(node.input(i).shape for i in (0, x, y))), steps)


@op("QLinearAveragePool", domain=DOMAIN, dtypes=TAKEN, bindings=ONE, channels_last=channels_last.own(0))
def qlinear_average_pool(node: BoundNode) -> Kernel:
    """y = mean of x under the window, of the numbers that bytes stand for, rounded after y's zero point is added.

    x: [N, C, spatial...], y: [N, C, out...].
    """
    _scalars(node, 1, 2, 3, 4)
    _own_layout(node)
    count_pad = bool(node.attr("count_include_pad"))
    if count_pad and node.attr("ceil_mode"):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op} with count_include_pad and ceil_mode: ONNX Runtime counts what is beyond the padding, too",
        )
    if in_words(node):
        low, high = limits_of(node.input(0).dtype)
        reads = {name: k for k, name in enumerate(("x", "x_scale", "x_zp", "y_scale", "y_zp")) if node.has(k)}
        return word_pool(node, highest=False, count_pad=count_pad, reads=reads, LOW=low, HIGH=high)
    x = node.input(0)
    as_floats = replace(node, inputs=(replace(x, type=TensorType(FLOAT32, x.shape)), *node.inputs[1:]))
    pooled = pool(as_floats, mean=True, count_pad=count_pad, fours=False)
    last = quantizing("v", node, 3, 4, x.dtype, inside=True)
    lowering = with_decoder(pooled, 0, byte_decoder(node, 0), 1)
    plain = lowering.outputs[0]
    return replace(
        lowering,
        outputs=(TensorType(x.dtype, plain.shape),),
        plain=plain,
        epilogue=(last,),
        reads=(*(lowering.reads or ()), *((name, int(name[1:])) for name in last.arguments[1:])),
    )


@op(
    "QLinearGlobalAveragePool",
    domain=DOMAIN,
    dtypes=TAKEN,
    bindings="x x_scale x_zp y_scale y_zp -> y",
    channels_last=channels_last.own(0),
)
def qlinear_global_average_pool(node: BoundNode) -> Kernel:
    """y = mean of x over the spatial axes, of the numbers that bytes stand for. x: [N, C, spatial...], y: [N, C,
    1...]."""
    _scalars(node, 1, 2, 3, 4)
    _own_layout(node)
    x, last = node.input(0), node.node.channels_last
    if not 3 <= x.rank <= 5:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} of rank {x.rank}; taken: 3 to 5")
    axes = range(1, x.rank - 1) if last else range(2, x.rank)
    out = TensorType(x.dtype, tuple(1 if k in axes else size for k, size in enumerate(x.shape)))
    places, channels = prod(x.shape[k] for k in axes), x.shape[-1 if last else 1]
    if hint(places) == 0 or hint(places) >= MOST_PLACES:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} over {hint(places)} places; taken: 1 to {MOST_PLACES - 1}")
    team = next(t for t in (1, 4, 16, 64) if t == WORKGROUP_SIZE or 4 * t >= hint(places))
    words = ceil_div(out.size, 4)
    low, high = limits_of(x.dtype)
    consts: dict[str, Const] = {
        "WORDS": words,
        "SIZE": out.size,
        "CHANNELS": channels,
        "PLACES": places,
        "TEAM": team,
        "LAST": last,
        "SIGNED": x.dtype is INT8,
        "FOURS": last and same(channels % 4, 0),
        "LOW": low,
        "HIGH": high,
    }
    return kernel(
        "global_average_bytes.wgsl",
        [out],
        consts=consts,
        groups=ceil_div(words * team, WORKGROUP_SIZE),
        workgroup_size=WORKGROUP_SIZE,
        workgroup_nbytes=16 * WORKGROUP_SIZE,
        words=("y",),
    )


def _along_channels(node: BoundNode) -> ChannelsLast | None:
    if node.attr("opset") < 13 or node.input(0).rank != 4:
        return None
    return ChannelsLast((0,), attributes={"axis": channels_last.stored(int(node.attr("axis")))})


@op(
    "QLinearSoftmax",
    domain=DOMAIN,
    dtypes=TAKEN,
    bindings="x x_scale x_zp? y_scale y_zp -> y",
    channels_last=_along_channels,
)
def qlinear_softmax(node: BoundNode) -> Lowering:
    """y = saturate(round(Softmax(x) floor(1 / y_scale)) + y's zero point), of the numbers that the bytes of x stand
    for."""
    _scalars(node, 1, 2, 3, 4)
    x, scale, zero = node.input(0), number(node, 3), number(node, 4)
    if not scale or zero is None:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with a y_scale or y_zero_point that a run brings")
    steps = np.floor(np.float32(1) / np.float32(scale))  # as ONNX Runtime's kernel: qlinear_softmax.cc
    last = Step(
        "QuantizeLinear", saturated(f"round(x * {literal(float(steps))}) + {literal(zero)}", x.dtype), ("v",), x.dtype
    )
    out, floats = TensorType(x.dtype, x.shape), TensorType(FLOAT32, x.shape)
    plain = replace(node.node, op="Softmax", domain="", version=node.attr("opset"))
    built = normalized(replace(node, node=plain, inputs=(replace(x, type=floats), *node.inputs[1:])), 0)
    built = with_decoder(
        replace(built, reads=(("x", 0),), writes=(("y", 0),)), 0, byte_decoder(node, 0), 1, weight=False
    )
    if "y" in built.vectors:
        vectors = tuple(name for name in built.vectors if name != "y")
        return Lowering(
            (out,), (replace(built, outputs=(out,), plain=floats, epilogue=(last,), vectors=vectors, words=("y",)),)
        )
    quantized = kernel(
        "elementwise.wgsl", [out], reads={"e0": "floats"}, writes={"y": 0}, epilogue=[replace(last, arguments=("e0",))]
    )
    return Lowering((out,), (replace(built, writes=(("y", "floats"),)), quantized), (("floats", floats),))


def _parts_last(node: BoundNode) -> ChannelsLast | None:
    parts = tuple(range(2, len(node.inputs), OPERANDS))
    if any(node.input(k).rank != 4 for k in parts):
        return None
    return ChannelsLast(parts, attributes={"axis": channels_last.stored(int(node.attr("axis")))})


@op(
    "QLinearConcat",
    domain=DOMAIN,
    dtypes={"T8": BYTES, "TF": (FLOAT32,), "TV": (*BYTES, FLOAT32)},
    bindings="y_scale y_zp inputs... -> y",
    channels_last=_parts_last,
)
def qlinear_concat(node: BoundNode) -> Kernel:
    """y = the inputs, each with its scale and zero point, one after another along `axis`, from their scales and zero
    points to y's."""
    operands = [(node.input(k), k) for k in range(2, len(node.inputs), OPERANDS)]
    scalars = [k for k in range(len(node.inputs)) if k < 2 or k % OPERANDS != 2]
    _scalars(node, *scalars)
    dtype = node.input(1).dtype
    if len(node.inputs) % OPERANDS != 2 or any(o.dtype is not dtype for o, _ in operands):
        raise UnsupportedNodeError(
            Code.DTYPE, f"{node.op} of {', '.join(str(o.type) for o, _ in operands)} to {dtype}; taken: one type"
        )
    whole = joined_type(node, [o for o, _ in operands], dtype)
    axis = axis_of(node, int(node.attr("axis")), whole.rank)
    parts = [(o, k) for o, k in operands if o.size]
    reads: dict[str, int | str] = {f"x{n}": k for n, (_, k) in enumerate(parts)}
    other = [not _alike(node, k) for _, k in parts]
    reads |= {
        f"{name}{n}": k + past for n, (_, k) in enumerate(parts) if other[n] for past, name in ((1, "s"), (2, "z"))
    }
    reads |= {"y_scale": 0, "y_zp": 1} if any(other) else {}
    return packed_concat(whole, axis, [o.shape[axis] for o, _ in parts], reads, 0)


def _alike(node: BoundNode, at: int) -> bool:
    """Whether input `at` has the scale and the zero point of y, as far as the host knows."""
    return all(
        node.input(mine).value is not None
        and node.input(its).value is not None
        and node.input(mine).value == node.input(its).value
        for mine, its in ((0, at + 1), (1, at + 2))
    )
