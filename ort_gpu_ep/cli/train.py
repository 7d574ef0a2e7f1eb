"""ort-gpu-ep train: tunes a model's weights on a user's samples."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from ort_gpu_ep.cli import shared
from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.training import Progress, Schedule, Trainer, checkpoint, constant, cosine
from ort_gpu_ep.training.optimizers import OPTIMIZERS

LABELS = ("y", "labels")
SCHEDULES = ("constant", "cosine")


@shared.reports_errors
def train(
    model: shared.ModelArgument,
    data: Annotated[Path, typer.Option("--data", help="A .npz file: inputs by their names (or x), labels as y.", show_default=False)],
    out: Annotated[Path | None, shared.file_to_write("--out", "Write the tuned model there.")] = None,
    loss: Annotated[str, typer.Option("--loss", help="cross_entropy, mse, l1 or bce_with_logits.")] = "cross_entropy",
    optimizer: Annotated[str, typer.Option("--optimizer", help="sgd, adam or adamw.")] = "adam",
    rate: Annotated[float, typer.Option("--rate", help="Learning rate.")] = 1e-3,
    schedule: Annotated[str, typer.Option("--schedule", help="constant, or cosine: to 0 over all steps, resumed ones too.")] = "constant",
    epochs: Annotated[int, typer.Option("--epochs", min=1)] = 5,
    batch: Annotated[int, typer.Option("--batch", min=1)] = 32,
    trainable: Annotated[list[str] | None, typer.Option("--trainable", help="Pattern of weights to train (default all); repeat.")] = None,
    clip: Annotated[float | None, typer.Option("--clip", help="Largest norm of the gradient.")] = None,
    validate: Annotated[float, typer.Option("--validate", help="Part of the samples, the last ones, kept for validation.", max=0.9)] = 0.0,
    resume: Annotated[Path | None, shared.file_to_write("--resume", "Go on from this checkpoint, if it is there; write it.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of shuffling and Dropout.")] = 0,
    option: shared.OptionOption = None,
    json: shared.JsonOption = False,
) -> None:
    """Train the float32 weights of MODEL on the samples of a .npz file, and write the tuned model."""
    inputs, labels = _samples(data)
    kept = len(labels) - round(len(labels) * validate)
    steps = _steps(resume) + epochs * -(-kept // min(batch, kept))
    chosen = _optimizer(optimizer, _schedule(schedule, rate, steps), clip)
    options = shared.pairs(option, "--option")
    trainer = Trainer(str(model), loss=loss, optimizer=chosen, trainable=trainable or None, seed=seed, options=options)
    inputs = trainer.named(inputs)
    if resume is not None and resume.exists():
        trainer.load(resume)
    first, last = ({n: a[part] for n, a in inputs.items()} for part in (slice(None, kept), slice(kept, None)))
    validation = (last, labels[kept:]) if kept < len(labels) else None
    start = time.perf_counter()
    try:
        history = _fitted(trainer, first, labels[:kept], epochs, batch, validation, quiet=json)
    except KeyboardInterrupt:
        if resume is not None and trainer.steps:
            trainer.save(resume)
            shared.err.print(f"after {trainer.steps} steps; {resume} has them: the same command goes on from there", highlight=False)
        raise
    seconds = time.perf_counter() - start
    if resume is not None:
        trainer.save(resume)
    if out is not None:
        trainer.export(out)
    if json:
        shared.print_json({"history": history, "steps": trainer.steps, "seconds": seconds, "stats": trainer.stats(),
                           "explanation": trainer.explain()})
        return
    _print(trainer, history, seconds)
    for path, what in ((out, "tuned model"), (resume, "checkpoint")):
        if path is not None:
            shared.out.print(f"{what} written to {path}", highlight=False)


def _steps(resume: Path | None) -> int:
    """That a checkpoint has behind it: a schedule over all steps counts them. 0 where there is none."""
    return checkpoint.number(resume, checkpoint.read(resume)[1], "step") if resume is not None and resume.exists() else 0


def _samples(path: Path) -> tuple[dict[str, Any], Any]:
    """Inputs and labels of a file. Raises TrainingError for one that has no labels or no inputs, or is no such file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise TrainingError(f"--data {path}: no such file") from error
    except (ValueError, AttributeError, OSError) as error:
        raise TrainingError(f"--data {path}: not a .npz file of numbers ({error}); numpy.savez(FILE, x=..., y=...) writes one") from error
    there = [name for name in LABELS if name in arrays]
    if not there or len(arrays) < 2:
        raise TrainingError(f"--data {path}: it has {', '.join(map(repr, arrays)) or 'nothing'}, expected inputs and labels ('y')")
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


def _fitted(
    trainer: Trainer, inputs: Mapping[str, Any], labels: Any, epochs: int, batch: int, validation: Any, quiet: bool,
) -> list[dict[str, float]]:
    """fit(), with a bar on a terminal's error stream."""
    bar = Bar(TextColumn("epoch {task.fields[epoch]}"), BarColumn(20), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}"),
              TimeRemainingColumn(compact=True), console=shared.err, transient=True, disable=quiet or not shared.err.is_terminal)
    with bar:
        task = bar.add_task("training", total=None, epoch="1", loss="")

        def show(at: Progress) -> None:
            bar.update(task, completed=at.step, total=at.steps, epoch=f"{at.epoch}/{at.epochs}", loss=f"{at.loss:.4g}")

        return trainer.fit(inputs, labels, epochs=epochs, batch=batch, validation=validation, on_step=show)


def _print(trainer: Trainer, history: list[dict[str, float]], seconds: float) -> None:
    names = list(history[-1])
    table = Table("epoch", *(n.replace("_", " ") for n in names))
    shown = range(len(history)) if len(history) <= 20 else [*range(5), *range(len(history) - 15, len(history))]
    for k in shown:
        table.add_row(str(k + 1), *(f"{history[k][n]:.5g}" for n in names))
    shared.out.print(table)
    shared.out.print(trainer.summary(), highlight=False, markup=False)
    shared.out.print(f"{seconds:.1f} s in all", highlight=False)
