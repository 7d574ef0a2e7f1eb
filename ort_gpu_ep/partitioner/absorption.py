"""Decoders disappear in what reads the weight, or the bytes of a run: its kernel reads the codes.

Decoders are DequantizeLinear and the functions of weights/functions.py.

Where a node cannot read an arrangement of codes and scales, the decoder stays as it is: then a kernel writes the weight
into a slot, in each run. So it does while nodes are claimed, where several nodes read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from ort_gpu_ep.ir.graph import Attribute, Graph, Node
from ort_gpu_ep.ir.schemas import default_attribute, schema
from ort_gpu_ep.ir.types import FLOAT16, INT8, UINT8, TensorType
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.lowering import Facts, bind
from ort_gpu_ep.kernels.registry import Decline, Limits, Lowering
from ort_gpu_ep.ops.decoders import DAMAGE
from ort_gpu_ep.ops.in_place import PARTS, packed_inputs, prefix
from ort_gpu_ep.ops.recurrent_held import PER_LAYER
from ort_gpu_ep.partitioner.recurrent_rules import DEPTHS
from ort_gpu_ep.weights.functions import CODEBOOK, DOMAIN, NAMES, SPARSE

Consumers: TypeAlias = Mapping[tuple[str, str], tuple[str, tuple[int, ...]]]
"""Domain and op -> what it becomes with packed weights, and which inputs may be such, in ascending order."""

PRODUCTS: Consumers = {
    ("", "MatMul"): ("PackedMatMul", (1,)),
    ("", "Gemm"): ("PackedGemm", (1,)),
    ("", "Conv"): ("PackedConv", (1,)),
    ("", "Gather"): ("PackedGather", (0,)),
    ("", "ConvTranspose"): ("PackedConvTranspose", (1,)),
    ("", "Einsum"): ("PackedEinsum", (0, 1)),
}

LAYERS: Consumers = {
    **{("", name): (f"Packed{name}", (1, 2)) for name in ("LSTM", "GRU", "RNN")},
    ("ort_gpu_ep", "RecurrentStack"): (
        "PackedRecurrentStack",
        tuple(1 + PER_LAYER * layer + k for layer in range(max(DEPTHS)) for k in range(2)),
    ),
}
"""Recurrent layers, once those on top of each other are one node."""


ACTIVATIONS: Consumers = {
    ("", name): ("OfBytes", (0,))
    for name in (
        "Softmax",
        "LogSoftmax",
        "LayerNormalization",
        "InstanceNormalization",
        "ReduceMean",
        "ReduceMax",
        "ReduceSum",
    )
}
"""What has no op of bytes, and reads its input at places that follow from the output's: with the decoder of a run's
bytes."""


def absorb(graph: Graph, facts: Facts, limits: Limits, consumers: Consumers, shared: bool = False) -> Graph:
    """The graph with decoders fused into those of `consumers` that read them: of constants, and of activations into
    ACTIVATIONS.

    shared: also one that several nodes read, into each of them. Not while nodes are claimed: a decoder belongs to one
    fused node there.
    """

    def absorbed(decoder: Node) -> bool:
        return _of_a_run(decoder, graph, facts) if consumers is ACTIVATIONS else is_decoder(decoder, graph)

    producers, readers = graph.producers(), graph.consumers()
    fused_nodes: dict[int, Node] = {}
    for node in graph.nodes:
        packed_op, indices = consumers.get((node.domain, node.op), ("", ()))
        if node.epilogue:
            continue
        fused = node
        for index in indices:
            name = node.inputs[index] if index < len(node.inputs) else ""
            decoder = producers.get(name)
            if decoder is None or not absorbed(decoder) or node.inputs.count(name) > 1:
                continue
            if (len(readers[name]) > 1 or name in graph.outputs) and not shared:
                continue
            fused = _taken(fused, decoder, fused.inputs.index(name), packed_op, facts, limits) or fused
        if fused is not node:
            fused_nodes[id(node)] = fused
    if not fused_nodes:
        return graph
    nodes = tuple(fused_nodes.get(id(node), node) for node in graph.nodes)
    read = {name for node in nodes for name in node.reads} | set(graph.outputs)
    gone = {id(d) for d in producers.values() if absorbed(d) and not read.intersection(d.writes)}
    return graph.with_nodes(tuple(node for node in nodes if id(node) not in gone))


def _taken(node: Node, decoder: Node, index: int, packed_op: str, facts: Facts, limits: Limits) -> Node | None:
    """The two as one node, whose types are known then; None where a row declines it, or the node by itself."""
    kind = facts.types.get(decoder.outputs[0])
    fused = _fused(node, decoder, index, packed_op, half=kind is not None and kind.dtype is FLOAT16)
    before, answer = _asked(node, facts, limits), _asked(fused, facts, limits)
    if isinstance(before, Decline) or isinstance(answer, Decline):
        return None
    for output, tensor in zip(fused.outputs, answer.outputs, strict=False):
        if output and tensor is not None:
            facts.types.setdefault(output, tensor)
    return fused


def _asked(node: Node, facts: Facts, limits: Limits) -> Lowering | Decline:
    bound = bind(node, facts)
    return bound if isinstance(bound, Decline) else claim(bound, limits)


def is_decoder(node: Node, graph: Graph) -> bool:
    """Whether a node makes a weight of constants that hold less, and that are not known to be damaged."""
    is_decoding = (node.op == "DequantizeLinear" and not node.domain) or (
        node.domain == DOMAIN and node.op in NAMES and DAMAGE not in node.attributes
    )
    return is_decoding and all(graph.values[n].is_constant for n in node.inputs if n)


def _of_a_run(node: Node, graph: Graph, facts: Facts) -> bool:
    """Whether a node decodes bytes that a run brings, all with one scale."""
    if (
        node.op != "DequantizeLinear"
        or node.domain
        or node.attributes.get("block_size")
        or graph.values[node.inputs[0]].is_constant
    ):
        return False
    codes, scale = (facts.types.get(name) for name in node.inputs[:2])
    return codes is not None and codes.dtype in (UINT8, INT8) and scale is not None and bool(scale.size == 1)


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Bytes of packed weights as they are stored, with their scales or values, and as float32. unpacked: nodes that
    write theirs out in each run.
    """

    packed_nbytes: int
    dense_nbytes: int
    unpacked: tuple[str, ...]


def packed_weights(graph: Graph, facts: Facts, limits: Limits) -> PackedWeights:
    """Of what the nodes of a partition read packed, or decode by themselves, once it is planned."""
    nodes = absorb(absorb(graph, facts, limits, PRODUCTS, shared=True), facts, limits, LAYERS, shared=True).nodes
    pairs = [(node, weight) for node in nodes for weight in _packed_weights(node, facts.types, graph)]
    constants = {name for _, (names, _) in pairs for name in names if name in facts.types}
    dense = {names[0]: nbytes for _, (names, nbytes) in pairs}
    return PackedWeights(
        sum(facts.types[name].nbytes for name in constants),
        sum(dense.values()),
        tuple(node.label for node, _ in pairs if is_decoder(node, graph)),
    )


def _packed_weights(node: Node, types: Mapping[str, TensorType], graph: Graph) -> Iterator[tuple[tuple[str, ...], int]]:
    """The constants of each packed weight that a node reads or decodes, and its bytes as float32."""
    if is_decoder(node, graph):
        kind = types.get(node.outputs[0])
        yield node.inputs, 4 * kind.size if kind is not None else 0
    elif node.domain == "com.microsoft" and node.op in ("MatMulNBits", "MatMulBnb4"):
        k, n = node.attributes.get("K"), node.attributes.get("N")
        yield node.inputs[1:4], 4 * k * n if isinstance(k, int) and isinstance(n, int) else 0
    elif (node.domain, node.op) == ("com.microsoft", "GatherBlockQuantized"):
        codes = types[node.inputs[0]]
        bits = node.attributes.get("bits", 4) if codes.dtype.bits == 8 else codes.dtype.bits
        yield (node.inputs[0], *node.inputs[2:4]), 32 * codes.nbytes // bits if isinstance(bits, int) else 0
    elif node.domain == "ort_gpu_ep":
        for weight, at in packed_inputs(node.attributes):
            stored = node.attributes.get(f"{weight}_shape")
            size = math.prod(stored) if isinstance(stored, tuple) and stored else types[node.inputs[at]].size
            yield node.inputs[at : at + PARTS], 4 * int(size)


def _fused(node: Node, decoder: Node, index: int, packed_op: str, half: bool) -> Node:
    """The node with the decoder's constants in place of input `index`, and the attributes of both. half: the decoder
    makes float16."""
    attributes, absorbed = dict(node.attributes), len(packed_inputs(node.attributes))
    if not absorbed:
        formal = schema(node.domain, node.op, node.version)
        attributes = {
            name: default_attribute(node.domain, node.op, node.version, name)
            for name in (formal.attributes if formal else ())
        }
        attributes |= {**node.attributes, "op_version": node.version}
    attributes |= {"op_name": node.op} if packed_op == "OfBytes" else {}
    attributes |= {
        f"{prefix(absorbed)}_{name}": value for name, value in {**_described(decoder, half), "input": index}.items()
    }
    codes = (*decoder.inputs, "")[:PARTS]
    if decoder.op == SPARSE:
        codes = tuple(decoder.inputs[i] for i in (0, 2, 1))  # entries, values, starts: what most have comes first
    inputs = (*node.inputs[:index], *codes, *node.inputs[index + 1 :])
    while not inputs[-1]:
        inputs = inputs[:-1]
    return replace(
        node,
        op=packed_op,
        domain="ort_gpu_ep",
        version=1,
        inputs=inputs,
        attributes=attributes,
        sources=tuple(sorted({*node.members, *decoder.members})),
    )


def _described(decoder: Node, half: bool) -> dict[str, Attribute]:
    """What a fused node is told of a weight."""
    attributes = decoder.attributes
    return {
        "axis": attributes.get("axis", 1),
        "block": attributes.get("block_size", 0),
        "bits": CODEBOOK.get(decoder.op, 0),
        "sparse": int(decoder.op == SPARSE),
        "shape": attributes.get("shape", ()),
        "perm": attributes.get("perm", ()),
        "half": int(half),
    }
