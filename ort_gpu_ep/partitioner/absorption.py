"""Decoders of constants disappear in the product that reads the weight: its kernel reads the codes.

Decoders are DequantizeLinear and the functions of weights/functions.py.

A decoder that another node reads, too, or a product that cannot read its arrangement of scales, stays as it is: then a kernel
writes the weight into a slot, in each run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ort_gpu_ep.claim import claim
from ort_gpu_ep.graph import Attribute, Graph, Node
from ort_gpu_ep.lowering import Facts, bind
from ort_gpu_ep.registry import Decline, Limits
from ort_gpu_ep.schemas import default_attribute, schema
from ort_gpu_ep.types import TensorType
from ort_gpu_ep.weights.functions import CODEBOOK, DOMAIN, NAMES, SPARSE

CONSUMERS: Mapping[str, str] = {"MatMul": "PackedMatMul", "Gemm": "PackedGemm", "Conv": "PackedConv"}
"""Ops whose input 1 may be packed, and what they become."""


def absorb(graph: Graph, facts: Facts, limits: Limits) -> Graph:
    """The graph with each decoder of a constant fused into the product that alone reads it."""
    producers, consumers = graph.producers(), graph.consumers()
    replaced: dict[int, Node | None] = {}
    for node in graph.nodes:
        if node.domain or node.op not in CONSUMERS or node.epilogue or len(node.inputs) < 2:
            continue
        name = node.inputs[1]
        decoder = producers.get(name)
        if decoder is None or not is_decoder(decoder, graph) or len(consumers[name]) > 1 or name in graph.outputs:
            continue
        if node.inputs[0] == name:
            continue
        fused = _fused(node, decoder)
        bound = bind(fused, facts)
        answer = bound if isinstance(bound, Decline) else claim(bound, limits)
        if isinstance(answer, Decline):
            continue
        replaced[id(decoder)], replaced[id(node)] = None, fused
        for output, tensor in zip(fused.outputs, answer.outputs, strict=False):
            if output and tensor is not None:
                facts.types.setdefault(output, tensor)
    if not replaced:
        return graph
    return graph.with_nodes(tuple(n for node in graph.nodes if (n := replaced.get(id(node), node)) is not None))


def is_decoder(node: Node, graph: Graph) -> bool:
    """Whether a node makes a weight of constants that hold less."""
    known = (node.op == "DequantizeLinear" and not node.domain) or (node.domain == DOMAIN and node.op in NAMES)
    return known and all(graph.values[n].is_constant for n in node.inputs if n)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """Bytes of a node's packed weight as it is stored, with its scales or values, and as float32. unpacked: each run writes it out."""

    packed_nbytes: int
    dense_nbytes: int
    unpacked: bool


def packed_weight(node: Node, types: Mapping[str, TensorType], graph: Graph) -> PackedWeight | None:
    """What a node reads packed, or decodes by itself; None for any other node."""
    if is_decoder(node, graph):
        made = types.get(node.outputs[0])
        return PackedWeight(_nbytes(node.inputs, types), 4 * made.size if made is not None else 0, unpacked=True)
    if (node.domain, node.op) == ("com.microsoft", "MatMulNBits"):
        k, n = node.attributes.get("K"), node.attributes.get("N")
        return PackedWeight(_nbytes(node.inputs[1:4], types), 4 * k * n if isinstance(k, int) and isinstance(n, int) else 0, unpacked=False)
    if node.domain == "ort_gpu_ep" and node.op in CONSUMERS.values():
        stored = node.attributes.get("weight_shape")
        size = math.prod(stored) if isinstance(stored, tuple) and stored else types[node.inputs[1]].size
        return PackedWeight(_nbytes(node.inputs[1:4], types), 4 * int(size), unpacked=False)
    return None


def _nbytes(names: Iterable[str], types: Mapping[str, TensorType]) -> int:
    return sum(types[n].nbytes for n in names if n and n in types)


def _fused(node: Node, decoder: Node) -> Node:
    """The product with the decoder's constants in place of its weight, and the attributes of both."""
    found = schema(node.domain, node.op, node.version)
    attributes: dict[str, Attribute] = {
        name: default_attribute(node.domain, node.op, node.version, name) for name in (found.attributes if found else ())}
    attributes |= {**node.attributes, **_described(decoder)}
    codes = (*decoder.inputs, "")[:3]
    if decoder.op == SPARSE:
        codes = tuple(decoder.inputs[i] for i in (0, 2, 1))        # entries, values, starts: what most have comes first
    rest = node.inputs[2:3] if node.op != "MatMul" else ()
    inputs = (node.inputs[0], *codes, *rest)
    while not inputs[-1]:
        inputs = inputs[:-1]
    return replace(
        node, op=CONSUMERS[node.op], domain="ort_gpu_ep", version=1, inputs=inputs, attributes=attributes,
        sources=tuple(sorted({*node.members, *decoder.members})))


def _described(decoder: Node) -> dict[str, Attribute]:
    """What a fused node is told of its weight."""
    given = decoder.attributes
    return {
        "weight_axis": given.get("axis", 1), "weight_block": given.get("block_size", 0), "weight_bits": CODEBOOK.get(decoder.op, 0),
        "weight_sparse": int(decoder.op == SPARSE), "weight_shape": given.get("shape", ()), "weight_perm": given.get("perm", ())}
