"""What forbids our provider means the CPU, with a word about why: an exception with strict=1 only, whatever earlier
sessions have decided."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_gpu_ep as ort
from ort_gpu_ep.errors import AdapterError, ConfigError
from ort_gpu_ep.placement.decisions import Decisions, Learnt
from ort_gpu_ep.plugin import OrtSession, state
from tests.session.conftest import assert_close, on_the_cpu

Array = np.ndarray[Any, Any]
CPU = "CPUExecutionProvider"
ENTRIES = ("session.disable_model_compile", "ep.context_enable")


@pytest.fixture(autouse=True)
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_told", set[str]())


def forbidding(entry: str, folder: Path) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry(entry, "1")
    settings.add_session_config_entry("ep.context_file_path", str(folder / "context.onnx"))
    return settings


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("options", [{}, {"placement": "gpu"}, {"placement": "gpu", "isolation": "process"}], ids=str)
def test_entries_of_the_session_options(
    entry: str,
    options: dict[str, object],
    auto: Callable[..., Any],
    mlp: bytes,
    x: Array,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    gpu = Learnt("gpu", ())
    # a kept decision
    monkeypatch.setattr(
        Decisions, "__init__", lambda self, *a: self.__dict__.update(found=gpu, _path=tmp_path / "none")
    )
    if not options:
        assert auto(mlp).get_providers()[0] == ort.EP_NAME
    with caplog.at_level(logging.WARNING, "ort_gpu_ep"):
        session = auto(mlp, forbidding(entry, tmp_path), **options)
    assert session.get_providers() == [CPU]
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert entry in caplog.text
    assert entry in str(session.explain())
    assert bool(session.missing_gpu) is bool(options)
    with pytest.raises(ConfigError, match=entry):
        auto(mlp, forbidding(entry, tmp_path), **options, strict=1)
    assert "EP Error" not in capfd.readouterr().out


def test_by_name_in_a_plain_session(mlp: bytes, x: Array, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ort.register()
    settings = forbidding(ENTRIES[0], tmp_path)
    session = onnxruntime.InferenceSession(mlp, settings, providers=[(ort.EP_NAME, {"placement": "gpu"}), CPU])
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert "EP Error" not in capfd.readouterr().out


def test_who_forbids_both_sides_is_told(mlp: bytes, tmp_path: Path) -> None:
    settings = forbidding(ENTRIES[0], tmp_path)
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(ConfigError, match="disable_model_compile"):
        ort.InferenceSession(mlp, settings, provider_options={"placement": "gpu"})


@pytest.mark.parametrize("form", ["ours", "patched"])
def test_an_onnxruntime_that_finds_no_plugin_by_name(
    form: str,
    mlp: bytes,
    x: Array,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.24.4")
    with ort.patch({"placement": "gpu"}, say=False), warnings.catch_warnings():
        warnings.simplefilter("error")
        session = (ort if form == "ours" else onnxruntime).InferenceSession(mlp)
        assert session.get_providers() == [CPU]
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert "onnxruntime 1.24.4 finds no provider of a plugin by its name: install 1.26 or newer" in caplog.text
    assert "EP Error" not in capfd.readouterr().out
    with pytest.raises(ConfigError, match=r"1\.26 or newer"):
        ort.InferenceSession(mlp, provider_options={"placement": "gpu", "strict": 1})


@pytest.fixture
def broken_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime-gpu where TensorRT is not installed: onnxruntime tries again without it, and without us."""
    create, there = OrtSession._create_inference_session, [*onnxruntime.get_available_providers()]

    def created(self: Any, providers: Any, *rest: Any) -> None:
        if any(p == "TensorrtExecutionProvider" or p[0] == "TensorrtExecutionProvider" for p in providers or ()):
            self._fallback_providers = [CPU]
            raise RuntimeError("Please install TensorRT libraries")
        create(self, providers, *rest)

    monkeypatch.setattr(OrtSession, "_create_inference_session", created)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["TensorrtExecutionProvider", *there])


@pytest.mark.parametrize("form", ["ours", "patched"])
def test_another_provider_that_fails_does_not_take_ours_along(
    form: str,
    broken_tensorrt: None,
    mlp: bytes,
    x: Array,
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = ["TensorrtExecutionProvider", CPU]
    if form == "ours":
        session = ort.InferenceSession(mlp, providers=[(ort.EP_NAME, {"placement": "gpu"}), *names])
    else:
        with ort.patch({"placement": "gpu"}, say=False):
            session = onnxruntime.InferenceSession(mlp, providers=names)
    assert session.get_providers() == [ort.EP_NAME, CPU]
    assert session.explain().count("cpu") == 0
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert "without TensorrtExecutionProvider" in caplog.text


def test_strict_says_that_onnxruntime_left_ours_out(mlp: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    create = OrtSession._create_inference_session

    def created(self: Any, providers: Any, *rest: Any) -> None:
        if any(ort.EP_NAME in p for p in providers):
            self._fallback_providers = [CPU]
            raise RuntimeError("Unknown Provider Type")
        create(self, providers, *rest)

    monkeypatch.setattr(OrtSession, "_create_inference_session", created)
    assert ort.InferenceSession(mlp, provider_options={"placement": "gpu"}).get_providers() == [CPU]
    with pytest.raises(AdapterError, match="without WgpuExecutionProvider"):
        ort.InferenceSession(mlp, provider_options={"placement": "gpu", "strict": 1})
