"""Which weights of a model can be compressed, each as a matrix with one row for each output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.weights.functions import DOMAIN

Array: TypeAlias = np.ndarray[Any, Any]

MIN_WEIGHTS = 1024
"""Smaller tensors stay as they are: what describes a codebook or scales would be as large."""

RECURRENT = ("LSTM", "GRU", "RNN")
WEIGHT_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Conv": (1,),
    "ConvTranspose": (1,),
    "Gemm": (1,),
    "MatMul": (1,),
    "Gather": (0,),
    **dict.fromkeys(RECURRENT, (1, 2)),
}


@dataclass(frozen=True)
class Layer:
    """A weight of a node, and how it is stored in rows.

    shape: of the weight. stored, perm: shape of what is stored, and the permutation of its axes that gives `shape`;
    axis 0 of what is stored counts outputs (of a recurrent layer: nothing). shared: other nodes read the weight, too.
    """

    node: onnx.NodeProto
    weight: str
    array: Array
    stored: tuple[int, ...]
    perm: tuple[int, ...]
    shared: bool = False

    @property
    def name(self) -> str:
        return self.node.name or next(filter(None, self.node.output))

    @property
    def is_matrix(self) -> bool:
        return self.node.op_type in ("MatMul", "Gemm")

    @property
    def is_table(self) -> bool:
        """Whether rows of it are picked, one at a time: there is no product."""
        return self.node.op_type == "Gather"

    @property
    def blocks(self) -> tuple[int, int, int]:
        """(b, n, k): what is stored, as matrices [n, k] that read inputs of their own: groups of a convolution,
        directions of a layer."""
        count = int(attribute(self.node, "group", 1)) if self.node.op_type == "Conv" else 1
        if self.node.op_type in RECURRENT:
            return self.array.shape[0], self.array.shape[1], self.array.shape[2]
        if self.node.op_type == "ConvTranspose":  # of what a pixel of the input adds to those around it
            return 1, self.array.size // self.stored[-1], self.stored[-1]
        return count, self.stored[0] // count, self.array.size // max(self.stored[0], 1)

    def rows(self) -> Array:
        """What is stored, as a matrix: a row for each index of its first axis."""
        return self.array.transpose(np.argsort(self.perm)).reshape(self.stored[0], -1)

    def dense(self, rows: Array) -> Array:
        """The weight that rows stand for."""
        array: Array = rows.reshape(self.stored).transpose(self.perm)
        return array


def check_uncompressed(model: onnx.ModelProto) -> None:
    """Raises ModelError for a model that is compressed already."""
    if any(f.domain == DOMAIN for f in model.functions) or any(
        n.op_type in ("MatMulNBits", "GatherBlockQuantized") for n in model.graph.node
    ):
        raise ModelError("the model is compressed already: start from the one with float weights")


def find_layers(model: onnx.ModelProto) -> list[Layer]:
    """The layers of a model whose weights are float32 initializers of at least MIN_WEIGHTS elements, each weight once.

    Raises ModelError for NaN or infinite weights.
    """
    tensors = {i.name: i for i in model.graph.initializer}
    readers = reads(model.graph)
    layers: dict[str, Layer] = {}
    for node in model.graph.node:
        for index in WEIGHT_INPUTS.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ():
            name = node.input[index] if index < len(node.input) else ""
            if (
                name in tensors
                and name not in layers
                and (layer := _layer(node, name, tensors[name], readers[name] > 1)) is not None
            ):
                layers[name] = layer
    return list(layers.values())


def reads(graph: onnx.GraphProto) -> Counter[str]:
    """How often each value is read: by nodes, by subgraphs, and as an output."""
    counts = Counter(name for node in graph.node for name in node.input) + Counter(
        output.name for output in graph.output
    )
    for node in graph.node:
        for inner in bodies(node):
            counts += reads(inner)
    return counts


def names_in(graph: onnx.GraphProto) -> set[str]:
    """Of values and of nodes, also in subgraphs."""
    named = (*graph.initializer, *graph.input, *(s.values for s in graph.sparse_initializer))
    names = {i.name for i in named} | {name for n in graph.node for name in (*n.input, *n.output, n.name)}
    return names.union(*(names_in(inner) for node in graph.node for inner in bodies(node)))


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node holds."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _layer(node: onnx.NodeProto, name: str, tensor: onnx.TensorProto, shared: bool) -> Layer | None:
    if tensor.data_type != onnx.TensorProto.FLOAT or int(np.prod(tensor.dims)) < MIN_WEIGHTS:
        return None
    array = numpy_helper.to_array(tensor)
    if not np.isfinite(array).all():
        raise ModelError(
            f"weight {name!r} of {node.name or node.op_type}: {int((~np.isfinite(array)).sum())} elements are NaN "
            f"or infinite"
        )
    identity = tuple(range(array.ndim))
    if node.op_type == "Gather" and (array.ndim != 2 or attribute(node, "axis", 0) not in (0, -2)):
        return None
    if node.op_type == "ConvTranspose":
        if attribute(node, "group", 1) != 1:
            return None
        return Layer(node, name, array, (*array.shape[1:], array.shape[0]), (array.ndim - 1, *identity[:-1]), shared)
    if node.op_type == "Gemm" or node.op_type == "MatMul":
        if array.ndim != 2:
            return None
        if node.op_type == "MatMul" or not attribute(node, "transB", 0):
            return Layer(node, name, array, array.shape[::-1], (1, 0), shared)
    return Layer(node, name, array, array.shape, identity, shared)


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
