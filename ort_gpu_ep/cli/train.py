"""ort-gpu-ep train: trains a model's weights. The work is in training_run.py, so that --help need not import it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ort_gpu_ep.cli import shared


@shared.reports_errors
def train(
    model: shared.ModelArgument,
    data: Annotated[
        Path, typer.Option("--data", help="A .npz file: inputs by their names (or x), labels as y.", show_default=False)
    ],
    out: Annotated[
        Path | None, shared.file_to_write("--out", "The trained model (default: MODEL-trained.onnx).", (".onnx",))
    ] = None,
    loss: Annotated[str, typer.Option("--loss", help="cross_entropy, mse, l1 or bce_with_logits.")] = "cross_entropy",
    optimizer: Annotated[str, typer.Option("--optimizer", help="sgd, adam or adamw.")] = "adam",
    rate: Annotated[float, typer.Option("--rate", help="Learning rate.")] = 1e-3,
    schedule: Annotated[
        str, typer.Option("--schedule", help="constant or cosine (to 0 over all steps, resumed ones too).")
    ] = "constant",
    epochs: Annotated[int, typer.Option("--epochs", min=1)] = 5,
    batch: Annotated[int, typer.Option("--batch", min=1)] = 32,
    trainable: Annotated[
        list[str] | None, typer.Option("--trainable", help="Pattern of weight names (default all); repeat.")
    ] = None,
    clip: Annotated[float | None, typer.Option("--clip", help="Largest norm of the gradient.")] = None,
    validate: Annotated[
        float, typer.Option("--validate", help="Share of the samples, from the end, used for validation.", max=0.9)
    ] = 0.0,
    resume: Annotated[
        Path | None, shared.file_to_write("--resume", "Checkpoint: continue from it if it exists, and write it.")
    ] = None,
    plot: Annotated[
        Path | None, shared.file_to_write("--plot", "Draw loss and accuracy over the epochs.", shared.PICTURES)
    ] = None,
    log: Annotated[
        Path | None, shared.file_to_write("--log", "Append a JSON line for each step and epoch.", (".jsonl",))
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of shuffling and Dropout.")] = 0,
    option: shared.OptionOption = None,
    json: shared.JsonOption = False,
) -> None:
    """Train the float32 weights of MODEL on the samples of a .npz file, and write the trained model."""
    from ort_gpu_ep.cli.training_run import Request, run

    run(
        Request(
            model,
            data,
            out,
            loss,
            optimizer,
            rate,
            schedule,
            epochs,
            batch,
            tuple(trainable or ()),
            clip,
            validate,
            resume,
            plot,
            log,
            seed,
            shared.pairs(option, "--option"),
        ),
        json,
    )
