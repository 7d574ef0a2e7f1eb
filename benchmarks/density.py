"""Density against time: a vector times a matrix, pruned more and more, beside the dense one and other packed forms.

    python -m benchmarks.density [--rows 2048] [--columns 4608] [--runs 20] [--cpu|--gpu] [--plot density.png] [--json
      FILE]
    python -m benchmarks.density --layers 'resnet50 3x3' [--top 3] [--plot density.png] [--json FILE]

Milliseconds of whole runs with `placement=gpu`, medians of runs in turn; 15 values for what is not zero. `--plot` needs
matplotlib. `--cpu`: CPU time of the process instead, which is what a software adapter uses, whatever else the machine
does. `--gpu`: the GPU's own time, by its clock.

`--layers PATTERN`: convolutions and products of many vectors instead, those of `benchmarks.tiles` whose name matches:
the GPU's time of each, as gpu_time.py takes it, dense (channels last) and without its zeros (in planes), in its best
forms by estimate.
"""

from __future__ import annotations

import json as json_module
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
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
from benchmarks.gpu_time import Warmth, microseconds
from benchmarks.problems import TILED, graph_of
from ort_gpu_ep import InferenceSession
from ort_gpu_ep.compression.layers import find_layers
from ort_gpu_ep.compression.methods import encode, parse_method
from ort_gpu_ep.compression.model import assembled
from ort_gpu_ep.compression.prune import by_magnitude
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.kernels.cost_parameters import SOFTWARE_FIGURES
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.target import LAST_ARRIVING
from ort_gpu_ep.ops.sparse_products import FORMS
from ort_gpu_ep.runtime.program import Program

DENSITIES = (50, 35, 25, 20, 15, 10, 5)
LAYER_DENSITIES = (20, 10, 5)
OTHERS = ("float32", "int8", "int4", "codebook5")

console = Console()


def product(rows: int, columns: int) -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(columns))
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], "product", transB=1)],
        "g",
        [helper.make_tensor_value_info("x", 1, [1, columns])],
        [helper.make_tensor_value_info("y", 1, [1, rows])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def by(model: onnx.ModelProto, method: str) -> bytes:
    """The model by a method, pruned ones by magnitude."""
    (layer,) = find_layers(model)
    asked = parse_method(method)
    if asked.kind != "float32":
        pruned = by_magnitude(layer.rows(), asked.percent) if asked.kind == "prune" else None
        model = assembled(model, [(layer, encode(layer, asked, pruned))])
    return bytes(model.SerializeToString())


def measured(rows: int, columns: int, runs: int, clock: Callable[[], float] | None) -> dict[str, float]:
    """Method -> milliseconds of a clock; without one, of the GPU's."""
    model, feeds = product(rows, columns), {"x": np.random.default_rng(1).standard_normal((1, columns), np.float32)}
    methods = [*OTHERS, *(f"prune{100 - density}" for density in DENSITIES)]
    sessions = {
        m: InferenceSession(by(model, m), cases.quiet(), provider_options={"placement": "gpu", "strict": 1})
        for m in methods
    }
    if clock is None:
        return {m: session.profile(feeds, runs).gpu_us * 1e-3 for m, session in sessions.items()}
    calls: Mapping[str, Callable[[], object]] = {
        m: partial(session.run, None, feeds) for m, session in sessions.items()
    }
    return {method: float(np.median(times)) for method, times in cases.in_turn(calls, runs, clock).items()}


def of_layers(pattern: str, top: int) -> list[dict[str, Any]]:
    """Microseconds of each layer: dense, as chosen, and by density and form without its zeros, the best estimate
    first."""
    layers = [name for name in TILED if re.search(pattern, name)]
    if not layers:
        raise typer.BadParameter(f"no layer is called so: {pattern!r}; there are {', '.join(TILED)}")
    config = Config(checked_shaders="0", weights="packed")
    gpu = Gpu.open(config)
    figures = SOFTWARE_FIGURES if gpu.info.is_software else gpu.limits.figures
    gpu.limits = replace(gpu.limits, features=gpu.limits.features | {LAST_ARRIVING}, figures=figures)
    warmth, found = Warmth(gpu, config), []
    for layer in layers:
        x, whole = TILED[layer].draw(np.random.default_rng(0))
        assert whole is not None
        warmth.give()
        dense = graph_of(TILED[layer], (x, whole))
        row: dict[str, Any] = {"layer": layer, "dense": microseconds(gpu, dense, config)[0]}
        for density in LAYER_DENSITIES:
            weights = whole * (np.random.default_rng(1).random(whole.shape, np.float32) < density / 100)
            graph = graph_of(replace(TILED[layer], last=None), (x, weights))
            with forced() as made:
                Program(graph, config, gpu).close()
            forms = next((choice.estimates_ns for key, choice in made.items() if key.startswith("sparse")), {})
            row[f"{density} %"] = {}
            for form in [form for form in forms if form in FORMS][:top]:
                warmth.give()
                with forced(form):
                    row[f"{density} %"][form] = (microseconds(gpu, graph, config)[0], forms[form] / 1e3)
        found.append(row)
    return found


def layer_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("layer", "dense, us", *(f"{d} %: us (estimate), form" for d in LAYER_DENSITIES))
    for row in rows:
        cells = [
            ", ".join(f"{us:.1f} ({estimate:.1f}) {form}" for form, (us, estimate) in row[f"{d} %"].items())
            for d in LAYER_DENSITIES
        ]
        table.add_row(row["layer"], f"{row['dense']:.1f}", *cells)
    return table


def plot_layers(rows: list[dict[str, Any]], path: Path) -> None:
    """Each layer's time over its dense one, in the form that is taken."""
    figure, axes = _axes()
    for row in rows:
        taken = [
            next(iter(row[f"{d} %"].values()))[0] / row["dense"] if row[f"{d} %"] else np.nan for d in LAYER_DENSITIES
        ]
        axes.plot(LAYER_DENSITIES, taken, "o-", label=row["layer"])
    axes.axhline(1.0, color="black", linestyle="--", label="dense")
    axes.set(xlabel="density, %", ylabel="time / dense", ylim=(0, None))
    axes.legend(loc="best", fontsize="x-small")
    figure.savefig(path, dpi=120, bbox_inches="tight")


def _axes() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(7, 4))


def plot(times: Mapping[str, float], path: Path) -> None:
    figure, axes = _axes()
    axes.plot(DENSITIES, [times[f"prune{100 - d}"] for d in DENSITIES], "o-", label="sparse")
    for k, method in enumerate(OTHERS):
        axes.axhline(times[method], color=f"C{k + 1}", linestyle="--", label=method)
    axes.set(xlabel="density, %", ylabel="ms", ylim=(0, None))
    axes.legend(loc="best")
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main(
    rows: int = 2048,
    columns: int = 4608,
    runs: int = 20,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw the times here (PNG, SVG, ...).")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="CPU time of the process instead of the clock's.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="The GPU's time instead.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the figures here, too.")] = None,
    layers: Annotated[str, typer.Option(help="Layers of benchmarks.tiles instead, by a regular expression.")] = "",
    top: Annotated[int, typer.Option(help="Forms of each of these, the best estimates first.")] = 1,
) -> None:
    """Measure each density and each other form."""
    if layers:
        rows_of_layers = of_layers(layers, top)
        console.print(layer_table(rows_of_layers))
        if picture is not None:
            plot_layers(rows_of_layers, picture)
        if json is not None:
            json.write_text(json_module.dumps(rows_of_layers, indent=1))
        return
    times: dict[str, Any] = measured(
        rows, columns, runs, None if gpu else time.process_time if cpu else time.perf_counter
    )
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
