"""Ops that read a packed weight where it is: the kernels of the same op for float32, in whose shaders its decoder stands as a function.

Fusion makes them of a decoder and the node behind it (partitioner/absorption.py). Products have kernels of their own for packed weights.
"""

from __future__ import annotations

from dataclasses import replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.graph import Node
from ort_gpu_ep.kernels import completed, record_of
from ort_gpu_ep.registry import OPS, BoundNode, Kernel, Lowering, op, spec_of
from ort_gpu_ep.shaders.inlining import inner_name
from ort_gpu_ep.types import FLOAT32, INT8, INT32, INT64, PACKED_INTS, UINT8, Shape, TensorType
from ort_gpu_ep.weights.functions import CODEBOOK, DOMAIN

TAKEN = {"T": (FLOAT32, UINT8, INT8, INT32, INT64, *PACKED_INTS)}
DECODER_VERSION = 25
"""Of DequantizeLinear: the newest takes what older ones do."""
RECURRENT = "x w table zp? r b? seq? h0? c0? p? -> y yh yc"
PARTS = 3
"""Inputs that stand for the weight: codes, scales or values, zero points or nothing."""


def read_in_place(node: BoundNode, name: str) -> Lowering:
    """The lowering of op `name` with the decoder in place of input `weight_input`. Raises UnsupportedNodeError where it can't be there."""
    at = node.attr("weight_input")
    decoder = _decoder(node, at)
    inner = plain(node, name, decoder.outputs[0].shape)
    spec = spec_of(inner.node)
    if spec is None or node.attr("weight_sparse"):
        raise UnsupportedNodeError(Code.OP, f"{name} with a packed weight that is not read element by element")
    built = completed(spec, inner)
    return replace(built, kernels=tuple(with_decoder(k, at, decoder, PARTS) for k in built.kernels))


def plain(node: BoundNode, name: str, shape: Shape) -> BoundNode:
    """The node as if its weight, of that shape, were dense, but computed in each run."""
    at, names, operands = node.attr("weight_input"), node.node.inputs, node.inputs
    dense = replace(node.input(at), type=TensorType(FLOAT32, shape), content=None, expected=False, constant=False)
    found = replace(node.node, op=name, domain="", version=node.attr("op_version"), inputs=(*names[:at + 1], *names[at + PARTS:]))
    return replace(node, node=found, inputs=(*operands[:at], dense, *operands[at + PARTS:]))


def _decoder(node: BoundNode, at: int) -> Kernel:
    """The kernel that writes the weight. Its reads are inputs of the node."""
    parts = (*node.inputs[at:at + PARTS], None, None)[:PARTS]
    attributes = {"axis": node.attr("weight_axis"), "block_size": node.attr("weight_block"), "shape": node.attr("weight_shape"),
                  "perm": node.attr("weight_perm")}
    names = {bits: op_name for op_name, bits in CODEBOOK.items()}
    if node.attr("weight_bits"):
        call = Node(names[node.attr("weight_bits")], (), ("w",), domain=DOMAIN, version=1, attributes=attributes)
    else:
        call = Node("DequantizeLinear", (), ("w",), version=DECODER_VERSION, attributes=attributes)
    made, = completed(OPS[(call.domain, call.op)], BoundNode(call, parts)).kernels
    return replace(made, reads=tuple((name, int(source) + at) for name, source in made.reads or ()))


def with_decoder(built: Kernel, at: int, decoder: Kernel, parts: int) -> Kernel:
    """The kernel with the decoder for what it reads of input `at`, in whose place there are so many; others behind have moved."""
    reads: list[tuple[str, int | str]] = []
    inlined: list[tuple[str, Kernel]] = []
    for name, source in built.reads or ():
        if source != at:
            reads.append((name, source + parts - 1 if isinstance(source, int) and source > at else source))
            continue
        if name in built.vectors or record_of(built.shader).family == "movement":
            raise UnsupportedNodeError(Code.COST, f"{built.shader} brings its weight into another order: it is written out before")
        inlined.append((name, decoder))
        reads += [(inner_name(name, part), where) for part, where in decoder.reads or ()]
    return replace(built, reads=tuple(reads), inlined=tuple(inlined))


@op("PackedGather", domain="ort_gpu_ep", dtypes=TAKEN, bindings="x table zp? indices -> y")
def packed_gather(node: BoundNode) -> Lowering:
    """Gather from a packed table."""
    return read_in_place(node, "Gather")


@op("PackedConvTranspose", domain="ort_gpu_ep", dtypes=TAKEN, bindings="x w table zp? c? -> y", epilogue=True)
def packed_conv_transpose(node: BoundNode) -> Lowering:
    """ConvTranspose with packed filters."""
    return read_in_place(node, "ConvTranspose")


@op("PackedEinsum", domain="ort_gpu_ep", dtypes=TAKEN, bindings="operands... -> y", epilogue=True)
def packed_einsum(node: BoundNode) -> Lowering:
    """Einsum with one packed operand."""
    return read_in_place(node, "Einsum")


@op("PackedLSTM", domain="ort_gpu_ep", dtypes=TAKEN, bindings=RECURRENT)
def packed_lstm(node: BoundNode) -> Lowering:
    """LSTM with packed weights of its input."""
    return read_in_place(node, "LSTM")


@op("PackedGRU", domain="ort_gpu_ep", dtypes=TAKEN, bindings=RECURRENT)
def packed_gru(node: BoundNode) -> Lowering:
    """GRU with packed weights of its input."""
    return read_in_place(node, "GRU")


@op("PackedRNN", domain="ort_gpu_ep", dtypes=TAKEN, bindings=RECURRENT)
def packed_rnn(node: BoundNode) -> Lowering:
    """RNN with packed weights of its input."""
    return read_in_place(node, "RNN")
