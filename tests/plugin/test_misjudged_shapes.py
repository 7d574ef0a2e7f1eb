"""A PRelu whose slope is larger than its input: ONNX Runtime computes it, but has told everybody another shape of what
follows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.partitioner.sizes import misjudged
from tests.ops.single_node import Array, on_cpu
from tests.plugin.cases import info, open_session


def model_of(x: tuple[int | str, ...], slope: tuple[int, ...]) -> bytes:
    nodes = [helper.make_node("PRelu", ["x", "s"], ["p"]), helper.make_node("Tanh", ["p"], ["y"])]
    graph = helper.make_graph(nodes, "g", [info("x", x), info("s", slope)], [helper.make_empty_tensor_value_info("y")])
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=9).SerializeToString()
    )


def normal(*shape: int) -> Array:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize(("x", "slope"), [((4,), (3, 4)), ((2, 3), (4, 2, 3)), ((1, 4), (3, 4))], ids=str)
def test_what_follows_a_larger_slope_is_left_to_onnxruntime(
    x: tuple[int, ...], slope: tuple[int, ...], isolation: str
) -> None:
    model, feeds = model_of(x, slope), {"x": normal(*x), "s": normal(*slope)}
    opened = open_session(model, isolation=isolation)
    (wanted,) = on_cpu(onnx.load_from_string(model), feeds)
    np.testing.assert_allclose(opened.session.run(None, feeds)[0], wanted, rtol=1e-6)
    assert not [event for event in opened.state.events if event.kind in ("error", "fallback")], opened.state.events


def test_which_values_follow_a_larger_slope() -> None:
    for x, slope, found in (
        ((4,), (3, 4), "py"),
        ((1, 4), (3, 4), "py"),
        (("n", 4), (3, 4), ""),
        ((3, 4), (4,), ""),
        ((3, 4), (1, 1), ""),
        ((4,), (1, 4), "py"),
    ):
        assert misjudged(from_onnx(onnx.load_from_string(model_of(x, slope)))) == frozenset(found), (x, slope)
