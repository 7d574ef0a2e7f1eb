"""Reductions, ArgMax and the softmax family against ONNX Runtime's CPU kernels: what ONNX's own node cases lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

from ort_gpu_ep.errors import Code
from ort_gpu_ep.partitioner import rewrite
from tests.direct import run_direct
from tests.ops.single_node import Array, Host, check_decline, check_node, model_of, node_model, normal, positive

FLOAT_FOLDS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
)
INT_FOLDS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare")


def check_reduce(
    op: str,
    x: Array,
    axes: Sequence[int] | None,
    opset: int = 18,
    wanted: Sequence[Array] | None = None,
    **attributes: Any,
) -> None:
    as_input = opset >= (13 if op == "ReduceSum" else 18)
    if axes is not None and not as_input:
        attributes["axes"] = list(axes)
    inputs = [x, np.array(axes, np.int64)] if axes is not None and as_input else [x]
    check_node(op, inputs, opset, known=[1], wanted=wanted, **attributes)


SHAPES = [
    ((131,), [0]),
    ((7, 131), [1]),
    ((131, 7), [0]),
    ((3, 5, 7, 11), [1, 3]),
    ((3, 5, 7, 11), [-4, -2]),
    ((3, 5, 7, 11), [2, 3]),
    ((2, 3, 1, 5, 2, 3), [0, 2, 4]),
    ((1, 1), [0]),
    ((), None),
    ((2, 1009), [-1]),
    ((1009, 67), [0]),
]


@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
@pytest.mark.parametrize("op", FLOAT_FOLDS)
def test_float(op: str, shape: tuple[int, ...], axes: Any) -> None:
    x = positive(*shape)
    if op == "ReduceProd":  # ONNX Runtime multiplies one after another and so loses digits
        wanted = np.prod(
            x.astype(np.float64), axis=None if axes is None else tuple(axes), keepdims=bool(len(shape) % 2)
        )
        check_reduce(op, x, axes, keepdims=len(shape) % 2, wanted=[np.asarray(wanted, np.float32)])
    else:
        check_reduce(op, x, axes, keepdims=len(shape) % 2)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("op", INT_FOLDS)
def test_int(op: str, dtype: Any) -> None:
    x = np.random.default_rng(7).integers(-3, 4, (3, 7, 5)).astype(dtype)
    check_reduce(op, x + 5 * (op == "ReduceProd"), [-2])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_packed(op: str, dtype: str) -> None:
    """Four elements to a word; rows that one workgroup takes, and such that many share."""
    for shape, axes in (*SHAPES, ((2, 70_001), [1]), ((1_000_003,), [0])):
        x = random_of(dtype, *shape)
        function = np.max if op == "ReduceMax" else np.min
        wanted = np.asarray(function(x, None if axes is None else tuple(axes), keepdims=True), dtype)
        check_reduce(op, x, axes, 20, wanted=[wanted])


def random_of(dtype: str, *shape: int) -> Array:
    """Of any size; of bools, in some rows one is unlike the others."""
    rng = np.random.default_rng([5, *shape])
    if dtype == "bool":
        return np.asarray(rng.random(shape) < rng.choice([0.001, 0.999], (*shape[:-1], 1) if shape else ()))
    info = np.iinfo(dtype)
    return np.asarray(rng.integers(info.min, info.max, shape, dtype, endpoint=True))


def test_none_of_no_bools_and_all_of_them() -> None:
    x = np.zeros((3, 0, 5), bool)
    check_reduce("ReduceMax", x, [1], 20, wanted=[np.zeros((3, 1, 5), bool)])
    check_reduce("ReduceMin", x, [1], 20, wanted=[np.ones((3, 1, 5), bool)])
    check_decline(Code.DTYPE, "ReduceMax", [x.astype(np.int8), np.array([1])], 18, known=(1,))


def test_a_fused_step_of_packed_elements() -> None:
    x = random_of("bool", 7, 131)
    model, feeds = model_of("ReduceMax", (x, Host([1])), opset=20, after=(helper.make_node("Not", ["y0"], ["y"]),))
    np.testing.assert_array_equal(run_direct(model, feeds, rewrite)[0], ~x.max(1, keepdims=True))


@pytest.mark.parametrize(
    ("op", "opset"),
    [("ReduceSum", 9), ("ReduceSum", 11), ("ReduceMean", 13), ("ReduceMax", 12), ("ReduceL2", 8), ("ReduceMax", 20)],
)
def test_axes_in_each_opset(op: str, opset: int) -> None:
    check_reduce(op, normal(3, 5, 7), [2, 0], opset)
    check_reduce(op, normal(3, 5, 7), None, opset, keepdims=0)


@pytest.mark.parametrize("op", FLOAT_FOLDS)
def test_no_axes_and_noop(op: str) -> None:
    for axes in ([], None):
        check_reduce(op, positive(3, 5), axes, noop_with_empty_axes=1)


@pytest.mark.parametrize(
    ("op", "value"),
    [
        ("ReduceSum", 0),
        ("ReduceProd", 1),
        ("ReduceMax", -np.inf),
        ("ReduceMin", np.inf),
        ("ReduceL1", 0),
        ("ReduceL2", 0),
        ("ReduceSumSquare", 0),
        ("ReduceLogSum", -np.inf),
        ("ReduceLogSumExp", -np.inf),
        ("ReduceMean", 0),
    ],
)
def test_over_no_elements(op: str, value: float) -> None:
    check_reduce(op, np.zeros((3, 0, 5), np.float32), [1], wanted=[np.full((3, 1, 5), value, np.float32)])


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceLogSumExp"])
def test_nan_and_infinity(op: str) -> None:
    x = normal(5, 37)
    x[0, 3], x[1, 30], x[2, 5], x[3, :] = np.nan, np.inf, -np.inf, -np.inf
    reference = {
        "ReduceSum": np.sum,
        "ReduceMax": np.max,
        "ReduceMin": np.min,
        "ReduceMean": np.mean,
        "ReduceLogSumExp": lambda v, axis: np.logaddexp.reduce(v, axis),
    }[op]
    with np.errstate(invalid="ignore"):
        wanted = reference(x.astype(np.float64), axis=1).astype(np.float32)
    check_reduce(op, x, [1], keepdims=0, wanted=[wanted])


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((1 << 18) + 17, [0]), ((2, 50021), [1]), ((50021, 3), [0]), ((66000, 3), [1])], ids=str
)
def test_long_and_many(op: str, shape: Any, axes: list[int]) -> None:
    x = positive(*(shape if isinstance(shape, tuple) else (shape,)))
    wide = x.astype(np.float64)
    a = axes[0]
    wanted = {
        "ReduceSum": np.sum(wide, a),
        "ReduceMean": np.mean(wide, a),
        "ReduceMax": np.max(wide, a),
        "ReduceL2": np.sqrt(np.sum(wide**2, a)),
        "ReduceLogSumExp": np.logaddexp.reduce(wide, a),
    }[op]
    check_reduce(op, x, axes, keepdims=0, wanted=[np.asarray(wanted, np.float32)])


def test_more_rows_than_workgroups_in_one_dimension() -> None:
    x = normal(66001, 300)
    check_reduce("ReduceMax", x, [1], keepdims=0)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.uint8, np.int8])
def test_arg(op: str, dtype: Any) -> None:
    x = np.random.default_rng(7).integers(0, 9, (3, 131, 5)).astype(dtype)
    for axis, last, keep in ((1, 0, 1), (-1, 1, 0), (0, 0, 1), (1, 1, 1)):
        reference = {"ArgMax": np.argmax, "ArgMin": np.argmin}[op]
        wanted = reference(np.flip(x, axis) if last else x, axis, keepdims=bool(keep))
        wanted = x.shape[axis] - 1 - wanted if last else wanted
        check_node(op, [x], 13, wanted=[wanted.astype(np.int64)], axis=axis, select_last_index=last, keepdims=keep)


@pytest.mark.parametrize("opset", [1, 11, 12])
def test_arg_in_old_opsets(opset: int) -> None:
    check_node("ArgMax", [normal(5, 7)], opset, axis=0)


SOFTMAX_SHAPES = [
    ((131,), 0),
    ((7, 131), 1),
    ((131, 7), 0),
    ((3, 5, 7, 11), 2),
    ((3, 5, 7, 11), -4),
    ((2, 5003), 1),
    ((1, 1), 1),
    ((66000, 3), 1),
]


@pytest.mark.parametrize("opset", [9, 11, 13])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(("shape", "axis"), SOFTMAX_SHAPES, ids=str)
def test_softmax(op: str, shape: tuple[int, ...], axis: int, opset: int) -> None:
    if opset == 13 or (axis >= 0 and shape != (66000, 3)):
        check_node(op, [3 * normal(*shape)], opset, axis=axis)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_of_extremes(op: str) -> None:
    x = normal(4, 19)
    x[0, 3], x[1, 4], x[2] = 3e38, -np.inf, 88 * x[2]
    check_node(op, [x], 13)
    x[3, 7] = np.nan
    got = run_direct(*node_model(op, [x], 13))[0]
    assert np.isnan(got[3]).all()
    assert np.isfinite(got[2]).all()


def test_hardmax_takes_the_first_of_equals() -> None:
    x, wanted = np.array([[1, 3, 3, 2], [5, 5, 5, 5]], np.float32), np.array([[0, 1, 0, 0], [1, 0, 0, 0]], np.float32)
    check_node("Hardmax", [x], 13, wanted=[wanted])


@pytest.mark.parametrize(
    ("code", "op", "inputs", "opset", "known", "attributes"),
    [
        (Code.DTYPE, "ReduceL2", [np.ones((2, 3), np.int32)], 18, [], {}),
        (Code.DTYPE, "ReduceMax", [np.ones((2, 3), np.uint32)], 20, [], {}),
        (Code.DTYPE, "ReduceSum", [np.ones((2, 3), np.uint64)], 13, [], {}),
        (Code.DTYPE, "ReduceMin", [np.ones((2, 0), np.int32)], 18, [], {}),
        (Code.DTYPE, "Softmax", [np.ones((2, 3))], 13, [], {}),
        (Code.ATTRIBUTE, "ArgMax", [np.ones((2, 0), np.float32)], 13, [], {"axis": 1}),
    ],
)
def test_declines(code: Code, op: str, inputs: Any, opset: int, known: Any, attributes: Any) -> None:
    check_decline(code, op, inputs, opset, known, **attributes)


@pytest.mark.parametrize("axes", [[1], [0, -1], []])
def test_axes_that_come_with_the_run(axes: list[int]) -> None:
    check_node("ReduceSum", [normal(2, 3, 5), np.array(axes, np.int64)], 13)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), [((1, 1, 128_256), 2), ((2, 20_001), 1), ((30_000, 3), 0)])
def test_a_long_row_is_cut_and_equals_are_told_apart(shape: tuple[int, ...], axis: int, last: int) -> None:
    """The largest number is there several times, in pieces far apart and in the ragged last one."""
    x = np.random.default_rng(3).integers(-9, 9, shape).astype("f")
    at = np.moveaxis(x, axis, -1)
    for place in (shape[axis] // 3, shape[axis] // 2, shape[axis] - 2):
        at[..., place] = 50
    check_node("ArgMax", [x], 13, axis=axis, select_last_index=last, keepdims=0)
    check_node("ArgMin", [-x], 13, axis=axis, select_last_index=last, keepdims=1)
