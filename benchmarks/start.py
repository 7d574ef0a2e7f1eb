"""From import to the first result: a new machine, a new model, a known one; and what runs take meanwhile.

    python -m benchmarks.start [MODEL ...] [--runs 3] [--during 0] [--option NAME=VALUE] [--json]

MODEL: of a builder, of a pretrained model, or an .onnx file. Each figure is the median of processes of their own. New machine: no caches at
all, neither ours nor the driver's. New model: another model has settled with these caches. Known model: this one has. Beside it
onnxruntime's CPU provider, and its WebGPU provider where this onnxruntime has it. --during: runs that follow the first one on a new
machine, whose p50 and p99 are set against the CPU's alone.
"""

from __future__ import annotations

import json as json_module
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.first_result import CACHES, ROOT, prepared

OTHER = "mlp_784"
"""The model that has settled before a new one is met."""

SITUATIONS = ("new machine", "new model", "known model")


def one(side: str, path: Path, inputs: dict[str, Any], options: dict[str, str], caches: Path, runs: int) -> dict[str, Any]:
    """What a process says of itself. Raises CalledProcessError."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {name: str(caches / folder) for name, folder in CACHES.items()}
    said = [side, str(path), json_module.dumps(inputs), json_module.dumps(options), str(runs)]
    command = [sys.executable, "-m", "benchmarks.start_process", *said]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return dict(json_module.loads(done.stdout.splitlines()[-1]))


class Machine:
    """Caches in each situation. folder: for them. Each process gets a copy, so that none changes what the next one meets."""

    def __init__(self, folder: Path, options: dict[str, str]) -> None:
        self._folder, self._options, self._count = folder, options, 0
        self._settled = {"new machine": folder / "none"}
        self._settled["new machine"].mkdir()

    def learn(self, situation: str, path: Path, inputs: dict[str, Any]) -> None:
        """Lets a model settle on a machine that knows what is known in the situation before."""
        caches = self.caches(SITUATIONS[SITUATIONS.index(situation) - 1])
        one("ours", path, inputs, self._options, caches, -1)
        one("ours", path, inputs, self._options, caches, -1)     # writes what only a second process needs
        self._settled[situation] = caches

    def caches(self, situation: str) -> Path:
        self._count += 1
        made = self._folder / f"caches{self._count}"
        shutil.copytree(self._settled[situation], made)
        return made


def measure(name: str, runs: int, during: int, options: dict[str, str]) -> dict[str, Any]:
    """Medians of each side in each situation, in seconds."""
    sides = ["cpu", "ours", *(["webgpu"] if "WebGpuExecutionProvider" in onnxruntime.get_available_providers() else [])]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for part in ("model", "other"):
            (folder / part).mkdir()
        path, inputs = prepared(name, folder / "model")
        machine = Machine(folder, options)
        machine.learn("new model", *prepared(OTHER, folder / "other"))
        machine.learn("known model", path, inputs)
        table: dict[str, Any] = {}
        for situation in SITUATIONS:
            found = {side: [one(side, path, inputs, options, machine.caches(situation), -1 if side == "ours" else 0) for _ in range(runs)]
                     for side in sides}
            table[situation] = {side: {key: median(run[key] for run in of_side) for key in ("session_s", "first_s", "settled_s")}
                                for side, of_side in found.items()}
            table[situation]["answered"] = found["ours"][-1]["answered"]
        spent = {}
        if during:
            for side in ("cpu", "ours"):
                took_ms = one(side, path, inputs, options, machine.caches("new machine"), during)["took_ms"]
                spent[side] = {"p50_ms": float(np.percentile(took_ms, 50)), "p99_ms": float(np.percentile(took_ms, 99)),
                               "max_ms": max(took_ms)}
    return {"model": name, "options": options, "runs": runs, "situations": table, "during": spent, "runs_during": during}


def shown(result: dict[str, Any]) -> Table:
    table = Table("", "first result", "of it: session", "settled", "answered by",
                  title=f"{result['model']}: seconds from import, medians of {result['runs']} processes")
    for situation, found in result["situations"].items():
        for side in [s for s in found if s != "answered"]:
            settled = (f"{found[side]['settled_s']:.2f}", str(found["answered"])) if side == "ours" else ("", "")
            table.add_row(f"{situation}: {side}", *(f"{found[side][key]:.2f}" for key in ("first_s", "session_s")), *settled)
    for side, took in result["during"].items():
        name = f"{result['runs_during']} runs on a new machine: {side}"
        table.add_row(name, *(f"{what} {took[f'{what}_ms']:.2f} ms" for what in ("p50", "p99", "max")), "")
    return table


def main(
    models: Annotated[list[str] | None, typer.Argument(help="Builders, pretrained models, or .onnx files.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Processes of each figure.")] = 3,
    during: Annotated[int, typer.Option(min=0, help="Runs that follow the first one on a new machine, for p50 and p99.")] = 0,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE, of our provider.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Starts processes and takes medians."""
    options = dict(text.split("=", 1) for text in option or ())
    for name in models or ["squeezenet1_1"]:
        try:
            result = measure(name, runs, during, options)
        except subprocess.CalledProcessError as error:
            sys.exit(f"the process failed:\n{error.stderr}")
        if json:
            print(json_module.dumps(result, indent=1))
        else:
            Console().print(shown(result))


if __name__ == "__main__":
    typer.run(main)
