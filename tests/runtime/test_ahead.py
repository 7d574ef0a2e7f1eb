"""Pipelines that are compiled ahead: a session finds them made, and what lies in the file can't do harm."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import build
from ort_gpu_ep import InferenceSession
from ort_gpu_ep.config import resolve
from ort_gpu_ep.device import pipelines
from ort_gpu_ep.device.cache import Cache
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.health.open_adapter import open_gpu
from ort_gpu_ep.runtime import ahead
from ort_gpu_ep.runtime.ahead import Entry, Known, key_of
from ort_gpu_ep.session import early, session

ENTRY = Entry("a.wgsl", "fn main() {}", "node/a.wgsl", (False, True), False, 0)
BROKEN = Entry("a.wgsl", "fn main( {", "node/a.wgsl", (False, True), False, 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(build("lenet5").SerializeToString())
    return path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The device of these sessions, without any pipeline."""
    found = open_gpu(resolve({"placement": "gpu"}))
    monkeypatch.setattr(found, "pipelines", Cache(512))
    return found


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions begin nothing ahead by themselves."""
    monkeypatch.setattr(session, "begin", lambda *given: None)


def session_of(model: Path | bytes) -> InferenceSession:
    return InferenceSession(model, provider_options={"placement": "gpu", "strict": "1", "isolation": "none"})


def end_of_early() -> None:
    for thread in threading.enumerate():
        if thread.name == "ort_gpu_ep-early":
            thread.join(120)


def file_of(cache: Path) -> Path:
    (found,) = (cache / "pipelines").iterdir()
    return found


@pytest.mark.usefixtures("alone")
def test_what_a_session_used_is_there_for_the_next_one(
    model: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Known(str(tmp_path), "key"):
        session_of(model)
    made = gpu.pipelines.made
    assert made > 3
    monkeypatch.setattr(gpu, "pipelines", Cache(512))
    Known(str(tmp_path), "key").compile(gpu, "auto")
    assert gpu.pipelines.made == made
    session_of(model)
    assert gpu.pipelines.made == made, "a session compiled what was there"


def test_a_session_of_a_known_model_begins_with_them(model: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_by = []
    compile_one = pipelines._compile

    def noted(*given: Any) -> Any:
        compiled_by.append(threading.current_thread().name)
        return compile_one(*given)

    monkeypatch.setattr(pipelines, "_compile", noted)
    session_of(model)
    end_of_early()
    assert compiled_by
    assert not any("ahead" in name for name in compiled_by)
    first = len(compiled_by)
    monkeypatch.setattr(gpu, "pipelines", Cache(512))
    begun = early.begin(resolve({"placement": "gpu"} | {"strict": "1", "isolation": "none"}), str(model))
    assert begun is not None
    end_of_early()
    assert len(compiled_by) == 2 * first
    assert all("ahead" in name for name in compiled_by[first:])
    session_of(model)
    end_of_early()
    assert len(compiled_by) == 2 * first


@pytest.mark.usefixtures("alone")
def test_what_finds_out_for_another_process_notes_for_it(model: Path, gpu: Gpu) -> None:
    """With the options of a session that chooses for itself: where it runs then, and what it goes by, changes no
    pipeline."""
    config = resolve({"placement": "auto", "adapter": "0", "load": "off", "isolation": "none"})
    with early.noted(config, str(model)) as known:
        assert isinstance(known, Known)
        session_of(model)
    begun = early.begin(resolve({"placement": "gpu", "adapter": "0", "isolation": "none"}), str(model))
    assert begun is not None
    with begun.pipelines() as found:
        assert isinstance(found, Known)
        assert len(found._entries) > 3
    end_of_early()


def test_a_file_tells_models_and_options_apart(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "o.onnx"
    other.write_bytes(model.read_bytes())
    keys = [
        key_of(str(model), "gpu"),
        key_of(str(other), "gpu"),
        key_of(str(model), "gpu", "fusion=False"),
        key_of(str(model), "another"),
        key_of(model.read_bytes(), "gpu"),
        key_of(model.read_bytes() + b" ", "gpu"),
    ]
    os.utime(model, ns=(1, 1))
    assert len({*keys, key_of(str(model), "gpu")}) == 7
    with pytest.raises(OSError, match="nothing"):
        key_of(str(tmp_path / "nothing"), "gpu")


def test_what_is_not_used_any_more_goes(tmp_path: Path) -> None:
    for label in ("one", "two"):
        known = Known(str(tmp_path), "key")
        known.note(Entry("a.wgsl", label, label, (True,), False, 0))
        known.note(ENTRY)
        known.save()
    assert [row[2] for row in json.loads(file_of(tmp_path).read_text())["pipelines"]] == ["node/a.wgsl", "two"]
    before = file_of(tmp_path).stat().st_mtime_ns
    known.note(ENTRY)
    known.save()
    assert file_of(tmp_path).stat().st_mtime_ns == before, "nothing new is nothing to write"


SPOILED: dict[str, Callable[[Path], Any]] = {
    "empty": lambda f: f.write_bytes(b""),
    "cut short": lambda f: f.write_bytes(f.read_bytes()[:-9]),
    "another format": lambda f: f.write_text(f.read_text().replace('"format": 1', '"format": 0')),
    "a list": lambda f: f.write_text("[]"),
    "no list": lambda f: f.write_text('{"format": 1, "pipelines": 3}'),
    "short rows": lambda f: f.write_text('{"format": 1, "pipelines": [["a.wgsl", "x"]]}'),
    "numbers": lambda f: f.write_text('{"format": 1, "pipelines": [[1, 2, 3, [true], false, 0]]}'),
    "no flags": lambda f: f.write_text('{"format": 1, "pipelines": [["a", "b", "c", [1], false, 0]]}'),
    "negative": lambda f: f.write_text('{"format": 1, "pipelines": [["a", "b", "c", [true], false, -1]]}'),
    "a truth": lambda f: f.write_text('{"format": 1, "pipelines": [["a", "b", "c", [true], false, true]]}'),
    "many": lambda f: f.write_text(json.dumps({"format": 1, "pipelines": [["a", "b", "c", [True], False, 0]] * 2000})),
    "too long": lambda f: os.truncate(f, 1 << 40),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_file_that_is_not_as_it_was_is_made_anew(how: str, gpu: Gpu, tmp_path: Path) -> None:
    def save() -> None:
        known = Known(str(tmp_path), "key")
        known.note(ENTRY)
        known.save()

    save()
    whole = file_of(tmp_path).read_bytes()
    SPOILED[how](file_of(tmp_path))
    spoiled = Known(str(tmp_path), "key")
    assert spoiled._entries == {}
    spoiled.compile(gpu, "auto")
    assert gpu.pipelines.made == 0
    save()
    assert file_of(tmp_path).read_bytes() == whole


@pytest.mark.usefixtures("alone")
def test_texts_of_others_are_compiled_and_never_used(model: Path, gpu: Gpu, tmp_path: Path) -> None:
    """What does not compile is passed over; what differs from what the session composes has no reader."""
    with Known(str(tmp_path), "key"):
        first = session_of(model)
    feeds = {
        first.get_inputs()[0].name: np.random.default_rng().standard_normal(first.get_inputs()[0].shape, np.float32)
    }
    want = first.run(None, feeds)[0]
    data = json.loads(file_of(tmp_path).read_text())
    for row in data["pipelines"]:
        row[1] = row[1].replace("+", "-")
    data["pipelines"].append(
        [BROKEN.shader, BROKEN.source, BROKEN.label, list(BROKEN.written), BROKEN.varies, BROKEN.awaited]
    )
    file_of(tmp_path).write_text(json.dumps(data))
    with Known(str(tmp_path), "key") as known:
        known.compile(gpu, "auto")
        np.testing.assert_array_equal(session_of(model).run(None, feeds)[0], want)


def test_the_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MAX_FILES", 5)
    for k in range(9):
        known = Known(str(tmp_path), f"key{k}")
        known.note(ENTRY)
        known.save()
        os.utime(tmp_path / "pipelines" / f"key{k}.json", (k, k))
    assert {f.name for f in (tmp_path / "pipelines").iterdir()} == {f"key{k}.json" for k in range(6, 9)}, (
        "down to three quarters, the oldest first"
    )


@pytest.mark.parametrize(
    "options", [{"isolation": "process"}, {"health": "off"}, {"quirks": "none.json"}, {"adapter": "no such"}]
)
def test_nothing_begins_where_the_adapter_is_not_known_to_be_in_order(options: dict[str, str], model: Path) -> None:
    assert early.begin(resolve({"placement": "gpu", **options}), str(model)) is None


def test_a_model_that_is_not_there(gpu: Gpu, tmp_path: Path) -> None:
    begun = early.begin(resolve({"placement": "gpu"}), str(tmp_path / "nothing"))
    assert begun is not None
    with begun.pipelines():
        assert ahead.current() is None
    with pytest.raises(Exception, match="nothing"):
        session_of(tmp_path / "nothing")
