"""Everything that is measured, in one go: the end of the time costs what is under way, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks import all as everything
from benchmarks.all import FILE, STEPS, Step, measure

SAID = "import json, pathlib, sys; pathlib.Path(sys.argv[1]).write_text('{\"ms\": 1}'); print('said'); "


@pytest.fixture(autouse=True)
def no_adapter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Modules of a step are files of the test's."""
    monkeypatch.setattr(everything, "clocks", lambda: "cores 1 MHz")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


class Ends(subprocess.Popen[bytes]):
    """A process whose limit is over when it has written its results, if it is the one that is late."""

    def wait(self, timeout: float | None = None) -> int:
        *_, name, result = map(str, self.args)  # type: ignore[union-attr]
        if timeout is None or name != "step_late":
            return super().wait(timeout)
        while not (Path(result).exists() and Path(result).read_text()):
            time.sleep(0.01)
        raise subprocess.TimeoutExpired(name, timeout)


def step(folder: Path, name: str, code: str, limit_s: int = 60) -> Step:
    (folder / f"step_{name}.py").write_text(code)
    return Step(name, limit_s, (f"step_{name}", FILE), ())


def test_each_step_is_written_when_it_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everything.subprocess, "Popen", Ends)
    out = tmp_path / "out.json"
    steps = [
        step(tmp_path, "one", SAID),
        step(tmp_path, "fails", "raise SystemExit(3)"),
        step(tmp_path, "late", SAID + "sys.stdout.flush(); import time; time.sleep(600)"),
        step(tmp_path, "last", SAID),
    ]
    measure(steps, out, float("inf"), False)
    found = json.loads(out.read_text())
    assert [(name, row["code"], row["json"]) for name, row in found.items()] == [
        ("one", 0, {"ms": 1}),
        ("fails", 3, None),
        ("late", None, {"ms": 1}),
        ("last", 0, {"ms": 1}),
    ]
    assert "said" in found["one"]["output"]
    assert found["one"]["clocks"] == ["cores 1 MHz"] * 2


def test_what_was_done_is_not_done_again(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    measure([step(tmp_path, "one", SAID), step(tmp_path, "two", "raise SystemExit(3)")], out, float("inf"), False)
    measure([step(tmp_path, "one", "raise SystemExit(4)"), step(tmp_path, "two", SAID)], out, float("inf"), False)
    assert [row["code"] for row in json.loads(out.read_text()).values()] == [0, 0]


def test_no_step_begins_when_no_time_is_left(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert measure([step(tmp_path, "one", SAID)], out, 0.0, False) == {}


def test_steps_are_modules_that_exist() -> None:
    assert len({s.name for s in STEPS}) == len(STEPS)
    assert all(importlib.util.find_spec(s.arguments[0]) and importlib.util.find_spec(s.tiny[0]) for s in STEPS)
