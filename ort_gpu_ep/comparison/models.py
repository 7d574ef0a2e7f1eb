"""Cuts models: one that ends at a value, or one with a single node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ort_gpu_ep.files import whole, write_array

Array = np.ndarray[Any, Any]

EXTERNAL_NBYTES = 1 << 30
"""Weights beyond this go into a file of their own: a protobuf message holds less than 2 GiB."""


def values_of(model: onnx.ModelProto) -> list[str]:
    """What its nodes write, in their order."""
    return [name for node in model.graph.node for name in node.output if name]


def exposing(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The same model with these values as its outputs; onnxruntime infers their types."""
    outputs = {v.name: v for v in model.graph.output}
    return _with(
        model,
        model.graph.node,
        [outputs.get(name) or onnx.ValueInfoProto(name=name) for name in names],
        model.graph.input,
    )


def up_to(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The same with nothing but what these values need."""
    needed, kept = set(names), []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed |= reads_of(node)
    return _with(exposing(model, names), kept[::-1], None, model.graph.input)


def alone(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], values: Mapping[str, Array]
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of some nodes, with the outputs of the last, and its inputs: what is no constant comes from `values`.

    Raises KeyError for a value that is not among them.
    """
    constants, written = {i.name for i in model.graph.initializer}, {name for node in nodes for name in node.output}
    reads = dict.fromkeys(
        name for node in nodes for name in sorted(reads_of(node)) if name not in constants and name not in written
    )
    feeds = {name: values[name] for name in reads}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output if name]
    return _with(model, nodes, outputs, inputs), feeds


def reads_of(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, those of its bodies included, which may be names of the bodies themselves."""
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            inner = {name for n in graph.node for name in reads_of(n)} | {o.name for o in graph.output}
            own = {name for n in graph.node for name in n.output} | {i.name for i in (*graph.input, *graph.initializer)}
            names |= inner - own
    return names


def _with(model: onnx.ModelProto, nodes: Any, outputs: Any, inputs: Any) -> onnx.ModelProto:
    """A copy with other nodes, inputs and outputs, and the constants that these nodes read."""
    read = {name for node in nodes for name in reads_of(node)}
    part = onnx.ModelProto(ir_version=model.ir_version)
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    graph = part.graph
    graph.name = model.graph.name or "part"
    graph.node.extend(nodes)
    graph.input.extend(inputs)
    graph.output.extend(model.graph.output if outputs is None else outputs)
    graph.initializer.extend(
        i for i in model.graph.initializer if i.name in read or any(o.name == i.name for o in graph.output)
    )
    return part


def save(model: onnx.ModelProto, path: Path) -> None:
    """Raises OSError."""
    large = sum(len(i.raw_data) for i in model.graph.initializer) > EXTERNAL_NBYTES
    path.parent.mkdir(parents=True, exist_ok=True)
    if large:  # the file beside it is written first, by its name
        onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")
        return
    with whole(path) as part:
        onnx.save(model, part)


def save_case(model: onnx.ModelProto, feeds: Mapping[str, Array], folder: Path) -> list[str]:
    """Writes model.onnx and an .npy file an input. Returns `NAME=FILE` of each input. Raises OSError."""
    save(model, folder / "model.onnx")
    names = []
    for index, (name, array) in enumerate(feeds.items()):
        path = folder / f"input{index}.npy"
        write_array(path, array)
        names.append(f"{name}={path}")
    return names
