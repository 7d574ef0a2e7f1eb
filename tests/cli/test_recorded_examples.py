"""The examples of the documents print what stands below them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import record_examples


def test_the_reference_and_guides_have_examples() -> None:
    assert set(record_examples.pages()) >= {
        "api.md",
        "training.md",
        "scoring.md",
        "compression.md",
        "getting-started.md",
        "any-program.md",
    }


def test_each_part_of_the_reference_has_an_example() -> None:
    parts = (record_examples.DOCS / "api.md").read_text("utf-8").split("\n## ")[1:]
    named = [part for part in parts if "\n::: " in part]
    assert len(named) == 10
    assert [part.partition("\n")[0] for part in named if not record_examples.EXAMPLE.search(part)] == []


@pytest.mark.parametrize("page", record_examples.pages())
def test_examples_print_what_is_recorded(page: str, tmp_path: Path) -> None:
    record_examples.make_files(tmp_path)
    assert record_examples.recorded(page, tmp_path) == (record_examples.DOCS / page).read_text("utf-8"), (
        "python -m scripts.record_examples"
    )
