"""The fusion engine: chains of elementwise ops go into whatever produces their input.

A fusion fires only if `claim` accepts the fused node, so a fused pattern can't bypass the support check. It runs on
concrete types: once with stand-ins for the claim, and again for each plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ort_gpu_ep.ir.graph import Graph, Node, Step
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.lowering import Answer, Facts, HostValues, bind
from ort_gpu_ep.kernels.registry import BoundNode, Decline, Limits, Lowering, spec_of

MAX_STEPS = 24
"""Steps in one fused kernel: enough for every chain seen in exported models, small enough for quick compilation."""

ELEMENTWISE = ("ort_gpu_ep", "Elementwise")


class Chains:
    """Fuses elementwise nodes into their producers, in topological order."""

    def __init__(
        self, graph: Graph, facts: Facts, limits: Limits, answers: Mapping[int, tuple[Answer, BoundNode | None]]
    ) -> None:
        self.graph, self.facts, self.limits, self.answers = graph, facts, limits, answers
        self.readers = {name: len(nodes) for name, nodes in graph.consumers().items()}
        self.made: dict[str, Node] = {}  # value -> the (fused) node that makes it
        self.order: dict[int, Node] = {}  # id() of such a node -> it, in the order of the last member

    def run(self) -> Graph:
        for node in self.graph.nodes:
            while (merged := self._merge(node)) is not None:
                node = merged
            self.order[id(node)] = node
            for name in node.writes:
                self.made[name] = node
        return self.graph.with_nodes(tuple(self.order.values()))

    def _merge(self, consumer: Node) -> Node | None:
        """The consumer fused with one of the producers of its operands, None if none can be."""
        elementwise = self._as_elementwise(consumer)
        if elementwise is None:
            return None
        out = self.facts.types.get(elementwise.outputs[0])
        for name in dict.fromkeys(elementwise.operands):
            producer = self.made.get(name)
            if producer is None or out is None or not self._may_absorb(producer, name, out):
                continue
            fused = self._joined(producer, elementwise, name)
            if fused is not None:
                del self.order[id(producer)]
                return fused
        return None

    def _as_elementwise(self, node: Node) -> Node | None:
        return as_elementwise(node, self.facts, self.limits, self.answers)

    def _may_absorb(self, producer: Node, name: str, out: TensorType) -> bool:
        """Whether the one output of `producer` is read by this consumer only and has the shape of the result."""
        if len(producer.writes) != 1 or name in self.graph.outputs or self.readers.get(name) != 1:
            return False
        kind = self.facts.types.get(name)
        if kind is None or kind.shape != out.shape:
            return False
        if self._as_elementwise(producer) is not None:
            return True
        spec = spec_of(producer)
        answer = self.answers.get(id(producer), (None, None))[0]
        return spec is not None and spec.epilogue and not isinstance(answer, Decline | HostValues)

    def _joined(self, producer: Node, consumer: Node, name: str) -> Node | None:
        """One node that does both, None where the claim refuses it."""
        base = self._as_elementwise(producer) or producer
        fused = join(base, consumer, name)
        if len(fused.epilogue) > MAX_STEPS or cancels(fused.epilogue):
            return None
        bound = bind(fused, self.facts)
        if isinstance(bound, Decline) or isinstance(claim(bound, self.limits), Decline):
            return None
        # the value between them is gone: whatever read it once or more is this consumer
        for operand in set(consumer.operands) & set(base.operands):
            self.readers[operand] -= 1
        return fused


def as_elementwise(
    node: Node, facts: Facts, limits: Limits, answers: Mapping[int, tuple[Answer, BoundNode | None]]
) -> Node | None:
    """The node as steps over operands; None if it is not elementwise, or the host computes it."""
    if (node.domain, node.op) == ELEMENTWISE:
        return node
    if node.epilogue or len(node.writes) != 1:
        return None
    answer, bound = answers.get(id(node), (None, None))
    if bound is None:
        rebound = bind(node, facts)
        bound = rebound if isinstance(rebound, BoundNode) else None
        answer = claim(bound, limits) if bound else None
    if not isinstance(answer, Lowering) or len(answer.kernels) != 1 or answer.kernels[0].shader != "elementwise.wgsl":
        return None
    kernel = answer.kernels[0]
    reads = dict(kernel.reads or ())
    order = [int(reads[f"e{k}"]) for k in range(len(reads))]
    return Node(
        ELEMENTWISE[1],
        (),
        node.outputs,
        node.name,
        ELEMENTWISE[0],
        1,
        id=node.id,
        sources=node.members,
        epilogue=kernel.epilogue,
        operands=tuple(node.inputs[i] for i in order),
    )


_SUMS = {"Add": (1, 1), "Sub": (1, -1), "Neg": (-1,), "Identity": (1,)}
_PRODUCTS = {"Mul": (1, 1), "Div": (1, -1), "Reciprocal": (-1,), "Neg": (1,), "Identity": (1,)}
"""Ops of steps whose result is a sum, or a product, of their arguments; with these signs, or exponents."""


def cancels(steps: Sequence[Step]) -> bool:
    """Whether a value meets itself with the opposite sign, or as its own divisor.

    Inside a shader, drivers take x - x for 0 and x / x for 1, but it is NaN where x is NaN or infinite; of memory that
    is read twice they can't know.
    """
    for signs_of in (_SUMS, _PRODUCTS):
        forms: dict[str, Counter[str]] = {}
        for k, step in enumerate(steps):
            signs = signs_of.get(
                step.op, (1,) * len(step.arguments) if step.op == "Sum" and signs_of is _SUMS else None
            )
            if signs is None:
                continue
            total, met = Counter[str](), 0
            for argument, sign in zip(step.arguments, signs, strict=True):
                for value, count in forms.get(argument, Counter({argument: 1})).items():
                    total[value] += sign * count
                    met += abs(count)
            if sum(map(abs, total.values())) < met:
                return True
            forms[f"s{k}"] = total
    return False


def join(producer: Node, consumer: Node, name: str) -> Node:
    """The producer with the consumer's steps after its own. `name`: the value that goes from one to the other."""
    operands = list(producer.operands)
    first = len(producer.epilogue)
    result = f"s{first - 1}" if first else "v"
    renamed: dict[str, str] = {}
    for k, operand in enumerate(consumer.operands):
        if operand == name:
            renamed[f"e{k}"] = result
        else:
            if operand not in operands:
                operands.append(operand)
            renamed[f"e{k}"] = f"e{operands.index(operand)}"
    for k in range(len(consumer.epilogue)):
        renamed[f"s{k}"] = f"s{first + k}"
    steps = tuple(replace(s, arguments=tuple(renamed[a] for a in s.arguments)) for s in consumer.epilogue)
    return replace(
        producer,
        outputs=consumer.outputs,
        epilogue=(*producer.epilogue, *steps),
        operands=tuple(operands),
        sources=tuple(sorted({*producer.members, *consumer.members})),
    )
