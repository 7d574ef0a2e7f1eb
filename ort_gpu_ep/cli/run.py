"""ort-gpu-ep run: runs a model once and says where its nodes ran."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.table import Table

from ort_gpu_ep.cli import shared
from ort_gpu_ep.cli.inputs import feeds as inputs_of
from ort_gpu_ep.files import file_names, write_array


@shared.reports_errors
def run(
    model: shared.ModelArgument,
    inputs: shared.InputOption = None,
    save: Annotated[Path | None, shared.folder_to_write("--save", "Write each output as DIR/NAME.npy.")] = None,
    dims: shared.SizeOption = None,
    shapes: shared.ShapeOption = None,
    option: shared.OptionOption = None,
    seed: shared.SeedOption = 0,
    json: shared.JsonOption = False,
) -> None:
    """Run MODEL and print its outputs and where each node ran. Inputs that you don't give are random."""
    start = time.perf_counter()
    session = shared.open_session(model, shared.pairs(option, "--option"))
    shared.check_gpu(session)
    loaded = time.perf_counter()
    values = inputs_of(session.get_inputs(), model, inputs, dims, shapes, seed)
    with shared.waiting("first run"):
        outputs = session.run(None, values)
    done = time.perf_counter()
    names = [o.name for o in session.get_outputs()]
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        for name, array in zip(file_names(names), outputs, strict=True):
            write_array(save / f"{name}.npy", array)
    facts = [_facts(n, a) for n, a in zip(names, outputs, strict=True)]
    explained = session.explain()
    if json:
        shared.print_json(
            {
                "outputs": facts,
                "load_ms": (loaded - start) * 1e3,
                "first_run_ms": (done - loaded) * 1e3,
                "explanation": explained.as_dict(),
                "stats": session.stats(),
            }
        )
        return
    table = Table("output", "type", "shape", "min", "max", "mean")
    for f in facts:
        table.add_row(
            f["name"], f["dtype"], str(f["shape"]), *(f"{f[k]:.6g}" if k in f else "" for k in ("min", "max", "mean"))
        )
    shared.out.print(table)
    shared.out.print(f"load {(loaded - start) * 1e3:.0f} ms, first run {(done - loaded) * 1e3:.1f} ms")
    shared.out.print(shared.lines(str(explained)))
    if save is not None:
        shared.out.print(f"outputs written to {save}")


def _facts(name: str, array: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": name,
        "dtype": str(getattr(array, "dtype", type(array).__name__)),
        "shape": list(getattr(array, "shape", [])),
    }
    if isinstance(array, np.ndarray) and array.size and array.dtype.kind in "fiub":
        numbers = array.astype(np.float64)
        facts |= {"min": float(numbers.min()), "max": float(numbers.max()), "mean": float(numbers.mean())}
    return facts
