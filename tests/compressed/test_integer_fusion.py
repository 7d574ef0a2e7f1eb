"""Products between DequantizeLinear and QuantizeLinear: one node, and the bytes that ONNX Runtime's CPU gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.explain import explanation
from ort_gpu_ep.scheduler.plan import Dispatch
from tests.ops.single_node import on_cpu
from tests.plugin.cases import Opened, open_session

RNG = np.random.default_rng(12)


def model_of(op: str, relu: bool, per_channel: bool, bias: bool, zero: int = 0, twice: bool = False) -> onnx.ModelProto:
    """x -> Q -> DQ -> product of int8 weights -> [Relu] -> Q -> DQ -> y."""
    shape: tuple[int, ...] = (13, 8, 3, 3) if op == "Conv" else (40, 21)
    channels = 13 if op == "Conv" else 21
    scale = np.asarray(RNG.uniform(0.005, 0.02, channels if per_channel else ()), "f")
    held = {"xs": np.float32(0.03), "xz": np.uint8(121), "w": RNG.integers(-127, 128, shape).astype("int8"), "ws": scale,
            "wz": np.zeros(scale.shape, "int8"), "ys": np.float32(0.08), "yz": np.uint8(zero), "b": RNG.integers(-3000, 3000, channels).astype("int32"),
            "bs": (np.float32(0.03) * scale).astype("f"), "bz": np.zeros(scale.shape, "int32")}
    axis = 0 if op == "Conv" else 1
    made = helper.make_node
    nodes = [made("QuantizeLinear", ["x", "xs", "xz"], ["xq"]), made("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
             made("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=axis), made("DequantizeLinear", ["b", "bs", "bz"], ["bd"], axis=0),
             made(op, ["xd", "wd", *(["bd"] if bias else [])], ["p"], **({"pads": [1, 1, 1, 1]} if op == "Conv" else {})),
             *([made("Relu", ["p"], ["r"])] if relu else []), made("QuantizeLinear", ["r" if relu else "p", "ys", "yz"], ["yq"]),
             made("DequantizeLinear", ["yq", "ys", "yz"], ["y"])]
    if not bias:
        nodes.pop(3)
    outputs = [helper.make_empty_tensor_value_info("y")]
    if twice:
        nodes.append(made("Neg", ["xd"], ["z"]))
        outputs.append(helper.make_empty_tensor_value_info("z"))
    x: list[Any] = ["n", 8, 9, 7] if op == "Conv" else ["n", 40]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, x)], outputs, [
        numpy_helper.from_array(np.asarray(a), n) for n, a in held.items() if bias or n not in ("b", "bs", "bz")])
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize("op", ["Conv", "MatMul"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("bias", "zero", "twice"), [(True, 0, False), (False, 7, False), (True, 0, True)])
def test_the_same_bytes(op: str, relu: bool, per_channel: bool, bias: bool, zero: int, twice: bool) -> None:
    bias = bias and op == "Conv"
    model = model_of(op, relu, per_channel, bias, zero, twice)
    opened = open_session(model.SerializeToString())
    for n in (1, 3):
        feeds = {"x": RNG.normal(size=(n, *[d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:]])).astype("f") * 2}
        for got, wanted in zip(opened.session.run(None, feeds), on_cpu(model, feeds), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert not [e for e in opened.state.events if e.kind in ("fallback", "error", "warning")], opened.state.events
    assert of_bytes(opened) == (not relu or zero == 0)


def of_bytes(opened: Opened) -> bool:
    """Whether the product is one of bytes."""
    shaders = {step.kernel.shader for plan in explanation(opened.state).plans for step in plan.steps if isinstance(step, Dispatch)}
    return "integer_product.wgsl" in shaders


def test_a_bias_of_another_scale_stays_a_float() -> None:
    model = model_of("Conv", False, False, True)
    for initializer in model.graph.initializer:
        if initializer.name == "bs":
            initializer.CopyFrom(numpy_helper.from_array(np.float32(0.5), "bs"))
    opened = open_session(model.SerializeToString())
    assert not of_bytes(opened)
