"""ConvInteger and QLinearConv against ONNX Runtime's CPU kernels: the same integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.errors import Code
from ort_gpu_ep.scheduler.plan import Dispatch
from tests.daily import part
from tests.ops.single_node import check_decline, check_node, node_model, onnx_cases, run_direct
from tests.unit.graphs import graph_of, plan_of

RNG = np.random.default_rng(5)
SHAPES = [
    ((2, 3, 9, 11), (13, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ((1, 16, 8, 8), (32, 16, 1, 1), {}),
    ((1, 6, 7, 9), (6, 1, 3, 3), {"group": 6, "pads": [1, 0, 1, 2]}),
    ((2, 8, 9, 5), (16, 4, 3, 2), {"group": 2, "dilations": [2, 1]}),
    ((1, 3, 30, 31), (70, 3, 5, 5), {"auto_pad": "SAME_UPPER"}),
    ((1, 5, 17), (7, 5, 4), {"pads": [2, 1]}),
    ((1, 2, 5, 6, 7), (9, 2, 3, 3, 2), {"pads": [0, 1, 0, 1, 0, 1]}),
]


def integers(dtype: str, *shape: int) -> Any:
    limits = np.iinfo(dtype)
    return np.asarray(RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True))


@pytest.mark.parametrize(
    ("kind", "zero", "x", "w", "attributes"), part(["uint8", "int8"], ["none", "x", "both"], SHAPES)
)
def test_conv_integer(kind: str, zero: str, x: Any, w: Any, attributes: Any) -> None:
    inputs = [integers("uint8", *x), integers(kind, *w)]
    if zero != "none":
        inputs.append(integers("uint8"))
    if zero == "both":
        inputs.append(integers(kind))
    check_node("ConvInteger", inputs, 10, **attributes)


@pytest.mark.parametrize(("x", "w", "attributes"), SHAPES)
@pytest.mark.parametrize(
    ("kind", "weights", "out"), [("uint8", "uint8", "uint8"), ("uint8", "int8", "uint8"), ("int8", "int8", "int8")]
)
@pytest.mark.parametrize("per_filter", [False, True])
def test_qlinear_conv(kind: str, weights: str, out: str, per_filter: bool, x: Any, w: Any, attributes: Any) -> None:
    count = w[:1] if per_filter else ()
    k = np.prod(w[1:])
    x_scale, w_scale = np.float32(0.02), np.asarray(RNG.uniform(0.005, 0.02, count), "f")
    y_scale = np.asarray(x_scale * np.mean(w_scale) * 60 * np.sqrt(k), "f")  # lets some results saturate
    zero = np.zeros(count, weights) if weights == "int8" else np.full(count, 113, weights)
    inputs = [
        integers(kind, *x),
        np.asarray(x_scale),
        integers(kind),
        integers(weights, *w),
        w_scale,
        zero,
        y_scale,
        integers(out),
        RNG.integers(-5000, 5000, w[0]).astype("int32"),
    ]
    check_node("QLinearConv", inputs, 10, **attributes)
    check_node("QLinearConv", inputs[:8], 10, known=[3, 4, 5], **attributes)


@pytest.mark.parametrize("size", [6, 5])
def test_the_product_itself_writes_bytes_where_four_of_a_row_share_a_word(size: int) -> None:
    constants = {"s": np.float32(0.02), "z": np.uint8(7), "w": integers("int8", 6, 4, 1, 1), "v": np.int8(0)}
    text = f"(uint8[1, 4, {size}, {size}] x) => (y) {{ y = QLinearConv(x, s, z, w, s, v, s, z) }}"
    plan = plan_of(graph_of(text, constants))
    assert [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)] == (
        ["integer_product.wgsl"] if size == 6 else ["integer_product.wgsl", "requantize.wgsl"]
    )


@pytest.mark.parametrize("op", ["ConvInteger", "QLinearConv"])
def test_onnxs_own_cases(op: str) -> None:
    found = list(onnx_cases(op))
    assert found
    for _, model, feeds, wanted in found:
        for got, want in zip(run_direct(model, feeds), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_every_filter_may_have_a_zero_point() -> None:
    """Which ONNX Runtime's CPU does not take."""
    x, w, zeros = integers("uint8", 1, 4, 5, 6), integers("int8", 6, 2, 3, 3), integers("int8", 6)
    model, feeds = node_model("ConvInteger", [x, w, np.uint8(7), zeros], 10, group=2)
    patches = np.lib.stride_tricks.sliding_window_view(x.astype(int) - 7, (3, 3), axis=(2, 3)).reshape(2, 2, 3, 4, 3, 3)
    centred = (w.astype(int) - zeros[:, None, None, None]).reshape(2, 3, 2, 3, 3)
    wanted = np.einsum("gchwij,gfcij->gfhw", patches, centred).reshape(1, 6, 3, 4)
    np.testing.assert_array_equal(run_direct(model, feeds)[0], wanted)


def test_declines() -> None:
    x, w = integers("uint8", 1, 4, 5, 6), integers("uint8", 6, 4, 3, 3)
    check_decline(Code.RANK, "ConvInteger", [x, integers("uint8", 6, 3, 3, 3)], 10)
    check_decline(Code.RANK, "ConvInteger", [x, w, integers("uint8", 4)], 10)
    scale, zero = np.float32(0.1), np.uint8(3)
    check_decline(Code.RANK, "QLinearConv", [x, np.full(2, 0.1, "f"), zero, w, scale, zero, scale, zero], 10)
    check_decline(Code.RANK, "QLinearConv", [x, scale, zero, w, np.full(4, 0.1, "f"), zero, scale, zero], 10)
    check_decline(Code.RANK, "QLinearConv", [x, scale, zero, w, scale, zero, np.full(6, 0.1, "f"), zero], 10)
