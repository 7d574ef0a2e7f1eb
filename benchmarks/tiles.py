"""GPU time of each tile that a product could take, beside what its estimate says, for the layers of networks.

python -m benchmarks.tiles [PATTERN] [--top N] [--adapter A] [--checked 0|1] [--json FILE]

The times are those of gpu_time.py.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass, replace
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
from ort_gpu_ep.kernels.target import LAST_ARRIVING
from ort_gpu_ep.runtime.program import Program


@dataclass(frozen=True)
class Layer:
    """A convolution (channels last) or a product [rows, k] [k, m]. count: how often it is in its network."""

    network: str
    size: int
    channels: int
    filters: int
    window: int = 1
    stride: int = 1
    count: int = 1
    batch: int = 1
    rows: int = 0

    @property
    def name(self) -> str:
        if self.rows:
            return f"{self.network} {self.rows}x{self.channels}x{self.filters}"
        step, batch = f"/{self.stride}" if self.stride > 1 else "", f" b{self.batch}" if self.batch > 1 else ""
        return f"{self.network} {self.window}x{self.window}{step} {self.channels}-{self.filters} {self.size}{batch}"

    @property
    def x(self) -> Shape:
        if self.rows:
            return (self.rows, self.channels)
        planes = (self.batch, self.channels, self.size, self.size)
        return planes if self.channels <= 4 else (self.batch, self.size, self.size, self.channels)

    @property
    def w(self) -> Shape:
        return (self.channels, self.filters) if self.rows else (self.filters, self.channels, self.window, self.window)

    @property
    def flops(self) -> int:
        rows = self.rows or self.batch * (-(-self.size // self.stride)) ** 2
        return 2 * rows * self.channels * self.filters * self.window**2


LAYERS = (
    Layer("resnet50", 224, 3, 64, 7, 2),
    Layer("resnet50", 56, 64, 64),
    Layer("resnet50", 56, 64, 256, count=4),
    Layer("resnet50", 56, 256, 64, count=2),
    Layer("resnet50", 56, 64, 64, 3, count=3),
    Layer("resnet50", 56, 256, 128),
    Layer("resnet50", 56, 256, 512, 1, 2),
    Layer("resnet50", 56, 128, 128, 3, 2),
    Layer("resnet50", 28, 128, 128, 3, count=3),
    Layer("resnet50", 28, 128, 512, count=4),
    Layer("resnet50", 28, 512, 128, count=3),
    Layer("resnet50", 28, 512, 256),
    Layer("resnet50", 28, 512, 1024, 1, 2),
    Layer("resnet50", 28, 256, 256, 3, 2),
    Layer("resnet50", 14, 256, 256, 3, count=5),
    Layer("resnet50", 14, 256, 1024, count=6),
    Layer("resnet50", 14, 1024, 256, count=5),
    Layer("resnet50", 14, 1024, 512),
    Layer("resnet50", 14, 1024, 2048, 1, 2),
    Layer("resnet50", 14, 512, 512, 3, 2),
    Layer("resnet50", 7, 512, 512, 3, count=2),
    Layer("resnet50", 7, 512, 2048, count=3),
    Layer("resnet50", 7, 2048, 512, count=2),
    Layer("alexnet", 27, 64, 192, 5),
    Layer("alexnet", 13, 192, 384, 3),
    Layer("inception", 147, 32, 64, 3),
    Layer("inception", 73, 80, 192, 3),
    Layer("inception", 35, 288, 384, 3, 2),
    Layer("mobilenet", 112, 32, 16),
    Layer("mobilenet", 112, 16, 96),
    Layer("mobilenet", 56, 144, 24),
    Layer("mobilenet", 28, 192, 32),
    Layer("mobilenet", 14, 384, 64),
    Layer("mobilenet", 14, 96, 576),
    Layer("mobilenet", 7, 960, 160),
    Layer("mobilenet", 7, 320, 1280),
    Layer("encoder", 0, 384, 384, rows=128),
    Layer("encoder", 0, 384, 1536, rows=128),
    Layer("encoder", 0, 1536, 384, rows=128),
    Layer("sgemm", 0, 1024, 1024, rows=1024),
    Layer("sgemm", 0, 4096, 4096, rows=4096),
    Layer("resnet50", 56, 64, 64, 3, batch=32),
    Layer("resnet50", 56, 64, 256, batch=32),
    Layer("resnet50", 28, 128, 512, batch=32),
    Layer("resnet50", 14, 256, 256, 3, batch=32),
    Layer("resnet50", 14, 256, 1024, batch=32),
    Layer("resnet50", 14, 1024, 256, batch=32),
    Layer("resnet50", 7, 512, 512, 3, batch=32),
    Layer("resnet50", 7, 512, 2048, batch=32),
    Layer("resnet50", 7, 2048, 512, batch=32),
    Layer("mobilenet", 112, 16, 96, batch=32),
    Layer("mobilenet", 56, 24, 144, batch=32),
    Layer("mobilenet", 28, 32, 192, batch=32),
    Layer("mobilenet", 14, 64, 384, batch=32),
    Layer("mobilenet", 14, 96, 576, batch=32),
    Layer("mobilenet", 7, 960, 160, batch=32),
)


def graph_of(layer: Layer, weights: Any) -> Graph:
    values = {
        "x": Value("x", FLOAT32, layer.x),
        "y": Value("y", FLOAT32),
        "w": Value("w", FLOAT32, layer.w, lambda: weights),
    }
    attributes = {} if layer.rows else {"pads": (layer.window // 2,) * 4, "strides": (layer.stride,) * 2}
    node = Node(
        "MatMul" if layer.rows else "Conv",
        ("x", "w"),
        ("y",),
        layer.name,
        "",
        13 if layer.rows else 11,
        attributes,
        channels_last=not layer.rows,
    )
    return Graph(layer.name, ("x",), ("y",), (node,), values)


def measure(gpu: Gpu, layer: Layer, config: Config, top: int, warmth: Warmth) -> dict[str, Any]:
    """us of the forms of a layer that are estimated the best, the chosen one first."""
    graph = graph_of(layer, np.random.default_rng(0).standard_normal(layer.w, np.float32))
    estimates = _estimates(gpu, graph, config)
    times: dict[str, float] = {}
    for form in sorted(estimates, key=lambda name: estimates[name])[:top]:
        warmth.give()
        with forced(form):
            times[form] = microseconds(gpu, graph, config)[0]
    return {
        "layer": layer.name,
        "count": layer.count,
        "gflop": layer.flops / 1e9,
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
    layers = [layer for layer in LAYERS if re.search(options.pattern, layer.name)]
    warmth = Warmth(gpu, config)
    results = [measure(gpu, layer, config, options.top, warmth) for layer in layers]
    Console(width=120).print(report(results, f"{gpu.info.name}, checked shaders: {options.checked}"))
    total = sum(
        r["count"] * next(iter(r["us"].values()))
        for r in results
        if r["layer"].startswith("resnet50") and " b" not in r["layer"]
    )
    print(f"resnet50's convolutions as chosen: {total:.0f} us")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
