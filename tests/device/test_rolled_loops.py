"""Loops of products that a software adapter's compiler is kept from unrolling."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ort_gpu_ep
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu, pipelines
from ort_gpu_ep.device.pipelines import ROLLED, rolled
from tests.direct import run_direct
from tests.ops.single_node import node_model

SHADERS = Path(ort_gpu_ep.__file__).parent / "shaders"


@pytest.mark.parametrize("shader", ROLLED)
def test_the_conditions_are_those_of_loops(shader: str) -> None:
    body = (SHADERS / shader).read_text("utf-8")
    for condition in ROLLED[shader]:
        assert body.count(condition) == 1
        assert f"; {condition}" in next(line for line in body.splitlines() if condition in line and "for (var" in line)


def product(monkeypatch: pytest.MonkeyPatch, change: Callable[[str, str], str]) -> tuple[Any, list[str]]:
    """A product of no round sizes, and the texts that were compiled for it."""
    texts = []

    def noted(shader: str, source: str) -> str:
        texts.append(change(shader, source))
        return texts[-1]

    rng = np.random.default_rng(0)
    model, feeds = node_model(
        "MatMul", [rng.normal(size=(37, 91)).astype("f"), rng.normal(size=(91, 41)).astype("f")], 13
    )
    with monkeypatch.context() as patch:
        patch.setattr(Gpu.open(Config()), "pipeline", lambda key, make: make())
        patch.setattr(pipelines, "rolled", noted)
        (got,) = run_direct(model, feeds)
    return got, texts


def test_the_sums_are_the_same_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    (loops, (text, *_)), (plain, _) = (
        product(monkeypatch, change) for change in (rolled, lambda shader, source: source)
    )
    assert np.array_equal(loops, plain)
    assert all(part in text for part in ("k < TK + never;", "e < 16u + never;", "never = lane >> 31u;"))


@pytest.mark.parametrize("software", [True, False])
def test_only_software_adapters_get_them(software: bool) -> None:
    texts = []
    device = SimpleNamespace(
        create_shader_module=lambda label, source: texts.append(source), create_compute_pipeline=lambda *given: None
    )
    gpu: Any = SimpleNamespace(
        info=SimpleNamespace(is_software=software),
        device=device,
        layouts=SimpleNamespace(get=lambda *given: None),
        rewritings=(),
        compilation_of=lambda shader: nullcontext(),
        pipeline=lambda key, make: make(),
    )
    text = "fn main(lane: u32) {\nfor (var e = 0u; e < 16u; e++) {} }"
    pipelines.compiled(gpu, "a product", "gemm.wgsl", text, ((True,), False, 0), True)
    assert ("never" in texts[0]) is software


def test_other_shaders_are_left_alone() -> None:
    text = "fn main(lane: u32) { for (var e = 0u; e < 16u; e++) {} }"
    assert rolled("pool.wgsl", text) == text
