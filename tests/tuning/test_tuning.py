"""Tuning measures forms in the model itself, keeps the faster ones, and changes no result beyond rounding."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep import InferenceSession
from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import ConfigError, OutOfDeviceMemoryError, WrongResultError
from ort_gpu_ep.health.open_adapter import open_gpu, tuning_key
from ort_gpu_ep.kernels import tuned
from ort_gpu_ep.kernels.target import UNTUNED, Tuned
from ort_gpu_ep.kernels.tuned import Measured
from ort_gpu_ep.tuning import measure
from ort_gpu_ep.tuning.measure import CANDIDATES, choices_of
from tests.unit.graphs import model_of

TEXT = "(float[N, 64] x) => (float[N, 32] y) { h = MatMul(x, w) g = Relu(h) y = MatMul(g, v) }"


@pytest.fixture(scope="module")
def model() -> bytes:
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((64, 64)).astype("f"), "v": rng.standard_normal((64, 32)).astype("f")}
    made: bytes = model_of(TEXT, weights).SerializeToString()
    return made


@pytest.fixture
def x() -> dict[str, Any]:
    return {"x": np.random.default_rng(2).standard_normal((48, 64)).astype("f")}


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return {"placement": "gpu", "cache_dir": str(tmp_path)}


@pytest.fixture(autouse=True)
def untuned(tmp_path: Path) -> Iterator[Gpu]:
    """The shared device without forms that another test has found."""
    gpu = open_gpu(resolve({"cache_dir": str(tmp_path)}))
    gpu.limits = replace(gpu.limits, tuned=UNTUNED)
    yield gpu
    gpu.limits = replace(gpu.limits, tuned=UNTUNED)


def chosen(session: Any) -> dict[str, str]:
    return {key: choice.form for key, choice in choices_of(session).items()}


def expected(model: bytes, x: dict[str, Any]) -> Any:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, x)[0]


def test_forms_are_measured_and_kept(model: bytes, x: dict[str, Any], options: dict[str, str], untuned: Gpu) -> None:
    session = InferenceSession(model, provider_options=options)
    session.run(None, x)
    keys = set(choices_of(session))
    assert len(keys) == 2
    told: list[tuple[str, float]] = []
    found = session.tune(x, 0.1, progress=lambda what, part: told.append((what, part)))
    assert set(found.choices) == keys
    assert found.candidates == CANDIDATES
    assert all(len(m.ns) == CANDIDATES and m.form in m.ns and min(m.ns.values()) >= 0 for m in found.choices.values())
    assert [part for _, part in told] == sorted(part for _, part in told)
    assert told[-1] == ("done", 1.0)
    on_disk = tuned.read(options["cache_dir"], tuning_key(untuned.info))
    assert on_disk.choices == found.choices
    assert untuned.limits.tuned == on_disk.tuned
    np.testing.assert_allclose(session.run(None, x)[0], expected(model, x), rtol=1e-4, atol=1e-4)


def test_later_sessions_take_what_was_found(
    model: bytes, x: dict[str, Any], options: dict[str, str], untuned: Gpu
) -> None:
    """Also those of another process, for which the device knows nothing yet."""
    session = InferenceSession(model, provider_options=options)
    session.run(None, x)
    wanted = {key: choice.forms[2] for key, choice in choices_of(session).items()}
    key = tuning_key(untuned.info)
    tuned.write(options["cache_dir"], key, tuned.Table({k: Measured(form) for k, form in wanted.items()}))
    untuned.limits = replace(untuned.limits, tuned=UNTUNED)
    later = InferenceSession(model, provider_options=options)
    got = later.run(None, x)[0]
    assert chosen(later) == wanted
    np.testing.assert_allclose(got, expected(model, x), rtol=1e-4, atol=1e-4)


def test_every_form_gives_the_same_to_rounding(
    model: bytes, x: dict[str, Any], options: dict[str, str], untuned: Gpu
) -> None:
    session = InferenceSession(model, provider_options=options)
    session.run(None, x)
    known, want = choices_of(session), expected(model, x)
    for place in range(max(len(c.forms) for c in known.values())):
        forms = {key: c.forms[min(place, len(c.forms) - 1)] for key, c in known.items()}
        untuned.limits = replace(untuned.limits, tuned=Tuned(forms))
        other = InferenceSession(model, provider_options=options)
        np.testing.assert_allclose(other.run(None, x)[0], want, rtol=1e-4, atol=1e-4)
        assert chosen(other) == forms


def test_unknown_forms_and_keys_are_ignored(
    model: bytes, x: dict[str, Any], options: dict[str, str], untuned: Gpu
) -> None:
    session = InferenceSession(model, provider_options=options)
    want = session.run(None, x)[0]
    table = tuned.Table(
        {**{key: Measured("a form of tomorrow") for key in choices_of(session)}, "a strange key": Measured("1")}
    )
    tuned.write(options["cache_dir"], tuning_key(untuned.info), table)
    untuned.limits = replace(untuned.limits, tuned=UNTUNED)
    later = InferenceSession(model, provider_options=options)
    np.testing.assert_array_equal(later.run(None, x)[0], want)
    assert chosen(later) == chosen(session)
    assert len(untuned.limits.tuned) == 3


def test_what_is_known_is_not_measured_again(model: bytes, x: dict[str, Any], options: dict[str, str]) -> None:
    session = InferenceSession(model, provider_options=options)
    assert session.tune(x, 0.0).candidates == CANDIDATES
    again = session.tune(x, 0.0)
    assert (again.candidates, len(again.choices), again.runs) == (0, 0, 0)
    assert len(session.tune(x, 0.0, fresh=True).choices) == 2


def test_other_sizes_are_other_choices(model: bytes, x: dict[str, Any], options: dict[str, str]) -> None:
    session = InferenceSession(model, provider_options=options)
    session.tune(x, 0.0)
    assert len(session.tune({"x": np.zeros((300, 64), "f")}, 0.0).choices) == 2


def test_a_form_that_is_wrong_here_is_left_out(
    model: bytes,
    x: dict[str, Any],
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def refuse(name: str, got: object, want: object, precision: str) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise WrongResultError("a test")

    monkeypatch.setattr(measure, "compare", refuse)
    found = InferenceSession(model, provider_options=options).tune(x, 0.0)
    assert found.notes == ("candidate 3 is left out: a test",)
    assert all(len(m.ns) == CANDIDATES - 1 for m in found.choices.values())


def test_little_memory_leaves_candidates_out(
    model: bytes,
    x: dict[str, Any],
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    untuned: Gpu,
) -> None:
    session, opened, before = InferenceSession(model, provider_options=options), measure._opened, list[int]()

    def opens(*arguments: Any) -> Any:
        before.append(1)
        if len(before) > 2:
            raise OutOfDeviceMemoryError("none left")
        return opened(*arguments)

    monkeypatch.setattr(measure, "_opened", opens)
    found = session.tune(x, 0.0)
    assert len(found.notes) == 2
    assert all(len(m.ns) == 2 for m in found.choices.values())


def test_large_models_are_measured_one_candidate_after_another(
    model: bytes,
    x: dict[str, Any],
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "TOGETHER_NBYTES", 1)
    assert all(
        len(m.ns) == CANDIDATES for m in InferenceSession(model, provider_options=options).tune(x, 0.0).choices.values()
    )


def test_only_what_is_beyond_noise_changes() -> None:
    assert measure._best("a", {"a": 100.0, "b": 98.0}).form == "a"
    assert measure._best("a", {"a": 100.0, "b": 80.0, "c": 90.0}).form == "b"


def test_where_there_is_no_gpu_it_is_said(
    model: bytes, x: dict[str, Any], options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = InferenceSession(model, providers=["CPUExecutionProvider"])
    with pytest.raises(ConfigError, match="no GPU of this process"):
        plain.tune(x)
    session = InferenceSession(model, provider_options=options)
    gpu = session.state.gpu
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, features=frozenset()))
    with pytest.raises(ConfigError, match="no timestamps"):
        session.tune(x)


# ---- the option


def test_the_option_tunes_a_model_once(
    model: bytes,
    x: dict[str, Any],
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    untuned: Gpu,
) -> None:
    calls: list[int] = []
    tune = measure.tune

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        return tune(*arguments, 0.0, **named)

    monkeypatch.setattr(measure, "tune", counted)
    for _ in range(3):
        session = InferenceSession(model, provider_options={**options, "tune": "1"})
        np.testing.assert_allclose(session.run(None, x)[0], expected(model, x), rtol=1e-4, atol=1e-4)
    assert len(calls) == 1
    assert len(tuned.read(options["cache_dir"], tuning_key(untuned.info)).models) == 1
    InferenceSession(model, provider_options=options)
    assert len(calls) == 1


def test_a_failure_to_tune_is_a_warning(
    model: bytes,
    x: dict[str, Any],
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise ConfigError("a test")

    monkeypatch.setattr(measure, "tune", fail)
    caplog.set_level(logging.WARNING, "ort_gpu_ep")
    InferenceSession(model, provider_options={**options, "tune": "1"}).run(None, x)
    assert "tune=1: not tuned, ConfigError: a test" in caplog.text


def test_the_default_is_off() -> None:
    assert not Config().tune
