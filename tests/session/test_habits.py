"""Habits of programs (habits.py), each in every way that a program comes by a session: what they give is what
onnxruntime alone gives."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.session.conftest import ROOT
from tests.session.habits import HABITS
from tests.session.test_forms import assert_same

FORMS = {"our class": "gpu", "our class, auto": "auto", "patched": "gpu", "executed": "gpu", "by name": "gpu"}

DIFFER: dict[tuple[str, str], str] = {
    ("by name", "a_bound_array_changes_in_place"): "it copies an input in host memory\nonce, when it is bound",
    ("by name", "the_optimised_model_on_disk"): "`optimized_model_filepath` raises",
    ("patched", "other_providers_later"): "`set_providers` does not take this provider away",
    ("executed", "other_providers_later"): "`set_providers` does not take this provider away",
}
"""(form, habit): what docs/drop-in.md says of it."""


def answers(form: str, folder: Path) -> dict[str, Any]:
    """In a process of its own: a patch, a fork and a registered provider would stay."""
    path, kind = folder / "answers", form.partition(",")[0]
    command = [sys.executable, "-m", "tests.session.habits", kind, str(path)]
    if kind == "executed":
        command = [sys.executable, "-m", "ort_gpu_ep.cli", "exec", "--", *command]
    options = {"placement": FORMS.get(form, "gpu"), "adapter": "0", "cache_dir": str(folder / "cache"), "load": "off"}
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        **{f"ORT_GPU_EP_{name.upper()}": text for name, text in options.items()},
    }
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=800, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = pickle.loads(path.read_bytes())
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return answers("plain", tmp_path_factory.mktemp("plain"))


def differing(got: dict[str, Any], want: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name, expected in want.items():
        try:
            assert_same(got[name], expected)
        except AssertionError as error:
            found[name] = f"{str(error)[:300]}: {str(got[name])[:300]} instead of {str(expected)[:300]}"
    return found


@pytest.mark.timeout(1800)
# `executed` is, too
@pytest.mark.parametrize("form", [pytest.param(f, marks=pytest.mark.nightly if f == "patched" else []) for f in FORMS])
def test_habits_give_what_onnxruntime_gives(form: str, plain: dict[str, Any], tmp_path: Path) -> None:
    allowed = {habit for where, habit in DIFFER if where == form}
    found = differing(answers(form, tmp_path), plain)
    assert {name: text for name, text in found.items() if name not in allowed} == {}
    assert set(found) == allowed


def test_habits_are_many_and_work(plain: dict[str, Any]) -> None:
    assert set(plain) == set(HABITS)
    assert min(np.abs(part).min() for part in plain["other_providers_later"][0]) > 0
    assert len(HABITS) >= 100
    assert {name: text for name, text in plain.items() if isinstance(text, str) and ": " in text} == {}


def test_users_are_told_where_habits_differ() -> None:
    text = (ROOT / "docs" / "drop-in.md").read_text("utf-8")
    assert [said for said in DIFFER.values() if said not in text] == []
