"""What stands between DequantizeLinear and QuantizeLinear and is no product becomes one node from bytes to bytes.

An op that only moves or compares elements works on the bytes themselves, where both have the same scale; others become
ONNX Runtime's QLinear op. ONNX Runtime does the same for its CPU, but only after it has asked providers. Elementwise
ops that have no such op need none: fusion joins them with what dequantises and quantises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ort_gpu_ep.ir.graph import Graph, Node
from ort_gpu_ep.ir.types import INT8, UINT8
from ort_gpu_ep.kernels.lowering import Facts
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.ops.quantized import DOMAIN
from ort_gpu_ep.partitioner.integers import Surroundings, in_place_of, replaced_by

MOVING: Mapping[str, int] = {
    "MaxPool": 12,
    "Reshape": 5,
    "Flatten": 1,
    "Transpose": 1,
    "Squeeze": 1,
    "Unsqueeze": 1,
    "Slice": 10,
    "Gather": 1,
    "DepthToSpace": 1,
    "SpaceToDepth": 1,
    "Resize": 10,
}
"""Ops that give elements of what they were given as input 0, and the first version that takes bytes."""

QLINEAR: Mapping[str, str] = {
    "Add": "QLinearAdd",
    "Mul": "QLinearMul",
    "AveragePool": "QLinearAveragePool",
    "GlobalAveragePool": "QLinearGlobalAveragePool",
    "Softmax": "QLinearSoftmax",
}


def keep_bytes(graph: Graph, facts: Facts, limits: Limits) -> Graph:
    """The graph with each such group of nodes as one node."""
    return replaced_by(graph, facts, limits, _Between(graph, facts).parts)


class _Between(Surroundings):
    """Any op but a product."""

    def parts(self, last: Node) -> list[Node] | None:
        before = self.before(last)
        node = before[-1] if before else None
        if node is None or node.domain or node.epilogue or len(node.writes) != 1:
            return None
        moving = node.op in MOVING and (node.op != "Resize" or node.attributes.get("mode", "nearest") == "nearest")
        read = self.decoders(node.inputs[:1] if moving else node.inputs)
        if not read or not self._fits(read, last):
            return None
        nodes = self._moved(node, read[0], last) if moving else self._calculated(node, read, last)
        return None if nodes is None else in_place_of([last, *before, *self.gone(read)], nodes)

    def _fits(self, read: Sequence[Node], last: Node) -> bool:
        """Whether all of it is bytes of one type, each with one scale."""
        types = [self.facts.types.get(name) for name in (*(d.inputs[0] for d in read), last.outputs[0])]
        scales = [self.facts.types.get(n.inputs[1]) for n in (*read, last)]
        return (
            len({t.dtype for t in types if t}) == 1
            and all(t is not None and t.dtype in (UINT8, INT8) for t in types)
            and all(s is not None and s.size == 1 for s in scales)
        )

    def _moved(self, node: Node, decoder: Node, last: Node) -> Node | None:
        """The same op of bytes, where what they stand for stays the same."""
        if not self._alike(decoder, last):
            return None
        return replace(node, inputs=(decoder.inputs[0], *node.inputs[1:]), version=max(node.version, MOVING[node.op]))

    def _alike(self, decoder: Node, last: Node) -> bool:
        """Whether both have the same scale and zero point, by their names or as constants."""
        pairs = zip(decoder.inputs[1:], last.inputs[1:], strict=False)
        return len(decoder.inputs) == 3 and all(a == b or self._equal(a, b) for a, b in pairs)

    def _equal(self, a: str, b: str) -> bool:
        one, other = self.graph.constant(a), self.graph.constant(b)
        return (
            one is not None
            and other is not None
            and one.size == other.size == 1
            and bool(np.all(one.reshape(-1) == other.reshape(-1)))
        )

    def _calculated(self, node: Node, read: Sequence[Node], last: Node) -> Node | None:
        """ONNX Runtime's op of bytes."""
        if node.op == "Concat" and all(len(d.inputs) == 3 for d in read):
            parts = (name for d in read for name in d.inputs)
            return Node("QLinearConcat", (*last.inputs[1:], *parts), (), node.name, DOMAIN, 1, node.attributes)
        if node.op not in QLINEAR:
            return None
        attributes = {**node.attributes, **({"opset": node.version} if node.op == "Softmax" else {})}
        if node.op == "Softmax" and node.version < 13:
            attributes.setdefault("axis", 1)
        return Node(QLINEAR[node.op], (*_triples(read), *last.inputs[1:]), (), node.name, DOMAIN, 1, attributes)


def _triples(read: Sequence[Node]) -> Iterator[str]:
    """Bytes, scale and zero point (left out: an empty name) of each."""
    for decoder in read:
        yield from (*decoder.inputs, "")[:3]
