"""Pooling against ONNX Runtime's CPU kernels: what ONNX's own node cases lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.errors import Code
from tests.ops.single_node import check_decline, check_node, node_model, normal, on_cpu

WINDOWS: list[dict[str, Any]] = [
    {"kernel_shape": [3]},
    {"kernel_shape": [5], "strides": [3], "pads": [2, 1]},
    {"kernel_shape": [2, 3]},
    {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 2, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [4, 3], "strides": [3, 2], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "VALID"},
    {"kernel_shape": [2, 3, 2], "strides": [1, 2, 3], "pads": [1, 0, 1, 0, 2, 1]},
    {"kernel_shape": [11, 13]},
]
LATER: list[dict[str, Any]] = [
    {"kernel_shape": [3], "strides": [2], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "strides": [3, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
]
DILATED: list[dict[str, Any]] = [
    {"kernel_shape": [3], "dilations": [4]},
    {"kernel_shape": [3, 2], "dilations": [2, 3], "strides": [2, 1], "pads": [1, 1, 2, 0]},
    {"kernel_shape": [2, 2, 2], "dilations": [2, 1, 3], "ceil_mode": 1, "strides": [2, 2, 2]},
]
SIZES = {1: (2, 3, 31), 2: (2, 3, 11, 13), 3: (1, 2, 5, 7, 11)}


def spatial(window: dict[str, Any]) -> Any:
    return normal(*SIZES[len(window["kernel_shape"])])


@pytest.mark.parametrize("opset", [1, 8, 12, 22])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_max(window: dict[str, Any], opset: int) -> None:
    check_node("MaxPool", [spatial(window)], opset, **window)


@pytest.mark.parametrize("window", LATER + DILATED, ids=str)
def test_max_with_ceil_mode_and_dilations(window: dict[str, Any]) -> None:
    check_node("MaxPool", [spatial(window)], 12, **window)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("window", WINDOWS + LATER + DILATED, ids=str)
def test_max_indices(window: dict[str, Any], order: int) -> None:
    check_node("MaxPool", [spatial(window)], 12, outputs=2, storage_order=order, **window)


def test_max_indices_take_the_first_of_equals() -> None:
    x = np.random.default_rng(7).integers(0, 3, (2, 3, 11, 13)).astype(np.float32)
    check_node("MaxPool", [x], 12, outputs=2, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_max_of_bytes(dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(7).integers(info.min, info.max // 2, (2, 3, 11, 13)).astype(dtype)
    check_node("MaxPool", [x], 12, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 1, 0, 0])


def test_max_of_infinities_and_nan() -> None:
    """ONNX Runtime is of two minds: its vectorised loop drops NaN and its borders turn -inf into the lowest finite
    number."""
    x = normal(1, 3, 6, 7)
    x[0, 0], x[0, 1, 2, 2], x[0, 2, 3, 3] = -np.inf, np.inf, np.nan
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    wanted = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3)).max(axis=(4, 5))
    check_node("MaxPool", [x], 12, kernel_shape=[3, 3], pads=[1, 1, 1, 1], wanted=[wanted])


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize(
    ("opset", "window"),
    [
        *((7, w) for w in WINDOWS),
        *((11, w) for w in WINDOWS + LATER),
        *((19, w) for w in LATER + DILATED),
        *((22, w) for w in LATER + DILATED),
    ],
    ids=str,
)
def test_average(window: dict[str, Any], opset: int, count: int) -> None:
    check_node("AveragePool", [spatial(window)], opset, count_include_pad=count, **window)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_lp(window: dict[str, Any], p: int) -> None:
    check_node("LpPool", [spatial(window)], 11, p=p, **window)


@pytest.mark.parametrize("window", DILATED + LATER, ids=str)
def test_lp_with_dilations(window: dict[str, Any]) -> None:
    check_node("LpPool", [spatial(window)], 18, **window)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("GlobalAveragePool", {}),
        ("GlobalMaxPool", {}),
        ("GlobalLpPool", {}),
        ("GlobalLpPool", {"p": 1}),
        ("GlobalLpPool", {"p": 3}),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(3, 5, 131), (2, 67, 7, 7), (1, 3, 5, 7, 3), (1, 2, 211, 223)], ids=str)
def test_global(op: str, attributes: dict[str, Any], shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    if op == "GlobalLpPool":  # ONNX Runtime adds one after another and so loses digits
        p = attributes.get("p", 2)
        wanted = np.sum(np.abs(x.astype(np.float64)) ** p, axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)
        check_node(op, [x], 11, wanted=[wanted.astype(np.float32)], **attributes)
    else:
        check_node(op, [x], 11, **attributes)


def test_more_elements_than_workgroups_in_one_dimension() -> None:
    check_node("MaxPool", [normal(1, 5, 1000, 1009)], 12, kernel_shape=[2, 2])


@pytest.mark.parametrize(
    ("code", "op", "x", "opset", "attributes"),
    [
        (Code.RANK, "MaxPool", normal(1, 1, 2, 2, 2, 2), 12, {"kernel_shape": [1, 1, 1, 1]}),
        (Code.DTYPE, "MaxPool", np.ones((1, 1, 4)), 12, {"kernel_shape": [2]}),
        (Code.OPSET, "LpPool", normal(1, 1, 4), 1, {"kernel_shape": [2]}),
        (
            Code.ATTRIBUTE,
            "MaxPool",
            normal(1, 1, 9),
            12,
            {"kernel_shape": [2], "dilations": [2], "auto_pad": "SAME_UPPER"},
        ),
        (Code.ATTRIBUTE, "LpPool", normal(1, 1, 4), 11, {"kernel_shape": [2], "p": 0}),
        (Code.ATTRIBUTE, "GlobalLpPool", normal(1, 1, 4), 11, {"p": 0}),
    ],
)
def test_declines(code: Code, op: str, x: Any, opset: int, attributes: dict[str, Any]) -> None:
    check_decline(code, op, [x], opset, **attributes)


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 8, 10), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ((1, 2, 9, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((2, 2, 12), {"kernel_shape": [3], "strides": [3]}),
        ((1, 1, 4, 6, 8), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
        ((1, 3, 130, 66), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ],
)
def test_max_unpool(shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    x, indices = on_cpu(*node_model("MaxPool", [normal(*shape)], 12, outputs=2, **attributes))
    check_node("MaxUnpool", [x, indices], 11, tolerance=0, **attributes)
    wanted = np.zeros(shape, np.float32).reshape(-1)
    wanted[indices.reshape(-1)] = x.reshape(-1)
    check_node("MaxUnpool", [x, indices], 11, tolerance=0, wanted=[wanted.reshape(shape)], **attributes)


def test_max_unpool_declines() -> None:
    check_decline(
        Code.ATTRIBUTE,
        "MaxUnpool",
        [normal(1, 1, 2, 2), np.zeros((1, 1, 2, 2), np.int64), np.array([1, 1, 5, 5])],
        11,
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    check_decline(
        Code.RANK, "MaxUnpool", [normal(1, 1, 2, 2), np.zeros((1, 1, 2, 1), np.int64)], 11, kernel_shape=[2, 2]
    )
