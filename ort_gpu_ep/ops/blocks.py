"""GatherBlockQuantized: decodes only the selected rows of a quantized table."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.ir.types import FLOATS, INT4, INT32, INT64, UINT4, UINT8, Shape, TensorType
from ort_gpu_ep.kernels.records import ceil_div, completed, record
from ort_gpu_ep.kernels.registry import OPS, BoundNode, Kernel, Lowering, kernel, op
from ort_gpu_ep.ops.axes import axis_of
from ort_gpu_ep.ops.in_place import with_decoder

TAKEN = {"T1": (UINT8, INT4, UINT4), "T2": FLOATS, "Tind": (INT32, INT64)}
GATHER_VERSION = 13

record("dequantize_blocks.wgsl", "elementwise")


@op("GatherBlockQuantized", domain="com.microsoft", dtypes=TAKEN, bindings="x indices scale zp? -> y")
def gather_block_quantized(node: BoundNode) -> Lowering:
    """y = the slices of (x - zero point) * scale that indices name, along gather_axis; a scale for each block along
    quantize_axis.

    x: a constant of 4 bits, or of `bits` in bytes along the last axis.
    """
    x = node.input(0)
    if not x.is_constant or not x.rank:
        raise UnsupportedNodeError(
            Code.NOT_CONSTANT, f"{node.op} of {x.type}, which is no constant of the model with axes"
        )
    shape = _shape(node)
    table = replace(x, type=TensorType(node.input(2).dtype, shape), content=None, constant=False)
    axis = axis_of(node, node.attr("gather_axis"), x.rank)
    inner = Node(
        "Gather",
        node.node.inputs[:2],
        node.node.outputs,
        node.node.name,
        version=GATHER_VERSION,
        attributes={"axis": axis},
    )
    built = completed(OPS["", "Gather"], replace(node, node=inner, inputs=(table, node.input(1)), operands=()))
    return replace(built, kernels=tuple(with_decoder(k, 0, _decoder(node, shape), 1) for k in built.kernels))


def _bits(node: BoundNode) -> int:
    """Of a code. Raises UnsupportedNodeError for others than the op has."""
    bits = node.attr("bits") if node.input(0).dtype is UINT8 else node.input(0).dtype.bits
    if bits not in (2, 4, 8):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with bits {bits}; taken: 2, 4 and 8")
    return int(bits)


def _shape(node: BoundNode) -> Shape:
    """Of the codes."""
    x = node.input(0)
    per = x.dtype.bits // _bits(node)
    return (*x.shape[:-1], x.shape[-1] * per)


def _decoder(node: BoundNode, shape: Shape) -> Kernel:
    """The kernel of an element of the table. Raises UnsupportedNodeError where scales and zero points are not those of
    its blocks."""
    scale, zp, block, bits = node.input(2), node.optional(3), node.attr("block_size"), _bits(node)
    axis = axis_of(node, node.attr("quantize_axis"), len(shape))
    scales = tuple(ceil_div(size, max(block, 1)) if k == axis else size for k, size in enumerate(shape))
    is_bytes = node.input(0).dtype is UINT8
    zeros = (*scales[:-1], ceil_div(scales[-1] * bits, 8)) if is_bytes else scales
    if block < 16 or scale.shape != scales or (zp and (zp.shape != zeros or not zp.is_constant)):
        raise UnsupportedNodeError(
            Code.RANK,
            f"{node.op} of {list(shape)} codes in blocks of {block} along axis {axis} with scales "
            f"{list(scale.shape)} and zero "
            f"points {zp and list(zp.shape)}; expected blocks of 16 or more, {list(scales)} and {list(zeros)}",
        )
    decoder = kernel(
        "dequantize_blocks.wgsl",
        [TensorType(scale.dtype, shape)],
        consts={
            "BITS": bits,
            "SIGNED": node.input(0).dtype is INT4,
            "ZERO": float(1 << bits - 1) if is_bytes else 0.0,
            "BLOCK": block,
            "SIZE": shape[axis],
            "INNER": prod(shape[axis + 1 :]),
            "BLOCKS": scales[axis],
            "LAST": scales[-1],
            "ZP_ROW": zeros[-1] * 8 // bits if is_bytes else scales[-1],
        },
        reads={"w": 0, "scale": 2, **({"zp": 3} if zp else {})},
        writes={"y": 0},
    )
    return replace(decoder, optionals=(("zp", zp is not None),))
