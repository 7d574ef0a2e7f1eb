"""Rows that kernels keep in registers: every form of them, with subgroups and without, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.scheduler.planner import make_plan
from tests.daily import part
from tests.ops.single_node import Array, check_node, node_model, normal

FORMS = ("fours", "wide 128", "wide 256")


@pytest.fixture(params=[True, False], ids=["subgroups", "workgroup memory"])
def subgroups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(Limits, "allow", lambda self, shader, *features: not features)


def softmax(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        power = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return np.asarray(power / power.sum(-1, keepdims=True))


@pytest.mark.usefixtures("subgroups")
@pytest.mark.parametrize(
    ("shape", "form"),
    part(
        [((5, 64),), ((3, 7, 77),), ((130, 384),), ((2, 1021),), ((3, 1024),), ((1, 9004),), ((2, 40_001),)],
        list(FORMS),
    ),
)
def test_softmax(shape: tuple[int, ...], form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(*shape) * 20
    with forced(form) as made:
        check_node("Softmax", [x], 13, axis=-1, wanted=[softmax(x).astype("f")], tolerance=2e-6)
        check_node(
            "LogSoftmax", [x], 13, axis=-1, wanted=[np.log(np.maximum(softmax(x), 1e-300)).astype("f")], tolerance=2e-6
        )
    assert any(form in choice.forms for choice in made.values()) or shape[-1] != 1024


def test_rows_that_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN makes its row NaN, minus infinity an element 0; nothing but minus infinity is NaN, as by ONNX Runtime's
    CPU."""
    x = normal(5, 132)
    x[0, 7], x[1, :100], x[3] = np.nan, -np.inf, -np.inf
    for form in ("fours", "wide 128"):
        with forced(form):
            check_node("Softmax", [x], 13, axis=-1, wanted=[softmax(x).astype("f")])


@pytest.mark.usefixtures("subgroups")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(5, 132), (37, 1024), (3, 4100), (1, 40_004)], ids=str)
def test_layers(shape: tuple[int, ...], form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, scale, bias = normal(*shape) * 3 + 5, normal(shape[-1], seed=1), normal(shape[-1], seed=2)
    wide = x.astype(np.float64)
    whole = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * scale + bias
    with forced(form):
        check_node("LayerNormalization", [x, scale, bias], 17, tolerance=2e-6, wanted=[whole.astype("f")])
        want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * scale
        check_node("RMSNormalization", [x, scale], 23, wanted=[want.astype("f")], tolerance=2e-6, epsilon=1e-5)


@pytest.mark.usefixtures("subgroups")
@pytest.mark.parametrize("form", [*FORMS, "2 pieces", "8 pieces"])
@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 6, 4, 8), 3), ((1, 6, 40, 66), 2), ((2, 4, 61, 100), 4), ((1, 4, 90, 52), 1)], ids=str
)
def test_groups(shape: tuple[int, ...], groups: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, channels = normal(*shape) * 3 + 5, shape[1]
    wide = x.reshape(shape[0], groups, -1).astype(np.float64)
    whole = ((wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)).reshape(shape)
    with forced(form) as made:
        for opset, size in ((18, groups), (21, channels)):
            scale, bias = normal(size, seed=1), normal(size, seed=2)
            of_channels = [np.repeat(v, channels // size).reshape(channels, 1, 1) for v in (scale, bias)]
            want = whole * of_channels[0] + of_channels[1]
            check_node(
                "GroupNormalization",
                [x, scale, bias],
                opset,
                num_groups=groups,
                wanted=[want.astype("f")],
                tolerance=2e-6,
            )
        if groups == channels:
            check_node("InstanceNormalization", [x, scale, bias], 6, wanted=[want.astype("f")], tolerance=2e-6)
    assert any(form in choice.forms for choice in made.values()) or form == "fours" or shape[2:] != (90, 52)


def shaders(op: str, shapes: list[tuple[int, ...]], limits: Limits, version: int) -> list[str]:
    model, feeds = node_model(op, [np.empty(shape, "f") for shape in shapes], version)
    plan = make_plan(from_onnx(model), {k: TensorType(FLOAT32, a.shape) for k, a in feeds.items()}, limits)
    return [step.kernel.shader for step in plan.steps]  # type: ignore[union-attr]


def test_a_kernel_that_failed_its_probe_is_not_taken() -> None:
    for allowed in (Limits(), Limits(frozenset(("subgroup",)))):
        assert shaders("Softmax", [(128, 384)], allowed, 13) == ["softmax_rows.wgsl"]
    failed = Limits(disabled=(("softmax_rows.wgsl", "a probe failed"),))
    assert shaders("Softmax", [(128, 384)], failed, 13) == ["softmax.wgsl"]
