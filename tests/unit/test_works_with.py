"""The page of packages that work: from its record, which has what was tried and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from scripts import works_with

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = json.loads(works_with.RECORD.read_text("utf-8"))


def test_the_page_has_what_was_recorded() -> None:
    assert works_with.rows(ENTRIES, works_with.programs()) in works_with.PAGE.read_text("utf-8"), (
        "run `python scripts/works_with.py --table`"
    )


def test_each_entry_says_what_was_run_when_and_with_what() -> None:
    assert len(ENTRIES) >= 20
    for entry in ENTRIES:
        assert entry["command"] == f"ort-gpu-ep exec -o placement=gpu -- python {works_with.PROGRAM} {entry['program']}"
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", entry["date"])
        assert entry["version"]
        assert entry["onnxruntime"]
        assert entry["result"] != "the same" or all(0 < gpu <= nodes for gpu, nodes in entry["nodes"])


def test_each_program_has_its_pins() -> None:
    assert set(works_with.PINS) <= set(works_with.programs())
    assert {entry["program"] for entry in ENTRIES} <= set(works_with.PINS)


def test_pins_are_those_of_the_clients_group() -> None:
    group = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]["clients"]
    assert {pin for pins in works_with.PINS.values() for pin in pins} >= {pin for pin in group if "==" in pin}


@pytest.mark.parametrize(
    ("got", "want", "apart"),
    [
        ([1.0, {"a": 2.0}], [1.0, {"a": 2.5}], 0.2),
        ([1, "x"], [1, "y"], float("inf")),
        ([1.0], [1.0, 2.0], float("inf")),
        ([0.001], [0.0], 0.001),
        ({"a": 1.0}, {"b": 1.0}, float("inf")),
        ([True, None], [True, None], 0.0),
    ],
)
def test_answers_are_compared_by_numbers_and_by_everything_else(got: object, want: object, apart: float) -> None:
    assert works_with.difference(got, want) == pytest.approx(apart)


def test_a_run_that_falls_back_is_not_called_the_same() -> None:
    session = {"gpu": 3, "cpu": 0, "stats": {"fallbacks": 1}}
    assert (
        works_with.result_of({"answers": [1], "sessions": [session]}, {"answers": [1]}) == "runs fell back to the CPU"
    )
    assert works_with.result_of({"answers": [1], "sessions": []}, {"answers": [1]}) == "no session of it was reached"
    session["stats"]["fallbacks"] = 0
    assert works_with.result_of({"answers": [1.0], "sessions": [session]}, {"answers": [1.0]}) == "the same"
    assert works_with.result_of({"answers": [1.1], "sessions": [session]}, {"answers": [1.0]}) == "differ by 1e-01"


def test_a_program_that_does_not_end_is_an_entry_and_the_script_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: object, **how: object) -> None:
        assert how["timeout"] == works_with.TIMEOUT_S
        raise subprocess.TimeoutExpired("program", works_with.TIMEOUT_S)

    monkeypatch.setattr(works_with.subprocess, "run", run)
    with pytest.raises(RuntimeError, match=f"no answer after {works_with.TIMEOUT_S} s"):
        works_with.answers(Path("python"), "magika")


def test_a_table_is_replaced() -> None:
    entry = {
        "program": "p",
        "package": "p",
        "version": "1",
        "nodes": [[1, 2]],
        "result": "the same",
        "onnxruntime": "1.32.0",
        "date": "2026-01-01",
    }
    assert (
        works_with.rows([entry], {"p": "something"})
        == works_with.TABLE + "| p 1 | something | 1 of 2 | the same | 1.32.0 | 2026-01-01 |\n"
    )


def test_patches_to_propose_are_short() -> None:
    patches = re.findall(r"^```diff\n(.*?)^```", works_with.PAGE.read_text("utf-8"), re.M | re.S)
    assert len(patches) == 6
    assert [patch for patch in patches if sum(line[:1] in "+-" for line in patch.splitlines()) > 10] == []
