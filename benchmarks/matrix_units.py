"""Products on matrix units beside the forms without: GPU time, and error against float64 on five kinds of data.

    python -m benchmarks.matrix_units [--only WHAT,...] [--size N] [--json FILE]

WHAT: `peak` times of N x N x N products with a constant second matrix, and of torch's by CUDA where it is installed;
`errors` and `times` of matrix products, `layers` times of ResNet-50's convolutions on 32 images, `halves` those of
float16 convolutions over lines and spaces (R3D-18's) and of transposed ones, beside the same node over planes.

Times as in benchmarks.gpu_time. Errors are relative to sum |x w|, of eight rows: the largest, and the mean (a bias);
`l2` is relative L2.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_time import Warmth, microseconds
from benchmarks.problems import RESNET50, batched, flops_of, graph_of
from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.health.open_adapter import open_gpu
from ort_gpu_ep.health.probe import Trial
from ort_gpu_ep.ir.graph import Array, Graph, Node, Value
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, INT8, DType, TensorType
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.problems import Problem, Random, problem
from ort_gpu_ep.kernels.target import Choice, no_matrix_units
from ort_gpu_ep.ops.conv_last import MAX_PLANES
from ort_gpu_ep.ops.matrix_units import TILES
from ort_gpu_ep.scheduler import make_plan

KINDS = ("normal", "positive", "large", "small", "mixed")


def drawn(kind: str, rows: int, columns: int, seed: int, half: bool = False) -> Array:
    """A matrix of float32. half: within what float16 holds."""
    rng = np.random.default_rng(seed)
    made = (
        rng.random((rows, columns), np.float32)
        if kind == "positive"
        else rng.standard_normal((rows, columns), np.float32)
    )
    powers = {"large": (4 if half else 50), "small": (-10 if half else -50)}.get(kind, 0)
    if kind == "mixed":
        made *= np.exp2(rng.integers(*((-6, 7) if half else (-40, 41)), (rows, 1))).astype(np.float32)
    return made * np.float32(2.0**powers)


def product(
    m: int, n: int, k: int, dtype: DType, transposed: bool = False, batch: int = 0, constant: bool = False
) -> Problem:
    """Of bytes, where the type is one. constant: the model has the second matrix."""
    left, right = ((batch, m, k), (batch, k, n)) if batch else ((m, k), (n, k) if transposed else (k, n))
    low, high = (-128, 128) if dtype is INT8 else (None, 0)
    op, version = ("MatMulInteger", 10) if dtype is INT8 else ("Gemm" if transposed else "MatMul", 13)
    a, b = Random(left, dtype.name, low, high), Random(right, dtype.name, low, high, constant=constant)
    return problem(op, version, a, b, **({"transB": 1} if transposed else {}))


def errors(gpu: Gpu, graph: Graph, a: Array, b: Array, right: Array, precision: str) -> dict[str, float]:
    (got,) = Trial(gpu, np.random.default_rng(0)).graph(graph, [a, b][: len(graph.inputs)], precision)
    rows = np.random.default_rng(1).integers(0, a.shape[0], 8)
    exact, sizes = (
        a[rows].astype(np.float64) @ right,
        np.abs(a[rows]).astype(np.float64) @ np.abs(right.astype(np.float64)),
    )
    off = got[rows].astype(np.float64) - exact
    return {
        "l2": float(np.linalg.norm(off / sizes) / np.linalg.norm(exact / sizes)),
        "worst": float(np.abs(off / sizes).max()),
        "bias": float((off / sizes).mean()),
        "finite": float(np.isfinite(got).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--only", default="peak,errors,times,layers,halves")
    parser.add_argument("--adapter", default="")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    gpu = open_gpu(resolve({"adapter": asked.adapter}))
    found: list[dict[str, Any]] = [
        {
            "adapter": gpu.info.name,
            "features": sorted(gpu.limits.features),
            "why_not": no_matrix_units(gpu.limits),
            "trusted": sorted(gpu.trusted),
        }
    ]
    print(json.dumps(found[0]), flush=True)

    def say(**row: Any) -> None:
        found.append(row)
        print(json.dumps(row), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    wanted = asked.only.split(",")
    if "peak" in wanted:
        for_peak(gpu, asked.size, say)
    if "errors" in wanted and not no_matrix_units(gpu.limits):
        for_errors(gpu, asked.size, say)
    if "times" in wanted:
        for_times(gpu, asked.size, say)
    if "layers" in wanted:
        for_layers(gpu, say)
    if "halves" in wanted:
        for_halves(gpu, say)


def for_peak(gpu: Gpu, size: int, say: Any) -> None:
    """In what is chosen; TFLOP/s, of bytes TOP/s."""
    warmth, flops = Warmth(gpu, Config()), 2.0 * size**3
    for precision, dtype in (
        ("float32", FLOAT32),
        ("tf32", FLOAT32),
        ("f16acc", FLOAT32),
        ("float32", FLOAT16),
        ("float32", INT8),
    ):
        graph = graph_of(product(size, size, size, dtype, constant=True))
        with forced() as forms:
            warmth.give()
            us, _ = microseconds(gpu, graph, Config(precision=precision))
        say(
            what="peak",
            precision=precision,
            dtype=dtype.name,
            size=size,
            chosen=[choice.form for choice in forms.values()],
            us=round(us, 1),
            tera_per_s=round(flops / us / 1e6, 1),
        )
    for name, us in torch_products(size).items():
        say(what="peak", precision=f"torch {name}", size=size, us=round(us, 1), tera_per_s=round(flops / us / 1e6, 1))


def torch_products(size: int, repeats: int = 20) -> dict[str, float]:
    """Microseconds of torch's product by CUDA, warm; nothing where torch has no CUDA."""
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return {}
    found: dict[str, float] = {}
    if not torch.cuda.is_available():
        return found
    for name in ("float32", "tf32", "float16", "int8"):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (
            torch.randint(-128, 128, (size, size), device="cuda").to(torch.int8)
            if name == "int8"
            else torch.randn(size, size, device="cuda", dtype=torch.float16 if name == "float16" else torch.float32)
            for _ in range(2)
        )
        multiply = torch._int_mm if name == "int8" else torch.matmul
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for timed in (False, True):
            if timed:
                start.record()
            for _ in range(repeats if timed else 20 * repeats):
                multiply(a, b)
        end.record()
        torch.cuda.synchronize()
        found[name] = start.elapsed_time(end) / repeats * 1e3
    return found


EDGES = (
    (150, 132, 100, False),
    (131, 132, 68, True),
    (131, 67, 35, False),
    (67, 131, 99, True),
    (300, 260, 512, False),
)


def for_errors(gpu: Gpu, size: int, say: Any) -> None:
    """Around the tiles' edges, in each tile, and at full size in what is chosen."""
    for precision, dtype in (("tf32", FLOAT32), ("f16acc", FLOAT32), ("float32", FLOAT16)):
        half = precision != "tf32"
        for tile in TILES:
            for m, n, k, transposed in EDGES:
                kind = "mixed" if m == 300 else "normal"
                a, b = (
                    drawn(kind, *shape, seed, half).astype(dtype.numpy) for seed, shape in enumerate(((m, k), (k, n)))
                )
                given = np.ascontiguousarray(b.T) if transposed else b
                with forced(tile.name) as seen:
                    graph = graph_of(product(m, n, k, dtype, transposed), (a, given))
                    row = errors(gpu, graph, a, given, b, precision)
                say(
                    what="edges",
                    precision=precision,
                    dtype=dtype.name,
                    tile=tile.name,
                    size=[m, n, k],
                    transposed=transposed,
                    keys=list(seen),
                    **row,
                )
        m = n = size // 4
        for kind in KINDS:
            a, b = (
                drawn(kind, *shape, seed, half).astype(dtype.numpy) for seed, shape in enumerate(((m, size), (size, n)))
            )
            row = errors(gpu, graph_of(product(m, n, size, dtype), (a, b)), a, b, b, precision)
            say(what="error", precision=precision, dtype=dtype.name, kind=kind, size=[m, n, size], **row)


def shapes_of(size: int) -> tuple[tuple[int, int, int, bool, int], ...]:
    """Rows, columns, k, whether the second matrix is transposed, batches (0: none)."""
    half, quarter, eighth = size // 2, size // 4, size // 8
    return (
        (size, size, size, False, 0),
        (half, half, half, False, 0),
        (quarter, quarter, quarter, False, 0),
        (eighth, size * 2, half, False, 0),
        (eighth, size * 2, half, True, 0),
        (size // 32, size // 32, size // 64, False, 96),
        (quarter, size // 16, size // 16, False, 0),
        (size, size // 10, size // 10, False, 0),
    )


def for_times(gpu: Gpu, size: int, say: Any) -> None:
    warmth = Warmth(gpu, Config())
    modes = (("tf32", FLOAT32, True), ("tf32", FLOAT32, False), ("f16acc", FLOAT32, True), ("float32", FLOAT16, False))
    for precision, dtype, constant in modes:
        for m, n, k, transposed, batch in shapes_of(size):
            if constant and batch:
                continue
            graph = graph_of(product(m, n, k, dtype, transposed, batch, constant))
            config = Config(precision=precision)
            with forced() as forms:
                warmth.give()
                usual, shaders = microseconds(gpu, graph, config)
            chosen = list(forms.values())
            row = by_form(gpu, graph, config, warmth, chosen, 2.0 * m * n * k * max(batch, 1))
            say(
                what="time",
                precision=precision,
                dtype=dtype.name,
                size=[m, n, k],
                transposed=transposed,
                batch=batch,
                constant=constant,
                chosen=[choice.form for choice in chosen],
                us=round(usual, 1),
                shaders=shaders,
                forms=row,
            )


def by_form(
    gpu: Gpu, graph: Graph, config: Config, warmth: Warmth, chosen: list[Choice], flops: float
) -> dict[str, dict[str, float]]:
    """The forms on matrix units and the best without: microseconds, TFLOP/s, and the estimate."""
    row = {}
    for choice in chosen:
        others = [f for f in choice.forms if "units" not in f][:1]
        for form in (*(f for f in choice.forms if "units" in f), *others):
            with forced(form):
                warmth.give()
                us = microseconds(gpu, graph, config)[0]
            row[form] = {
                "us": round(us, 1),
                "tflops": round(flops / us / 1e6, 1),
                "estimate_us": round(choice.estimates_ns[form] / 1e3, 1),
            }
    return row


HALVES: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ("Conv", (1, 3, 16, 112, 112), (64, 3, 3, 7, 7), {"pads": (1, 3, 3, 1, 3, 3), "strides": (1, 2, 2)}),
    ("Conv", (1, 64, 16, 56, 56), (64, 64, 3, 3, 3), {"pads": (1,) * 6}),
    ("Conv", (1, 64, 16, 56, 56), (128, 64, 3, 3, 3), {"pads": (1,) * 6, "strides": (2, 2, 2)}),
    ("Conv", (1, 128, 8, 28, 28), (128, 128, 3, 3, 3), {"pads": (1,) * 6}),
    ("Conv", (1, 256, 4, 14, 14), (256, 256, 3, 3, 3), {"pads": (1,) * 6}),
    ("Conv", (1, 512, 2, 7, 7), (512, 512, 3, 3, 3), {"pads": (1,) * 6}),
    ("Conv", (1, 80, 3000), (768, 80, 3), {"pads": (1, 1)}),
    ("Conv", (1, 768, 3000), (768, 768, 3), {"pads": (1, 1), "strides": (2,)}),
    ("Conv", (1, 768, 499), (768, 48, 128), {"pads": (64, 64), "group": 16}),
    ("Conv", (8, 128, 56, 56), (128, 128, 5, 5), {"pads": (2,) * 4}),
    ("Conv", (8, 256, 64, 64), (21, 256, 1, 1), {}),
    ("ConvTranspose", (1, 256, 64, 64), (256, 128, 2, 2), {"strides": (2, 2)}),
    ("ConvTranspose", (1, 512, 32, 32), (512, 256, 4, 4), {"strides": (2, 2), "pads": (1,) * 4}),
    ("ConvTranspose", (1, 128, 16, 64, 64), (128, 64, 2, 2, 2), {"strides": (2, 2, 2)}),
    ("ConvTranspose", (1, 512, 1000), (512, 256, 16), {"strides": (8,), "pads": (4, 4)}),
)
"""Op, x [N, C, spatial...], weights, attributes."""


def for_halves(gpu: Gpu, say: Any) -> None:
    """Channels last in each form on matrix units and the best without, where there is one; and over planes, as they
    were."""
    warmth, config, rng = Warmth(gpu, Config()), Config(), np.random.default_rng(0)
    for op, shape, filters, attributes in HALVES:
        w = rng.standard_normal(filters, np.float32).astype(np.float16)
        last = (shape[0], *shape[2:], shape[1]) if shape[1] > MAX_PLANES else shape
        us: dict[str, float] = {}
        forms: dict[str, dict[str, float]] = {}
        for how, x in (("planes", shape), ("channels last", last)):
            values = {"x": Value("x", FLOAT16, x), "w": Value("w", FLOAT16, filters, lambda w=w: w)}
            is_last = how == "channels last"
            node = Node(op, ("x", "w"), ("y",), version=11, attributes=attributes, channels_last=is_last)
            graph = Graph("g", ("x",), ("y",), (node,), values | {"y": Value("y", FLOAT16)})
            with forced() as chosen:
                warmth.give()
                us[how] = round(microseconds(gpu, graph, config)[0], 1)
            plan = make_plan(graph, {"x": TensorType(FLOAT16, x)}, gpu.limits)
            pixels = shape[0] * math.prod(shape[2:]) if op == "ConvTranspose" else plan.outputs[0].size // filters[0]
            if is_last:
                forms = by_form(gpu, graph, config, warmth, list(chosen.values()), 2.0 * pixels * w.size)
        say(what="half", op=op, x=shape, w=filters, us=us, forms=forms, **attributes)


def for_layers(gpu: Gpu, say: Any, images: int = 32) -> None:
    """Channels last, as the layout pass has them."""
    warmth = Warmth(gpu, Config())
    for name, (one, _) in RESNET50.items():
        row = batched(one, images)
        graph, flops = graph_of(row), flops_of(row)
        for precision in ("tf32", "f16acc"):
            config = Config(precision=precision)
            with forced() as forms:
                warmth.give()
                usual, shaders = microseconds(gpu, graph, config)
            chosen = list(forms.values())
            times = by_form(gpu, graph, config, warmth, chosen, flops)
            say(
                what="layer",
                precision=precision,
                layer=name,
                chosen=[choice.form for choice in chosen],
                us=round(usual, 1),
                shaders=shaders,
                forms=times,
            )


if __name__ == "__main__":
    main()
