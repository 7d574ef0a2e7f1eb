"""Decoders of constants disappear in what reads the weight: its kernel reads the codes.

Decoders are DequantizeLinear and the functions of weights/functions.py.

Where a node cannot read an arrangement of codes and scales, the decoder stays as it is: then a kernel writes the weight into a slot, in
each run. So it does while nodes are claimed, where several nodes read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ort_gpu_ep.claim import claim
from ort_gpu_ep.graph import Attribute, Graph, Node
from ort_gpu_ep.lowering import Facts, bind
from ort_gpu_ep.registry import Decline, Limits, Lowering
from ort_gpu_ep.schemas import default_attribute, schema
from ort_gpu_ep.types import TensorType
from ort_gpu_ep.weights.functions import CODEBOOK, DOMAIN, NAMES, SPARSE

CONSUMERS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "MatMul": ("PackedMatMul", (1,)), "Gemm": ("PackedGemm", (1,)), "Conv": ("PackedConv", (1,)), "Gather": ("PackedGather", (0,)),
    "ConvTranspose": ("PackedConvTranspose", (1,)), "Einsum": ("PackedEinsum", (1, 0)), "LSTM": ("PackedLSTM", (1,)),
    "GRU": ("PackedGRU", (1,)), "RNN": ("PackedRNN", (1,))}
"""Op -> what it becomes with a packed weight, and which inputs may be one."""


def absorb(graph: Graph, facts: Facts, limits: Limits, shared: bool = False) -> Graph:
    """The graph with decoders of constants fused into what reads them.

    shared: also one that several nodes read, into each of them. Not while nodes are claimed: a decoder belongs to one fused node there.
    """
    producers, consumers = graph.producers(), graph.consumers()
    fused_nodes: dict[int, Node] = {}
    for node in graph.nodes:
        if node.domain or node.op not in CONSUMERS or node.epilogue:
            continue
        for index in CONSUMERS[node.op][1]:
            name = node.inputs[index] if index < len(node.inputs) else ""
            decoder = producers.get(name)
            if decoder is None or not is_decoder(decoder, graph) or node.inputs.count(name) > 1:
                continue
            if (len(consumers[name]) > 1 or name in graph.outputs) and not shared:
                continue
            fused = _taken(node, decoder, index, facts, limits)
            if fused is not None:
                fused_nodes[id(node)] = fused
                break
    if not fused_nodes:
        return graph
    nodes = tuple(fused_nodes.get(id(node), node) for node in graph.nodes)
    read = {name for node in nodes for name in node.reads} | set(graph.outputs)
    gone = {id(d) for d in producers.values() if is_decoder(d, graph) and not read.intersection(d.writes)}
    return graph.with_nodes(tuple(node for node in nodes if id(node) not in gone))


def _taken(node: Node, decoder: Node, index: int, facts: Facts, limits: Limits) -> Node | None:
    """The two as one node, whose types are known then; None where a row declines it, or the node by itself."""
    fused = _fused(node, decoder, index)
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
    """Whether a node makes a weight of constants that hold less."""
    known = (node.op == "DequantizeLinear" and not node.domain) or (node.domain == DOMAIN and node.op in NAMES)
    return known and all(graph.values[n].is_constant for n in node.inputs if n)


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Bytes of packed weights as they are stored, with their scales or values, and as float32. unpacked: nodes that write theirs out in
    each run.
    """

    packed_nbytes: int
    dense_nbytes: int
    unpacked: tuple[str, ...]


def packed_weights(graph: Graph, facts: Facts, limits: Limits) -> PackedWeights:
    """Of what the nodes of a partition read packed, or decode by themselves, once it is planned."""
    nodes = absorb(graph, facts, limits, shared=True).nodes
    found = [(node, held) for node in nodes if (held := _packed_weight(node, facts.types, graph)) is not None]
    constants = {name for _, (names, _) in found for name in names if name in facts.types}
    dense = {names[0]: nbytes for _, (names, nbytes) in found}
    return PackedWeights(
        sum(facts.types[name].nbytes for name in constants), sum(dense.values()),
        tuple(node.label for node, _ in found if is_decoder(node, graph)))


def _packed_weight(node: Node, types: Mapping[str, TensorType], graph: Graph) -> tuple[tuple[str, ...], int] | None:
    """The constants of a packed weight that a node reads or decodes, and its bytes as float32; None for any other node."""
    if is_decoder(node, graph):
        made = types.get(node.outputs[0])
        return node.inputs, 4 * made.size if made is not None else 0
    if (node.domain, node.op) == ("com.microsoft", "MatMulNBits"):
        k, n = node.attributes.get("K"), node.attributes.get("N")
        return node.inputs[1:4], 4 * k * n if isinstance(k, int) and isinstance(n, int) else 0
    if (node.domain, node.op) == ("com.microsoft", "GatherBlockQuantized"):
        codes = types[node.inputs[0]]
        bits = node.attributes.get("bits", 4) if codes.dtype.bits == 8 else codes.dtype.bits
        return (node.inputs[0], *node.inputs[2:4]), 32 * codes.nbytes // bits if isinstance(bits, int) else 0
    if node.domain == "ort_gpu_ep" and isinstance(at := node.attributes.get("weight_input"), int):
        stored = node.attributes.get("weight_shape")
        size = math.prod(stored) if isinstance(stored, tuple) and stored else types[node.inputs[at]].size
        return node.inputs[at:at + 3], 4 * int(size)
    return None


def _fused(node: Node, decoder: Node, index: int) -> Node:
    """The node with the decoder's constants in place of input `index`, and the attributes of both."""
    found = schema(node.domain, node.op, node.version)
    attributes: dict[str, Attribute] = {
        name: default_attribute(node.domain, node.op, node.version, name) for name in (found.attributes if found else ())}
    attributes |= {**node.attributes, **_described(decoder), "weight_input": index, "op_version": node.version}
    codes = (*decoder.inputs, "")[:3]
    if decoder.op == SPARSE:
        codes = tuple(decoder.inputs[i] for i in (0, 2, 1))        # entries, values, starts: what most have comes first
    inputs = (*node.inputs[:index], *codes, *node.inputs[index + 1:])
    while not inputs[-1]:
        inputs = inputs[:-1]
    return replace(
        node, op=CONSUMERS[node.op][0], domain="ort_gpu_ep", version=1, inputs=inputs, attributes=attributes,
        sources=tuple(sorted({*node.members, *decoder.members})))


def _described(decoder: Node) -> dict[str, Attribute]:
    """What a fused node is told of its weight."""
    given = decoder.attributes
    return {
        "weight_axis": given.get("axis", 1), "weight_block": given.get("block_size", 0), "weight_bits": CODEBOOK.get(decoder.op, 0),
        "weight_sparse": int(decoder.op == SPARSE), "weight_shape": given.get("shape", ()), "weight_perm": given.get("perm", ())}
