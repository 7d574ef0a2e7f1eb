"""Decisions are found again for the same model, shapes, device and options, and only for those."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_gpu_ep import store
from ort_gpu_ep.placement.decisions import Decision, Decisions, Learnt, NodeTimes, key_of, signature, work_of
from ort_gpu_ep.placement.estimate import KEPT, Size
from tests.unit.graphs import model_of

SHAPES = signature({"x": np.zeros((2, 3), "f"), "n": np.int64(4)})
SMALL, LARGE = Size(SHAPES, 7.0), Size((("x", (20, 30)), ("n", ())), 601.0)
ROWS = (
    ("cpu", "busy", SMALL, 2e-3, 3),
    ("cpu", "busy", LARGE, 5e-3, 9),
    ("gpu", "busy", SMALL, 1e-3, 3),
    ("gpu", "paused", LARGE, 3e-3, 1),
)
LEARNT = Learnt("gpu", ROWS, (), {"cpu": 0.8, "gpu": 0.3})


def test_shapes_of_anything_that_can_be_fed() -> None:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((4, 5), "f"))
    assert signature({"x": value, "y": [1, 2], "z": np.zeros(3)}) == (("x", (4, 5)), ("y", ()), ("z", (3,)))


def test_work_is_the_number_of_elements() -> None:
    assert [work_of(s) for s in (SHAPES, (("x", (4, 5)), ("y", (3,))), (), (("x", (0, 5)),))] == [7.0, 23.0, 1.0, 1.0]


def test_what_was_learnt_is_found_again(tmp_path: Path) -> None:
    Decisions(str(tmp_path), "k").save(LEARNT)
    assert Decisions(str(tmp_path), "k").found == LEARNT
    assert Decisions(str(tmp_path), "other").found is None


def test_sessions_do_not_forget_each_others_sizes(tmp_path: Path) -> None:
    one, other = Decisions(str(tmp_path), "k"), Decisions(str(tmp_path), "k")
    one.save(Learnt("gpu", ROWS[:1], (SMALL,)))
    other.save(Learnt("cpu", (("cpu", "busy", SMALL, 9e-3, 3), *ROWS[1:]), (LARGE,)))
    one.save(Learnt("gpu", ROWS[:1], (SMALL,)))
    found = Decisions(str(tmp_path), "k").found
    assert found is not None
    assert (found.candidate, set(found.rows), set(found.floors)) == ("gpu", set(ROWS), {SMALL, LARGE})
    one.save(Learnt("gpu", tuple(("cpu", "busy", Size((("y", (n,)),), n), 1e-3, 1) for n in range(1, KEPT + 1))))
    found = Decisions(str(tmp_path), "k").found
    assert found is not None
    assert Counter(row[:2] for row in found.rows) == {("cpu", "busy"): KEPT, ("gpu", "busy"): 1, ("gpu", "paused"): 1}


def test_sizes_with_nothing_to_choose_are_found_again(tmp_path: Path) -> None:
    floor = Learnt("cpu", (("cpu", "busy", SMALL, 2e-5, 1),), (SMALL, LARGE))
    Decisions(str(tmp_path), "k").save(floor)
    assert Decisions(str(tmp_path), "k").found == floor


def test_what_a_cut_was_made_by_is_found_again(tmp_path: Path) -> None:
    times = NodeTimes({(0, "MatMul"): 1e-3, (7, "Neg"): 2e-6}, {"x": (2, 3), "n": ()})
    Decisions(str(tmp_path), "k").save(replace(LEARNT, times=times))
    found = Decisions(str(tmp_path), "k").found
    assert found is not None
    assert found.times == times


def test_it_is_compact(tmp_path: Path) -> None:
    """64 sizes of a model with three inputs, all that a candidate's times keep, of two candidates: 100 bytes each."""
    sizes = [
        Size(tuple((name, (1, n)) for name in ("input_ids", "attention_mask", "token_type_ids")), 3.0 * n)
        for n in range(1, 65)
    ]
    rows = tuple((name, "busy", size, 1.23456789e-3, 9) for name in ("cpu", "gpu") for size in sizes)
    Decisions(str(tmp_path), "k").save(Learnt("gpu", rows))
    (file,) = (tmp_path / "decisions").iterdir()
    assert file.stat().st_size < 64 * 2 * 100


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"format": 99}',
        f'{{"format": {store.FORMAT}, "shapes": {{}}, "times": null}}',
        *(
            json.dumps(
                {
                    "format": store.FORMAT,
                    "candidate": "gpu",
                    "sizes": [[[["x", [2]]], 2.0]],
                    "runs": {},
                    "floors": [],
                    "grows": {},
                    "times": None,
                    **wrong,
                }
            )
            for wrong in (
                {"candidate": "tpu"},
                {"sizes": 3},
                {"sizes": [[[["x", [2]]], 0.0]]},
                {"runs": {"gpu": {"busy": [[1, 1e-3, 3]]}}},
                {"runs": {"gpu": {"busy": [[0, -1e-3, 3]]}}},
                {"runs": {"gpu": {"busy": [[0, "nan", 3]]}}},
                {"runs": {"gpu": {"now": [[0, 1.0, 3]]}}},
                {"runs": {"tpu": {"busy": []}, "cpu": {"busy": [[0]]}}},
                {"floors": [1]},
                {"grows": {"gpu": "much"}},
                {"times": {"cpu_s": [[1]]}},
            )
        ),
    ],
)
def test_a_broken_file_is_ignored_with_one_line(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Decisions(str(tmp_path), "k").save(LEARNT)
    (file,) = (tmp_path / "decisions").iterdir()
    file.write_text(content)
    with caplog.at_level(logging.INFO, "ort_gpu_ep"):
        broken = Decisions(str(tmp_path), "k")
    assert broken.found is None
    assert len(caplog.messages) == 1
    assert "is ignored and made anew" in caplog.messages[0]
    broken.save(LEARNT)
    assert Decisions(str(tmp_path), "k").found == LEARNT


def test_a_folder_that_can_t_be_written_is_said_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "decisions").write_text("a file where the folder should be")
    with caplog.at_level(logging.INFO, "ort_gpu_ep"):
        Decisions(str(tmp_path), "k").save(LEARNT)
    assert "can't be written" in caplog.messages[-1]


def test_what_is_shown() -> None:
    text = str(
        Decision(
            "gpu", "measured", "the fastest", {"cpu": 2e-3, "gpu": 1e-3}, {"cut": 3e-3}, {"cpu": 1, "gpu": 9}, "paused"
        )
    )
    assert text == (
        "gpu, measured, with 30 to 300 ms between runs: the fastest; cpu 2.000 ms measured (1 runs); cut 3.000 "
        "ms predicted; "
        "gpu 1.000 ms measured (9 runs)"
    )


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kind" / "k.json"
    assert store.write(path, {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        assert not store.write(path, {"a": 2})
    assert store.read(path, dict) == {"format": store.FORMAT, "a": 1}
    assert [p.name for p in (tmp_path / "kind").iterdir()] == ["k.json"]


def test_the_key_changes_with_what_matters(tmp_path: Path) -> None:
    model = model_of("(float[4] x) => (y) { y = Add(x, w) }", {"w": np.ones(4, "f")})
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path)
    same = key_of(str(path), "a gpu", None, {})
    one_thread = onnxruntime.SessionOptions()
    one_thread.intra_op_num_threads = 1
    keys = [
        same,
        key_of(str(path), "another gpu", None, {}),
        key_of(str(path), "a gpu", one_thread, {}),
        key_of(str(path), "a gpu", None, {"fusion": "0"}),
        key_of(b"another model", "a gpu", None, {}),
    ]
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
