"""Which choices among forms of kernels follow from which parameters of the cost model on GPUs that are not an H200, and
whether a model runs on such a GPU or on the CPU beside it: without any GPU.

    python -m benchmarks.small_gpus [--model NAME ...] [--times 4 | --placement]

Networks are planned for artificial GPUs with the parameters that a profile of theirs gives, and again with some of
these parameters divided and multiplied. Told: choices that come out otherwise, and how many times as long as the best
form, by the changed estimates, the form takes at most that was chosen before. Where that is next to nothing, measuring
the parameter would gain as little. With --placement instead: what the partitioner expects a run to take on either side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any
from unittest import mock

import typer
from rich.table import Table

import models
from benchmarks import replay, sides
from ort_gpu_ep.config import Config
from ort_gpu_ep.device.classes import named
from ort_gpu_ep.ir.graph import Graph, from_onnx
from ort_gpu_ep.kernels.cost_parameters import SCALES, Figures, Roofs, figures_for, figures_of
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.profile import Curve, Profile
from ort_gpu_ep.kernels.target import LAST_ARRIVING, Choice, Limits
from ort_gpu_ep.partitioner import Costs, costs, partition


@dataclass(frozen=True)
class Machine:
    """A small GPU and the CPU beside it. compiler: as AdapterInfo has it. copied_per_s: bytes of an upload or a readback,
    which copy within one memory. cpu_flops_per_s, cpu_nbytes_per_s: what onnxruntime reaches there in dense layers and
    in elementwise ones.
    """

    compiler: str
    dispatch_s: float
    run_s: float
    roofs: Roofs
    copied_per_s: float
    cpu_flops_per_s: float
    cpu_nbytes_per_s: float

    @property
    def figures(self) -> Figures:
        return figures_for("integrated", figures_of(self.roofs, self.dispatch_s), self.compiler)

    @property
    def profile(self) -> Profile:
        """As calibration gives it: families at a part of the roofs that their kernels reach."""
        copies = Curve(((1.0, 1.0 / self.copied_per_s),))
        measured = Profile("a small GPU", self.run_s, self.dispatch_s, copies, copies, {}, self.roofs)
        return replace(measured, families=measured.assumed)


SMALL_GPUS: Mapping[str, Machine] = {
    "raspberry-pi-5": Machine("", 3e-5, 4e-4, Roofs(7.7e10, 1.7e10, 8e-7, 4e-7, 5.1e10), 3e9, 7.7e10, 1e10),
    "intel-uhd": Machine("intel", 8e-6, 2e-4, Roofs(0.44e12, 38e9, 2.5e-7, 1e-7, 2.2e11), 8e9, 1.6e11, 2e10),
    "mali-g7x": Machine("arm", 20e-6, 4e-4, Roofs(0.9e12, 34e9, 8e-7, 2e-7, 1.9e11), 5e9, 1e11, 1.5e10),
    "apple-m1": Machine("apple", 1e-5, 2e-4, Roofs(2.6e12, 68e9, 4e-7, 1e-7, 6.5e11), 2e10, 2e11, 5e10),
}
"""A single-board computer's, a laptop's, a phone's, and a larger integrated one, by their class. Arithmetic and memory
are documented: of the Pi 12 units of 4 lanes at 0.8 GHz and 32 bits of LPDDR4X-4267. What they wait for is assumed;
likewise what their units read of workgroup memory: 64 bytes a clock, of a Mali 16, at 0.8, 1.15, 0.85 and 1.28 GHz. A
Mali has it in its caches. The CPUs are taken to reach half of what their vector units do: 4 cores of the Pi at 2.4 GHz
with 16 operations a clock, 4 of the laptop at 2.5 GHz with 32, 1 and 3 of the phone, 4 of the last with 32.
"""

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


def expected_s(machine: Machine, kind: str, graph: Graph) -> dict[str, float]:
    """Seconds of a run by the partitioner: with all nodes on the CPU, all that have a kernel on the GPU, and as it
    would divide them. kind: the class of the GPU."""
    rates = {"CPU_FLOPS": machine.cpu_flops_per_s, "CPU_BYTES": machine.cpu_nbytes_per_s}
    with mock.patch.multiple(costs, **rates):
        made = partition(graph, Config(), limits_of(kind, machine.figures), False, Costs(machine.profile))
    return {each.candidate: each.total_s for each in made.report.predictions}


def placements(graphs: Mapping[str, Graph]) -> Table:
    table = Table("network", *SMALL_GPUS, title="milliseconds on the CPU and on the GPU, as expected; the better one")
    for name, graph in graphs.items():
        cells = []
        for kind, machine in SMALL_GPUS.items():
            seconds = expected_s(machine, kind, graph)
            best = min(seconds, key=seconds.__getitem__)
            cells.append(f"{seconds['cpu'] * 1e3:.1f}, {seconds['gpu'] * 1e3:.1f}: {best}")
        table.add_row(name, *cells)
    return table


def main(
    model: Annotated[
        list[str] | None, typer.Option(help="Networks of models/ in place of those that are usual.")
    ] = None,
    times: Annotated[float, typer.Option(help="What parameters are divided and multiplied by.")] = 4.0,
    placement: Annotated[bool, typer.Option(help="What a run is expected to take on either side.")] = False,
) -> None:
    graphs = {name: from_onnx(models.build(name)) for name in model or NETWORKS}
    if placement:
        sides.console().print(placements(graphs))
        return
    graphs |= {f"{name}, {method}": from_onnx(replay.compressed(name, method)) for name, method in COMPRESSED}
    for kind, machine in SMALL_GPUS.items():
        figures = machine.figures
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
