"""What `placement=auto` costs over plain ONNX Runtime where it chooses the CPU: medians of runs taken in turn.

    python benchmarks/auto_overhead.py [NAME ...] [--runs 30] [--json FILE]

Names are builders and pretrained models of models/ (default: all of them). A ratio of 1.00 means no cost.
"""

from __future__ import annotations

import json as json_module
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import models
from models import pretrained
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep import InferenceSession

console = Console()


def load(name: str) -> tuple[Any, dict[str, Any]]:
    """A model (bytes or a path) and inputs for it."""
    if name in models.BUILDERS:
        model = models.build(name)
        return model.SerializeToString(), make_inputs(model_inputs(model))
    entry = pretrained.entry(name)
    return str(pretrained.fetch(name)), make_inputs(entry.inputs)


def measure(name: str, runs: int) -> dict[str, float | str | int]:
    """Median milliseconds of both sessions, a run of each in turn, in alternating order."""
    model, feeds = load(name)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    plain = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    ours = InferenceSession(model, settings)
    sides = {"plain": plain, "auto": ours}
    times: dict[str, list[float]] = {side: [] for side in sides}
    for session in sides.values():
        for _ in range(3):
            session.run(None, feeds)
    for i in range(runs):
        for side in sorted(sides, reverse=bool(i % 2)):
            start = time.perf_counter()
            sides[side].run(None, feeds)
            times[side].append((time.perf_counter() - start) * 1e3)
    medians = {side: float(np.median(t)) for side, t in times.items()}
    return {"model": name, "cpu_ms": medians["plain"], "auto_ms": medians["auto"], "ratio": medians["auto"] / medians["plain"],
            "gpu_nodes": ours.explain().count("gpu")}


def main(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    runs: Annotated[int, typer.Option()] = 30,
    json: Annotated[Path | None, typer.Option()] = None,
) -> None:
    wanted = names or [*models.BUILDERS, *(e.name for e in pretrained.entries())]
    rows = [measure(n, runs) for n in track(wanted, "measuring", console=Console(stderr=True), transient=True)]
    table = Table("model", "plain ORT CPU, ms", "auto, ms", "auto / CPU", "nodes on the GPU")
    for row in rows:
        table.add_row(str(row["model"]), f"{row['cpu_ms']:.3f}", f"{row['auto_ms']:.3f}", f"{row['ratio']:.3f}", str(row["gpu_nodes"]))
    console.print(table)
    ratios = np.array([float(r["ratio"]) for r in rows])
    console.print(f"median ratio {np.median(ratios):.3f}, largest {ratios.max():.3f}")
    if json is not None:
        json.write_text(json_module.dumps(rows, indent=1))


if __name__ == "__main__":
    typer.run(main)
