"""Conv and ConvTranspose against ONNX Runtime's CPU kernels (float16: float64 sums): what ONNX's own node cases
lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.errors import Code
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, Shape, TensorType
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.records import loop_bound
from ort_gpu_ep.kernels.registry import DEFAULT_LIMITS
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import run_direct
from tests.ops.test_matmul import assert_close, check_against_ort, declined, model_of, random_inputs, with_steps

CONVS = [
    # x, w, bias, attributes
    ((1, 3, 37, 41), (17, 3, 3, 3), True, {"pads": [1, 1, 1, 1]}),
    ((2, 5, 23, 29), (13, 5, 5, 3), True, {"pads": [0, 2, 3, 1], "strides": [2, 3]}),
    ((1, 7, 31, 19), (11, 7, 3, 3), False, {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    ((1, 131, 13, 11), (67, 131, 1, 1), True, {}),
    ((3, 131, 7, 7), (67, 131, 1, 1), False, {"strides": [2, 2]}),
    ((1, 19, 9, 9), (23, 19, 1, 1), True, {"pads": [0, 1, 1, 0]}),
    ((1, 512, 7, 7), (64, 512, 3, 3), True, {"pads": [1, 1, 1, 1]}),
    ((1, 3, 64, 64), (64, 3, 7, 7), True, {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    ((1, 257, 1, 1), (67, 257, 1, 1), True, {}),
    ((2, 17, 13, 13), (1, 17, 1, 1), True, {}),
    ((1, 17, 13, 13), (1, 17, 3, 3), True, {}),
    # groups: as products, direct, depthwise, with a multiplier
    ((2, 22, 17, 19), (34, 11, 3, 3), True, {"group": 2, "pads": [1, 0, 0, 1]}),
    ((2, 12, 17, 19), (18, 2, 3, 3), True, {"group": 6, "pads": [1, 1, 1, 1]}),
    ((2, 37, 29, 31), (37, 1, 3, 3), True, {"group": 37, "pads": [1, 1, 1, 1]}),
    ((1, 37, 7, 7), (74, 1, 5, 3), False, {"group": 37, "pads": [2, 1, 1, 0], "strides": [2, 1], "dilations": [1, 2]}),
    ((2, 6, 11, 11), (6, 3, 1, 1), True, {"group": 2}),
    # one and three dimensions
    ((2, 7, 101), (19, 7, 5), True, {"pads": [3, 1], "strides": [2], "dilations": [2]}),
    ((1, 7, 11), (7, 1, 3), True, {"group": 7, "pads": [2, 0]}),
    (
        (2, 3, 9, 7, 11),
        (13, 3, 3, 2, 3),
        True,
        {"pads": [1, 0, 2, 0, 1, 1], "strides": [2, 1, 3], "dilations": [1, 2, 1]},
    ),
    ((1, 4, 5, 6, 7), (4, 1, 3, 3, 3), True, {"group": 4, "pads": [1] * 6}),
    ((1, 17, 5, 1, 1), (13, 17, 1, 1, 1), False, {"pads": [1, 0, 0, 1, 0, 0]}),
    # automatic pads
    *(
        ((1, 5, 18, 23), (11, 5, 4, 3), True, {"auto_pad": auto, "strides": strides})
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for strides in ([1, 1], [2, 3])
    ),
    ((1, 5, 18, 23), (11, 5, 4, 3), True, {"auto_pad": "VALID", "dilations": [2, 1]}),
    ((1, 5, 7), (11, 5, 1), False, {"auto_pad": "SAME_UPPER", "strides": [3]}),
    # a batch of many workgroups
    ((1, 65537, 1, 3), (65537, 1, 1, 2), False, {"group": 65537}),
]


@pytest.mark.parametrize(("x", "w", "bias", "attributes"), CONVS, ids=str)
def test_conv(x: Shape, w: Shape, bias: bool, attributes: dict[str, Any]) -> None:
    check_against_ort("Conv", [x, w, (w[0],)] if bias else [x, w], **attributes)


def test_a_convolution_of_no_channels_is_its_bias() -> None:
    """Empty sums; ONNX Runtime's CPU kernel adds the bias to memory that nothing wrote, once in a while to NaN."""
    x, w, bias = random_inputs([(2, 0, 5, 5), (3, 0, 3, 3), (3,)])
    (got,) = run_direct(model_of("Conv", [x, w, bias]), {"i0": x, "i1": w, "i2": bias})
    np.testing.assert_array_equal(got, np.broadcast_to(bias[:, None, None], (2, 3, 3, 3)))


@pytest.mark.parametrize(("auto", "pads"), [("SAME_UPPER", [4, 1, 5, 1]), ("SAME_LOWER", [5, 1, 4, 1])])
def test_same_pads_with_dilation(auto: str, pads: list[int]) -> None:
    """ONNX Runtime refuses these; explicit pads say the same."""
    x, w = random_inputs([(1, 5, 18, 23), (11, 5, 4, 3)])
    feeds = {"i0": x, "i1": w}
    (got,) = run_direct(model_of("Conv", [x, w], auto_pad=auto, dilations=[3, 1]), feeds)
    (wanted,) = run_direct(model_of("Conv", [x, w], pads=pads, dilations=[3, 1]), feeds)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("opset", [7, 11, 22])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_opsets(op: str, opset: int) -> None:
    check_against_ort(op, [(1, 3, 5, 5), (3, 3, 2, 2), (3,)], opset=opset, kernel_shape=[2, 2])


TRANSPOSES = [
    ((1, 3, 7, 5), (3, 11, 3, 3), True, {}),
    ((2, 17, 7, 5), (17, 13, 3, 3), True, {"strides": [2, 3], "pads": [1, 0, 2, 1], "output_padding": [1, 2]}),
    ((2, 3, 7, 5), (3, 5, 3, 4), True, {"strides": [3, 2], "pads": [0, 2, 1, 1], "output_padding": [2, 0]}),
    ((1, 16, 7, 5), (16, 5, 3, 3), False, {"dilations": [2, 3], "strides": [2, 1], "pads": [1, 1, 1, 1]}),
    ((2, 34, 5, 7), (34, 3, 3, 2), True, {"group": 2, "strides": [2, 2]}),
    ((2, 12, 5, 7), (12, 2, 3, 2), True, {"group": 4, "strides": [2, 3]}),
    ((1, 37, 6, 5), (37, 1, 4, 4), True, {"group": 37, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 9, 5, 5), (9, 4, 2, 2), True, {"strides": [3, 3]}),
    ((1, 128, 9, 9), (128, 16, 4, 4), True, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    *(
        (
            (1, channels, 6, 5),
            (channels, 4, 4, 3),
            True,
            {"output_shape": [13, 12], "strides": [2, 2], "auto_pad": auto},
        )
        for channels in (3, 10)
        for auto in ("NOTSET", "SAME_UPPER", "SAME_LOWER")
    ),
    *(
        ((1, 10, 6, 5), (10, 4, 4, 3), False, {"auto_pad": auto, "strides": strides})
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for strides in ([1, 1], [2, 2])
    ),
    *(
        ((2, 4, 7, 6), (4, 3, 2, 1), True, {"auto_pad": auto, "strides": [3, 3], "output_padding": padding})
        for auto in ("SAME_UPPER", "SAME_LOWER")
        for padding in ([0, 0], [1, 2])
    ),
    ((2, 9, 13), (9, 7, 5), True, {"strides": [3], "pads": [2, 1], "dilations": [2], "output_padding": [1]}),
    ((1, 3, 13), (3, 7, 4), True, {"strides": [2], "pads": [1, 1]}),
    ((1, 9, 3, 4, 5), (9, 4, 2, 3, 2), True, {"strides": [2, 1, 3], "pads": [0, 1, 0, 1, 0, 0]}),
    ((1, 3, 3, 4, 5), (3, 4, 2, 3, 2), True, {"strides": [1, 2, 2], "dilations": [2, 1, 1]}),
    ((1, 9, 1, 1), (9, 1, 1, 1), True, {}),
    # windows larger than x
    ((2, 3, 2, 3), (3, 4, 9, 11), True, {}),
    ((2, 3, 3, 2), (3, 4, 9, 11), True, {"strides": [2, 3], "pads": [4, 1, 0, 7]}),
    ((2, 3, 3, 2), (3, 4, 9, 7), True, {"dilations": [2, 3], "strides": [3, 2], "pads": [3, 5, 1, 2]}),
    ((1, 9, 1, 3, 2), (9, 2, 5, 7, 9), False, {"dilations": [1, 4, 1], "strides": [2, 2, 5]}),
]


@pytest.mark.parametrize(("x", "w", "bias", "attributes"), TRANSPOSES, ids=str)
def test_conv_transpose(x: Shape, w: Shape, bias: bool, attributes: dict[str, Any]) -> None:
    filters = w[1] * int(attributes.get("group", 1))
    check_against_ort("ConvTranspose", [x, w, (filters,)] if bias else [x, w], **attributes)


def test_taps_that_hit_nothing_are_not_looked_at() -> None:
    """A window of 33 x 33 x 33 over few elements took minutes on a software adapter."""
    shapes = [(1, 1, 33, 4, 5), (1, 5, 33, 33, 33)]
    x, w = random_inputs(shapes)
    types = {name: TensorType(FLOAT32, shape) for name, shape in zip(("i0", "i1"), shapes, strict=True)}
    plan = make_plan(from_onnx(model_of("ConvTranspose", [x, w])), types, DEFAULT_LIMITS)
    (dispatch,) = (step for step in plan.steps if isinstance(step, Dispatch))
    assert loop_bound(dispatch.kernel) <= 3 * 33 * 4 * 5
    check_against_ort("ConvTranspose", [(1, 1, 9, 2, 3), (1, 2, 9, 9, 9)])


def test_products_too_large_to_store_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_gpu_ep.ops.conv.COLUMNS_MAX_NBYTES", 1000)
    with apart():
        check_against_ort(
            "ConvTranspose", [(2, 16, 7, 5), (16, 5, 3, 3), (5,)], strides=[2, 2], dilations=[1, 2], pads=[1, 0, 0, 1]
        )


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_float16_is_summed_in_float32(op: str) -> None:
    inputs = random_inputs([(1, 16, 9, 9), (16, 16, 3, 3), (16,)], np.float16)
    wide = [a.astype(np.float32) for a in inputs]
    (got,) = run_direct(model_of(op, inputs), {f"i{i}": a for i, a in enumerate(inputs)})
    (wanted,) = run_direct(model_of(op, wide), {f"i{i}": a for i, a in enumerate(wide)})
    assert_close(got, wanted.astype(np.float16), 3e-4)


@pytest.mark.parametrize(
    ("op", "x", "w", "attributes"),
    [
        ("Conv", (1, 9, 13, 13), (9, 9, 3, 3), {"pads": [1] * 4}),
        ("Conv", (1, 512, 7, 7), (512, 512, 1, 1), {}),
        ("Conv", (1, 9, 13, 13), (9, 1, 3, 3), {"pads": [1] * 4, "group": 9}),
        ("Conv", (1, 300, 1, 1), (300, 300, 1, 1), {}),
        ("ConvTranspose", (1, 9, 13, 13), (9, 9, 3, 3), {"pads": [1] * 4}),
        ("ConvTranspose", (1, 3, 5, 5), (3, 3, 1, 1), {}),
    ],
    ids=str,
)
def test_fused_steps_run_once_in_every_kernel_form(op: str, x: Shape, w: Shape, attributes: dict[str, Any]) -> None:
    residual = random_inputs([x, w, (x[1],)])[0]
    check_against_ort(
        op,
        [x, w, (x[1],)],
        rewrite=with_steps,
        then=lambda y: np.maximum(2 * y + residual, np.float32(0)),
        **attributes,
    )


@pytest.mark.parametrize("attributes", [{}, {"group": 16}])
def test_nan_and_infinity_reach_only_the_windows_that_see_them(attributes: dict[str, Any]) -> None:
    x, w = random_inputs([(1, 16, 19, 19), (16, 16 // attributes.get("group", 1), 3, 3)])
    x[0, 3, 4, 5], x[0, 9, 14, 15] = np.nan, np.inf
    (got,) = run_direct(model_of("Conv", [x, w], pads=[1] * 4, **attributes), {"i0": x, "i1": w})
    near_nan, near_inf = np.zeros(got.shape, bool), np.zeros(got.shape, bool)
    channels = (slice(None), slice(None)) if not attributes else (3, 9)
    near_nan[0, channels[0], 3:6, 4:7] = near_inf[0, channels[1], 13:16, 14:17] = True
    np.testing.assert_array_equal(np.isnan(got), near_nan)
    np.testing.assert_array_equal(np.isinf(got), near_inf)


@pytest.mark.parametrize(("filters", "group", "window"), [(16, 1, 3), (16, 1, 1), (5, 5, 3), (10, 1, 3)])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_the_next_image_is_not_read(op: str, filters: int, group: int, window: int) -> None:
    x, w = random_inputs(
        [(3, 5, 7, 7), (filters, 5 // group, window, window) if op == "Conv" else (5, filters // group, window, window)]
    )
    x[1] = np.nan
    (got,) = run_direct(model_of(op, [x, w], group=group), {"i0": x, "i1": w})
    assert np.isfinite(got[[0, 2]]).all()
    assert np.isnan(got[1]).all() or op == "ConvTranspose"


DECLINES = [
    ("Conv", [(1, 3, 3, 3, 3, 3), (3, 3, 1, 1, 1, 1)], Code.RANK, np.float32, {}),
    ("Conv", [(1, 3, 5, 5), (3, 3, 3, 3)], Code.DTYPE, np.float64, {}),
    ("ConvTranspose", [(1, 3, 5, 5), (3, 3, 3, 3)], Code.DTYPE, np.float64, {}),
    ("ConvTranspose", [(1, 3, 3, 3, 3, 3), (3, 3, 1, 1, 1, 1)], Code.RANK, np.float32, {}),
    ("Conv", [(1, 3, 5, 5), (4, 3, 3, 3), (3,)], Code.RANK, np.float32, {}),
]


@pytest.mark.parametrize(("op", "shapes", "code", "dtype", "attributes"), DECLINES, ids=str)
def test_declines(op: str, shapes: list[Shape], code: Code, dtype: Any, attributes: dict[str, Any]) -> None:
    declined(op, shapes, code, dtype=dtype, **attributes)
