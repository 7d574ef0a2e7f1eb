"""float64 and 16-bit integers, computed in their own type: against ONNX Runtime's CPU kernels, or numpy where there is
none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.runtime.program import Program
from tests.direct import device_without, run_direct
from tests.ops.single_node import Array, data, model_of, node_model, on_cpu

EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-300,
    -1e300,
    5e-324,
    1.7976931348623157e308,
    0.1,
    np.pi,
    -0.5,
    2.5,
    1.5,
    -1.5,
]


def check(
    op: str, *inputs: Array, opset: int = 20, ulps: float = 0, known: tuple[int, ...] = (), **attributes: Any
) -> None:
    """Element by element against ONNX Runtime's CPU, within so many ulps of float64."""
    model, feeds = node_model(op, inputs, opset, known, **attributes)
    (got,), (want,) = run_direct(model, feeds), on_cpu(model, feeds)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=ulps * 2.0**-52, atol=0)


def wide(*shape: int, seed: int = 3) -> np.ndarray:
    """float64 of all magnitudes."""
    rng = np.random.default_rng([seed, *shape])
    return rng.normal(size=shape) * np.exp(rng.uniform(-20, 20, shape))


@pytest.mark.parametrize("op", ["Abs", "Neg", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "Relu", "Sign", "IsNaN"])
def test_unary(op: str) -> None:
    with np.errstate(all="ignore"):
        x = np.abs(wide(7, 31)) if op == "Sqrt" else wide(7, 31)
        check(op, x, ulps=1 if op in ("Sqrt", "Reciprocal") else 0)
    if op != "Relu":  # ONNX Runtime's gives 0 for NaN
        check(op, np.array(EDGES), ulps=1)


@pytest.mark.parametrize("op", ["Exp", "Log"])
def test_exponentials_are_right_to_two_ulps(op: str) -> None:
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.uniform(-745, 709, 4000), rng.normal(size=1000), EDGES])
    x = np.abs(np.exp(rng.uniform(-700, 700, len(x)))) if op == "Log" else x
    x = np.concatenate([x, EDGES, [2.2e-308, 709.7, -744.0, 1 + 1e-15, 1 - 1e-15]])
    model, feeds = node_model(op, (x,), 20)
    (got,) = run_direct(model, feeds)
    with np.errstate(all="ignore"):
        exact = {"Exp": np.exp, "Log": np.log}[op](x.astype(np.longdouble)).astype(np.float64)
    np.testing.assert_allclose(got, exact, rtol=2 * 2.0**-52, atol=1e-322)


@pytest.mark.parametrize(
    "op", ["Add", "Sub", "Mul", "Div", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Max", "Min"]
)
def test_binary(op: str) -> None:
    check(op, wide(7, 1, 31), wide(5, 31, seed=4), ulps=1)
    check(op, np.array(EDGES), np.array(EDGES)[:, None], ulps=1)


def test_three_inputs() -> None:
    condition = data(6, 9) > 0
    check("Where", condition, wide(6, 9), wide(9, seed=5))
    check("Max", wide(3, 5), wide(5, seed=4), wide(3, 1, seed=6))
    x, y, z = wide(3, 5), wide(5, seed=4), wide(3, 1, seed=6)
    (mean,) = run_direct(*node_model("Mean", (x, y, z), 20))  # ONNX Runtime's CPU has none
    np.testing.assert_allclose(mean, (x + y + z) / 3, rtol=2.0**-51)
    check("Sum", wide(3, 5), wide(5, seed=4), wide(3, 1, seed=6), ulps=1)
    check("Clip", wide(40), np.float64(-0.3), np.float64(2.1), known=(1, 2))
    check("Clip", wide(40), np.array(-0.3), np.array(2.1))


@pytest.mark.parametrize(("opset", "attributes"), [(13, {"fmod": 1}), (28, {}), (28, {"fmod": 1})])
def test_mod(opset: int, attributes: dict[str, Any]) -> None:
    x, y = wide(40, 1), wide(37, seed=9)
    edges = [0.5, -0.5, 3.0, -7.25, 1e300, -1e-300, np.inf, 0.0, np.nan]
    for a, b in ((x, y), (np.array(edges)[:, None], np.array(edges))):
        model, feeds = node_model("Mod", (a, b), opset, **attributes)
        (got,) = run_direct(model, feeds)
        with np.errstate(all="ignore"):
            want = np.fmod(a, b) if attributes else np.mod(a, b)
        np.testing.assert_array_equal(got, want)


NUMBERS = ["float32", "float16", "int32", "int64", "uint32", "uint8", "int8", "uint16", "int16", "bool"]


@pytest.mark.parametrize("other", NUMBERS)
def test_cast(other: str) -> None:
    from onnx.helper import np_dtype_to_tensor_dtype

    low = 0.0 if other.startswith("u") else -100.0
    x = np.random.default_rng(2).uniform(low, 100, (5, 7))
    check("Cast", x, to=np_dtype_to_tensor_dtype(np.dtype(other)))
    check("Cast", (100 * data(5, 7)).astype(other), to=TensorProto.DOUBLE)


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
@pytest.mark.parametrize(
    "op",
    ["Add", "Sub", "Mul", "Div", "Less", "GreaterOrEqual", "Equal", "BitwiseAnd", "BitwiseXor", "Max", "Min", "Mod"],
)
def test_sixteen_bits(op: str, dtype: str) -> None:
    """ONNX Runtime's CPU has few of these: numpy wraps around as it does."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng(7)
    x = rng.integers(info.min, info.max, (9, 37), dtype=dtype, endpoint=True)
    y = rng.integers(1, info.max, (37,), dtype=dtype, endpoint=True)
    if info.min < 0:
        y[::3] *= -1
    model, feeds = node_model(op, (x, y), 18)
    (got,) = run_direct(model, feeds)
    with np.errstate(over="ignore"):
        quotient = np.trunc(x.astype(np.float64) / y).astype(dtype)
        want = {
            "Add": x + y,
            "Sub": x - y,
            "Mul": x * y,
            "Div": quotient,
            "Less": x < y,
            "GreaterOrEqual": x >= y,
            "Equal": x == y,
            "BitwiseAnd": x & y,
            "BitwiseXor": x ^ y,
            "Max": np.maximum(x, y),
            "Min": np.minimum(x, y),
            "Mod": np.mod(x, y),
        }[op]
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_sixteen_bits_of_one_input(dtype: str) -> None:
    x = np.random.default_rng(4).integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (3, 33), dtype=dtype)
    for op, want in (("BitwiseNot", ~x), ("Abs", np.abs(x)), *((("Neg", -x),) if dtype == "int16" else ())):
        model, feeds = node_model(op, (x,), 18)
        np.testing.assert_array_equal(run_direct(model, feeds)[0], want)
    for target in ("int32", "float32", "int8", "uint16", "int16"):
        check("Cast", x, to=int(TensorProto.DataType.Value({"float32": "FLOAT"}.get(target, target.upper()))))


def test_without_the_feature_float64_is_declined() -> None:
    gpu = device_without("shader-f64")
    model, _ = node_model("Add", (wide(5), wide(5)), 20)
    with pytest.raises(UnsupportedNodeError, match="needs the adapter feature shader-f64") as caught:
        Program(from_onnx(model), Config(), gpu)
    assert caught.value.code is Code.DTYPE


def test_what_has_no_float64_is_declined() -> None:
    with pytest.raises(UnsupportedNodeError, match="Erf with float64") as caught:
        run_direct(*node_model("Erf", (wide(5),), 20))
    assert caught.value.code is Code.DTYPE


@pytest.mark.parametrize(
    "op",
    [
        "ReduceSum",
        "ReduceMean",
        "ReduceProd",
        "ReduceMax",
        "ReduceMin",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSum",
        "ReduceLogSumExp",
    ],
)
@pytest.mark.parametrize("axes", [(1,), (0, 2), (0, 1, 2)])
def test_reductions(op: str, axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(6).uniform(0.4, 1.7, (3, 37, 5)) * (700 if op == "ReduceLogSumExp" else 1)
    model, feeds = node_model(op, (x, np.array(axes)), 18, (1,))
    (got,) = run_direct(model, feeds)
    fold = {
        "Sum": np.sum,
        "Mean": np.mean,
        "Prod": np.prod,
        "Max": np.max,
        "Min": np.min,
        "L1": np.sum,
        "SumSquare": lambda v, **k: np.sum(v * v, **k),
        "L2": lambda v, **k: np.sqrt(np.sum(v * v, **k)),
        "LogSum": lambda v, **k: np.log(np.sum(v, **k)),
        "LogSumExp": lambda v, **k: np.max(v, **k) + np.log(np.sum(np.exp(v - np.max(v, **k)), **k)),
    }[op.removeprefix("Reduce")]
    np.testing.assert_allclose(got, fold(x, axis=axes, keepdims=True), rtol=1e-14)


def test_log_sum_exp_of_infinities() -> None:
    x = np.array([[-np.inf, -np.inf], [np.inf, 1.0], [-np.inf, 3.0], [np.nan, np.inf]])
    (got,) = run_direct(*node_model("ReduceLogSumExp", (x, np.array([1])), 18, (1,), keepdims=0))
    np.testing.assert_array_equal(got, [-np.inf, np.inf, 3.0, np.nan])


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("size", [1, 63, 301])
def test_running_sums(size: int, reverse: int, exclusive: int) -> None:
    x = wide(2, size, 3) if size < 10 else np.random.default_rng(size).normal(size=(2, size, 3))
    check("CumSum", x, np.array(1), opset=14, known=(1,), reverse=reverse, exclusive=exclusive, ulps=2.0**20)
    turned = np.flip(x, 1) if reverse else x
    want = np.cumprod(turned, 1)
    if exclusive:
        want = np.concatenate([np.ones_like(want[:, :1]), want[:, :-1]], 1)
    (got,) = run_direct(*node_model("CumProd", (x, np.array(1)), 26, (1,), reverse=reverse, exclusive=exclusive))
    np.testing.assert_allclose(got, np.flip(want, 1) if reverse else want, rtol=1e-13)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij->", [(5, 7)]),
        ("ij->ji", [(5, 7)]),
        ("...ii->...i", [(3, 4, 4)]),
        ("bij,bjk->bik", [(2, 5, 11), (2, 11, 3)]),
        ("i,i", [(37,), (37,)]),
        ("iij,kl->kj", [(5, 5, 7), (3, 11)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = [np.random.default_rng(k).normal(size=shape) for k, shape in enumerate(shapes)]
    (got,) = run_direct(*node_model("Einsum", inputs, 12, equation=equation))
    np.testing.assert_allclose(got, np.einsum(equation, *inputs), rtol=1e-13, atol=1e-14)


def test_eye_like() -> None:
    check("EyeLike", np.zeros((5, 7), np.int32), dtype=TensorProto.DOUBLE, k=1)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5, 37), (37, 3)),
        ((2, 1, 5, 7), (3, 7, 4)),
        ((7,), (2, 7, 3)),
        ((2, 5, 7), (7,)),
        ((7,), (7,)),
        ((0, 7), (7, 3)),
        ((5, 0), (0, 3)),
    ],
    ids=str,
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Also where a float32 sum is off, and with a step behind."""
    x, y = np.random.default_rng(3).normal(size=a) * 1e9, np.random.default_rng(4).normal(size=b)
    model, feeds = node_model("MatMul", (x, y), 20)
    (got,) = run_direct(model, feeds)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, x @ y, rtol=1e-12, atol=1e-5)
    for every_size_open in (False, True):
        (got,) = run_direct(
            *model_of("MatMul", (x, y), after=(helper.make_node("Neg", ["y0"], ["y"]),)),
            every_size_open=every_size_open,
        )
        np.testing.assert_allclose(got, -(x @ y), rtol=1e-12, atol=1e-5)


@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("c", [None, (3,), (5, 1), (5, 3), ()], ids=str)
def test_gemm(turned: tuple[int, int], c: tuple[int, ...] | None) -> None:
    rng = np.random.default_rng(9)
    a, b = rng.normal(size=(11, 5) if turned[0] else (5, 11)), rng.normal(size=(3, 11) if turned[1] else (11, 3))
    given = (a, b) if c is None else (a, b, rng.normal(size=c))
    for factors in ({}, {"alpha": 0.3, "beta": -1.7}):
        model, feeds = node_model("Gemm", given, 13, transA=turned[0], transB=turned[1], **factors)
        (got,), (want,) = run_direct(model, feeds), on_cpu(model, feeds)
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)
        model, feeds = model_of(
            "Gemm",
            given,
            after=(helper.make_node("Relu", ["y0"], ["y"]),),
            transA=turned[0],
            transB=turned[1],
            **factors,
        )
        np.testing.assert_allclose(run_direct(model, feeds)[0], np.maximum(want, 0), rtol=1e-13, atol=1e-13)


def test_fused_matmul() -> None:
    a, b = np.random.default_rng(1).normal(size=(2, 7, 5)), np.random.default_rng(2).normal(size=(2, 3, 7))
    model, feeds = node_model("FusedMatMul", (a, b), 17, domain="com.microsoft", alpha=0.25, transA=1, transB=1)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    np.testing.assert_allclose(
        run_direct(model, feeds)[0], 0.25 * a.swapaxes(1, 2) @ b.swapaxes(1, 2), rtol=1e-13, atol=1e-13
    )


def test_without_the_feature_a_product_of_float64_is_declined() -> None:
    model, _ = node_model("MatMul", (wide(3, 4), wide(4, 5)), 20)
    with pytest.raises(UnsupportedNodeError, match="needs the adapter feature shader-f64"):
        Program(from_onnx(model), Config(), device_without("shader-f64"))
