"""Images a second at a batch size: whole runs with `placement=gpu`, arrays in and out, and again with tuned forms of
the kernels.

    python -m benchmarks.batch [NAME ...] [--batch 32] [--runs 40] [--tune 20] [--size 224] [--profile 0] [--adapter A] [--json FILE]

--tune: seconds that `session.tune` may spend (0: not tuned). Sides take turns in blocks, each warm. What is tuned is
kept in the cache folder. --profile: lists so many of the dispatches that take the most, and what all would take at the
adapter's measured limits, each at the one that it comes closest to.
"""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import models
from benchmarks import cases
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep import InferenceSession

console = Console()
DEFAULT = ("resnet50", "mobilenet_v2")


def measure(name: str, batch: int, runs: int, tune_s: float, size: int, adapter: str, top: int = 0) -> dict[str, Any]:
    """Images a second by side, the choices of forms, and how far the sides' results differ."""
    model = models.build(name, batch=batch, size=size)
    feeds, options = make_inputs(model_inputs(model)), {"placement": "gpu", **({"adapter": adapter} if adapter else {})}
    data = model.SerializeToString()
    sessions = {"estimated": InferenceSession(data, cases.quiet(), provider_options=options)}
    want, row = sessions["estimated"].run(None, feeds), dict[str, Any]()
    if top:
        report = sessions["estimated"].profile(feeds)
        least_us = sum(d.us * min(1.0, report.roofs.share(d)[0]) for d in report.dispatches)
        row["profile"] = [
            *report.lines(top),
            f"at these limits {least_us / 1e3:.3f} ms of {report.kernels_us / 1e3:.3f}",
        ]
    if tune_s:
        sessions["tuned"] = InferenceSession(data, cases.quiet(), provider_options=options)
        row["tuning"] = str(sessions["tuned"].tune(feeds, budget_s=tune_s))
    row["difference"] = max(
        float(np.abs(a - b).max()) for s in sessions.values() for a, b in zip(s.run(None, feeds), want, strict=True)
    )
    for side, times in cases.in_blocks(
        {side: lambda s=s: s.run(None, feeds) for side, s in sessions.items()}, runs
    ).items():
        row[side] = {"median_ms": float(np.median(times)), "images_per_s": batch / float(np.median(times)) * 1e3}
    return row


def main(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    batch: Annotated[int, typer.Option(min=1)] = 32,
    runs: Annotated[int, typer.Option(min=1)] = 40,
    tune: Annotated[float, typer.Option(help="Seconds; 0: not tuned.")] = 20.0,
    size: Annotated[int, typer.Option(help="Of an image's sides.")] = 224,
    profile: Annotated[int, typer.Option(min=0, help="Dispatches to list; 0: not profiled.")] = 0,
    adapter: Annotated[str, typer.Option()] = "",
    json: Annotated[Path | None, typer.Option()] = None,
) -> None:
    results = {}
    for name in names or DEFAULT:
        results[name] = row = measure(name, batch, runs, tune, size, adapter, profile)
        for line in row.get("profile", ()):
            console.print(line, highlight=False, markup=False)
        for side in ("estimated", "tuned"):
            if side in row:
                console.print(
                    f"{name} x {batch}, {side}: {row[side]['images_per_s']:,.0f} images/s, "
                    f"{row[side]['median_ms']:.2f} ms"
                )
        if json is not None:
            json.write_text(json_module.dumps(results, indent=1))


if __name__ == "__main__":
    typer.run(main)
