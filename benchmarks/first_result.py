"""A new process to its first result: how long, and what it consists of.

    python -m benchmarks.first_result [MODEL] [--runs 5] [--cold] [--option NAME=VALUE] [--json]

MODEL: of a builder, of a pretrained model, or an .onnx file. Each run is a process of its own with the caches of the
one before: verdicts and drivers that are known, the driver's own cache of shaders, Python's bytecode. With --cold each
has none, but for the bytecode.
"""

from __future__ import annotations

import json as json_module
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import onnx
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import cases
from benchmarks.first_result_process import GROUPS, PARTS
from models.inputs import make_inputs, model_inputs

ROOT = Path(__file__).resolve().parents[1]
CACHES = {
    "ORT_GPU_EP_CACHE_DIR": "ours",
    "MESA_SHADER_CACHE_DIR": "mesa",
    "__GL_SHADER_DISK_CACHE_PATH": "nvidia",
    "XDG_CACHE_HOME": "xdg",
}
WARMING = 2
"""Processes before those that count: one fills the caches, one writes what only a second one needs."""


def prepared(model: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A file of the model, and the types and shapes of inputs for it."""
    if model.endswith(".onnx"):
        path, feeds = Path(model).resolve(), make_inputs(model_inputs(onnx.load(model, load_external_data=False)))
    else:
        given, feeds = cases.load(model)
        path = Path(given) if isinstance(given, str) else folder / "model.onnx"
        if isinstance(given, bytes):
            path.write_bytes(given)
    return path, {name: (str(array.dtype), list(array.shape)) for name, array in feeds.items()}


def one(path: Path, inputs: dict[str, Any], options: dict[str, str], caches: Path) -> dict[str, Any]:
    """What a process says of itself. Raises CalledProcessError."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {name: str(caches / folder) for name, folder in CACHES.items()}
    said = [str(path), json_module.dumps(inputs), json_module.dumps(options)]
    command = [sys.executable, "-m", "benchmarks.first_result_process", repr(time.monotonic()), *said]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return dict(json_module.loads(done.stdout.splitlines()[-1]))


def measure(model: str, runs: int, cold: bool, options: dict[str, str], quiet: bool) -> dict[str, Any]:
    """Medians over the runs, of the whole and of each part, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path, inputs = prepared(model, Path(folder))
        for _ in range(WARMING):
            one(path, inputs, options, Path(folder) / "warm")
        found = [
            one(path, inputs, options, Path(folder) / (f"cold{i}" if cold else "warm"))
            for i in track(range(runs), "running", console=Console(stderr=True), disable=quiet, transient=True)
        ]
    parts = {part: median(run["parts_s"][part] for run in found) for part in PARTS}
    grouped = {part for members in GROUPS.values() for part in members}
    groups = {name: sum(parts[part] for part in members) for name, members in GROUPS.items()}
    groups["Python"] = sum(parts[part] for part in PARTS if part not in grouped)
    return {
        "model": model,
        "adapter": found[0]["adapter"],
        "runs": runs,
        "caches": "cold" if cold else "warm",
        "options": options,
        "cpu_nodes": found[0]["cpu_nodes"],
        "total_s": median(sum(run["parts_s"].values()) for run in found),
        "groups_s": groups,
        "parts_s": parts,
    }


def main(
    model: Annotated[str, typer.Argument(help="A builder, a pretrained model, or an .onnx file.")] = "squeezenet1_1",
    runs: Annotated[int, typer.Option(min=1, help="Processes that count.")] = 5,
    cold: Annotated[bool, typer.Option("--cold", help="Each without caches.")] = False,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE, of the provider.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Starts processes and takes medians."""
    options = {"placement": "gpu"} | dict(text.split("=", 1) for text in option or ())
    try:
        result = measure(model, runs, cold, options, json)
    except subprocess.CalledProcessError as error:
        sys.exit(f"the process failed:\n{error.stderr}")
    if json:
        print(json_module.dumps(result, indent=1))
        return
    table = Table(
        "part",
        "ms",
        title=f"{result['model']}, {result['caches']} caches, medians of {runs} processes, {result['adapter']}",
    )
    for part, seconds in result["parts_s"].items():
        table.add_row(part, f"{seconds * 1e3:.0f}", end_section=part == PARTS[-1])
    for group, seconds in result["groups_s"].items():
        table.add_row(group, f"{seconds * 1e3:.0f}")
    table.add_row("from start to result", f"{result['total_s'] * 1e3:.0f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
