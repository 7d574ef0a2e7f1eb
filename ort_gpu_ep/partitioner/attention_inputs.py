"""What optimisers write around attention of ONNX Runtime, without the dispatches that it would take: the bias of
queries, keys and values goes into the products before it, the mask of padding is made once for all layers that have the
same, and ids stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.graph import LARGEST_HALF, Array, Graph, Node, Step, Value
from ort_gpu_ep.ir.symbolic import same
from ort_gpu_ep.ir.types import FLOAT16, INT64, Shape, TensorType
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.lowering import Facts, bind
from ort_gpu_ep.kernels.registry import BoundNode, Decline, Limits, spec_of
from ort_gpu_ep.ops.multi_head import BIAS, MASK, PADDING, masked_scores
from ort_gpu_ep.ops.optimized import IDS, SEGMENT_IDS
from ort_gpu_ep.partitioner.fusion import MAX_STEPS, cancels, join

MULTI_HEAD, EMBEDDING = (DOMAIN, "MultiHeadAttention"), (DOMAIN, "EmbedLayerNormalization")


def simplify_attention(graph: Graph, facts: Facts, limits: Limits) -> Graph:
    """The graph with such biases and masks outside of attention, and no Cast in front of an embedding."""
    if not any((node.domain, node.op) in (*PADDING, EMBEDDING) for node in graph.nodes):
        return graph
    inputs = _Inputs(graph, facts, limits)
    for node in graph.nodes:
        if (node.domain, node.op) == EMBEDDING:
            inputs.read_ids(node)
        if (node.domain, node.op) == MULTI_HEAD and len(node.inputs) > BIAS and node.inputs[BIAS]:
            inputs.move_bias(node)
    inputs.share_masks()
    nodes = (n for node in graph.nodes for n in (*inputs.before.get(id(node), ()), inputs.replaced.get(id(node), node)))
    return graph.with_nodes(tuple(nodes), inputs.values)


@dataclass(frozen=True, slots=True)
class _Masked:
    """Attention whose padding alone says what is added to its scores. scores, before, filtered: what masked_scores
    tells."""

    node: Node
    scores: Shape
    before: int
    filtered: float

    def is_like(self, other: _Masked) -> bool:
        alike = (_padding(self.node), self.filtered) == (_padding(other.node), other.filtered)
        return alike and all(map(same, (*self.scores, self.before), (*other.scores, other.before)))


@dataclass
class _Inputs:
    """replaced: id() of a node -> what stands there instead. before: id() of a node -> what stands in front of it.
    values: new ones."""

    graph: Graph
    facts: Facts
    limits: Limits
    replaced: dict[int, Node] = field(default_factory=dict)
    before: dict[int, list[Node]] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producers, self.readers = self.graph.producers(), self.graph.consumers()

    # ---- biases

    def move_bias(self, node: Node) -> None:
        """Adds the bias in the products that nothing else reads, if these take it all."""
        bias = self.facts.known.get(node.inputs[BIAS]) if node.inputs[BIAS] in self.facts.constants else None
        keys = self.facts.types.get(node.inputs[1]) if len(node.inputs) > 1 else None
        # keys that stand as [B, heads, L, D] have none
        names = node.inputs[: 3 if keys is not None and keys.rank == 3 else 1]
        types = [self.facts.types.get(name) for name in names]
        if (
            bias is None
            or keys is None
            or keys.rank == 5
            or any(t is None or t.rank != 3 for t in types)
            or len(set(names)) < len(names)
        ):
            return
        first, products = 0, list[tuple[Node, Node]]()
        for name, tensor in zip(names, types, strict=True):
            assert tensor is not None, "the caller has looked"
            width = int(tensor.shape[2])
            product = self.producers.get(name)
            biased = product and self._biased(
                product, name, f"{node.inputs[BIAS]}.{first}", bias[first : first + width], tensor
            )
            if product is None or biased is None:
                return
            products.append((product, biased))
            first += width
        self.replaced.update({id(product): biased for product, biased in products})
        self.replaced[id(node)] = replace(node, inputs=(*node.inputs[:BIAS], "", *node.inputs[BIAS + 1 :]))

    def _biased(self, product: Node, name: str, bias_name: str, bias: Array, tensor: TensorType) -> Node | None:
        """The product with the bias as its last step; None where it can't have one, or another node reads it."""
        spec = spec_of(product)
        if (
            spec is None
            or not spec.epilogue
            or len(product.writes) != 1
            or len(self.readers[name]) != 1
            or name in self.graph.outputs
        ):
            return None
        self._constant(bias_name, bias, tensor)
        added = Node(
            "Elementwise",
            (),
            (name,),
            product.name,
            "ort_gpu_ep",
            1,
            id=product.id,
            sources=product.members,
            epilogue=(Step("Add", "x + y", ("e0", "e1"), tensor.dtype),),
            operands=(name, bias_name),
        )
        node = join(product, added, name)
        bound = bind(node, self.facts)
        refused = isinstance(bound, Decline) or isinstance(claim(bound, self.limits), Decline)
        return None if refused or len(node.epilogue) > MAX_STEPS or cancels(node.epilogue) else node

    def _constant(self, name: str, array: Array, like: TensorType) -> None:
        array = np.ascontiguousarray(array)
        self.values[name] = Value(name, like.dtype, tuple(array.shape), lambda: array)
        self.facts.types[name], self.facts.known[name] = TensorType(like.dtype, tuple(array.shape)), array
        self.facts.constants.add(name)

    # ---- ids

    def read_ids(self, node: Node) -> None:
        """Embeds ids of 64 bits themselves, where a Cast makes 32 of them: its lower 32 bits."""
        inputs, bound = list(node.inputs), bind(node, self.facts)
        for at in (IDS, SEGMENT_IDS):
            cast = self.producers.get(inputs[at])
            kind = (
                self.facts.types.get(cast.inputs[0])
                if cast is not None and cast.op == "Cast" and not cast.domain
                else None
            )
            if cast is not None and kind is not None and kind.dtype is INT64 and not cast.epilogue:
                inputs[at] = cast.inputs[0]
        if tuple(inputs) == node.inputs or isinstance(bound, Decline):
            return
        embedding = replace(
            node, domain="ort_gpu_ep", inputs=tuple(inputs), attributes={"epsilon": bound.attr("epsilon")}
        )
        bound = bind(embedding, self.facts)
        if not isinstance(bound, Decline) and not isinstance(claim(bound, self.limits), Decline):
            self.replaced[id(node)] = embedding

    # ---- masks

    def share_masks(self) -> None:
        """One node for each mask that several nodes would make for themselves."""
        left = [
            masked
            for node in self.graph.nodes
            if (masked := self._masked(self.replaced.get(id(node), node))) is not None
        ]
        origins = {self.replaced.get(id(node), node).outputs: node for node in self.graph.nodes}
        while left:
            alike = [masked for masked in left if masked.is_like(left[0])]
            left = [masked for masked in left if not any(masked is a for a in alike)]
            if len(alike) > 1:
                self._share(alike, [origins[masked.node.outputs] for masked in alike])

    def _masked(self, node: Node) -> _Masked | None:
        """The node, if padding is all that its mask is made of, and its type has a number for what is filtered."""
        at = PADDING.get((node.domain, node.op))
        if (
            at is None
            or not _padding(node)
            or node.attributes.get("unidirectional")
            or any(node.inputs[MASK : MASK + 1])
        ):
            return None
        bound = bind(node, self.facts)
        if not isinstance(bound, BoundNode) or isinstance(claim(bound, self.limits), Decline):
            return None
        masked = _Masked(node, *masked_scores(bound))
        return None if bound.input(0).dtype is FLOAT16 and abs(masked.filtered) > LARGEST_HALF else masked

    def _share(self, alike: Sequence[_Masked], origins: Sequence[Node]) -> None:
        first, name = alike[0], f"{origins[0].outputs[0]}.mask"
        dtype = self.facts.types[first.node.inputs[0]].dtype
        attributes: dict[str, Any] = {
            "scores": first.scores,
            "before": first.before,
            "to": dtype.onnx,
            "mask_filter_value": first.filtered,
        }
        node = Node(
            "AttentionMask",
            (_padding(first.node),),
            (name,),
            f"{origins[0].label}.mask",
            "ort_gpu_ep",
            1,
            attributes,
            id=origins[0].id,
            sources=origins[0].members,
        )
        bound = bind(node, self.facts)
        answer = bound if isinstance(bound, Decline) else claim(bound, self.limits)
        if isinstance(answer, Decline) or answer.outputs[0] is None:
            return
        self.facts.types[name], self.values[name] = answer.outputs[0], Value(name, dtype)
        self.before.setdefault(id(origins[0]), []).append(node)
        for masked, origin in zip(alike, origins, strict=True):
            at = PADDING[(masked.node.domain, masked.node.op)]
            inputs = [*masked.node.inputs, *[""] * (MASK + 1 - len(masked.node.inputs))]
            inputs[at], inputs[MASK] = "", name
            self.replaced[id(origin)] = replace(masked.node, inputs=tuple(inputs))


def _padding(node: Node) -> str:
    at = PADDING[(node.domain, node.op)]
    return node.inputs[at] if len(node.inputs) > at else ""
