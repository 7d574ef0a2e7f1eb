"""GPU time of each form that a node's kernel could take, beside the one that is chosen without measuring: what
estimates are made from.

python -m benchmarks.forms [PATTERN] [--top N] [--adapter A] [--checked 0|1] [--json FILE]

Times are by timestamps around REPEATS runs of the node's kernels in one pass, inputs on the device, median of five,
after as much work as it takes to wake the GPU; the launch of a dependent dispatch (2.2 us on an H200) is in each. Tiles
have their own: benchmarks.tiles.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from benchmarks.gpu_time import Warmth, microseconds
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import Graph, Node, Value
from ort_gpu_ep.ir.types import FLOAT32, Shape
from ort_gpu_ep.kernels.forms import forced


@dataclass(frozen=True)
class Case:
    """One node. inputs: shapes of what a run brings, weights: of what the model holds. gflop, gbyte: what it computes
    and has to read."""

    name: str
    op: str
    version: int
    inputs: tuple[Shape, ...]
    weights: tuple[Shape, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    gflop: float = 0.0
    gbyte: float = 0.0


def attention(heads: int, queries: int, keys: int, width: int) -> Case:
    of_keys = (1, heads, keys, width)
    return Case(
        f"attention {heads} x {width}, {queries} over {keys}",
        "Attention",
        23,
        ((1, heads, queries, width), of_keys, of_keys),
        gflop=4e-9 * heads * queries * keys * width,
        gbyte=8e-9 * heads * keys * width,
    )


def layer(op: str, steps: int, inputs: int, hidden: int, **attributes: Any) -> Case:
    gates = {"LSTM": 4, "GRU": 3}[op] * hidden
    weights = (1, gates, inputs), (1, gates, hidden), (1, 2 * gates)
    return Case(
        f"{op} {hidden}, {steps} steps of {inputs}",
        op,
        14,
        ((steps, 1, inputs),),
        weights,
        {"hidden_size": hidden, **attributes},
        gflop=2e-9 * steps * gates * (inputs + hidden),
    )


def product(k: int, n: int, transposed: int) -> Case:
    shape = (n, k) if transposed else (k, n)
    return Case(
        f"1 x {k} x {n}, {'rows' if transposed else 'columns'}",
        "Gemm",
        13,
        ((1, k),),
        (shape, (n,)),
        {"transB": transposed},
        gflop=2e-9 * k * n,
        gbyte=4e-9 * k * n,
    )


CASES = (
    attention(12, 128, 128, 32),
    attention(12, 512, 512, 32),
    attention(12, 256, 256, 64),
    attention(8, 1, 1024, 32),
    attention(32, 1, 2048, 128),
    attention(8, 1500, 1500, 64),
    layer("LSTM", 128, 9, 32),
    layer("LSTM", 128, 64, 64),
    layer("LSTM", 128, 512, 64),
    layer("GRU", 128, 9, 32, linear_before_reset=1),
    product(9216, 4096, 1),
    product(4096, 4096, 1),
    product(4096, 1000, 1),
    product(2048, 1000, 1),
    product(1280, 1000, 1),
    product(9216, 4096, 0),
    product(2048, 1000, 0),
    product(256, 512, 0),
    Case("normalisation 128 x 384", "LayerNormalization", 17, ((128, 384),), ((384,), (384,)), gbyte=4e-4),
    Case("normalisation 1500 x 512", "LayerNormalization", 17, ((1500, 512),), ((512,), (512,)), gbyte=6e-3),
    Case("softmax 1 x 1000", "Softmax", 13, ((1, 1000),), gbyte=8e-6),
    Case("softmax 1536 x 128", "Softmax", 13, ((1536, 128),), gbyte=1.6e-3),
)


def graph_of(case: Case) -> Graph:
    rng = np.random.default_rng(0)
    values, names = {"y": Value("y", FLOAT32)}, []
    for k, shape in enumerate((*case.inputs, *case.weights)):
        array = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))
        values[f"x{k}"] = Value(f"x{k}", FLOAT32, shape, (lambda array=array: array) if k >= len(case.inputs) else None)  # type: ignore[misc]
        names.append(f"x{k}")
    node = Node(case.op, tuple(names), ("y",), case.name, "", case.version, case.attributes)
    return Graph(case.name, tuple(names[: len(case.inputs)]), ("y",), (node,), values)


def measure(gpu: Gpu, case: Case, config: Config, top: int, warmth: Warmth) -> dict[str, Any]:
    """us of the forms of a case that are estimated the best, the chosen one first."""
    graph = graph_of(case)
    warmth.give()
    with forced() as seen:
        usual = microseconds(gpu, graph, config)
    forms = next(iter(seen.values())).forms[:top] if seen else ()
    times = {forms[0] if forms else "the only one": usual[0]}
    for form in forms[1:]:
        warmth.give()
        with forced(form):
            times[form] = microseconds(gpu, graph, config)[0]
    return {"case": case.name, "gflop": case.gflop, "gbyte": case.gbyte, "us": times, "kernels": usual[1]}


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
    config = Config(adapter=options.adapter, checked_shaders=options.checked)
    gpu = Gpu.open(config)
    warmth = Warmth(gpu, config)
    results = [
        measure(gpu, case, config, options.top, warmth) for case in CASES if re.search(options.pattern, case.name)
    ]
    Console(width=160).print(report(results, f"{gpu.info.name}, checked shaders: {options.checked}"))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
