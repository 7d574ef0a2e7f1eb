"""What a session of each model takes of device and host memory, in a process of its own: while it opens, behind its
first runs.

    python -m benchmarks.memory [--models resnet50,alexnet] [--placements gpu,auto] [--adapter A] [--first] [--json
      FILE]

Device: bytes of buffers as the process counts them (`most`: the most at once; `waiting`: freed and not yet given back
to the driver). wgpu takes memory from the driver in blocks of 128 MiB, then 256, so what the driver counts is more.
Host: resident memory beyond what the process had before it loaded the model, `onnxruntime` that of ONNX Runtime's CPU
alone; `most` the most at once (Linux). A software adapter's device memory is the host's. runs: where placement=auto
answered them.
"""

from __future__ import annotations

import gc
import json as json_module
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import onnx
import typer
from rich.console import Console
from rich.table import Table

import models
from models.inputs import make_inputs, model_inputs

console = Console(width=140)
RUNS = 3

SETTLES_S = 3.0
"""What a session frees is given back to the system by a thread of its own, behind the last run that used it."""


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def most() -> int:
    """Bytes of this process in memory, the most since `forget`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def forget() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # see proc_pid_clear_refs(5)


def of_session(path: Path, placement: str, adapter: str) -> dict[str, Any]:
    """Of this process, which has no session yet."""
    feeds = make_inputs(model_inputs(onnx.load(path)))
    gc.collect()
    forget()
    found, before = dict[str, Any](), resident()
    if placement == "onnxruntime":
        import onnxruntime

        session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    else:
        from benchmarks import cases
        from ort_gpu_ep import InferenceSession

        session = cases.waited(
            InferenceSession(str(path), provider_options={"placement": placement, "adapter": adapter})
        )
    found["host, open"] = resident() - before
    for _ in range(RUNS):
        session.run(None, feeds)
    time.sleep(SETTLES_S)
    found |= {"host, after runs": resident() - before, "host, most": most() - before}
    if placement == "auto":
        found["runs"] = ", ".join(f"{name} {runs}" for name, runs in session.stats()["runs_by_candidate"].items())
    states = [] if placement == "onnxruntime" else [session._state]
    for gpu in {id(s.gpu): s.gpu for s in states if s is not None and s.gpu is not None}.values():
        stats, memory = gpu.stats, session.explain().memory
        found |= {
            "device, most": stats.peak_nbytes,
            "device, held": stats.allocated_nbytes - stats.pooled_nbytes,
            "waiting": stats.pooled_nbytes,
            "weights": sum(m.weight_nbytes for m in memory),
            "activations": sum(m.activation_nbytes for m in memory),
        }
    return found


def main(
    names: Annotated[str, typer.Option("--models", help="Builders, by commas.")] = "resnet50,alexnet",
    adapter: Annotated[
        str, typer.Option(help="Of placement=auto, too, which leaves a software adapter alone unless it is named.")
    ] = "",
    placements: Annotated[str, typer.Option(help="By commas.")] = "gpu,auto",
    first: Annotated[
        bool, typer.Option(help="What a machine's first process finds: nothing in the caches of this package.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write the figures here, too.")] = None,
    child: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure each model in each placement, and with ONNX Runtime alone."""
    if child:
        path, placement = child.split("|")
        print("\n" + json_module.dumps(of_session(Path(path), placement, adapter)))
        return
    rows: list[dict[str, Any]] = []
    for name in names.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.onnx"
            onnx.save(models.build(name), path)
            for placement in ("onnxruntime", *placements.split(",")):
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.memory",
                    "--child",
                    f"{path}|{placement}",
                    "--adapter",
                    adapter,
                ]
                given = {"ORT_GPU_EP_CACHE_DIR": str(Path(folder, f"cache of {placement}"))} if first else {}
                answer = subprocess.run(
                    command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **given}
                ).stdout
                rows.append({"model": name, "placement": placement, **json_module.loads(answer.splitlines()[-1])})
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*columns, title="MiB")
    for row in rows:
        table.add_row(
            *(f"{row[c] / (1 << 20):.1f}" if isinstance(row.get(c), int) else str(row.get(c, "")) for c in columns)
        )
    console.print(table)
    if json is not None:
        json.write_text(json_module.dumps(rows, indent=1))


if __name__ == "__main__":
    typer.run(main)
