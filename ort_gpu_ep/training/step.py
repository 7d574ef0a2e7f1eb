"""A training step as one ONNX model: forward, loss, gradients and update; parameters and state in, new ones out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.ir import external
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.training import source
from ort_gpu_ep.training.differentiate import differentiate
from ort_gpu_ep.training.forward import SEED, Forward, read
from ort_gpu_ep.training.losses import Loss, loss_of
from ort_gpu_ep.training.optimizers import Optimizer, check_optimizer
from ort_gpu_ep.training.updates import HYPER, updates
from ort_gpu_ep.training.writer import Shape, Value

LABEL, WEIGHT, LOSS = "training.label", "training.sample_weight", "training.loss"
"""Names of a step's own inputs and of its loss. HYPER is another one, and SEED, where the model has Dropout."""

BATCH_NORM = ("frozen", "train")


@dataclass(frozen=True)
class TrainingStep:
    """A step, and what it starts with.

    feeds: element type and shape of what a step is given: the model's inputs, LABEL, WEIGHT (sums to 1), HYPER, SEED if
    there is one. carried: what one step hands to the next, by name, as it is at first: NAME comes in, NAME.new goes
    out. parameters: names of those of them that are trained; buffers: running statistics; held: those that a step only
    reads, so that there is no NAME.new. accumulate: steps that make one update. notes: what training does otherwise
    than the model says. output: the model's own, that the loss is of; classes: its dimension 1. metrics: what an
    evaluation gives besides the loss.
    """

    model: onnx.ModelProto
    feeds: dict[str, tuple[np.dtype[Any], Shape]]
    carried: dict[str, Array]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    notes: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    output: str = ""
    classes: int = 0
    held: tuple[str, ...] = ()
    accumulate: int = 1


@dataclass(frozen=True)
class Request:
    """What is to be trained and how, but for the optimizer. See make_training_step."""

    model: onnx.ModelProto
    loss: Loss
    trainable: Sequence[str] | None = None
    output: str | None = None
    batch_norm: str = "frozen"
    dropout: bool = True
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batch: int | None = None
    frozen: Sequence[str] = ()
    accumulate: int = 1

    def names(self) -> list[str]:
        """The initializers to train. Raises TrainingError, as source.chosen."""
        return source.chosen(
            source.initializers(self.model), source.statistics(self.model), self.trainable, self.frozen
        )

    def forward(self, training: bool) -> tuple[Forward, Value]:
        """The forward pass in a writer, and the output that the loss is of."""
        if self.batch_norm not in BATCH_NORM:
            raise TrainingError(f"batch_norm: got {self.batch_norm!r}, expected one of {', '.join(BATCH_NORM)}")
        shapes = source.input_shapes(self.model, self.shapes, self.batch)
        forward = read(
            self.model, self.names(), shapes, training=training, batch_norm=self.batch_norm, dropout=self.dropout
        )
        return forward, _output(self.model, self.output, forward)


def make_training_step(
    model: source.Model,
    *,
    loss: str | Loss,
    optimizer: Optimizer,
    trainable: Sequence[str] | None = None,
    output: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    batch_norm: str = "frozen",
    dropout: bool = True,
    frozen: Sequence[str] = (),
    accumulate: int = 1,
) -> TrainingStep:
    """A step of a model of float32 weights, for inputs of fixed sizes.

    trainable: patterns (fnmatch) of initializers, None for all with more than one element that the loss depends on.
    output: which of the model's outputs the loss is of, None for the first. shapes: of inputs whose sizes the model
    leaves open; `batch`: for those of which only the first one is open. batch_norm: "frozen" keeps the model's
    statistics, "train" takes the batch's and updates the running ones. dropout: whether Dropout nodes drop. frozen:
    patterns of initializers that are not trained, whatever `trainable` says. accumulate: so many steps make one update,
    with the mean of their gradients; see Accumulation.

    Raises: TrainingError, with what was got, what is expected and what to try: an op without a gradient, a pattern that
    matches nothing, weights that the loss does not depend on, sizes that are open or contradict the model; ModelError
    for what is no model.
    """
    prepared = source.prepared(external.load(model))
    request = Request(
        prepared, loss_of(loss), trainable, output, batch_norm, dropout, shapes or {}, batch, frozen, accumulate
    )
    return training_step(request, optimizer)


def training_step(request: Request, optimizer: Optimizer) -> TrainingStep:
    """The step of a request. Raises: as make_training_step."""
    check_optimizer(optimizer)
    if request.accumulate < 1:
        raise TrainingError(
            f"accumulate: got {request.accumulate}, expected the number of steps that make an update, at least 1"
        )
    forward, output = request.forward(training=True)
    writer = forward.writer
    logits = _stripped(forward, output, request.loss)
    label, weight = _loss_inputs(forward, logits, request.loss)
    written = request.loss.write(logits, label, weight)
    gradients = differentiate(writer, forward.tape, {logits.name: written.gradient})
    grads = _gradients(forward, gradients, request.trainable)
    end = updates(forward, grads, optimizer, request.accumulate)
    model = writer.model("training_step", [writer.named(written.loss, LOSS), *end.outputs])
    return TrainingStep(
        model,
        _feeds(model, end.carried, forward),
        end.carried,
        tuple(grads),
        tuple(forward.updated),
        tuple(forward.notes),
        output=output.name,
        classes=output.shape[1] if output.rank > 1 else 0,
        held=tuple(end.held),
        accumulate=request.accumulate,
    )


def evaluation_step(request: Request, parameters: Iterable[str]) -> TrainingStep:
    """The model as it is, with loss and metrics: parameters and statistics in, nothing of them out; `output` is the
    model's own."""
    forward, output = request.forward(training=False)
    writer = forward.writer
    logits = _stripped(forward, output, request.loss)
    for name in [n for n in forward.parameters if n not in set(parameters)]:
        writer.freeze(name, forward.parameters.pop(name))
    label, weight = _loss_inputs(forward, logits, request.loss)
    written = request.loss.write(logits, label, weight)
    metrics = [writer.named(v, f"training.{name}") for name, v in written.metrics.items()]
    model = writer.model("evaluation", [writer.named(written.loss, LOSS), *metrics, output])
    carried = {**forward.parameters, **forward.buffers}
    return TrainingStep(
        model,
        _feeds(model, carried, forward),
        carried,
        tuple(forward.parameters),
        tuple(forward.buffers),
        tuple(forward.notes),
        tuple(written.metrics),
        output.name,
        output.shape[1] if output.rank > 1 else 0,
    )


def _output(model: onnx.ModelProto, name: str | None, forward: Forward) -> Value:
    """The output that the loss is of. Raises TrainingError, if there is none of this name or it can't be one."""
    names = [o.name for o in model.graph.output]
    if name is not None and name not in names:
        raise TrainingError(f"output {name!r}: the model has no such output; it has {', '.join(map(repr, names))}")
    value = forward.writer.values.get(name or names[0])
    if value is None or value.dtype != np.float32:
        raise TrainingError(
            f"output {name or names[0]!r} is {None if value is None else value.dtype}, a loss needs float32; "
            f"choose another one (output=) of {', '.join(map(repr, names))}"
        )
    if not value.tracked:
        some = ", ".join(map(repr, [*forward.parameters][:5]))
        raise TrainingError(
            f"output {value.name!r} depends on none of the trainable weights {some}; choose other weights "
            f"(trainable=) or "
            "another output (output=)"
        )
    if not value.rank:
        raise TrainingError(f"output {value.name!r} is a scalar; a loss needs [N, ...]")
    return value


def _stripped(forward: Forward, output: Value, loss: Loss) -> Value:
    """The output before a last Softmax (Sigmoid) that the loss has in itself: it is then more precise, and cheaper."""
    value = output
    while (node := forward.producer(value.name)) is not None:
        if node.op_type in loss.ends:
            axis = next((a.i for a in node.attribute if a.name == "axis"), -1) % value.rank
            if node.op_type == "Sigmoid" or axis == 1:
                forward.notes.append(
                    f"the last {node.op_type} ({node.name or node.output[0]}) is part of the loss {loss.name}"
                )
                return forward.writer.values[node.input[0]]
            raise TrainingError(
                f"the model ends in a {node.op_type} over axis {axis}; {loss.name} has its classes in dimension 1"
            )
        if node.op_type != "Identity":
            break
        value = forward.writer.values[node.input[0]]
    return output


def _loss_inputs(forward: Forward, output: Value, loss: Loss) -> tuple[Value, Value]:
    """LABEL and WEIGHT as inputs of the step."""
    taken = [n for n in (LABEL, WEIGHT, HYPER, LOSS) if n in forward.writer.values]
    if taken:
        raise TrainingError(f"the model has a value {taken[0]!r}, which is a name that a training step uses; rename it")
    dtype, shape = loss.label(output)
    return forward.writer.input(LABEL, dtype, shape), forward.writer.input(WEIGHT, np.float32, (output.shape[0],))


def _gradients(forward: Forward, found: Mapping[str, Value], patterns: Sequence[str] | None) -> dict[str, Value]:
    """Of each parameter. Those without one stay as they are, if nobody asked for them; else TrainingError."""
    writer = forward.writer
    without = [n for n in forward.parameters if n not in found]
    if without and patterns is not None:
        raise TrainingError(
            f"trainable: the loss does not depend on {', '.join(map(repr, without[:5]))} in a way that has a gradient; "
            "leave them out"
        )
    for name in without:
        writer.freeze(name, forward.parameters.pop(name))
    if not forward.parameters:
        raise TrainingError("the loss depends on no trainable weight in a way that has a gradient")
    if without:
        forward.notes.append(f"not trained, because the loss has no gradient there: {', '.join(without)}")
    return {name: found[name] for name in forward.parameters}


def _feeds(model: onnx.ModelProto, carried: Iterable[str], forward: Forward) -> dict[str, tuple[np.dtype[Any], Shape]]:
    """What the model's graph is given besides what is carried."""
    names = set(carried)
    values = [forward.writer.inputs[i.name] for i in model.graph.input if i.name not in names]
    return {v.name: (np.dtype(v.dtype), v.shape) for v in values}


__all__ = [
    "BATCH_NORM",
    "HYPER",
    "LABEL",
    "LOSS",
    "SEED",
    "WEIGHT",
    "Request",
    "TrainingStep",
    "evaluation_step",
    "make_training_step",
    "training_step",
]
