"""BatchNormalization as a part of the convolution before it: the same values, and what is not alone stays."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import models
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep.compression.folding import without_batch_normalization
from tests.unit.graphs import model_of

RNG = np.random.default_rng(5)
WEIGHTS = ("w", "b", "scale", "shift", "mean", "variance")


def held(model: onnx.ModelProto, channels: int = 4) -> onnx.ModelProto:
    """The model's weights as constants of its graph."""
    values = {
        "w": RNG.standard_normal((channels, 3, 3, 3)),
        **{n: RNG.standard_normal(channels) for n in WEIGHTS[1:-1]},
        "variance": RNG.uniform(0.5, 2.0, channels),
    }
    for given in [i for i in model.graph.input if i.name in values]:
        model.graph.initializer.append(onnx.numpy_helper.from_array(values[given.name].astype("f"), given.name))
        model.graph.input.remove(given)
    return model


def answers(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(
        onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"]).run(
            None, feeds
        )
    )


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


PARAMETERS = "float[4,3,3,3] w, float[4] b, float[4] scale, float[4] shift, float[4] mean, float[4] variance"
NORM = "BatchNormalization<epsilon = 0.1>(c, scale, shift, mean, variance)"


@pytest.mark.parametrize(
    ("body", "folded"),
    [
        (f"c = Conv(x, w) y = {NORM}", True),
        (f"c = Conv(x, w, b) y = {NORM}", True),
        (f"c = Conv(x, w) n = {NORM} y = Add(n, c)", False),
        (f"e = Relu(x) c = Conv(e, w) n = {NORM} y = Relu(n)", True),
        (f"c = Conv(x, w) n = {NORM} d = Conv(x, w) y = Add(n, d)", False),
    ],
)
def test_the_values_stay(body: str, folded: bool) -> None:
    model = held(model_of(f"(float[1,3,8,8] x, {PARAMETERS}) => (float[1,4,6,6] y) {{ {body} }}"))
    feeds = {"x": RNG.standard_normal((1, 3, 8, 8)).astype("f")}
    made = without_batch_normalization(model)
    onnx.checker.check_model(made)
    assert kinds(made)["BatchNormalization"] == (not folded)
    before, after = ({name for node in m.graph.node for name in node.input} for m in (model, made))
    assert {i.name for i in made.graph.initializer} & before <= after, "no constant is left that nobody reads any more"
    for got, want in zip(answers(made, feeds), answers(model, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_network() -> None:
    model = models.build("mobilenet_v2", size=32)
    made, feeds = without_batch_normalization(model), make_inputs(model_inputs(model))
    assert kinds(model)["BatchNormalization"] > 50
    assert kinds(made)["BatchNormalization"] == 0
    for got, want in zip(answers(made, feeds), answers(model, feeds), strict=True):
        assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)
