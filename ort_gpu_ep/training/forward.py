"""The forward pass in a step: the user's nodes with sizes and types, some of them replaced for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.training import source
from ort_gpu_ep.training.dropout import masked
from ort_gpu_ep.training.gradient import label_of, per_channel
from ort_gpu_ep.training.rules.normalization import standardized
from ort_gpu_ep.training.writer import DOMAIN, Value, Writer

SEED = "training.seed"
"""The input that the masks of Dropout depend on: int32 [1], another one each step."""


@dataclass
class Forward:
    """What was read of a model.

    tape: nodes to differentiate, in order. parameters: values that are trained; buffers: statistics that training
    updates, and `updated` what they become. notes: what training does otherwise than the model says.
    """

    writer: Writer
    parameters: dict[str, Array]
    tape: list[onnx.NodeProto] = field(default_factory=list)
    buffers: dict[str, Array] = field(default_factory=dict)
    updated: dict[str, Value] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    dropouts: int = 0

    def producer(self, name: str) -> onnx.NodeProto | None:
        """The node of the tape that gives a value."""
        return next((n for n in reversed(self.tape) if name in n.output), None)


def read(
    model: onnx.ModelProto,
    trainable: Sequence[str],
    shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
    *,
    training: bool = True,
    batch_norm: str = "frozen",
    dropout: bool = True,
) -> Forward:
    """Writes the model's nodes with its trainable initializers as inputs. training: else Dropout and statistics are as
    the model has them.

    Raises: TrainingError, for a node that ONNX does not know or that contradicts its inputs.
    """
    opset = source.opset_of(model)
    arrays, writer = source.initializers(model), Writer(opset, model.ir_version)
    forward = Forward(writer, {n: arrays[n] for n in trainable})
    live = {name for name in source.statistics(model) if name in arrays} if batch_norm == "train" else {}
    for name, (dtype, shape) in shapes.items():
        writer.input(name, dtype, shape)
    for name, array in arrays.items():
        if name in forward.parameters or name in live:
            writer.input(name, array.dtype, array.shape, tracked=name in forward.parameters)
            forward.buffers.update({name: array} if name in live else {})
        else:
            writer.constant(array, name)
    for node in model.graph.node:
        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        if node.op_type == "Constant" and not node.domain:
            writer.constant(_constant(node), node.output[0])
        elif training and node.op_type == "Dropout":
            _dropout(forward, kept, dropout)
        elif training and node.op_type == "BatchNormalization" and node.input[3] in forward.buffers:
            _batch_statistics(forward, kept)
        else:
            writer.add(kept)
            forward.tape.append(kept)
    writer.scope, writer.folding = "training.", False
    return forward


def _constant(node: onnx.NodeProto) -> Array:
    """The content of a Constant node. Raises TrainingError for a sparse one."""
    value = helper.get_attribute_value(node.attribute[0])
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    if node.attribute[0].name not in kinds:
        raise TrainingError(f"{label_of(node)}: a constant given by {node.attribute[0].name} can't be read here")
    return np.asarray(value, kinds[node.attribute[0].name])


def _dropout(forward: Forward, node: onnx.NodeProto, active: bool) -> None:
    """x times a mask of 0 and 1 / (1 - ratio) that follows from the step's seed, the node's number and the
    element's."""
    writer = forward.writer
    x = writer.values[node.input[0]]
    ratio = writer.values[node.input[1]].content if len(node.input) > 1 and node.input[1] else np.float32(0.5)
    if ratio is None:
        raise TrainingError(f"{label_of(node)}: its ratio is known only when it runs; expected a constant")
    if len(node.output) > 1 and node.output[1]:
        raise TrainingError(f"{label_of(node)}: its mask is an output of the model; training makes masks of its own")
    if not active or not 0 < float(ratio) < 1:
        written = helper.make_node("Identity", [x.name], [node.output[0]], name=node.name)
    else:
        if SEED not in writer.values:
            writer.input(SEED, np.int32, (1,))
        mask = masked(writer, x, float(ratio), writer.values[SEED], forward.dropouts)
        forward.dropouts += 1
        written = helper.make_node("Mul", [x.name, mask.name], [node.output[0]], name=node.name)
    writer.add(written)
    forward.tape.append(written)


def _batch_statistics(forward: Forward, node: onnx.NodeProto) -> None:
    """(x - mean) / deviation * scale + bias with the batch's own; the running ones move towards it as the node's
    momentum says."""
    w, names = forward.writer, list(node.input)
    x, scale, bias, *running = (w.values[n] for n in names)
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    axes = [0, *range(2, x.rank)]
    z, inverse, mean, variance = standardized(w, x, axes, attributes.get("epsilon", 1e-5))
    scaled, shift = z * per_channel(scale, x.rank), per_channel(bias, x.rank)
    w.add(helper.make_node("Add", [scaled.name, shift.name], [node.output[0]], name=node.name))
    momentum = attributes.get("momentum", 0.9)
    for old, now in zip(running, (mean, variance), strict=True):
        forward.updated[old.name] = old * momentum + w.reshape(now, old.shape) * (1.0 - momentum)
    inputs = [*names[:3], z.name, inverse.name]
    forward.tape.append(helper.make_node("BatchNormalization", inputs, [node.output[0]], name=node.name, domain=DOMAIN))
