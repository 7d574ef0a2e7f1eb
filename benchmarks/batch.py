"""Images a second at a batch size: whole runs with `placement=gpu`, arrays in and out, and again with tuned forms of
the kernels.

    python -m benchmarks.batch [NAME ...] [--batch 32] [--runs 40] [--tune 20] [--size 224] [--adapter A] [--json FILE]

--tune: seconds that `session.tune` may spend (0: not tuned). Sides take turns in blocks, each warm. What is tuned is
kept in the cache folder.
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


def measure(name: str, batch: int, runs: int, tune_s: float, size: int, adapter: str) -> dict[str, Any]:
    """Images a second by side, the choices of forms, and how far the sides' results differ."""
    model = models.build(name, batch=batch, size=size)
    feeds, options = make_inputs(model_inputs(model)), {"placement": "gpu", **({"adapter": adapter} if adapter else {})}
    data = model.SerializeToString()
    sessions = {"estimated": InferenceSession(data, cases.quiet(), provider_options=options)}
    want, row = sessions["estimated"].run(None, feeds), dict[str, Any]()
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
    adapter: Annotated[str, typer.Option()] = "",
    json: Annotated[Path | None, typer.Option()] = None,
) -> None:
    results = {}
    for name in names or DEFAULT:
        results[name] = row = measure(name, batch, runs, tune, size, adapter)
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
