"""One form for what models write in two, before rows are asked: all other passes then know that one.

QuantizeLinear and DequantizeLinear of ONNX Runtime's domain are ONNX's. Parameters that an op of ai.onnx.ml has as
attributes become constants behind its input, so that they are uploaded as weights are, and no shader holds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.graph import Array, Graph, Node, Value
from ort_gpu_ep.ir.types import dtype_of
from ort_gpu_ep.ops.machine_learning import DOMAIN as LEARNING
from ort_gpu_ep.ops.machine_learning import PARAMETERS

QUANTIZER_VERSION = 25
"""Of the QuantizeLinear and DequantizeLinear that stand for those of ONNX Runtime's domain: the newest, which has all
their types."""


def standard(graph: Graph) -> Graph:
    """The graph with each such node in that form; itself, where there is none."""
    nodes, values = list[Node](), dict[str, Value]()
    for node in graph.nodes:
        if node.domain == DOMAIN and node.op in ("QuantizeLinear", "DequantizeLinear"):
            node = replace(node, domain="", version=QUANTIZER_VERSION)
        elif node.domain == LEARNING and len(node.inputs) == 1 and (parameters := PARAMETERS.get(node.op)):
            constants = [_constant(node, name, dtype) for name, dtype in parameters.items()]
            values |= {value.name: value for value in constants if value is not None}
            node = replace(node, inputs=(*node.inputs, *("" if value is None else value.name for value in constants)))
        nodes.append(node)
    if all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
        return graph
    return graph.with_nodes(tuple(nodes), values)


def _constant(node: Node, name: str, dtype: type[np.generic]) -> Value | None:
    """An attribute as a constant, None where the node does not have it."""
    if not node.attributes.get(name):
        return None
    array = np.asarray(node.attributes[name], dtype)
    return Value(f"{node.label}.{node.id}.{name}", dtype_of(array), array.shape, _giver(array))


def _giver(array: Array) -> Callable[[], Array]:
    return lambda: array
