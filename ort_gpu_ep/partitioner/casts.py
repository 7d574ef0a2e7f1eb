"""Conversions that change nothing: to a wider float and back, with nothing between them or a softmax, which sums in
float32 whatever it reads. Exporters write them around the softmax of attention in float16.

Taken away before patterns are looked for, which have none.
"""

from __future__ import annotations

from dataclasses import replace

from ort_gpu_ep.ir.graph import Graph, Node
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.lowering import Facts, bind
from ort_gpu_ep.kernels.registry import Decline, Limits

SOFTMAXES = ("Softmax", "LogSoftmax")


def without_round_trips(graph: Graph, facts: Facts, limits: Limits) -> Graph:
    """The graph, where a node before such a pair, or the softmax within it, writes what the pair did."""
    casts = [node for node in graph.nodes if _is_cast(node)]
    if len(casts) < 2:
        return graph
    producers, readers = graph.producers(), graph.consumers()
    instead, gone = dict[int, Node](), set[int]()

    def alone(name: str) -> Node | None:
        """What makes a value that one node reads."""
        single = len(readers[name]) == 1 and name not in graph.outputs
        return producers.get(name) if single else None

    for narrow in casts:
        inner = alone(narrow.inputs[0])
        softmax = inner if inner is not None and inner.op in SOFTMAXES and not inner.domain else None
        wide = alone(softmax.inputs[0]) if softmax is not None else inner
        if wide is None or not _is_cast(wide) or not _there_and_back(facts, wide, narrow):
            continue
        writer = softmax or alone(wide.inputs[0])
        if writer is None or len(writer.writes) != 1 or id(writer) in instead or _is_cast(writer):
            continue
        sources = tuple(sorted({*writer.members, *wide.members, *narrow.members}))
        inputs = wide.inputs if softmax is not None else writer.inputs
        node = replace(writer, inputs=inputs, outputs=narrow.outputs, sources=sources)
        if softmax is not None and not _is_taken(node, facts, limits):
            continue
        instead[id(writer)] = node
        gone |= {id(wide), id(narrow)}
    if not instead:
        return graph
    return graph.with_nodes(tuple(instead.get(id(node), node) for node in graph.nodes if id(node) not in gone))


def _is_taken(node: Node, facts: Facts, limits: Limits) -> bool:
    bound = bind(node, facts)
    return not isinstance(bound, Decline) and not isinstance(claim(bound, limits), Decline)


def _is_cast(node: Node) -> bool:
    return node.op == "Cast" and not node.domain and not node.epilogue


def _there_and_back(facts: Facts, wide: Node, narrow: Node) -> bool:
    names = (wide.inputs[0], wide.outputs[0], narrow.outputs[0])
    before, between, behind = (facts.types.get(name) for name in names)
    return (
        before is not None
        and between is not None
        and behind is not None
        and (before.dtype, between.dtype, behind.dtype) == (FLOAT16, FLOAT32, FLOAT16)
    )
