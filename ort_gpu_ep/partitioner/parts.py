"""Concat without a dispatch: the producers of its inputs write directly into the result.

Only where all inputs can be written so: a dispatch is saved then, and no byte is moved twice. And only where that is
more than it costs that a barrier separates writers of one buffer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ort_gpu_ep.ir.graph import Graph, Node, Part
from ort_gpu_ep.ir.symbolic import hint, is_symbolic
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.cost_parameters import Figures
from ort_gpu_ep.kernels.lowering import Facts, bind
from ort_gpu_ep.kernels.registry import Decline, Limits, Lowering, part_count
from ort_gpu_ep.ops.axes import around
from ort_gpu_ep.ops.joining import IN_PLACE

WAIT_DISPATCHES = 2.0
"""What it costs that two who could run side by side don't: a barrier, and the shorter of the two. On an H200, with
everything in place (and with a Concat wherever two parts are of one depth): googlenet 625 us (517), inception_v3 1047
(1013), squeezenet1_1 169 (166)."""


def place_parts(graph: Graph, facts: Facts, limits: Limits) -> Graph:
    """The graph with `Node.into` at the nodes that write parts. facts: of every value."""
    producers = graph.producers()
    read = Counter(name for node in graph.nodes for name in node.reads) + Counter(graph.outputs)
    depths = _depths(graph)
    into: dict[int, Part] = {}
    joined: set[int] = set()
    for node in graph.nodes:
        if node.op != "Concat" or node.domain or node.epilogue:
            continue
        parts = dict(_parts(node, facts, limits))
        if (
            parts
            and _pays(parts, depths, limits.figures)
            and all(
                read[name] == 1 and name in producers and _writes_parts(producers[name], part, facts, limits)
                for name, part in parts.items()
            )
        ):
            into.update({id(producers[name]): part for name, part in parts.items()})
            joined.add(id(node))
    if not joined:
        return graph
    return graph.with_nodes(tuple(_marked(node, into, joined) for node in graph.nodes))


def _pays(parts: Mapping[str, Part], depths: Mapping[str, int], figures: Figures) -> bool:
    """Whether a dispatch and its copying take longer than what makes parts of one depth waits for each other."""
    waits = len(parts) - len({depths.get(name) for name in parts})
    nbytes = hint(next(iter(parts.values())).type.nbytes)
    return bool(waits * WAIT_DISPATCHES * figures.dispatch_ns <= figures.dispatch_ns + 2 * nbytes * figures.byte_ns)


def _depths(graph: Graph) -> dict[str, int]:
    """Of each value that a node makes, the longest chain of nodes that leads to it."""
    depths: dict[str, int] = {}
    for node in graph.nodes:
        depth = 1 + max((depths.get(name, 0) for name in node.reads), default=0)
        depths.update(dict.fromkeys(node.writes, depth))
    return depths


def _marked(node: Node, into: Mapping[int, Part], joined: set[int]) -> Node:
    if id(node) in joined:
        return replace(node, attributes={**node.attributes, IN_PLACE: 1})
    return replace(node, into=into[id(node)]) if id(node) in into else node


def _parts(node: Node, facts: Facts, limits: Limits) -> Iterator[tuple[str, Part]]:
    """Each input with its place in the result; nothing where the result is no place for parts of fixed size."""
    out = facts.types.get(node.outputs[0])
    if (
        out is None
        or node.outputs[0] in facts.known
        or out.dtype.bits < 32
        or any(name not in facts.types for name in node.inputs)
    ):
        return
    axis = node.attributes.get("axis", 1)
    if not isinstance(axis, int) or not out.rank:
        return
    axis %= out.rank
    if (
        is_symbolic(math.prod(out.shape[axis:]))
        or part_count(out, limits.max_binding_nbytes) > 1
        or len(set(node.inputs)) < 2
    ):
        return
    inner, start = around(out.shape, axis)[2], 0
    for name in node.inputs:
        size = facts.types[name].shape[axis] * inner
        yield name, Part(node.outputs[0], out, size, out.shape[axis] * inner, start)
        start += size


def _writes_parts(node: Node, part: Part, facts: Facts, limits: Limits) -> bool:
    """Whether what a node stores can be stored as a part."""
    if node.op == "Concat" or len(node.writes) != 1 or node.outputs[0] in facts.known or part.size == 0:
        return False
    bound = bind(node, facts)
    answer = bound if isinstance(bound, Decline) else claim(bound, limits)
    if not isinstance(answer, Lowering) or answer.deferred or any(target == 0 for target, _ in answer.views):
        return False
    writers = [k for k in answer.kernels if any(target == 0 for _, target in k.writes or ())]
    fours = all(n % 4 == 0 for n in (part.size, part.row, part.start))
    return bool(writers) and all(
        (k.writes or ())[0][1] == 0 and (fours or (k.writes or ())[0][0] not in k.vectors) for k in writers
    )
