"""Resize and Upsample against ONNX Runtime's CPU kernels: what ONNX's own node cases lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from ort_gpu_ep.errors import Code
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner import rewrite
from tests.daily import part
from tests.direct import run_direct
from tests.ops.single_node import Array, assert_agree, check_decline, check_node, node_model, normal, on_cpu
from tests.unit.graphs import plan_of

COORDINATES = (
    "half_pixel",
    "asymmetric",
    "pytorch_half_pixel",
    "tf_half_pixel_for_nn",
    "align_corners",
    "half_pixel_symmetric",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SIZES = [
    ((7, 13), (14, 26)),
    ((6, 12), (7, 14)),
    ((60, 50), (70, 35)),
    ((11, 31), (29, 17)),
    ((5, 64), (1, 37)),
    ((9, 3), (3, 9)),
    ((1, 5), (4, 113)),
]


def check(x: Array, opset: int = 13, scales: Any = None, sizes: Any = None, roi: Any = None, **attributes: Any) -> None:
    inputs = [
        x,
        None if roi is None else np.array(roi, np.float32),
        None if scales is None else np.array(scales, np.float32),
    ]
    if sizes is not None:
        inputs.append(np.array(sizes, np.int64))
    check_node("Resize", inputs, opset, known=[1, 2, 3], **attributes)


@pytest.mark.parametrize(("coordinates", "rounding", "by_scale"), part(COORDINATES, ROUNDINGS, [False, True]))
def test_nearest(coordinates: str, rounding: str, by_scale: bool) -> None:
    for old, new in SIZES:
        x = normal(1, 2, *old)
        how = (
            {"scales": (1, 1, *(np.float32(n / o) for n, o in zip(new, old, strict=True)))}
            if by_scale
            else {"sizes": (1, 2, *new)}
        )
        if not by_scale or coordinates not in ("align_corners", "pytorch_half_pixel"):
            check(x, coordinate_transformation_mode=coordinates, nearest_mode=rounding, **how)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation(mode: str, coordinates: str) -> None:
    for old, new in SIZES[1:]:
        check(normal(1, 2, *old), sizes=(1, 2, *new), mode=mode, coordinate_transformation_mode=coordinates)
    check(normal(7, 13), sizes=(14, 26), mode=mode, coordinate_transformation_mode=coordinates)


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_trilinear(coordinates: str) -> None:
    check(normal(1, 2, 5, 7, 4), sizes=(1, 2, 7, 3, 9), mode="linear", coordinate_transformation_mode=coordinates)


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("scale", [0.6, 1.7, 3.0])
def test_cubic_coefficient(scale: float, exclude: int) -> None:
    check(normal(1, 1, 11, 13), scales=(1, 1, scale, 2.3), mode="cubic", cubic_coeff_a=-0.5, exclude_outside=exclude)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "roi",
    [(0, 0, 0.2, 0.4, 1, 1, 0.7, 0.9), (0, 0, -0.2, 0.3, 1, 1, 1.3, 1.1), (0, 0, 0.9, 0.5, 1, 1, 0.1, 0.5)],
    ids=str,
)
def test_crop(mode: str, roi: Any) -> None:
    for sizes in ((1, 2, 5, 11), (1, 2, 1, 17)):
        check(
            normal(1, 2, 7, 13),
            sizes=sizes,
            roi=roi,
            mode=mode,
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=2.5,
        )


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_aspect_ratio(mode: str, policy: str) -> None:
    for sizes in ((9, 9), (3, 50), (13, 8)):
        check(normal(1, 2, 7, 13), 18, sizes=sizes, mode=mode, keep_aspect_ratio_policy=policy, axes=[2, 3])


def test_axes() -> None:
    check(normal(2, 7, 3, 13), 19, scales=(1.7, 0.6), axes=[3, 1])
    check(normal(2, 3, 7, 13), 18, scales=(1.5, 2.5), axes=[3, 2], mode="linear")


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("op", "opset"), [("Upsample", 7), ("Upsample", 9), ("Resize", 10)])
def test_old_forms(op: str, opset: int, mode: str) -> None:
    for scales in ([1, 1, 2, 2], [1, 1, 2.5, 1.3], [1, 1, 0.6, 0.35]):
        x, factors = normal(2, 3, 7, 11), np.array(scales, np.float32)
        if op == "Resize" or min(scales) >= 1:
            if opset == 7:
                check_node(op, [x], opset, mode=mode, scales=[float(f) for f in factors])
            else:
                check_node(op, [x, factors], opset, known=[1], mode=mode)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_nearest_of_integers(dtype: Any) -> None:
    x = np.random.default_rng(7).integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (1, 3, 5, 7)).astype(dtype)
    check(x, scales=(1, 1, 1.7, 2))


def bytes_of(dtype: Any, *shape: int) -> Array:
    """Random ones, with a part in which all are alike: a sum that is off by an ulp there loses a whole step."""
    limits = np.iinfo(dtype)
    x = np.random.default_rng([5, *shape]).integers(limits.min, limits.max, shape, dtype, endpoint=True)
    x[..., : shape[-1] // 2] = x.reshape(-1)[0]
    return x


def check_bytes(x: Array, scales: Any = None, sizes: Any = None, opset: int = 19, **attributes: Any) -> None:
    """Bit by bit against onnxruntime's CPU, with sizes that are fixed and open."""
    inputs = [
        x,
        None,
        None if scales is None else np.array(scales, np.float32),
        *([] if sizes is None else [np.array(sizes, np.int64)]),
    ]
    model, feeds = node_model("Resize", inputs, opset, [2, 3], **attributes)
    for every_size_open in (False, True):
        np.testing.assert_array_equal(
            run_direct(model, feeds, every_size_open=every_size_open)[0], on_cpu(model, feeds)[0]
        )


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_linear_of_bytes(dtype: Any, coordinates: str) -> None:
    for old, new in SIZES[1:]:
        check_bytes(
            bytes_of(dtype, 1, 2, *old), sizes=(1, 2, *new), mode="linear", coordinate_transformation_mode=coordinates
        )


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("shape", "scales"),
    [
        ((1, 3, 11, 13), (1, 1, 1, 2.3)),
        ((1, 3, 11, 13), (1, 1, 0.6, 1)),
        ((11, 13), (1.7, 0.45)),
        ((3, 11, 13), (1, 1.7, 2)),
        ((3, 5, 7), (2, 1.7, 2)),
        ((1, 2, 3, 5, 7), (1, 1, 2, 1.7, 2)),
        ((2, 11, 13, 3), (1, 1.7, 2.3, 1)),
        ((2, 11, 13, 3), (1, 1.7, 1, 1)),
        ((2, 11, 13, 3), (1, 0.5, 0.3, 1)),
    ],
    ids=str,
)
def test_linear_of_bytes_along_other_axes(dtype: Any, shape: tuple[int, ...], scales: tuple[float, ...]) -> None:
    check_bytes(bytes_of(dtype, *shape), scales, mode="linear")


def test_older_forms_of_bytes() -> None:
    for op, opset in (("Upsample", 9), ("Resize", 10)):
        check_node(
            op,
            [bytes_of(np.uint8, 1, 2, 7, 9), np.array((1, 1, 1.7, 2.3), np.float32)],
            opset,
            known=[1],
            mode="linear",
        )


@pytest.mark.parametrize("shape", [(1, 2, 11, 13), (1, 11, 13, 2)], ids=str)
def test_regions_of_bytes(shape: tuple[int, ...]) -> None:
    """tf_crop_and_resize, with a region that reaches beyond the image."""
    x, last = bytes_of(np.uint8, *shape), shape[1] == 2
    roi = [0, 0, 0.1, -0.3, 1, 1, 1.2, 0.8] if last else [0, 0.1, -0.3, 0, 1, 1.2, 0.8, 1]
    sizes = np.array((1, 2, 7, 9) if last else (1, 7, 9, 2))
    check_node(
        "Resize",
        [x, np.array(roi, np.float32), None, sizes],
        19,
        known=[1, 2, 3],
        mode="linear",
        extrapolation_value=77.0,
        coordinate_transformation_mode="tf_crop_and_resize",
    )


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize(
    ("shape", "scales"),
    [
        ((1, 3, 23, 37), (1, 1, 0.6, 0.45)),
        ((1, 3, 23, 37), (1, 1, 1.7, 2.3)),
        ((1, 3, 23, 37), (1, 1, 1, 0.3)),
        ((23, 37), (0.3, 1)),
        ((1, 23, 37, 3), (1, 0.4, 1.3, 1)),
        ((23, 37), (0.11, 0.9)),
    ],
    ids=str,
)
def test_antialias_of_bytes(mode: str, exclude: int, shape: tuple[int, ...], scales: tuple[float, ...]) -> None:
    check_bytes(bytes_of(np.uint8, *shape), scales, mode=mode, antialias=1, exclude_outside=exclude)


@pytest.mark.parametrize(("dtype", "high"), [(np.int64, 1 << 62), (np.bool_, 2)])
def test_nearest_of_types_that_onnx_runtime_lacks(dtype: Any, high: int) -> None:
    x = np.random.default_rng(7).integers(0, high, (1, 1, 5, 7)).astype(dtype)
    factors = np.array((1, 1, 3, 2), np.float32)
    check_node("Resize", [x, None, factors], 13, known=[2], wanted=[x.repeat(3, 2).repeat(2, 3)])


def test_rank_one() -> None:
    check(normal(13), scales=[1.0], nearest_mode="ceil", coordinate_transformation_mode="tf_half_pixel_for_nn")
    check(normal(13), scales=[2.6])


def test_empty_scales_with_sizes() -> None:
    check(normal(1, 1, 5, 7), 11, scales=[], sizes=(1, 1, 3, 14), roi=[], mode="linear")


def test_large() -> None:
    check(normal(1, 5, 500, 509), scales=(1, 1, 2, 2), mode="linear")


def test_nan_and_infinity() -> None:
    x = normal(1, 1, 6, 7)
    x[0, 0, 2, 3], x[0, 0, 4, 6], x[0, 0, 5, 0] = np.nan, np.inf, -np.inf
    check(x, scales=(1, 1, 2.0, 3.0))
    check(x, scales=(1, 1, 2.0, 3.0), mode="linear")


X, FOUR = normal(1, 1, 5, 7), np.array((1, 1, 2, 2), np.float32)


@pytest.mark.parametrize(
    ("code", "op", "inputs", "opset", "known", "attributes"),
    [
        (Code.ATTRIBUTE, "Resize", [X, None, FOUR], 18, [2], {"mode": "nearest", "antialias": 1}),
        (
            Code.ATTRIBUTE,
            "Resize",
            [X, np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32), FOUR],
            18,
            [1, 2],
            {"mode": "linear", "antialias": 1, "coordinate_transformation_mode": "tf_crop_and_resize"},
        ),
        (Code.ATTRIBUTE, "Resize", [X, None, FOUR], 18, [2], {"mode": "linear", "exclude_outside": 1}),
        (Code.ATTRIBUTE, "Resize", [X, None, FOUR], 18, [2], {"coordinate_transformation_mode": "tf_crop_and_resize"}),
        (
            Code.ATTRIBUTE,
            "Resize",
            [X, None, FOUR ** np.float32(0.6)],
            18,
            [2],
            {"coordinate_transformation_mode": "align_corners"},
        ),
        (Code.ATTRIBUTE, "Resize", [X, None, FOUR[:3]], 18, [2], {}),
        (Code.RANK, "Resize", [X, None, 2 * FOUR], 18, [2], {}),
        (Code.DTYPE, "Resize", [X.astype(np.uint8), None, FOUR], 18, [2], {"mode": "cubic"}),
        (Code.DTYPE, "Resize", [X.astype(np.int8), None, FOUR], 18, [2], {"mode": "linear", "antialias": 1}),
        (Code.DTYPE, "Resize", [X.astype(np.int32), None, FOUR], 18, [2], {"mode": "linear"}),
        (Code.RANK, "Resize", [X.astype(np.uint8), None, FOUR[::-1].copy()], 18, [2], {"mode": "linear"}),
        (Code.DTYPE, "Resize", [X.astype(np.float64), None, FOUR], 18, [2], {}),
    ],
)
def test_declines(code: Code, op: str, inputs: Any, opset: int, known: Any, attributes: dict[str, Any]) -> None:
    check_decline(code, op, inputs, opset, known, **attributes)


def test_scales_that_come_with_the_run() -> None:
    check_node("Resize", [X, None, FOUR], 18, mode="linear")


@pytest.mark.parametrize(
    ("scales", "coordinates", "mode", "extra"),
    part(
        [((1, 1, 0.6, 0.35),), ((1, 1, 0.11, 1.7),), ((1, 1, 2.5, 0.5),), ((1, 1, 1, 0.31),)],
        ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"],
        [
            ("linear", {}),
            ("cubic", {}),
            ("cubic", {"cubic_coeff_a": -0.5, "exclude_outside": 1}),
            ("linear", {"exclude_outside": 1}),
        ],
    ),
)
def test_antialias(scales: tuple[float, ...], coordinates: str, mode: str, extra: dict[str, Any]) -> None:
    shape = (2, 3, 20, 40)
    sizes = np.array([max(1, round(n * s)) for n, s in zip(shape, scales, strict=True)])
    inputs = [normal(*shape), None, None, sizes]
    check_node(
        "Resize",
        inputs,
        18,
        [3],
        tolerance=2e-6,
        mode=mode,
        antialias=1,
        coordinate_transformation_mode=coordinates,
        **extra,
    )


def test_antialias_with_scales_that_come_with_the_run() -> None:
    check_node(
        "Resize",
        [normal(1, 2, 15, 21), None, np.array([1, 1, 0.4, 0.7], np.float32)],
        18,
        mode="linear",
        antialias=1,
        tolerance=2e-6,
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_four_neighbours_of_the_last_axis_at_a_time(mode: str, dtype: str) -> None:
    x, tolerance = normal(2, 5, 6, 8).astype(dtype), 1e-3 if dtype == "float16" else 1e-5
    for how in ([np.array([1, 2, 1.5, 1], np.float32)], [None, np.array([2, 7, 9, 8])]):
        check_node("Resize", [x, None, *how], 13, known=[2, 3], tolerance=tolerance, mode=mode)
    model, feeds = node_model("Resize", [x, None, np.array([1, 2, 1.5, 1], np.float32)], 13, known=[2], mode=mode)
    (step,) = plan_of(from_onnx(model), limits=Limits(features=frozenset({"shader-f16"}))).steps
    assert step.kernel.vectors == ("x", "y")  # type: ignore[union-attr]
    model.graph.node.append(helper.make_node("Relu", [model.graph.output[0].name], ["positive"]))
    model.graph.output[0].name = "positive"
    (got,), (want,) = run_direct(model, feeds, rewrite), on_cpu(model, feeds)
    assert_agree(got, want, tolerance)
