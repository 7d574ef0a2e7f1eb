"""The deciders of placement beside an oracle, in virtual time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import deciders
from benchmarks.deciders import SCENARIOS, measured


def test_the_tables_fit_and_are_written(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(deciders.main)
    path = tmp_path / "figures.json"
    shown = CliRunner().invoke(
        app,
        ["--scenarios", "a run a|stalls", "--parts", "rest: both|all but|stay", "--seeds", "1", "--json", str(path)],
    )
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    found = json.loads(path.read_text("utf-8"))
    assert set(found) == {"", "all but the race", "rest: both", "stay at a near tie"}
    assert all(set(rows) == {"a run a second", "deadline, GPU stalls"} for rows in found.values())
    times = {part: rows["a run a second"]["time"] for part, rows in found.items()}
    assert 1.0 <= times[""] < 1.02
    assert min(times["rest: both"], times["all but the race"]) > 1.5  # the GPU of each run has slept


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("one size, GPU better", 1.02),
        ("one size, CPU better", 1.02),
        ("rhythm that changes", 1.04),
        ("same, clock in two steps", 1.07),
        ("new sizes only", 1.08),
        ("same, nothing to compile", 1.05),
        ("GPU loaded for 30 s", 1.05),
    ],
)
def test_sessions_stay_near_the_oracle(name: str, most: float) -> None:
    """Runs of a GPU that had slept moved quick runs to the CPU, and new sizes too: 1.24, 1.59 and 2.2 times. Two
    sizes close to each other told how all others grow: 3.1 times."""
    assert name in SCENARIOS
    assert measured(name, 1)["time"] <= most
