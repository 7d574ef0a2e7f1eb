"""Constants whose elements share a byte: read in place by DequantizeLinear, on the device as the file has them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.runtime.program import Program
from tests.direct import PACKED, run_direct
from tests.ops.single_node import check_decline, on_cpu
from tests.plugin.cases import open_session

RNG = np.random.default_rng(9)
KINDS = {
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "int2": TensorProto.INT2,
    "uint2": TensorProto.UINT2,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
}


def constant(name: str, kind: str, shape: tuple[int, ...]) -> Any:
    bits = int(kind.strip("uint"))
    low = -(1 << bits - 1) if kind[0] == "i" else 0
    codes = RNG.integers(low, low + (1 << bits), shape)
    return helper.make_tensor(name, KINDS[kind], shape, codes.reshape(-1).tolist())


def dequantized(
    kind: str, shape: tuple[int, ...], scale: tuple[int, ...], zero_point: bool, **attributes: Any
) -> onnx.ModelProto:
    """y = x + DequantizeLinear(constants)."""
    held = [constant("w", kind, shape), helper.make_tensor("s", 1, scale, RNG.uniform(0.01, 0.3, scale).reshape(-1))]
    names = ["w", "s"]
    if zero_point:
        held.append(constant("z", kind, scale))
        names.append("z")
    nodes = [
        helper.make_node("DequantizeLinear", names, ["d"], **attributes),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    info = [helper.make_tensor_value_info(n, 1, shape) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], held)
    opset = 25 if "2" in kind else 21
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=12 if opset == 25 else 10
    )


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize(
    ("shape", "scale", "attributes"),
    [
        ((3, 5, 7), (), {}),
        ((3, 5, 7), (5,), {"axis": 1}),
        ((7, 1), (7,), {"axis": 0}),
        ((6, 8), (6, 2), {"axis": 1, "block_size": 4}),
        ((7, 5), (3, 5), {"axis": 0, "block_size": 3}),
        ((3, 37), (3, 3), {"axis": -1, "block_size": 16}),
        ((1,), (), {}),
        ((257, 331), (331,), {}),
    ],
)
def test_dequantize_constants(
    kind: str, zero_point: bool, shape: tuple[int, ...], scale: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    model = dequantized(kind, shape, scale, zero_point, **attributes)
    feeds = {"x": RNG.normal(size=shape).astype("f")}
    (got,), (wanted,) = run_direct(model, feeds), on_cpu(model, feeds)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["int4", "uint2"])
def test_they_are_uploaded_packed(kind: str) -> None:
    shape = (1001, 333)
    program = Program(from_onnx(dequantized(kind, shape, (), False)), PACKED, Gpu.open(Config()))
    try:
        assert program.uploaded_nbytes <= -(-shape[0] * shape[1] * int(kind[-1]) // 8) + 4
    finally:
        program.close()


def test_an_activation_of_sub_bytes_is_declined() -> None:
    x = RNG.integers(-8, 8, (4, 6)).astype(ml_dtypes.int4)
    check_decline(Code.DTYPE, "DequantizeLinear", [x, np.float32(0.5)], 21, known=[1])
    with pytest.raises(UnsupportedNodeError, match="no kernel takes that type"):
        run_direct(
            onnx.helper.make_model(
                helper.make_graph(
                    [
                        helper.make_node("Transpose", ["w"], ["t"]),
                        helper.make_node("DequantizeLinear", ["t", "s"], ["d"]),
                        helper.make_node("Add", ["d", "x"], ["y"]),
                    ],
                    "g",
                    [helper.make_tensor_value_info("x", 1, [300, 700])],
                    [helper.make_tensor_value_info("y", 1, [300, 700])],
                    [constant("w", "int4", (700, 300)), helper.make_tensor("s", 1, [], [0.5])],
                ),
                ir_version=10,
                opset_imports=[helper.make_opsetid("", 21)],
            ),
            {"x": np.zeros((300, 700), "f")},
        )


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("kind", ["int4", "uint2"])
def test_through_onnxruntime(kind: str, isolation: str) -> None:
    """Claimed, verified against the CPU fallback, which gets the same packed constants; small ones and those that wait
    on disk."""
    for shape in ((5, 7), (301, 557)):
        model = dequantized(kind, shape, (shape[1],), True, axis=1)
        feeds = {"x": RNG.normal(size=shape).astype("f")}
        opened = open_session(model.SerializeToString(), isolation=isolation, verify=1, strict=0)
        (got,) = opened.session.run(None, feeds)
        np.testing.assert_allclose(got, on_cpu(model, feeds)[0], rtol=1e-6, atol=1e-6)
        assert not any(e.kind in ("fallback", "error", "warning") for e in opened.state.events), opened.state.events
