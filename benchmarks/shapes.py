"""What ever new input shapes take: memory of this process and time, of a model whose inputs have a length.

    python -m benchmarks.shapes [--model minilm_int8] [--lengths 64] [--kept N] [--json]

Each length comes once, then each again: by then its plan is gone (device/program.py keeps 8), its pipelines are there if they are
among the last `kept` (device/gpu.py; without --kept, what a session does).
"""

from __future__ import annotations

import ctypes
import gc
import json as json_module
import sys
import time
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import cases
from ort_gpu_ep import InferenceSession

FIRST_LENGTH = 8


def resident_mib() -> int:
    gc.collect()
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).malloc_trim(0)     # what the C library keeps for later is nobody's
    return int(psutil.Process().memory_info().rss >> 20)


def main(
    model: Annotated[str, typer.Option(help="One whose inputs have their length as last axis.")] = "minilm_int8",
    lengths: Annotated[int, typer.Option(help="How many.")] = 64,
    kept: Annotated[int | None, typer.Option(help="Pipelines that are kept without use.")] = None,
    json: Annotated[bool, typer.Option(help="Write JSON.")] = False,
) -> None:
    """Measures a model over many lengths."""
    path, feeds = cases.load(model)
    session = InferenceSession(path, cases.quiet(), provider_options={"placement": "gpu"})

    def run(length: int) -> float:
        given = {name: np.resize(array, (*array.shape[:-1], length)) for name, array in feeds.items()}
        start = time.perf_counter()
        session.run(None, given)
        return (time.perf_counter() - start) * 1e3

    run(FIRST_LENGTH - 1)
    gpu = session._state.gpu        # type: ignore[union-attr]
    assert gpu is not None
    if kept is not None:
        gpu.pipelines.kept = kept
    passes: list[dict[str, Any]] = []
    for what in ("new", "again"):
        before, made = resident_mib(), gpu.compiled
        times = [run(FIRST_LENGTH + i) for i in track(range(lengths), what, console=Console(stderr=True), disable=json)]
        passes.append({"lengths": what, "pipelines_compiled": gpu.compiled - made, "first_run_ms": float(np.median(times)),
                       "before_mib": before, "after_mib": resident_mib()})
    result = {"model": model, "adapter": gpu.info.name, "lengths": lengths, "kept": gpu.pipelines.kept, "passes": passes}
    if json:
        print(json_module.dumps(result, indent=1))
        return
    table = Table(title=f"{model}, {lengths} lengths, {gpu.pipelines.kept} pipelines kept, {gpu.info.name}")
    for name in passes[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in passes:
        table.add_row(*(f"{v:.1f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
