"""Conversions to float32 and back around a softmax: exporters write them, and they change nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT16, TensorType
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner import rewrite
from tests.direct import run_direct
from tests.ops.single_node import assert_agree, on_cpu

HALVES = Limits(features=frozenset({"shader-f16"}))
SIZES = {"q": (2, 3, 5, 8), "k": (2, 3, 7, 8), "v": (2, 3, 7, 8)}
BEFORE, AFTER, BOTH = (
    ("Softmax", "Cast 1", "Cast 10"),
    ("Cast 1", "Cast 10", "Softmax"),
    ("Cast 1", "Softmax", "Cast 10"),
)


def attention(middle: Sequence[str], outputs: Sequence[str] = ()) -> onnx.ModelProto:
    """softmax(q k) v in float16 with these nodes between the products. outputs: places in between that are results."""
    nodes, name = [helper.make_node("Transpose", ["k"], ["keys"], perm=[0, 1, 3, 2])], "t0"
    nodes.append(helper.make_node("MatMul", ["q", "keys"], ["t0"]))
    for i, op in enumerate(middle, 1):
        kind, *to = op.split()
        nodes.append(helper.make_node(kind, [name], [f"t{i}"], **({"to": int(to[0])} if to else {})))
        name = f"t{i}"
    nodes.append(helper.make_node("MatMul", [name, "v"], ["y"]))
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, s) for n, s in SIZES.items()]
    results = [onnx.ValueInfoProto(name=n) for n in ("y", *outputs)]
    graph = helper.make_graph(nodes, "attention", inputs, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ops(model: onnx.ModelProto, limits: Limits = HALVES) -> list[str]:
    types = {name: TensorType(FLOAT16, shape) for name, shape in SIZES.items()}
    return [node.op for node in rewrite(from_onnx(model), types, limits).nodes]


@pytest.mark.parametrize("middle", [BEFORE, AFTER, BOTH])
def test_attention_is_seen_through_them(middle: tuple[str, ...]) -> None:
    model = attention(middle)
    assert ops(model) == ["Attention"]
    rng = np.random.default_rng()
    feeds = {name: rng.standard_normal(shape).astype("f2") for name, shape in SIZES.items()}
    (got,), (want,) = run_direct(model, feeds, rewrite), on_cpu(model, feeds)
    assert_agree(got, want, 2e-3)


@pytest.mark.parametrize(("middle", "places"), [(BEFORE, ("t1",)), (BEFORE, ("t2",)), (BOTH, ("t1",)), (BOTH, ("t2",))])
def test_what_is_a_result_stays(middle: tuple[str, ...], places: tuple[str, ...]) -> None:
    model = attention(middle, places)
    assert "Attention" not in ops(model)
    rng = np.random.default_rng()
    feeds = {name: rng.standard_normal(shape).astype("f2") for name, shape in SIZES.items()}
    for got, want in zip(run_direct(model, feeds, rewrite), on_cpu(model, feeds), strict=True):
        assert_agree(got, want, 2e-3)


@pytest.mark.parametrize(
    ("op", "behind", "to"),
    [
        ("Softmax", "Cast", TensorProto.FLOAT),
        ("ReduceMax", "Cast", TensorProto.FLOAT),
        ("ReduceMax", "Cast", TensorProto.INT32),
        ("ReduceMax", "IsNaN", TensorProto.BOOL),
        ("ReduceSum", "Cast", TensorProto.FLOAT),
    ],
)
def test_what_a_reduction_of_wide_sums_is_converted_to(op: str, behind: str, to: int) -> None:
    """The sums before it are float32, its result what the step behind it makes."""
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["sums"]),
        helper.make_node(op, ["sums"], ["reduced"]),
        helper.make_node(behind, ["reduced"], ["y"], **({"to": to} if behind == "Cast" else {})),
        helper.make_node("Shape", ["y"], ["shape"]),
    ]
    shapes = {"q": (3, 5, 64), "k": (3, 64, 7)}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, s) for n, s in shapes.items()]
    graph = helper.make_graph(nodes, "reduced", inputs, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rng = np.random.default_rng()
    feeds = {name: (3 * rng.standard_normal(shape)).astype("f2") for name, shape in shapes.items()}
    (got,), (want,) = run_direct(model, feeds, rewrite), on_cpu(model, feeds)
    assert got.dtype == want.dtype
    assert np.allclose(got.astype("d"), want.astype("d"), rtol=4e-3, atol=1e-3 if to == TensorProto.FLOAT else 1)


def test_what_rounds_stays() -> None:
    """From float32 to float16 and back."""
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=10), helper.make_node("Cast", ["h"], ["y"], to=1)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (5,))
    graph = helper.make_graph(nodes, "rounded", [x], [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": np.array([1.0001, 3.14159, 1e-7, -2049.0, 7e4], "f")}
    (got,), (want,) = run_direct(model, feeds, rewrite), on_cpu(model, feeds)
    np.testing.assert_array_equal(got, want)
    assert (got != feeds["x"]).all()
