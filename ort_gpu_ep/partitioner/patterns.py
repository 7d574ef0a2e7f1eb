"""Patterns written as functions: traced once into a matcher, and into an ONNX model that tests run.

A pattern is also its own reference: a rule's test checks that the pattern's ONNX model matches the rule, becomes one
node, and gives the same result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ort_gpu_ep.ir.graph import Array, Graph, Node

COMMUTATIVE = frozenset(("Add", "Mul", "Max", "Min", "Sum", "And", "Or", "Xor", "Equal"))


@dataclass(frozen=True)
class Variable:
    """A parameter of the pattern: matches any value."""

    name: str


@dataclass(frozen=True, eq=False)
class Call:
    """A node of the pattern: its first output. attributes: required values; others are free."""

    op: str
    arguments: tuple[Variable | Call | float, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)


class _Recorder:
    """`op` of a pattern function: op.Add(x, y) gives a Call."""

    def __getattr__(self, op: str) -> Callable[..., Call]:
        def call(*arguments: Any, **attributes: object) -> Call:
            return Call(op, arguments, attributes)

        return call


@cache
def trace(pattern: Callable[..., Call]) -> tuple[Call, tuple[str, ...]]:
    """The pattern's expression and the names of its variables. Once for a pattern: every rule is tried in every graph,
    twice."""
    names = tuple(inspect.signature(pattern).parameters)[1:]
    return pattern(_Recorder(), *(Variable(n) for n in names)), names


@dataclass
class Match:
    """values: variable -> value name. nodes: the matched nodes, root first. calls: pattern call -> node."""

    graph: Graph
    values: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def constant(self, variable: str) -> Array | None:
        return self.graph.constant(self.values[variable])

    def node(self, op: str) -> Node:
        """The first matched node of that op."""
        return next(n for n in self.nodes if n.op == op)


def match(root: Call, node: Node, graph: Graph, producers: Mapping[str, Node]) -> Match | None:
    """Matches the pattern so that `root` is `node`. Commutative ops match in either order."""
    matched = Match(graph)
    return matched if _call(root, node, matched, producers) else None


def _call(call: Call, node: Node, found: Match, producers: Mapping[str, Node]) -> bool:
    if node.op != call.op or node.domain or node.epilogue or not node.outputs or not node.outputs[0]:
        return False
    if any(node.attributes.get(k) != v for k, v in call.attributes.items()):
        return False
    orders = [list(node.inputs)]
    if call.op in COMMUTATIVE and len(node.inputs) == 2:
        orders.append(list(reversed(node.inputs)))
    for names in orders:
        saved = dict(found.values), list(found.nodes)
        found.nodes.append(node)
        if len(names) >= len(call.arguments) and all(
            _argument(a, n, found, producers) for a, n in zip(call.arguments, names, strict=False)
        ):
            return True
        found.values, found.nodes = saved
    return False


def _argument(pattern: Variable | Call | float, name: str, found: Match, producers: Mapping[str, Node]) -> bool:
    if isinstance(pattern, Variable):
        return found.values.setdefault(pattern.name, name) == name
    if isinstance(pattern, Call):
        return (
            name in producers
            and producers[name].outputs[0] == name
            and _call(pattern, producers[name], found, producers)
        )
    value = found.graph.constant(name)
    return value is not None and value.size == 1 and float(value.reshape(-1)[0]) == pattern
