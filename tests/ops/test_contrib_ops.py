"""Ops of com.microsoft that optimisers and exporters of transformers write: against ONNX Runtime's CPU, or numpy where
that has no kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from onnx import helper

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from tests.direct import run_direct
from tests.ops.single_node import model_of, on_cpu

ORT = "com.microsoft"
NORMS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")


def normal(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng([3, *shape]).standard_normal(shape).astype(dtype)


def agree(got: Any, wanted: Any, half: bool = False) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    tolerance = 2e-3 if half else 2e-6
    np.testing.assert_allclose(
        got.astype("d"), wanted.astype("d"), rtol=tolerance, atol=tolerance * np.abs(wanted).max()
    )


def as_on_cpu(op: str, inputs: Any, outputs: int = 1, domain: str = ORT, **attributes: Any) -> None:
    model, feeds = model_of(op, inputs, outputs, domain=domain, **attributes)
    wanted = on_cpu(model, feeds)
    for got, expected in zip(run_direct(model, feeds), wanted, strict=True):
        agree(got, expected, expected.dtype == np.float16)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize(
    ("shape", "skip"),
    [
        ((2, 5, 64), (2, 5, 64)),
        ((3, 7, 132), (7, 132)),
        ((2, 3, 68), (1, 3, 68)),
        ((9, 1028), (9, 1028)),
        ((1, 1, 4100), (1, 1, 4100)),
    ],
    ids=str,
)
def test_skip_normalization(shape: tuple[int, ...], skip: tuple[int, ...], op: str, dtype: str) -> None:
    n = shape[-1]
    beta = (normal(n, dtype=dtype) / 3,) if op == NORMS[0] else ()
    as_on_cpu(
        op,
        (
            normal(*shape, dtype=dtype),
            normal(*skip, dtype=dtype),
            normal(n, dtype=dtype),
            *beta,
            normal(n, dtype=dtype) * 2,
        ),
        epsilon=1e-5,
    )


@pytest.mark.parametrize("op", NORMS)
def test_the_sum_is_an_output(op: str) -> None:
    """Behind two outputs that are left out, as language models have it; without beta and bias, too."""
    x, skip, scale = normal(2, 6, 96), normal(2, 6, 96), normal(96)
    model, feeds = model_of(op, (x, skip, scale), 1, domain=ORT)
    model.graph.node[0].output.extend(["", "", "sum"])
    model.graph.output.append(helper.make_empty_tensor_value_info("sum"))
    got, total = run_direct(model, feeds)
    agree(total, x + skip)
    agree(got, on_cpu(model, feeds)[0])


def test_skip_normalization_declines() -> None:
    for inputs in ((normal(2, 3, 6), normal(2, 3, 6), normal(6)), (normal(2, 3, 8), normal(2, 1, 8), normal(8))):
        model, feeds = model_of(NORMS[1], inputs, domain=ORT)
        with pytest.raises(UnsupportedNodeError) as caught:
            run_direct(model, feeds)
        assert caught.value.code is Code.RANK


@pytest.mark.parametrize("shape", [(3, 5, 96), (7, 33)], ids=str)
def test_simplified_layer_normalization(shape: tuple[int, ...]) -> None:
    """In ONNX's own domain, whose schemas do not have it."""
    for dtype in ("float32", "float16"):
        as_on_cpu(
            "SimplifiedLayerNormalization",
            (normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype)),
            domain="",
            epsilon=1e-6,
        )


@pytest.mark.parametrize("op", ["Gelu", "QuickGelu", "FastGelu", "BiasGelu"])
def test_gelu(op: str) -> None:
    x, bias = normal(2, 9, 36) * 3, normal(36)
    as_on_cpu(op, (x, bias) if op == "BiasGelu" else (x,))
    if op == "FastGelu":
        as_on_cpu(op, (x, bias))


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def test_what_onnxruntimes_cpu_has_not() -> None:
    x, bias, skip = normal(2, 9, 36), normal(36), normal(2, 9, 36)
    model, feeds = model_of("BiasAdd", (x, bias, skip), domain=ORT)
    agree(run_direct(model, feeds)[0], x + bias + skip)
    model, feeds = model_of("BiasSplitGelu", (x, bias), domain=ORT)
    left, right = np.split((x + bias).astype("d"), 2, axis=-1)
    agree(run_direct(model, feeds)[0], (left * gelu(right)).astype("f"))


@pytest.mark.parametrize(
    ("a", "b"),
    [((5, 8), (8, 12)), ((2, 3, 17, 20), (2, 3, 20, 24)), ((4, 7, 64), (64, 32)), ((3, 16, 16), (1, 16, 16))],
    ids=str,
)
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul(a: tuple[int, ...], b: tuple[int, ...], turned: tuple[int, int]) -> None:
    left = (*a[:-2], a[-1], a[-2]) if turned[0] else a
    right = (*b[:-2], b[-1], b[-2]) if turned[1] else b
    as_on_cpu("FusedMatMul", (normal(*left), normal(*right)), transA=turned[0], transB=turned[1], alpha=0.125)
