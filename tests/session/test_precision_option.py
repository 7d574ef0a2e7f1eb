"""The option `precision`: sessions with weights in float16, what explain() says of them, and what refuses or falls
back."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep import InferenceSession
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import ConfigError, WrongResultError
from ort_gpu_ep.kernels.target import Target
from ort_gpu_ep.placement.decisions import speed_options
from ort_gpu_ep.plugin.verification import compare
from ort_gpu_ep.training import SGD, Trainer
from tests.session.conftest import gpu_session, on_the_cpu
from tests.unit.graphs import model_of

SIZE = 160


@pytest.fixture
def model(rng: np.random.Generator) -> bytes:
    """relu(x w) v: weights of 100 KiB each."""
    weights = {name: (rng.standard_normal((SIZE, SIZE)) / np.sqrt(SIZE)).astype("f") for name in "wv"}
    text = f"(float[N, {SIZE}] x) => (float[N, {SIZE}] y) {{ h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }}"
    return bytes(model_of(text, weights).SerializeToString())


@pytest.fixture
def feeds(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.standard_normal((7, SIZE)).astype("f")}


def error(got: Any, want: Any) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def test_sessions_of_each_precision(model: bytes, feeds: Any) -> None:
    """Beside each other: what one has compiled or looked up is not what another one gets. Each goes by its own
    tolerance in `verify`."""
    (want,) = on_the_cpu(model, feeds)
    sessions = {p: gpu_session(model, strict="1", precision=p, verify="1") for p in ("f16", "float32", "f16acc")}
    errors = {p: error(s.run(None, feeds)[0], want) for p, s in sessions.items()}
    assert errors["float32"] < 1e-6 < 5e-5 < errors["f16"] < 1e-3 < 2 * errors["f16acc"] < 1e-2
    for precision, session in sessions.items():
        text = str(session.explain())
        assert ("weights in float16: 100" in text) == (precision != "float32"), text


def test_a_worker_process_gives_the_same(model: bytes, feeds: Any) -> None:
    for precision in ("f16", "f16acc"):
        here, there = (
            gpu_session(model, strict="1", precision=precision, isolation=kind) for kind in ("none", "process")
        )
        np.testing.assert_array_equal(here.run(None, feeds)[0], there.run(None, feeds)[0])
        assert [
            step.kernel.shader for p in there.state.partitions for plan in p.program.plans for step in plan.prologue
        ]


def test_a_weight_that_stays_float32_is_told(rng: np.random.Generator, feeds: Any) -> None:
    w = rng.standard_normal((SIZE, SIZE)).astype("f")
    w[3, 4] = 1e6
    large = bytes(
        model_of(f"(float[N, {SIZE}] x) => (float[N, {SIZE}] y) {{ y = MatMul(x, w) }}", {"w": w}).SerializeToString()
    )
    session = gpu_session(large, strict="1", precision="f16")
    assert error(session.run(None, feeds)[0], on_the_cpu(large, feeds)[0]) < 1e-6
    assert "weights that stay float32, because float16 does not reach to their numbers: w" in str(session.explain())


def test_an_adapter_without_float16(
    model: bytes, feeds: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """f16acc falls back to float32, and says so; strict raises. f16 needs nothing of the adapter."""
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, features=gpu.limits.features - {"shader-f16"}))
    with caplog.at_level(logging.WARNING, "ort_gpu_ep"):
        session = gpu_session(model, precision="f16acc")
    assert error(session.run(None, feeds)[0], on_the_cpu(model, feeds)[0]) < 1e-6
    told = "f16acc has no effect, float32 is used: the adapter lacks the feature shader-f16"
    assert any(told in event for event in session.explain().events)
    assert told in caplog.text
    with pytest.raises(
        ConfigError, match=r"precision=f16acc on .* lacks the feature shader-f16\. Choose precision=float32"
    ):
        gpu_session(model, strict="1", precision="f16acc")
    assert (
        5e-5
        < error(gpu_session(model, strict="1", precision="f16").run(None, feeds)[0], on_the_cpu(model, feeds)[0])
        < 1e-3
    )


def test_training_is_float32(model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="training is done in float32: got precision=f16"):
        Trainer(model, loss="mse", optimizer=SGD(0.1), options={"precision": "f16"})
    monkeypatch.setenv("ORT_GPU_EP_PRECISION", "f16acc")
    with pytest.raises(ConfigError, match="got precision=f16acc"):
        Trainer(model, loss="mse", optimizer=SGD(0.1))


def test_what_is_kept_on_disk_knows_the_precision() -> None:
    """Measured candidates by the options that change what they take, measured forms by their key."""
    assert "precision" in speed_options(Config())
    limits = Config(), Config(precision="f16"), Config(precision="f16acc")
    keys = [Target(Gpu.open(Config()).limits.of(config)).choose("product 1x1", {"one": 1.0}).key for config in limits]
    assert keys == ["product 1x1", "product 1x1, f16", "product 1x1, f16acc"]


def test_what_verify_allows() -> None:
    want = np.linspace(-1, 1, 9, dtype="f")
    with pytest.raises(WrongResultError):
        compare("y", want + np.float32(1e-2), want)
    compare("y", want + np.float32(1e-2), want, "f16")
    with pytest.raises(WrongResultError):
        compare("y", want + np.float32(5e-2), want, "f16acc")


def test_auto_places_by_the_precision_too(model: bytes, feeds: Any) -> None:
    """The candidates of placement=auto are of that precision, and agree with the CPU as far as it allows."""
    session = InferenceSession(model, provider_options={"precision": "f16", "adapter": "software"})
    assert error(session.run(None, feeds)[0], on_the_cpu(model, feeds)[0]) < 1e-3
