"""Weights whose constants contradict each other: found when a session is made, and left to ONNX Runtime, which raises
or answers.

The kernels of compressed weights trust what weights/formats.py says of them. A file that was cut or changed may say
otherwise.
"""

from __future__ import annotations

from dataclasses import replace

from ort_gpu_ep.ir.graph import Graph, Node
from ort_gpu_ep.ops.decoders import DAMAGE
from ort_gpu_ep.weights.formats import codebook_fault, sparse_fault
from ort_gpu_ep.weights.functions import CODEBOOK, DOMAIN, NAMES, SPARSE


def with_damage(graph: Graph) -> Graph:
    """The graph, in which decoders of damaged weights have the attribute DAMAGE: what is wrong. No row takes these."""
    if not any(node.domain == DOMAIN for node in graph.nodes):
        return graph
    return graph.with_nodes(tuple(_marked(node, graph) for node in graph.nodes))


def complaints(graph: Graph) -> list[str]:
    """A sentence for each damaged weight of a graph."""
    return [
        f"{node.label}: its weight is damaged, and left to ONNX Runtime: {node.attributes[DAMAGE]}"
        for node in graph.nodes
        if DAMAGE in node.attributes
    ]


def _marked(node: Node, graph: Graph) -> Node:
    if node.domain != DOMAIN or node.op not in NAMES:
        return node
    problem = _fault(node, graph)
    return replace(node, attributes={**node.attributes, DAMAGE: problem}) if problem else node


def _fault(node: Node, graph: Graph) -> str:
    """What is wrong with the constants of a decoder; empty if nothing is, or if their types are not even those that its
    row takes."""
    loads = [graph.values[name].load for name in node.inputs if name in graph.values]
    if len(loads) != len(node.inputs) or None in loads:
        return "its codes are no constants of the model"
    arrays = [load() for load in loads if load is not None]
    shape, size = (node.attributes.get(name) for name in ("shape", "size"))
    if (
        not isinstance(shape, tuple)
        or not isinstance(size, tuple)
        or any(not isinstance(d, int) or d < 0 for d in shape)
    ):
        return f"shape {shape!r} and size {size!r}; expected lists of sizes"
    dims, count = tuple(int(d) for d in shape), tuple(int(d) for d in size)
    if node.op == SPARSE and len(arrays) == 3:
        entries, starts, values = arrays
        if dims and entries.ndim == 1 and (entries.dtype, starts.dtype) == ("uint8", "int32"):
            return sparse_fault(entries, starts, values, dims, count)
    elif len(arrays) == 2:
        codes, values = arrays
        if codes.dtype == "uint8" and codes.ndim == 2 and codes.shape[1] == CODEBOOK.get(node.op):
            return codebook_fault(codes, values, dims, count)
    return f"{', '.join(f'{a.dtype}{list(a.shape)}' for a in arrays)} are no constants of {node.op}"
