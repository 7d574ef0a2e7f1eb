"""The work of `ort-gpu-ep train`: reads samples, shows progress, writes the log, the curve and the trained model."""

from __future__ import annotations

import json as json_module
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from ort_gpu_ep.cli import shared
from ort_gpu_ep.cli.plot import plot_training, pyplot
from ort_gpu_ep.errors import ConfigError, TrainingError
from ort_gpu_ep.processes import interrupts
from ort_gpu_ep.training import Progress, Schedule, Trainer, checkpoint, constant, cosine
from ort_gpu_ep.training.optimizers import OPTIMIZERS
from ort_gpu_ep.training.trainer import Epoch

LABELS = ("y", "labels")
SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True)
class Request:
    """What `train` was asked for: its options by their names."""

    model: Path
    data: Path
    out: Path | None
    loss: str
    optimizer: str
    rate: float
    schedule: str
    epochs: int
    batch: int
    trainable: tuple[str, ...]
    clip: float | None
    validate: float
    resume: Path | None
    plot: Path | None
    log: Path | None
    seed: int
    options: Mapping[str, str]


def run(asked: Request, json: bool) -> None:
    """Trains, and writes the model; what was trained is written after Ctrl-C, too."""
    if asked.plot is not None:
        pyplot()  # fails before anything is trained
    out = _target(asked)
    inputs, labels = _samples(asked.data)
    kept = len(labels) - round(len(labels) * asked.validate)
    trainer = _trainer(asked, _steps(asked.resume) + asked.epochs * -(-kept // min(asked.batch, kept)))
    inputs = trainer.named(inputs)
    if asked.resume is not None and asked.resume.exists():
        trainer.load(asked.resume)
    first, last = ({n: a[part] for n, a in inputs.items()} for part in (slice(None, kept), slice(kept, None)))
    validation = (last, labels[kept:]) if kept < len(labels) else None
    start, history = time.perf_counter(), list[Epoch]()
    try:
        _fit(trainer, asked, first, labels[:kept], validation, history, quiet=json)
    except KeyboardInterrupt:
        interrupts.ending.clear()  # what is written may want kernels
        for path in _written(trainer, asked, out) if trainer.steps else ():
            shared.err.print(f"after {trainer.steps} steps; {path} has them", soft_wrap=True)
        if asked.resume is not None and trainer.steps:
            shared.err.print("the same command goes on from there")
        raise
    seconds = time.perf_counter() - start
    written = _written(trainer, asked, out)
    if asked.plot is not None:
        plot_training(asked.plot, asked.model.stem, history)
        written.append(asked.plot)
    if json:
        shared.print_json(
            {
                "history": [dict(e.results) for e in history],
                "steps": trainer.steps,
                "seconds": seconds,
                "stats": trainer.stats(),
                "explanation": trainer.explain(),
                "written": list(map(str, written)),
            }
        )
        return
    _print(trainer, history, seconds)
    for path in written:
        shared.out.print(f"written: {path}", soft_wrap=True)


def _target(asked: Request) -> Path | None:
    """Where the trained model goes; None where only the checkpoint is wanted. Raises ConfigError where a default name
    is taken."""
    if asked.out is not None or asked.resume is not None:
        return asked.out
    default = asked.model.with_name(f"{asked.model.stem}-trained.onnx")
    if default.exists():
        raise ConfigError(
            f"{default} exists, and without --out the trained model would go there: give --out FILE.onnx, or "
            f"move that file"
        )
    if not os.access(default.parent, os.W_OK):
        raise ConfigError(
            f"{default.parent} may not be written to, and the trained model would go there: give --out FILE.onnx"
        )
    return default


def _trainer(asked: Request, steps: int) -> Trainer:
    """steps: over which a schedule goes."""
    chosen = _optimizer(asked.optimizer, _schedule(asked.schedule, asked.rate, steps), asked.clip)
    return Trainer(
        str(asked.model),
        loss=asked.loss,
        optimizer=chosen,
        trainable=list(asked.trainable) or None,
        seed=asked.seed,
        options=asked.options,
    )


def _written(trainer: Trainer, asked: Request, out: Path | None) -> list[Path]:
    """Writes the trained model and the checkpoint."""
    if asked.resume is not None:
        trainer.save(asked.resume)
    if out is not None:
        trainer.export(out)
    return [path for path in (out, asked.resume) if path is not None]


def _steps(resume: Path | None) -> int:
    """That a checkpoint has behind it: a schedule over all steps counts them. 0 where there is none."""
    return (
        checkpoint.number(resume, checkpoint.read(resume)[1], "step") if resume is not None and resume.exists() else 0
    )


def _samples(path: Path) -> tuple[dict[str, Any], Any]:
    """Inputs and labels of a file. Raises TrainingError for one that has no labels or no inputs, or is no such file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise TrainingError(f"--data {path}: no such file") from error
    except (ValueError, AttributeError, OSError) as error:
        raise TrainingError(
            f"--data {path}: not a .npz file of numbers ({error}); numpy.savez(FILE, x=..., y=...) writes one"
        ) from error
    there = [name for name in LABELS if name in arrays]
    if not there or len(arrays) < 2:
        raise TrainingError(
            f"--data {path}: it has {', '.join(map(repr, arrays)) or 'nothing'}, expected inputs and labels ('y')"
        )
    labels = arrays.pop(there[0])
    return arrays, labels


def _schedule(name: str, rate: float, steps: int) -> Schedule:
    if name not in SCHEDULES:
        raise TrainingError(f"--schedule: got {name!r}, expected one of {', '.join(SCHEDULES)}")
    return cosine(rate, steps) if name == "cosine" else constant(rate)


def _optimizer(name: str, rate: Schedule, clip: float | None) -> Any:
    if name not in OPTIMIZERS:
        raise TrainingError(f"--optimizer: got {name!r}, expected one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name](rate, clip=clip)


def _fit(
    trainer: Trainer,
    asked: Request,
    inputs: Mapping[str, Any],
    labels: Any,
    validation: Any,
    history: list[Epoch],
    quiet: bool,
) -> None:
    """fit(), with a bar on a terminal's error stream, and a log. history: gets each epoch."""
    bar = Bar(
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(compact=True),
        console=shared.err,
        transient=True,
        disable=quiet or not shared.err.is_terminal,
    )
    with bar, open(asked.log, "a", encoding="utf-8") if asked.log is not None else nullcontext() as log:
        task = bar.add_task("training", total=None, epoch="1", loss="")

        def show(at: Progress) -> None:
            bar.update(
                task, completed=at.step, total=at.steps, epoch=f"{at.epoch}/{at.epochs}", loss=loss_text(at.loss)
            )

        def note(epoch: Epoch) -> None:
            history.append(epoch)
            if log is not None:
                log.writelines(json_module.dumps(line) + "\n" for line in _lines(epoch))
                log.flush()

        trainer.fit(
            inputs, labels, epochs=asked.epochs, batch=asked.batch, validation=validation, on_step=show, on_epoch=note
        )


def loss_text(loss: float | None) -> str:
    """For the bar: nothing, before a loss was read."""
    return "" if loss is None else f"loss {loss:.4g}"


def _lines(epoch: Epoch) -> Iterator[dict[str, Any]]:
    """Of the log: a line a step, then one for the epoch."""
    begin = epoch.step - len(epoch.losses) + 1
    yield from ({"epoch": epoch.number, "step": begin + k, "loss": loss} for k, loss in enumerate(epoch.losses))
    yield {"epoch": epoch.number, "step": epoch.step, "results": dict(epoch.results)}


def _print(trainer: Trainer, history: Sequence[Epoch], seconds: float) -> None:
    names = list(history[-1].results)
    table = Table("epoch", *(n.replace("_", " ") for n in names))
    shown = history if len(history) <= 20 else [*history[:5], *history[-15:]]
    for epoch in shown:
        table.add_row(str(epoch.number), *(f"{epoch.results[n]:.5g}" for n in names))
    shared.out.print(table)
    shared.out.print(shared.lines(trainer.summary()))
    shared.out.print(f"{seconds:.1f} s in all")
