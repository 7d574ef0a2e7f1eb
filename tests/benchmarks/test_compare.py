"""benchmarks/compare.py: noise is told from change, and both sides are what they are said to be."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from benchmarks import compare
from benchmarks.noise import difference


def side(middle: float, processes: int = 5, spread: float = 0.02, seed: int = 0) -> list[list[float]]:
    """Milliseconds: processes differ by `spread`, runs of one by half of it, and some take much longer."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(processes):
        runs = middle * (1 + spread * random.standard_normal()) * (1 + spread / 2 * np.abs(random.standard_normal(40)))
        runs[random.integers(0, 40, 3)] *= 4
        found.append(list(runs))
    return found


def test_a_change_is_seen() -> None:
    found = difference(side(10.0, seed=1), side(8.0, seed=2))
    assert found.is_beyond_noise
    assert found.low < found.ratio < found.high < 1.0
    assert found.ratio == pytest.approx(0.8, rel=0.05)


def test_noise_is_seldom_taken_for_change() -> None:
    seen = sum(difference(side(10.0, seed=k), side(10.0, seed=1000 + k)).is_beyond_noise for k in range(40))
    assert seen <= 4


def test_a_sure_but_tiny_change_is_no_news() -> None:
    assert not difference([[1.0] * 5] * 5, [[1.001] * 5] * 5).is_beyond_noise
    assert difference([[1.0] * 5] * 5, [[1.05] * 5] * 5).is_beyond_noise


def test_the_text_has_only_what_changed() -> None:
    same, faster = difference(side(10.0), side(10.0)), difference(side(10.0), side(5.0))
    text = compare.lines({"a": same, "b": faster}, {"c": "new: KeyError: x"})
    assert len(text) == 3
    assert text[0].startswith("b ")
    assert "-5" in text[0]
    assert text[1] == "1 of 2 within noise"
    assert text[2] == "c: not compared: new: KeyError: x"


def test_what_a_version_is(tmp_path: Path) -> None:
    assert compare.folder_of(str(compare.ROOT), tmp_path / "a") == compare.ROOT
    with pytest.raises(typer.BadParameter, match="neither a folder"):
        compare.folder_of("no such commit", tmp_path / "b")
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=compare.ROOT, capture_output=True, check=False).returncode == 0:
        assert (compare.folder_of("HEAD", tmp_path / "c") / "ort_gpu_ep" / "__init__.py").is_file()


def test_processes_take_turns_after_a_first_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []

    def one(package: Path, cache: Path, models: Any, options: Any, runs: int, warm_s: float) -> dict[str, Any]:
        calls.append((package.name, runs))
        return {"m": [1.0] * runs}

    monkeypatch.setattr(compare, "one", one)
    found = compare.measured({"old": (tmp_path / "o", tmp_path), "new": (tmp_path / "n", tmp_path)}, {}, {}, 3, 7)
    assert calls == [("o", 1), ("n", 1), ("o", 7), ("n", 7), ("n", 7), ("o", 7), ("o", 7), ("n", 7)]
    assert all(len(results) == 3 for results in found.values())


def test_two_real_sides(tmp_path: Path) -> None:
    """The same folder twice, one of them behind a package that sleeps in each run."""
    slow = tmp_path / "slow" / "ort_gpu_ep"
    slow.mkdir(parents=True)
    slow.joinpath("__init__.py").write_text(
        "import time, onnxruntime\n"
        "class InferenceSession(onnxruntime.InferenceSession):\n"
        "    def __init__(self, path, settings, provider_options):\n"
        "        super().__init__(path, settings, providers=['CPUExecutionProvider'])\n"
        "    def run(self, *arguments):\n"
        "        time.sleep(0.2)\n"
        "        return super().run(*arguments)\n"
    )
    app = typer.Typer()
    app.command()(compare.main)
    done = CliRunner().invoke(
        app,
        [
            str(tmp_path / "slow"),
            str(compare.ROOT),
            "--models",
            "lenet5",
            "--processes",
            "2",
            "--runs",
            "3",
            "--json",
            "-o",
            "placement=cpu",
        ],
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    found = report["models"]["lenet5"]
    assert found["beyond_noise"]
    assert found["old_ms"] > 200.0
    assert found["ratio"] < 0.9
    assert [len(runs) for runs in found["times_ms"]["new"]] == [3, 3]
