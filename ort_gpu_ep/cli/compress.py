"""ort-gpu-ep compress: a model with smaller weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ort_gpu_ep.cli import shared
from ort_gpu_ep.compression import compress as compressed
from ort_gpu_ep.errors import ConfigError


@shared.reports_errors
def compress(
    model: shared.ModelArgument,
    method: Annotated[str, typer.Option("--method", "-m", help="int8, int4, codebookN, pruneNN or pruneNN+codebook4.", show_default=False)],
    out: Annotated[Path, shared.file_to_write("--out", "The file to write.", "-o", show_default=False)],
    calibrate: Annotated[Path | None, typer.Option("--calibrate", help="A .npz file: samples for each input, by its name.")] = None,
    layers: Annotated[list[str] | None, typer.Option("--layers", help="PATTERN=METHOD for layers of such names; may be repeated.")] = None,
    max_error: Annotated[float | None, typer.Option("--max-error", min=0, help="A layer with more takes a gentler method.")] = None,
    json: shared.JsonOption = False,
) -> None:
    """Write MODEL with smaller weights, as plain ONNX that stock ONNX Runtime runs with the same result."""
    chosen = [_method_of(text) for text in layers or ()]
    with shared.progress("compressing", quiet=json) as tell:
        report = compressed(model, out, method, calibrate=calibrate, layers=chosen, max_error=max_error, tell=tell)
    if json:
        shared.print_json(report.as_dict())
        return
    for line in report.lines():
        shared.out.print(line, highlight=False, markup=False)
    shared.out.print(f"written: {out}", highlight=False, markup=False, soft_wrap=True)


def _method_of(text: str) -> tuple[str, str]:
    """(pattern, method). Names of layers may hold `=`, names of methods don't. Raises ConfigError."""
    pattern, sign, method = text.rpartition("=")
    if not sign or not pattern:
        raise ConfigError(f"--layers {text!r}: expected PATTERN=METHOD")
    return pattern, method
