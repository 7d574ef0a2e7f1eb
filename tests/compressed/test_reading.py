"""What layers read on calibration data, and pruning that makes up for what layers before have lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.compression.layers import find_layers
from ort_gpu_ep.compression.prune import by_samples
from ort_gpu_ep.compression.reading import read_by
from tests.ops.single_node import on_cpu

RNG = np.random.default_rng(11)


def model_of(node: onnx.NodeProto, x: tuple[int, ...], **held: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"]), node],
        "g",
        [helper.make_tensor_value_info("x", 1, x)],
        [helper.make_empty_tensor_value_info(o) for o in node.output if o],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype("f")


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 12, 9, 8), (16, 12, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ((3, 8, 7, 7), (32, 4, 3, 3), {"group": 2, "dilations": [2, 1]}),
        ((1, 16, 10, 9), (16, 16, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((2, 32, 11), (24, 32, 4), {"auto_pad": "SAME_LOWER"}),
    ],
)
def test_windows_times_filters_are_the_convolution(x: Any, w: Any, attributes: Any) -> None:
    weight, feeds = normal(*w), {"x": normal(*x)}
    model = model_of(helper.make_node("Conv", ["r", "w"], ["y"], **attributes), x, w=weight)
    (layer,) = find_layers(model)
    read = read_by(model, layer, [feeds])
    got = read @ layer.rows().reshape(layer.blocks).swapaxes(1, 2)  # [groups, places, filters of a group]
    (wanted,) = on_cpu(model, feeds)
    wanted = wanted.reshape(x[0], layer.blocks[0], layer.blocks[1], -1).transpose(1, 0, 3, 2).reshape(got.shape)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("outputs", [["y"], ["", "h"]])
def test_recurrent_weights_read_the_input_and_the_states(outputs: list[str]) -> None:
    steps, batch, units = 6, 3, 20
    feeds = {"x": normal(steps, batch, 16)}
    held = {"w": normal(2, 4 * units, 16) / 4, "r": normal(2, 4 * units, units) / 4}
    model = model_of(
        helper.make_node("LSTM", ["r", "w", "u"], outputs, hidden_size=units, direction="bidirectional"),
        (steps, batch, 16),
        w=held["w"],
        u=held["r"],
    )
    weights, states = find_layers(model)
    assert (weights.blocks, states.blocks) == ((2, 80, 16), (2, 80, 20))
    np.testing.assert_array_equal(
        read_by(model, weights, [feeds]), np.broadcast_to(np.maximum(feeds["x"], 0).reshape(1, -1, 16), (2, 18, 16))
    )
    full = model_of(
        helper.make_node("LSTM", ["r", "w", "u"], ["y"], hidden_size=units, direction="bidirectional"),
        (steps, batch, 16),
        w=held["w"],
        u=held["r"],
    )
    (y,) = on_cpu(full, feeds)
    np.testing.assert_allclose(
        read_by(model, states, [feeds]), y.swapaxes(0, 1).reshape(2, -1, units), rtol=1e-5, atol=1e-6
    )


def test_a_layer_makes_up_for_the_one_before() -> None:
    """Its inputs are not what they were: fitted to the outputs of the old inputs, it comes closer to them."""
    rows, before = normal(30, 50), normal(800, 50) @ normal(50, 50)
    now = before @ (np.eye(50, dtype="f") + normal(50, 50) / 20)

    def error(found: Any) -> float:
        return float(np.linalg.norm(now @ found.T - before @ rows.T))

    assert error(by_samples(rows, 50, now, before)) < 0.8 * error(by_samples(rows, 50, now))
