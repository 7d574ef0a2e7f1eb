"""Values of float16 that lie in float32 between two kernels: float16 ends at 65,504, and what a reduction reads or
gives may not.

A square, an exponential or a product is often beyond that where the mean or the quotient that is made of it is not.
ONNX Runtime's CPU calculates float16 networks in float32 from node to node, so it has these values in float32, too.
Kernels calculate in float32 as well; this pass is about what they store. What a model gives to the outside stays
float16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ort_gpu_ep.ir.graph import Graph, Node, Step, Value
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, DType, TensorType
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.lowering import Answer, Facts, bind
from ort_gpu_ep.kernels.registry import BoundNode, Decline, Limits, spec_of
from ort_gpu_ep.partitioner.fusion import as_elementwise

SUMS = frozenset(
    (
        "ReduceSum",
        "ReduceSumSquare",
        "ReduceL1",
        "ReduceL2",
        "ReduceProd",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "GlobalLpPool",
        "LpPool",
        "CumSum",
        "CumProd",
        "Einsum",
    )
)
"""Reductions whose result may be beyond float16 though no element is."""

POOLS = frozenset(("GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", "LRN"))

SCORED = SUMS | {"ReduceMean", "ReduceMax", "ReduceMin", "Softmax", "LogSoftmax"}
"""Those that also read products of matrices in float32: such are scores of attention that no rule fused."""

NORMS = frozenset(
    (
        "Softmax",
        "LayerNormalization",
        "RMSNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "MeanVarianceNormalization",
        "LpNormalization",
    )
)
"""Reductions whose results float16 reaches to, whatever they read."""

REDUCTIONS = SCORED | POOLS | NORMS

MOVING = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Slice", "Expand", "Concat"))
"""Ops that give elements of what they were given, of any type."""

ALIKE = frozenset(("Concat", "Einsum"))
"""Of all these, those whose inputs have one type."""

PRODUCTS = frozenset(("MatMul", "Gemm", "FusedMatMul"))
"""Sums of products."""

BOUNDED, PLAIN, BEYOND = range(3)
"""What is known of a magnitude: about 1 at most (constants count as that), that of a value in float16, or perhaps
beyond it."""

_ABOUT_ONE = frozenset(("Sigmoid", "Tanh", "HardSigmoid", "Erf", "Softsign", "Sin", "Cos", "Sign"))
_GROWING = frozenset(("Pow", "Exp", "Reciprocal", "Sinh", "Cosh", "Tan"))


def widen(graph: Graph, facts: Facts, limits: Limits, answers: Mapping[int, tuple[Answer, BoundNode | None]]) -> Graph:
    """The graph with float32 in place of float16 where a reduction is near; the same graph where there is nothing to
    do."""
    if not any(tensor.dtype is FLOAT16 for tensor in facts.types.values()):
        return graph
    widths = _Widths(graph, facts, limits, answers)
    while widths.choose():
        nodes, declined = widths.rewritten()
        if not declined:
            return graph.with_nodes(nodes, {_wide(name): Value(_wide(name), FLOAT32) for name in widths.wide})
        widths.banned |= declined
    return graph


def _wide(name: str) -> str:
    return f"{name} in float32"


class _Widths:
    """wide: the values that are stored in float32. banned: those that must not be, because a row refused its node
    then."""

    def __init__(
        self, graph: Graph, facts: Facts, limits: Limits, answers: Mapping[int, tuple[Answer, BoundNode | None]]
    ) -> None:
        self.graph, self.facts, self.limits = graph, facts, limits
        self.steps = [as_elementwise(node, facts, limits, answers) for node in graph.nodes]
        self.readers = graph.consumers()
        self.elementwise = {id(node) for node, steps in zip(graph.nodes, self.steps, strict=True) if steps is not None}
        self.wide: set[str] = set()
        self.banned: set[str] = set()

    def choose(self) -> bool:
        """Fills `wide`; whether there is any."""
        names = self._wanted()
        magnitudes: dict[str, int] = {}
        self.wide = set()
        for node, steps in zip(self.graph.nodes, self.steps, strict=True):
            if len(node.writes) != 1 or not node.outputs[0]:
                continue
            name, last = node.outputs[0], steps or node
            magnitudes[name] = self._magnitude(last, magnitudes)
            if self._may_be(name) and self._should_be(node, last, name in names, magnitudes[name]):
                self.wide.add(name)
        return bool(self.wide)

    def _wanted(self) -> set[str]:
        """What a reduction reads, also through what moves elements or calculates with each."""
        names = set[str]()
        for node, steps in zip(reversed(self.graph.nodes), reversed(self.steps), strict=True):
            passes_on = bool(names.intersection(node.outputs))
            if _reduces(node):
                names |= set(node.inputs if node.op in ALIKE else node.inputs[:1])
            if passes_on:
                names |= {*(steps or node).operands, *(node.inputs if _moves(node) else ())}
        return names

    def _may_be(self, name: str) -> bool:
        tensor = self.facts.types.get(name)
        return (
            tensor is not None and tensor.dtype is FLOAT16 and name not in self.facts.known and name not in self.banned
        )

    def _should_be(self, node: Node, steps: Node, wanted: bool, magnitude: int) -> bool:
        """Of what a node writes. steps: the node, if elementwise as such."""
        is_elementwise, (name,) = steps is not node, node.writes
        reads_wide = not self.wide.isdisjoint(
            (*steps.operands, *(node.inputs if _reduces(node) or _moves(node) else ()))
        )
        beyond = reads_wide or magnitude == BEYOND
        read_on = any(
            id(reader) in self.elementwise or name in reader.operands for reader in self.readers.get(name, ())
        )
        if is_elementwise:
            return (wanted and beyond) or (reads_wide and read_on and all(map(self._is_no_half, steps.operands)))
        if _moves(node):
            return reads_wide and (wanted or read_on)
        if _reduces(node):
            return node.op not in NORMS and (reads_wide or node.op in SUMS) and (wanted or read_on)
        spec = spec_of(node)
        if not wanted or spec is None or not spec.epilogue:
            return False
        scores = node.op in PRODUCTS and any(reader.op in SCORED and not reader.domain for reader in self.readers[name])
        return scores or (bool(node.epilogue) and beyond)

    def _is_no_half(self, name: str) -> bool:
        """Whether it is a constant, or not stored in float16."""
        return name in self.wide or self._is_constant(name) or self.facts.types[name].dtype is not FLOAT16

    def _is_constant(self, name: str) -> bool:
        return name in self.facts.constants or name in self.facts.known

    def _magnitude(self, node: Node, known: Mapping[str, int]) -> int:
        """Of what a node gives, as far as its steps tell."""
        magnitudes = {"v": PLAIN} | {
            f"e{k}": BOUNDED if self._is_constant(name) else BEYOND if name in self.wide else known.get(name, PLAIN)
            for k, name in enumerate(node.operands)
        }
        for k, step in enumerate(node.epilogue):
            magnitudes[f"s{k}"] = _after(step, [magnitudes.get(a, PLAIN) for a in step.arguments])
        return magnitudes[f"s{len(node.epilogue) - 1}"] if node.epilogue else PLAIN

    def rewritten(self) -> tuple[tuple[Node, ...], set[str]]:
        """The nodes, and what of `wide` goes in or out of those that a row refuses."""
        types = {**self.facts.types, **{_wide(n): TensorType(FLOAT32, self.facts.types[n].shape) for n in self.wide}}
        facts, nodes, refused, there = replace(self.facts, types=types), list[Node](), set[str](), set[str]()
        for node, steps in zip(self.graph.nodes, self.steps, strict=True):
            changed = self._changed(node, steps)
            if changed is None:
                nodes += [*self._narrowed(node.inputs, there), node]
                continue
            nodes += [*self._narrowed(changed.inputs, there), *self._widened(node, changed, facts, there), changed]
            bound = bind(changed, facts)
            if isinstance(bound, Decline) or isinstance(claim(bound, self.limits), Decline):
                refused |= self.wide.intersection((*node.reads, *node.writes))
        nodes += self._narrowed(self.graph.outputs, there)
        return tuple(nodes), refused

    def _changed(self, node: Node, steps: Node | None) -> Node | None:
        """The node as it reads and writes what is wide; None where it does neither."""
        wide = self.wide.intersection(node.writes)
        read = self.wide.intersection(node.operands if steps is None else steps.operands)
        inputs = self.wide.intersection(node.inputs) if steps is None and (_reduces(node) or _moves(node)) else set()
        if not (wide or read or inputs):
            return None
        widened = steps or node
        widened = replace(widened, operands=tuple(_wide(n) if n in read else n for n in widened.operands))
        natural = FLOAT16
        if inputs:
            alike, natural = node.op in ALIKE, FLOAT32
            widened = replace(
                widened,
                inputs=tuple(_wide(n) if n in inputs or (alike and self._is_half(n)) else n for n in widened.inputs),
            )
        if wide:
            widened = replace(widened, outputs=tuple(_wide(n) if n in wide else n for n in widened.outputs))
        return stored_as(widened, FLOAT32 if wide else self.facts.types[node.outputs[0]].dtype, natural)

    def _is_half(self, name: str) -> bool:
        return name in self.facts.types and self.facts.types[name].dtype is FLOAT16

    def _narrowed(self, names: tuple[str, ...], there: set[str]) -> Iterator[Node]:
        """Casts of what is wide, for those who read it in float16."""
        for name in self.wide.intersection(names) - there:
            there.add(name)
            yield Node("Cast", (_wide(name),), (name,), f"{name} in float16", "", 13, {"to": FLOAT16.onnx})

    def _widened(self, node: Node, made: Node, facts: Facts, there: set[str]) -> Iterator[Node]:
        """Casts of what is not, for those who read it beside something wide."""
        for plain, name in dict.fromkeys(zip(node.inputs, made.inputs, strict=True) if made.inputs else ()):
            if name != plain and plain not in self.wide and name not in there:
                there.add(name)
                facts.types[name] = TensorType(FLOAT32, facts.types[plain].shape)
                yield Node("Cast", (plain,), (name,), name, "", 13, {"to": FLOAT32.onnx})


def stored_as(node: Node, dtype: DType, natural: DType) -> Node:
    """The node with its one output stored in an element type. natural: what it stores without steps."""
    if node.epilogue:
        return replace(node, epilogue=(*node.epilogue[:-1], replace(node.epilogue[-1], dtype=dtype)))
    return node if dtype is natural or _moves(node) else replace(node, epilogue=(Step("Cast", "x", ("v",), dtype),))


def _reduces(node: Node) -> bool:
    return not node.domain and node.op in REDUCTIONS and len(node.writes) == 1


def _moves(node: Node) -> bool:
    return not node.domain and node.op in MOVING and not node.epilogue and len(node.writes) == 1


def _after(step: Step, arguments: list[int]) -> int:
    """What is known of the magnitude after a step."""
    most = max(arguments, default=PLAIN)
    if step.op in _ABOUT_ONE:
        return BOUNDED
    if step.op == "Clip":
        return min(most, PLAIN)
    if step.op in _GROWING:
        return min(most + 1, BEYOND)
    if step.op == "Mul" and sum(a > BOUNDED for a in arguments) > 1:
        return BEYOND
    if step.op == "Div" and arguments[-1] > BOUNDED:
        return BEYOND
    return most
