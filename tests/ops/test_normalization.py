"""Normalisations against ONNX Runtime's CPU kernels or float64: what ONNX's own node cases lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from ort_gpu_ep.errors import Code
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import run_direct
from tests.ops.single_node import Array, check_decline, check_node, node_model, normal, positive

SHAPES = [(2, 5, 131), (3, 7, 11, 13), (1, 3, 2, 5, 7), (1, 2, 101, 307), (66000, 2, 3)]


def vector(size: int, seed: int) -> Array:
    return normal(size, seed=seed)


def moments(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Any, Any, Any]:
    """x normalised, mean, 1 / deviation: in float64."""
    wide = x.astype(np.float64)
    mean = wide.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(wide.var(axes, keepdims=True) + epsilon)
    return (wide - mean) * inverse, mean, inverse


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
@pytest.mark.parametrize("shape", [(5, 7), *SHAPES[:3]], ids=str)
def test_batch(shape: tuple[int, ...], opset: int) -> None:
    c = shape[1]
    check_node(
        "BatchNormalization",
        [normal(*shape), vector(c, 1), vector(c, 2), vector(c, 3), positive(c)],
        opset,
        epsilon=1e-3,
    )


@pytest.mark.parametrize("opset", [6, 22])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_instance(shape: tuple[int, ...], opset: int) -> None:
    c = shape[1]
    x, scale, bias = normal(*shape) + 2, vector(c, 1), vector(c, 2)
    spread = (c,) + (1,) * (len(shape) - 2)
    wanted = moments(x, tuple(range(2, len(shape))), 1e-5)[0] * scale.reshape(spread) + bias.reshape(spread)
    check_node("InstanceNormalization", [x, scale, bias], opset, wanted=[wanted.astype(np.float32)])


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((2, 5, 131), -1), ((2, 5, 131), 1), ((3, 7, 11), 0), ((66001, 3), -1), ((5, 4099), 1), ((7,), 0)],
    ids=str,
)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
def test_layer(shape: tuple[int, ...], axis: int, bias: bool, outputs: int) -> None:
    inner = shape[axis:] if axis else shape
    inputs = [3 + normal(*shape), normal(*inner, seed=1), *([normal(*inner, seed=2)] if bias else [])]
    y, mean, inverse = moments(inputs[0], tuple(range(axis % len(shape), len(shape))), 1e-5)
    y = y * inputs[1] + (inputs[2] if bias else 0)
    wanted = [v.astype(np.float32) for v in (y, mean, inverse)[:outputs]]
    check_node("LayerNormalization", inputs, 17, outputs=outputs, axis=axis, wanted=wanted)
    if shape[0] < 66001:
        check_node("LayerNormalization", inputs, 17, outputs=outputs, axis=axis)


@pytest.mark.parametrize("outputs", [("y", "", "inv_std"), ("y", "mean", "")], ids=str)
def test_layer_with_an_output_left_out(outputs: tuple[str, ...]) -> None:
    x = normal(3, 7)
    model, feeds = node_model("LayerNormalization", [x, vector(7, 0)], 17, outputs=3)
    model.graph.node[0].output[:] = outputs
    want = dict(
        zip(
            ("y", "mean", "inv_std"),
            run_direct(*node_model("LayerNormalization", [x, vector(7, 0)], 17, outputs=3)),
            strict=True,
        )
    )
    kept = [name for name in outputs if name]
    del model.graph.output[:]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in kept)
    for got, name in zip(run_direct(model, feeds), kept, strict=True):
        np.testing.assert_array_equal(got, want[name])


def test_layer_with_broadcast_scale() -> None:
    x = normal(2, 5, 7)
    wanted = moments(x, (1, 2), 1e-5)[0] * vector(7, 1)
    check_node("LayerNormalization", [x, vector(7, 1)], 17, axis=1, wanted=[wanted.astype(np.float32)])


def test_layer_far_from_zero() -> None:
    x = (normal(7, 131) + 1000).astype(np.float32)
    wanted = moments(x, (1,), 1e-5)[0]
    check_node(
        "LayerNormalization", [x, np.ones(131, np.float32)], 17, wanted=[wanted.astype(np.float32)], tolerance=1e-4
    )


@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("opset", [18, 21])
def test_group(groups: int, opset: int) -> None:
    x, size = normal(2, 6, 5, 7), groups if opset == 18 else 6
    scale, bias = vector(size, 1), vector(size, 2)
    spread = [np.repeat(v, 6 // size).reshape(6, 1, 1) for v in (scale, bias)]
    wanted = moments(x.reshape(2, groups, -1), (2,), 1e-5)[0].reshape(x.shape) * spread[0] + spread[1]
    check_node("GroupNormalization", [x, scale, bias], opset, num_groups=groups, wanted=[wanted.astype(np.float32)])


@pytest.mark.parametrize(("shape", "axis"), [((2, 5, 131), -1), ((3, 7, 11), 1), ((2, 3, 1009), -1)], ids=str)
def test_rms(shape: tuple[int, ...], axis: int) -> None:
    x, scale = normal(*shape) + 1, normal(*shape[axis:], seed=1)
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean(tuple(range(axis % 3, 3)), keepdims=True) + 1e-5) * scale
    check_node("RMSNormalization", [x, scale], 23, axis=axis, wanted=[wanted.astype(np.float32)])


@pytest.mark.parametrize(
    ("opset", "attributes"),
    [(9, {}), (13, {}), (13, {"axes": [0, 2, 3]}), (13, {"axes": [2, 3]}), (13, {"axes": [-1, 1]})],
    ids=str,
)
def test_mean_variance(opset: int, attributes: dict[str, Any]) -> None:
    x = normal(2, 5, 7, 11) + 1
    wanted = moments(x, tuple(attributes.get("axes", (0, 2, 3))), 0.0)[0]
    check_node("MeanVarianceNormalization", [x], opset, wanted=[wanted.astype(np.float32)], **attributes)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("opset", [1, 22])
def test_lp(opset: int, p: int) -> None:
    x = normal(3, 5, 131)
    x[1, 2] = 0
    for axis in (-1, 1):
        check_node("LpNormalization", [x], opset, p=p, axis=axis)


@pytest.mark.parametrize(
    "attributes",
    [
        {"size": 5},
        {"size": 4, "alpha": 0.5, "beta": 0.75, "bias": 2.0},
        {"size": 3, "alpha": 0.3, "beta": 1.3},
        {"size": 99, "alpha": 1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("opset", [1, 13])
def test_lrn(attributes: dict[str, Any], opset: int) -> None:
    x, size = normal(2, 11, 5, 7), attributes["size"]
    square = x.astype(np.float64) ** 2
    total = np.stack([square[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].sum(1) for c in range(11)], 1)
    wanted = x / (attributes.get("bias", 1.0) + attributes.get("alpha", 1e-4) / size * total) ** attributes.get(
        "beta", 0.75
    )
    check_node("LRN", [x], opset, wanted=[wanted.astype(np.float32)], **attributes)


@pytest.mark.parametrize(
    ("op", "extra", "attributes", "opset"),
    [
        ("BatchNormalization", [np.ones(2, np.float32)] * 4, {}, 15),
        ("InstanceNormalization", [np.ones(2, np.float32)] * 2, {}, 6),
        ("LayerNormalization", [np.ones(3, np.float32)], {}, 17),
        ("LpNormalization", [], {}, 1),
    ],
    ids=str,
)
def test_nan_stays_in_its_row(op: str, extra: Any, attributes: dict[str, Any], opset: int) -> None:
    x = normal(2, 2, 4, 3)
    x[1, 0, 2, 1] = np.nan
    check_node(op, [x, *extra], opset, tolerance=2e-6, **attributes)


ONE = np.ones(1, np.float32)


@pytest.mark.parametrize(
    ("code", "op", "inputs", "opset", "attributes"),
    [
        (Code.ATTRIBUTE, "BatchNormalization", [normal(2, 1, 3), ONE, ONE, ONE, ONE], 9, {"outputs": 5}),
        (Code.ATTRIBUTE, "BatchNormalization", [normal(2, 1, 3), ONE, ONE, ONE, ONE], 7, {"spatial": 0}),
        (Code.OPSET, "BatchNormalization", [normal(2, 1, 3), ONE, ONE, ONE, ONE], 6, {"is_test": 1}),
        (Code.RANK, "LayerNormalization", [normal(2, 3), normal(5)], 17, {}),
        (Code.ATTRIBUTE, "GroupNormalization", [normal(2, 5, 3), normal(5), normal(5)], 21, {"num_groups": 2}),
        (Code.ATTRIBUTE, "LpNormalization", [normal(2, 3)], 1, {"p": 3}),
        (Code.DTYPE, "LRN", [np.ones((1, 2, 3))], 13, {"size": 3}),
        *(
            (Code.ATTRIBUTE, "LRN", [normal(1, 2, 3, 1)], 13, {"size": 3, "bias": value})
            for value in (np.inf, -np.inf, np.nan)
        ),
        (Code.ATTRIBUTE, "LayerNormalization", [normal(2, 3), normal(3)], 17, {"epsilon": np.inf}),
    ],
)
def test_declines(code: Code, op: str, inputs: Any, opset: int, attributes: dict[str, Any]) -> None:
    check_decline(code, op, inputs, opset, **attributes)


def shader_of(rows: int, n: int, limits: Limits) -> str:
    model, feeds = node_model("LayerNormalization", [np.empty((rows, n), "f"), np.empty(n, "f"), np.empty(n, "f")], 17)
    plan = make_plan(from_onnx(model), {k: TensorType(FLOAT32, a.shape) for k, a in feeds.items()}, limits)
    return str(plan.steps[0].kernel.shader)  # type: ignore[union-attr]


def test_which_rows_go_by_fours() -> None:
    subgroups = Limits(frozenset(("subgroup",)))
    assert shader_of(128, 384, subgroups) == shader_of(128, 384, Limits()) == "normalize_rows.wgsl"
    assert shader_of(2, 40_000, subgroups) == "normalize_rows.wgsl"
    assert shader_of(128, 386, subgroups) == "normalize.wgsl"
    assert shader_of(128, 384, Limits(disabled=(("normalize_rows.wgsl", "a probe failed"),))) == "normalize.wgsl"


@pytest.mark.parametrize("subgroups", [True, False])
@pytest.mark.parametrize("shape", [(1, 4), (5, 3, 8), (7, 132), (130, 384), (3, 1024)], ids=str)
def test_rows_by_fours(shape: tuple[int, ...], subgroups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not subgroups:
        monkeypatch.setattr(Limits, "allow", lambda self, shader, *features: not features)
    x, scale, bias = normal(*shape) * 3 + 5, normal(shape[-1], seed=1), normal(shape[-1], seed=2)
    with apart():
        check_node("LayerNormalization", [x, scale, bias], 17, tolerance=2e-6)
        check_node("LayerNormalization", [x, scale], 17, epsilon=0.5, tolerance=2e-6)
        wide = x.astype(np.float64)
        want = (wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * scale).astype("f")
        check_node("RMSNormalization", [x, scale], 23, wanted=[want], tolerance=2e-6, epsilon=1e-5)


@pytest.mark.parametrize("shape", [(2, 3), (4, 1, 7), (2, 3, 4, 5), (1, 5, 67, 129), (3, 2, 2, 3, 70)])
@pytest.mark.parametrize("outputs", [1, 3])
def test_batch_normalization_in_training(shape: tuple[int, ...], outputs: int) -> None:
    c = shape[1]
    x = normal(*shape) * 2 + 30  # variance and mean far apart
    inputs = [x, normal(c, seed=1), normal(c, seed=2), normal(c, seed=3), positive(c)]
    model, feeds = node_model(
        "BatchNormalization", inputs, 15, outputs=outputs, training_mode=1, momentum=0.7, epsilon=1e-3
    )
    axes = tuple(a for a in range(len(shape)) if a != 1)
    wide = [a.astype(np.float64) for a in inputs]
    mean, variance = wide[0].mean(axes), wide[0].var(axes)
    along = (1, c, *(1,) * (len(shape) - 2))
    y = (wide[0] - mean.reshape(along)) / np.sqrt(variance.reshape(along) + 1e-3) * wide[1].reshape(along) + wide[
        2
    ].reshape(along)
    wanted = [y, 0.7 * wide[3] + 0.3 * mean, 0.7 * wide[4] + 0.3 * variance][:outputs]
    for got, want in zip(run_direct(model, feeds), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=5e-5)
