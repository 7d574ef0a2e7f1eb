"""Quantization: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.graph import Step
from ort_gpu_ep.ir.symbolic import hint, same
from ort_gpu_ep.ir.types import (
    BY_ONNX,
    FLOAT16,
    FLOAT32,
    FLOATS,
    INT8,
    INT16,
    INT32,
    PACKED_INTS,
    UINT8,
    UINT16,
    DType,
    Shape,
    TensorType,
    names,
)
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Strided, kernel, op, result_dtype
from ort_gpu_ep.ops.channels_last import one_scale
from ort_gpu_ep.shaders.composer import literal

BYTES = (UINT8, INT8)
SHORTS = (UINT16, INT16)
CODES = (*BYTES, *SHORTS, INT32, *PACKED_INTS)
NO_BLOCKS: dict[str, Const] = {"BLOCK": 0, "SIZE": 1, "BLOCKS": 1, "INNER": 1}
WORKGROUP_SIZE = 256
"""WebGPU's guaranteed workgroup size."""
MAX_PARTS = 128
"""Parts of a tensor whose ranges are found at the same time: enough to fill a large GPU."""

record("quantize.wgsl", "elementwise")
record("quantize_halves.wgsl", "elementwise")
record("dequantize.wgsl", "elementwise")
record(
    "quantize_range.wgsl",
    "reduction",
    loop_bound=lambda k: ceil_div(k["SIZE"], k.kernel.groups * k.workgroup_size) + k.workgroup_size.bit_length(),
)
record("quantize_parameter.wgsl", "elementwise", loop_bound=lambda k: k["PARTS"])


@op("QuantizeLinear", domain=DOMAIN, dtypes={"T1": FLOATS}, bindings="x scale zp? -> y", channels_last=one_scale)
@op("QuantizeLinear", since=10, dtypes={"T1": FLOATS}, bindings="x scale zp? -> y", channels_last=one_scale)
def quantize_linear(node: BoundNode) -> Kernel:
    """y = saturate(round(x / scale) + zero point), halves to even.

    scale, zero point: a scalar, one per index of `axis`, or (opset 21) one per `block_size` of them. The quotient is
    float32, or float16 (from opset 23 on) with `precision` or a scale of that type.
    """
    _only(node, "scale", node.input(1).dtype, FLOATS)
    asked = node.attr("output_dtype")
    zp = node.optional(2)
    dtype = zp.dtype if zp else result_dtype(asked) if asked else UINT8
    _only(node, "output", dtype, (*BYTES, *SHORTS))
    precision = BY_ONNX.get(node.attr("precision") or (node.input(1).dtype if node.version >= 23 else FLOAT32).onnx)
    if precision not in FLOATS:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"QuantizeLinear with precision {node.attr('precision')}; taken: {names(FLOATS)}"
        )
    index = _scale_index(node)
    if _is_one_step(node):
        halves = node.input(0).dtype is FLOAT16, precision is FLOAT16
        return stepwise(node.input(0).shape, [quantizing("e0", node, 1, 2, dtype, halves=halves)])
    low, high = limits_of(dtype)
    return kernel(
        "quantize_halves.wgsl" if precision is FLOAT16 else "quantize.wgsl",
        [TensorType(dtype, node.input(0).shape)],
        consts={"LOW": low, "HIGH": high, **_blocks(node)},
        indices={"scale_index": index},
    )


@op(
    "DequantizeLinear",
    domain=DOMAIN,
    dtypes={"T1": CODES},
    bindings="x scale zp? -> y",
    epilogue=True,
    channels_last=one_scale,
)
@op(
    "DequantizeLinear",
    since=10,
    dtypes={"T": CODES, "T1": CODES},
    bindings="x scale zp? -> y",
    epilogue=True,
    channels_last=one_scale,
)
def dequantize_linear(node: BoundNode) -> Kernel:
    """y = (x - zero point) * scale; scale and zero point as QuantizeLinear.

    x: of less than 8 bits only as a constant.
    """
    if node.input(0).dtype in PACKED_INTS and not node.input(0).is_constant:
        raise UnsupportedNodeError(Code.DTYPE, f"DequantizeLinear of {node.input(0).type}, which is no constant")
    _only(node, "scale", node.input(1).dtype, FLOATS)
    asked = node.attr("output_dtype")
    dtype = result_dtype(asked) if asked else node.input(1).dtype
    _only(node, "output", dtype, FLOATS)
    index = _scale_index(node)
    if _is_one_step(node) and not node.input(0).is_constant:
        return stepwise(node.input(0).shape, [dequantizing(node, 0, dtype)])
    return kernel(
        "dequantize.wgsl",
        [TensorType(dtype, node.input(0).shape)],
        consts=_blocks(node),
        indices={"scale_index": index},
    )


def _is_one_step(node: BoundNode) -> bool:
    """Whether all elements have the same scale and zero point: the node is an elementwise step then, which fusion takes
    along."""
    rank, zp = node.input(0).rank, node.optional(2)
    return (
        not node.attr("block_size")
        and same(node.input(1).size, 1)
        and node.input(1).rank <= rank
        and (zp is None or zp.rank <= rank)
    )


def stepwise(shape: Shape, steps: Sequence[Step]) -> Kernel:
    """Elementwise steps over inputs of a node, each of them by its position: `e3` is input 3."""
    read = sorted({int(a[1:]) for step in steps for a in step.arguments if a[0] == "e"})
    places = {f"e{k}": f"e{place}" for place, k in enumerate(read)}
    return kernel(
        "elementwise.wgsl",
        [TensorType(steps[-1].dtype, shape)],
        reads={places[f"e{k}"]: k for k in read},
        writes={"y": 0},
        epilogue=[replace(step, arguments=tuple(places.get(a, a) for a in step.arguments)) for step in steps],
    )


def dequantizing(node: BoundNode, x: int, dtype: DType = FLOAT32) -> Step:
    """(x - zero point) * scale, of inputs x, x + 1 (scale) and x + 2 (zero point, may be left out).

    dtype: of the result. As onnxruntime has it, what follows sees float16 rounded.
    """
    arguments = [f"e{x}"]
    zero, scale = _scalar(node, x + 2, arguments), _scalar(node, x + 1, arguments)
    text = f"f32(i32(x) - i32({zero})) * {scale}"
    return Step("DequantizeLinear", f"half_f32({text})" if dtype is FLOAT16 else text, tuple(arguments), dtype)


def byte_decoder(node: BoundNode, x: int, dtype: DType = FLOAT32) -> Kernel:
    """The kernel of one scale for inputs x, x + 1 (scale) and x + 2 (zero point, may be left out), to stand in
    another's shader.

    dtype: of what it makes.
    """
    decoder = kernel(
        "dequantize.wgsl",
        [TensorType(dtype, node.input(x).shape)],
        consts=NO_BLOCKS,
        indices={"scale_index": Strided((1,), (0,))},
        reads={name: x + k for k, name in enumerate(("x", "scale", "zp")) if node.has(x + k)},
        writes={"y": 0},
    )
    return replace(decoder, optionals=(("zp", node.has(x + 2)),))


def quantizing(
    value: str,
    node: BoundNode,
    scale: int,
    zp: int,
    dtype: DType,
    *,
    inside: bool = False,
    halves: tuple[bool, bool] = (False, False),
) -> Step:
    """saturate(round(value / scale) + zero point), halves to even; scale and zero point (may be left out) are inputs of
    the node.

    inside: round(value / scale + zero point), which differs where a half meets an odd zero point: so do ONNX Runtime's
    kernels of QLinear ops, but for those that look a byte up in a table. A driver's own division may be off by an ulp,
    which would turn halves the other way. halves: whether value, and whether the quotient, is rounded to float16.
    """
    arguments = [value]
    number = "half_f32(x)" if any(halves) else "x"
    by = _scalar(node, scale, arguments)
    divided = f"half_f32(divide_f32({number}, half_f32({by})).x)" if halves[1] else f"divide_f32({number}, {by}).x"
    zero = f"f32({_scalar(node, zp, arguments)})"
    rounded = f"round({divided} + {zero})" if inside else f"round({divided}) + {zero}"
    return Step("QuantizeLinear", saturated(rounded, dtype), tuple(arguments), dtype)


def saturated(rounded: str, dtype: DType) -> str:
    """WGSL of a whole number as a byte."""
    low, high = limits_of(dtype)
    return f"{dtype.value}(clamp({rounded}, {low}, {high}))"


def _scalar(node: BoundNode, position: int, arguments: list[str]) -> str:
    """WGSL of an input of one element: its number, where the host knows it (each input is a binding); else a further
    argument."""
    if not node.has(position):
        return "0"
    value = number(node, position)
    if value is not None:
        return literal(value)
    arguments.append(f"e{position}")
    return "xyzw"[len(arguments) - 1]


def number(node: BoundNode, position: int) -> float | None:
    """An input of one element (0 where it is left out), as far as the host knows it."""
    if not node.has(position):
        return 0.0
    value = node.input(position).value
    return None if value is None else float(value.reshape(-1)[0])


def limits_of(dtype: DType) -> tuple[float, float]:
    """The least and the largest number of an integer type of 8 or 16 bits."""
    values = 1 << dtype.bits
    return (-values / 2, values / 2 - 1.0) if dtype in (INT8, INT16) else (0.0, values - 1.0)


def _only(node: BoundNode, what: str, dtype: DType, taken: tuple[DType, ...]) -> None:
    if dtype not in taken:
        raise UnsupportedNodeError(Code.DTYPE, f"{node.op} with {what} {dtype}; taken: {names(taken)}")


def _scale_index(node: BoundNode) -> Strided:
    """Which scale an element of x has. Raises UnsupportedNodeError where shapes or blocks don't fit."""
    x, scale = node.input(0), node.input(1)
    zp = node.optional(2)
    if zp is not None and zp.size != scale.size:
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} with scale {list(scale.shape)} and zero point {list(zp.shape)}"
        )
    block = node.attr("block_size") or 0
    if scale.size == 1 and not block:
        return Strided((x.size,), (0,))
    axis = 1 if node.attr("axis") is None else node.attr("axis")
    axis += x.rank if axis < 0 else 0
    if not 0 <= axis < x.rank:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} along axis {axis} of {list(x.shape)}")
    outer, size, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    if not block and scale.shape == (size,):
        return Strided((outer, size, inner), (0, 1, 0))
    if block and scale.shape == (*x.shape[:axis], ceil_div(size, block), *x.shape[axis + 1 :]):
        return Strided((1,), (0,))  # _blocks says where
    raise UnsupportedNodeError(
        Code.RANK, f"{node.op} of {list(x.shape)} with scale {list(scale.shape)} along axis {axis}, block_size {block}"
    )


def _blocks(node: BoundNode) -> dict[str, Const]:
    """What the shader finds the scale of an element by where there is one for each block: sizes along the axis; BLOCK 0
    without blocks."""
    block, x = node.attr("block_size") or 0, node.input(0)
    if not block or not x.rank:
        return NO_BLOCKS
    axis = node.attr("axis") % x.rank
    return {
        "BLOCK": block,
        "SIZE": x.shape[axis],
        "BLOCKS": ceil_div(x.shape[axis], block),
        "INNER": prod(x.shape[axis + 1 :]),
    }


@op("DynamicQuantizeLinear", since=11, dtypes={"T1": (FLOAT32,)}, bindings="x -> y y_scale y_zp")
def dynamic_quantize_linear(node: BoundNode) -> Lowering:
    """y = saturate(round(x / scale) + zero point), with the scale (max - min) / 255 of x and zero."""
    x = node.input(0)
    parts = max(1, min(MAX_PARTS, -(-hint(x.size) // WORKGROUP_SIZE)))
    ranges = TensorType(FLOAT32, (parts, 2))
    types = (TensorType(UINT8, x.shape), TensorType(FLOAT32, ()), TensorType(UINT8, ()))
    kernels = [
        kernel(
            "quantize_range.wgsl",
            [ranges],
            consts={"SIZE": x.size},
            groups=parts,
            workgroup_size=WORKGROUP_SIZE,
            workgroup_nbytes=8 * WORKGROUP_SIZE,
            reads={"x": 0},
            writes={"range": "range"},
        )
    ]
    targets = [("scale", types[1]), ("zp", types[2]), *((i, types[i]) for i in (1, 2) if node.wants(i))]
    for target, tensor in targets:  # the temporaries again as outputs: a kernel can't read an output
        kernels.append(
            kernel(
                "quantize_parameter.wgsl",
                [tensor],
                consts={"PARTS": parts, "ZERO_POINT": tensor.dtype is UINT8},
                reads={"range": "range"},
                writes={"y": target},
            )
        )
    kernels.append(
        kernel(
            "quantize.wgsl",
            [types[0]],
            consts={"LOW": 0.0, "HIGH": 255.0, **NO_BLOCKS},
            indices={"scale_index": Strided((x.size,), (0,))},
            reads={"x": 0, "scale": "scale", "zp": "zp"},
            writes={"y": 0},
        )
    )
    outputs = tuple(t if node.wants(i) else None for i, t in enumerate(types[: len(node.node.outputs)]))
    return Lowering(outputs, tuple(kernels), (("range", ranges), ("scale", types[1]), ("zp", types[2])))
