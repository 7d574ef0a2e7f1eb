"""Gather..., Scatter..., OneHot, EyeLike, ReverseSequence, CumSum, CumProd, TopK against ONNX Runtime's CPU kernels or
numpy."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from onnx import helper

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import TensorType, dtype_of
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import run_direct
from tests.ops.single_node import Array, Host, assert_same, data, indices, model_of, on_cpu, onnx_cases

OPS = (
    "Gather",
    "GatherElements",
    "GatherND",
    "ScatterND",
    "ScatterElements",
    "Scatter",
    "OneHot",
    "EyeLike",
    "ReverseSequence",
    "CumSum",
    "CumProd",
    "TopK",
)
NEWER = ("OneHot", "ReverseSequence")
"""Ops whose ONNX cases are of an opset that is not read yet."""


def case(name: str, op: str, *inputs: Array | Host | None, **options: Any) -> Any:
    return pytest.param(op, inputs, options, id=f"{op}-{name}")


def distinct(size: int, *shape: int, seed: int = 3) -> Array:
    """Different indices in random order, half of them negative."""
    rng = np.random.default_rng([seed, size])
    chosen = rng.permutation(size)[: int(np.prod(shape))]
    return np.where(rng.random(chosen.shape) < 0.5, chosen, chosen - size).reshape(shape)


def lines(size: int, *shape: int) -> Array:
    """Different indices along the last axis of each line."""
    rng = np.random.default_rng([9, size])
    return np.stack([rng.permutation(size)[: shape[-1]] for _ in range(int(np.prod(shape[:-1])))]).reshape(shape) - size


GATHERS = [
    *(case(f"axis{axis}", "Gather", data(5, 7, 11), indices(-5, 5, 3, 2), axis=axis) for axis in (0, 1, 2, -1)),
    case("int32", "Gather", data(5, 7), indices(-5, 5, 13, dtype="int32"), opset=9),
    case("scalar", "Gather", data(5, 7), np.array(-2)),
    *(
        case(dtype, "Gather", data(5, 7, dtype=dtype), indices(-7, 7, 3), axis=1)
        for dtype in ("bool", "int8", "float16", "int64", "float64")
    ),
    case("known", "Gather", data(5, 7), Host([3, -1, 0]), axis=1),
    case("none", "Gather", data(5, 7), np.zeros(0, np.int64)),
    case("over-65535-groups", "Gather", data(13, 257), indices(-13, 13, 16411)),
    *(case(f"axis{axis}", "GatherElements", data(5, 7, 3), indices(-3, 3, 5, 7, 3), axis=axis) for axis in (0, 1, 2)),
    case("smaller", "GatherElements", data(5, 7, 3), indices(-7, 7, 2, 11, 3, dtype="int32"), axis=1),
    case("bool", "GatherElements", data(5, 7, dtype="bool"), indices(0, 7, 5, 3), axis=-1),
    case("full", "GatherND", data(5, 7, 3), indices(-3, 3, 11, 3)),
    case("part", "GatherND", data(5, 7, 3), indices(-5, 5, 2, 3, 1)),
    case("batch1", "GatherND", data(5, 7, 3), indices(-3, 3, 5, 4, 2), batch_dims=1, opset=13),
    case("batch2", "GatherND", data(5, 7, 3), indices(-3, 3, 5, 7, 1), batch_dims=2, opset=13),
    case("int64", "GatherND", data(5, 7, dtype="int64"), indices(-5, 5, 4, 2), opset=11),
    case("bool", "GatherND", data(5, 7, dtype="bool"), indices(-5, 5, 4, 1)),
]

SCATTERS = [
    case("rows", "ScatterND", data(17, 5), distinct(17, 11, 1), data(11, 5, seed=2)),
    case("elements", "ScatterND", data(3, 5), np.array([[[0, -1]], [[2, 0]], [[-2, 3]]]), data(3, 1, seed=2)),
    case("all", "ScatterND", data(3, 5), np.zeros((1, 1), np.int64), data(1, 5, seed=2)),
    *(
        case(dtype, "ScatterND", data(7, 3, dtype=dtype), distinct(7, 5, 1), data(5, 3, dtype=dtype, seed=2))
        for dtype in ("bool", "uint8", "int64", "float16")
    ),
    case("many-places", "ScatterND", data(9001), distinct(9001, 5003, 1), data(5003, seed=2)),
    case("nothing", "ScatterND", data(5, 3), np.zeros((0, 1), np.int64), np.zeros((0, 3), np.float32)),
    *(
        case(
            f"axis{axis}",
            "ScatterElements",
            data(5, 5, 5),
            lines(5, 5, 5, 5).swapaxes(2, axis),
            data(5, 5, 5, seed=2),
            axis=axis,
        )
        for axis in (0, 1, 2)
    ),
    case(
        "smaller",
        "ScatterElements",
        data(5, 9, 3),
        lines(9, 2, 3, 4).swapaxes(1, 2).copy(),
        data(2, 4, 3, seed=2),
        axis=1,
    ),
    case("int32", "ScatterElements", data(5, 9), lines(9, 5, 4).astype(np.int32), data(5, 4, seed=2), axis=1, opset=11),
    case("bool", "ScatterElements", data(5, 9, dtype="bool"), lines(9, 5, 4), data(5, 4, seed=2, dtype="bool"), axis=1),
    case("opset9", "Scatter", data(5, 9), lines(9, 5, 4), data(5, 4, seed=2), axis=1, opset=9),
    *(
        case(
            f"{kind}-{dtype}",
            "ScatterElements",
            data(7, 3, dtype=dtype),
            indices(-7, 7, 11, 3),
            data(11, 3, dtype=dtype, seed=2),
            reduction=kind,
            opset=18,
        )
        for kind in ("add", "max", "min")
        for dtype in ("float32", "int32", "int64")
    ),
    case(
        "smaller-add",
        "ScatterElements",
        data(5, 7, 3),
        indices(-7, 7, 2, 11, 3),
        data(2, 11, 3, seed=2),
        axis=1,
        reduction="add",
        opset=16,
    ),
    *(
        case(kind, "ScatterND", data(7, 3), indices(-7, 7, 11, 1), data(11, 3, seed=2), reduction=kind, opset=18)
        for kind in ("mul", "max", "min")
    ),
]

OTHERS = [
    *(
        case(f"axis{axis}", "OneHot", indices(-7, 7, 5, 3), Host(7), np.array([2.5, -1], np.float32), axis=axis)
        for axis in (0, 1, -1)
    ),
    case(
        "out-of-range",
        "OneHot",
        np.array([-8, 7, 6, 1 << 40, (1 << 32) + 1]),
        Host([7]),
        np.array([0, 1], np.float32),
        opset=11,
    ),
    *(case(str(k), "EyeLike", data(5, 7), k=k) for k in (-9, -2, 0, 3)),
    *(case(f"to-{to}", "EyeLike", data(5, 7), dtype=to) for to in (6, 7)),
    case("time-first", "ReverseSequence", data(7, 5, 3), np.array([1, 7, 0, 4, 6])),
    case(
        "batch-first",
        "ReverseSequence",
        data(5, 7, dtype="int64"),
        np.array([1, 7, 2, 4, 6]),
        time_axis=1,
        batch_axis=0,
    ),
    case("bool", "ReverseSequence", data(5, 7, dtype="bool"), np.array([1, 5, 2, 4, 3, 1, 2])),
]


def ties(*shape: int) -> Array:
    """Few different values, so that order among equals shows; both zeros among them."""
    return np.random.default_rng(4).choice(np.array([-1.5, -0.0, 0.0, 2.0], np.float32), shape)


TOPS = [
    *(
        case(f"{n}-{k}", "TopK", data(3, n), Host([k]))
        for n, k in ((1, 1), (7, 3), (1000, 5), (1024, 1024), (1031, 7), (3079, 1500), (5003, 3))
    ),
    *(case(f"axis{axis}", "TopK", data(5, 7, 11), Host([4]), axis=axis, largest=0) for axis in (0, 1, 2)),
    *(
        case(f"{dtype}-{largest}", "TopK", data(3, 57, dtype=dtype), Host([9]), largest=largest)
        for dtype in ("int32", "int64", "float64")
        for largest in (0, 1)
    ),
    *(case(f"ties-{largest}", "TopK", ties(3, 2053), Host([1300]), largest=largest) for largest in (0, 1)),
    case("same-high-word", "TopK", indices(-9, 9, 3, 57), Host([31])),
    case("low-word", "TopK", -1 - np.random.default_rng(1).permutation(57) * 2.0**-45, Host([31])),
    case("infinities", "TopK", np.array([1, -np.inf, np.inf, 0, np.inf], np.float32), Host([5])),
    case("none", "TopK", data(3, 5), Host([0])),
    case("opset1", "TopK", data(3, 17), outputs=2, k=4, axis=1, opset=1),
    case("opset10", "TopK", data(3, 17), Host([4]), opset=10),
]


@pytest.mark.parametrize(("op", "inputs", "options"), [*GATHERS, *SCATTERS, *OTHERS, *TOPS])
def test_against_ort(op: str, inputs: Any, options: dict[str, Any]) -> None:
    model, feeds = model_of(op, inputs, **{"outputs": 2 if op == "TopK" else 1, **options})
    assert_same(run_direct(model, feeds), on_cpu(model, feeds))


def run(op: str, *inputs: Array | Host | None, **options: Any) -> list[Array]:
    return run_direct(*model_of(op, inputs, **options))


@pytest.mark.parametrize(
    ("at", "depth", "values"),
    [
        (indices(0, 5, 13, dtype="int32"), Host(5, "int32"), np.array([False, True])),
        (np.array([1, 3, -1, 7], np.float32), Host(5, "float32"), np.array([-1 << 40, 3])),
        (np.array([1, 3]), Host([5]), Host([7, 9], "uint8")),
    ],
)
def test_one_hot_of_types_that_ort_lacks(at: Array, depth: Host, values: Any) -> None:
    n = int(np.reshape(depth.value, ()))
    pair = values.value if isinstance(values, Host) else values
    wanted = np.where((at[:, None] == np.arange(n)) | (at[:, None] == np.arange(n) - n), pair[1], pair[0])
    assert_same(run("OneHot", at, depth, values), [wanted.astype(getattr(values, "dtype", np.int64))])


@pytest.mark.parametrize("shape", [(7, 13), (1, 1), (3, 256), (2, 257, 3), (5, 1031, 2), (2, 3, 70000)])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumsum(shape: tuple[int, ...], exclusive: int, reverse: int) -> None:
    axis = 1 if shape[-1] < 1000 else 2
    x = data(*shape)
    y = run("CumSum", x, Host(axis), exclusive=exclusive, reverse=reverse, opset=14)[0]
    wide = np.flip(x, axis).astype(np.float64) if reverse else x.astype(np.float64)
    wanted = np.cumsum(wide, axis) - (wide if exclusive else 0)
    wanted = np.flip(wanted, axis) if reverse else wanted
    assert np.linalg.norm(y - wanted) <= 6e-7 * max(np.linalg.norm(wanted), 1e-9)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_cumulated_integers_wrap(dtype: str) -> None:
    x = data(5, 301, dtype=dtype)
    assert_same(run("CumSum", x, Host(-1)), [np.cumsum(x, 1, dtype=dtype)])
    odd = x | np.asarray(1, dtype)  # an even factor in each second place would leave zeros only
    assert_same(run("CumProd", odd, Host(-1), opset=26), [np.cumprod(odd, 1, dtype=dtype)])


@pytest.mark.parametrize("shape", [(7, 13), (1, 1), (3, 256), (2, 257, 3), (5, 1031, 2), (2, 3, 70000), (0, 5), (5, 0)])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumprod(shape: tuple[int, ...], exclusive: int, reverse: int) -> None:
    axis = 1 if shape[-1] < 1000 else 2
    x = (1 + np.random.default_rng([7, *shape]).normal(size=shape) / 100).astype(np.float32)
    y = run("CumProd", x, Host(axis), exclusive=exclusive, reverse=reverse, opset=26)[0]
    wide = np.flip(x, axis).astype(np.float64) if reverse else x.astype(np.float64)
    wanted = np.cumprod(wide, axis) / (wide if exclusive else 1)
    wanted = np.flip(wanted, axis) if reverse else wanted
    assert np.linalg.norm(y - wanted) <= 5e-6 * np.linalg.norm(wanted)


def test_a_zero_factor_stays() -> None:
    """An exclusive product is no quotient: no NaN behind a zero; before infinities and NaN everything is as it was."""
    x = np.full((3, 700), 1.5, np.float32)
    x[:, 40:] = 1
    x[0, 300], x[1, 500], x[2, 600] = 0, np.nan, -np.inf
    y = run("CumProd", x, Host(1), exclusive=1, opset=26)[0]
    for line, at, value in ((0, 300, 0), (1, 500, np.nan), (2, 600, -np.inf)):
        np.testing.assert_allclose(y[line, 40 : at + 1], 1.5**40, rtol=1e-5)
        np.testing.assert_array_equal(y[line, at + 1 :], value)


def test_cumsum_stays_infinite_and_nan() -> None:
    x = data(2, 700)
    x[0, 300], x[1, 500] = np.inf, np.nan
    y = run("CumSum", x, Host(1), exclusive=1)[0]
    assert np.isfinite(y[0, :301]).all()
    assert (y[0, 301:] == np.inf).all()
    assert (np.isnan(y[1]) == (np.arange(700) > 500)).all()


@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
def test_of_several_updates_of_a_place_the_last_wins(op: str) -> None:
    at = indices(0, 3, 1000)
    wanted, updates = data(3), data(1000, seed=2)
    y = run(op, wanted, at[:, None] if op == "ScatterND" else at, updates)
    for n, place in enumerate(at):
        wanted[place] = updates[n]
    assert_same(y, [wanted])


def test_scatter_adds_in_order() -> None:
    at, x, updates = indices(-7, 7, 23, 1), data(7, 3), data(23, 3, seed=2)
    y = run("ScatterND", x, at, updates, reduction="add", opset=16)
    for n, place in enumerate(at[:, 0]):
        x[place] += updates[n]
    assert_same(y, [x])


def test_indices_out_of_range_touch_nothing_outside() -> None:
    far = np.array([-100, 5, 1 << 31, 4, 1 << 40])
    x = data(5)
    assert_same(run("Gather", x, far), [x[[0, 4, 0, 4, 0]]])
    assert_same(run("ScatterND", x, far[:4, None], data(4, seed=2)), [np.r_[x[:4], data(4, seed=2)[3]]])
    rows = data(2, 3)
    assert_same(run("ScatterND", rows, np.array([[0, 4], [1, -4]]), data(2)), [rows])


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "uint32", "uint64", "int16"])
def test_top_k_of_types_that_ort_lacks(dtype: str, largest: int) -> None:
    x = data(3, 1500, dtype=dtype)
    values, chosen = run("TopK", x, Host([1100]), outputs=2, largest=largest, opset=24)
    key = x.astype(np.float64) if dtype == "float16" else x.astype(object)
    wanted = np.argsort(-key if largest else key, axis=1, kind="stable")[:, :1100]
    assert_same([values, chosen], [np.take_along_axis(x, wanted, 1), wanted])


@pytest.mark.parametrize("wanted", [0, 1])
def test_one_output_of_top_k(wanted: int) -> None:
    model, feeds = model_of("TopK", (data(3, 17), Host([5])), outputs=2)
    both = on_cpu(model, feeds)
    del model.graph.output[1 - wanted]
    model.graph.node[0].output[1 - wanted] = ""
    assert_same(run_direct(model, feeds), [both[wanted]])


def test_fused_steps_of_cumsum() -> None:
    model, feeds = model_of("CumProd", (data(7, 3), Host(1)), opset=26, after=(helper.make_node("Neg", ["y0"], ["y"]),))
    np.testing.assert_allclose(run_direct(model, feeds, rewrite)[0], -np.cumprod(feeds["x0"], 1), rtol=1e-5, atol=1e-5)
    model, feeds = model_of("CumSum", (data(7, 301), Host(1)), after=(helper.make_node("Relu", ["y0"], ["y"]),))
    np.testing.assert_allclose(run_direct(model, feeds, rewrite)[0], on_cpu(model, feeds)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", OPS)
def test_onnx_cases(op: str) -> None:
    ran = 0
    for _, model, feeds, wanted in onnx_cases(op):
        # which cases are declined is pinned by the conformance status
        with contextlib.suppress(UnsupportedNodeError):
            assert_same(run_direct(model, feeds), wanted)
            ran += 1
    assert ran or op in NEWER, "every case was declined"


@pytest.mark.parametrize(
    ("code", "op", "inputs", "options"),
    [
        (Code.NOT_CONSTANT, "TopK", (data(5), np.array([2])), {"outputs": 2}),
        (Code.ATTRIBUTE, "TopK", (data(5), Host([6])), {"outputs": 2}),
        (Code.NOT_CONSTANT, "OneHot", (indices(0, 3, 5), np.array(3), data(2)), {}),
        (Code.DTYPE, "OneHot", (indices(0, 3, 5, dtype="uint8"), Host(3), data(2)), {}),
        (Code.DTYPE, "CumSum", (data(5, dtype="float64"), Host(0)), {}),
        (Code.DTYPE, "EyeLike", (data(5, 5),), {"dtype": 11}),
        (
            Code.DTYPE,
            "ScatterND",
            (data(5, dtype="float16"), indices(0, 5, 2, 1), data(2, dtype="float16")),
            {"reduction": "add", "opset": 18},
        ),
        (
            Code.COST,
            "ScatterND",
            (data(1 << 17), indices(0, 5, 1 << 15, 1), data(1 << 15)),
            {"reduction": "add", "opset": 18},
        ),
        (Code.ATTRIBUTE, "Gather", (data(0, 3), indices(0, 5, 2)), {}),
        (Code.OP, "Bernoulli", (data(5),), {}),
        (Code.ATTRIBUTE, "ReverseSequence", (data(7, 5, 3), np.array([1, 7])), {}),
        (Code.ATTRIBUTE, "ReverseSequence", (data(7, 5, 3), np.array([1, 7, 1, 1, 1, 1])), {}),
    ],
)
def test_declines(code: Code, op: str, inputs: Any, options: dict[str, Any]) -> None:
    model, feeds = model_of(op, inputs, **options)
    graph = from_onnx(model)
    with pytest.raises(UnsupportedNodeError) as caught:
        make_plan(graph, {n: TensorType(dtype_of(feeds[n]), feeds[n].shape) for n in graph.inputs}, Limits())
    assert caught.value.code is code
