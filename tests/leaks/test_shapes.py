"""A process that meets ever new input shapes, or ever new models, does not grow with their number."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

import ort_gpu_ep
from ort_gpu_ep.webgpu import objects
from tests.plugin.cases import info, make_model, node

SHAPES, MODELS = 40, 20


def model(rows: int | str = "N") -> bytes:
    rng = np.random.default_rng(1)
    weights = {"W": rng.normal(size=(16, 16)).astype("f"), "V": rng.normal(size=(16, 16)).astype("f")}
    return make_model(
        [node("MatMul", "x W", "a"), node("Softmax", "a", "b"), node("MatMul", "b V", "y")],
        [info("x", [rows, 16])],
        ["y"],
        weights,
    )


def pipelines() -> int:
    gc.collect()
    return objects.live()["ComputePipeline"]


def test_new_shapes_compile_nothing() -> None:
    session = ort_gpu_ep.InferenceSession(model(), provider_options={"placement": "gpu", "strict": "1"})
    cpu = ort_gpu_ep.InferenceSession(model(), providers=["CPUExecutionProvider"])
    gpu, rng = session.state.gpu, np.random.default_rng(12)
    made = []
    for n in rng.permutation(np.arange(1001, 1001 + SHAPES)):
        x = rng.normal(size=(int(n), 16)).astype("f")
        np.testing.assert_allclose(session.run(None, {"x": x})[0], cpu.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
        made.append(gpu.compiled)
    assert made[-1] == made[0]


def growth_of_shapes() -> None:
    """Prints by how many bytes this process grows from ten new shapes to two hundred, none larger than those before;
    five times."""
    session = ort_gpu_ep.InferenceSession(model(), provider_options={"placement": "gpu", "strict": "1"})
    rng = np.random.default_rng(13)
    for first in range(100, 1100, 200):
        for k, n in enumerate([1100, *rng.permutation(np.arange(first, first + 200))]):
            session.run(None, {"x": rng.normal(size=(int(n), 16)).astype("f")})
            if k == 10:
                gc.collect()
                before = psutil.Process().memory_info().rss
        gc.collect()
        print(int(psutil.Process().memory_info().rss) - before)


def test_200_shapes_take_the_memory_of_ten() -> None:
    """In a process of its own: what other tests left behind in this one grows, too."""
    code = "from tests.leaks.test_shapes import growth_of_shapes; growth_of_shapes()"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    grown = [int(line) for line in found.stdout.split()]
    assert len(grown) == 5
    assert min(grown) < 4 << 20, grown  # once, it may be another thread's


def test_pipelines_of_models_gone_by_go_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ort_gpu_ep.InferenceSession(model(1000), provider_options={"placement": "gpu"})
    gpu = first.state.gpu
    monkeypatch.setattr(gpu.pipelines, "kept", 5)
    before, made = pipelines(), gpu.compiled
    for n in range(1001, 1001 + MODELS):
        session = ort_gpu_ep.InferenceSession(model(n), provider_options={"placement": "gpu"})
        session.run(None, {"x": np.ones((n, 16), "f")})
        del session
    assert gpu.compiled - made > MODELS
    assert pipelines() - before <= 10


def test_sessions_share_the_pipelines_that_one_of_them_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ort_gpu_ep.InferenceSession(model(), provider_options={"placement": "gpu"})
    gpu = first.state.gpu
    monkeypatch.setattr(gpu.pipelines, "kept", 0)
    x = np.random.default_rng(14).normal(size=(2001, 16)).astype("f")
    first.run(None, {"x": x})
    made = gpu.compiled
    second = ort_gpu_ep.InferenceSession(model(), provider_options={"placement": "gpu"})
    np.testing.assert_array_equal(second.run(None, {"x": x})[0], first.run(None, {"x": x})[0])
    # no plan goes on using what packed its weights
    again = sum(len(plan.prologue) for plan in second.explain().plans)
    assert made < gpu.compiled <= made + again
