"""Decisions are found again for the same model, shapes, device and options, and only for those."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_gpu_ep import store
from ort_gpu_ep.placement import decisions
from ort_gpu_ep.placement.decisions import Decision, Decisions, NodeTimes, key_of, signature
from tests.unit.graphs import model_of

SHAPES = signature({"x": np.zeros((2, 3), "f"), "n": np.int64(4)})
MADE = Decision("gpu", "measured", "the fastest", {"cpu": 2e-3, "gpu": 1e-3}, {"gpu": 1.5e-3})


def test_shapes_of_anything_that_can_be_fed() -> None:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((4, 5), "f"))
    assert signature({"x": value, "y": [1, 2], "z": np.zeros(3)}) == (("x", (4, 5)), ("y", ()), ("z", (3,)))


def test_a_decision_is_found_again(tmp_path: Path) -> None:
    Decisions(str(tmp_path), "k").put(SHAPES, MADE)
    later = Decisions(str(tmp_path), "k")
    got = later.get(SHAPES)
    assert got is not None
    assert (got.candidate, got.source, got.measured_s, got.predicted_s) == ("gpu", "cached", MADE.measured_s, MADE.predicted_s)
    assert later.latest == got
    assert later.get(signature({"x": np.zeros((2, 4), "f")})) is None
    assert Decisions(str(tmp_path), "other").get(SHAPES) is None


def test_what_a_cut_was_made_by_is_found_again(tmp_path: Path) -> None:
    times = NodeTimes({(0, "MatMul"): 1e-3, (7, "Neg"): 2e-6}, {"x": (2, 3), "n": ()})
    made = Decisions(str(tmp_path), "k")
    made.put(SHAPES, Decision("cut", "measured", "the fastest"), times)
    made.put((("x", (7, 7)),), MADE)
    assert Decisions(str(tmp_path), "k").times == times
    assert Decisions(str(tmp_path), "other").times is None


def test_the_latest_is_the_one_that_was_made_last(tmp_path: Path) -> None:
    made = Decisions(str(tmp_path), "k")
    other = (("x", (7, 7)),)
    made.put(SHAPES, MADE)
    made.put(other, Decision("cpu", "measured", ""))
    made.put(SHAPES, MADE)
    latest = Decisions(str(tmp_path), "k").latest
    assert latest is not None
    assert latest.candidate == "gpu"


def test_old_ones_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MAX_SIGNATURES", 3)
    made = Decisions(str(tmp_path), "k")
    for n in range(5):
        made.put((("x", (n,)),), MADE)
    kept = Decisions(str(tmp_path), "k")
    assert [kept.get((("x", (n,)),)) is not None for n in range(5)] == [False, False, True, True, True]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 99, "shapes": {}}', '{"format": 2, "shapes": {"()": {"candidate": "gpu"}}}',
                                     '{"format": 2, "shapes": 3}', '{"format": 2, "shapes": {}, "times": {"cpu_s": [[1]]}}'])
def test_a_broken_file_is_ignored_with_one_line(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Decisions(str(tmp_path), "k").put(SHAPES, MADE)
    (file,) = (tmp_path / "decisions").iterdir()
    file.write_text(content)
    with caplog.at_level(logging.INFO, "ort_gpu_ep"):
        broken = Decisions(str(tmp_path), "k")
    assert (broken.get(SHAPES), broken.latest) == (None, None)
    assert len(caplog.messages) == 1
    assert "is ignored and made anew" in caplog.messages[0]
    broken.put(SHAPES, MADE)
    assert Decisions(str(tmp_path), "k").get(SHAPES) is not None


def test_a_folder_that_can_t_be_written_is_said_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "decisions").write_text("a file where the folder should be")
    with caplog.at_level(logging.INFO, "ort_gpu_ep"):
        made = Decisions(str(tmp_path), "k")
        made.put(SHAPES, MADE)
    assert made.get(SHAPES) == MADE
    assert "can't be written" in caplog.messages[-1]


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kind" / "k.json"
    assert store.write(path, 1, {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        assert not store.write(path, 1, {"a": 2})
    assert store.read(path, 1, dict) == {"format": 1, "a": 1}
    assert [p.name for p in (tmp_path / "kind").iterdir()] == ["k.json"]


def test_the_key_changes_with_what_matters(tmp_path: Path) -> None:
    model = model_of("(float[4] x) => (y) { y = Add(x, w) }", {"w": np.ones(4, "f")})
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path)
    same = key_of(str(path), "a gpu", None, {})
    one_thread = onnxruntime.SessionOptions()
    one_thread.intra_op_num_threads = 1
    keys = [same, key_of(str(path), "another gpu", None, {}), key_of(str(path), "a gpu", one_thread, {}),
            key_of(str(path), "a gpu", None, {"fusion": "0"}), key_of(b"another model", "a gpu", None, {})]
    assert len(set(keys)) == len(keys)
    assert key_of(path.read_bytes(), "a gpu", onnxruntime.SessionOptions(), {}) == same


def test_the_key_changes_with_external_data(tmp_path: Path) -> None:
    model = model_of("(float[400] x) => (y) { y = Add(x, w) }", {"w": np.ones(400, "f")})
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = key_of(str(path), "a gpu", None, {})
    assert key_of(str(path), "a gpu", None, {}) == before
    os.utime(tmp_path / "weights.bin", ns=(1, 1))
    assert key_of(str(path), "a gpu", None, {}) != before
