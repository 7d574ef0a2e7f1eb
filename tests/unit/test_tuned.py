"""What was measured of forms of kernels: how a choice goes by it, and the file that keeps it."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from ort_gpu_ep import store
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.isolation.wire import GarbageError, device_of, limits_answer
from ort_gpu_ep.kernels import tuned
from ort_gpu_ep.kernels.cost_parameters import Roofs, figures_of
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.kernels.target import UNTUNED, Target, Tuned
from ort_gpu_ep.kernels.tuned import MAX_CHOICES, MAX_MODELS, Measured, Table

FORMS = {"slow": 9.0, "quick": 1.0, "other": 2.0}


def test_the_measured_form_is_taken() -> None:
    assert Target().choose("k", FORMS).form == "quick"
    limits = Limits(tuned=Tuned({"k": "other"}))
    assert Target(limits).choose("k", FORMS).form == "other"
    assert Target(limits).choose("another", FORMS).form == "quick"
    assert Target(limits).choose("k", FORMS).forms == ("quick", "other", "slow")


def test_a_form_that_is_not_there_counts_for_nothing() -> None:
    assert Target(Limits(tuned=Tuned({"k": "of an older version"}))).choose("k", FORMS).form == "quick"


def test_tables_compare_by_content() -> None:
    one, same, other = Tuned({"a": "1", "b": "2"}), Tuned({"b": "2", "a": "1"}), Tuned({"a": "1"})
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert Limits(tuned=one) == Limits(tuned=same)
    assert Limits(tuned=one) != Limits()
    assert pickle.loads(pickle.dumps(one)) == one
    assert not UNTUNED
    assert UNTUNED.get("a") == ""


def test_a_worker_tells_what_is_tuned() -> None:
    limits = Limits(
        tuned=Tuned({"k": "other"}),
        disabled=(("a", "b"),),
        figures=figures_of(Roofs(1e12, 1e11), 1e-5),
        configurations=("a",),
    )
    info = AdapterInfo(0, "a", "discrete", "Vulkan", "1", 1, 2)
    answer = json.loads(json.dumps({"info": info.as_dict(), "limits": limits_answer(limits)}))
    assert device_of(answer) == (info, limits)
    with pytest.raises(GarbageError):
        device_of({**answer, "limits": {**answer["limits"], "tuned": 5}})


# ---- on disk


MADE = Table({"k": Measured("quick", {"quick": 1.5, "slow": 2.5}), "l": Measured("a")}, ("model",))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert tuned.read(str(tmp_path), "key") == Table()
    assert tuned.write(str(tmp_path), "key", MADE)
    assert tuned.read(str(tmp_path), "key") == MADE
    assert tuned.read(str(tmp_path), "another") == Table()
    assert tuned.read(str(tmp_path), "key").tuned == Tuned({"k": "quick", "l": "a"})
    assert tuned.forget(str(tmp_path), "key")
    assert not tuned.forget(str(tmp_path), "key")


HEAD = f'{{"format": {store.FORMAT},'


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[",
        "[]",
        "null",
        HEAD[:-1] + "}",
        '{"format": 99, "choices": {}, "models": []}',
        HEAD + ' "choices": [], "models": []}',
        HEAD + ' "choices": {"k": "quick"}, "models": []}',
        HEAD + ' "choices": {"k": {"form": 3, "ns": {}}}, "models": []}',
        HEAD + ' "choices": {"k": {"form": "a", "ns": {"a": -1}}}, "models": []}',
        HEAD + ' "choices": {"k": {"form": "a", "ns": {"a": Infinity}}}, "models": []}',
        HEAD + ' "choices": {"k": {"form": "a", "ns": 1}}, "models": []}',
        HEAD + ' "choices": {}, "models": 4}',
        HEAD + ' "choices": ' + "[" * 100_000 + "}",
    ],
)
def test_a_damaged_file_says_nothing(content: str, tmp_path: Path) -> None:
    path = tuned.path_of(str(tmp_path), "key")
    path.parent.mkdir()
    path.write_text(content)
    assert tuned.read(str(tmp_path), "key") == Table()


def test_the_newest_stay() -> None:
    table = Table()
    for k in range(MAX_CHOICES + 3):
        table = replace(table, choices={**table.choices, f"k{k}": Measured("a")})
    table = table.with_choices({"k5": Measured("b")}, [f"m{k}" for k in range(MAX_MODELS + 2)])
    assert len(table.choices) == MAX_CHOICES
    assert list(table.choices)[-1] == "k5"
    assert "k0" not in table.choices
    assert table.choices["k5"].form == "b"
    assert len(table.models) == MAX_MODELS
    assert table.with_choices({}, ["m9"]).models[-1] == "m9"


def test_the_kernels_are_part_of_the_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = tuned.kernel_hash()
    for name in ("shaders", "ops"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.wgsl").write_text("x")
    (tmp_path / "kernels").mkdir()
    for name in ("records.py", "cost_parameters.py", "target.py"):
        (tmp_path / "kernels" / name).write_text("x")
    monkeypatch.setattr(tuned, "__file__", str(tmp_path / "kernels" / "tuned.py"))
    tuned.kernel_hash.cache_clear()
    first = tuned.kernel_hash()
    (tmp_path / "shaders" / "a.wgsl").write_text("y")
    tuned.kernel_hash.cache_clear()
    assert len({before, first, tuned.kernel_hash()}) == 3
    tuned.kernel_hash.cache_clear()
