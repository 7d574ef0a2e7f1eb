"""float16 networks: each op computes in float32 and rounds once, so a float16 node agrees with its float32 twin to
float16's precision."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep.errors import UnsupportedNodeError
from ort_gpu_ep.partitioner import fuse
from tests.direct import run_direct
from tests.ops.single_node import _node_cases, node_model

OTHER_INPUTS_STAY_FLOAT32 = (
    "Resize",
    "Upsample",
    "DequantizeLinear",
    "QuantizeLinear",
    "DynamicQuantizeLinear",
    "OneHot",
    "BitCast",
    "Range",
    "NonMaxSuppression",
)
"""Ops that ONNX gives float32 scales, or that are about float32's bits: their float16 twin is another model."""


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float16 in place of float32."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for value in (*found.graph.input, *found.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in found.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for node in found.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    return found


def rounded(array: Any) -> Any:
    return array.astype(np.float16) if array.dtype == np.float32 else array


def close_to_twin(model: onnx.ModelProto, feeds: dict[str, Any], rewrite: Any = None) -> None:
    """The float16 model against the float32 one on the same, representable inputs."""
    exact = run_direct(model, {n: rounded(a).astype(a.dtype) for n, a in feeds.items()}, rewrite)
    for got, wanted in zip(
        run_direct(half(model), {n: rounded(a) for n, a in feeds.items()}, rewrite), exact, strict=True
    ):
        if wanted.dtype != np.float32:
            np.testing.assert_array_equal(got, wanted)
            continue
        with np.errstate(over="ignore"):
            wanted = wanted.astype(np.float16).astype("d")
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-6)
        np.testing.assert_allclose(got.astype("d"), wanted, rtol=2e-3, atol=2e-3 * largest)


@cache
def cases() -> dict[str, Any]:
    """A sixth of ONNX's node cases with a float32 input."""
    found = [
        c
        for c in _node_cases()
        if len(c.model.graph.node) == 1
        and c.model.graph.node[0].op_type not in OTHER_INPUTS_STAY_FLOAT32
        and all(i.type.HasField("tensor_type") for i in c.model.graph.input)
        and any(i.type.tensor_type.elem_type == TensorProto.FLOAT for i in c.model.graph.input)
        # others are of types that numpy lacks
        and all(isinstance(v, (np.ndarray, np.generic)) for v in c.data_sets[0][0])
    ]
    return {c.name: c for c in found[::6]}


@pytest.mark.parametrize("part", range(8))
def test_onnx_cases_in_float16(part: int) -> None:
    """What runs in float32 runs in float16."""
    ran = 0
    for case in list(cases().values())[part::8]:
        given, _ = case.data_sets[0]
        feeds = {i.name: np.asarray(v) for i, v in zip(case.model.graph.input, given, strict=False)}
        try:
            run_direct(case.model, feeds)
        except UnsupportedNodeError:
            continue
        if any(o.type.tensor_type.elem_type == TensorProto.FLOAT and i for i, o in enumerate(case.model.graph.output)):
            continue  # LayerNormalization's moments are float32 in every network
        close_to_twin(case.model, feeds)
        ran += 1
    assert ran > 5


def normal(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("op", "opset", "inputs", "attributes"),
    [
        ("LayerNormalization", 17, (normal(7, 132), normal(132), normal(132)), {}),
        ("LayerNormalization", 17, (normal(3, 4100), normal(4100)), {}),
        ("RMSNormalization", 23, (normal(9, 260), normal(260)), {}),
        ("Softmax", 13, (20 * normal(5, 132),), {}),
        ("Softmax", 13, (normal(2, 77),), {}),
        ("MatMul", 13, (normal(40, 64), normal(64, 96)), {}),
        ("MatMul", 13, (normal(1, 256), normal(256, 96)), {}),
        ("MatMul", 13, (normal(2, 3, 17, 20), normal(2, 3, 20, 24)), {}),
        ("Gemm", 13, (normal(33, 128), normal(64, 128), normal(64)), {"transB": 1}),
        ("Gemm", 13, (normal(1, 128), normal(64, 128), normal(64)), {"transB": 1}),
        ("Conv", 11, (normal(1, 8, 12, 12), normal(16, 8, 3, 3), normal(16)), {"pads": [1, 1, 1, 1]}),
        ("Conv", 11, (normal(2, 16, 9, 9), normal(32, 16, 1, 1)), {}),
        ("Attention", 23, (normal(1, 4, 33, 64), normal(1, 2, 70, 64), normal(1, 2, 70, 64), normal(33, 70)), {}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_larger_nodes(op: str, opset: int, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    """Sizes at which kernels read by vectors, weights known before the run and not."""
    for known in ((), tuple(range(1, len(inputs)))):
        model, feeds = node_model(op, inputs, opset, known, **attributes)
        close_to_twin(model, feeds)


def test_fused_steps_behind_a_product_in_float16() -> None:
    """A chain behind a product of vectors: its steps are calculated in float32, too."""
    weight = numpy_helper.from_array(normal(64, 32) / 8, "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "b"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["y"]),
    ]
    floats = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", (20, 64)), ("b", (20, 32)), ("y", (20, 32)))
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", floats[:2], floats[2:], [weight]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    close_to_twin(model, {"x": normal(20, 64), "b": normal(20, 32)}, fuse)
