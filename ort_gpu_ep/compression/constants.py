"""Finds a model's constants in the forms that exporters write them, and brings them to initializers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper
from onnx.reference import ReferenceEvaluator

from ort_gpu_ep.compression.layers import MIN_WEIGHTS, Array, attribute, bodies, reads
from ort_gpu_ep.errors import ModelError

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)
MOVES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast")
"""What exporters leave between a weight and its product."""


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without local functions. Raises ModelError."""
    try:
        return inliner.inline_local_functions(model) if model.functions else model
    except Exception as error:
        raise ModelError(f"the model's local functions can't be inlined: {error}") from error


def brought_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose weights are initializers that products read: Constant nodes lifted, what only moves constants done.

    A constant that others read, too, is not moved: it would be there twice.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    readers = reads(graph)
    initializers = {i.name: i for i in graph.initializer}
    inputs = {i.name for i in graph.input}
    kept = []
    for node in graph.node:
        array = (
            _moved(node, initializers, inputs, readers)
            if node.domain in ("", "ai.onnx") and len(node.output) == 1
            else None
        )
        if array is None:
            kept.append(node)
            continue
        initializers[node.output[0]] = graph.initializer.add()
        initializers[node.output[0]].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), node.output[0]))
        for name in (n for n in node.input if n):
            readers[name] -= 1
            if not readers[name]:
                graph.initializer.remove(initializers.pop(name))
    del graph.node[:]
    graph.node.extend(kept)
    return copy


def _moved(
    node: onnx.NodeProto, held: dict[str, onnx.TensorProto], given: Collection[str], readers: Counter[str]
) -> Array | None:
    """The value of a node that holds a weight, or only moves one that nobody else reads; None for another node."""
    if node.op_type == "Constant":
        (value,) = node.attribute
        if value.name == "value_floats" and len(value.floats) >= MIN_WEIGHTS:
            return np.array(value.floats, np.float32)
        return numpy_helper.to_array(value.t) if value.name == "value" and _is_weight(value.t) else None
    if node.op_type not in MOVES or not all(n in held and n not in given for n in node.input if n):
        return None
    weight = held[node.input[0]]
    kind = attribute(node, "to", onnx.TensorProto.FLOAT)
    if not _is_weight(weight) or readers[weight.name] > 1 or kind != onnx.TensorProto.FLOAT:
        return None
    result: Any = ReferenceEvaluator(node).run(None, {n: numpy_helper.to_array(held[n]) for n in node.input if n})
    moved: Array = result[0]
    return moved


def _is_weight(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in FLOATS and int(np.prod(tensor.dims)) >= MIN_WEIGHTS


def left_alone(model: onnx.ModelProto, compressed: Collection[str]) -> tuple[str, int]:
    """Constants as large as a weight which are not among the names `compressed`, by what they are and who reads them;
    and their bytes."""
    count: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for what, tensor in _constants(model.graph):
        size = int(np.prod(tensor.dims))
        if size >= MIN_WEIGHTS and (tensor.name not in compressed or "body" in what):
            count[what] += 1
            nbytes[what] += size * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    largest = sorted(count, key=lambda what: -nbytes[what])
    return ", ".join(f"{count[what]} {what} ({nbytes[what]:,} B)" for what in largest), sum(nbytes.values())


def _constants(graph: onnx.GraphProto, body: str = "") -> Iterator[tuple[str, onnx.TensorProto]]:
    """Each constant with a text of what it is, also in subgraphs."""
    readers: dict[str, str] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, node.op_type)
    pairs = [(i.name, i) for i in graph.initializer]
    pairs += [
        (n.output[0], a.t) for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"
    ]
    for name, tensor in pairs:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        where = f"in the body of {body}" if body else f"of {readers[name]}" if name in readers else "of a body"
        yield f"{'float32' if kind == 'float' else kind} {where}", tensor
    for node in graph.node:
        for inner in bodies(node):
            yield from _constants(inner, node.op_type)
