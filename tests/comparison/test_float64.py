"""A model in float64: the values, what is left in float32, and the verdict that it gives."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_gpu_ep.comparison.float64 import Float64
from ort_gpu_ep.comparison.values import difference, judged
from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.plugin.verification import cpu_run
from tests.cli.test_cli import call, parsed
from tests.unit.graphs import model_of

RNG = np.random.default_rng(17)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("f")


def test_a_network_is_evaluated_in_float64() -> None:
    """Convolution, Erf and pooling have no float64 kernel in onnxruntime, products have."""
    held = {"w": normal(4, 3, 3, 3), "b": normal(4), "v": normal(4, 5)}
    model = model_of(
        """(float[N, 3, 6, 6] x) => (float[N, 5] y) {
        c = Conv<pads=[1,1,1,1]>(x, w, b) e = Erf(c) p = GlobalAveragePool(e) f = Flatten(p) y = MatMul(f, v) }""",
        held,
    )
    x = normal(2, 3, 6, 6)
    evaluator = Float64(cpu_run)
    got = evaluator.run(model, {"x": x})[0]
    padded = np.pad(x.astype("d"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    conv = np.einsum("nchwij,ocij->nohw", windows, held["w"].astype("d")) + held["b"].astype("d")[:, None, None]
    want = np.vectorize(math.erf)(conv).mean((2, 3)) @ held["v"].astype("d")
    assert got.dtype == np.float32
    assert np.array_equal(got, want.astype("f"))
    assert evaluator.in_float32 == []


def test_a_sum_that_float32_loses() -> None:
    model = model_of("(float[3] x) => (float y) { a = Cast<to=1>(x) y = ReduceSum<keepdims=0>(a) }")
    x = np.array([1e9, 1, -1e9], "f")
    assert Float64(cpu_run).run(model, {"x": x})[0] == 1.0
    assert onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0] != 1.0, (
        "else the test shows nothing"
    )


def test_inputs_that_take_float32_only_get_that() -> None:
    model = model_of(
        '(float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) { y = Resize<mode="nearest">(x, , s) }',
        {"s": np.array([1, 1, 2, 2], "f")},
    )
    x = normal(1, 1, 2, 2)
    assert np.array_equal(Float64(cpu_run).run(model, {"x": x})[0], np.repeat(np.repeat(x, 2, 2), 2, 3))


def test_bodies_are_in_float64_too() -> None:
    model = model_of("""(float[3] x, bool c) => (float y) {
        y = If (c) <then_branch = t () => (float a) { k = Constant<value = float {0.0}>() s = ReduceSum<keepdims=0>(x) a = Add(s, k) },
                    else_branch = e () => (float b) { b = Constant<value = float {2.0}>() }> }""")
    assert Float64(cpu_run).run(model, {"x": np.array([1e9, 1, -1e9], "f"), "c": np.array(True)})[0] == 1.0


def test_gelu_is_not_by_a_float32_erf() -> None:
    x = normal(1000).astype("d")
    got = Float64(cpu_run).run(model_of("(double[N] x) => (double[N] y) { y = Gelu(x) }"), {"x": x})[0]
    assert np.abs(got - 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))).max() < 1e-15
    near = Float64(cpu_run).run(
        model_of('(double[N] x) => (double[N] y) { y = Gelu<approximate = "tanh">(x) }'), {"x": x}
    )[0]
    assert 1e-6 < np.abs(got - near).max() < 1e-3


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5), (2, 3, 4, 5, 2)])
def test_global_max_pool_of_any_rank(shape: tuple[int, ...]) -> None:
    """onnx's reference is for images only: of a sequence it takes the maximum over its channels."""
    x = normal(*shape)
    got = Float64(cpu_run).run(
        model_of(f"(float[{','.join(map(str, shape))}] x) => (float y) {{ y = GlobalMaxPool(x) }}"), {"x": x}
    )[0]
    assert np.array_equal(np.squeeze(got), x.reshape(2, 3, -1).max(2))
    assert np.ndim(got) == len(shape)


def test_what_is_left_in_float32_is_named() -> None:
    model = model_of(
        "(float[4] x) => (float[4] y) { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }",
        {"s": np.float32(0.1)},
        opset=13,
    )
    evaluator = Float64(cpu_run)
    x = np.abs(normal(4))
    assert np.allclose(evaluator.run(model, {"x": x})[0], np.round(x / np.float32(0.1)) * 0.1)
    assert evaluator.in_float32 == ["y"], "its scale is a float32, as opset 13 has it"


def test_an_op_that_nothing_evaluates() -> None:
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("Riddle", ["x"], ["y"], "sphinx", domain="nowhere")],
            "g",
            [onnx.helper.make_tensor_value_info("x", 1, [1])],
            [onnx.helper.make_tensor_value_info("y", 1, [1])],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("nowhere", 1)],
        ir_version=8,
    )
    with pytest.raises(ModelError, match="Riddle sphinx"):
        Float64(cpu_run).run(model, {"x": normal(1)})


def test_the_nearer_side_is_right() -> None:
    exact = normal(100)
    near, far = exact * np.float32(1 + 1e-5), exact * np.float32(1.01)
    assert judged(["y"], [near], [far], [exact])[0].within()
    assert not judged(["y"], [far], [near], [exact])[0].within()
    assert not judged(["y"], [near], [far])[0].within()
    lost = near.copy()
    lost[3] = np.nan
    assert not judged(["y"], [lost], [far], [exact])[0].within()
    assert difference("y", near, exact).relative == pytest.approx(1e-5, rel=0.1)


@pytest.fixture
def cancelling(tmp_path: Path) -> Path:
    """Sums in which the CPU's float32 loses the smaller parts; ours adds in another order, and of 64 rows some differ
    with any numbers."""
    path = tmp_path / "sum.onnx"
    model = model_of(
        "(float[N, 4096] x) => (float[N, 1] y) { h = MatMul(x, w) y = Sub(h, c) }",
        {"w": np.ones((4096, 1), "f"), "c": np.array([4096e4], "f")},
    )
    path.write_bytes(model.SerializeToString())
    np.save(tmp_path / "x.npy", (1e4 + RNG.standard_normal((64, 4096))).astype("f"))
    return path


def test_the_verdict_goes_by_float64(cancelling: Path) -> None:
    given = ("--input", f"x={cancelling.with_name('x.npy')}")
    found = parsed("compare", cancelling, "--between", "float64", "float64", *given, "--json")
    assert found["within"]
    assert found["nodes"] == {}
    done = call("compare", cancelling, "--between", "cpu", "float64", *given)
    assert done.returncode == 1, "float32 can't hold these sums"
    assert "cpu compared with float64" in " ".join(done.stdout.split())
    done = call("compare", cancelling, *given)
    lines = " ".join(done.stdout.split())
    assert "from float64, relative: gpu " in lines
    ours, theirs = (
        float(lines.partition(f"{side} ")[2].split(",")[0].split()[0]) for side in ("relative: gpu", ", cpu")
    )
    assert done.returncode == (0 if ours <= theirs else 1)


def test_two_others_are_compared(cancelling: Path) -> None:
    assert call("compare", cancelling, "--between", "cpu", "cpu", "--dim", "N=2").returncode == 0
    assert call("compare", cancelling, "--between", "cpu", "tpu").returncode == 2
