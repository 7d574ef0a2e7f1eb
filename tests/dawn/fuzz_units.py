"""Random products, convolutions, attention, packed weights and bytes on matrix units that a driver has, each against
float64 (bytes exactly).

`python -m tests.dawn.fuzz_units --first 0 --count 250` prints the seed of each wrong run, and how many runs of each
kind were on units. A seed has one graph, in one small tile, which runs on RUNS sets of data.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.health.probe import Trial, graph_of
from ort_gpu_ep.health.probes.matrix_units import in_tile
from ort_gpu_ep.ir.graph import Graph, Node, from_onnx
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.target import LAST_ARRIVING, MATRIX_ATTENTION, MATRIX_BYTES, MATRIX_UNITS
from ort_gpu_ep.ops import attention_units, unit_bytes
from ort_gpu_ep.ops.attention_units import UnitForm
from ort_gpu_ep.ops.matrix_units import LEAST, UnitTile
from tests.ops.test_attention_units import heads_of, wanted
from tests.ops.test_tiles import expected
from tests.ops.test_unit_windows import transposed

Array = np.ndarray[Any, Any]
RUNS = 20
TILES = (
    UnitTile("fuzzed 32x32", 32, 32, 32, 2, 2, 1.0),
    UnitTile("fuzzed 16x16", 16, 16, 32, 1, 1, 1.0),
    UnitTile("fuzzed 32x16", 32, 16, 32, 1, 1, 1.0),
    UnitTile("fuzzed 16x32", 16, 32, 64, 1, 2, 1.0),
)
BYTE_TILE = UnitTile("byte units fuzzed", 32, 32, 64, 2, 2, 1.0)
HEADS = UnitForm(2, 32), UnitForm(1, 32, 4)
UNITS = {"matrix_product.wgsl", "unit_vectors.wgsl", "attention_units.wgsl", "byte_units.wgsl"}
KINDS = ("normal", "positive", "large", "small", "mixed")
ROUNDED = 2.0**-10
"""What float16 operands of a float32 model may be off: twice a half of a unit in the last place."""


@contextmanager
def units() -> Iterator[Trial]:
    """What the driver has counts as shown: that is what is tried here."""
    gpu, tiles, forms, chunk = Gpu.open(Config()), unit_bytes.TILES, attention_units.FORMS, attention_units.MOST_CHUNK
    usual = gpu.limits
    gpu.limits = replace(usual, features=usual.features | {LAST_ARRIVING, MATRIX_UNITS, MATRIX_BYTES, MATRIX_ATTENTION})
    unit_bytes.TILES, attention_units.FORMS, attention_units.MOST_CHUNK = (BYTE_TILE,), HEADS, 16
    try:
        yield Trial(gpu, np.random.default_rng())
    finally:
        gpu.limits, unit_bytes.TILES = usual, tiles
        attention_units.FORMS, attention_units.MOST_CHUNK = forms, chunk


class Draw:
    """What a seed draws, and how its graph runs."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.precision = str(self.rng.choice(["tf32", "f16acc", "float16"]))
        self.dtype: Any = np.float16 if self.precision == "float16" else np.float32

    def size(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    def one(self, *some: Any) -> Any:
        return some[int(self.rng.integers(len(some)))]

    @property
    def kind(self) -> str:
        """Of data: float16 holds two of them."""
        return str(self.one(*(KINDS if self.precision == "tf32" else KINDS[:2])))

    def array(self, kind: str, *shape: int, lines: int = -2) -> Array:
        """lines: the axis with a magnitude of its own for each index, of mixed data."""
        drawn = self.rng.random(shape) if kind == "positive" else self.rng.standard_normal(shape)
        power: Any = {"large": 55, "small": -55}.get(kind, 0)
        if kind == "mixed":
            across = [1] * len(shape)
            across[lines] = shape[lines]
            power = self.rng.integers(-40, 41, across)
        return (drawn * np.exp2(power)).astype(self.dtype)

    def run(self, trial: Trial, graph: Graph, arrays: list[Array]) -> Array:
        precision = "float32" if self.precision == "float16" else self.precision
        with np.errstate(all="ignore"):
            (got,) = trial.graph(graph, arrays, precision)
        return got

    def allowed(self, sizes: Array, exact: Array, k: int) -> Array:
        """How far a sum of k products may be off. sizes: the same sum of magnitudes."""
        if self.precision == "float16":
            return (k + 1) * 2.0**-24 * sizes + 2.0**-11 * np.abs(exact) + 2.0**-24
        return (ROUNDED + (k + 1) * 2.0**-24) * sizes


def wrong(got: Array, want: Array, allowed: Array) -> str:
    """What is wrong, empty where nothing is."""
    if got.shape != want.shape:
        return f"got shape {got.shape}, expected {want.shape}"
    off = ~(np.abs(got.astype(np.float64) - want) <= allowed)  # a NaN is off, too
    if not off.any():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(off))
    return f"{int(off.sum())} of {off.size}: {got[at]} instead of {want[at]} +- {allowed[at]} at {at}"


Check = Callable[[Trial], str]


def product(draw: Draw) -> Check:
    """MatMul with batches, or Gemm."""
    m, n, k = draw.size(16, 90), draw.size(16, 90), draw.size(16, 140)
    is_gemm, held, turned = bool(draw.size(0, 1)), bool(draw.size(0, 1)), (draw.size(0, 1), draw.size(0, 1))
    batches = ((), ()) if is_gemm else draw.one(((), ()), ((2,), ()), ((3,), (3,)), ((3,), (2, 1)), ((2, 3), (3,)))
    alpha, beta = (draw.one(1.0, 0.5), draw.one(1.0, 2.0)) if is_gemm else (1.0, 1.0)
    weights = draw.array(draw.kind, *batches[1], k, n, lines=-1)

    def check(trial: Trial) -> str:
        kind = draw.kind
        a = draw.array(kind, *batches[0], m, k)
        b = weights if held else draw.array(kind, *batches[1], k, n, lines=-1)
        wide, other = a.astype(np.float64), b.astype(np.float64)
        exact, sizes = alpha * (wide @ other), np.abs(wide) @ np.abs(other)
        below = 2.0**-38 * (
            np.abs(wide).max(-1, keepdims=True) * np.abs(other).sum(-2, keepdims=True)
            + np.abs(wide).sum(-1, keepdims=True) * np.abs(other).max(-2, keepdims=True)
        )
        arrays = {"a": np.ascontiguousarray(a.T) if is_gemm and turned[0] else a}
        arrays["b"] = np.ascontiguousarray(b.T) if is_gemm and turned[1] else b
        attributes = {"transA": turned[0], "transB": turned[1], "alpha": alpha, "beta": beta} if is_gemm else {}
        if is_gemm:
            arrays["c"] = draw.array("positive", n)
            exact, sizes = exact + beta * arrays["c"].astype(np.float64), sizes + beta * np.abs(arrays["c"])
        node = Node("Gemm" if is_gemm else "MatMul", tuple(arrays), ("y",), version=13, attributes=attributes)
        constants = {"b": arrays.pop("b")} if held else {}
        got = draw.run(trial, graph_of(arrays, constants, node), list(arrays.values()))
        return wrong(got, exact, draw.allowed(sizes, exact, k) + (below if draw.precision == "tf32" else 0.0))

    return check


def convolution(draw: Draw) -> Check:
    """Over one to three spatial dimensions."""
    groups = draw.one(1, 1, 1, 2, 3)
    each, filters = 4 * draw.size(2, 6), 4 * draw.size(4, 10)
    flat, line, space = (
        ((1, 1), (3, 3), (5, 5), (1, 3), (7, 7), (2, 4)),
        ((1,), (3,), (16,)),
        ((1, 1, 1), (3, 3, 3), (2, 1, 4)),
    )
    kernel = draw.one(*flat, (3, 3), *line, *space)
    rank, most = len(kernel), (0, 60, 14, 8)[len(kernel)]
    planes = groups == 1 and draw.size(0, 4) == 0 and math.prod(kernel) >= LEAST
    each = draw.size(1, 4) if planes else each if groups == 1 and len(kernel) == 2 else max(each, LEAST)
    attributes: dict[str, Any] = {
        "strides": tuple(draw.size(1, 3 if k else 2) for k in range(rank)),
        "dilations": (1,) * rank if 1 in kernel else tuple(draw.size(1, 2) for _ in kernel),
        "pads": tuple(draw.size(0, (kernel[k % rank]) // 2) for k in range(2 * rank)),
        "group": groups,
    }
    size = tuple(
        (t - 1) * d + draw.size(most // 2 - 1, most) for t, d in zip(kernel, attributes["dilations"], strict=True)
    )
    images, k = draw.size(2, 4) if rank == 3 else draw.size(1, 3), each * math.prod(kernel)
    w = draw.array(draw.kind, filters * groups, each, *kernel, lines=0)
    bias = draw.array("positive", filters * groups) if draw.size(0, 1) else None

    def check(trial: Trial) -> str:
        x = draw.array(draw.kind, images, each * groups, *size, lines=0)
        stored = x if planes else np.ascontiguousarray(np.moveaxis(x, 1, -1))
        constants = {"w": w} if bias is None else {"w": w, "c": bias}
        node = Node("Conv", ("x", *constants), ("y",), version=11, attributes=attributes, channels_last=True)
        got = draw.run(trial, graph_of({"x": stored}, constants, node), [stored])
        wide, other = np.abs(x.astype(np.float64)), np.abs(w.astype(np.float64))
        exact = expected(x, w, bias, None, attributes)
        sizes = expected(wide, other, None if bias is None else np.abs(bias), None, attributes)
        allowed = draw.allowed(sizes, exact, k)
        if draw.precision == "tf32":
            of_one, ones = tuple(range(1, rank + 2)), np.ones_like(other)
            largest = wide.max(of_one).reshape(-1, *(1,) * (rank + 1))
            allowed = allowed + 2.0**-38 * (
                largest * other.sum(of_one) + expected(wide, ones, None, None, attributes) * other.max(of_one)
            )
        return wrong(got, exact, allowed)

    return check


def spread(draw: Draw) -> Check:
    """ConvTranspose of filters that are fours or planes."""
    kernel = draw.one((2, 2), (4, 4), (3, 3), (3, 5), (1, 2), (5,), (16,), (2, 2, 2), (3, 2, 4))
    rank, channels, filters = len(kernel), 4 * draw.size(4, 9), draw.one(draw.size(9, 20), 4 * draw.size(3, 8))
    most = (0, 60, 12, 6)[rank]
    attributes: dict[str, Any] = {
        "strides": tuple(draw.size(2, 3) for _ in kernel),
        "pads": tuple(draw.size(0, kernel[k % rank] // 2) for k in range(2 * rank)),
    }
    shape = draw.size(1, 2), channels, *(draw.size(most // 2, most) for _ in kernel)
    w = draw.array(draw.kind, channels, filters, *kernel, lines=1)
    bias = draw.array("positive", filters)

    def check(trial: Trial) -> str:
        x = draw.array(draw.kind, *shape, lines=0)
        stored = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        node = Node("ConvTranspose", ("x", "w", "c"), ("y",), version=11, attributes=attributes, channels_last=True)
        got = draw.run(trial, graph_of({"x": stored}, {"w": w, "c": bias}, node), [stored])
        exact = transposed(x, w, attributes) + bias
        wide, other = np.abs(x.astype(np.float64)), np.abs(w.astype(np.float64))
        allowed = draw.allowed(transposed(wide, other, attributes) + bias, exact, channels * math.prod(kernel))
        if draw.precision == "tf32":
            of_filter, ones = (0, *range(2, rank + 2)), np.ones_like(other)
            largest = wide.max(tuple(range(1, rank + 2))).reshape(-1, *(1,) * (rank + 1))
            allowed = allowed + 2.0**-38 * (
                largest * other.sum(of_filter) + transposed(wide, ones, attributes) * other.max(of_filter)
            )
        if filters % 4:
            exact, allowed = (np.moveaxis(y, -1, 1) for y in (exact, allowed))
        return wrong(got, exact, allowed)

    return check


def attention(draw: Draw) -> Check:
    """Of any heads; wide ones in the form with four invocations of a query, which is compiled for minutes where both
    sides are wide."""
    is_wide = draw.size(0, 2) == 0
    width, values = 4 * draw.size(4, 12), 4 * draw.size(4, 12)
    if is_wide:
        width, values = draw.one((32, 4 * draw.size(33, 40)), (4 * draw.size(33, 36), 4 * draw.size(4, 8)))
    shape = (draw.size(1, 2), draw.size(1, 3), draw.size(16, 70), draw.size(16, 90), width)
    scale = draw.one(0.1, 0.2, 0.3)
    masks = draw.one("none", "none", "bool", "added", "causal", "cap", "cap of a mask")

    def check(trial: Trial) -> str:
        arrays = dict(zip("qkv", (a.astype(draw.dtype) for a in heads_of(draw.kind, shape, values)), strict=True))
        queries, keys = shape[2:4]
        attributes, seen, added = {"scale": scale}, None, 0.0
        if "cap" in masks:
            attributes["softcap"] = 2.0
        if masks == "bool":
            arrays["mask"] = seen = draw.rng.random((queries, keys)) < 0.5
            seen[:, draw.size(0, keys - 1)] = True
        elif masks in ("added", "cap of a mask"):
            arrays["mask"] = added = draw.rng.standard_normal((1, 1, 1, keys)).astype(draw.dtype)
        elif masks == "causal":
            attributes["is_causal"], seen = 1, np.tril(np.ones((queries, keys), bool))
        node = Node("Attention", tuple(arrays), ("y",), version=23, attributes=attributes)
        got = draw.run(trial, graph_of(arrays, {}, node), list(arrays.values()))
        q, k, v = (arrays[name] for name in "qkv")
        return wrong(got, *wanted(q, k, v, scale, draw.precision, seen, added, attributes.get("softcap", 0.0)))

    return check


def packed(draw: Draw) -> Check:
    """MatMulNBits."""
    from tests.compressed.test_packed_products import nbits_model

    few, many = draw.size(5, 16), draw.size(16, 70)
    rows, n, bits, block = draw.one(few, many), 8 * draw.size(2, 10), draw.one(4, 4, 8, 2), draw.one(16, 32, 64)
    k = 16 * draw.size(1, 12)
    model, (dense, bias) = nbits_model((rows, k), k, n, bits, block, draw.one("none", "codes"), True)
    if draw.dtype is np.float16:
        for held in model.graph.initializer:
            if held.name in ("s", "b"):
                half = numpy_helper.to_array(held).astype(np.float16)
                if held.name == "s":
                    factor = half.astype(np.float64) / numpy_helper.to_array(held)
                    dense = dense * np.repeat(factor, block, 1)[:, :k].T
                else:
                    bias = half.astype(np.float64)
                held.CopyFrom(numpy_helper.from_array(half, held.name))
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    graph = from_onnx(model)

    def check(trial: Trial) -> str:
        kind = draw.kind
        x = draw.array("normal" if kind == "mixed" else kind, rows, k)
        got = draw.run(trial, graph, [x])
        exact = x.astype(np.float64) @ dense + bias
        sizes = np.abs(x.astype(np.float64)) @ np.abs(dense) + np.abs(bias)
        allowed = draw.allowed(sizes, exact, k)  # a weight is rounded to float16, too
        return wrong(got, exact, allowed + (2.0**-11 * sizes if draw.dtype is np.float16 else 2.0**-22 * np.abs(bias)))

    return check


def sums_of_bytes(draw: Draw) -> Check:
    m, n, k = draw.size(16, 80), 4 * draw.size(4, 20), 4 * draw.size(4, 75)
    b, zero = draw.rng.integers(-128, 128, (k, n)).astype(np.int8), np.array(draw.size(0, 255), np.uint8)

    def check(trial: Trial) -> str:
        a = draw.rng.integers(0, 256, (m, k)).astype(np.uint8)
        node = Node("MatMulInteger", ("a", "b", "z"), ("y",), version=10)
        (got,) = trial.graph(graph_of({"a": a}, {"b": b, "z": zero}, node), [a])
        want = (a.astype(np.int64) - int(zero)) @ b.astype(np.int64)
        return wrong(got, want, np.zeros(want.shape))

    return check


def convolution_of_bytes(draw: Draw) -> Check:
    """QLinearConv, against the form in register tiles: bit for bit."""
    kernel, channels, filters = draw.one(1, 3, 3, 5), 4 * draw.size(2, 10), 4 * draw.size(4, 12)
    attributes: dict[str, Any] = {
        "pads": (draw.size(0, kernel // 2),) * 4,
        "strides": (draw.size(1, 2), draw.size(1, 2)),
    }
    shape = draw.size(1, 2), kernel + draw.size(4, 9), kernel + draw.size(4, 9), channels
    dtype = draw.one(np.int8, np.uint8)
    bounds = np.iinfo(dtype)
    constants = {
        "xs": np.array(0.02, np.float32),
        "xz": np.array(draw.size(bounds.min, bounds.max), dtype),
        "w": draw.rng.integers(-128, 128, (filters, channels, kernel, kernel)).astype(np.int8),
        "ws": draw.rng.uniform(0.001, 0.01, filters).astype(np.float32),
        "wz": np.zeros(filters, np.int8),
        "ys": np.array(0.3, np.float32),
        "yz": np.array(draw.size(bounds.min, bounds.max), dtype),
        "b": draw.rng.integers(-5000, 5000, filters).astype(np.int32),
    }
    node = Node("QLinearConv", ("x", *constants), ("y",), version=10, attributes=attributes, channels_last=True)

    def check(trial: Trial) -> str:
        x = draw.rng.integers(bounds.min, bounds.max + 1, shape).astype(dtype)
        graph = graph_of({"x": x}, constants, node)
        with forced("64x64*1"):
            (want,) = trial.graph(graph, [x])
        trial.shaders.clear()
        with forced(BYTE_TILE.name):
            (got,) = trial.graph(graph, [x])
        return wrong(got, want.astype(np.float64), np.zeros(want.shape))

    return check


DRAWN: tuple[Callable[[Draw], Check], ...] = (
    *[product] * 4,
    *[convolution] * 4,
    *[spread] * 2,
    attention,
    packed,
    packed,
    sums_of_bytes,
    convolution_of_bytes,
)


def run(trial: Trial, seed: int) -> tuple[str, int, list[str]]:
    """What a seed draws, its runs on units, and what was wrong."""
    draw, tile = Draw(seed), TILES[seed % len(TILES)]
    make = DRAWN[draw.size(0, len(DRAWN) - 1)]
    check, found, on_units = make(draw), list[str](), 0
    names = (
        tile.name,
        *(form.name for form in HEADS),
        f"decoded in {tile.name}",
        f"unpacked for {tile.name}",
        "vectors on units*2",
        "vectors on units*1",
        BYTE_TILE.name,
    )
    with in_tile(tile), forced(*(names if draw.size(0, 1) else reversed(names))):
        for number in range(RUNS):
            trial.shaders.clear()
            problem = check(trial)
            is_on_units = bool(trial.shaders & UNITS)
            on_units += is_on_units
            if problem and (is_on_units or draw.precision != "f16acc"):  # which allows more without units
                found.append(f"{seed}, run {number}: {make.__name__}, {draw.precision}, {tile.name}: {problem}")
    return make.__name__, on_units, found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    asked = parser.parse_args()
    counts, found, start = Counter[str](), list[str](), time.time()
    with units() as trial:
        for seed in range(asked.first, asked.first + asked.count):
            name, on_units, problems = run(trial, seed)
            counts[name] += on_units
            for problem in problems:
                print(problem, flush=True)
            found += problems
            if seed % 25 == 24:
                print(
                    f"# {seed + 1 - asked.first} seeds, {counts.total()} runs on units, {time.time() - start:.0f} s",
                    flush=True,
                )
    print(
        f"seeds {asked.first} to {asked.first + asked.count - 1}: {counts.total()} of {RUNS * asked.count} runs on "
        f"units, {len(found)} wrong, {time.time() - start:.0f} s; {dict(counts)}"
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
