"""Float16 models whose sums are beyond float16 on the way to a result that is not: each form at three magnitudes
against float64.

A reduction of many elements has parts of its sum in memory, and a square, an exponential or a product lies there
between the kernel that calculates it and the reduction that reads it. float16 ends at 65,504 and begins at 6e-8. ONNX
Runtime's CPU has all of these in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

from ort_gpu_ep.comparison.float64 import Float64
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import Graph, Node, Value, from_onnx
from ort_gpu_ep.ir.types import FLOAT16
from ort_gpu_ep.kernels import questions
from ort_gpu_ep.ops import reduce
from ort_gpu_ep.partitioner import passes, rewrite
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch, Plan
from tests.direct import PACKED, opened, run_program

Array = np.ndarray[Any, Any]

CONSTANTS = {"two": 2.0, "eps": 1e-5, "minus_half": -0.5, "count": 64.0, "small": 1 / 64}
SIZES = "int64[1] last = {-1}, int64[1] one = {1}, int64[2] flat = {10, 64}"
ROWS, MAPS, LONG, IMAGE = (2, 5, 64), (1, 4, 8, 8), (2, 20_000), (1, 2, 160, 160)

LARGE = {
    # parts of long reductions; x is about `large` everywhere
    "mean": (LONG, "y = ReduceMean<axes=[1]>(x)", 100),
    "mean over planes": (IMAGE, "y = ReduceMean<axes=[2, 3]>(x)", 100),
    "L2": (LONG, "y = ReduceL2<axes=[1]>(x)", 100),
    "L1": (LONG, "a = ReduceL1<axes=[1]>(x) y = Mul(a, small)", 30),
    "sum": (LONG, "a = ReduceSum(x, one) y = Mul(a, small)", 30),
    "sum of squares": (LONG, "a = ReduceSumSquare<axes=[1]>(x) y = Sqrt(a)", 100),
    "logarithm of a sum": (LONG, "y = ReduceLogSum<axes=[1]>(x)", 100),
    "logarithm of exponentials": (LONG, "y = ReduceLogSumExp<axes=[1]>(x)", 12),
    "maximum": (LONG, "y = ReduceMax<axes=[1]>(x)", 100),
    "minimum": (LONG, "y = ReduceMin<axes=[1]>(x)", 100),
    "global average": (IMAGE, "y = GlobalAveragePool(x)", 100),
    "global Lp, 2": (IMAGE, "y = GlobalLpPool<p=2>(x)", 100),
    "global Lp, 3": (IMAGE, "y = GlobalLpPool<p=3>(x)", 100),
    "global maximum": (IMAGE, "y = GlobalMaxPool(x)", 100),
    "squeeze and excitation": (
        (1, 4, 130, 130),
        "m = GlobalAveragePool(x) a = Conv(m, mix) s = Sigmoid(a) y = Mul(x, s)",
        100,
    ),
    "average of windows": (IMAGE, "y = AveragePool<kernel_shape=[40, 40], strides=[40, 40]>(x)", 1000),
    "Lp of windows": (IMAGE, "y = LpPool<kernel_shape=[40, 40], strides=[40, 40], p=2>(x)", 1000),
    "mean of 12": ((3, 50), "y = Mean(x, x, x, x, x, x, x, x, x, x, x, x)", 8000),
    "sum of 13": ((3, 50), "n = Neg(x) y = Sum(x, x, x, x, x, x, x, n, n, n, n, n, n)", 10_000),
    "running mean": (LONG, "a = CumSum(x, one) y = Div(a, places)", 10),
    "Einsum of one": (LONG, 'a = Einsum<equation="ij->i">(x) y = Mul(a, small)', 30),
    "Einsum of two": (LONG, 'a = Einsum<equation="ij,ij->i">(x, x) y = Sqrt(a)', 100),
    "vectors": (LONG, "y = MatMul(x, columns)", 30),
    "matrices": ((40, 20_000), "y = MatMul(x, columns)", 30),
    "scaled product": (LONG, "y = Gemm<alpha=0.0625>(x, columns)", 100),
    "convolution": ((1, 512, 5, 5), "y = Conv<pads=[1, 1, 1, 1]>(x, filters)", 30),
    "mean of losses": (
        (20_000, 4),
        "a = LogSoftmax<axis=1>(x) b = ReduceMean<axes=[1]>(a) c = Mul(b, b) m = ReduceMean<axes=[0]>(c) y = Sqrt(m)",
        100,
    ),
    "error of a batch": ((4, 20_000), "d = Sub(x, half) q = Mul(d, d) m = ReduceMean<keepdims=0>(q) y = Sqrt(m)", 3000),
    "sum, then quotient": (ROWS, "a = ReduceSum<keepdims=1>(x, last) m = Div(a, count) y = Sub(x, m)", 10_000),
    "squares, then quotient": (
        ROWS,
        "a = ReduceSumSquare<axes=[-1]>(x) m = Div(a, count) w = Sqrt(m) y = Div(x, w)",
        10_000,
    ),
    "by the L2 norm": (LONG, "a = ReduceL2<axes=[-1]>(x) y = Div(x, a)", 30_000),
    "by the L1 norm": ((2, 500), "a = ReduceL1<axes=[-1]>(x) y = Div(x, a)", 3000),
    "response normalization": (
        (2, 8, 8, 64),
        "r = ReduceL2<axes=[1, 2]>(x) m = ReduceMean<axes=[-1]>(r) a = Add(m, eps) n = Div(r, a) y = Mul(x, n)",
        20_000,
    ),
    "scores of a product": (ROWS, "s = MatMul(x, weights) y = Softmax<axis=-1>(s)", 30_000),
    "extremes of a product": (
        (5, 64),
        "s = Gemm(x, weights) a = ReduceMax<axes=[-1]>(s) b = ReduceMin<axes=[-1]>(s) y = Div(a, b)",
        30_000,
    ),
}
NORM = "q = Mul(c, c) v = ReduceMean<axes=[-1]>(q) w = Add(v, eps) s = Sqrt(w)"
OUTLIER = {
    # one element of a row is `large` times the others
    "layer normalization": (LONG, "y = LayerNormalization(x, ones)", 600, 17),
    "RMS normalization": (LONG, "y = RMSNormalization(x, ones)", 600, 23),
    "instance normalization": (IMAGE, "y = InstanceNormalization(x, pair, pair)", 600),
    "group normalization": ((1, 4, 100, 100), "y = GroupNormalization<num_groups=2>(x, four, four)", 600, 21),
    "training normalization": (
        (2, 4, 100, 100),
        "y, m, v = BatchNormalization<training_mode=1>(x, four, four, four, four)",
        600,
    ),
    "L1 normalization": (LONG, "y = LpNormalization<p=1>(x)", 600),
    "L2 normalization": (LONG, "y = LpNormalization<p=2>(x)", 600),
    "mean and variance": ((1, 3, 100, 100), "y = MeanVarianceNormalization(x)", 600),
    "Softmax": (LONG, "a = Softmax<axis=1>(x) y = Log(a)", 4),
    "LogSoftmax": (LONG, "y = LogSoftmax<axis=1>(x)", 600),
    "by hand: RMS": (ROWS, f"c = Identity(x) {NORM} n = Div(c, s) y = Mul(n, weight)", 600),
    "by hand: RMS, no weight": (ROWS, f"c = Identity(x) {NORM} n = Div(c, s) y = Relu(n)", 600),
    "by hand: RMS, reciprocal": (
        ROWS,
        f"c = Identity(x) {NORM} r = Reciprocal(s) n = Mul(c, r) y = Mul(n, weight)",
        600,
    ),
    "by hand: RMS, two scales": (
        ROWS,
        f"c = Identity(x) {NORM} n = Div(c, s) y = Mul(n, weight) z = Div(weight, s)",
        600,
    ),
    "by hand: RMS, power": (
        ROWS,
        "q = Pow(x, two) v = ReduceMean<axes=[-1]>(q) w = Add(v, eps) s = Pow(w, minus_half) y = Mul(x, s)",
        600,
    ),
    "by hand: layers": (ROWS, f"m = ReduceMean<axes=[-1]>(x) c = Sub(x, m) {NORM} n = Div(c, s) y = Relu(n)", 600),
    "by hand: layers, power": (
        ROWS,
        "m = ReduceMean<axes=[-1]>(x) c = Sub(x, m) q = Pow(c, two) v = ReduceMean<axes=[-1]>(q) w = Add(v, eps) "
        "s = Pow(w, minus_half) n = Mul(c, s) y = Mul(n, weight)",
        600,
    ),
    "by hand: channels": (
        ROWS,
        "m = ReduceMean<axes=[1]>(x) c = Sub(x, m) q = Pow(c, two) v = ReduceMean<axes=[1]>(q) w = Add(v, eps) "
        "s = Sqrt(w) "
        "y = Div(c, s)",
        600,
    ),
    "by hand: planes": (
        (1, 4, 140, 140),
        "m = ReduceMean<axes=[2, 3]>(x) c = Sub(x, m) q = Mul(c, c) v = ReduceMean<axes=[2, 3]>(q) w = Add(v, eps) "
        "s = Sqrt(w) y = Div(c, s)",
        600,
    ),
    "by hand: moments": (
        ROWS,
        "q = Mul(x, x) v = ReduceMean<axes=[-1]>(q) m = ReduceMean<axes=[-1]>(x) n = Mul(m, m) w = Sub(v, "
        "n) y = Sqrt(w)",
        600,
    ),
    "by hand: L2": (ROWS, "q = Mul(x, x) a = ReduceSum(q, last) r = Sqrt(a) y = Div(x, r)", 600),
    "cosine": (
        ROWS,
        "q = Mul(x, x) a = ReduceSum(q, last) r = Sqrt(a) u = Mul(x, weight) d = ReduceSum(u, last) y = Div(d, r)",
        600,
    ),
    "by hand: Softmax": (ROWS, "e = Exp(x) a = ReduceSum<keepdims=1>(e, last) y = Div(e, a)", 4.5),
    "by hand: logarithm of a sum": (ROWS, "e = Exp(x) a = ReduceSum<keepdims=1>(e, last) y = Log(a)", 4.5),
    "square: RMS normalization": (ROWS, "q = Mul(x, x) y = RMSNormalization(q, weight)", 600, 23),
    "square: layer normalization": (ROWS, "q = Mul(x, x) y = LayerNormalization(q, weight)", 600),
    "square: instance normalization": (MAPS, "q = Mul(x, x) y = InstanceNormalization(q, four, four)", 600),
    "square: global average": (MAPS, "q = Mul(x, x) m = GlobalAveragePool(q) y = Sqrt(m)", 600),
    "square: average": (MAPS, "q = Mul(x, x) m = AveragePool<kernel_shape=[2, 2]>(q) y = Sqrt(m)", 600),
    "square: Lp": (MAPS, "q = Mul(x, x) m = LpPool<kernel_shape=[2, 2]>(q) y = Sqrt(m)", 600),
    "square: Softmax": (ROWS, "q = Mul(x, x) y = Softmax<axis=-1>(q)", 600),
    "square: running sum": (ROWS, "q = Mul(x, x) a = CumSum(q, last) y = Sqrt(a)", 600),
    "square: transposed": (
        ROWS,
        "q = Mul(x, x) t = Transpose<perm=[0, 2, 1]>(q) m = ReduceMean<axes=[1]>(t) y = Sqrt(m)",
        600,
    ),
    "square: reshaped": (ROWS, "q = Mul(x, x) t = Reshape(q, flat) m = ReduceMean<axes=[1]>(t) y = Sqrt(m)", 600),
    "square: joined": (ROWS, "q = Mul(x, x) t = Concat<axis=1>(q, x) m = ReduceMax<axes=[-1]>(t) y = Sqrt(m)", 600),
    "square: two reductions": (
        ROWS,
        "q = Mul(x, x) m = ReduceMean<axes=[-1]>(q) k = ReduceMax<axes=[-1]>(q) y = Div(m, k)",
        600,
    ),
    "square: Einsum": (ROWS, 'q = Mul(x, x) m = Einsum<equation="bij->bi">(q) y = Sqrt(m)', 600),
    "fourth power": (ROWS, "q = Mul(x, x) r = Mul(q, q) m = ReduceMean<axes=[-1]>(r) a = Sqrt(m) y = Sqrt(a)", 200),
    "square by its mean": (ROWS, "q = Mul(x, x) m = ReduceMean<axes=[-1]>(q) y = Div(q, m)", 600),
    "square and a product": (
        ROWS,
        "q = Mul(x, x) m = ReduceMean<axes=[-1]>(q) r = Sqrt(m) z = MatMul(x, weights) y = Div(z, r)",
        100,
    ),
}
FORMS = {
    **{name: ("large", *form) for name, form in LARGE.items()},
    **{name: ("outlier", *form) for name, form in OUTLIER.items()},
}


def held(body: str) -> dict[str, Array]:
    rng = np.random.default_rng(len(body))
    made = {
        "mix": rng.normal(size=(4, 4, 1, 1)),
        "places": np.arange(1, 20_001),
        "columns": rng.normal(size=(20_000, 4)) / 8,
        "filters": rng.normal(size=(4, 512, 3, 3)) / 8,
        "half": np.full(20_000, 0.5),
        "weights": rng.normal(size=(64, 64)) / 8,
        "ones": np.ones(20_000),
        "pair": np.ones(2),
        "four": np.ones(4),
        "weight": 1 + rng.normal(size=64) / 8,
        **CONSTANTS,
    }
    return {name: np.asarray(value, np.float16) for name, value in made.items()}


def model_of(shape: tuple[int, ...], body: str, opset: int = 17) -> onnx.ModelProto:
    sizes = ", ".join(map(str, shape))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g (float16[{sizes}] x) => (float16 y) <{SIZES}> {{ {body} }}'
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in held(body).items() if name in read
    )
    return model


def inputs_of(kind: str, shape: tuple[int, ...], large: float) -> dict[str, Array]:
    """By magnitude."""
    x = np.random.default_rng(shape).normal(size=shape)
    if kind == "large":
        return {
            name: ((1 + 0.1 * x) * size).astype(np.float16)
            for name, size in (("small", 2.0**-9), ("one", 1.0), ("large", large))
        }
    outlier = x.copy()
    outlier[..., 3] *= large
    return {"small": (x * 2.0**-9).astype(np.float16), "one": x.astype(np.float16), "large": outlier.astype(np.float16)}


def plain(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return list(
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(
            None, dict(feeds)
        )
    )


def mistakes(graph: Graph, wanted: Mapping[str, tuple[Array, Array]]) -> dict[str, float]:
    """By magnitude, how far a result is off in parts of the largest number, where that is more than float16 justifies.

    wanted: x, and y in float64.
    """
    program, found = Program(graph, PACKED, Gpu.open(Config()), rewrite), dict[str, float]()
    try:
        for name, (x, exact) in wanted.items():
            got = run_program(program, {"x": x})[0].astype(np.float64)
            assert got.shape == exact.shape
            off, largest = np.abs(got - exact).max(), np.abs(exact).max()
            if not off <= 4e-3 * largest + 2.0**-15:
                found[name] = off / largest
    finally:
        program.close()
    return found


def case_of(name: str) -> tuple[Graph, dict[str, tuple[Array, Array]]]:
    kind, shape, body, large, *opset = FORMS[name]
    model = model_of(shape, body, *opset)
    wanted = {
        k: (x, Float64(plain).run(model, {"x": x})[0].astype(np.float64))
        for k, x in inputs_of(kind, shape, large).items()
    }
    assert all(np.isfinite(exact).all() for _, exact in wanted.values())
    return from_onnx(model), wanted


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    assert mistakes(*case_of(name)) == {}


@pytest.mark.parametrize("name", ["mean", "by hand: layers", "square: transposed"])
def test_forms_of_open_sizes(name: str) -> None:
    graph, wanted = case_of(name)
    assert mistakes(opened(graph), wanted) == {}


def test_products_and_neighbours() -> None:
    """What Float64 has no kernel for."""
    signs = np.where(np.arange(20_000) < 10_000, 1.0, -1.0)
    x = np.tile(1 + 0.004 * signs, (2, 1)).astype(np.float16)
    graph = from_onnx(model_of((2, 20_000), "y = ReduceProd<axes=[1]>(x)"))
    assert mistakes(graph, {"parts of 1e17 and 1e-18": (x, x.astype(np.float64).prod(1, keepdims=True))}) == {}
    x = (600 * np.random.default_rng(3).normal(size=(1, 16, 5, 5))).astype(np.float16)
    square = np.pad(x.astype(np.float64) ** 2, ((0, 0), (2, 2), (0, 0), (0, 0)))
    near = sum(square[:, k : k + 16] for k in range(5))
    wanted = x / (1 + 1e-4 / 5 * near) ** 0.75
    assert mistakes(from_onnx(model_of(x.shape, "y = LRN<size=5>(x)")), {"600": (x, wanted)}) == {}


@pytest.mark.parametrize("name", ["mean", "by hand: RMS", "square: Softmax"])
def test_stored_in_float16_these_are_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forms can fail: parts in float16, and values between kernels in it."""
    monkeypatch.setattr(reduce, "summed", lambda dtype: dtype)
    monkeypatch.setattr(passes, "widen", lambda graph, *rest: graph)
    with questions.apart(), np.errstate(invalid="ignore"):
        assert "large" in mistakes(*case_of(name))


def plan_of(model: onnx.ModelProto) -> Plan:
    graph = from_onnx(model)
    program = Program(graph, PACKED, Gpu.open(Config()), rewrite)
    try:
        x = inputs_of("large", tuple(int(d) for d in graph.values["x"].shape or ()), 1.0)["one"]
        run_program(program, {"x": x})
        return program.plans[-1]
    finally:
        program.close()


def stored(plan: Plan) -> list[str]:
    """Element types of what dispatches write, in their order."""
    return [t.type.dtype.name for step in plan.steps if isinstance(step, Dispatch) for t in step.tensors if t.written]


@pytest.mark.parametrize(
    ("body", "types"),
    [
        ("a = Add(x, x) b = Relu(a) y = LayerNormalization(a, weight)", ["float16"] * 2),
        ("s = Sigmoid(x) g = Mul(x, s) y = ReduceMean<axes=[-1]>(g)", ["float16"] * 2),
        ("q = Mul(x, x) y = MatMul(q, weights)", ["float16"] * 2),
        ("m = ReduceMean<axes=[-1]>(x) c = Sub(x, m) y = MatMul(c, weights)", ["float16"] * 3),
        ("q = Mul(x, x) y = ReduceMean<axes=[-1]>(q)", ["float32", "float16"]),
        (
            "q = Mul(x, x) m = ReduceMean<axes=[-1]>(q) z = MatMul(q, weights) y = Div(z, m)",
            ["float32", "float16", "float32", "float16"],
        ),
    ],
    ids=["residual sum", "gate", "no reduction", "mean of what fits", "square", "square that a product reads, too"],
)
def test_only_what_may_be_beyond_float16_is_float32(body: str, types: list[str]) -> None:
    """The rest takes half of the memory, as before."""
    assert sorted(stored(plan_of(model_of(ROWS, body)))) == sorted(types)


def test_an_output_stays_float16() -> None:
    """The square is given out, too: the reduction reads it as it was calculated."""
    model = model_of(ROWS, "q = Mul(x, x) m = ReduceMean<axes=[-1]>(q) y = Sqrt(m)")
    model.graph.output.append(onnx.helper.make_tensor_value_info("q", onnx.TensorProto.FLOAT16, ROWS))
    x = inputs_of("outlier", ROWS, 600)["large"]
    program = Program(from_onnx(model), PACKED, Gpu.open(Config()), rewrite)
    try:
        y, q = run_program(program, {"x": x})
    finally:
        program.close()
    exact = x.astype(np.float64) ** 2
    np.testing.assert_allclose(y, np.sqrt(exact.mean(-1, keepdims=True)), rtol=2e-3)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(q, exact.astype(np.float16), rtol=2e-3)


def test_where_a_row_refuses_float32_the_graph_stays() -> None:
    """A normalization of ONNX Runtime's that takes one type reads the square in float16."""
    values = {
        "x": Value("x", FLOAT16, ROWS),
        "g": Value("g", FLOAT16, (64,), lambda: np.ones(64, np.float16)),
        "y": Value("y", FLOAT16),
    }
    nodes = (
        Node("Mul", ("x", "x"), ("q",), "q", "", 14, id=0),
        Node("ReduceMean", ("q",), ("m",), "m", "", 13, {"axes": (-1,)}, id=1),
        Node("SimplifiedLayerNormalization", ("q", "g"), ("n",), "n", "", 1, {"axis": -1}, id=2),
        Node("Sub", ("n", "m"), ("y",), "y", "", 14, id=3),
    )
    graph = Graph("g", ("x",), ("y",), nodes, values)
    x = inputs_of("outlier", ROWS, 4)["one"]
    exact = x.astype(np.float64) ** 2
    wanted = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) - exact.mean(-1, keepdims=True)
    assert mistakes(graph, {"one": (x, wanted)}) == {}
