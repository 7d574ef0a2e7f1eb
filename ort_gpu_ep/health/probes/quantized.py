"""8-bit quantization."""

from __future__ import annotations

from typing import Any

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, graph_of, probe, reference, solve
from ort_gpu_ep.health.probes.tiles import LAST_ROW, SMALL, chosen
from ort_gpu_ep.ir.graph import Array, Graph, Node
from ort_gpu_ep.ir.types import Shape
from ort_gpu_ep.kernels.problems import normal, problem
from ort_gpu_ep.ops.tiles import TILES


@probe("quantization", "kernels", disables=("quantize.wgsl", "dequantize.wgsl"))
def quantization(trial: Trial) -> str:
    """QuantizeLinear by scalar and by channel, DequantizeLinear. Values on a tie may differ by one from the 64-bit
    reference."""
    for _ in range(trial.rounds):
        x, scale = trial.normal(7, 13), abs(trial.normal(13)) + np.float32(0.1)
        for zero, low, high in ((np.uint8, 0, 255), (np.int8, -128, 127)):
            zeros = trial.integers(0, 100, 13).astype(zero)
            got = trial.node("QuantizeLinear", 13, [x, scale, zeros], axis=1)[0]
            exact = x.astype(np.float64) / scale
            want = np.clip(np.rint(exact) + zeros, low, high)
            tie = abs(abs(exact - np.floor(exact)) - 0.5) < 1e-4
            agree("QuantizeLinear", np.where(tie, want, got), want)
            codes = problem("DequantizeLinear", 13, normal(7, 13), normal(13), normal(13), axis=1)
            solve(trial, codes, [got, scale, zeros])
    return "uint8 and int8"


@probe("quantization in float16", "kernels", disables=("quantize_halves.wgsl",))
def halves(trial: Trial) -> str:
    """QuantizeLinear by channel whose quotient is rounded to float16: rounding that of float32 once more gives the
    same."""
    for _ in range(trial.rounds):
        x, scale = (
            (10 * trial.normal(7, 13)).astype(np.float16),
            (abs(trial.normal(13)) + np.float32(0.1)).astype(np.float16),
        )
        zeros = trial.integers(0, 100, 13).astype(np.uint8)
        got = trial.node("QuantizeLinear", 23, [x, scale, zeros], axis=1)[0]
        agree("QuantizeLinear", got, np.clip(np.rint((x / scale).astype(np.float64)) + zeros, 0, 255))
    return "uint8"


@probe("dynamic quantization", "kernels", disables=("quantize_range.wgsl", "quantize_parameter.wgsl", "quantize.wgsl"))
def dynamic(trial: Trial) -> str:
    """The scale and zero point of tensors around a part's size."""
    for (n,) in trial.some((5, 257, 40_001), of=2):
        x = trial.normal(n)
        y, scale, zero = trial.node("DynamicQuantizeLinear", 11, [x], outputs=3)
        low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
        agree(f"scale of {n}", scale, np.array((high - low) / 255))
        agree(f"zero point of {n}", zero, np.array(np.rint(-low / ((high - low) / 255)), np.uint8))
        back = (y.astype(np.float64) - float(zero)) * float(scale)
        agree(
            f"values of {n}",
            back / abs(x).max(),
            x.astype(np.float64) / abs(x).max(),
            1.01 * float(scale) / float(abs(x).max()),
        )
    return "3 sizes"


def _convolution(
    trial: Trial, kind: type[np.uint8 | np.int8], x: Shape, w: Shape, **attributes: Any
) -> tuple[Graph, Array, Array]:
    """QLinearConv with bias, channels last; against the sums in 64 bits. Values on a tie may differ by one. Gives
    graph, x and weights."""
    image = trial.integers(0, 127, *x).astype(kind)
    weights, bias = trial.integers(-127, 128, *w).astype(np.int8), trial.integers(-3000, 3000, w[0]).astype(np.int32)
    zero, scales = kind(57), (abs(trial.normal(w[0])) + np.float32(0.5)) / np.float32(100)
    planes = w[1] <= 4 and attributes.get("group", 1) == 1
    stored = image if planes else np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    arrays: dict[str, Array] = {
        name: np.asarray(array)
        for name, array in (
            ("x", stored),
            ("xs", np.float32(0.02)),
            ("xz", zero),
            ("w", weights),
            ("ws", scales),
            ("wz", np.int8(0)),
            ("ys", np.float32(0.3)),
            ("yz", kind(31)),
            ("c", bias),
        )
    }
    node = Node("QLinearConv", tuple(arrays), ("y",), "", "", 10, attributes, channels_last=True)
    graph = graph_of({"x": arrays.pop("x")}, arrays, node)
    (got,) = trial.graph(graph, [stored])
    (sums,) = reference(
        "Conv", 11, [(a.astype(np.float64)) for a in (image.astype(np.int64) - int(zero), weights, bias)], **attributes
    )
    exact = sums.transpose(0, 2, 3, 1) * (0.02 * scales.astype(np.float64) / 0.3)
    limits, tie = np.iinfo(kind), abs(abs(exact - np.floor(exact)) - 0.5) < 1e-3
    want = np.clip(np.rint(exact) + 31, limits.min, limits.max)
    agree(f"QLinearConv {list(x)} {list(w)} {attributes or ''}, channels last", np.where(tie, want, got), want)
    return graph, stored, weights


@probe("product of bytes in tiles", "kernels", disables=("byte_product.wgsl",), fault=LAST_ROW)
def byte_tiles(trial: Trial) -> str:
    """A window and a point in every tile that the adapter can run, around its edges; planes; the depth of K no multiple
    of 16."""
    ran = [SMALL] if trial.gpu.info.is_software else [tile for tile in TILES if tile.fits(trial.gpu.limits)]
    for _ in range(trial.rounds):
        for tile, (window, channels) in trial.some(ran, ((2, 32), (1, 20)), of=2):
            weights = (min(tile.m, 32) + 4, channels, window, window)
            with chosen(tile, 1):
                _convolution(trial, np.uint8, (1, channels, 5, 13), weights, pads=(window // 2,) * 4)
        with chosen(SMALL, 1):
            _convolution(trial, np.int8, (1, 3, 17, 15), (12, 3, 5, 5), pads=(2, 2, 2, 2), strides=(2, 2))
    return f"{len(ran)} tiles"


@probe(
    "depthwise of bytes",
    "kernels",
    disables=("byte_depthwise.wgsl",),
    fault=(r"if \(i >= ROWS \* C4\)", "if (i + 1u >= ROWS * C4)"),
)
def byte_depthwise(trial: Trial) -> str:
    """With strides, dilations, a batch."""
    for _ in range(trial.rounds):
        _convolution(trial, np.uint8, (2, 12, 9, 7), (12, 1, 3, 3), group=12, pads=(1, 1, 1, 1), strides=(2, 2))
        _convolution(trial, np.int8, (1, 8, 13, 9), (8, 1, 3, 2), group=8, dilations=(2, 3))
    return "2 windows"


@probe("sums of columns", "kernels", disables=("column_sums.wgsl",))
def sums(trial: Trial) -> str:
    """MatMulInteger of a constant matrix, with zero points of 128 and others."""
    for ((kind, zero),) in trial.repeated(((np.uint8, 140), (np.int8, -3)), of=2):
        a, b = trial.integers(0, 100, 33, 36).astype(kind), trial.integers(-127, 128, 36, 20).astype(np.int8)
        with chosen(SMALL, 1):
            (got,) = trial.node("MatMulInteger", 10, [a, None, np.asarray(kind(zero))], {1: b})
        agree("MatMulInteger", got, (a.astype(np.int64) - zero) @ b.astype(np.int64), 0.0)
    return "2 zero points"


@probe("words of weights", "kernels", disables=("pack_bytes.wgsl", "unpack_bytes.wgsl"))
def words(trial: Trial) -> str:
    """Bytes of windows and of points: packed once, used, and given back bit for bit."""
    for ((width, shape),) in trial.repeated(((13, (36, 32, 2, 2)), (7, (16, 128, 1, 1))), of=2):
        with chosen(SMALL, 1):  # the first is one of `byte_tiles`: its kernels are there
            graph, image, weights = _convolution(
                trial, np.uint8, (1, shape[1], 5, width), shape, pads=(shape[2] // 2,) * 4
            )
            stored = trial.weight(graph, [image], "w")
        agree(f"weights {list(shape)} given back", stored, weights, 0.0)
    return "2 shapes"


@probe("mean of bytes", "kernels", disables=("global_average_bytes.wgsl",))
def mean(trial: Trial) -> str:
    """QLinearGlobalAveragePool of few and many places."""
    for shape, kind in trial.some(((2, 5, 3, 3), (1, 7, 23, 31)), (np.uint8, np.int8)):
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        image = trial.integers(low, high, *shape).astype(kind)
        numbers = [
            np.asarray(n, t) for n, t in ((0.03, np.float32), (low + 60, kind), (0.011, np.float32), (low + 91, kind))
        ]
        (got,) = trial.node("QLinearGlobalAveragePool", 1, [image, *numbers], domain="com.microsoft")
        exact = (image.astype(np.float64).mean((2, 3), keepdims=True) - float(low + 60)) * 0.03 / 0.011
        agree(f"mean of {list(shape)}", got, np.clip(np.rint(exact) + low + 91, low, high), 0.005)
    return "2 sizes, uint8 and int8"
