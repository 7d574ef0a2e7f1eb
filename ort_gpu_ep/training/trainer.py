"""Trainer: trains a model with a loss and an optimizer, step by step or with `fit`."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ort_gpu_ep.config import resolve
from ort_gpu_ep.errors import ConfigError, TrainingError
from ort_gpu_ep.files import whole
from ort_gpu_ep.ir import external
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.processes.interrupts import uninterrupted
from ort_gpu_ep.training import checkpoint, data, source
from ort_gpu_ep.training.dropout import seed_of
from ort_gpu_ep.training.engine import Engine, Loss, numbers_of
from ort_gpu_ep.training.evaluator import Evaluator
from ort_gpu_ep.training.losses import loss_of
from ort_gpu_ep.training.optimizers import Optimizer, check_optimizer
from ort_gpu_ep.training.resident import device_failure
from ort_gpu_ep.training.step import LABEL, SEED, WEIGHT, Request, TrainingStep, evaluation_step, training_step
from ort_gpu_ep.training.updates import HYPER, numbers

BATCH = 32
"""Samples of a batch, where nobody says how many."""

_MOST_SEED = 2**128
"""numpy draws seeds of 128 bits."""

READ_EVERY = 10
"""Losses that fit() reads at once: reading waits for the device."""


@dataclass(frozen=True)
class Progress:
    """Where fit() is. step, epoch: counted from 1; loss: the last one that was read, None before the first."""

    step: int
    steps: int
    epoch: int
    epochs: int
    loss: float | None


@dataclass(frozen=True)
class Epoch:
    """An epoch of fit(). number: from 1. step: of all epochs, after it. losses: of its steps. results: as in the
    history."""

    number: int
    step: int
    losses: tuple[float, ...]
    results: Mapping[str, float]


def _check_precision(options: Mapping[str, Any]) -> None:
    precision = resolve(options).precision
    if precision != "float32":
        raise ConfigError(
            f"training is done in float32: got precision={precision}. Give the Trainer options={{'precision': "
            f"'float32'}}, "
            "which goes before the environment variable."
        )


class Trainer:
    """Trains an ONNX model of float32 weights on the GPU, or where its steps are faster.

    model: a path, bytes or a ModelProto; it is not changed. loss: a name of losses.LOSSES. trainable: patterns of
    initializers' names; None for all; frozen: patterns of those that are not. output, batch_norm, dropout, accumulate:
    as make_training_step. seed: of shuffling and of Dropout. options: of the provider (config.OPTIONS); placement=auto,
    the default, times a step on both sides.

    The first batch fixes the sizes. Smaller ones are padded with samples that weigh nothing.

    All methods may be called by several threads: each step, batch of an evaluation, and reading or writing of the state
    is whole. Two fits at once take turns, step by step.

    Raises: TrainingError and ModelError, as make_training_step; ConfigError for options.
    """

    def __init__(
        self,
        model: source.Model,
        *,
        loss: str,
        optimizer: Optimizer,
        trainable: Sequence[str] | None = None,
        frozen: Sequence[str] = (),
        output: str | None = None,
        batch_norm: str = "frozen",
        dropout: bool = True,
        accumulate: int = 1,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        check_optimizer(optimizer)
        _check_precision(dict(options or {}))
        self._model, self._lock = external.load(model), threading.RLock()
        self.optimizer, self.seed, self.options = optimizer, seed, dict(options or {})
        self._request = Request(
            source.prepared(self._model),
            loss_of(loss),
            trainable,
            output,
            batch_norm,
            dropout,
            frozen=frozen,
            accumulate=accumulate,
        )
        self._request.names()
        self._fixed = source.fixed_batch(self._request.model)
        # a checkpoint that was loaded before there was a batch
        self._pending: tuple[dict[str, Array], int] | None = None
        self._engine: Engine | None = None
        self._evaluator: Evaluator | None = None
        self._renewed = -1  # the last step before which the optimizer changed what is carried
        self.epochs = 0

    # ---- training

    def step(self, x: data.Inputs, y: Array, sample_weight: Array | None = None) -> Loss:
        """One step on a batch. The loss is read when it is used as a number.

        x: an array, or a mapping for a model of several inputs, [N, ...]; y: the labels [N, ...]; sample_weight: [N].

        Raises: TrainingError, before the state changes, for shapes, classes or weights that do not fit; DeviceError, if
        no device is left.
        """
        inputs, label = data.as_inputs(x, self._input_names()), np.asarray(y)
        data.samples(inputs, label)
        engine = self._opened(inputs)
        return self._stepped(engine, data.Batch(self._feeds(engine.step, inputs, label, sample_weight)))

    def fit(
        self,
        x: data.Inputs,
        y: Array,
        *,
        epochs: int = 1,
        batch: int = BATCH,
        shuffle: bool = True,
        sample_weight: Array | None = None,
        validation: tuple[data.Inputs, Array] | None = None,
        on_step: Callable[[Progress], object] | None = None,
        on_epoch: Callable[[Epoch], object] | None = None,
    ) -> list[dict[str, float]]:
        """Epochs over all samples, in another order each, in batches. Returns for each epoch the mean loss of its
        samples, and with `validation` what evaluate() gives for it. on_step, on_epoch: called after each.

        Samples that fit there (gathered.py) are kept in the memory of the device that takes the steps, until others
        come; explain() says whether they are. Samples of weight 0 are left out. A Ctrl-C is raised between two steps:
        the trainer is then at the state after the last one.
        """
        for name, got, least in (("batch", batch, 1), ("epochs", epochs, 0)):
            if got < least:
                raise TrainingError(f"{name}: got {got}, expected at least {least}")
        inputs, label = data.as_inputs(x, self._input_names()), np.asarray(y)
        count = data.samples(inputs, label)
        size, history = min(batch, count), list[dict[str, float]]()
        weight = None if sample_weight is None else np.asarray(sample_weight)
        kept = np.arange(count) if weight is None else np.flatnonzero(data.weights(weight, count))
        engine = self._opened({n: a[:size] for n, a in inputs.items()})
        data_set, where, latest = None, "", None
        for epoch in range(1, epochs + 1):
            if where != engine.placement:
                data_set, where = self._held(engine, inputs, label, size), engine.placement
            order = np.random.default_rng([self.seed, self.epochs]).permutation(kept) if shuffle else kept
            parts = list(data.batches(len(kept), size, order))
            at = Progress((epoch - 1) * len(parts), epochs * len(parts), epoch, epochs, latest)
            losses = self._epoch(engine, self._batches(engine, inputs, label, data_set, parts, weight), at, on_step)
            self.epochs += 1
            history.append({"loss": float(np.average(losses, weights=[len(part) for part in parts]))})
            if validation is not None:
                history[-1] |= {f"validation_{k}": v for k, v in self.evaluate(*validation).items()}
            latest = losses[-1] if losses else latest
            if on_epoch is not None:
                on_epoch(Epoch(epoch, at.step + len(parts), tuple(losses), history[-1]))
        return history

    def place(self) -> str:
        """With placement=auto, times a step on both sides again, after the load of either changed, and goes on where it
        is faster, with the state. Returns where: "gpu" or "cpu". Takes some 15 steps. Raises TrainingError before the
        first step.
        """
        if self._engine is None:
            raise TrainingError("place: the first step decides where steps run, and there was none yet")
        uninterrupted(self._engine.place)
        return self._engine.placement

    # ---- evaluation

    def evaluate(self, x: data.Inputs, y: Array, sample_weight: Array | None = None) -> dict[str, float]:
        """Loss and, for classes, accuracy over samples, with Dropout off and stored statistics."""
        inputs, label = data.as_inputs(x, self._input_names()), np.asarray(y)
        count = data.samples(inputs, label)
        engine = self._opened({n: a[: self._fixed or BATCH] for n, a in inputs.items()})
        share = data.normalized(sample_weight, count, count).astype(np.float64)
        total: dict[str, float] = {}
        for part in data.batches(count, self._batch(engine), np.arange(count)):
            weight = float(share[part].sum())
            if weight:
                metrics = self._evaluated(engine, {n: a[part] for n, a in inputs.items()}, label[part], share[part])
                total = {k: total.get(k, 0.0) + weight * float(v.reshape(())) for k, v in metrics.items()}
        return total

    def predict(self, x: data.Inputs) -> Array:
        """The model's output for samples [N, ...]: that which the loss is of, as the model gives it."""
        inputs = data.as_inputs(x, self._input_names())
        first = next(iter(inputs.values()))
        count = data.samples(inputs, first)
        engine = self._opened({n: a[: self._fixed or BATCH] for n, a in inputs.items()})
        dtype, shape = engine.step.feeds[LABEL]
        parts = []
        for part in data.batches(count, self._batch(engine), np.arange(count)):
            label = np.zeros((len(part), *shape[1:]), dtype)
            feeds = {n: a[part] for n, a in inputs.items()}
            parts.append(self._evaluated(engine, feeds, label, None, output=True)[engine.step.output][: len(part)])
        return np.concatenate(parts)

    # ---- state

    @property
    def steps(self) -> int:
        """Steps taken so far, those before a checkpoint included."""
        return self._engine.at if self._engine is not None else self._pending[1] if self._pending is not None else 0

    def parameters(self) -> dict[str, Array]:
        """The trained weights, and running statistics that training updates, on the host."""
        state = self._state()
        names = {t.name for t in self._model.graph.initializer}
        return {n: a for n, a in state.items() if n in names}

    def save(self, path: str | os.PathLike[str]) -> None:
        """A checkpoint (safetensors): parameters, state, the number of steps. Going on from it equals never having
        stopped."""
        with self._lock:
            carried, steps, epochs = self._state(), self.steps, self.epochs
        if not carried:
            raise TrainingError("save: there is nothing to save before the first step")
        checkpoint.write(
            path,
            carried,
            {
                "format": "ort_gpu_ep.training",
                "model": self._digest(),
                "optimizer": str(self.optimizer),
                "loss": self._request.loss.name,
                "step": str(steps),
                "epochs": str(epochs),
                "seed": str(self.seed),
            },
        )

    def load(self, path: str | os.PathLike[str]) -> None:
        """Goes on from a checkpoint of this model. Raises TrainingError for another model's, and for other weights or
        optimizer state."""
        tensors, metadata = checkpoint.read(path)
        for what, own in (("model", self._digest()), ("loss", self._request.loss.name)):
            if metadata.get(what) != own:
                raise TrainingError(
                    f"checkpoint {os.fspath(path)}: it is of another {what} ({metadata.get(what)}, expected {own})"
                )
        step, epochs = (checkpoint.number(path, metadata, key) for key in ("step", "epochs"))
        seed = checkpoint.number(path, metadata, "seed", -_MOST_SEED, _MOST_SEED)
        with self._lock:
            if self._engine is not None:
                _check_same(path, tensors, self._engine.step.carried)
                self._engine.write(tensors, step)
            else:
                self._pending = (tensors, step)
            self.epochs, self.seed, self._renewed = epochs, seed, -1

    def export(self, path: str | os.PathLike[str]) -> None:
        """The user's model with the weights as they are now."""
        tuned, values = onnx.ModelProto(), self.parameters()
        tuned.CopyFrom(self._model)
        for tensor in tuned.graph.initializer:
            if tensor.name in values:
                tensor.CopyFrom(numpy_helper.from_array(values[tensor.name], tensor.name))
        with whole(path) as part:
            onnx.save(tuned, part)

    def named(self, x: data.Inputs) -> dict[str, Array]:
        """Samples as the model's inputs by name; of a model of one input it may have any name. Raises TrainingError."""
        names = self._input_names()
        alone = len(names) == 1 and isinstance(x, Mapping) and len(x) == 1
        return data.as_inputs(next(iter(x.values())) if alone and isinstance(x, Mapping) else x, names)

    def explain(self) -> str:
        """What is trained and how; where each node of the step runs, and why."""
        engine = self._engine
        if engine is None or engine.placement == "cpu":
            return self.summary()
        return f"{self.summary()}\n\n{engine.resident.session.explain()}"

    def summary(self) -> str:
        """What is trained, how, and on which side."""
        lines = [f"loss {self._request.loss.name}, {self.optimizer}, {self.steps} steps"]
        engine = self._engine
        if engine is None:
            return "\n".join([*lines, "no step yet: the first batch decides sizes and where steps run"])
        size = sum(engine.step.carried[n].size for n in engine.step.parameters)
        lines.append(
            f"{len(engine.step.parameters)} weights of {size:,} elements are trained; a step has "
            f"{len(engine.step.model.graph.node)} nodes, for batches of {self._batch(engine)}"
        )
        lines += [*engine.step.notes, f"on the {engine.placement.upper()}: {engine.why}"]
        if engine.data:
            lines.append(engine.data)
        if engine.resident.run_s:
            lines.append(f"the host spends {self.host_ms():.3g} ms a step")
        if engine.renewals:
            lines.append(f"{engine.renewals} times on a new device after a failure")
        return "\n".join(lines)

    def host_ms(self) -> float:
        """What the host spends until a step is on its way, the median of the last ones; 0 before the first."""
        return (
            float(np.median(self._engine.resident.run_s)) * 1e3
            if self._engine is not None and self._engine.resident.run_s
            else 0.0
        )

    def stats(self) -> dict[str, Any]:
        """Counts of the step's session (see InferenceSession.stats), steps, renewals, where it runs and how often that
        changed."""
        engine = self._engine
        if engine is None:
            return {"steps": self.steps}
        return {
            **engine.resident.stats(),
            "steps": self.steps,
            "renewals": engine.renewals,
            "moves": engine.moves,
            "placement": engine.placement,
        }

    # ---- inside

    def _epoch(
        self,
        engine: Engine,
        batches: Iterator[data.Batch],
        at: Progress,
        on_step: Callable[[Progress], object] | None,
    ) -> list[float]:
        """Takes a step on each batch; returns their losses. at: before the first one."""
        waiting, sent, read = list[Loss](), list[Loss](), list[float]()
        last = at.step + at.steps // at.epochs
        for number, batch in enumerate(batches, start=at.step + 1):
            waiting.append(self._stepped(engine, batch))
            if len(waiting) == READ_EVERY or number == last:
                # the device goes on with these while those before them are waited for
                uninterrupted(engine.send_for, waiting)
                read += numbers_of(sent)
                sent, waiting = waiting, []
            if number == last:
                read += numbers_of(sent)
            if on_step is not None:
                on_step(replace(at, step=number, loss=read[-1] if read else at.loss))
        return read

    def _batches(
        self,
        engine: Engine,
        inputs: Mapping[str, Array],
        label: Array,
        held: data.DataSet | None,
        parts: Sequence[Array],
        weight: Any,
    ) -> Iterator[data.Batch]:
        """What the steps of an epoch are fed: rows of a data set that is held where they run, or the samples
        themselves."""
        size = self._batch(engine)
        rows = [] if held is None else [data.padded(part, size).astype(np.int32) for part in parts]
        for at, part in enumerate(parts):
            share = None if weight is None else weight[part]
            if held is None:
                yield data.Batch(self._feeds(engine.step, {n: a[part] for n, a in inputs.items()}, label[part], share))
            else:
                yield data.Batch({WEIGHT: data.normalized(share, len(part), size)}, data.Rows(held, rows, at))

    def _held(self, engine: Engine, inputs: Mapping[str, Array], label: Array, size: int) -> data.DataSet | None:
        """These samples as a data set where the steps run, if there is room. Raises TrainingError for samples that do
        not fit the step."""
        types = {n: dtype for n, (dtype, _) in engine.step.feeds.items()}
        if not engine.has_room(
            {n: a.size * types[n].itemsize for n, a in {**inputs, LABEL: label}.items() if n in types}
        ):
            return None
        self._check_count(engine.step, size)
        return uninterrupted(engine.hold, self._checked(engine.step, inputs, label))

    def _stepped(self, engine: Engine, batch: data.Batch) -> Loss:
        """A step on a batch, to which the optimizer's numbers come."""
        with self._lock:
            batch.feeds[HYPER] = numbers(self.optimizer, engine.step.accumulate, engine.at)
            if SEED in engine.step.feeds:
                batch.feeds[SEED] = seed_of(self.seed, engine.at)
            return uninterrupted(self._run, engine, batch)

    def _run(self, engine: Engine, batch: data.Batch) -> Loss:
        """A step, before which the optimizer may change what is carried."""
        update, part = divmod(engine.at, engine.step.accumulate)
        if not part and self.optimizer.due(update) and engine.at != self._renewed:
            engine.write(self.optimizer.renewed(update, engine.read()), engine.at)
            self._renewed = engine.at
        return engine.run(batch)

    def _input_names(self) -> list[str]:
        stored = {t.name for t in self._request.model.graph.initializer}
        return [i.name for i in self._request.model.graph.input if i.name not in stored]

    def _opened(self, inputs: Mapping[str, Array]) -> Engine:
        """The engine, made for these sizes if there is none yet; for batches of a size that the model fixes, if these
        are smaller."""
        with self._lock:
            return self._engine or self._made(inputs)

    def _made(self, inputs: Mapping[str, Array]) -> Engine:
        """The engine, for the first time."""
        shapes = {n: (max(len(a), self._fixed or 0), *a.shape[1:]) for n, a in inputs.items()}
        step = training_step(replace(self._request, shapes=shapes), self.optimizer)
        carried, at = step.carried, 0
        if self._pending is not None:
            carried, at = self._pending
            _check_same("that was loaded", carried, step.carried)
        self._engine, self._pending = Engine(step, self.options, carried, at, self._lock), None
        return self._engine

    def _batch(self, engine: Engine) -> int:
        return engine.step.feeds[WEIGHT][1][0]

    def _feeds(
        self, step: TrainingStep, inputs: Mapping[str, Array], label: Array, weight: Array | None
    ) -> dict[str, Array]:
        """Checked, in the step's sizes and types, copied: the caller may change the arrays. Raises TrainingError."""
        arrays, size = data.samples(inputs, label), step.feeds[WEIGHT][1][0]
        self._check_count(step, arrays)
        feeds = {n: np.array(data.padded(a, size), order="C") for n, a in self._checked(step, inputs, label).items()}
        return {**feeds, WEIGHT: data.normalized(weight, arrays, size)}

    def _check_count(self, step: TrainingStep, given: int) -> None:
        """Raises TrainingError for more samples than a step takes."""
        size = step.feeds[WEIGHT][1][0]
        if given > size:
            raise TrainingError(
                f"got {given} samples, but the steps of this trainer are for {size}: the first batch decides; "
                f"make another "
                "Trainer"
            )

    def _checked(self, step: TrainingStep, inputs: Mapping[str, Array], label: Array) -> dict[str, Array]:
        """Samples as feeds of a step, in its types. Raises TrainingError."""
        arrays = {**{n: a for n, a in inputs.items() if n in step.feeds}, LABEL: label}
        feeds = {
            n: data.checked("labels" if n == LABEL else f"input {n!r}", a, *step.feeds[n]) for n, a in arrays.items()
        }
        if self._request.loss.name == "cross_entropy":
            data.check_classes(feeds[LABEL], step.classes)
        return feeds

    def _evaluated(
        self, engine: Engine, inputs: Mapping[str, Array], label: Array, weight: Any, output: bool = False
    ) -> dict[str, Array]:
        feeds = self._feeds(engine.step, inputs, label, weight)

        def run() -> dict[str, Array]:
            if self._evaluator is None or self._evaluator.placement != engine.placement:
                shapes = {n: feeds[n].shape for n in inputs if n in feeds}
                step = evaluation_step(replace(self._request, shapes=shapes), engine.step.parameters)
                self._evaluator = Evaluator(step, engine.options, engine.placement)
            try:
                return self._evaluator.run(engine.resident, feeds, engine.step.carried, output)
            except Exception as error:
                failure, self._evaluator = device_failure(self._evaluator.session, error), None
                raise failure or error from error

        return engine.surely(run)

    def _state(self) -> dict[str, Array]:
        with self._lock:
            if self._engine is not None:
                return self._engine.read()
            return dict(self._pending[0]) if self._pending is not None else {}

    def _digest(self) -> str:
        """Of the model's graph without its weights, and of which are trained."""
        bare = onnx.ModelProto()
        bare.CopyFrom(self._request.model)
        del bare.graph.initializer[:]
        names = ",".join(self._request.names())
        return hashlib.sha256(bare.SerializeToString(deterministic=True) + names.encode()).hexdigest()[:16]


def _check_same(path: Any, got: Mapping[str, Array], want: Mapping[str, Array]) -> None:
    """Raises TrainingError, where a checkpoint has other tensors than a step carries."""
    for name in sorted({*got, *want}):
        have = [None if name not in side else f"{side[name].dtype}{list(side[name].shape)}" for side in (got, want)]
        if have[0] != have[1]:
            raise TrainingError(
                f"checkpoint {path}: {name!r} is {have[0] or 'missing'}, expected {have[1] or 'none'}: it is "
                f"of another "
                "model, or was made with another optimizer"
            )
