"""Models that a checker lets pass and that nobody writes: the answer, or the refusal, is onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import ort_gpu_ep
from tests.plugin.cases import info, make_model, node
from tests.session.random_graphs import quiet

X = np.random.default_rng(3).standard_normal((3, 4, 4)).astype("f")
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "keepdims of 2": (node("ReduceSum", "x a", "y", keepdims=2), {"a": np.array([1])}),
    "keepdims of -1": (node("ArgMax", "x", "y", axis=1, keepdims=-1), {}),
    "noop_with_empty_axes of 7": (node("ReduceSum", "x a", "y", noop_with_empty_axes=7), {"a": np.empty(0, np.int64)}),
    "exclusive of 2": (node("CumSum", "x a", "y", exclusive=2), {"a": np.array(1)}),
    "interleaved of -2": (
        node("RotaryEmbedding", "x c c p", "y", interleaved=-2, num_heads=1),
        {"c": np.ones((4, 2), "f"), "p": np.zeros((3, 4), np.int64)},
    ),
    "k without a dimension": (node("TopK", "x k", "y i"), {"k": np.array(2)}),
    "a diagonal of two dimensions": (node("Trilu", "x k", "y"), {"k": np.array([[1]])}),
    "a diagonal of no element": (node("Trilu", "x k", "y"), {"k": np.empty(0, np.int64)}),
    "axes without a dimension": (node("ReduceL1", "x a", "y"), {"a": np.array(1)}),
    "starts of two dimensions": (node("Slice", "x s e", "y"), {"s": np.array([[1]]), "e": np.array([[2]])}),
    "axes twice": (
        node("Slice", "x s e a", "y"),
        {"s": np.array([0, 1]), "e": np.array([2, 2]), "a": np.array([1, 1])},
    ),
    "a reflection of one element": (node("Pad", "x p", "y", mode="reflect"), {"p": np.array([1, 0, 0, 0, 0, 0])}),
    "another hidden size": (
        node("RNN", "x w r", "y", hidden_size=8),
        {"w": np.ones((1, 5, 4), "f"), "r": np.ones((1, 5, 5), "f")},
    ),
    "no hidden size": (node("LSTM", "x w r", "y"), {"w": np.ones((1, 20, 4), "f"), "r": np.ones((1, 20, 5), "f")}),
    "a short bias": (
        node("GRU", "x w r b", "y", hidden_size=5),
        {"w": np.ones((1, 15, 4), "f"), "r": np.ones((1, 15, 5), "f"), "b": np.ones((1, 2), "f")},
    ),
    "an output_shape out of reach": (
        node("ConvTranspose", "x w", "y", strides=[3], output_shape=[13]),
        {"w": np.ones((4, 2, 1), "f")},
    ),
    "an output_shape just in reach": (
        node("ConvTranspose", "x w", "y", strides=[3], output_shape=[12]),
        {"w": np.ones((4, 2, 1), "f")},
    ),
    "neighbours of rank 3": (node("LRN", "x", "y", size=3), {}),
    "a mean over padding only": (node("AveragePool", "x", "y", kernel_shape=[2], pads=[2, 0]), {}),
    "a maximum of padding only": (node("MaxPool", "x", "y", kernel_shape=[2], pads=[0, 2]), {}),
    "a norm of padding only": (node("LpPool", "x", "y", kernel_shape=[2], pads=[3, 0]), {}),
    "pads of a kernel's size beside VALID": (
        node("AveragePool", "x", "y", kernel_shape=[2], pads=[2, 0], auto_pad="VALID"),
        {},
    ),
    "fewer outputs than num_outputs": (node("Split", "x", "y y2", axis=1, num_outputs=4), {}),
    "num_outputs past the size": (node("Split", "x", "y y2", axis=1, num_outputs=2**24), {}),
    "scores times 0": (node("Attention", "x x x", "y", scale=0.0, q_num_heads=1, kv_num_heads=1), {}),
    "scores times less than 0": (node("Attention", "x x x", "y", scale=-1.0, q_num_heads=1, kv_num_heads=1), {}),
    "scores below a negative cap": (node("Attention", "x x x", "y", softcap=-1.0, q_num_heads=1, kv_num_heads=1), {}),
    "an unknown auto_pad": (node("AveragePool", "x", "y", kernel_shape=[2], auto_pad="add"), {}),
    "means over four axes": (node("GlobalAveragePool", "x6", "y"), {"x6": X.reshape(3, 4, 2, 2, 1, 1)}),
    "maxima over four axes": (node("GlobalMaxPool", "x6", "y"), {"x6": X.reshape(3, 4, 2, 2, 1, 1)}),
    "a scale of two dimensions": (
        node("InstanceNormalization", "x s b", "y"),
        {"s": np.ones((1, 4), "f"), "b": np.ones(4, "f")},
    ),
    "more parts than there are": (node("Split", "x", "y y2 y3 y4 y5", axis=1, num_outputs=5), {}),
}


def answers(make: Any, feeds: dict[str, Any]) -> Any:
    """The outputs of a session, or the exception's name; it may come when the session is made, or when it runs."""
    try:
        return make().run(None, feeds)
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("sizes", ["fixed", "open"])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_what_onnxruntime_makes_of_it(name: str, sizes: str) -> None:
    """What steers shapes comes with the run: constants of these forms ONNX's shape inference refuses."""
    made, given = MODELS[name]
    feeds = {"x": X[:1] if "reflection" in name else X, **given}
    inputs = [
        info(n, list(a.shape) if sizes == "fixed" else [None] * a.ndim, helper.np_dtype_to_tensor_dtype(a.dtype))
        for n, a in feeds.items()
    ]
    model = make_model(
        [made], inputs, [info(n, None, 7 if n == "i" or made.op_type == "ArgMax" else 1) for n in made.output], opset=23
    )
    check(model, feeds)


def test_a_constant_is_resized_as_by_onnxruntime() -> None:
    """The host knows all of its inputs; ONNX's reference implementation, which computes such nodes, gives something
    else."""
    resize = node("Resize", "x r s", "y", mode="linear", coordinate_transformation_mode="align_corners")
    model = make_model([resize], [info("s", [3])], ["y"], {"x": X, "r": np.empty(0, "f")})
    check(model, {"s": np.array([1, 0.6, 0.6], "f")})


def check(model: bytes, feeds: dict[str, Any]) -> None:
    """Whether ours answers, or refuses, as onnxruntime alone does."""
    want = answers(lambda: onnxruntime.InferenceSession(model, quiet(), providers=["CPUExecutionProvider"]), feeds)
    got = answers(lambda: ort_gpu_ep.InferenceSession(model, quiet(), provider_options={"placement": "gpu"}), feeds)
    if isinstance(want, str):
        assert got == want
        return
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)
