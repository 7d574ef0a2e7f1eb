"""AffineGrid, DeformConv, Col2Im and Det against ONNX Runtime's CPU kernels, or numpy in float64 where there is
none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from tests.direct import run_direct
from tests.ops.single_node import Array, check_node, node_model, normal


def declined(
    code: Code, op: str, inputs: tuple[Array, ...], opset: int, known: tuple[int, ...] = (), **attributes: Any
) -> None:
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(*node_model(op, inputs, opset, known, **attributes))
    assert caught.value.code is code, caught.value


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize(
    "size", [(2, 1, 5, 7), (3, 2, 1, 4), (1, 1, 67, 129), (2, 1, 3, 5, 7), (1, 3, 1, 1, 1), (0, 1, 3, 3)]
)
def test_affine_grid(size: tuple[int, ...], align: int) -> None:
    axes = len(size) - 2
    for known in ((1,), ()):  # the sizes may come with the run
        check_node("AffineGrid", (normal(size[0], axes, axes + 1), np.array(size)), 20, known, align_corners=align)


def test_affine_grid_declines() -> None:
    declined(Code.RANK, "AffineGrid", (normal(2, 2, 3), np.array([3, 1, 5, 7])), 20, (1,))
    declined(Code.RANK, "AffineGrid", (normal(2, 2, 3), np.array([2, 1, 5])), 20, (1,))


@pytest.mark.parametrize(
    ("image", "block", "attributes"),
    [
        ((7, 9), (2, 3), {}),
        ((7, 9), (3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
        ((11, 13), (3, 3), {"dilations": [2, 3]}),
        ((8,), (3,), {"strides": [2], "pads": [1, 1]}),
        ((5, 6, 7), (2, 3, 2), {"strides": [1, 2, 1], "pads": [1, 0, 1, 0, 1, 1]}),
    ],
)
def test_col2im(image: tuple[int, ...], block: tuple[int, ...], attributes: dict[str, list[int]]) -> None:
    n = len(image)
    strides, dilations, pads = (
        attributes.get(k, [d] * m) for k, d, m in (("strides", 1, n), ("dilations", 1, n), ("pads", 0, 2 * n))
    )
    count = [(image[a] + pads[a] + pads[a + n] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1 for a in range(n)]
    x = normal(2, 3 * int(np.prod(block)), int(np.prod(count)))
    padded = np.zeros((2, 3, *(i + 2 * max(pads) + 8 for i in image)))
    for column, place in enumerate(np.ndindex(*count)):
        for t, tap in enumerate(np.ndindex(*block)):
            at = tuple(max(pads) + place[a] * strides[a] + tap[a] * dilations[a] - pads[a] for a in range(n))
            padded[(slice(None), slice(None), *at)] += x.reshape(2, 3, int(np.prod(block)), -1)[:, :, t, column]
    wanted = padded[(slice(None), slice(None), *(slice(max(pads), max(pads) + i) for i in image))].astype(np.float32)
    check_node("Col2Im", (x, np.array(image), np.array(block)), 18, (1, 2), wanted=[wanted], **attributes)
    check_node("Col2Im", (x, np.array(image), np.array(block)), 18, (1, 2), **attributes)


def test_col2im_declines() -> None:
    declined(Code.RANK, "Col2Im", (normal(1, 6, 5), np.array([3, 3]), np.array([2, 3])), 18, (1, 2))


@pytest.mark.parametrize(
    ("shape", "filters", "attributes"),
    [
        ((1, 3, 7, 9), (5, 3, 3, 3), {}),
        ((2, 4, 9, 8), (6, 2, 3, 2), {"group": 2, "offset_group": 2, "pads": [1, 1, 1, 0], "strides": [2, 1]}),
        ((1, 4, 11, 11), (4, 4, 3, 3), {"offset_group": 4, "dilations": [2, 2], "pads": [2, 2, 2, 2]}),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_deform_conv(
    shape: tuple[int, ...], filters: tuple[int, ...], attributes: dict[str, Any], masked: bool
) -> None:
    pads, strides, dilations = (
        attributes.get(k, d) for k, d in (("pads", [0] * 4), ("strides", [1, 1]), ("dilations", [1, 1]))
    )
    out = [
        (shape[2 + a] + pads[a] + pads[a + 2] - dilations[a] * (filters[2 + a] - 1) - 1) // strides[a] + 1
        for a in range(2)
    ]
    channels = attributes.get("offset_group", 1) * filters[2] * filters[3]
    offset = 2 * normal(shape[0], 2 * channels, *out, seed=3)
    inputs: list[Array] = [normal(*shape), normal(*filters, seed=2), offset, normal(filters[0], seed=5)]
    inputs += [normal(shape[0], channels, *out, seed=4)] if masked else []
    check_node("DeformConv", inputs, 19, tolerance=2e-6, **attributes)


def test_a_tap_may_be_moved_anywhere() -> None:
    """To whole places, onto the border, far outside."""
    places = np.array([0.0, -1.0, 1.0, -0.5, 3.0, 1e9, -1e9, 7.0, 6.999], np.float32)
    offset = np.resize(places, (1, 18, 7, 7)).astype(np.float32)
    check_node("DeformConv", (normal(1, 2, 9, 9), normal(3, 2, 3, 3), offset), 19, tolerance=2e-6)
    offset[0, 3, 2, 2] = np.nan
    (got,) = run_direct(*node_model("DeformConv", (normal(1, 2, 9, 9), normal(3, 2, 3, 3), offset), 19))
    assert np.isfinite(got[..., 0, 0]).all()


def test_deform_conv_declines() -> None:
    declined(Code.RANK, "DeformConv", (normal(1, 2, 9, 9), normal(3, 2, 3, 3), normal(1, 18, 6, 7)), 19)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 5, 5), (2, 3, 17, 17), (300, 4, 4)])
def test_det(shape: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(3).normal(size=shape).astype(dtype)
    check_node(
        "Det",
        (x,),
        22,
        wanted=[np.linalg.det(x.astype(np.float64)).astype(dtype)],
        tolerance=1e-5 if dtype == "float32" else 1e-13,
    )


def test_det_of_singular_matrices() -> None:
    x = np.array([[[0, 0], [0, 1]], [[1, 2], [2, 4]], [[0, 1], [1, 0]]], np.float32)
    np.testing.assert_array_equal(run_direct(*node_model("Det", (x,), 22))[0], [0, 0, -1])
    declined(Code.RANK, "Det", (normal(2, 3),), 22)


def test_sizes_may_be_open() -> None:
    """A size of the run has no power: records multiply it."""
    x = np.random.default_rng(3).normal(size=(3, 4, 4)).astype(np.float32)
    (got,) = run_direct(*node_model("Det", (x,), 22), every_size_open=True)
    np.testing.assert_allclose(got, np.linalg.det(x.astype(np.float64)), rtol=1e-4)
