"""What programs do with a session besides running it: with placement=auto it is the same session all the time."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gpu_ep as ort
from tests.patience import PATIENCE_S
from tests.session.conftest import assert_close, gpu_session, on_the_cpu

Array = np.ndarray[Any, Any]
CPU = "CPUExecutionProvider"
WAYS = ("cpu", "gpu", "auto")


@pytest.fixture(params=WAYS)
def opened(request: pytest.FixtureRequest, auto: Callable[..., Any]) -> Callable[..., Any]:
    """Sessions of every placement."""
    return lambda model, settings=None, **options: auto(model, settings, placement=request.param, **options)


def saved(model: bytes, folder: Path) -> Path:
    """The model in a file, its weights in another one."""
    path = folder / "model.onnx"
    onnx.save_model(
        onnx.load_from_string(model), path, save_as_external_data=True, location="weights.bin", size_threshold=100
    )
    assert (folder / "weights.bin").stat().st_size >= 16 * 8 * 4
    return path


def make_all(session: Any) -> None:
    """Whatever the session would make of its model later."""
    session._cpu_session()
    if session.runner is not None:
        for name in ("cpu", "gpu", "cut"):
            session.runner.candidates.drop(name)
            session.runner.candidates.get(name)


# ---- files that go


def delete(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.unlink()
    (path.parent / "weights.bin").unlink()


def replace(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("model.onnx", "weights.bin"):
        (path.parent / "new").write_bytes(b"something else")
        os.replace(path.parent / "new", path.parent / name)


def go_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path.parent / "elsewhere").mkdir()
    monkeypatch.chdir(path.parent / "elsewhere")


@pytest.mark.parametrize("event", [delete, replace, go_away])
@pytest.mark.parametrize("given", ["path", "bytes"])
def test_the_model_is_what_it_was(
    event: Callable[..., None],
    given: str,
    opened: Callable[..., Any],
    mlp: bytes,
    x: Array,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = saved(mlp, tmp_path)
    monkeypatch.chdir(tmp_path)
    session = opened(path.name if given == "path" else path.read_bytes())
    event(path, monkeypatch)
    make_all(session)
    want = on_the_cpu(mlp, {"x": x})
    for _ in range(2):
        assert_close(session.run(None, {"x": x}), want)
    assert_close(session._cpu_session().run(None, {"x": x}), want)
    assert session.explain().reports


def test_open_files_go_with_the_session(mlp: bytes, auto: Callable[..., Any], tmp_path: Path) -> None:
    path = saved(mlp, tmp_path)
    session = auto(str(path))
    held = [file._descriptor.file.fileno() for file in session._source._files()]
    assert len(set(held)) == 2
    assert ort.InferenceSession(str(path), providers=[CPU])._source is None
    del session
    for file in held:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file)


# ---- providers


def test_set_providers(opened: Callable[..., Any], mlp: bytes, x: Array) -> None:
    session, want = opened(mlp), on_the_cpu(mlp, {"x": x})
    assert_close(session.run(None, {"x": x}), want)
    session.set_providers([CPU])
    assert session.get_providers() == [CPU]
    assert_close(session.run(None, {"x": x}), want)
    assert session.stats()["fallbacks"] == 0
    assert "does not use this provider" in str(session.explain())
    session.set_providers([(ort.EP_NAME, {"placement": "gpu"}), CPU])
    assert session.get_providers() == [ort.EP_NAME, CPU]
    assert_close(session.run(None, {"x": x}), want)
    assert session.stats()["runs"] == 1
    assert session.explain().count("cpu") == 0


def test_providers_of_the_session_options(mlp: bytes, x: Array) -> None:
    ort.register()
    want = on_the_cpu(mlp, {"x": x})
    settings = onnxruntime.SessionOptions()
    settings.add_provider(CPU, {})
    session = ort.InferenceSession(mlp, settings)
    assert session.get_providers() == [CPU]
    assert_close(session.run(None, {"x": x}), want)
    settings = onnxruntime.SessionOptions()
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == ort.EP_NAME]
    settings.add_provider_for_devices(devices, {"placement": "gpu"})
    session = ort.InferenceSession(mlp, settings)
    assert session.explain().count("cpu") == 0
    assert_close(session.run(None, {"x": x}), want)
    assert session.stats()["runs"] == 1


def test_a_policy_of_the_session_options(mlp: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_GPU_EP_PLACEMENT", "gpu")
    settings = onnxruntime.SessionOptions()
    settings.set_provider_selection_policy(onnxruntime.OrtExecutionProviderDevicePolicy.PREFER_CPU)
    assert ort.InferenceSession(mlp, settings).get_providers() == [CPU]


# ---- session options


def test_the_optimised_model_is_written_every_day(
    opened: Callable[..., Any],
    slow_on_one_thread: tuple[bytes, Any, dict[str, Array]],
    tmp_path: Path,
) -> None:
    model, settings, feeds = slow_on_one_thread
    want = on_the_cpu(model, feeds)
    path = tmp_path / "optimised.onnx"
    for _ in range(2):
        path.unlink(missing_ok=True)
        settings.optimized_model_filepath = str(path)
        session = opened(model, settings)
        assert_close(session.run(None, feeds), want)
        assert_close(on_the_cpu(path.read_bytes(), feeds), want)
        assert settings.optimized_model_filepath == str(path)
        make_all(session)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_initializers_of_the_session_options(isolation: str, opened: Callable[..., Any], mlp: bytes, x: Array) -> None:
    settings = onnxruntime.SessionOptions()
    w, b = (np.random.default_rng(7).standard_normal(shape).astype("f") for shape in ((16, 8), 8))
    kept = [onnxruntime.OrtValue.ortvalue_from_numpy(a) for a in (w, b)]
    settings.add_initializer("w", kept[0])
    settings.add_initializer("b", kept[1])
    want = onnxruntime.InferenceSession(mlp, settings, providers=[CPU]).run(None, {"x": x})
    assert not np.allclose(want[0], on_the_cpu(mlp, {"x": x})[0])
    session = opened(mlp, settings, isolation=isolation)
    make_all(session)
    for candidate in session.runner.candidates.made if session.runner is not None else ():
        assert_close(candidate.session.run(None, {"x": x}), want)
    for rows in (5, 2):
        assert_close(session.run(None, {"x": x[:rows]}), [a[:rows] for a in want])
    if session.runner is None and session.get_providers() != [CPU]:
        assert session.explain().count("gpu") > 0
        assert session.explain().count("cpu") > 0
        assert "nodes that read b, w stay on the CPU" in str(session.explain())
        assert session.stats()["fallbacks"] == 0


# ---- ways to run


def decided(session: Any) -> int:
    return len(session.explain().decisions)


def test_run_async(opened: Callable[..., Any], mlp: bytes, x: Array) -> None:
    session = opened(mlp)
    for feeds in ({"x": x}, {"x": x[:2]}):
        done, got = threading.Event(), list[Any]()
        session.run_async(["z", "y"], feeds, lambda *a, got=got, done=done: (got.extend(a), done.set()), "mine")
        assert done.wait(PATIENCE_S)
        results, mine, error = got
        assert (mine, error) == ("mine", "")
        assert_close(results, on_the_cpu(mlp, feeds, ["z", "y"]))
    assert session.runner is None or decided(session)
    done, got = threading.Event(), []
    session.run_async(None, {"x": x[:, :3]}, lambda *a: (got.extend(a), done.set()), None)
    assert done.wait(PATIENCE_S)
    assert got[0] == []
    assert "invalid dimensions" in got[2]
    with pytest.raises(ValueError, match="Required inputs"):
        session.run_async(None, {}, print, None)


def test_run_with_ort_values(opened: Callable[..., Any], mlp: bytes, x: Array) -> None:
    session = opened(mlp)
    for rows in (5, 2):
        got = session.run_with_ort_values(["z", "y"], {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x[:rows])})
        assert all(isinstance(g, onnxruntime.OrtValue) for g in got)
        assert_close([g.numpy() for g in got], on_the_cpu(mlp, {"x": x[:rows]}, ["z", "y"]))
    assert session.runner is None or decided(session)


def test_values_on_the_device(auto: Callable[..., Any], mlp: bytes, x: Array) -> None:
    session = auto(mlp)
    session.run(None, {"x": x})
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x, "gpu")
    assert value.device_name() != "cpu"
    got = session.run_with_ort_values(["y"], {"x": value})
    assert_close([g.numpy() for g in got], on_the_cpu(mlp, {"x": x}, ["y"]))
    session = auto(mlp)
    assert_close(session.run(["y"], {"x": value}), on_the_cpu(mlp, {"x": x}, ["y"]))


def test_a_binding_outlives_the_choice(
    auto: Callable[..., Any], slow_on_one_thread: tuple[bytes, Any, dict[str, Array]]
) -> None:
    model, settings, feeds = slow_on_one_thread
    session, want = auto(model, settings), on_the_cpu(model, feeds)
    binding = onnxruntime.IOBinding(session)
    binding.bind_cpu_input("x", feeds["x"])
    binding.bind_output("y")
    session.runner.bind()  # as a decision does, where the GPU wins
    assert binding._session is not session._sess
    session.run_with_iobinding(binding)
    assert_close(binding.copy_outputs_to_cpu(), want)
    other = auto(model, settings)
    with pytest.raises(ValueError, match="created it"):
        other.run_with_iobinding(binding)


# ---- classes and memory


class Counting(ort.InferenceSession):
    """As users write them."""

    def __init__(self, model: bytes, *arguments: Any, **named: Any) -> None:
        self.runs = 0
        super().__init__(model, *arguments, **named)

    def run(self, *arguments: Any, **named: Any) -> Any:
        self.runs += 1
        return super().run(*arguments, **named)

    def __reduce__(self) -> Any:
        return Counting, (self._model_bytes,)


@pytest.mark.parametrize("placement", WAYS)
def test_a_class_of_the_users_own(placement: str, mlp: bytes, x: Array, tmp_path: Path) -> None:
    options = {"placement": placement, "adapter": "0", "cache_dir": str(tmp_path), "load": "off"}
    session = Counting(mlp, provider_options=options)
    for _ in range(2):
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert (type(session), session.runs) == (Counting, 2)
    session.set_providers([CPU])
    session.run(None, {"x": x})
    assert (type(session), session.runs) == (Counting, 3)
    again = pickle.loads(pickle.dumps(session))
    assert type(again) is Counting
    assert_close(again.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


def test_del_frees_at_once(opened: Callable[..., Any], mlp: bytes, x: Array) -> None:
    session = opened(mlp)
    session.run(None, {"x": x})
    handles = [weakref.ref(session), weakref.ref(session._sess)]
    if session.runner is not None:
        handles += [weakref.ref(c.session._sess) for c in session.runner.candidates.made]
    gc.disable()
    try:
        del session
        assert [h() for h in handles] == [None] * len(handles)
    finally:
        gc.enable()


def test_the_class_is_one_that_can_be_asked_for(mlp: bytes) -> None:
    assert isinstance(gpu_session(mlp), ort.InferenceSession)
    assert isinstance(ort.InferenceSession(mlp, providers=[CPU]), ort.InferenceSession)
