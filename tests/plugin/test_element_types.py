"""Element types that no kernel computes with: moved as bytes, or declined with a reason."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep.errors import Code
from tests.plugin.cases import info, node, open_session


def model_of(nodes: list[object], inputs: list[object], outputs: list[object], constants: list[object]) -> bytes:
    graph = helper.make_graph(nodes, "types", inputs, outputs, constants)
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    )


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_float8_moves_as_bytes(kind: str, isolation: str) -> None:
    number = {"float8_e4m3fn": TensorProto.FLOAT8E4M3FN, "float8_e5m2": TensorProto.FLOAT8E5M2}[kind]
    opened = open_session(
        model_of(
            [node("Transpose", "x", "t", perm=[1, 0]), node("Flatten", "t", "y", axis=0)],
            [info("x", [3, 5], number)],
            [info("y", [1, 15], number)],
            [],
        ),
        isolation=isolation,
    )
    x = np.arange(15, dtype=np.uint8).reshape(3, 5) * np.uint8(17)
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(x, number)
    binding = opened.session.io_binding()
    binding.bind_ortvalue_input("x", value)
    y = np.zeros((1, 15), np.uint8)
    binding.bind_output("y", "cpu", 0, number, y.shape, y.ctypes.data)
    opened.session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y, x.T.reshape(1, 15))
    assert {n.device for r in opened.state.reports for n in r.nodes} == {"gpu"}


def test_int4_declines_by_name() -> None:
    weights = helper.make_tensor("w", TensorProto.INT4, [4], [-8, 7, -1, 3])
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.5])
    opened = open_session(
        model_of(
            [
                node("Transpose", "x", "t", perm=[1, 0]),
                node("DequantizeLinear", "t s", "d"),
                node("DequantizeLinear", "w s", "v"),
                node("Add", "d v", "y"),
            ],
            [info("x", [4, 2], TensorProto.INT4)],
            [info("y", [2, 4])],
            [weights, scale],
        )
    )
    declined = {n.op: (n.code, n.reason) for r in opened.state.reports for n in r.nodes if n.device == "cpu"}
    assert declined["Transpose"][0] is Code.DTYPE
    assert "int4" in declined["Transpose"][1]
