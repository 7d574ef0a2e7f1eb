"""How many tokens a decoder's tables of positions have room for: angles of rotary embeddings, and learned positions."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import numpy_helper

from ort_gpu_ep.generation.step import POSITIONS

_ANGLES = {
    ("GroupQueryAttention", "com.microsoft"): (7, 8),
    ("RotaryEmbedding", "com.microsoft"): (2, 3),
    ("RotaryEmbedding", ""): (1, 2),
}
"""Ops that read tables of angles by position, and where."""

_SAME = frozenset({"Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Tile", "Slice"})
"""Ops whose output has numbers of their first input."""


def positions_of(model: onnx.ModelProto) -> tuple[int, str] | None:
    """(positions, name of the table) of the smallest table that is read by position; None where there is none that the
    graph tells."""
    graphs = list(_graphs(model.graph))
    nodes = [node for graph in graphs for node in graph.node]
    makers = {name: node for node in nodes for name in node.output}
    constants = {t.name: t for graph in graphs for t in graph.initializer}
    constants |= {
        node.output[0]: a.t for node in nodes if node.op_type == "Constant" for a in node.attribute if a.name == "value"
    }
    rows = {name: t.dims[0] for name, t in constants.items() if len(t.dims) == 2}
    tables = list[tuple[int, str]]()
    for node in nodes:
        angles = [node.input[at] for at in _ANGLES.get((node.op_type, node.domain), ()) if len(node.input) > at]
        tables += [(rows[name], name) for name in angles if name in rows]
        if (
            node.op_type == "Gather"
            and node.input[0] in rows
            and not any(a.name == "axis" and a.i for a in node.attribute)
        ):
            first = _first(node.input[1], makers, constants)
            tables += [(rows[node.input[0]] - first, node.input[0])] if first is not None else []
    return min(tables, default=None)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and the bodies in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _first(name: str, makers: dict[str, onnx.NodeProto], numbers: dict[str, onnx.TensorProto]) -> int | None:
    """Which row the first position reads, if an index is a position: those of some models begin at 2. None where it is
    something else."""
    if name == POSITIONS:
        return 0
    node = makers.get(name)
    if node is None:
        return None
    if node.op_type in ("Range", "CumSum"):  # how tokens are counted where a model is not given their positions
        return int(node.op_type == "CumSum" and not any(a.name == "exclusive" and a.i for a in node.attribute))
    if node.op_type in _SAME:
        return _first(node.input[0], makers, numbers)
    if node.op_type == "Mul":  # by the mask
        return next((place for n in node.input if (place := _first(n, makers, numbers)) is not None), None)
    added = _integer(numbers.get(node.input[1])) if node.op_type in ("Add", "Sub") else None
    before = _first(node.input[0], makers, numbers) if added is not None else None
    return None if added is None or before is None else before + (added if node.op_type == "Add" else -added)


def _integer(number: onnx.TensorProto | None) -> int | None:
    """The integer that a tensor is; None where it is none, or lies in another file."""
    if (
        number is None
        or number.data_location == onnx.TensorProto.EXTERNAL
        or number.data_type not in (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    ):
        return None
    array = numpy_helper.to_array(number)
    return int(array.reshape(-1)[0]) if array.size == 1 else None
