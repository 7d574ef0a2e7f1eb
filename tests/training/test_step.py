"""The step as a model: it computes what a trainer in numpy computes, and says what it can't do."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import models
from ort_gpu_ep.errors import ModelError, TrainingError
from ort_gpu_ep.training.losses import LOSSES
from ort_gpu_ep.training.optimizers import SGD, Adam, AdamW, Optimizer
from ort_gpu_ep.training.schedules import Schedule, constant, cosine, step_decay, with_warmup
from ort_gpu_ep.training.step import HYPER, LABEL, LOSS, SEED, WEIGHT, TrainingStep, make_training_step
from tests.training import references


def batches(count: int, size: int = 5) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(9)
    return [(rng.normal(size=(size, 6)).astype("f"), rng.integers(0, 3, size)) for _ in range(count)]


def train(
    step: TrainingStep, optimizer: Optimizer, feeds: list[dict[str, Any]]
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Steps on onnxruntime's CPU, arrays in and out."""
    onnx.checker.check_model(step.model, full_check=True)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(step.model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    names, carried, losses = [o.name for o in session.get_outputs()], dict(step.carried), []
    size = step.feeds[WEIGHT][1][0]
    for t, given in enumerate(feeds):
        given = {WEIGHT: np.full(size, 1 / size, "f"), HYPER: optimizer.numbers(t), **given, **carried}
        out = dict(zip(names, session.run(None, given), strict=True))
        losses.append(float(out[LOSS]))
        carried = {n: out[f"{n}.new"] for n in carried}
    return losses, carried


OPTIMIZERS = {
    "sgd": (SGD(0.3), references.sgd(0.3)),
    "momentum": (SGD(0.1, 0.9), references.sgd(0.1, 0.9)),
    "nesterov": (SGD(0.1, 0.9, nesterov=True, weight_decay=0.02), references.sgd(0.1, 0.9, True, 0.02)),
    "adam": (Adam(0.02), references.adam(0.02)),
    "adam, decay": (Adam(0.02, weight_decay=0.1), references.adam(0.02, 0.1)),
    "adamw": (AdamW(0.02, weight_decay=0.1), references.adam(0.02, 0.1, True)),
    "clip": (SGD(0.3, clip=0.2), references.clipping(references.sgd(0.3), 0.2)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps_are_those_of_numpy(name: str) -> None:
    optimizer, update = OPTIMIZERS[name]
    model, data = references.mlp(), batches(20)
    step = make_training_step(model, loss="cross_entropy", optimizer=optimizer, batch=5)
    losses, state = train(step, optimizer, [{"x": x, LABEL: y} for x, y in data])
    want, weights = references.trajectory(model, data, update)
    np.testing.assert_allclose(losses, want, atol=2e-6)
    for n, w in weights.items():
        np.testing.assert_allclose(state[n], w, atol=2e-5, err_msg=n)


def test_sample_weights_leave_samples_out() -> None:
    model, ((x, y),) = references.mlp(), batches(1)
    step = make_training_step(model, loss="cross_entropy", optimizer=SGD(1.0), batch=5)
    weight = np.array([0.25, 0.75, 0, 0, 0], "f")
    (loss,), state = train(step, SGD(1.0), [{"x": x, LABEL: y, WEIGHT: weight}])
    want, grads = references.gradients(references.weights(model), x, y, weight.astype(float))
    assert loss == pytest.approx(want, abs=1e-6)
    np.testing.assert_allclose(state["w0"], references.weights(model)["w0"] - grads["w0"], atol=1e-6)


def losses_of(name: str, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Each sample's loss in numpy."""
    if name == "cross_entropy":
        shifted = z - z.max(1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        return -np.take_along_axis(logs, y[:, None], 1).reshape(len(z), -1).mean(1)
    rest = {"mse": (z - y) ** 2, "l1": abs(z - y), "bce_with_logits": np.logaddexp(0, z) - z * y}[name]
    return rest.reshape(len(z), -1).mean(1)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5)])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """Of a model that gives a weight back: one step of rate 1 subtracts the gradient."""
    z = rng.normal(size=shape).astype("f") * 3
    y = rng.integers(0, 3, (shape[0], *shape[2:])) if name == "cross_entropy" else rng.integers(0, 2, shape).astype("f")
    step = make_training_step(given_back(z), loss=name, optimizer=SGD(1.0))
    (loss,), state = train(step, SGD(1.0), [{"x": np.zeros(shape, "f"), LABEL: y}])
    assert loss == pytest.approx(losses_of(name, z.astype(float), y).mean(), abs=1e-6)
    wide, slope, width = z.astype(float), np.zeros(z.size), 1e-6
    for i in range(z.size):
        moved = [wide.copy(), wide.copy()]
        moved[0].reshape(-1)[i] += width
        moved[1].reshape(-1)[i] -= width
        slope[i] = (losses_of(name, moved[0], y).mean() - losses_of(name, moved[1], y).mean()) / (2 * width)
    np.testing.assert_allclose((z - state["w"]).reshape(-1), slope, atol=1e-6)


def given_back(z: np.ndarray) -> onnx.ModelProto:
    """y = w + x."""
    shape = list(z.shape)
    graph = helper.make_graph(
        [helper.make_node("Add", ["w", "x"], ["y"])],
        "back",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(z, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


SMALL: dict[str, dict[str, Any]] = {
    "lenet5": {},
    "mlp_16x3": {},
    "tcn": {"steps": 30, "width": 5, "levels": 3},
    "har_lstm": {"steps": 5, "hidden": 6},
    "encoder": {"tokens": 5, "layers": 1, "width": 8, "heads": 2},
    "unet": {"size": 16, "width": 3, "levels": 2},
    "decoder": {"past": 3, "layers": 1, "width": 8, "heads": 2, "vocabulary": 7, "context": 6},
    "squeezenet1_1": {"size": 40, "classes": 3},
}


@pytest.mark.parametrize("name", SMALL)
def test_networks_learn(name: str, rng: np.random.Generator) -> None:
    model = models.build(name, **SMALL[name], **({} if name == "decoder" else {"batch": 3}))
    loss, optimizer = "mse" if name in ("mlp_16x3", "encoder", "decoder") else "cross_entropy", SGD(0.02, clip=1.0)
    step = make_training_step(model, loss=loss, optimizer=optimizer)
    feeds = {
        n: rng.normal(size=s).astype(d) if d.kind == "f" else rng.integers(0, 2, s)
        for n, (d, s) in step.feeds.items()
        if n not in (WEIGHT, HYPER)
    }
    losses, _ = train(step, optimizer, [feeds] * 4)
    assert np.all(np.diff(losses) < 0), losses


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("googlenet", 32),
        ("resnet50", 32),
        ("mobilenet_v1", 32),
        ("mobilenet_v2", 32),
        ("shufflenet", 32),
        ("inception_v3", 75),
        ("squeezenet1_0", 40),
    ],
)
def test_large_networks_differentiate(name: str, size: int) -> None:
    """Down to the first layer, each gradient of its weight's shape: the walk checks that."""
    model = models.build(name, batch=2, classes=3, size=size)
    step = make_training_step(model, loss="cross_entropy", optimizer=SGD(0.1))
    assert len(step.parameters) == sum(t.data_type == TensorProto.FLOAT for t in model.graph.initializer) - 2 * sum(
        n.op_type == "BatchNormalization" for n in model.graph.node
    )
    assert [o for o in step.model.graph.output if not o.type.tensor_type.shape.dim] == step.model.graph.output[:1]


def conv_bn(momentum: float = 0.8) -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    arrays = {
        "w": rng.normal(size=(4, 2, 1, 1)),
        "scale": rng.normal(size=4),
        "bias": rng.normal(size=4),
        "mean": np.zeros(4),
        "var": np.ones(4),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(
            "BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"], name="bn", momentum=momentum
        ),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    nodes.insert(2, helper.make_node("Relu", ["n"], ["r"]))
    graph = helper.make_graph(
        nodes,
        "bn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 2, 3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [6, 4])],
        [numpy_helper.from_array(a.astype("f"), n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_batch_normalization_in_training(rng: np.random.Generator) -> None:
    """Against differences of the loss, and its running statistics."""
    model = conv_bn()
    x, y = rng.normal(size=(6, 2, 3, 3)).astype("f"), rng.integers(0, 4, 6)
    step = make_training_step(model, loss="cross_entropy", optimizer=SGD(1.0), batch_norm="train")
    assert set(step.buffers) == {"mean", "var"}
    _, state = train(step, SGD(1.0), [{"x": x, LABEL: y}])
    p = references.weights(model)

    def loss(w: dict[str, np.ndarray]) -> float:
        c = np.einsum("nchw,mc->nmhw", x.astype(float), w["w"][:, :, 0, 0])
        mean, var = c.mean((0, 2, 3), keepdims=True), c.var((0, 2, 3), keepdims=True)
        n = (c - mean) / np.sqrt(var + 1e-5) * w["scale"].reshape(1, 4, 1, 1) + w["bias"].reshape(1, 4, 1, 1)
        return float(losses_of("cross_entropy", np.maximum(n, 0).mean((2, 3)), y).mean())

    for name in ("w", "scale", "bias"):
        for i in range(p[name].size):
            ends = []
            for sign in (1, -1):
                moved = {k: v.copy() for k, v in p.items()}
                moved[name].reshape(-1)[i] += sign * 1e-6
                ends.append(loss(moved))
            assert (p[name] - state[name]).reshape(-1)[i] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=2e-5), name
    c = np.einsum("nchw,mc->nmhw", x, p["w"][:, :, 0, 0])
    np.testing.assert_allclose(state["mean"], 0.2 * c.mean((0, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(state["var"], 0.8 + 0.2 * c.var((0, 2, 3)), rtol=1e-5)


def test_frozen_statistics_stay() -> None:
    step = make_training_step(conv_bn(), loss="cross_entropy", optimizer=SGD(1.0))
    assert step.buffers == ()
    assert set(step.parameters) == {"w", "scale", "bias"}


def dropout_model(ratio: float = 0.25, size: int = 4000) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node("Dropout", ["a", "ratio"], ["y"], name="drop"),
    ]
    graph = helper.make_graph(
        nodes,
        "drop",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, size])],
        [numpy_helper.from_array(np.ones(size, "f"), "w"), numpy_helper.from_array(np.float32(ratio), "ratio")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mask_of(seed: int) -> np.ndarray:
    """The gradient of the mean absolute value is the mask, where x and the target are such that all signs are 1."""
    step = make_training_step(dropout_model(), loss="l1", optimizer=SGD(1.0), trainable=["w"])
    feeds = {
        "x": np.stack([np.ones(4000, "f"), np.zeros(4000, "f")]),
        LABEL: np.full((2, 4000), -1, "f"),
        SEED: np.array([seed], np.int32),
    }
    _, state = train(step, SGD(1.0), [feeds])
    return np.round((1 - state["w"]) * 8000, 3)


def test_dropout_keeps_what_its_ratio_says_and_another_part_with_each_seed() -> None:
    first, second = mask_of(1), mask_of(2)
    np.testing.assert_allclose(np.unique(first), [0, 4 / 3], atol=2e-3)
    assert abs((first > 0).mean() - 0.75) < 0.03
    np.testing.assert_array_equal(first, mask_of(1))
    agree = ((first > 0) == (second > 0)).mean()
    assert abs(agree - (0.75**2 + 0.25**2)) < 0.04
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.06


def test_dropout_off_is_the_identity() -> None:
    step = make_training_step(dropout_model(), loss="l1", optimizer=SGD(1.0), trainable=["w"], dropout=False)
    assert SEED not in step.feeds


def test_what_the_loss_has_in_itself_is_left_out_and_said() -> None:
    step = make_training_step(references.mlp(softmax=True), loss="cross_entropy", optimizer=SGD(0.1), batch=5)
    assert "Softmax" not in {n.op_type for n in step.model.graph.node}
    assert any("softmax" in note for note in step.notes)


def test_inputs_that_nothing_reads_are_left_out() -> None:
    step = make_training_step(references.mlp(), loss="cross_entropy", optimizer=SGD(0.1), trainable=["*1"], batch=5)
    assert set(step.parameters) == {"w1", "b1"}
    assert {i.name for i in step.model.graph.input} == {*step.feeds, *step.carried}
    assert "Tanh" in {n.op_type for n in step.model.graph.node}


SCHEDULES: list[tuple[Schedule, dict[int, float]]] = [
    (constant(0.5), {0: 0.5, 1000: 0.5}),
    (cosine(1.0, 10), {0: 1.0, 5: 0.5, 10: 0.0, 20: 0.0}),
    (cosine(1.0, 12, warmup=2, end=0.1), {0: 0.5, 1: 1.0, 7: 0.55, 12: 0.1}),
    (step_decay(1.0, 3, 0.5), {2: 1.0, 3: 0.5, 6: 0.25}),
    (with_warmup(0.2, 4), {0: 0.05, 3: 0.2, 9: 0.2}),
]


@pytest.mark.parametrize(("schedule", "rates"), SCHEDULES, ids=lambda v: str(v)[:20])
def test_schedules(schedule: Schedule, rates: dict[int, float]) -> None:
    assert {step: schedule(step) for step in rates} == pytest.approx(rates)


def no_rule() -> onnx.ModelProto:
    model = references.mlp()
    model.graph.initializer.extend(
        [numpy_helper.from_array(np.zeros((1, 1), np.int64), "i"), numpy_helper.from_array(np.zeros((1, 1), "f"), "u")]
    )
    model.graph.node[1].output[0] = "t"
    model.graph.node.insert(2, helper.make_node("ScatterElements", ["t", "i", "u"], ["h0"], name="the_scatter"))
    return model


def quantized() -> onnx.ModelProto:
    model = references.mlp()
    for t in model.graph.initializer:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.int8), t.name))
    return model


MISTAKES: dict[str, tuple[type[Exception], dict[str, Any], str]] = {
    "loss": (TrainingError, {"loss": "crossentropy"}, "did you mean 'cross_entropy'"),
    "pattern": (
        TrainingError,
        {"trainable": ["wO"]},
        r"'wO' matches none of the model's 4 float32 weights; did you mean",
    ),
    "text": (TrainingError, {"trainable": "w0"}, "expected a list of patterns"),
    "nothing": (TrainingError, {"trainable": []}, "got no pattern"),
    "output": (TrainingError, {"output": "z"}, "no such output; it has 'y'"),
    "open": (TrainingError, {"batch": None}, r"its shape \[N, 6\] is open"),
    "shape": (TrainingError, {"shapes": {"x": (5, 7)}}, r"got the shape \[5, 7\], expected \[N, 6\]"),
    "input": (TrainingError, {"shapes": {"z": (5, 7)}}, "no such input; it has 'x'"),
    "op": (
        TrainingError,
        {"model": no_rule()},
        "node 'the_scatter' .ScatterElements. has no gradient here.*trainable=.*adding-a-gradient",
    ),
    "quantized": (TrainingError, {"model": quantized()}, "no float32 weights to train .its initializers are: int8."),
    "no model": (ModelError, {"model": b"nothing"}, "not an ONNX model"),
    "no file": (ModelError, {"model": "nowhere.onnx"}, "no such file"),
    "batch norm": (TrainingError, {"batch_norm": "thaw"}, "expected one of frozen, train"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_said(name: str) -> None:
    kind, changed, message = MISTAKES[name]
    arguments: dict[str, Any] = {
        "model": references.mlp(),
        "loss": "cross_entropy",
        "optimizer": SGD(0.1),
        "batch": 5,
        **changed,
    }
    with pytest.raises(kind, match=message):
        make_training_step(arguments.pop("model"), **arguments)


def test_a_fixed_batch_is_said() -> None:
    with pytest.raises(TrainingError, match="its batch size is fixed: give batches of 6"):
        make_training_step(conv_bn(), loss="cross_entropy", optimizer=SGD(0.1), shapes={"x": (5, 2, 3, 3)})


@pytest.mark.parametrize(("name", "op"), [("detector", "NonMaxSuppression"), ("table_rows", "Loop")])
def test_shapes_that_depend_on_data_are_said_with_the_node_that_makes_them(name: str, op: str) -> None:
    with pytest.raises(
        TrainingError, match=rf"\(because of node '[^']*{op}', {op}\).*\(output=\)|node '{op}' \({op}\) has no gradient"
    ):
        make_training_step(models.build(name), loss="mse", optimizer=SGD(0.1), batch=1)


@pytest.mark.parametrize(
    "make", [lambda: SGD(-1), lambda: Adam(float("nan")), lambda: SGD(0.1, clip=0), lambda: cosine(1, 3, warmup=3)]
)
def test_wrong_numbers_are_said(make: Any) -> None:
    with pytest.raises(TrainingError, match="expected"):
        make()


def test_the_reference_gradients_run_too() -> None:
    """The harness's own check: a wrong rule would be seen."""
    model, ((x, y),) = references.mlp(), batches(1)
    p = references.weights(model)
    loss, grads = references.gradients(p, x, y, np.full(5, 0.2))
    moved = {**p, "w0": p["w0"] + 1e-6 * grads["w0"]}
    assert references.gradients(moved, x, y, np.full(5, 0.2))[0] - loss == pytest.approx(
        1e-6 * (grads["w0"] ** 2).sum(), rel=1e-3
    )
