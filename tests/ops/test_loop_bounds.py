"""Loops that a driver would cut short: llvmpipe ends them after 65,535 iterations of an invocation. Below that right,
above it declined."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.device.adapter import LLVMPIPE_LOOP_ITERATIONS
from ort_gpu_ep.errors import Code, UnsupportedNodeError
from tests.direct import run_direct

Array = np.ndarray[Any, Any]


def rising(*shape: int) -> Array:
    """The largest value comes last, where a loop that is cut short does not get."""
    return np.linspace(-1, 1, int(np.prod(shape)), dtype="f").reshape(shape)


def recurrent(op: str, gates: int, steps: int) -> tuple[str, dict[str, Array], dict[str, Any], bool]:
    """Of 64 units."""
    rng = np.random.default_rng(1)
    weights = {
        "w": rng.normal(size=(1, 64 * gates, 2)).astype("f"),
        "r": rng.normal(size=(1, 64 * gates, 64)).astype("f") / 64,
    }
    return op, {"x": rng.normal(size=(steps, 1, 2)).astype("f"), **weights}, {"hidden_size": 64}, True


CASES: dict[str, tuple[str, dict[str, Array], dict[str, Any], bool]] = {
    "hardmax": ("Hardmax", {"x": rising(1, 4000)}, {}, True),
    "hardmax, long": ("Hardmax", {"x": rising(1, 66_000)}, {}, False),
    "integer product": (
        "MatMulInteger",
        {"a": np.full((1, 65_000), 3, "u1"), "b": np.full((65_000, 2), 2, "u1")},
        {},
        True,
    ),
    "integer product, long": (
        "MatMulInteger",
        {"a": np.full((1, 400_000), 3, "u1"), "b": np.full((400_000, 2), 2, "u1")},
        {},
        False,
    ),
    "pool": ("MaxPool", {"x": rising(1, 1, 255, 255)}, {"kernel_shape": [255, 255]}, True),
    "pool, large": ("MaxPool", {"x": rising(1, 1, 260, 260)}, {"kernel_shape": [260, 260]}, False),
    "sum along": ("CumSum", {"x": np.ones(1_500_000, "f"), "axis": np.array(0)}, {}, True),
    "sum along, long": ("CumSum", {"x": np.ones(1_900_000, "f"), "axis": np.array(0)}, {}, False),
    "scatter": (
        "ScatterElements",
        {"x": np.zeros(4, "f"), "i": np.ones(65_000, "i8"), "u": np.ones(65_000, "f")},
        {"reduction": "add"},
        True,
    ),
    "scatter, many": (
        "ScatterElements",
        {"x": np.zeros(4, "f"), "i": np.ones(66_000, "i8"), "u": np.ones(66_000, "f")},
        {"reduction": "add"},
        False,
    ),
    "recurrent": recurrent("LSTM", 4, 2000),
    "recurrent, long": recurrent("RNN", 1, 30_000),  # a dispatch a step has no loop over them
    "row": ("LayerNormalization", {"x": rising(1, 5_000_000), "s": np.ones(5_000_000, "f")}, {}, True),
    "row, long": ("LayerNormalization", {"x": rising(1, 5_700_000), "s": np.ones(5_700_000, "f")}, {}, True),
}
CONSTANTS = ("axis", "w", "r", "s")


@pytest.mark.parametrize("name", CASES)
def test_right_or_declined(name: str) -> None:
    op, feeds, attributes, fits = CASES[name]
    model = made(op, feeds, attributes)
    given = {n: a for n, a in feeds.items() if n not in CONSTANTS}
    (want,) = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, given
    )
    kind = onnx.helper.np_dtype_to_tensor_dtype(want.dtype)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", kind, want.shape))
    if fits or Gpu.open(Config()).limits.max_loop_iterations > LLVMPIPE_LOOP_ITERATIONS:
        np.testing.assert_allclose(run_direct(model, given)[0], want, rtol=1e-3, atol=1e-4)
    else:
        with pytest.raises(UnsupportedNodeError, match="loop iterations in one invocation") as caught:
            run_direct(model, given)
        assert caught.value.code == Code.LIMIT


def made(op: str, feeds: dict[str, Array], attributes: dict[str, Any]) -> onnx.ModelProto:
    inputs = [
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
        if n not in CONSTANTS
    ]
    constants = [onnx.numpy_helper.from_array(a, n) for n, a in feeds.items() if n in CONSTANTS]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, list(feeds), ["y"], **attributes)],
        "g",
        inputs,
        [onnx.ValueInfoProto(name="y")],
        constants,
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


def test_the_software_adapter_is_known_for_it() -> None:
    gpu = Gpu.open(Config())
    assert (gpu.limits.max_loop_iterations == LLVMPIPE_LOOP_ITERATIONS) == ("llvmpipe" in gpu.info.name)
