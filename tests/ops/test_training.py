"""Functions of training steps: our kernels against their own bodies on onnxruntime's CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ort_gpu_ep
from ort_gpu_ep.ir.graph import Graph, Node, Value
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.ops.recurrent_held import GENERAL
from ort_gpu_ep.scheduler.planner import make_plan
from ort_gpu_ep.training.functions import DOMAIN, TEXTS, function

OPSET = 18


def model_of(name: str, inputs: dict[str, np.ndarray], outputs: list[str], **attributes: Any) -> bytes:
    body = function(name, OPSET)
    node = helper.make_node(name, list(inputs), outputs, name="it", domain=DOMAIN, **attributes)
    graph = helper.make_graph(
        [node],
        "it",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
    )
    model = helper.make_model(
        graph,
        functions=[body],
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)],
        ir_version=10,
    )
    return model.SerializeToString()


def check(name: str, inputs: dict[str, np.ndarray], **attributes: Any) -> None:
    outputs = [f"out_{n}" for n in function(name, OPSET).output]
    model = model_of(name, inputs, outputs, **attributes)
    session = ort_gpu_ep.InferenceSession(model, provider_options={"placement": "gpu", "strict": 1})
    reports = session.state.reports[-1].nodes
    assert [(n.op, n.device) for n in reports] == [(name, "gpu")]
    want = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, inputs)
    for n, got, expected in zip(outputs, session.run(None, inputs), want, strict=True):
        np.testing.assert_allclose(
            got, expected, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(expected).max())), err_msg=n
        )


class Drawn:
    """Inputs of a function by name, for a layer of this size."""

    def __init__(self, rng: np.random.Generator, hidden: int, steps: int = 3, batch: int = 2) -> None:
        self.rng, self.hidden, self.steps, self.batch = rng, hidden, steps, batch

    def sequence(self, gates: int = 1) -> np.ndarray:
        return self.rng.normal(size=(self.steps, self.batch, gates * self.hidden)).astype("f")

    def gates(self, gates: int) -> np.ndarray:
        return (1 / (1 + np.exp(-self.sequence(gates)))).astype("f")

    def state(self) -> np.ndarray:
        return self.rng.normal(size=(self.batch, self.hidden)).astype("f")

    def weights(self, gates: int) -> np.ndarray:
        return (self.rng.normal(size=(gates * self.hidden, self.hidden)) / np.sqrt(self.hidden)).astype("f")


@pytest.mark.parametrize(
    ("hidden", "batch", "form"),
    [
        *((hidden, 2, GENERAL) for hidden in (1, 32, 33, 130, 300)),
        (1, 2, "stepwise, 1"),
        (33, 2, "stepwise, 2"),
        (132, 1, "stepwise, 4"),
        (12, 19, "stepwise, 2"),
    ],
)
@pytest.mark.parametrize("name", ["LSTMBackward", "GRUBackward", "GRUBackwardResetFirst", "RNNBackward"])
def test_layers_backward(name: str, hidden: int, batch: int, form: str, rng: np.random.Generator) -> None:
    d = Drawn(rng, hidden, batch=batch)
    first = {"dY": d.sequence(), "dhT": d.state()}
    rest = {
        "LSTMBackward": lambda: {
            "dcT": d.state(),
            "gates": d.gates(4),
            "C": d.sequence(),
            "before": d.sequence(),
            "R": d.weights(4),
        },
        "GRUBackward": lambda: {"gates": d.gates(3), "before": d.sequence(), "hidden": d.sequence(), "R": d.weights(3)},
        "GRUBackwardResetFirst": lambda: {
            "gates": d.gates(3),
            "before": d.sequence(),
            "R": d.weights(2),
            "Rh": d.weights(1),
        },
        "RNNBackward": lambda: {"slope": d.gates(1), "R": d.weights(1)},
    }[name]()
    assert [*first, *rest] == list(function(name, OPSET).input)
    with forced(form) as choices:
        check(name, first | rest)
    assert [choice.form for choice in choices.values()] == [form]


@pytest.mark.parametrize(
    ("hidden", "shader"),
    [(64, "recurrent_backward.wgsl"), (1024, "recurrent_backward_steps.wgsl"), (5000, "recurrent_backward_steps.wgsl")],
)
def test_which_form_goes_back(hidden: int, shader: str) -> None:
    """The more units a layer has; one workgroup's memory does not hold the gates of 5000."""
    shapes = {"dY": (9, 1, hidden), "dhT": (1, hidden), "slope": (9, 1, hidden), "R": (hidden, hidden)}
    node = Node("RNNBackward", tuple(shapes), ("dA", "dh0"), domain=DOMAIN, version=1)
    graph = Graph("g", tuple(shapes), ("dA", "dh0"), (node,), {n: Value(n, FLOAT32, s) for n, s in shapes.items()})
    plan = make_plan(graph, {n: TensorType(FLOAT32, s) for n, s in shapes.items()}, Limits(max_buffers_per_stage=16))
    assert [step.kernel.shader for step in plan.steps][-1] == shader  # type: ignore[union-attr]


def test_cells(rng: np.random.Generator) -> None:
    d = Drawn(rng, 37, steps=7, batch=3)
    check("LSTMCells", {"forget": d.gates(1), "added": d.sequence(), "c0": d.state()})


@pytest.mark.parametrize("shape", [(), (5,), (3, 67)])
def test_momentum(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    inputs = {n: np.asarray(rng.normal(size=shape), "f") for n in ("p", "grad", "velocity")} | {
        "hyper": np.array([0.1], "f")
    }
    check("MomentumUpdate", inputs, momentum=0.9, decay=0.01, direct=1.0, along=0.9)


@pytest.mark.parametrize("shape", [(), (5,), (3, 67)])
def test_adam(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    p, grad, mean, square = (rng.normal(size=shape).astype("f") for _ in range(4))
    inputs = {
        "p": np.asarray(p),
        "grad": np.asarray(grad),
        "mean": np.asarray(mean),
        "square": np.asarray(square**2, "f"),
        "hyper": np.array([0.01, 2.5, 0.99], "f"),
    }
    check("AdamUpdate", inputs, beta1=0.9, beta2=0.999, rest1=0.1, rest2=0.001, epsilon=1e-8)


POOLS = {
    "overlap": ((2, 3, 7, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "dilations": [1, 1]}),
    "dilated": ((1, 2, 19), {"kernel_shape": [3], "strides": [2], "pads": [2, 1], "dilations": [2]}),
    "gaps": ((1, 2, 8, 8), {"kernel_shape": [2, 1], "strides": [3, 2], "pads": [0, 0, 0, 0], "dilations": [1, 1]}),
    "volume": (
        (1, 2, 5, 4, 6),
        {"kernel_shape": [2, 2, 3], "strides": [1, 2, 1], "pads": [1, 0, 1, 0, 0, 1], "dilations": [1, 1, 1]},
    ),
    "many": ((2, 70, 128, 128), {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1]}),
}


@pytest.mark.parametrize("name", POOLS)
def test_max_pool_gradient(name: str, rng: np.random.Generator) -> None:
    shape, form = POOLS[name]
    x = rng.normal(size=shape).astype("f")
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], **form)
    graph = helper.make_graph(
        [node],
        "pool",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("i", TensorProto.INT64, None),
        ],
    )
    pool = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    y, at = onnxruntime.InferenceSession(pool.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    check(
        "MaxPoolGradient",
        {"dy": rng.normal(size=y.shape).astype("f"), "indices": at.astype(np.int32)},
        kernel_shape=form["kernel_shape"],
        strides=form["strides"],
        dilations=form["dilations"],
        before=form["pads"][: x.ndim - 2],
        count=[x.size],
        shape=list(shape),
    )


@pytest.mark.parametrize("name", POOLS)
def test_average_pool_gradient(name: str, rng: np.random.Generator) -> None:
    """Also where windows end before the image does, and where the last ones reach beyond it."""
    shape, form = POOLS[name]
    k, s, d, pads = (form[n] for n in ("kernel_shape", "strides", "dilations", "pads"))
    before, rank = pads[: len(k)], len(k)
    out = [(shape[2 + a] + before[a] + pads[a + rank] - (k[a] - 1) * d[a] - 1) // s[a] + 1 + a % 2 for a in range(rank)]
    end = [(out[a] - 1) * s[a] + (k[a] - 1) * d[a] + 1 - before[a] - shape[2 + a] for a in range(rank)]
    beyond = [max(-e, 0) for e in end]
    inputs = {"dy": rng.normal(size=(*shape[:2], *out)).astype("f"), "share": rng.random((1, 1, *out)).astype("f")}
    check(
        "AveragePoolGradient",
        inputs,
        kernel_shape=k,
        strides=s,
        dilations=d,
        before=before,
        planes=[-1, 1, *out],
        taps=[1, 1, *k],
        pads=[*before, *(max(e, 0) for e in end)],
        beyond=beyond,
        shape=list(shape),
    )


@pytest.mark.parametrize(
    ("space", "form"),
    [
        ((9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [1, 1], "pads": [1, 1, 1, 1]}),
        ((12, 9), {"kernel_shape": [2, 3], "strides": [1, 2], "dilations": [2, 1], "pads": [0, 1, 1, 0]}),
        ((60, 61), {"kernel_shape": [5, 5], "strides": [1, 1], "dilations": [1, 1], "pads": [2, 2, 2, 2]}),
    ],
)
def test_depthwise_weight_gradient(
    space: tuple[int, int], form: dict[str, list[int]], rng: np.random.Generator
) -> None:
    k, s, d, p = (form[n] for n in ("kernel_shape", "strides", "dilations", "pads"))
    out = [(space[a] + p[a] + p[a + 2] - (k[a] - 1) * d[a] - 1) // s[a] + 1 for a in (0, 1)]
    inputs = {"image": rng.normal(size=(3, 5, *space)).astype("f"), "maps": rng.normal(size=(3, 5, *out)).astype("f")}
    check("DepthwiseWeightGradient", inputs, group=5, planes=[1, -1, *space], **form)


@pytest.mark.parametrize(
    ("sizes", "space", "form"),
    [
        ((2, 1, 3, 4), (9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [1, 1], "pads": [1, 1, 1, 1]}),
        (
            (3, 1, 1, 6),
            (32, 32),
            {"kernel_shape": [5, 5], "strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0]},
        ),
        ((2, 2, 3, 5), (12, 9), {"kernel_shape": [2, 3], "strides": [1, 2], "dilations": [2, 1], "pads": [0, 1, 1, 0]}),
        ((2, 3, 20, 9), (11,), {"kernel_shape": [4], "strides": [2], "dilations": [1], "pads": [2, 0]}),
        (
            (1, 1, 2, 3),
            (4, 5, 6),
            {"kernel_shape": [2, 1, 3], "strides": [1, 2, 1], "dilations": [1, 1, 2], "pads": [1, 0, 0, 1, 0, 2]},
        ),
    ],
)
def test_conv_weight_gradient(
    sizes: tuple[int, int, int, int], space: tuple[int, ...], form: dict[str, list[int]], rng: np.random.Generator
) -> None:
    """Sums of one and of several parts; windows that leave the image, and end before it does."""
    batch, group, channels, filters = sizes
    rank = len(space)
    k, s, d, p = (form[n] for n in ("kernel_shape", "strides", "dilations", "pads"))
    out = [(space[a] + p[a] + p[a + rank] - (k[a] - 1) * d[a] - 1) // s[a] + 1 for a in range(rank)]
    inputs = {
        "image": rng.normal(size=(batch, group * channels, *space)).astype("f"),
        "maps": rng.normal(size=(batch, group * filters, *out)).astype("f"),
    }
    axes, taps = [*range(3, 3 + rank)], [*range(2, 2 + rank)]
    check(
        "ConvWeightGradient",
        inputs,
        group=group,
        image_split=[batch, group, channels, *space],
        maps_split=[batch, group, filters, *out],
        turn_image=[2, 1, 0, *axes],
        turn_maps=[1, 2, 0, *axes],
        image_flat=[channels, group * batch, *space],
        maps_flat=[group * filters, batch, *out],
        axes=taps,
        first=[0] * rank,
        back=[1, 0, *taps],
        **form,
    )


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (33, 257), (3, 2000), (4096, 10)])
def test_cross_entropy(shape: tuple[int, int], rng: np.random.Generator) -> None:
    inputs = {
        "z": (rng.normal(size=shape) * 30).astype("f"),
        "label": rng.integers(0, shape[1], shape[0]).astype(np.int32),
        "weight": rng.random(shape[0]).astype("f"),
    }
    check("SoftmaxCrossEntropy", inputs, classes=shape[1])


def test_shapes_that_do_not_fit_are_left_to_the_body(rng: np.random.Generator) -> None:
    """A gradient that the body broadcasts."""
    inputs = {n: np.abs(rng.normal(size=1 if n == "grad" else 5)).astype("f") for n in ("p", "grad", "mean", "square")}
    inputs["hyper"] = np.array([0.01, 2.5, 0.99], "f")
    model = model_of(
        "AdamUpdate", inputs, ["p2", "m2", "s2"], beta1=0.9, beta2=0.999, rest1=0.1, rest2=0.001, epsilon=1e-8
    )
    session = ort_gpu_ep.InferenceSession(model, provider_options={"placement": "gpu"})
    assert "AdamUpdate" not in {n.op for n in session.state.reports[-1].nodes}
    want = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, inputs)
    for got, expected in zip(session.run(None, inputs), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_every_function_has_a_kernel() -> None:
    from ort_gpu_ep.kernels.registry import OPS

    assert {name for domain, name in OPS if domain == DOMAIN} == set(TEXTS)
