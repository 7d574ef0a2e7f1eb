"""Whether predictions of a measured profile come true: of each family of kernels, a node of another size and partly of
another op.

    python -m benchmarks.predictions [--budget 3] [--runs 15] [--json FILE]

Measured over predicted, by medians. A software adapter is timed in seconds of the CPU, which others on the machine
don't change as much.
"""

from __future__ import annotations

import json as json_module
import sys
import time
from pathlib import Path
from statistics import median
from typing import Annotated
from unittest import mock

import numpy as np
import typer
from rich.table import Table

from benchmarks import sides
from ort_gpu_ep.calibration.measure import Bench, Job, measure
from ort_gpu_ep.calibration.workloads import random, single
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import Graph
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.lowering import facts_of, walk
from ort_gpu_ep.kernels.profile import Profile
from ort_gpu_ep.kernels.registry import Limits, Lowering

CASES = {
    "product": single("MatMul", (160, 160), [random((160, 160))]),
    "elementwise": single("Mul", (3, 70_000), [random((70_000,))], version=14),
    "reduction": single("ReduceMean", (1100, 192), [np.array([1])], version=18, keepdims=0),
    "reduction_held": single("LayerNormalization", (900, 260), [random((260,)), random((260,))], version=17),
    "direct": single(
        "Conv", (1, 16, 90, 90), [random((16, 1, 3, 3))], version=11, group=16, kernel_shape=(3, 3), pads=(1, 1, 1, 1)
    ),
    "movement": single("Transpose", (20, 60, 200), perm=(2, 1, 0)),
    "matvec": single("MatMul", (1, 700), [random((700, 500))]),
    "recurrent": single(
        "GRU", (90, 1, 48), [random((1, 144, 48)) / 8, random((1, 144, 48)) / 8], version=14, hidden_size=48
    ),
    "recurrent_held": single(
        "LSTM", (90, 1, 48), [random((1, 192, 48)) / 8, random((1, 192, 48)) / 8], version=14, hidden_size=48
    ),
    "pool": single("AveragePool", (1, 16, 70, 70), version=11, kernel_shape=(3, 3)),
    "gather": single("Gather", (3000, 90), [np.random.default_rng(8).integers(0, 3000, 2000)]),
    "sorting": single("TopK", (50, 200), [np.array([5])], version=11, outputs=2),
}
"""By family. tests/calibration asks the same of a profile that is made of told times."""

console = sides.console()


def predicted_s(profile: Profile, graph: Graph, limits: Limits | None = None) -> float:
    """Seconds of a graph of one node, as the partitioner predicts them."""
    shape = tuple(d for d in graph.values["x"].shape or () if isinstance(d, int))
    _, answer, bound = next(walk(graph, facts_of(graph, {"x": TensorType(FLOAT32, shape)}), limits or Limits()))
    if not isinstance(answer, Lowering) or bound is None:
        raise ValueError(f"{graph.name} is not taken: {answer}")
    return profile.node_s(answer, bound)


def ratio_of(gpu: Gpu, profile: Profile, graph: Graph, runs: int) -> float:
    """Measured over predicted seconds of whole runs."""
    clock, took_s, job = (
        time.process_time if gpu.info.is_software else time.perf_counter,
        list[float](),
        Job(gpu, graph),
    )
    try:
        job.run()
        for _ in range(runs):
            start_s = clock()
            job.run()
            took_s.append(clock() - start_s)
    finally:
        job.close()
    return median(took_s) / (profile.run_s + predicted_s(profile, graph, gpu.limits))


def main(
    budget: Annotated[float, typer.Option(help="Seconds for the profile.")] = 3.0,
    runs: int = 15,
    json: Path | None = None,
) -> None:
    gpu = Gpu.open(Config())
    module = sys.modules[Bench.__module__]  # the package has a function of the same name
    with mock.patch.object(
        module.time, "perf_counter", time.process_time if gpu.info.is_software else time.perf_counter
    ):
        profile = measure(gpu, budget)
    found = {family: ratio_of(gpu, profile, graph, runs) for family, graph in CASES.items()}
    table = Table("family", "op", "measured / predicted", title=gpu.info.name)
    for family, ratio in found.items():
        table.add_row(
            family if family in profile.families else f"{family} (by its sibling)",
            CASES[family].nodes[0].op,
            f"{ratio:.2f}",
        )
    console.print(table)
    if json:
        json.write_text(json_module.dumps({"adapter": gpu.info.name, "ratios": found}))


if __name__ == "__main__":
    typer.run(main)
