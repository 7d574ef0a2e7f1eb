"""GPU time of each tile that a product could take, beside what its estimate says, for the layers of networks.

python -m benchmarks.tiles [PATTERN] [--top N] [--adapter A] [--checked 0|1] [--json FILE]

The times are those of gpu_time.py.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from benchmarks.gpu_time import Warmth, microseconds
from benchmarks.problems import RESNET50, TILED, flops_of, graph_of
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import Graph
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.target import LAST_ARRIVING
from ort_gpu_ep.runtime.program import Program


def measure(gpu: Gpu, name: str, config: Config, top: int, warmth: Warmth) -> dict[str, Any]:
    """us of the forms of a layer that are estimated the best, the chosen one first."""
    graph = graph_of(TILED[name])
    estimates = _estimates(gpu, graph, config)
    times: dict[str, float] = {}
    for form in sorted(estimates, key=lambda form: estimates[form])[:top]:
        warmth.give()
        with forced(form):
            times[form] = microseconds(gpu, graph, config)[0]
    return {
        "layer": name,
        "count": RESNET50[name][1] if name in RESNET50 else 1,
        "gflop": flops_of(TILED[name]) / 1e9,
        "us": times,
        "estimated_us": {form: estimates[form] for form in times},
    }


def _estimates(gpu: Gpu, graph: Graph, config: Config) -> dict[str, float]:
    """us of each form that could be taken."""
    with forced() as made:
        Program(graph, config, gpu).close()
    (choice,) = made.values()
    return {form: ns / 1e3 for form, ns in choice.estimates_ns.items()}


def report(results: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title)
    for name in ("layer", "chosen", "estimate", "us", "best", "us", "TFLOP/s"):
        table.add_column(name, justify="left" if name in ("layer", "chosen", "best") else "right")
    for r in results:
        first, best = next(iter(r["us"])), min(r["us"], key=r["us"].get)
        table.add_row(
            r["layer"],
            first,
            f"{r['estimated_us'][first]:.1f}",
            f"{r['us'][first]:.1f}",
            best,
            f"{r['us'][best]:.1f}",
            f"{r['gflop'] / r['us'][first] * 1e-3 * 1e6:.1f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="", help="regular expression that a layer's name matches")
    parser.add_argument("--top", type=int, default=4, help="forms of each layer, the best estimates first")
    parser.add_argument("--adapter", default="", help="index, type or part of the name")
    parser.add_argument("--checked", choices=("0", "1"), default="0", help="bounds checks in the shaders")
    parser.add_argument("--json", type=Path, help="write the results there as well")
    options = parser.parse_args()
    config = Config(adapter=options.adapter, checked_shaders=options.checked)
    gpu = Gpu.open(config)
    gpu.limits = replace(gpu.limits, features=gpu.limits.features | {LAST_ARRIVING})
    layers = [name for name in TILED if re.search(options.pattern, name)]
    warmth = Warmth(gpu, config)
    results = [measure(gpu, name, config, options.top, warmth) for name in layers]
    Console(width=120).print(report(results, f"{gpu.info.name}, checked shaders: {options.checked}"))
    total = sum(r["count"] * next(iter(r["us"].values())) for r in results if r["layer"] in RESNET50)
    print(f"resnet50's convolutions as chosen: {total:.0f} us")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
