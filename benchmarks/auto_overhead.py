"""What `placement=auto` costs over plain ONNX Runtime where it chooses the CPU: medians of runs taken in turn.

    python -m benchmarks.auto_overhead [NAME ...] [--runs 30] [--json FILE]

Names are builders and pretrained models of models/ (default: all of them). A ratio of 1.00 means no cost.
"""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import numpy as np
import onnxruntime
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import cases
from ort_gpu_ep import InferenceSession

console = Console()


def measure(name: str, runs: int) -> dict[str, float | str | int]:
    """Median milliseconds of plain ONNX Runtime and of ours."""
    model, feeds = cases.load(name)
    plain = onnxruntime.InferenceSession(model, cases.quiet(), providers=["CPUExecutionProvider"])
    ours = InferenceSession(model, cases.quiet())
    times = cases.in_turn({"plain": lambda: plain.run(None, feeds), "auto": lambda: ours.run(None, feeds)}, runs)
    cpu, auto = float(np.median(times["plain"])), float(np.median(times["auto"]))
    return {"model": name, "cpu_ms": cpu, "auto_ms": auto, "ratio": auto / cpu, "gpu_nodes": ours.explain().count("gpu")}


def main(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    runs: Annotated[int, typer.Option()] = 30,
    json: Annotated[Path | None, typer.Option()] = None,
) -> None:
    rows = [measure(n, runs) for n in track(names or cases.names(), "measuring", console=Console(stderr=True), transient=True)]
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
