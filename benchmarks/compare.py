"""Compares two versions of this package: what became faster or slower by more than noise.

    python -m benchmarks.compare OLD [NEW] [--models resnet50,encoder] [--processes 5] [--runs 40] [--option NAME=VALUE]
      [--json]

OLD, NEW: a commit, or a folder with the package; NEW is this folder by default. Processes of both take turns, every
other round backwards, each side with caches of its own, that a first process fills. Medians of whole runs; noise by
bootstrap over processes and runs (noise.py).
"""

from __future__ import annotations

import json as json_module
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from benchmarks import cases
from benchmarks.noise import Difference, difference
from benchmarks.peers import DEFAULT
from ort_gpu_ep.config import resolve
from ort_gpu_ep.device.adapter import choose, order_among_equals
from ort_gpu_ep.load.clocks import read_clocks

ROOT = Path(__file__).resolve().parents[1]
PROCESS = Path(__file__).with_name("compare_process.py")
WARM_S = 0.8

console = Console()
err = Console(stderr=True)

Times = dict[str, list[float] | str]


def folder_of(version: str, into: Path) -> Path:
    """The folder of a version: itself, or a commit of this repository, unpacked. Raises typer.BadParameter where it is
    neither."""
    if (Path(version) / "ort_gpu_ep" / "__init__.py").is_file():
        return Path(version).resolve()
    done = subprocess.run(["git", "archive", version], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise typer.BadParameter(
            f"{version}: neither a folder with ort_gpu_ep/ in it nor a commit: {done.stderr.decode().strip()}"
        )
    into.mkdir()
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        # Python 3.11.2 has none
        archive.extractall(into, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return into


def prepared(names: Sequence[str], folder: Path) -> dict[str, tuple[str, str]]:
    """name -> (file of the model, file with inputs): the same for both sides."""
    found = {}
    for name in names:
        model, feeds = cases.load(name)
        path = Path(model) if isinstance(model, str) else folder / f"{name}.onnx"
        if isinstance(model, bytes):
            path.write_bytes(model)
        np.savez(folder / f"{name}.npz", **feeds)
        found[name] = str(path), str(folder / f"{name}.npz")
    return found


def one(
    package: Path,
    cache: Path,
    models: Mapping[str, tuple[str, str]],
    options: Mapping[str, str],
    runs: int,
    warm_s: float,
) -> Times:
    """What a process measures. Raises CalledProcessError, whose `stderr` says why."""
    request = {"models": models, "options": options, "runs": runs, "warm_s": warm_s}
    environment = {**os.environ, "PYTHONPATH": str(package), "ORT_GPU_EP_CACHE_DIR": str(cache)}
    command = [sys.executable, str(PROCESS), json_module.dumps(request)]
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, check=True)
    return dict(json_module.loads(done.stdout.splitlines()[-1]))


def measured(
    sides: Mapping[str, tuple[Path, Path]],
    models: Mapping[str, tuple[str, str]],
    options: Mapping[str, str],
    processes: int,
    runs: int,
    warm_s: float = WARM_S,
) -> dict[str, list[Times]]:
    """Per side, what each process measured. sides: name -> (folder, cache)."""
    found: dict[str, list[Times]] = {side: [] for side in sides}
    for package, cache in sides.values():
        one(package, cache, models, options, 1, 0.0)  # fills the caches
    for k in track(range(processes), "comparing", console=err, transient=True):
        for side in reversed(list(sides)) if k % 2 else sides:
            found[side].append(one(*sides[side], models, options, runs, warm_s))
    return found


def differences(found: Mapping[str, list[Times]], names: Sequence[str]) -> tuple[dict[str, Difference], dict[str, str]]:
    """Of each model; and why others have none."""
    compared, failed = {}, {}
    for name in names:
        times = {side: [t[name] for t in results] for side, results in found.items()}
        broken = [f"{side}: {t}" for side, all_times in times.items() for t in all_times if isinstance(t, str)]
        if broken:
            failed[name] = broken[0]
        else:
            compared[name] = difference(
                *([t for t in times[side] if not isinstance(t, str)] for side in ("old", "new"))
            )
    return compared, failed


def lines(compared: Mapping[str, Difference], failed: Mapping[str, str]) -> list[str]:
    """What is beyond noise, the largest change first, and how much is not."""
    shown = sorted((n for n, d in compared.items() if d.is_beyond_noise), key=lambda n: compared[n].ratio)
    text = [
        f"{name:24} {d.old_ms:9.3f} -> {d.new_ms:9.3f} ms  {d.ratio - 1:+7.1%}  ({d.low - 1:+.1%} to {d.high - 1:+.1%})"
        for name, d in ((n, compared[n]) for n in shown)
    ]
    within = len(compared) - len(shown)
    return [
        *text,
        f"{within} of {len(compared)} within noise",
        *(f"{name}: not compared: {why}" for name, why in failed.items()),
    ]


def clocks() -> str:
    """Of the adapter now; empty where nobody tells."""
    info = choose(resolve({}).adapter)[0]
    return str(read_clocks(info, order_among_equals(info)) or "")


def main(
    old: Annotated[str, typer.Argument(help="A commit, or a folder with ort_gpu_ep/ in it.")],
    new: Annotated[str, typer.Argument(help="Likewise.")] = ".",
    models: Annotated[str, typer.Option("--models", help="Names of models/, comma-separated.")] = ",".join(DEFAULT),
    processes: Annotated[int, typer.Option("--processes", min=1)] = 5,
    runs: Annotated[int, typer.Option("--runs", min=1, help="In each process.")] = 40,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE, of the provider.")] = None,
    json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    names = [n for n in models.split(",") if n]
    options = {"placement": "gpu", **dict(text.split("=", 1) for text in option or ())}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        sides = {
            side: (folder_of(version, root / side), root / f"{side}-cache")
            for side, version in (("old", old), ("new", new))
        }
        before = clocks()
        try:
            found = measured(sides, prepared(names, root), options, processes, runs)
        except subprocess.CalledProcessError as error:
            err.print(f"a process failed: {error.stderr}", highlight=False, markup=False)
            raise typer.Exit(1) from error
    compared, failed = differences(found, names)
    if json:
        report: dict[str, Any] = {
            "schema": 1,
            "old": old,
            "new": new,
            "clocks": [before, clocks()],
            "options": options,
            "models": {
                n: {**d.as_dict(), "times_ms": {s: [t[n] for t in r] for s, r in found.items()}}
                for n, d in compared.items()
            },
            "failed": failed,
        }
        print(json_module.dumps(report, indent=1))
        return
    text = [f"{old} -> {new}: medians of whole runs, {processes} processes of {runs} runs a side"]
    text += [f"clocks: {before} before, {clocks()} after"] if before else []
    for line in [*text, *lines(compared, failed)]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
