"""Quantization: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

from math import prod

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.kernels import ceil_div, record
from ort_gpu_ep.ops.channels_last import one_scale
from ort_gpu_ep.registry import BoundNode, Const, Kernel, Lowering, Strided, kernel, op, result_dtype
from ort_gpu_ep.symbolic import hint
from ort_gpu_ep.types import FLOAT32, INT8, INT32, PACKED_INTS, UINT8, DType, TensorType, names

BYTES = (UINT8, INT8)
CODES = (*BYTES, INT32, *PACKED_INTS)
NO_BLOCKS: dict[str, Const] = {"BLOCK": 0, "SIZE": 1, "BLOCKS": 1, "INNER": 1}
WORKGROUP_SIZE = 256
"""WebGPU's guaranteed workgroup size."""
MAX_PARTS = 128
"""Parts of a tensor whose ranges are found at the same time: enough to fill a large GPU."""

record("quantize.wgsl", "elementwise")
record("dequantize.wgsl", "elementwise")
record(
    "quantize_range.wgsl", "reduction",
    loop_bound=lambda k: ceil_div(k["SIZE"], k.kernel.groups * k.workgroup_size) + k.workgroup_size.bit_length())
record("quantize_parameter.wgsl", "elementwise", loop_bound=lambda k: k["PARTS"])


@op("QuantizeLinear", since=10, dtypes={"T1": (FLOAT32,)}, bindings="x scale zp? -> y", channels_last=one_scale)
def quantize_linear(node: BoundNode) -> Kernel:
    """y = saturate(round(x / scale) + zero point), halves to even.

    scale, zero point: a scalar, one per index of `axis`, or (opset 21) one per `block_size` of them.
    """
    _only(node, "scale", node.input(1).dtype, (FLOAT32,))
    asked = node.attr("output_dtype")
    zp = node.optional(2)
    dtype = zp.dtype if zp else result_dtype(asked) if asked else UINT8
    _only(node, "output", dtype, BYTES)
    if node.attr("precision") not in (None, 0, FLOAT32.onnx):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"QuantizeLinear with precision {node.attr('precision')}; taken: float32")
    low = -128.0 if dtype is INT8 else 0.0
    return kernel(
        "quantize.wgsl", [TensorType(dtype, node.input(0).shape)], consts={"LOW": low, "HIGH": low + 255.0, **_blocks(node)},
        indices={"scale_index": _scale_index(node)})


@op("DequantizeLinear", since=10, dtypes={"T": CODES, "T1": CODES}, bindings="x scale zp? -> y", epilogue=True, channels_last=one_scale)
def dequantize_linear(node: BoundNode) -> Kernel:
    """y = (x - zero point) * scale; scale and zero point as QuantizeLinear.

    x: of less than 8 bits only as a constant.
    """
    if node.input(0).dtype in PACKED_INTS and not node.input(0).is_constant:
        raise UnsupportedNodeError(Code.DTYPE, f"DequantizeLinear of {node.input(0).type}, which is no constant")
    _only(node, "scale", node.input(1).dtype, (FLOAT32,))
    if node.attr("output_dtype"):
        _only(node, "output", result_dtype(node.attr("output_dtype")), (FLOAT32,))
    return kernel(
        "dequantize.wgsl", [TensorType(FLOAT32, node.input(0).shape)], consts=_blocks(node), indices={"scale_index": _scale_index(node)})


def _only(node: BoundNode, what: str, dtype: DType, taken: tuple[DType, ...]) -> None:
    if dtype not in taken:
        raise UnsupportedNodeError(Code.DTYPE, f"{node.op} with {what} {dtype}; taken: {names(taken)}")


def _scale_index(node: BoundNode) -> Strided:
    """Which scale an element of x has. Raises UnsupportedNodeError where shapes or blocks don't fit."""
    x, scale = node.input(0), node.input(1)
    zp = node.optional(2)
    if zp is not None and zp.size != scale.size:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} with scale {list(scale.shape)} and zero point {list(zp.shape)}")
    block = node.attr("block_size") or 0
    if scale.size == 1 and not block:
        return Strided((x.size,), (0,))
    axis = 1 if node.attr("axis") is None else node.attr("axis")
    axis += x.rank if axis < 0 else 0
    if not 0 <= axis < x.rank:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} along axis {axis} of {list(x.shape)}")
    outer, size, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1:])
    if not block and scale.shape == (size,):
        return Strided((outer, size, inner), (0, 1, 0))
    if block and scale.shape == (*x.shape[:axis], ceil_div(size, block), *x.shape[axis + 1:]):
        return Strided((1,), (0,))      # _blocks says where
    raise UnsupportedNodeError(
        Code.RANK, f"{node.op} of {list(x.shape)} with scale {list(scale.shape)} along axis {axis}, block_size {block}")


def _blocks(node: BoundNode) -> dict[str, Const]:
    """What the shader finds the scale of an element by where there is one for each block: sizes along the axis; BLOCK 0 without blocks."""
    block, x = node.attr("block_size") or 0, node.input(0)
    if not block or not x.rank:
        return NO_BLOCKS
    axis = node.attr("axis") % x.rank
    return {"BLOCK": block, "SIZE": x.shape[axis], "BLOCKS": ceil_div(x.shape[axis], block), "INNER": prod(x.shape[axis + 1:])}


@op("DynamicQuantizeLinear", since=11, dtypes={"T1": (FLOAT32,)}, bindings="x -> y y_scale y_zp")
def dynamic_quantize_linear(node: BoundNode) -> Lowering:
    """y = saturate(round(x / scale) + zero point), with the scale (max - min) / 255 of x and zero."""
    x = node.input(0)
    parts = max(1, min(MAX_PARTS, -(-hint(x.size) // WORKGROUP_SIZE)))
    ranges = TensorType(FLOAT32, (parts, 2))
    types = (TensorType(UINT8, x.shape), TensorType(FLOAT32, ()), TensorType(UINT8, ()))
    kernels = [kernel(
        "quantize_range.wgsl", [ranges], consts={"SIZE": x.size}, groups=parts, workgroup_size=WORKGROUP_SIZE,
        workgroup_nbytes=8 * WORKGROUP_SIZE, reads={"x": 0}, writes={"range": "range"})]
    targets = [("scale", types[1]), ("zp", types[2]), *((i, types[i]) for i in (1, 2) if node.wants(i))]
    for target, tensor in targets:   # the temporaries again as outputs: a kernel can't read an output
        kernels.append(kernel(
            "quantize_parameter.wgsl", [tensor], consts={"PARTS": parts, "ZERO_POINT": tensor.dtype is UINT8}, reads={"range": "range"},
            writes={"y": target}))
    kernels.append(kernel(
        "quantize.wgsl", [types[0]], consts={"LOW": 0.0, "HIGH": 255.0, **NO_BLOCKS}, indices={"scale_index": Strided((x.size,), (0,))},
        reads={"x": 0, "scale": "scale", "zp": "zp"}, writes={"y": 0}))
    outputs = tuple(t if node.wants(i) else None for i, t in enumerate(types[: len(node.node.outputs)]))
    return Lowering(outputs, tuple(kernels), (("range", ranges), ("scale", types[1]), ("zp", types[2])))
