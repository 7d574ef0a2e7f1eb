"""Products between DequantizeLinear and QuantizeLinear: one node, and the bytes that ONNX Runtime's CPU gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.plugin.explain import explanation
from ort_gpu_ep.scheduler.plan import Dispatch
from tests.daily import part
from tests.ops.single_node import on_cpu, on_cpu_exactly
from tests.plugin.cases import Opened, open_session

RNG = np.random.default_rng(12)


def model_of(
    op: str,
    relu: bool,
    per_channel: bool,
    bias: bool,
    zero: int = 0,
    twice: bool = False,
    channels: int = 0,
    clip: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """x -> Q -> DQ -> product of int8 weights -> [Relu, or Clip] -> Q -> DQ -> y."""
    channels = channels or (13 if op == "Conv" else 21)
    transposed = attributes.get("transB", 0)
    shape: tuple[int, ...] = (channels, 8, 3, 3) if op == "Conv" else (channels, 40) if transposed else (40, channels)
    scale = np.asarray(RNG.uniform(0.005, 0.02, channels if per_channel else ()), "f")
    held = {
        "xs": np.float32(0.03),
        "xz": np.uint8(121),
        "w": RNG.integers(-127, 128, shape).astype("int8"),
        "ws": scale,
        "wz": np.zeros(scale.shape, "int8"),
        "ys": np.float32(0.08),
        "yz": np.uint8(zero),
        "b": RNG.integers(-3000, 3000, channels).astype("int32"),
        "bs": (np.float32(attributes.get("alpha", 1.0)) * np.float32(0.03) * scale).astype("f"),
        "low": np.float32(-0.31),
        "high": np.float32(4.03),
        "bz": np.zeros(scale.shape, "int32"),
    }
    axis = 0 if op == "Conv" or transposed else 1
    if op == "Conv":
        attributes["pads"] = [1, 1, 1, 1]
    made = helper.make_node
    nodes = [
        made("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        made("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        made("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=axis),
        made("DequantizeLinear", ["b", "bs", "bz"], ["bd"], axis=0),
        made(op, ["xd", "wd", *(["bd"] if bias else [])], ["p"], **attributes),
        *([made("Clip", ["p", "low", "high"], ["r"]) if clip else made("Relu", ["p"], ["r"])] if relu else []),
        made("QuantizeLinear", ["r" if relu else "p", "ys", "yz"], ["yq"]),
        made("DequantizeLinear", ["yq", "ys", "yz"], ["y"]),
    ]
    if not bias:
        nodes.pop(3)
    outputs = [helper.make_empty_tensor_value_info("y")]
    if twice:
        nodes.append(made("Neg", ["xd"], ["z"]))
        outputs.append(helper.make_empty_tensor_value_info("z"))
    x: list[Any] = ["n", 8, 9, 7] if op == "Conv" else ["n", 40]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, x)],
        outputs,
        [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items() if bias or n not in ("b", "bs", "bz")],
    )
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )


@pytest.mark.parametrize(
    ("op", "relu", "per_channel", "bias", "zero", "twice"),
    part(
        ["Conv", "MatMul", "Gemm"], [False, True], [False, True], [(True, 0, False), (False, 7, False), (True, 0, True)]
    ),
)
def test_the_same_bytes(op: str, relu: bool, per_channel: bool, bias: bool, zero: int, twice: bool) -> None:
    check(model_of(op, relu, per_channel, bias and op != "MatMul", zero, twice), exact=not relu or zero == 0)


@pytest.mark.parametrize("channels", [20, 21])
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Gemm", {"transB": 1}),
        ("Gemm", {"alpha": 0.5}),
        ("Gemm", {"transB": 1, "alpha": 1.5, "beta": 1.0}),
        ("Conv", {}),
    ],
)
@pytest.mark.parametrize("clip", [False, True])
def test_attributes_and_bounds(op: str, attributes: dict[str, Any], clip: bool, channels: int) -> None:
    check(model_of(op, clip, True, True, 9, channels=channels, clip=clip, **attributes), exact=not clip)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("shape", "columns", "attributes"),
    [
        ((3, 40), 20, {"transB": 1}),
        ((1, 40), 21, {"alpha": 0.5}),
        ((5, 39), 8, {}),
        ((2, 7), 3, {"transB": 1, "alpha": 2.0}),
    ],
)
def test_qgemm(shape: tuple[int, int], columns: int, attributes: dict[str, Any], kind: str) -> None:
    """As quantizers write it, with a scale and a zero point of w for each column, of which some count."""
    limits, (_, k), transposed = np.iinfo(kind), shape, attributes.get("transB")
    scales, zeros = (
        RNG.uniform(0.005, 0.02, columns).astype("f"),
        np.where(np.arange(columns) % 3 == 1, 5, 0).astype("int8"),
    )
    given = {
        "xs": np.float32(0.03),
        "xz": np.array(limits.max - 100, kind),
        "w": RNG.integers(-127, 128, (columns, k) if transposed else (k, columns)),
        "ws": scales,
        "wz": zeros,
        "c": RNG.integers(-3000, 3000, columns).astype("int32"),
        "ys": np.float32(0.17),
        "yz": np.array(limits.max - 120, kind),
    }
    given["w"] = given["w"].astype("int8")
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        [helper.make_node("QGemm", ["x", *given], ["y"], domain="com.microsoft", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info("y", element, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in given.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model, feeds = (
        helper.make_model(graph, opset_imports=opsets, ir_version=8),
        {"x": RNG.integers(limits.min, limits.max, shape).astype(kind)},
    )
    opened = open_session(model.SerializeToString(), strict=1)
    np.testing.assert_array_equal(opened.session.run(None, feeds)[0], on_cpu(model, feeds)[0])
    assert of_bytes(opened)


def check(model: onnx.ModelProto, exact: bool) -> None:
    """exact: ONNX Runtime's CPU makes it one op of bytes, too; else one byte in a thousand may be a step off."""
    opened = open_session(model.SerializeToString())
    for n in (1, 3):
        feeds = {
            "x": RNG.normal(
                size=(n, *[d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:]])
            ).astype("f")
            * 2
        }
        for got, wanted in zip(opened.session.run(None, feeds), on_cpu_exactly(model, feeds), strict=True):
            steps = np.rint(np.abs(got - wanted) / 0.08)
            assert steps.max() <= (0 if exact else 1)
            assert steps.sum() <= steps.size / 1000
    assert not [e for e in opened.state.events if e.kind in ("fallback", "error", "warning")], opened.state.events
    assert of_bytes(opened)


def of_bytes(opened: Opened) -> bool:
    """Whether the product is one of bytes."""
    shaders = {
        step.kernel.shader
        for plan in explanation(opened.state).plans
        for step in plan.steps
        if isinstance(step, Dispatch)
    }
    return bool(shaders & {"integer_product.wgsl", "byte_product.wgsl"})


def test_a_bias_of_another_scale_stays_a_float() -> None:
    model = model_of("Conv", False, False, True)
    for initializer in model.graph.initializer:
        if initializer.name == "bs":
            initializer.CopyFrom(numpy_helper.from_array(np.float32(0.5), "bs"))
    opened = open_session(model.SerializeToString())
    assert not of_bytes(opened)
