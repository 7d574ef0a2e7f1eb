"""The text of a shader is composed once for all kernels that it is the same for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from models import build
from ort_gpu_ep.ir.graph import Graph, from_onnx
from ort_gpu_ep.kernels.registry import Kernel, Limits, Strided, kernel, parts
from ort_gpu_ep.memo import Memo
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.scheduler.plan import Dispatch, Plan
from ort_gpu_ep.scheduler.template import make_template
from ort_gpu_ep.shaders import composer
from ort_gpu_ep.shaders.composer import compose
from tests.direct import opened
from tests.unit.graphs import random_models, static_types, tensor

OUT = tensor(6, 4)
BINDINGS = {"x": (tensor(4, 6), False), "y": (OUT, True)}


def plans(graph: Graph) -> list[Plan]:
    """Of the sizes that the model has, and of sizes that it leaves open."""
    types = list(static_types(graph).values())
    return [make_template(g, types, Limits(), rewrite).plan for g in (graph, opened(graph))]


def assert_same(plan: Plan, limit: int) -> None:
    for step in plan.steps:
        if isinstance(step, Dispatch):
            pieces = {name: parts(found, limit) for name, (found, _) in step.bindings.items()}
            assert compose(
                step.kernel, step.bindings, replace(Limits(), max_binding_nbytes=limit)
            ) == composer._composed(step.kernel, step.bindings, pieces, False), step.label


@pytest.mark.parametrize("name", ["lenet5", "har_lstm", "encoder", "shufflenet", "mobilenet_v2", "unet"])
def test_a_text_that_was_composed_before_is_the_one_that_would_be_composed(name: str) -> None:
    for plan in plans(from_onnx(build(name))):
        assert_same(plan, Limits().max_binding_nbytes)


@settings(max_examples=40)
@given(random_models())
def test_random_models_share_texts_rightly(model: object) -> None:
    for plan in plans(from_onnx(model)):  # type: ignore[arg-type]
        assert_same(plan, Limits().max_binding_nbytes)


def strided(offset: int = 0, **changes: object) -> Kernel:
    made = kernel(
        "strided.wgsl",
        [OUT],
        indices={"x_index": Strided((6, 4), (1, 6), offset)},
        raw=True,
        reads={"x": 0},
        writes={"y": 0},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_what_a_text_follows_from_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composer, "_sources", Memo(64))
    texts = [
        compose(strided(), BINDINGS),
        compose(strided(3), BINDINGS),
        compose(strided(raw=False), BINDINGS),
        *(compose(strided(consts=(("A", value),)), BINDINGS) for value in (1, 1.0, True, -1)),
        compose(strided(optionals=(("z", True),)), BINDINGS),
        compose(strided(), {**BINDINGS, "x": (tensor(4, 6, dtype="int8"), False)}),
        compose(strided(), BINDINGS | {"z": (OUT, False)}),
        compose(strided(), {**BINDINGS, "y": (tensor(7, 4), True)}),
        compose(strided(), {**BINDINGS, "x": (tensor(400, 6), False)}, Limits(max_binding_nbytes=4096)),
    ]
    assert len(set(texts)) == len(texts)


def test_the_same_text_is_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composer, "_sources", Memo(64))
    calls = []
    whole = composer._composed
    monkeypatch.setattr(composer, "_composed", lambda *args: calls.append(0) or whole(*args))
    graph = from_onnx(build("encoder"))
    both = plans(graph)
    for _ in range(2):
        for plan in both:
            texts = [compose(step.kernel, step.bindings) for step in plan.steps if isinstance(step, Dispatch)]
            assert len(texts) > 4 * len(set(texts))
    assert len(calls) == len(
        {compose(s.kernel, s.bindings) for plan in both for s in plan.steps if isinstance(s, Dispatch)}
    )
