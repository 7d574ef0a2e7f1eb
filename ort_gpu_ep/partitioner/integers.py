"""QuantizeLinear after a Conv, MatMul or Gemm of dequantized bytes becomes one product of bytes: QLinearConv,
QLinearMatMul, QGemm.

ONNX Runtime does the same for its CPU, but only after it has asked providers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from ort_gpu_ep.ir.graph import Graph, Node, Step
from ort_gpu_ep.ir.types import FLOAT32, INT8, INT32, UINT8
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.lowering import Facts, bind
from ort_gpu_ep.kernels.registry import Decline, Limits
from ort_gpu_ep.ops.quantize import limits_of
from ort_gpu_ep.ops.quantized import DOMAIN

PRODUCTS: Mapping[str, tuple[str, str, int]] = {
    "Conv": ("QLinearConv", "", 10),
    "MatMul": ("QLinearMatMul", "", 10),
    "Gemm": ("QGemm", DOMAIN, 1),
}
"""The op of bytes, its domain and version."""

Float: TypeAlias = np.float32
Finder: TypeAlias = Callable[[Node], list[Node] | None]
"""Of a QuantizeLinear: the fused node, then the nodes that it stands for; None where it ends no such group."""


def quantize_products(graph: Graph, facts: Facts, limits: Limits) -> Graph:
    """The graph with each such group of nodes as one node."""
    return replaced_by(graph, facts, limits, _Products(graph, facts).parts)


def replaced_by(graph: Graph, facts: Facts, limits: Limits, parts_of: Finder) -> Graph:
    """The graph with one node for each group that is found and whose row takes the node."""
    replaced: dict[int, Node | None] = {}
    for node in graph.nodes:
        parts = parts_of(node) if is_quantizer(node, facts) else None
        if parts is None or any(id(p) in replaced for p in parts[1:]):
            continue
        fused = parts[0]
        bound = bind(fused, facts)
        if isinstance(bound, Decline) or isinstance(claim(bound, limits), Decline):
            continue
        replaced.update({id(p): None for p in parts[1:]})
        replaced[id(node)] = fused
    if not replaced:
        return graph
    return graph.with_nodes(tuple(n for node in graph.nodes if (n := replaced.get(id(node), node)) is not None))


def is_quantizer(node: Node, facts: Facts) -> bool:
    """Whether it writes bytes of one type, with a zero point, not by blocks, and calculates in float32."""
    return (
        node.op == "QuantizeLinear"
        and not node.domain
        and len(node.inputs) == 3
        and not node.attributes.get("block_size")
        and (node.attributes.get("precision", 0) in (0, FLOAT32.onnx) and in_float32(node, facts))
    )


def in_float32(node: Node, facts: Facts) -> bool:
    """Whether the scale is float32, and what is not quantized: ops of bytes have no other, and onnxruntime rounds in
    between otherwise."""
    types = (
        facts.types.get(name)
        for name in (node.inputs[1], node.inputs[0] if node.op == "QuantizeLinear" else node.outputs[0])
    )
    return all(tensor is not None and tensor.dtype is FLOAT32 for tensor in types)


class Surroundings:
    """What stands before a QuantizeLinear."""

    def __init__(self, graph: Graph, facts: Facts) -> None:
        self.graph, self.facts = graph, facts
        self.producers, self.consumers = graph.producers(), graph.consumers()

    def only(self, name: str) -> Node | None:
        """Who makes a value that one node alone reads."""
        alone = len(self.consumers.get(name, ())) == 1 and name not in self.graph.outputs
        return self.producers.get(name) if alone else None

    def before(self, last: Node) -> list[Node]:
        """What `last` quantises, behind a Relu that changes nothing: these nodes, the first one last; none where others
        read it."""
        producer = self.only(last.inputs[0])
        if producer is None or producer.op != "Relu" or producer.domain or not self._clamps_at_zero(last):
            return [] if producer is None else [producer]
        first = self.only(producer.inputs[0])
        return [producer] if first is None else [producer, first]

    def decoders(self, names: Iterable[str]) -> list[Node]:
        """Who dequantises these values to float32, of bytes without blocks; empty where one is something else."""
        producers = [self.producers.get(name) for name in names]
        its = [
            d
            for d in producers
            if d is not None
            and d.op == "DequantizeLinear"
            and not d.domain
            and not d.attributes.get("block_size")
            and in_float32(d, self.facts)
        ]
        return its if len(its) == len(producers) else []

    def gone(self, decoders: Iterable[Node]) -> list[Node]:
        """Those of them that nothing else needs."""
        return [d for d in decoders if self.only(d.outputs[0]) is d]

    def _clamps_at_zero(self, last: Node) -> bool:
        """Whether the least number that it writes stands for 0: then a Relu before it changes nothing."""
        zero = self.graph.constant(last.inputs[2])
        return zero is not None and zero.size == 1 and int(zero.reshape(-1)[0]) == np.iinfo(zero.dtype).min


def in_place_of(inside: Sequence[Node], node: Node) -> list[Node]:
    """The node for a group of nodes, the QuantizeLinear at its front; then the group."""
    members = tuple(sorted({i for n in inside for i in n.members}))
    return [replace(node, outputs=inside[0].outputs, id=inside[0].id, sources=members), *inside]


class _Products(Surroundings):
    """A product, perhaps with Relu or Clip."""

    def parts(self, last: Node) -> list[Node] | None:
        before, clamped = self._clamped(last)
        product = before[-1] if before else None
        if product is None or product.domain or product.op not in PRODUCTS or product.epilogue:
            return None
        read = self.decoders(name for name in product.inputs if name)
        inputs = self._inputs(product, read, last) if read else None
        if inputs is None:
            return None
        inside, (op, domain, version) = [last, *before, *self.gone(read)], PRODUCTS[product.op]
        attributes = {name: value for name, value in product.attributes.items() if name != "beta"}
        return in_place_of(inside, Node(op, inputs, (), product.name, domain, version, attributes, epilogue=clamped))

    def _clamped(self, last: Node) -> tuple[list[Node], tuple[Step, ...]]:
        """What `last` quantises, as `before`; and what a Relu or Clip in between does to bytes, where all numbers are
        constants."""
        nodes, kind = self.only(last.inputs[0]), self.facts.types.get(last.outputs[0])
        first = (
            self.only(nodes.inputs[0])
            if nodes is not None and nodes.op in ("Relu", "Clip") and not nodes.domain
            else None
        )
        before = self.before(last)
        if nodes is None or first is None or len(before) == 2 or kind is None:
            return before, ()
        bounds, numbers = self._bounds(nodes), [self.graph.constant(name) for name in last.inputs[1:3]]
        scale, zero = (None if n is None or n.size != 1 else n.reshape(-1)[0] for n in numbers)
        if bounds is None or scale is None or zero is None:
            return before, ()
        least, most = limits_of(kind.dtype)
        low, high = (float(np.clip(np.rint(bound / scale) + np.float32(zero), least, most)) for bound in bounds)
        clamp = Step(nodes.op, f"clamp(x, {kind.dtype.value}({low}), {kind.dtype.value}({high}))", ("v",), kind.dtype)
        return [nodes, first], (clamp,)

    def _bounds(self, node: Node) -> tuple[Float, Float] | None:
        """Of a Relu or Clip; None where a run brings them."""
        bounds: list[Float] = [np.float32(-np.inf), np.float32(np.inf)]
        if node.op == "Relu":
            return np.float32(0), bounds[1]
        for k, name in enumerate(("min", "max")):
            if isinstance(own := node.attributes.get(name), float | int):
                bounds[k] = np.float32(own)
            elif len(node.inputs) > k + 1 and node.inputs[k + 1]:
                value = self.graph.constant(node.inputs[k + 1])
                if value is None or value.size != 1:
                    return None
                bounds[k] = np.float32(value.reshape(-1)[0])
        return bounds[0], bounds[1]

    def _inputs(self, product: Node, read: Sequence[Node], last: Node) -> tuple[str, ...] | None:
        """Of the fused node; None where types or scales are not those of a product of bytes."""
        x, w = ((*d.inputs, "")[:3] for d in read[:2])
        types = [self.facts.types.get(name) for name in (x[0], w[0], last.outputs[0])]
        scales = [self.facts.types.get(name) for name in (x[1], w[1])]
        if (
            any(t is None or t.dtype not in (UINT8, INT8) for t in types)
            or scales[0] is None
            or scales[1] is None
            or scales[0].size != 1
        ):
            return None
        axis = read[1].attributes.get("axis", 1)
        rank = types[1].rank if types[1] is not None else 0
        expected = 0 if product.op == "Conv" or product.attributes.get("transB") else rank - 1
        if scales[1].size != 1 and (not isinstance(axis, int) or axis % max(rank, 1) != expected):
            return None
        if product.op != "Gemm":
            bias = self._bias(read[2], x[1], w[1]) if len(read) > 2 else ""
            return None if bias is None else (*x, *w, *last.inputs[1:3], *((bias,) if bias else ()))
        alpha = product.attributes.get("alpha", 1.0)
        bias = self._bias(read[2], x[1], w[1], alpha) if len(read) > 2 else ""
        fits = bias is not None and x[2] and w[2] and (not bias or product.attributes.get("beta", 1.0) == 1)
        return (*x, *w, bias or "", *last.inputs[1:3]) if fits else None

    def _bias(self, decoder: Node, x_scale: str, w_scale: str, alpha: Any = 1.0) -> str | None:
        """The 32-bit bias, where it is in steps of the sums."""
        kind = self.facts.types.get(decoder.inputs[0])
        own, a, b = (self.graph.constant(name) for name in (decoder.inputs[1], x_scale, w_scale))
        zero = self.graph.constant(decoder.inputs[2]) if len(decoder.inputs) > 2 and decoder.inputs[2] else np.zeros(1)
        if (
            kind is None
            or kind.dtype is not INT32
            or own is None
            or a is None
            or b is None
            or zero is None
            or np.any(zero)
        ):
            return None
        return decoder.inputs[0] if np.allclose(own, alpha * a * b, rtol=1e-5, atol=0) else None
