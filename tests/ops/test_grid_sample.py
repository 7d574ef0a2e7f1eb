"""GridSample against ONNX Runtime's CPU kernel, and against ONNX's reference where that has none: what ONNX's own node
cases lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from ort_gpu_ep.errors import Code
from tests.direct import run_direct
from tests.ops.single_node import Array, assert_agree, check_decline, check_node, data, model_of, node_model, normal

PADDINGS = ("zeros", "border", "reflection")


def places(*shape: int, reach: float = 1.6) -> Array:
    """Places in an image and beyond its edges."""
    return np.random.default_rng([3, *shape]).uniform(-reach, reach, shape).astype(np.float32)


def by_reference(inputs: list[Array], **attributes: Any) -> list[Array]:
    model, feeds = node_model("GridSample", inputs, 20, **attributes)
    return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)]


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(
    ("opset", "mode"),
    [(16, "bilinear"), (16, "nearest"), (16, "bicubic"), (20, "linear"), (22, "nearest"), (22, "cubic")],
)
def test_images(opset: int, mode: str, padding: str, align: int) -> None:
    for size, out in (((5, 7), (13, 11)), ((31, 2), (3, 67)), ((64, 65), (17, 1))):
        inputs = [normal(2, 3, *size), places(2, *out, 2)]
        check_node("GridSample", inputs, opset, tolerance=1e-5, mode=mode, padding_mode=padding, align_corners=align)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_volumes(mode: str, padding: str, align: int) -> None:
    inputs = [normal(2, 3, 5, 7, 4), places(2, 3, 5, 11, 3)]
    check_node("GridSample", inputs, 20, tolerance=1e-5, mode=mode, padding_mode=padding, align_corners=align)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("shape", "out"), [((2, 3, 17), (2, 41, 1)), ((1, 2, 3, 5, 4), (1, 2, 3, 2, 3))])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_lines_and_cubic_volumes(mode: str, shape: tuple[int, ...], out: tuple[int, ...], padding: str) -> None:
    """ONNX Runtime's CPU kernel takes neither."""
    inputs = [normal(*shape), places(*out)]
    wanted = by_reference(inputs, mode=mode, padding_mode=padding)
    check_node("GridSample", inputs, 20, tolerance=1e-5, wanted=wanted, mode=mode, padding_mode=padding)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
def test_ties_and_edges(padding: str, align: int) -> None:
    """Places exactly on and between elements, and on the edges: halves go to the even element."""
    steps = np.linspace(-1.5, 1.5, 49, dtype=np.float32)
    grid = np.stack(np.meshgrid(steps, steps), -1)[None]
    for mode in ("nearest", "linear"):
        check_node("GridSample", [normal(1, 2, 4, 8), grid], 20, mode=mode, padding_mode=padding, align_corners=align)


def test_far_away_and_nowhere() -> None:
    """A place at 1e30 is outside; one that is no number gives some element, or NaN, and nothing else suffers."""
    grid = np.array([[[[1e30, 0.1], [-1e30, -1e30], [np.nan, 0.0], [np.inf, 0.2], [0.1, 0.3]]]], np.float32)
    x = normal(1, 1, 5, 7)
    for mode in ("nearest", "linear", "cubic"):
        (zeros,) = run_direct(*node_model("GridSample", [x, grid], 20, mode=mode))
        assert_agree(zeros[..., :2], np.zeros((1, 1, 1, 2), np.float32))
        (border,) = run_direct(*node_model("GridSample", [x, grid], 20, mode=mode, padding_mode="border"))
        (reflected,) = run_direct(*node_model("GridSample", [x, grid], 20, mode=mode, padding_mode="reflection"))
        assert np.isfinite(border[..., :2]).all()
        assert np.isfinite(reflected[..., 4]).all()
        for got in (zeros, border, reflected):
            assert_agree(got[..., 4:], by_reference([x, grid[:, :, 4:]], mode=mode)[0], 1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "uint32", "int64", "uint64", "bool"])
def test_nearest_moves_any_type(dtype: str) -> None:
    x = data(1, 2, 5, 7, dtype=dtype)
    inputs = [x, places(1, 9, 11, 2)]
    wanted = (
        by_reference([x.astype(np.float64), inputs[1]], mode="nearest")
        if dtype != "bool"
        else by_reference(inputs, mode="nearest")
    )
    model, feeds = node_model("GridSample", inputs, 20, mode="nearest")
    (got,) = run_direct(model, feeds)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got.astype(np.float64), wanted[0])
    if dtype != "bool":
        check_decline(Code.DTYPE, "GridSample", inputs, 20, mode="linear")


def test_one_element_and_none() -> None:
    for padding in PADDINGS:
        for align in (0, 1):
            (got,) = run_direct(
                *node_model(
                    "GridSample",
                    [normal(1, 1, 1, 1), places(1, 3, 5, 2)],
                    20,
                    mode="nearest",
                    padding_mode=padding,
                    align_corners=align,
                )
            )
            assert np.isfinite(got).all()
    (got,) = run_direct(*node_model("GridSample", [normal(1, 2, 5, 7), places(1, 0, 3, 2)], 20, mode="linear"))
    assert got.shape == (1, 2, 0, 3)
    check_decline(Code.ATTRIBUTE, "GridSample", [normal(1, 2, 0, 7), places(1, 3, 3, 2)], 20, mode="linear")


def test_more_than_65535_workgroups() -> None:
    check_node("GridSample", [normal(1, 3, 11, 13), places(1, 1201, 1171, 2)], 20, tolerance=1e-5, mode="linear")


def test_a_fused_step() -> None:
    from onnx import helper

    model, feeds = model_of(
        "GridSample",
        (normal(1, 2, 5, 7), places(1, 9, 11, 2)),
        opset=20,
        after=(helper.make_node("Tanh", ["y0"], ["y"]),),
        mode="linear",
    )
    (wanted,) = by_reference(list(feeds.values()), mode="linear")
    assert_agree(run_direct(model, feeds)[0], np.tanh(wanted), 1e-5)


@pytest.mark.parametrize(
    ("shapes", "code", "attributes"),
    [
        (((1, 2, 5, 7), (1, 3, 3, 3)), Code.RANK, {}),
        (((2, 2, 5, 7), (1, 3, 3, 2)), Code.RANK, {}),
        (((1, 2, 3, 4, 5, 6), (1, 2, 2, 2, 2, 4)), Code.RANK, {}),
        (((1, 2, 5, 7), (1, 3, 3, 2)), Code.ATTRIBUTE, {"mode": "spline"}),
        (((1, 2, 5, 7), (1, 3, 3, 2)), Code.ATTRIBUTE, {"padding_mode": "wrap"}),
    ],
)
def test_what_is_declined(shapes: Any, code: Code, attributes: Any) -> None:
    check_decline(code, "GridSample", [normal(*s) for s in shapes], 20, **attributes)
