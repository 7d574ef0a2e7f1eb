"""ort-gpu-ep compress: a model with smaller weights."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ort_gpu_ep.cli import shared
from ort_gpu_ep.cli.plot import plot_methods, pyplot
from ort_gpu_ep.compression import Report
from ort_gpu_ep.compression import compress as compressed
from ort_gpu_ep.errors import ConfigError

DRAWN = ("int8", "int4", "codebook5", "prune50", "prune80", "prune90")
"""Methods that --plot draws."""


def _no_options(given: str | None) -> None:
    """`-o` is `--option` in the other commands; here it is a file more often than not."""
    if given is not None:
        raise typer.BadParameter(
            "compress has no -o: give the file to write as --out FILE.onnx; options of the provider (-o NAME=VALUE) "
            "belong to the commands that run a model"
        )


@shared.reports_errors
def compress(
    model: shared.ModelArgument,
    method: Annotated[
        str,
        typer.Option("--method", "-m", help="int8, int4, codebookN, pruneNN or pruneNN+codebook4.", show_default=False),
    ],
    out: Annotated[Path, shared.file_to_write("--out", "The .onnx file to write.", (".onnx",), show_default=False)],
    calibrate: Annotated[
        Path | None, typer.Option("--calibrate", help="A .npz file: samples for each input, by its name.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="A .npy file: the class of each sample, for the accuracy.")
    ] = None,
    layers: Annotated[
        list[str] | None, typer.Option("--layers", help="PATTERN=METHOD for layers whose name matches; repeat.")
    ] = None,
    max_error: Annotated[
        float | None, typer.Option("--max-error", min=0, help="Largest error of a layer, else a gentler method.")
    ] = None,
    short: Annotated[str | None, typer.Option("-o", hidden=True, callback=_no_options)] = None,
    plot: Annotated[
        Path | None, shared.file_to_write("--plot", "Draw size and accuracy of all methods.", shared.PICTURES)
    ] = None,
    json: shared.JsonOption = False,
) -> None:
    """Write MODEL with smaller weights. Any ONNX Runtime runs the new file."""
    chosen = [_method_of(text) for text in layers or ()]
    if plot is not None:
        if calibrate is None:
            raise ConfigError(
                "--plot needs samples to compare the methods on: --calibrate DATA.npz, and --labels for their accuracy"
            )
        pyplot()  # fails before anything is compressed
    with shared.progress("compressing", quiet=json) as tell:
        report = compressed(
            model, out, method, calibrate=calibrate, labels=labels, layers=chosen, max_error=max_error, tell=tell
        )
    others = _others(model, method, calibrate, labels, json) if plot is not None and calibrate is not None else {}
    if plot is not None:
        plot_methods(plot, model.stem, {method: report, **others})
    if json:
        shared.print_json(
            {**report.as_dict(), **({"methods": {m: r.as_dict() for m, r in others.items()}} if others else {})}
        )
        return
    for line in report.lines():
        shared.out.print(line)
    shared.out.print(f"written: {out}", soft_wrap=True)
    if plot is not None:
        shared.out.print(f"written: {plot}", soft_wrap=True)


def _others(model: Path, method: str, calibrate: Path, labels: Path | None, quiet: bool) -> dict[str, Report]:
    """Reports of the other methods that are drawn beside the one that was asked for; their files are not kept."""
    reports, names = {}, [name for name in DRAWN if name != method]
    with tempfile.TemporaryDirectory() as folder, shared.progress("other methods", quiet=quiet) as tell:
        for k, name in enumerate(names):
            tell(name, k / len(names))
            reports[name] = compressed(model, Path(folder) / f"{k}.onnx", name, calibrate=calibrate, labels=labels)
    return reports


def _method_of(text: str) -> tuple[str, str]:
    """(pattern, method). Names of layers may hold `=`, names of methods don't. Raises ConfigError."""
    pattern, sign, method = text.rpartition("=")
    if not sign or not pattern:
        raise ConfigError(f"--layers {text!r}: expected PATTERN=METHOD")
    return pattern, method
