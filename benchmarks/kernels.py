"""Times single kernels on the current adapter: milliseconds and GFLOP/s of each case.

python -m benchmarks.kernels [PATTERN] [--runs N] [--seconds S] [--adapter A] [--checked 0|1] [--json FILE]

A run records and submits one node whose weights are on the device; the time is that of a batch of runs between two
waits for an idle GPU, divided by their number, best of three batches: no transfers, but the host's recording where that
is slower.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from benchmarks.problems import PROBLEMS, flops_of
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu, Tensor
from ort_gpu_ep.errors import UnsupportedNodeError
from ort_gpu_ep.ir.types import TensorType, dtype_of
from ort_gpu_ep.runtime.program import Program


def measure(name: str, config: Config, runs: int, seconds: float) -> dict[str, Any]:
    """Milliseconds and GFLOP/s of a case, and the kernels it became."""
    gpu, row = Gpu.open(config), replace(PROBLEMS[name], last=None)
    graph, feeds = row.graph(row.draw(np.random.default_rng(0)))
    try:
        program = Program(graph, config, gpu)
    except UnsupportedNodeError as error:
        return {"case": name, "ms": float("nan"), "gflops": 0.0, "runs": 0, "kernels": [f"declined, {error}"]}
    inputs = []
    for data in feeds:
        inputs.append(Tensor(gpu.allocate(data.nbytes), 0, TensorType(dtype_of(data), data.shape)))
        gpu.upload(inputs[-1].buffer, 0, data.ctypes.data, data.nbytes)
    plan = program.plan([x.type for x in inputs])
    outputs = [Tensor(gpu.allocate(kind.nbytes), 0, kind) for kind in plan.outputs]

    def batch(count: int) -> float:
        gpu.finish()
        start = time.perf_counter()
        for _ in range(count):
            program.run(inputs, lambda index, shape: outputs[index])
        gpu.finish()
        return (time.perf_counter() - start) / count

    batch(1)
    count = runs or max(1, min(1000, int(seconds / max(batch(1), 1e-6))))
    best = min(batch(count) for _ in range(3))
    program.close()
    for tensor in (*inputs, *outputs):
        gpu.free(tensor.buffer)
    return {
        "case": name,
        "ms": best * 1e3,
        "gflops": flops_of(row) / best / 1e9,
        "runs": count,
        "kernels": [_describe(s) for s in plan.steps],
    }


def _describe(step: Any) -> str:
    sizes = dict(step.kernel.consts)
    tile = f" {sizes['TM']}x{sizes['TN']}x{sizes['TK']}/{sizes['SPLIT']}" if "TK" in sizes else ""
    if step.kernel.choice is not None:
        tile = f" {step.kernel.choice.form}"
    return f"{step.kernel.shader.removesuffix('.wgsl')}{tile} *{int(np.prod(step.groups))}"


def report(results: Sequence[dict[str, Any]], title: str) -> Table:
    table = Table(title=title)
    for name, justify in (("case", "left"), ("ms", "right"), ("GFLOP/s", "right"), ("kernels", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for r in results:
        table.add_row(r["case"], f"{r['ms']:.3f}", f"{r['gflops']:.1f}", ", ".join(r["kernels"]))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="", help="regular expression that a case's name matches")
    parser.add_argument("--runs", type=int, default=0, help="runs in a batch; default: as many as fit into --seconds")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of a batch")
    parser.add_argument("--adapter", default="", help="index, type or part of the name")
    parser.add_argument("--checked", choices=("0", "1"), default="1", help="bounds checks in the shaders")
    parser.add_argument("--json", type=Path, help="write the results there as well")
    options = parser.parse_args()
    config = Config(adapter=options.adapter, checked_shaders=options.checked)
    results = [
        measure(name, config, options.runs, options.seconds) for name in PROBLEMS if re.search(options.pattern, name)
    ]
    adapter = Gpu.open(config).info
    Console().print(report(results, f"{adapter.name} ({adapter.backend}), checked shaders: {options.checked}"))
    if options.json:
        options.json.write_text(
            json.dumps({"adapter": adapter.as_dict(), "checked": config.checked_shaders, "results": results}, indent=1)
        )


if __name__ == "__main__":
    main()
