"""The problems that benchmarks of kernels time, by name: layers of networks, one node each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.ir.types import Shape
from ort_gpu_ep.kernels.problems import Problem, Random, normal, problem, weights
from ort_gpu_ep.ops.conv_last import problem_of

Named = tuple[str, Problem]


def layer(
    network: str,
    size: int,
    channels: int,
    filters: int,
    window: int = 1,
    stride: int = 1,
    batch: int = 1,
    groups: int = 1,
) -> Named:
    """A square convolution with SAME padding, without a bias, its images stored channels last."""
    step, images = f"/{stride}" if stride > 1 else "", f" b{batch}" if batch > 1 else ""
    name = f"{network} {window}x{window}{step} {channels}-{filters}{f'/{groups}' if groups > 1 else ''} {size}{images}"
    row = problem_of(
        (batch, channels, size, size),
        (filters, channels // groups, window, window),
        constant=True,
        group=groups,
        pads=(window // 2,) * 4,
        strides=(stride,) * 2,
    )
    return name, replace(row, inputs=row.inputs[:2])


def matrices(network: str, rows: int, k: int, columns: int) -> Named:
    """Many rows times a constant matrix."""
    return f"{network} {rows}x{k}x{columns}", problem("MatMul", 13, normal(rows, k), weights(k, columns))


def attention(heads: int, queries: int, keys: int, width: int) -> Named:
    q, k = normal(1, heads, queries, width), normal(1, heads, keys, width)
    return f"attention {heads} x {width}, {queries} over {keys}", problem("Attention", 23, q, k, k)


def recurrent(op: str, steps: int, inputs: int, hidden: int, **attributes: Any) -> Named:
    gates = {"LSTM": 4, "GRU": 3}[op] * hidden
    name = f"{op} {hidden}, {steps} steps of {inputs}"
    constants = weights(1, gates, inputs), weights(1, gates, hidden), weights(1, 2 * gates)
    return name, problem(op, 14, normal(steps, 1, inputs), *constants, hidden_size=hidden, **attributes)


def vector(k: int, n: int, transposed: int, rows: int = 1) -> Named:
    """A fully connected layer with a bias; transposed: as exporters write it."""
    matrix = weights(n, k) if transposed else weights(k, n)
    name = f"{rows} x {k} x {n}, {'rows' if transposed else 'columns'}"
    return name, problem("Gemm", 13, normal(rows, k), matrix, weights(n), transB=transposed)


def packed(rows: int, k: int, n: int, dtype: str = "float32") -> Named:
    """Vectors times a matrix of 4-bit codes in blocks of 32, as language models have it."""
    codes = Random((n, k // 32, 16), "uint8", 0, 256, constant=True)
    scales = Random((n * k // 32,), dtype, scale=0.01, constant=True)
    row = problem("MatMulNBits", 1, Random((rows, k), dtype), codes, scales, K=k, N=n, bits=4, block_size=32)
    return f"4-bit {rows} x {k} x {n}, {dtype}", replace(row, domain="com.microsoft")


def mixture(tokens: int, width: int, hidden: int, experts: int, active: int) -> Named:
    """Perceptrons of 4-bit codes in blocks of 32, of which a token meets some; gates and ups in turn."""

    def layer_of(rows: int, k: int) -> tuple[Random, Random, Random]:
        codes = Random((experts, rows, k // 2), "uint8", 0, 256, constant=True)
        return codes, Random((experts, rows, k // 32), scale=0.01, constant=True), weights(experts, rows)

    row = problem(
        "QMoE",
        1,
        normal(tokens, width),
        normal(tokens, experts),
        *layer_of(2 * hidden, width),
        *layer_of(width, hidden),
        k=active,
        activation_type="swiglu",
        swiglu_fusion=1,
        normalize_routing_weights=1,
        expert_weight_bits=4,
        block_size=32,
    )
    name = f"mixture of {experts} x {hidden}, {tokens} x {width}"
    return name, replace(row, domain="com.microsoft")


def normalisation(rows: int, length: int) -> Named:
    row = problem("LayerNormalization", 17, normal(rows, length), weights(length), weights(length))
    return f"normalisation {rows} x {length}", row


RESNET50: Mapping[str, tuple[Problem, int]] = {
    name: (row, count)
    for (name, row), count in (
        (layer("resnet50", 224, 3, 64, 7, 2), 1),
        (layer("resnet50", 56, 64, 64), 1),
        (layer("resnet50", 56, 64, 256), 4),
        (layer("resnet50", 56, 256, 64), 2),
        (layer("resnet50", 56, 64, 64, 3), 3),
        (layer("resnet50", 56, 256, 128), 1),
        (layer("resnet50", 56, 256, 512, 1, 2), 1),
        (layer("resnet50", 56, 128, 128, 3, 2), 1),
        (layer("resnet50", 28, 128, 128, 3), 3),
        (layer("resnet50", 28, 128, 512), 4),
        (layer("resnet50", 28, 512, 128), 3),
        (layer("resnet50", 28, 512, 256), 1),
        (layer("resnet50", 28, 512, 1024, 1, 2), 1),
        (layer("resnet50", 28, 256, 256, 3, 2), 1),
        (layer("resnet50", 14, 256, 256, 3), 5),
        (layer("resnet50", 14, 256, 1024), 6),
        (layer("resnet50", 14, 1024, 256), 5),
        (layer("resnet50", 14, 1024, 512), 1),
        (layer("resnet50", 14, 1024, 2048, 1, 2), 1),
        (layer("resnet50", 14, 512, 512, 3, 2), 1),
        (layer("resnet50", 7, 512, 512, 3), 2),
        (layer("resnet50", 7, 512, 2048), 3),
        (layer("resnet50", 7, 2048, 512), 2),
    )
}
"""Each convolution, and how often the network has it."""

TILED: Mapping[str, Problem] = {
    **{name: row for name, (row, _) in RESNET50.items()},
    **dict(
        (
            layer("alexnet", 27, 64, 192, 5),
            layer("alexnet", 13, 192, 384, 3),
            layer("inception", 147, 32, 64, 3),
            layer("inception", 73, 80, 192, 3),
            layer("inception", 35, 288, 384, 3, 2),
            layer("mobilenet", 112, 32, 16),
            layer("mobilenet", 112, 16, 96),
            layer("mobilenet", 56, 144, 24),
            layer("mobilenet", 28, 192, 32),
            layer("mobilenet", 14, 384, 64),
            layer("mobilenet", 14, 96, 576),
            layer("mobilenet", 7, 960, 160),
            layer("mobilenet", 7, 320, 1280),
            matrices("encoder", 128, 384, 384),
            matrices("encoder", 128, 384, 1536),
            matrices("encoder", 128, 1536, 384),
            matrices("sgemm", 1024, 1024, 1024),
            matrices("sgemm", 4096, 4096, 4096),
            layer("resnet50", 56, 64, 64, 3, batch=32),
            layer("resnet50", 56, 64, 256, batch=32),
            layer("resnet50", 28, 128, 512, batch=32),
            layer("resnet50", 14, 256, 256, 3, batch=32),
            layer("resnet50", 14, 256, 1024, batch=32),
            layer("resnet50", 14, 1024, 256, batch=32),
            layer("resnet50", 7, 512, 512, 3, batch=32),
            layer("resnet50", 7, 512, 2048, batch=32),
            layer("resnet50", 7, 2048, 512, batch=32),
            layer("mobilenet", 112, 16, 96, batch=32),
            layer("mobilenet", 56, 24, 144, batch=32),
            layer("mobilenet", 28, 32, 192, batch=32),
            layer("mobilenet", 14, 64, 384, batch=32),
            layer("mobilenet", 14, 96, 576, batch=32),
            layer("mobilenet", 7, 960, 160, batch=32),
        )
    ),
}
"""What product.wgsl runs in tiles."""

IN_FORMS: Mapping[str, Problem] = dict(
    (
        attention(12, 128, 128, 32),
        attention(12, 512, 512, 32),
        attention(12, 256, 256, 64),
        attention(8, 1, 1024, 32),
        attention(32, 1, 2048, 128),
        attention(8, 1500, 1500, 64),
        attention(12, 1370, 1370, 64),
        attention(16, 4096, 4096, 40),
        attention(16, 4096, 77, 40),
        attention(16, 729, 729, 72),
        attention(16, 256, 256, 160),
        attention(8, 512, 512, 256),
        recurrent("LSTM", 128, 9, 32),
        recurrent("LSTM", 128, 64, 64),
        recurrent("LSTM", 128, 512, 64),
        recurrent("GRU", 128, 9, 32, linear_before_reset=1),
        vector(9216, 4096, 1),
        vector(4096, 4096, 1),
        vector(4096, 1000, 1),
        vector(2048, 1000, 1),
        vector(1280, 1000, 1),
        vector(9216, 4096, 0),
        vector(2048, 1000, 0),
        vector(256, 512, 0),
        packed(4, 4096, 14336),
        packed(8, 4096, 14336),
        packed(16, 4096, 14336),
        packed(16, 4096, 4096),
        packed(16, 14336, 4096),
        packed(16, 4096, 14336, "float16"),
        packed(16, 14336, 4096, "float16"),
        mixture(1, 2880, 2880, 32, 4),
        mixture(16, 2880, 2880, 32, 4),
        normalisation(128, 384),
        normalisation(1500, 512),
        ("softmax 1 x 1000", problem("Softmax", 13, normal(1, 1000))),
        ("softmax 1536 x 128", problem("Softmax", 13, normal(1536, 128))),
    )
)
"""What else has several forms."""

PROBLEMS: Mapping[str, Problem] = {
    **TILED,
    **IN_FORMS,
    **dict(
        (
            layer("mobilenet", 112, 32, 32, 3, groups=32),
            layer("mobilenet", 56, 144, 144, 3, 2, groups=144),
            layer("mobilenet", 7, 960, 960, 3, groups=960),
            layer("resnext50", 56, 128, 128, 3, groups=32),
            layer("mobilenet", 56, 96, 24),
            layer("mobilenet", 7, 960, 320),
            layer("mobilenet", 1, 96, 24),
            ("whisper 9 80-512 1500", problem("Conv", 11, normal(1, 80, 1500), weights(512, 80, 9), pads=(4, 4))),
            (
                "transposed 4x4/2 128-64 28",
                replace(
                    problem_of(
                        (1, 128, 28, 28),
                        (128, 64, 4, 4),
                        "ConvTranspose",
                        constant=True,
                        pads=(1, 1, 1, 1),
                        strides=(2, 2),
                    ),
                    last=None,
                ),
            ),
            matrices("sgemm", 512, 512, 512),
            ("matmul 12 x 128 64 128", problem("MatMul", 13, normal(12, 128, 64), normal(12, 64, 128))),
            vector(2048, 1000, 1, rows=8),
        )
    ),
}
"""All of them."""


def graph_of(row: Problem, values: Iterable[Array | None] | None = None) -> Graph:
    """values: of its inputs; drawn where there are none."""
    return row.graph(row.draw(np.random.default_rng(0)) if values is None else [*values])[0]


def batched(row: Problem, images: int) -> Problem:
    """A convolution of so many images."""
    x, *others = row.inputs
    assert isinstance(x, Random)
    return replace(row, inputs=(normal(images, *x.shape[1:]), *others))


def _shapes(row: Problem) -> list[Shape]:
    return [operand.shape for operand in row.inputs if isinstance(operand, Random)]


def flops_of(row: Problem) -> int:
    """Floating-point operations of its sums of products: 0 where it has none."""
    x, *others = _shapes(row)
    if row.op == "Conv":
        w, pads, strides = others[0], row.attributes["pads"], row.attributes.get("strides", (1,) * (len(x) - 2))
        rank = len(x) - 2
        out = [(x[2 + k] + pads[k] + pads[rank + k] - w[2 + k]) // strides[k] + 1 for k in range(rank)]
        return 2 * x[0] * math.prod(out) * math.prod(w)
    if row.op == "ConvTranspose":
        return 2 * math.prod(x) * math.prod(others[0][1:])
    if row.op in ("MatMul", "Gemm"):
        return 2 * math.prod(x) * others[0][0 if row.attributes.get("transB") else -1]
    if row.op == "MatMulNBits":
        return 2 * math.prod(x) * int(row.attributes["N"])
    if row.op == "QMoE":
        return 2 * x[0] * int(row.attributes["k"]) * sum(math.prod(codes[1:]) * 2 for codes in others[1::3])
    if row.op == "Attention":
        return 4 * math.prod(x[:3]) * math.prod(others[0][2:])
    if row.op in ("LSTM", "GRU"):
        return 2 * x[0] * (math.prod(others[0]) + math.prod(others[1]))
    return 0


def nbytes_of(row: Problem) -> int:
    """Bytes of its inputs: at least these are read."""
    operands = [operand for operand in row.inputs if isinstance(operand, Random)]
    nbytes = sum(np.dtype(operand.dtype).itemsize * math.prod(operand.shape) for operand in operands)
    if row.op == "QMoE":  # the experts of one token
        return nbytes * int(row.attributes["k"]) // operands[1].shape[1]
    return nbytes
