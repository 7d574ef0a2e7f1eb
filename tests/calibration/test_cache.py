"""The profile of an adapter: measured once a process, kept on disk, never an error."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep import store
from ort_gpu_ep.calibration import cache, profile_of
from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import DeviceError, ShaderError, UnsupportedNodeError
from ort_gpu_ep.health.open_adapter import _figures, everything
from ort_gpu_ep.health.verdicts import key_of
from ort_gpu_ep.kernels.cost_parameters import Roofs, figures_for, figures_of
from ort_gpu_ep.kernels.profile import GUESSED, Curve, Profile, guessed_for
from ort_gpu_ep.plugin.local import LocalBackend
from ort_gpu_ep.session.session import InferenceSession
from tests.unit.graphs import model_of

MADE = Profile("a test", 1e-4, 1e-6, Curve(((1.0, 1e-9),)), Curve(((1.0, 1e-9),)), {"gather": Curve(((1.0, 1e-9),))})


class Measured:
    """Stands in for `measure` and counts."""

    def __init__(self) -> None:
        self.calls, self.answer = 0, lambda: MADE

    def __call__(self, gpu: Gpu, progress: object = None, whole: bool = True, wake_s: float = 0.0) -> Profile:
        self.calls += 1
        time.sleep(0.05)
        return self.answer() if whole else replace(self.answer(), families={})


@pytest.fixture
def gpu() -> Gpu:
    return Gpu.open(Config())


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    made = Measured()
    monkeypatch.setattr(cache, "measure", made)
    monkeypatch.setattr(cache, "_known", {})
    return made


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return resolve({"cache_dir": str(tmp_path / "cache")})


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """As if the process were new."""
    return lambda: monkeypatch.setattr(cache, "_known", {})


def file_of(gpu: Gpu, config: Config) -> Path:
    return Path(config.cache_path) / "profiles" / f"{key_of(gpu.info)}.json"


def test_it_is_measured_once_a_process(
    gpu: Gpu, config: Config, measured: Measured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ort_gpu_ep")
    found: list[Profile] = []
    threads = [threading.Thread(target=lambda: found.append(profile_of(gpu, config))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [MADE] * 8
    assert measured.calls == 1
    assert sum(" took " in r.message for r in caplog.records) == 1


def test_what_is_measured_of_kernels_runs_as_sessions_run_them(
    gpu: Gpu,
    config: Config,
    measured: Measured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On hardware: all probes that a model may have to wait for have run before, as far as kernels are measured."""
    monkeypatch.setattr(type(gpu.info), "is_software", False)
    monkeypatch.setattr(cache, "measure_roofs", lambda *given: None)
    asked: list[object] = []
    monkeypatch.setattr(cache, "open_gpu", lambda *given: asked.append((given, measured.calls)))
    profile_of(gpu, config, whole=False)
    assert asked == []
    profile_of(gpu, config)
    assert asked == [((config, everything), 1)]


def test_another_process_reads_it(gpu: Gpu, config: Config, measured: Measured, forget: Callable[[], None]) -> None:
    profile_of(gpu, config)
    forget()
    assert profile_of(gpu, config) == MADE
    assert measured.calls == 1
    assert profile_of(gpu, config, fresh=True) == MADE
    assert measured.calls == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 1}',
        '{"format": 99, "profile": {}}',
        '{"format": 1, "profile": {"adapter": "x"}}',
        json.dumps({"format": 1, "profile": {**MADE.as_dict(), "run_s": -1}}),
        json.dumps({"format": 1, "profile": [1]}),
        json.dumps({"format": 1, "profile": {**MADE.as_dict(), "families": {"unheard of": [[1, 1]]}}}),
        json.dumps({"format": 4, "profile": {**MADE.as_dict(), "roofs": {"flops_per_s": 1e12, "nbytes_per_s": 1e11}}}),
        json.dumps({"format": store.FORMAT, "profile": {**MADE.as_dict(), "roofs": {"workgroup_nbytes_per_s": -1.0}}}),
        json.dumps({"format": store.FORMAT, "profile": {**MADE.as_dict(), "roofs": {"atomics_per_s": 1.0}}}),
    ],
)
def test_what_cannot_be_used_is_made_anew(
    content: str,
    gpu: Gpu,
    config: Config,
    measured: Measured,
    forget: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ort_gpu_ep")
    path = file_of(gpu, config)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert profile_of(gpu, config) == MADE
    assert measured.calls == 1
    assert sum("ignored and made anew" in r.message for r in caplog.records) == 1
    forget()
    assert profile_of(gpu, config) == MADE
    assert measured.calls == 1


def test_a_profile_of_another_adapter_is_not_read(gpu: Gpu, config: Config, measured: Measured) -> None:
    path = file_of(gpu, config)
    path.parent.mkdir(parents=True)
    path.with_name("0" * 24 + ".json").write_text(json.dumps({"format": 1, "profile": GUESSED.as_dict()}))
    assert profile_of(gpu, config) == MADE


def test_without_a_writable_folder(
    gpu: Gpu, tmp_path: Path, measured: Measured, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by permissions: a test may run as root."""
    caplog.set_level(logging.INFO, "ort_gpu_ep")
    (tmp_path / "file").write_text("in the way")
    config = resolve({"cache_dir": str(tmp_path / "file")})
    assert [profile_of(gpu, config) for _ in range(2)] == [MADE] * 2
    assert measured.calls == 1
    assert sum("can't be written" in r.message for r in caplog.records) == 1


@pytest.mark.parametrize(
    "error",
    [DeviceError("gone"), ShaderError("no"), UnsupportedNodeError("DRIVER", "off"), KeyError("N")],
    ids=lambda e: type(e).__name__,
)
def test_a_device_that_fails_is_guessed(
    error: Exception,
    gpu: Gpu,
    config: Config,
    measured: Measured,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> Any:
        raise error

    measured.answer = fail
    assert [profile_of(gpu, config) for _ in range(3)] == [GUESSED] * 3
    assert measured.calls == 1
    assert len([r for r in caplog.records if "calibration" in r.message]) == 1
    assert not file_of(gpu, config).exists()


def test_a_lost_device_is_guessed_and_not_touched(
    gpu: Gpu, config: Config, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "lost", "a test")
    assert profile_of(gpu, config) is GUESSED
    monkeypatch.setattr(gpu, "lost", "")
    assert profile_of(gpu, config) == MADE


def test_a_device_that_fails_on_purpose_is_not_measured(gpu: Gpu, tmp_path: Path, measured: Measured) -> None:
    config = resolve({"cache_dir": str(tmp_path), "faults": "lost@1"})
    assert profile_of(gpu, config) is GUESSED
    assert measured.calls == 0


def test_roofs_are_measured_once_and_kept(
    gpu: Gpu,
    config: Config,
    measured: Measured,
    forget: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(cache, "measure_roofs", lambda *arguments: (calls.append(1), Roofs(2.0, 5.0, 3.0, 4.0, 6.0))[1])
    assert profile_of(gpu, config).roofs == Roofs()
    assert cache.with_roofs(gpu, config).roofs.flops_per_s == 2.0
    assert profile_of(gpu, config).roofs.barrier_s == 4.0
    forget()
    assert cache.with_roofs(gpu, config).roofs.flops_per_s == 2.0
    assert (len(calls), measured.calls) == (1, 1)


def test_the_profile_of_a_gpu_has_its_roofs(
    gpu: Gpu, config: Config, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are chosen by them from the next process on; on a software adapter nothing asks for them. They are
    measured first, and wake it."""
    woken: list[tuple[float, int]] = []

    def roofs(bench: object, wake_s: float) -> Roofs:
        woken.append((wake_s, measured.calls))
        return Roofs(2e12, 5e10)

    monkeypatch.setattr(cache, "measure_roofs", roofs)
    monkeypatch.setattr(gpu, "info", replace(gpu.info, type="integrated"))
    assert profile_of(gpu, config).roofs.flops_per_s == 2e12
    assert woken == [(cache.WAKE_S, 0)]
    found = _figures(gpu.info, config.cache_path)
    assert found == figures_for("integrated", figures_of(Roofs(2e12, 5e10), MADE.dispatch_s))


def test_what_is_guessed_has_no_roofs(gpu: Gpu, tmp_path: Path, measured: Measured) -> None:
    assert cache.with_roofs(gpu, resolve({"cache_dir": str(tmp_path), "faults": "lost@1"})) is GUESSED


# ---- who asks


@pytest.fixture
def model() -> bytes:
    weights = {"w": np.random.default_rng(5).standard_normal((64, 64)).astype("f")}
    made: bytes = model_of("(float[8, 64] x) => (float[8, 64] y) { y = MatMul(x, w) }", weights).SerializeToString()
    return made


def test_a_session_that_does_not_measure_goes_by_what_is_known(
    gpu: Gpu,
    config: Config,
    measured: Measured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the type of its adapter, until there is a profile: for bodies of Loop and Scan with placement=gpu."""
    monkeypatch.setattr(gpu, "info", replace(gpu.info, type="integrated"))
    monkeypatch.setattr(gpu, "limits", gpu.limits)  # other tests have the same device
    monkeypatch.setattr(cache, "measure_roofs", lambda *arguments: Roofs(2e12, 5e10))
    backend = LocalBackend(gpu, config)
    assert backend.profile(config, measured=False) == guessed_for("integrated")
    first = profile_of(gpu, config, whole=False)
    assert backend.profile(config, measured=False) is first


def test_a_session_asks_when_it_decides(model: bytes, config: Config, measured: Measured) -> None:
    session = InferenceSession(model, provider_options={"adapter": "software", "cache_dir": config.cache_path})
    assert session.wait_ready(300.0)
    assert measured.calls == 0
    session.run(None, {"x": np.ones((8, 64), "f")})
    assert measured.calls == 1


def plain(model: bytes, **options: str) -> None:
    import ort_gpu_ep

    ort_gpu_ep.register()
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    onnxruntime.InferenceSession(model, settings, ["WgpuExecutionProvider", "CPUExecutionProvider"], [options, {}])


def test_a_plain_session_asks_when_it_is_made(model: bytes, config: Config, measured: Measured) -> None:
    plain(model, adapter="software", cache_dir=config.cache_path)
    assert measured.calls == 1


@pytest.mark.parametrize("options", [{}, {"placement": "gpu"}, {"placement": "cpu", "adapter": "software"}], ids=str)
def test_nothing_is_measured_where_nothing_is_decided(
    options: dict[str, str], model: bytes, config: Config, measured: Measured
) -> None:
    """Without options: the adapter of these tests is software, and auto leaves that alone unless it is asked for."""
    plain(model, cache_dir=config.cache_path, **options)
    assert measured.calls == 0


def test_what_chooses_kernels_is_measured_first_and_stays(
    gpu: Gpu,
    config: Config,
    measured: Measured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device is opened by what is on disk: the one that measured it goes by the same, and what is measured later
    changes none of it."""
    found = Roofs(60e12, 4e12, 1e-7, 3e-8, 3e13)
    monkeypatch.setattr(cache, "_roofs", lambda gpu, busy: found)
    monkeypatch.setattr(cache, "open_gpu", lambda *given: gpu)
    monkeypatch.setattr(gpu, "info", replace(gpu.info, type="discrete"))
    monkeypatch.setattr(gpu, "limits", gpu.limits)  # other tests have the same device
    first = profile_of(gpu, config, whole=False)
    assert (first.is_whole, first.roofs, measured.calls) == (False, found, 1)
    assert gpu.limits.figures == _figures(gpu.info, config.cache_path) == figures_for("discrete", first.figures)
    assert profile_of(gpu, config, whole=False) is first
    measured.answer = lambda: replace(MADE, dispatch_s=9e-6)
    whole = profile_of(gpu, config)
    assert (whole.is_whole, whole.roofs, whole.dispatch_s, measured.calls) == (True, found, MADE.dispatch_s, 2)
    assert _figures(gpu.info, config.cache_path) == gpu.limits.figures
    assert profile_of(gpu, config, whole=False) is profile_of(gpu, config) is whole


def test_the_rest_that_fails_is_assumed_once(gpu: Gpu, config: Config, measured: Measured) -> None:
    first = profile_of(gpu, config, whole=False)

    def fails() -> Profile:
        raise DeviceError("a test")

    measured.answer = fails
    found = profile_of(gpu, config)
    assert (found.run_s, dict(found.families)) == (first.run_s, dict(GUESSED.families))
    assert profile_of(gpu, config) is found
    assert measured.calls == 2
