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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from rich.console import Console
from rich.table import Table

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu, Tensor
from ort_gpu_ep.errors import UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, Shape, TensorType
from ort_gpu_ep.runtime.program import Program


@dataclass(frozen=True)
class Case:
    """One node: shapes of its input and weights, attributes, and the multiply-adds it needs."""

    name: str
    op: str
    x: Shape
    weights: tuple[Shape, ...]
    macs: int
    attributes: dict[str, Any] = field(default_factory=dict)


def conv(
    name: str, size: int, channels: int, filters: int, window: int, stride: int = 1, groups: int = 1, batch: int = 1
) -> Case:
    """A square convolution with SAME padding and bias."""
    out = -(-size // stride)
    return Case(
        name,
        "Conv",
        (batch, channels, size, size),
        ((filters, channels // groups, window, window), (filters,)),
        batch * filters * out * out * channels // groups * window * window,
        {"pads": [window // 2] * 4, "strides": [stride] * 2, "group": groups},
    )


def matmul(name: str, a: Shape, b: Shape) -> Case:
    return Case(name, "MatMul", a, (b,), int(np.prod(a)) * b[-1])


def gemm(name: str, m: int, k: int, n: int) -> Case:
    """A fully connected layer as exporters write it: transposed weights and a bias."""
    return Case(name, "Gemm", (m, k), ((n, k), (n,)), m * k * n, {"transB": 1})


CASES = (
    conv("conv 7x7/2 3-64 224", 224, 3, 64, 7, 2),
    conv("conv 1x1 64-64 56", 56, 64, 64, 1),
    conv("conv 3x3 64-64 56", 56, 64, 64, 3),
    conv("conv 1x1 64-256 56", 56, 64, 256, 1),
    conv("conv 1x1 256-64 56", 56, 256, 64, 1),
    conv("conv 3x3/2 128-128 56", 56, 128, 128, 3, 2),
    conv("conv 1x1/2 256-512 56", 56, 256, 512, 1, 2),
    conv("conv 3x3 128-128 28", 28, 128, 128, 3),
    conv("conv 1x1 128-512 28", 28, 128, 512, 1),
    conv("conv 1x1 512-128 28", 28, 512, 128, 1),
    conv("conv 3x3 256-256 14", 14, 256, 256, 3),
    conv("conv 1x1 256-1024 14", 14, 256, 1024, 1),
    conv("conv 1x1 1024-256 14", 14, 1024, 256, 1),
    conv("conv 3x3 512-512 7", 7, 512, 512, 3),
    conv("conv 1x1 512-2048 7", 7, 512, 2048, 1),
    conv("conv 1x1 2048-512 7", 7, 2048, 512, 1),
    conv("conv 3x3 32-32 groups 32 112", 112, 32, 32, 3, groups=32),
    conv("conv 3x3/2 144-144 groups 144 56", 56, 144, 144, 3, 2, groups=144),
    conv("conv 3x3 960-960 groups 960 7", 7, 960, 960, 3, groups=960),
    conv("conv 3x3 128-128 groups 32 56", 56, 128, 128, 3, groups=32),
    conv("conv 1x1 16-96 112", 112, 16, 96, 1),
    conv("conv 1x1 96-24 56", 56, 96, 24, 1),
    conv("conv 1x1 960-320 7", 7, 960, 320, 1),
    conv("conv 1x1 96-24 1", 1, 96, 24, 1),
    Case(
        "conv 1-D 9 80-512 1500", "Conv", (1, 80, 1500), ((512, 80, 9), (512,)), 512 * 1500 * 80 * 9, {"pads": [4, 4]}
    ),
    Case(
        "conv transpose 4x4/2 128-64 28",
        "ConvTranspose",
        (1, 128, 28, 28),
        ((128, 64, 4, 4), (64,)),
        128 * 64 * 28 * 28 * 16,
        {"pads": [1] * 4, "strides": [2, 2]},
    ),
    matmul("matmul 512 512 512", (512, 512), (512, 512)),
    matmul("matmul 1024 1024 1024", (1024, 1024), (1024, 1024)),
    matmul("matmul 128 384 1536", (1, 128, 384), (384, 1536)),
    matmul("matmul 128 1536 384", (1, 128, 1536), (1536, 384)),
    matmul("matmul 12 x 128 64 128", (12, 128, 64), (12, 64, 128)),
    matmul("matmul 1 2048 1000", (1, 2048), (2048, 1000)),
    gemm("gemm 1 2048 1000", 1, 2048, 1000),
    gemm("gemm 1 9216 4096", 1, 9216, 4096),
    gemm("gemm 8 2048 1000", 8, 2048, 1000),
)


def model_of(case: Case) -> onnx.ModelProto:
    """A model of one node; weights are random constants."""
    random = np.random.default_rng(0)
    names = [f"w{i}" for i in range(len(case.weights))]
    weights = [
        onnx.numpy_helper.from_array(random.standard_normal(s, np.float32), n)
        for n, s in zip(names, case.weights, strict=True)
    ]
    graph = helper.make_graph(
        [helper.make_node(case.op, ["x", *names], ["y"], **case.attributes)],
        case.name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, case.x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def measure(case: Case, config: Config, runs: int, seconds: float) -> dict[str, Any]:
    """Milliseconds and GFLOP/s of a case, and the kernels it became."""
    gpu = Gpu.open(config)
    try:
        program = Program(from_onnx(model_of(case)), config, gpu)
    except UnsupportedNodeError as error:
        return {"case": case.name, "ms": float("nan"), "gflops": 0.0, "runs": 0, "kernels": [f"declined, {error}"]}
    data = np.random.default_rng(1).standard_normal(case.x, np.float32)
    x = Tensor(gpu.allocate(data.nbytes), 0, TensorType(FLOAT32, case.x))
    gpu.upload(x.buffer, 0, data.ctypes.data, data.nbytes)
    plan = program.plan([x.type])
    y = Tensor(gpu.allocate(plan.outputs[0].nbytes), 0, plan.outputs[0])

    def batch(count: int) -> float:
        gpu.finish()
        start = time.perf_counter()
        for _ in range(count):
            program.run([x], lambda index, shape: y)
        gpu.finish()
        return (time.perf_counter() - start) / count

    batch(1)
    count = runs or max(1, min(1000, int(seconds / max(batch(1), 1e-6))))
    best = min(batch(count) for _ in range(3))
    program.close()
    gpu.free(x.buffer)
    gpu.free(y.buffer)
    return {
        "case": case.name,
        "ms": best * 1e3,
        "gflops": 2 * case.macs / best / 1e9,
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
    results = [measure(c, config, options.runs, options.seconds) for c in CASES if re.search(options.pattern, c.name)]
    adapter = Gpu.open(config).info
    Console().print(report(results, f"{adapter.name} ({adapter.backend}), checked shaders: {options.checked}"))
    if options.json:
        options.json.write_text(
            json.dumps({"adapter": adapter.as_dict(), "checked": config.checked_shaders, "results": results}, indent=1)
        )


if __name__ == "__main__":
    main()
