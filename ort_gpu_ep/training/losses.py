"""Losses: a scalar, and its gradient with respect to the model's output in a numerically stable form.

Each is the sum over samples of sample_weight [N] times the sample's mean: weights that sum to 1 make it the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np

from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.training.functions import function
from ort_gpu_ep.training.writer import Shape, Value


@dataclass(frozen=True)
class Written:
    """A loss in a graph. gradient: of the output. metrics: further means that are worth knowing."""

    loss: Value
    gradient: Value
    metrics: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Loss:
    """A loss by name. ends: ops at the end of a model that it takes the place of. label: element type and shape for an
    output."""

    name: str
    ends: tuple[str, ...]
    label: Callable[[Value], tuple[Any, Shape]]
    write: Callable[[Value, Value, Value], Written]


def _classes_axis(output: Value) -> int:
    """Dimension 1 of [N, C] and [N, C, ...], as ONNX's SoftmaxCrossEntropyLoss has it."""
    if output.rank < 2:
        raise TrainingError(
            f"cross_entropy: the output {output.name!r} has the shape {list(output.shape)}, expected [N, classes, ...]"
        )
    return 1


def _indices(output: Value) -> tuple[Any, Shape]:
    axis = _classes_axis(output)
    return np.int64, (*output.shape[:axis], *output.shape[axis + 1 :])


def _same(output: Value) -> tuple[Any, Shape]:
    return output.dtype, output.shape


def _each(output: Value, weight: Value, count: int) -> Value:
    """The sample weights, as they broadcast to the output, divided by what a sample's mean is over."""
    shaped = output.writer.reshape(weight, (weight.shape[0],) + (1,) * (output.rank - 1))
    return shaped if count == 1 else shaped * (1.0 / count)


def _total(x: Value) -> Value:
    return x.writer.op("ReduceSum", x, keepdims=0)


def _cross_entropy(output: Value, label: Value, weight: Value) -> Written:
    """-log softmax(output)[label]; the gradient is softmax(output) - onehot(label)."""
    w, axis = output.writer, _classes_axis(output)
    classes, count = output.shape[axis], math.prod(output.shape[2:])
    accuracy = {"accuracy": _accuracy(output, label, weight)}
    if output.rank == 2:
        types = [(output.dtype, output.shape[:1]), (output.dtype, output.shape)]
        narrow = w.op("Cast", label, to=6)
        losses, gradient = w.call(
            function("SoftmaxCrossEntropy", w.opset), types, output, narrow, weight, classes=classes
        )
        return Written(_total(losses), gradient, accuracy)
    logs = w.op("LogSoftmax", output, axis=axis)
    onehot = w.op("OneHot", label, w.ints(classes), w.constant(np.array([0, 1], output.dtype)), axis=axis)
    each = _each(output, weight, count)
    return Written(-_total(logs * onehot * each), (w.op("Exp", logs) - onehot) * each, accuracy)


def _accuracy(output: Value, label: Value, weight: Value) -> Value:
    """The part of places whose largest output is their label's."""
    w = output.writer
    hits = w.op("Equal", w.op("ArgMax", output, axis=1, keepdims=1), w.op("Unsqueeze", label, w.ints(1)))
    return _total(w.op("Cast", hits, to=1) * _each(output, weight, math.prod(output.shape[2:])))


def _mse(output: Value, label: Value, weight: Value) -> Written:
    each, difference = _each(output, weight, math.prod(output.shape[1:])), output - label
    return Written(_total(difference * difference * each), difference * (each * 2.0))


def _l1(output: Value, label: Value, weight: Value) -> Written:
    each, difference = _each(output, weight, math.prod(output.shape[1:])), output - label
    return Written(_total(output.writer.op("Abs", difference) * each), output.writer.op("Sign", difference) * each)


def _bce(output: Value, label: Value, weight: Value) -> Written:
    """max(z, 0) - z y + log(1 + exp(-|z|)), which no large z overflows; the gradient is sigmoid(z) - y."""
    w, each = output.writer, _each(output, weight, math.prod(output.shape[1:]))
    tail = w.op("Softplus", -w.op("Abs", output))
    losses = w.op("Relu", output) - output * label + tail
    hits = w.op(
        "Cast",
        w.op("Equal", w.op("Greater", output, w.like(0.0, output)), w.op("Greater", label, w.like(0.5, label))),
        to=1,
    )
    return Written(_total(losses * each), (w.op("Sigmoid", output) - label) * each, {"accuracy": _total(hits * each)})


LOSSES = {
    loss.name: loss
    for loss in (
        Loss("cross_entropy", ("Softmax", "LogSoftmax"), _indices, _cross_entropy),
        Loss("mse", (), _same, _mse),
        Loss("l1", (), _same, _l1),
        Loss("bce_with_logits", ("Sigmoid",), _same, _bce),
    )
}


def loss_of(name: str | Loss) -> Loss:
    """A loss by name. Raises TrainingError for a name that there is not."""
    if isinstance(name, Loss):
        return name
    if name not in LOSSES:
        near = get_close_matches(str(name), LOSSES, 1, 0.3)
        raise TrainingError(
            f"loss: got {name!r}, expected one of {', '.join(LOSSES)}"
            + (f"; did you mean {near[0]!r}?" if near else "")
        )
    return LOSSES[name]
