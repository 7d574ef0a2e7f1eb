"""Each sentence of SECURITY.md that promises something, and the tests that would fail if it were not so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROMISES = {
    "Models, their sizes and the content of its caches": [
        "session/test_fuzz.py",
        "session/test_bad_sizes.py",
        "session/test_odd_models.py",
        "health/test_hostile_cache.py::test_hostile_values",
        "plugin/test_own_weights.py::test_what_is_no_model_is_said_to_be_none",
        "compressed/test_functions.py::test_a_kernel_given_damaged_rows_reads_nothing_outside",
    ],
    "Names of files in a model lead only to": [
        "unit/test_external.py::test_the_files_are_those_that_onnxruntime_reads",
        "unit/test_external.py::test_every_place_of_a_tensor_is_looked_at",
        "session/test_hostile_files.py::test_nothing_happens_to_files",
        "scoring/test_cluster.py::test_names_in_a_model_lead_nowhere",
    ],
    "What is written has names": [
        "unit/test_external.py::test_no_location_makes_a_source_wait_or_write",
        "unit/test_files.py::test_names_out_of_a_model_are_no_paths",
        "unit/test_files.py::test_a_file_of_the_users_follows_no_link",
        "scoring/test_scoring_parts.py::test_nothing_in_a_folder_of_parts_leads_out_of_it_or_waits",
    ],
    "Helper processes start isolated": ["health/test_child.py::test_nothing_in_the_current_folder_is_executed"],
    "Weights that are spilled to disk, copies": [
        "health/test_hostile_cache.py::test_what_is_written_is_private",
        "unit/test_external.py::test_what_is_deleted_is_copied_under_numbers_for_this_user_only",
    ],
    "A report of `ort-gpu-ep doctor --report`": ["health/test_doctor.py::test_names_of_people_are_left_out"],
}
"""How a sentence begins -> tests below tests/."""


def sentences() -> list[str]:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    promised = re.search(r"\*\*What this package defends against\.\*\*(.*?)\n\n", text, re.S)
    assert promised
    return re.split(r"(?<=\.)\s+(?=[A-Z])", promised[1].strip().replace("\n", " "))


def test_each_sentence_has_tests() -> None:
    found = sentences()
    assert len(found) == len(PROMISES)
    for sentence, beginning in zip(found, PROMISES, strict=True):
        assert sentence.startswith(beginning)


@pytest.mark.parametrize("name", [name for names in PROMISES.values() for name in names])
def test_the_tests_are_there(name: str) -> None:
    file, _, function = name.partition("::")
    text = (ROOT / "tests" / file).read_text("utf-8")
    assert f"def {function or 'test_'}" in text
