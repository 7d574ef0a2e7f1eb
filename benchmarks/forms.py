"""GPU time of each form that a node's kernel could take, beside the one that is chosen without measuring: what
estimates are made from.

python -m benchmarks.forms [PATTERN] [--top N] [--adapter A] [--checked 0|1] [--json FILE]

Times are by timestamps around REPEATS runs of the node's kernels in one pass, inputs on the device, median of five,
after as much work as it takes to wake the GPU; the launch of a dependent dispatch (2.2 us on an H200) is in each. Packed
weights stay packed (option weights). Tiles have their own: benchmarks.tiles.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from benchmarks.gpu_time import Warmth, microseconds
from benchmarks.problems import IN_FORMS, flops_of, graph_of, nbytes_of
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.kernels.forms import forced


def measure(gpu: Gpu, name: str, config: Config, top: int, warmth: Warmth) -> dict[str, Any]:
    """us of the forms of a problem that are estimated the best, the chosen one first."""
    row = IN_FORMS[name]
    graph = graph_of(row)
    warmth.give()
    with forced() as seen:
        usual = microseconds(gpu, graph, config)
    forms = next(iter(seen.values())).forms[:top] if seen else ()
    times = {forms[0] if forms else "the only one": usual[0]}
    for form in forms[1:]:
        warmth.give()
        with forced(form):
            times[form] = microseconds(gpu, graph, config)[0]
    gflop, gbyte = flops_of(row) / 1e9, nbytes_of(row) / 1e9
    return {"case": name, "gflop": gflop, "gbyte": gbyte, "us": times, "kernels": usual[1]}


def report(results: Sequence[dict[str, Any]], title: str) -> Table:
    table = Table(title=title)
    for name in ("case", "chosen", "us", "best", "us", "TFLOP/s", "TB/s"):
        table.add_column(name, justify="left" if name in ("case", "chosen", "best") else "right")
    for r in results:
        first, best = next(iter(r["us"])), min(r["us"], key=r["us"].get)
        us = r["us"][first]
        table.add_row(
            r["case"],
            first,
            f"{us:.1f}",
            best,
            f"{r['us'][best]:.1f}",
            f"{r['gflop'] / us * 1e3:.2f}",
            f"{r['gbyte'] / us * 1e3:.2f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="", help="regular expression that a case's name matches")
    parser.add_argument("--top", type=int, default=4, help="forms of each case, the best estimates first")
    parser.add_argument("--adapter", default="", help="index, type or part of the name")
    parser.add_argument("--checked", choices=("0", "1"), default="0", help="bounds checks in the shaders")
    parser.add_argument("--json", type=Path, help="write the results there as well")
    options = parser.parse_args()
    config = Config(adapter=options.adapter, checked_shaders=options.checked, weights="packed")
    gpu = Gpu.open(config)
    warmth = Warmth(gpu, config)
    results = [measure(gpu, name, config, options.top, warmth) for name in IN_FORMS if re.search(options.pattern, name)]
    Console(width=160).print(report(results, f"{gpu.info.name}, checked shaders: {options.checked}"))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
