"""Folds BatchNormalization into the convolution before it, as static quantization needs it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from ort_gpu_ep.compression.layers import Array, attribute, reads


def without_batch_normalization(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model where each normalization by constants that alone reads a convolution is part of that one's
    weight and bias.

    Weights keep their names. What is shared, an output, not float32, or in a subgraph stays as it is.
    """
    folded = onnx.ModelProto()
    folded.CopyFrom(model)
    graph = folded.graph
    inits = {i.name: i for i in graph.initializer if i.data_type == onnx.TensorProto.FLOAT}
    readers = reads(graph)
    makers = {name: node for node in graph.node for name in node.output}
    for node in list(graph.node):
        conv = (
            makers.get(node.input[0])
            if node.op_type == "BatchNormalization" and node.domain in ("", "ai.onnx")
            else None
        )
        if (
            conv is None
            or conv.op_type != "Conv"
            or conv.domain not in ("", "ai.onnx")
            or len([o for o in node.output if o]) != 1
        ):
            continue
        own = [name for name in conv.input[1:] if name]
        fixed = (
            set(node.input[1:]) <= set(inits)
            and set(own) <= set(inits)
            and all(readers[name] == 1 for name in (*own, conv.output[0]))
        )
        if not fixed or attribute(node, "training_mode", 0) or not attribute(node, "spatial", 1):
            continue
        scale, shift, mean, variance = (numpy_helper.to_array(inits[name]).astype("d") for name in node.input[1:])
        factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        weight = numpy_helper.to_array(inits[own[0]])
        bias = numpy_helper.to_array(inits[own[1]]).astype("d") if len(own) > 1 else np.zeros_like(mean)
        _put(inits[own[0]], weight * factor.reshape(-1, *[1] * (weight.ndim - 1)))
        if len(own) == 1:
            name = f"{own[0]}.bias"
            while name in inits or name in readers:
                name += "_"
            inits[name] = graph.initializer.add(name=name)
            del conv.input[2:]
            conv.input.append(name)
        _put(inits[conv.input[2]], (bias - mean) * factor + shift)
        conv.output[0] = node.output[0]
        for name in node.input[1:]:
            readers[name] -= 1
            if not readers[name]:
                graph.initializer.remove(inits.pop(name))
        graph.node.remove(node)
    return folded


def _put(tensor: onnx.TensorProto, array: Array) -> None:
    tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), tensor.name))
