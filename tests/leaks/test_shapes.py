"""A session that meets ever new input shapes does not grow with their number."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest

import ort_gpu_ep
from ort_gpu_ep.device import objects
from ort_gpu_ep.device.program import MAX_PLANS
from tests.plugin.cases import info, make_model, node

SHAPES = 40


def model() -> bytes:
    rng = np.random.default_rng(1)
    weights = {"W": rng.normal(size=(16, 16)).astype("f"), "V": rng.normal(size=(16, 16)).astype("f")}
    return make_model([node("MatMul", "x W", "a"), node("Softmax", "a", "b"), node("MatMul", "b V", "y")], [info("x", ["N", 16])], ["y"], weights)


def pipelines() -> int:
    gc.collect()
    return objects.live()["ComputePipeline"]


@pytest.mark.parametrize("kept", [5, math.inf])
def test_pipelines_of_shapes_gone_by_go_with_them(monkeypatch: pytest.MonkeyPatch, kept: float) -> None:
    session = ort_gpu_ep.InferenceSession(model(), provider_options={"placement": "gpu", "strict": "1"})
    cpu = ort_gpu_ep.InferenceSession(model(), providers=["CPUExecutionProvider"])
    gpu = session._state.gpu
    rng = np.random.default_rng()

    def run(n: int) -> int:
        """How many pipelines were made for it."""
        made = gpu.compiled
        x = rng.normal(size=(n, 16)).astype("f")
        np.testing.assert_allclose(session.run(None, {"x": x})[0], cpu.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
        return int(gpu.compiled - made)

    monkeypatch.setattr(gpu.pipelines, "kept", kept)
    most = MAX_PLANS * run(1000)
    before = pipelines()
    sizes = rng.permutation(np.arange(1001, 1001 + SHAPES))
    made = sum(run(int(n)) for n in sizes)
    assert made > 2 * (most + 5)
    new = pipelines() - before
    assert new <= most + 5 if kept == 5 else new == made
    assert run(int(sizes[-1])) == 0
    assert (run(int(sizes[0])) > 0) == (kept == 5)


def test_sessions_share_the_pipelines_that_one_of_them_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ort_gpu_ep.InferenceSession(model(), provider_options={"placement": "gpu"})
    gpu = first._state.gpu
    monkeypatch.setattr(gpu.pipelines, "kept", 0)
    x = np.random.default_rng().normal(size=(2001, 16)).astype("f")
    first.run(None, {"x": x})
    made = gpu.compiled
    second = ort_gpu_ep.InferenceSession(model(), provider_options={"placement": "gpu"})
    np.testing.assert_array_equal(second.run(None, {"x": x})[0], first.run(None, {"x": x})[0])
    assert gpu.compiled == made
