"""Random weights for onnx's "light" models, which ship real graphs whose every weight is one constant."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableSequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

_RESIDUAL_SCALE = 0.8  # keeps the sums of a residual chain in range
_RESIDUAL_HEAD = 0.01  # what they grow to all the same


def materialize_constants(data: bytes, seed: int = 0) -> bytes:
    """Replaces each ConstantOfShape by an initializer with seeded random weights that keep activations in range.

    The draws go in the graph's order; the figures of pretrained.json are for seed 0.
    """
    model = onnx.load_from_string(data)
    graph = model.graph
    stored = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    consumers: dict[str, tuple[onnx.NodeProto, int]] = {}
    for node in graph.node:
        for index, edge in enumerate(node.input):
            consumers.setdefault(edge, (node, index))
    residual = any(node.op_type == "Sum" for node in graph.node)
    rng = np.random.Generator(np.random.PCG64(seed))
    kept, weights = [], []
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in stored:
            shape = tuple(int(d) for d in stored[node.input[0]])
            weight = _weight(rng, shape, node.output[0], consumers, residual)
            weights.append(numpy_helper.from_array(weight.astype(np.float32), node.output[0]))
        else:
            kept.append(node)
    _replace(graph, kept, weights)
    if model.ir_version < 4:  # only from IR 4 on may an initializer do without a graph input
        model.ir_version = 4
        names = {i.name for i in graph.initializer}
        _reset(graph.input, [i for i in graph.input if i.name not in names])
    return bytes(model.SerializeToString(deterministic=True))


def _weight(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    name: str,
    consumers: Mapping[str, tuple[onnx.NodeProto, int]],
    residual: bool,
) -> npt.NDArray[np.float64]:
    """Scales near 1 for factors and variances, He's range for matrices, small values for the rest."""
    node, index = consumers[name]
    is_scale = node.op_type == "BatchNormalization" and index in (1, 4)
    if node.op_type == "Unsqueeze":  # a per-channel Mul or Add behind the normalization
        node, index = consumers[node.output[0]]
        is_scale, index = node.op_type == "Mul", 1 if node.op_type == "Mul" else 2
    if is_scale:
        return rng.uniform(0.8, 1.2, shape) * (_RESIDUAL_SCALE if residual and index != 4 else 1.0)
    if len(shape) >= 2 and node.op_type in ("Conv", "Gemm", "MatMul"):
        fan_in = shape[0] if node.op_type == "MatMul" else int(np.prod(shape[1:]))
        weight = rng.standard_normal(shape) * math.sqrt(2.0 / fan_in)
        return weight * _RESIDUAL_HEAD if residual and node.op_type != "Conv" else weight
    return rng.standard_normal(shape) * 0.05


def _replace(graph: onnx.GraphProto, nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto]) -> None:
    """Puts in the nodes and weights and drops the initializers and inputs that no node reads any more."""
    read = {edge for node in nodes for edge in node.input}
    _reset(graph.initializer, [*(i for i in graph.initializer if i.name in read), *weights])
    _reset(graph.input, [i for i in graph.input if i.name in read])
    _reset(graph.node, nodes)


def _reset(field: MutableSequence[Any], items: list[Any]) -> None:
    """Makes a protobuf container hold these messages."""
    del field[:]
    field.extend(items)
