"""Density against time: a vector times a matrix, pruned more and more, beside the dense one and other packed forms.

    python -m benchmarks.density [--rows 2048] [--columns 4608] [--runs 20] [--cpu|--gpu] [--plot density.png] [--json FILE]

Milliseconds of whole runs with `placement=gpu`, medians of runs in turn; 15 values for what is not zero. `--plot` needs matplotlib.
`--cpu`: CPU time of the process instead, which is what a software adapter uses, whatever else the machine does. `--gpu`: the GPU's own
time, by its clock.
"""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from onnx import helper, numpy_helper
from rich.console import Console
from rich.table import Table

from benchmarks import cases
from ort_gpu_ep import InferenceSession
from ort_gpu_ep.compression.layers import find_layers
from ort_gpu_ep.compression.methods import encode, parse_method
from ort_gpu_ep.compression.model import assembled
from ort_gpu_ep.compression.prune import by_magnitude

DENSITIES = (50, 35, 25, 20, 15, 10, 5)
OTHERS = ("float32", "int8", "int4", "codebook5")

console = Console()


def product(rows: int, columns: int) -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(columns))
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], "product", transB=1)], "g", [helper.make_tensor_value_info("x", 1, [1, columns])],
        [helper.make_tensor_value_info("y", 1, [1, rows])], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def by(model: onnx.ModelProto, method: str) -> bytes:
    """The model by a method, pruned ones by magnitude."""
    layer, = find_layers(model)
    asked = parse_method(method)
    if asked.kind != "float32":
        pruned = by_magnitude(layer.rows(), asked.percent) if asked.kind == "prune" else None
        model = assembled(model, [(layer, encode(layer, asked, pruned))])
    return bytes(model.SerializeToString())


def measured(rows: int, columns: int, runs: int, clock: Callable[[], float] | None) -> dict[str, float]:
    """Method -> milliseconds of a clock; without one, of the GPU's."""
    model, feeds = product(rows, columns), {"x": np.random.default_rng(1).standard_normal((1, columns), np.float32)}
    methods = [*OTHERS, *(f"prune{100 - density}" for density in DENSITIES)]
    sessions = {m: InferenceSession(by(model, m), cases.quiet(), provider_options={"placement": "gpu", "strict": 1}) for m in methods}
    if clock is None:
        return {m: session.profile(feeds, runs).gpu_us * 1e-3 for m, session in sessions.items()}
    calls: Mapping[str, Callable[[], object]] = {m: partial(session.run, None, feeds) for m, session in sessions.items()}
    return {method: float(np.median(times)) for method, times in cases.in_turn(calls, runs, clock).items()}


def plot(times: Mapping[str, float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(DENSITIES, [times[f"prune{100 - d}"] for d in DENSITIES], "o-", label="sparse")
    for k, method in enumerate(OTHERS):
        axes.axhline(times[method], color=f"C{k + 1}", linestyle="--", label=method)
    axes.set(xlabel="density, %", ylabel="ms", ylim=(0, None))
    axes.legend(loc="best")
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main(
    rows: int = 2048, columns: int = 4608, runs: int = 20,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw the times here (PNG, SVG, ...).")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="CPU time of the process instead of the clock's.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="The GPU's time instead.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the figures here, too.")] = None,
) -> None:
    """Measure each density and each other form."""
    times: dict[str, Any] = measured(rows, columns, runs, None if gpu else time.process_time if cpu else time.perf_counter)
    table = Table("method", "ms", "dense / it")
    for method, ms in times.items():
        table.add_row(method, f"{ms:.3f}", f"{times['float32'] / ms:.2f}")
    console.print(table)
    if picture is not None:
        plot(times, picture)
    if json is not None:
        json.write_text(json_module.dumps(times, indent=1))


if __name__ == "__main__":
    typer.run(main)
