"""Ops that read a packed weight where it is: the kernels of the same op for floats, in whose shaders its decoder stands
as a function.

Fusion makes them of a decoder and the node behind it (partitioner/absorption.py). Products have kernels of their own
for packed weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Attribute, Node
from ort_gpu_ep.ir.types import (
    FLOAT16,
    FLOAT32,
    FLOATS,
    INT8,
    INT32,
    INT64,
    PACKED_INTS,
    UINT8,
    DType,
    Shape,
    TensorType,
)
from ort_gpu_ep.kernels.records import completed, record_of
from ort_gpu_ep.kernels.registry import OPS, BoundNode, Kernel, Lowering, Operand, op, spec_of
from ort_gpu_ep.ops.quantize import byte_decoder
from ort_gpu_ep.shaders.inlining import inner_name
from ort_gpu_ep.weights.functions import CODEBOOK, DOMAIN

TAKEN = {"T": (*FLOATS, UINT8, INT8, INT32, INT64, *PACKED_INTS)}
DECODER_VERSION = 25
"""Of DequantizeLinear: the newest takes what older ones do."""
RECURRENT = "x weights... -> y yh yc"
PARTS = 3
"""Inputs that stand for a weight: codes, scales or values, zero points or nothing."""


def prefix(count: int) -> str:
    """What the attributes begin with that describe a node's next packed weight, behind so many."""
    return f"weight{count + 1}" if count else "weight"


def packed_inputs(attributes: Mapping[str, Attribute]) -> list[tuple[str, int]]:
    """Prefix and first input of each packed weight of a fused node, in the order in which they were absorbed."""
    inputs: list[tuple[str, int]] = []
    while isinstance(at := attributes.get(f"{prefix(len(inputs))}_input"), int):
        inputs.append((prefix(len(inputs)), at))
    return inputs


def read_in_place(node: BoundNode, name: str, domain: str = "") -> Lowering:
    """The lowering of op `name` with decoders in place of its packed inputs. Raises UnsupportedNodeError where one
    can't be there."""
    return _peeled(node, packed_inputs(node.node.attributes), name, domain)


def _peeled(node: BoundNode, packed: Sequence[tuple[str, int]], name: str, domain: str) -> Lowering:
    """The lowering of the node as if the last of its packed weights were dense; then the decoder of that one in its
    kernels."""
    if not packed:
        spec = spec_of(node.node)
        if spec is None:
            raise UnsupportedNodeError(Code.OP, f"no kernel for {name}, whose weights are packed")
        return completed(spec, node)
    weight, at = packed[-1]
    if node.attr(f"{weight}_sparse"):
        raise UnsupportedNodeError(Code.OP, f"{name} with a packed weight that is not read element by element")
    decoder, bits = _decoder(node, weight, at), node.attr(f"{weight}_bits") or node.input(at).dtype.bits
    built = _peeled(plain(node, name, decoder.outputs[0].shape, at, domain, bits), packed[:-1], name, domain)
    return replace(
        built, kernels=tuple(with_decoder(k, at, decoder, PARTS, node.input(at).is_constant) for k in built.kernels)
    )


def plain(node: BoundNode, name: str, shape: Shape, at: int, domain: str = "", bits: int = 0) -> BoundNode:
    """The node as if its weight at input `at`, of that shape, were dense, computed in each run. bits: as
    Operand.decoded."""
    names, operands = node.node.inputs, node.inputs
    weight = next(weight for weight, first in packed_inputs(node.node.attributes) if first == at)
    dense = Operand(
        node.input(at).name, TensorType(decoded_as(node, weight), shape), decoded=bits, asked=node.input(at).asked
    )
    node_alone = replace(
        node.node,
        op=name,
        domain=domain,
        version=node.attr("op_version"),
        inputs=(*names[: at + 1], *names[at + PARTS :]),
    )
    return replace(node, node=node_alone, inputs=(*operands[:at], dense, *operands[at + PARTS :]))


def decoded_as(node: BoundNode, weight: str) -> DType:
    """The element type of a packed weight as the model has it decoded. weight: what its attributes begin with."""
    return FLOAT16 if node.attr(f"{weight}_half") else FLOAT32


def check_not_kept(node: BoundNode) -> None:
    """Raises UnsupportedNodeError, where a dense weight may stay on the device, which is faster for the node than any
    packed one."""
    if node.target.limits.keeps_dense:
        raise UnsupportedNodeError(
            Code.COST, f"{node.op}: its weight is written out once for all runs (option weights)"
        )


def _decoder(node: BoundNode, weight: str, at: int) -> Kernel:
    """The kernel that writes a weight. Its reads are inputs of the node."""
    parts = (*node.inputs[at : at + PARTS], None, None)[:PARTS]
    attributes = {
        "axis": node.attr(f"{weight}_axis"),
        "block_size": node.attr(f"{weight}_block"),
        "shape": node.attr(f"{weight}_shape"),
        "perm": node.attr(f"{weight}_perm"),
    }
    if not node.input(at).is_constant:
        return byte_decoder(node, at, decoded_as(node, weight))
    names = {bits: op_name for op_name, bits in CODEBOOK.items()}
    if bits := node.attr(f"{weight}_bits"):
        call = Node(names[bits], (), ("w",), domain=DOMAIN, version=1, attributes=attributes)
    else:
        attributes["output_dtype"] = decoded_as(node, weight).onnx
        call = Node("DequantizeLinear", (), ("w",), version=DECODER_VERSION, attributes=attributes)
    (decoder,) = completed(OPS[(call.domain, call.op)], BoundNode(call, parts)).kernels
    return replace(decoder, reads=tuple((name, int(source) + at) for name, source in decoder.reads or ()))


def with_decoder(built: Kernel, at: int, decoder: Kernel, parts: int, weight: bool = True) -> Kernel:
    """The kernel with the decoder for what it reads of input `at`, in whose place there are so many; others behind have
    moved.

    weight: rather written out than read in another order, or by vectors.
    """
    reads: list[tuple[str, int | str]] = []
    inlined: list[tuple[str, Kernel]] = []
    for name, source in built.reads or ():
        if source != at:
            reads.append((name, source + parts - 1 if isinstance(source, int) and source > at else source))
            continue
        if weight and (name in built.vectors or record_of(built.shader).family == "movement"):
            raise UnsupportedNodeError(
                Code.COST, f"{built.shader} reorders its weight, which is decoded to float32 first"
            )
        inlined.append((name, decoder))
        reads += [(inner_name(name, part), where) for part, where in decoder.reads or ()]
    return replace(built, reads=tuple(reads), inlined=(*built.inlined, *inlined))


@op("PackedConvTranspose", domain="ort_gpu_ep", dtypes=TAKEN, bindings="x w table zp? c? -> y", epilogue=True)
def packed_conv_transpose(node: BoundNode) -> Lowering:
    """ConvTranspose with packed filters."""
    check_not_kept(node)
    return read_in_place(node, "ConvTranspose")


@op("OfBytes", domain="ort_gpu_ep", dtypes=TAKEN, bindings="operands... -> y", epilogue=True)
def of_bytes(node: BoundNode) -> Lowering:
    """Op `op_name`, whose first input is bytes of one scale and zero point."""
    return read_in_place(node, str(node.attr("op_name")))


@op("PackedEinsum", domain="ort_gpu_ep", dtypes=TAKEN, bindings="operands... -> y", epilogue=True)
@op("PackedGather", domain="ort_gpu_ep", dtypes=TAKEN, bindings="x table zp? indices -> y")
@op("PackedGRU", domain="ort_gpu_ep", dtypes=TAKEN, bindings=RECURRENT)
@op("PackedLSTM", domain="ort_gpu_ep", dtypes=TAKEN, bindings=RECURRENT)
@op("PackedRecurrentStack", domain="ort_gpu_ep", dtypes=TAKEN, bindings=RECURRENT)
@op("PackedRNN", domain="ort_gpu_ep", dtypes=TAKEN, bindings=RECURRENT)
def packed(node: BoundNode) -> Lowering:
    """The op that follows `Packed`, with packed weights, operands or a packed table."""
    name = node.op.removeprefix("Packed")
    return read_in_place(node, name, "ort_gpu_ep" if name == "RecurrentStack" else "")
