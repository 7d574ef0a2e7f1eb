"""From import to the first result: a new machine, a new model, a known one; and what runs take meanwhile.

    python -m benchmarks.start [MODEL ...] [--runs 3] [--during 0] [--limit 60] [--situations LIST] [--sides LIST]
        [--pause 0] [--option NAME=VALUE] [--json FILE]

MODEL: of a builder, of a pretrained model, or an .onnx file. A line is printed as soon as its processes have ended:
medians of so many, each a process of its own. New machine: no caches at all, neither ours nor the driver's. New model:
another model has settled with these caches. Known model: this one has. Sides: onnxruntime's CPU provider, its WebGPU
provider where this onnxruntime has it, `ours` with default options and `gpu`, which is ours with placement=gpu.
--during: runs that follow the first one on a new machine, whose p50 and p99 are set against the CPU's alone. --limit: a
process that takes longer is ended, and its line says so. --pause: milliseconds between two runs of a process;
onnxruntime's threads keep every core busy between runs that follow at once, beside which the search for a candidate
takes long.

Columns: seconds to the session, to the first result, until the session has settled, until the GPU first answered; MiB
of the process at most and at the end; MiB of an NVIDIA device that came into use with the process; which candidates
answered.
"""

from __future__ import annotations

import json as json_module
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer

from benchmarks.first_result import CACHES, ROOT, prepared
from benchmarks.start_process import ALONE, used_nbytes
from ort_gpu_ep.cli.peers import WEBGPU

OTHER = "mlp_784"
"""The model that has settled before a new one is met."""

SITUATIONS = ("new machine", "new model", "known model")
SECONDS = ("session_s", "first_s", "settled_s", "gpu_s")
BYTES = ("host_most", "host_end", "device_used")
GRACE_S = 20.0
"""What a process may take beyond its limit to end."""


class FailedError(Exception):
    """A process failed, or took too long."""


def one(
    side: str,
    path: Path,
    inputs: dict[str, Any],
    options: dict[str, str],
    caches: Path,
    runs: int,
    limit_s: float,
    pause_ms: float = 0.0,
) -> dict[str, Any]:
    """What a process says of itself. Raises FailedError."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {name: str(caches / folder) for name, folder in CACHES.items()}
    said = [
        side,
        str(path),
        json_module.dumps(inputs),
        json_module.dumps(options),
        str(runs),
        str(limit_s),
        str(pause_ms),
    ]
    command = [sys.executable, "-m", "benchmarks.start_process", *said]
    before = used_nbytes()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=limit_s + GRACE_S
        )
    except subprocess.TimeoutExpired:
        raise FailedError(f"ended after {limit_s + GRACE_S:.0f} s") from None
    if done.returncode:
        raise FailedError(f"exit code {done.returncode}: {done.stderr[-1000:]}")
    found = dict(json_module.loads(done.stdout.splitlines()[-1]))
    found["device_used"] = (
        None if before is None or found["device_used"] is None else max(found["device_used"] - before, 0)
    )
    return found


class Machine:
    """Caches in each situation. folder: for them, and for copies, so that no process changes what the next one
    meets."""

    def __init__(self, folder: Path, options: dict[str, str], limit_s: float) -> None:
        self._folder, self._options, self._limit_s, self._count = folder, options, limit_s, 0
        self.empty = folder / "none"
        self.empty.mkdir()

    def settled(self, path: Path, inputs: dict[str, Any]) -> Path:
        """Caches with which a model has settled, in two processes: the second one writes what the first could not
        know."""
        caches = self.copy(self.empty)
        for side in ("ours", "ours", "gpu"):
            one(side, path, inputs, self._options, caches, ALONE, self._limit_s)
        return caches

    def copy(self, caches: Path) -> Path:
        self._count += 1
        made = self._folder / f"caches{self._count}"
        shutil.copytree(caches, made)
        return made


def middle(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over processes; None where one has no figure."""
    row: dict[str, Any] = {
        key: median(run[key] for run in found) if all(run.get(key) is not None for run in found) else None
        for key in (*SECONDS, *BYTES)
    }
    return {**row, "answered": found[-1]["answered"]}


def line(model: str, situation: str, side: str, row: dict[str, Any]) -> str:
    seconds = (f"{row[key]:9.2f}" if row.get(key) is not None else " " * 8 + "-" for key in SECONDS)
    sizes = (f"{row[key] / (1 << 20):9.0f}" if row.get(key) is not None else " " * 8 + "-" for key in BYTES)
    tail = row.get("failed") or " ".join(f"{name}:{runs}" for name, runs in row.get("answered", {}).items())
    return "".join((f"{model:16}{situation:13}{side:7}", *seconds, *sizes, f"  {tail}"))


def measure(
    name: str,
    sides: list[str],
    runs: int,
    during: int,
    machine: Machine,
    caches: dict[str, Path | None],
    options: dict[str, str],
    limit_s: float,
    pause_ms: float,
    folder: Path,
) -> dict[str, Any]:
    """Medians of each side in each situation, each printed when it is there. caches: of each situation; the known
    model's are made here."""
    (folder / name).mkdir()
    path, inputs = prepared(name, folder / name)
    table: dict[str, Any] = {}
    for situation, known in caches.items():
        if known is None:
            print(f"# {name} settles, so that it is a known model ...", flush=True)
            known = machine.settled(path, inputs)
        for side in sides:
            try:
                # a known model's processes change nothing, and drivers may not take a copied cache for their own
                folders = [known if caches[situation] is None else machine.copy(known) for _ in range(runs)]
                found = [
                    one(side, path, inputs, options, own, -1 if side == "ours" else 0, limit_s, pause_ms)
                    for own in folders
                ]
                row = middle(found)
            except FailedError as error:
                row = {"failed": str(error)}
            table.setdefault(situation, {})[side] = row
            print(line(name, situation, side, row), flush=True)
    spent = {}
    for side in ("cpu", "ours") if during else ():
        took_ms = one(side, path, inputs, options, machine.copy(machine.empty), during, limit_s, pause_ms)["took_ms"]
        spent[side] = {
            "p50_ms": float(np.percentile(took_ms, 50)),
            "p99_ms": float(np.percentile(took_ms, 99)),
            "max_ms": max(took_ms),
        }
        print(
            f"{name:16}{during} runs on a new machine, {side}: "
            + ", ".join(f"{k} {v:.2f}" for k, v in spent[side].items()),
            flush=True,
        )
    return {
        "model": name,
        "options": options,
        "runs": runs,
        "situations": table,
        "during": spent,
        "runs_during": during,
    }


def main(
    models: Annotated[list[str] | None, typer.Argument(help="Builders, pretrained models, or .onnx files.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Processes of each figure.")] = 3,
    during: Annotated[
        int, typer.Option(min=0, help="Runs that follow the first one on a new machine, for p50 and p99.")
    ] = 0,
    limit: Annotated[float, typer.Option(min=1, help="Seconds a process may take.")] = 60.0,
    situations: Annotated[str, typer.Option(help="By commas.")] = ",".join(SITUATIONS),
    only: Annotated[str, typer.Option("--sides", help="By commas; all that there are by default.")] = "",
    pause: Annotated[float, typer.Option(min=0, help="Milliseconds between two runs of a process.")] = 0.0,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE, of our provider.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures here, too, after each model.")] = None,
) -> None:
    """Starts processes and takes medians."""
    options = dict(text.split("=", 1) for text in option or ())
    webgpu = "WebGpuExecutionProvider" in onnxruntime.get_available_providers() or find_spec(WEBGPU) is not None
    sides = ["cpu", *(["webgpu"] if webgpu else []), "ours", "gpu"]
    if not webgpu:
        print(f"# no WebGPU provider: neither this onnxruntime has it nor is {WEBGPU} installed", flush=True)
    sides = [side for side in sides if not only or side in only.split(",")]
    asked, results = situations.split(","), []
    if wrong := set(asked) - set(SITUATIONS):
        sys.exit(f"--situations: {', '.join(sorted(wrong))}: expected some of {', '.join(SITUATIONS)}")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        machine = Machine(folder, options, limit)
        (folder / "other").mkdir()
        try:
            caches: dict[str, Path | None] = dict.fromkeys(asked)
            if "new machine" in caches:
                caches["new machine"] = machine.empty
            if "new model" in caches:
                print(f"# {OTHER} settles, so that the machine is known ...", flush=True)
                caches["new model"] = machine.settled(*prepared(OTHER, folder / "other"))
            keys = ("session", "first", "settled", "GPU", "host", "host end", "device")
            print(
                f"{'model':16}{'situation':13}{'side':7}" + "".join(f"{key:>9}" for key in keys) + "  answered by",
                flush=True,
            )
            for name in models or ["squeezenet1_1"]:
                results.append(measure(name, sides, runs, during, machine, caches, options, limit, pause, folder))
                if json is not None:
                    json.write_text(json_module.dumps(results, indent=1))
        except FailedError as error:
            sys.exit(f"a process failed: {error}")


if __name__ == "__main__":
    typer.run(main)
