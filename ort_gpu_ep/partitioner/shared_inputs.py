"""Products of the same few vectors with packed weights: one dispatch for several of them, and for the RMS normalization
in front of them; and that in front of a mixture of experts, with the scores of these.

A token of a language model is a chain of small dispatches, so each one that goes is worth more than what it computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ort_gpu_ep.ir.graph import BESIDE, Graph, Node, Value
from ort_gpu_ep.ir.symbolic import same
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.lowering import Answer, Facts, bind
from ort_gpu_ep.kernels.registry import BoundNode, Decline, Limits
from ort_gpu_ep.ops.experts import GAMMA, ROUTER_WEIGHTS
from ort_gpu_ep.ops.packed_products import BIAS, GROUPING
from ort_gpu_ep.ops.packed_together import MOST
from ort_gpu_ep.partitioner.fusion import Chains

PRODUCT, SKIP_NORM = ("com.microsoft", "MatMulNBits"), ("com.microsoft", "SkipSimplifiedLayerNormalization")
NORM = ("", "SimplifiedLayerNormalization")
MIXTURE, ROUTER, RESHAPE = ("com.microsoft", "QMoE"), ("", "MatMul"), ("", "Reshape")
ALIKE = ("K", "bits", "block_size", "accuracy_level")
"""Attributes in which products of a dispatch agree."""
PACKING = (("bits", ""), ("block", "_size"))
"""Those of a router in codes."""


def join_products(
    graph: Graph, facts: Facts, limits: Limits, answers: Mapping[int, tuple[Answer, BoundNode | None]]
) -> Graph:
    """The graph with such products in one node each, as far as its row takes them."""
    if not any(_is(node, PRODUCT) or _is(node, MIXTURE) for node in graph.nodes):
        return graph
    graph = _split_skips(graph, facts, limits, answers)
    products = _Products(graph, facts, limits)
    for name in dict.fromkeys(node.inputs[0] for node in graph.nodes if _is(node, PRODUCT) or _is(node, MIXTURE)):
        products.join(name)
    if not products.replaced:
        return graph
    nodes = (products.replaced.get(id(node), node) for node in graph.nodes)
    return graph.with_nodes(tuple(node for node in nodes if node is not None))


def _is(node: Node, op: tuple[str, str]) -> bool:
    return (node.domain, node.op) == op


def _split_skips(
    graph: Graph, facts: Facts, limits: Limits, answers: Mapping[int, tuple[Answer, BoundNode | None]]
) -> Graph:
    """The sum of a SkipSimplifiedLayerNormalization becomes a step of the product before it, where those behind can
    normalize it."""
    products, nodes, values = _Products(graph, facts, limits), list[Node](), dict[str, Value]()
    for node in graph.nodes:
        if not _is(node, SKIP_NORM) or not _may_split(node, products):
            nodes.append(node)
            continue
        outputs = (*node.outputs, "", "", "")
        total, tensor = outputs[3] or f"{node.outputs[0]}.sum", facts.types[node.inputs[0]]
        added = Node("Add", node.inputs[:2], (total,), f"{node.label}.sum", "", 14, id=node.id, sources=node.members)
        norm = replace(
            node,
            op=NORM[1],
            domain=NORM[0],
            version=1,
            inputs=(total, node.inputs[2]),
            outputs=node.outputs[:1],
            attributes={"axis": -1, "epsilon": node.attributes.get("epsilon", 1e-5)},
        )
        facts.types.setdefault(total, tensor)
        values[total] = Value(total, tensor.dtype)
        nodes += [added, norm]
    if not values:
        return graph
    return Chains(graph.with_nodes(tuple(nodes), values), facts, limits, answers).run()


def _may_split(node: Node, found: _Products) -> bool:
    """Whether its sum goes into a product or a mixture that gives one of its terms, and its result to products alone that
    take its scale, or to a mixture and what makes its scores."""
    x, skip = (found.facts.types.get(name) for name in node.inputs[:2])
    outputs = (*node.outputs, "", "", "")
    plain = len(node.inputs) == 3 and not node.epilogue and not outputs[1] and not outputs[2]
    if not plain or x is None or skip is None or x.shape != skip.shape or node.outputs[0] in found.graph.outputs:
        return False
    makers = (found.producers.get(name) for name in node.inputs[:2])
    if not any(
        maker is not None
        and (_is(maker, PRODUCT) or _is(maker, MIXTURE))
        and len(found.readers[maker.outputs[0]]) == 1
        and maker.outputs[0] not in found.graph.outputs
        for maker in makers
    ):
        return False
    name, norm = node.outputs[0], (node.inputs[2], node.attributes.get("epsilon", 1e-5))
    return found.sets(name, norm) is not None or found.routed(name, norm) is not None


@dataclass
class _Products:
    """The products of a graph by what they read. replaced: id() of a node -> what stands there instead."""

    graph: Graph
    facts: Facts
    limits: Limits
    replaced: dict[int, Node | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producers, self.readers = self.graph.producers(), self.graph.consumers()

    def join(self, x: str) -> None:
        """Puts the products of one value together."""
        norm = self.producers.get(x)
        if norm is not None and self._is_plain_norm(norm):
            weight = (norm.inputs[1], norm.attributes.get("epsilon", 1e-5))
            with_norm = self.sets(norm.outputs[0], weight, norm.inputs[0])
            if with_norm is not None:
                self.replaced[id(norm)] = None
                self._replace(with_norm)
                return
            mixture = self.routed(norm.outputs[0], weight, norm.inputs[0])
            if mixture is not None:
                joined, members = mixture
                self.replaced |= {id(node): None for node in (norm, *members)} | {id(members[-1]): joined}
                return
        self._replace(self.sets(x, None) or [])

    def _is_plain_norm(self, node: Node) -> bool:
        if not _is(node, NORM) or node.epilogue or len(node.writes) != 1 or node.outputs[0] in self.graph.outputs:
            return False
        x = self.facts.types.get(node.inputs[0])
        return x is not None and node.attributes.get("axis", -1) in (-1, x.rank - 1)

    def _replace(self, found: Sequence[tuple[Node, Sequence[Node]]]) -> None:
        for joined, members in found:
            last = members[0] if joined.attributes["beside"] else members[-1]
            place = last if joined.epilogue else members[0]
            for node in members:
                self.replaced[id(node)] = joined if node is place else None

    def sets(
        self, x: str, norm: tuple[str, object] | None, source: str = ""
    ) -> list[tuple[Node, Sequence[Node]]] | None:
        """Nodes for the products of x, each with those that it stands for. norm: weight and epsilon of a normalization
        that gives x, of `source`; then it is all of x's readers, or None.
        """
        readers = self.readers.get(x, [])
        products = [
            n
            for n in readers
            if _is(n, PRODUCT) and n.inputs[0] == x and x not in n.operands and not any(n.inputs[GROUPING:BIAS])
        ]
        if norm is not None and (len(products) != len(readers) or not products):
            return None
        sets: list[tuple[Node, Sequence[Node]]] = []
        for members, beside in self._grouped(products):
            if len(members) == 1 and norm is None:
                continue
            joined = _joined(members, beside, norm, source or x)
            bound = bind(joined, self.facts)
            if not isinstance(bound, Decline) and not isinstance(claim(bound, self.limits), Decline):
                sets.append((joined, members))
            elif norm is not None:
                return None
        return sets

    def routed(self, x: str, norm: tuple[str, object], source: str = "") -> tuple[Node, Sequence[Node]] | None:
        """A node for a mixture of experts over x, which `norm` gives of `source`, and its scores; and the nodes that it
        stands for, the mixture last."""
        readers = self.readers.get(x, [])
        mixture = next((node for node in readers if _is(node, MIXTURE)), None)
        router = next((node for node in readers if _is(node, ROUTER) or _is(node, PRODUCT)), None)
        if mixture is None or router is None or len(readers) != 2 or any(mixture.inputs[ROUTER_WEIGHTS:]):
            return None
        members, name = [router], router.outputs[0]
        while name != mixture.inputs[1]:
            (node, *others) = self.readers.get(name) or [router]
            if others or not _is(node, RESHAPE) or node.inputs[0] != name or name in self.graph.outputs:
                return None
            members, name = [*members, node], node.outputs[0]
        if (
            [router.inputs[0], mixture.inputs[0]] != [x, x]
            or x in (*router.inputs[1:], *router.operands, *mixture.inputs[1:], *mixture.operands)
            or self.readers.get(name) != [mixture]
            or name in self.graph.outputs
            or len(router.epilogue) > 1
            or any(step.op != "Add" or {*step.arguments} != {"v", "e0"} for step in router.epilogue)
        ):
            return None
        codes, scales, zeros, index, bias = (*router.inputs[1:], *[""] * 5)[:5]
        attributes = {**mixture.attributes, "epsilon": norm[1]}
        if _is(router, PRODUCT):
            attributes |= {f"router_{name}": router.attributes[f"{name}{size}"] for name, size in PACKING}
        if index or (bias and router.operands):
            return None
        inputs = [source or x, codes, *mixture.inputs[2:]]
        inputs += [*[""] * (GAMMA - len(inputs)), norm[0], bias or "".join(router.operands), scales, zeros]
        while not inputs[-1]:
            inputs.pop()
        joined = replace(
            mixture,
            op="RoutedMixture",
            domain="ort_gpu_ep",
            version=1,
            inputs=tuple(inputs),
            attributes=attributes,  # type: ignore[arg-type]
            sources=tuple(sorted({i for node in (*members, mixture) for i in node.members})),
        )
        asked = bind(joined, self.facts)
        refused = isinstance(asked, Decline) or isinstance(claim(asked, self.limits), Decline)
        return None if refused else (joined, [*members, mixture])

    def _grouped(self, products: Sequence[Node]) -> list[tuple[list[Node], str]]:
        """Which go together: two of which the steps behind one read the other, whose name is given; others without
        steps, up to MOST."""
        left, groups = list(products), list[tuple[list[Node], str]]()
        for node in products:
            for other in products:
                name = other.outputs[0]
                if not other.epilogue and name in node.operands and self._is_beside(node, other):
                    left = [n for n in left if n is not node and n is not other]
                    groups.append(([node, other], name))
                    break
        plain = [n for n in left if not n.epilogue]
        while plain:
            together = [n for n in plain if _alike(n, plain[0])][:MOST]
            plain = [n for n in plain if not any(n is t for t in together)]
            groups.append((together, ""))
        return groups + [([n], "") for n in left if n.epilogue]

    def _is_beside(self, node: Node, other: Node) -> bool:
        """Whether only the steps behind a node read another's result, element by element."""
        name = other.outputs[0]
        kind, beside = self.facts.types.get(node.outputs[0]), self.facts.types.get(name)
        if (
            self.readers[name] != [node]
            or name in self.graph.outputs
            or not _alike(node, other)
            or kind is None
            or beside is None
        ):
            return False
        return len(kind.shape) == len(beside.shape) and all(map(same, kind.shape, beside.shape))


def _alike(node: Node, other: Node) -> bool:
    """Whether one kernel reads both weights."""
    zeros = [len(n.inputs) > 3 and bool(n.inputs[3]) for n in (node, other)]
    return zeros[0] == zeros[1] and all(node.attributes.get(name) == other.attributes.get(name) for name in ALIKE)


def _joined(members: Sequence[Node], beside: str, norm: tuple[str, object] | None, x: str) -> Node:
    """beside: what the steps of the first read of the second."""
    first, inputs = members[0], [x, norm[0] if norm else ""]
    for node in members:
        reads = (*node.inputs, *[""] * (BIAS + 1 - len(node.inputs)))
        inputs += [*reads[1:4], reads[BIAS]]
    while not inputs[-1]:
        inputs.pop()
    attributes = {name: first.attributes[name] for name in ALIKE if name in first.attributes} | {
        "N": tuple(n.attributes["N"] for n in members),
        "epsilon": norm[1] if norm else 0.0,
        "beside": int(bool(beside)),
    }
    steps, operands = first.epilogue, first.operands
    if beside:
        names = {
            f"e{k}": BESIDE if name == beside else f"e{k - (k > operands.index(beside))}"
            for k, name in enumerate(operands)
        }
        steps = tuple(replace(s, arguments=tuple(names.get(a, a) for a in s.arguments)) for s in steps)
        operands = tuple(name for name in operands if name != beside)
    return Node(
        "PackedProducts",
        tuple(inputs),
        first.outputs if beside else tuple(n.outputs[0] for n in members),
        first.name,
        "ort_gpu_ep",
        1,
        attributes,  # type: ignore[arg-type]
        id=first.id,
        sources=tuple(sorted({i for n in members for i in n.members})),
        epilogue=steps,
        operands=operands,
    )
