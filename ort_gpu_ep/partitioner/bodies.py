"""Bodies of If, Loop and Scan: where a turn runs, and whether what it leaves stays on the device.

The bodies are decided on before the graph that their node is in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ort_gpu_ep.errors import Code
from ort_gpu_ep.ir.graph import Graph, Node
from ort_gpu_ep.partitioner.costs import Prices, predict
from ort_gpu_ep.partitioner.cut import NodeCost
from ort_gpu_ep.partitioner.report import NodeReport, Prediction, Report

TURNS = 8
"""Turns that a Loop or Scan inside another body is taken to have: nobody knows."""

RESIDENT = "resident"


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of a body. predictions: of a turn, what was chosen first."""

    predictions: tuple[Prediction, ...]

    @property
    def on_cpu(self) -> bool:
        """All of the body, and so its node."""
        return self.predictions[0].candidate == "cpu"

    @property
    def resident(self) -> bool:
        return self.predictions[0].candidate == RESIDENT

    @property
    def why(self) -> str:
        return _why(self.predictions)


def choose(graph: Graph, prices: Prices, groups: Sequence[Sequence[Node]], ours: bool, strict: bool) -> Choice:
    """The cheapest way for a turn of a body. ours: whether its node can be. strict: what can be on the GPU is there.

    A branch of an If is not weighed against the CPU: it runs once, and what it reads may be on the GPU already.
    """
    assert graph.parent is not None
    on_host = {*graph.inputs[:2], *graph.outputs[:1]} if graph.parent.op == "Loop" else set[str]()
    on_host |= {name for node in deciding(graph) for name in (*node.reads, *node.writes)}
    ways = [predict("gpu", prices, groups)]
    if ours and groups:
        ways.append(predict(RESIDENT, prices, groups, lambda name: name not in on_host))
    if graph.parent.op != "If" and not strict:
        ways.append(predict("cpu", prices, ()))
    ways.sort(key=lambda way: way.total_s)
    return Choice(tuple(ways))


def can_be_ours(graph: Graph) -> bool:
    """Whether a body's If, Loop or Scan can be ours: all that goes in and comes out are tensors of types that we know;
    a Scan is over first axes, and of opset 9 or later.
    """
    parent = graph.parent
    if parent is None or parent.op not in ("If", "Loop", "Scan") or (parent.op == "Scan" and parent.version < 9):
        return False
    names = (*graph.inputs, *graph.outputs)
    is_known = all(name in graph.values and graph.values[name].dtype is not None for name in names)
    return is_known and not any(np.any(parent.attributes.get(f"scan_{way}_axes", ())) for way in ("input", "output"))


def deciding(graph: Graph) -> list[Node]:
    """The nodes of a Loop's body that give its condition from what the host has: the number of the turn, single numbers
    from outside.

    On the GPU each turn would wait for them.
    """
    if graph.parent is None or graph.parent.op != "Loop" or not graph.outputs:
        return []
    numbers = {name for name in graph.inputs if _is_number(graph, name)} | {
        name for name, v in graph.values.items() if v.is_constant
    }
    deciders = []
    for node in graph.nodes:
        if numbers.issuperset(node.reads) and not node.has_subgraph:
            numbers |= {*node.writes}
            deciders.append(node)
    names, nodes = {graph.outputs[0]}, []
    for node in reversed(deciders):
        if graph.outputs[0] in numbers and not names.isdisjoint(node.writes):
            names |= {*node.reads}
            nodes.append(node)
    return nodes


def _is_number(graph: Graph, name: str) -> bool:
    value = graph.values.get(name)
    if (
        value is None
        or value.dtype is None
        or value.shape is None
        or not value.dtype.name.startswith(("int", "uint", "bool"))
    ):
        return False
    return all(isinstance(d, int) for d in value.shape) and math.prod(d for d in value.shape if isinstance(d, int)) <= 1


def with_inner(
    prices: Prices,
    graph: Graph,
    groups: Sequence[Sequence[Node]],
    bodies: Mapping[int, Sequence[Report]],
) -> tuple[Prices, list[Sequence[Node]]]:
    """Prices and groups with a graph's own If, Loop and Scan, of which those that are ours are on the GPU. bodies: by
    id of the node.

    Whether one is ours was settled with its bodies: with the other nodes on the CPU it takes what their values take
    between the sides.
    """
    nodes, added = dict(prices.nodes), list(groups)
    for node in graph.nodes:
        predictions = [report.predictions for report in bodies.get(node.id, ()) if report.predictions]
        if not predictions:
            continue
        turns = 1 if node.op == "If" else TURNS
        best_s = turns * max(ways[0].total_s for ways in predictions)
        ours = is_ours(bodies[node.id])
        apart_s = (
            turns * max(next(way.total_s for way in ways if way.candidate == "gpu") for ways in predictions)
            if ours
            else best_s
        )
        waits_s = prices.wait_s if node.op == "If" else 0.0  # for which branch it is
        nodes[id(node)] = NodeCost(apart_s, best_s + waits_s if ours else None)
        added += [[node]] if ours else []
    return replace(prices, nodes=nodes), added


def is_ours(bodies: Sequence[Report]) -> bool:
    """Whether a node with these bodies is ours: each can be run so, and one is to be."""
    return any(b.resident for b in bodies) and all(b.able for b in bodies)


def seen(report: Report, nodes: Sequence[Node], bodies: Mapping[int, Sequence[Report]]) -> Report:
    """The report on a graph with what became of its If, Loop and Scan. nodes: of the graph."""
    changes = {node.id: change for node in nodes if (change := _seen(node, bodies.get(node.id, ()))) is not None}
    return (
        replace(report, nodes=tuple(changes[n.id](n) if n.id in changes else n for n in report.nodes))
        if changes
        else report
    )


def _seen(node: Node, bodies: Sequence[Report]) -> Callable[[NodeReport], NodeReport] | None:
    if is_ours(bodies):
        return lambda n: replace(n, device="gpu", code="", reason="")
    left = next((r for r in bodies if r.predictions and r.predictions[0].candidate == "cpu"), None)
    if left is None:
        reason = _without_kernel(node.op, bodies)
        return (lambda n: replace(n, reason=reason) if n.code == Code.OP else n) if reason else None
    why = f"left to the CPU with its body: {_why(left.predictions)}"
    return lambda n: replace(n, code=Code.COST, reason=why)


def _without_kernel(op: str, bodies: Sequence[Report]) -> str:
    """Why an If, Loop or Scan is not on the GPU though others are. Empty for other ops, and where nothing is known of
    the bodies."""
    if not bodies or op not in ("If", "Loop", "Scan"):
        return ""
    if any(body.placement == "auto" for body in bodies):
        return (
            f"placement=auto leaves {op} to the CPU unless it chooses the candidate gpu; placement=gpu can run "
            f"it on the GPU"
        )
    if not all(body.able for body in bodies):
        return (
            f"this {op} can't keep its values on the GPU: isolation=process, a value that is no tensor of a "
            f"known type, "
            "or a Scan that is of opset 8 or over another axis than the first"
        )
    if any(body.partitions for body in bodies):
        return (
            f"copying the values of each turn of this {op} is predicted to take no longer than keeping them on the GPU"
        )
    return f"no node in the bodies of this {op} is on the GPU"


def _why(predictions: Sequence[Prediction]) -> str:
    best, next_best = predictions[:2]
    return (
        f"a turn is predicted to take {best.total_s * 1e3:.3f} ms on the CPU, {next_best.total_s * 1e3:.3f} "
        f"ms on the GPU"
    )
