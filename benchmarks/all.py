"""What a short time on hardware should answer, the most important first: one command, and nothing is lost when the time
is over.

    python -m benchmarks.all --out FILE.json [--minutes 20] [--only PATTERN] [--tiny] [--list]

Each step is a process of its own with a limit, and with what is left of --minutes. FILE is written after every step:
its seconds, exit code, the clocks before and after, what it wrote as JSON (also up to where it was ended) and the end
of what it printed. A FILE that is there is gone on with: steps that came to an end in it are left out. --tiny: the
smallest sizes, to try the steps where there is no GPU.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.compare import clocks

console = Console()
SHOWN = 8000
"""Characters of a step's output that are kept, from its end."""


@dataclass(frozen=True)
class Step:
    """arguments: behind `python -m`. FILE among them is where it writes JSON; JSON in its output where there is none.
    limit_s: at most."""

    name: str
    limit_s: int
    arguments: tuple[str, ...]
    tiny: tuple[str, ...]


FILE = "{json}"
STEPS = (
    Step(
        "threads",
        90,
        ("benchmarks.host", "--no-models", "--join", "--json", FILE),
        ("benchmarks.host", "--no-models", "--join", "--threads", "1,4", "--threads-model", "lenet5", "--json", FILE),
    ),
    Step(
        "threads, groups of 8, one at a time",
        60,
        (
            "benchmarks.host",
            "--no-models",
            "--join",
            "--threads",
            "1,8",
            "--group-size",
            "8",
            "--groups",
            "1",
            "--json",
            FILE,
        ),
        (
            "benchmarks.host",
            "--no-models",
            "--join",
            "--threads",
            "1,4",
            "--group-size",
            "8",
            "--groups",
            "1",
            "--threads-model",
            "lenet5",
            "--json",
            FILE,
        ),
    ),
    Step(
        "host",
        120,
        ("benchmarks.host", "--threads", "", "--json", FILE),
        ("benchmarks.host", "har_lstm", "--threads", "", "--runs", "6", "--json", FILE),
    ),
    Step(
        "peers",
        240,
        ("benchmarks.peers", "--json", FILE),
        ("benchmarks.peers", "lenet5", "--runs", "3", "--json", FILE),
    ),
    Step(
        "batch",
        150,
        ("benchmarks.batch", "--json", FILE),
        (
            "benchmarks.batch",
            "mobilenet_v2",
            "--batch",
            "2",
            "--size",
            "32",
            "--runs",
            "4",
            "--tune",
            "0",
            "--json",
            FILE,
        ),
    ),
    Step(
        "tiles",
        120,
        ("benchmarks.tiles", "--top", "6", "--json", FILE),
        ("benchmarks.tiles", "mobilenet 1x1 96", "--top", "1", "--json", FILE),
    ),
    Step(
        "forms", 90, ("benchmarks.forms", "--json", FILE), ("benchmarks.forms", "nothing is called so", "--json", FILE)
    ),
    Step(
        "density",
        60,
        ("benchmarks.density", "--gpu", "--rows", "4096", "--columns", "9216", "--json", FILE),
        ("benchmarks.density", "--gpu", "--rows", "64", "--columns", "64", "--runs", "2", "--json", FILE),
    ),
    Step(
        "packed",
        150,
        ("benchmarks.packed", "--json", FILE),
        ("benchmarks.packed", "mlp", "--size", "64", "--runs", "4", "--json", FILE),
    ),
    Step(
        "compression",
        480,
        ("benchmarks.compression", "--json", FILE),
        ("benchmarks.compression", "--models", "tcn", "--methods", "int8", "--runs", "2", "--json", FILE),
    ),
    Step("calibrate", 60, ("ort_gpu_ep", "calibrate", "--fresh", "--json"), ("ort_gpu_ep", "calibrate", "--json")),
    Step(
        "first result",
        60,
        ("benchmarks.first_result", "--json"),
        ("benchmarks.first_result", "lenet5", "--runs", "1", "--json"),
    ),
    Step(
        "training",
        150,
        ("benchmarks.training", "--json", FILE),
        (
            "benchmarks.training",
            "mlp_16",
            "--batch",
            "8",
            "--optimizer",
            "sgd",
            "--steps",
            "10",
            "--blocks",
            "1",
            "--json",
            FILE,
        ),
    ),
    Step(
        "scoring",
        90,
        ("benchmarks.scoring", "--adapters", "cpu", "--adapters", "0"),
        ("benchmarks.scoring", "--rows", "2000", "--adapters", "cpu"),
    ),
    Step(
        "placement",
        180,
        ("benchmarks.placement", "--json", FILE),
        ("benchmarks.placement", "lenet5", "--runs", "2", "--json", FILE),
    ),
    Step("shapes", 90, ("benchmarks.shapes", "--model", "ppocr4_rec", "--json", FILE), ("benchmarks.shapes", "--help")),
    Step("decoder", 60, ("benchmarks.decoder", "--json", FILE), ("benchmarks.decoder", "--help")),
    Step("long caches", 120, ("benchmarks.long_caches", "--json", FILE), ("benchmarks.long_caches", "--help")),
    Step(
        "persistent",
        120,
        ("benchmarks.persistent", "boundary", "chain", "resident", "--json", FILE),
        ("benchmarks.persistent", "boundary", "--grids", "1x32", "--vectors", "256", "--json", FILE),
    ),
    Step(
        "upload",
        60,
        ("benchmarks.upload", "--json", FILE),
        ("benchmarks.upload", "--mb", "1", "--runs", "3", "--json", FILE),
    ),
    Step(
        "isolation",
        60,
        ("benchmarks.isolation", "--json", FILE),
        ("benchmarks.isolation", "--runs", "2", "--seconds", "0.1", "--json", FILE),
    ),
)
"""By what hardware is needed for the most."""


def run(arguments: Sequence[str], limit_s: float) -> dict[str, Any]:
    """A process, ended with its children after so many seconds. What it wrote counts in any case."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path, said = Path(folder) / "result.json", Path(folder) / "output"
        with said.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *(path.as_posix() if a == FILE else a for a in arguments)],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
                    process.wait()
        text = said.read_text(errors="replace")
        found = path.read_text() if path.exists() else text
    try:
        data = json.loads(found)
    except ValueError:
        data = None
    return {
        "command": " ".join(arguments),
        "seconds": time.perf_counter() - start,
        "code": code,
        "json": data,
        "output": text[-SHOWN:],
    }


def measure(steps: Sequence[Step], out: Path, until_s: float, tiny: bool) -> dict[str, Any]:
    """The results by step, written to `out` after each. until_s: time.perf_counter at which no time is left."""
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for step in steps:
        left_s = until_s - time.perf_counter()
        if results.get(step.name, {}).get("code") == 0:
            continue
        if left_s < 1:
            console.print(f"{step.name}: no time left")
            continue
        before = clocks()
        found = run(step.tiny if tiny else step.arguments, min(step.limit_s, left_s))
        results[step.name] = {**found, "clocks": [before, clocks()]}
        partial = out.with_suffix(".partial")
        partial.write_text(json.dumps(results, indent=1))
        partial.replace(out)
        ended = (
            "ran out of time"
            if found["code"] is None
            else "done"
            if found["code"] == 0
            else f"failed ({found['code']})"
        )
        console.print(f"{step.name}: {ended} after {found['seconds']:.0f} s")
    return results


def main(
    out: Annotated[Path, typer.Option(help="Where all results go.")],
    minutes: Annotated[float, typer.Option(min=0)] = 20.0,
    only: Annotated[str, typer.Option(help="Regular expression that a step's name matches.")] = "",
    tiny: Annotated[bool, typer.Option("--tiny", help="The smallest sizes.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show the steps and their limits.")] = False,
) -> None:
    """Measure everything, in order, within the time."""
    steps = [step for step in STEPS if re.search(only, step.name)]
    if list_:
        for step in steps:
            console.print(
                f"{step.name}, at most {step.limit_s} s: python -m {' '.join(step.tiny if tiny else step.arguments)}"
            )
        return
    measure(steps, out, time.perf_counter() + 60 * minutes, tiny)


if __name__ == "__main__":
    typer.run(main)
