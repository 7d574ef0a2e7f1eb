"""Which choices among forms of kernels follow from which parameters of the cost model on GPUs that are not an H200:
without any GPU.

    python -m benchmarks.small_gpus [--model NAME ...] [--times 4]

Networks are planned for artificial GPUs with the parameters that a profile of theirs gives, and again with some of
these parameters divided and multiplied. Told: choices that come out otherwise, and how many times as long as the best
form, by the changed estimates, the form takes at most that was chosen before. Where that is next to nothing, measuring
the parameter would gain as little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.table import Table

import models
from benchmarks import replay, sides
from ort_gpu_ep.device.classes import named
from ort_gpu_ep.ir.graph import Graph, from_onnx
from ort_gpu_ep.kernels.cost_parameters import SCALES, Figures, Roofs, figures_for, figures_of
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.target import LAST_ARRIVING, Choice, Limits

SMALL_GPUS: Mapping[str, tuple[float, Roofs]] = {
    "intel-uhd": (8e-6, Roofs(0.44e12, 38e9, 2.5e-7, 1e-7, 2.2e11)),
    "mali-g7x": (20e-6, Roofs(0.9e12, 34e9, 8e-7, 2e-7, 1.9e11)),
    "apple-m1": (1e-5, Roofs(2.6e12, 68e9, 4e-7, 1e-7, 6.5e11)),
}
"""A laptop's, a phone's, and a larger integrated one, by their class: a dispatch, and the rest of a profile. What they
wait for is assumed; likewise what their units read of workgroup memory: 64, 16 and 64 bytes a clock, of 1.15, 0.85 and
1.28 GHz. A Mali has it in its caches."""

GROUPS: Mapping[str, Sequence[str]] = {
    "a dispatch": SCALES["launches"],
    "a read that is waited for": (*SCALES["waits"], *SCALES["waits in clocks"]),
    "a barrier": (*SCALES["barriers"], *SCALES["barriers in clocks"]),
    "workgroup memory: products": SCALES["workgroup memory"],
    "workgroup memory: transposes": ("transpose_tile_factor",),
    "workgroup memory: sparse": ("sparse_held_clocks", "sparse_staging_clocks"),
    "workgroup memory: recurrent": ("held_vector_ns",),
    "atomics": ("arrival_ns", "byte_arrival_ns", "matrix_arrival_ns"),
}
"""Those of SCALES, and what could be measured beside them."""

NETWORKS = ("resnet50", "inception_v3", "unet", "googlenet", "encoder", "detector", "decoder", "tcn", "har_lstm")
COMPRESSED = (("mobilenet_v2", "int8+"), ("squeezenet1_1", "prune90"), ("lenet5", "prune90"))
"""As benchmarks/replay.py names them."""

Choices = dict[tuple[str, str], Choice]
"""By network and key."""


def limits_of(kind: str, figures: Figures) -> Limits:
    """Of a class of GPUs on which all probes have shown right results."""
    limits = named(kind).as_limits()
    return replace(limits, features=limits.features | {LAST_ARRIVING}, max_loop_iterations=1 << 40, figures=figures)


def choices(graphs: Mapping[str, Graph], limits: Limits) -> Choices:
    """All that are made while these are planned."""
    found: Choices = {}
    for name, graph in graphs.items():
        with forced() as made:
            replay.kernel_texts(graph, {}, limits)
            found |= {(name, key): choice for key, choice in made.items()}
    return found


def told(before: Choices, after: Choices) -> tuple[str, str]:
    """How many changed, and the most that one of them loses."""
    changed = [key for key, choice in before.items() if key in after and after[key].form != choice.form]
    lost = [after[key].estimates_ns.get(before[key].form, 0.0) / after[key].ns[0] for key in changed]
    return str(len(changed)), f"{max(lost):.2f}" if lost else ""


def main(
    model: Annotated[
        list[str] | None, typer.Option(help="Networks of models/ in place of those that are usual.")
    ] = None,
    times: Annotated[float, typer.Option(help="What parameters are divided and multiplied by.")] = 4.0,
) -> None:
    graphs = {name: from_onnx(models.build(name)) for name in model or NETWORKS}
    graphs |= {f"{name}, {method}": from_onnx(replay.compressed(name, method)) for name, method in COMPRESSED}
    for kind, (dispatch_s, roofs) in SMALL_GPUS.items():
        figures = figures_for("integrated", figures_of(roofs, dispatch_s))
        before = choices(graphs, limits_of(kind, figures))
        table = Table(
            "parameters", f"/ {times:g}", "lost", f"x {times:g}", "lost", title=f"{kind}: {len(before)} choices"
        )
        for group, names in GROUPS.items():
            cells: list[str] = []
            for factor in (1 / times, times):
                values: dict[str, Any] = {name: getattr(figures, name) * factor for name in names}
                cells += told(before, choices(graphs, limits_of(kind, replace(figures, **values))))
            table.add_row(group, *cells)
        sides.console().print(table)


if __name__ == "__main__":
    typer.run(main)
