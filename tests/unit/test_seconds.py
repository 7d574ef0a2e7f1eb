"""tests/seconds.py: a run writes down what its new files take, and begins with what takes longest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PLUGIN = """
from tests import seconds
seconds.PATH = seconds.Path(__file__).with_name("seconds.json")
def pytest_addoption(parser):
    parser.addoption("--record-seconds", action="store_true")
def pytest_configure(config):
    config.pluginmanager.register(seconds.Seconds(config))
"""

TAKES = """
import time
def test_well():
    while time.process_time() < 0.2: pass
"""


@pytest.mark.parametrize(
    ("arguments", "new", "of_old"),
    [
        (["-n", "1"], True, 9.0),
        (["-m", "not nightly"], True, 9.0),
        (["-n", "1", "--record-seconds"], True, None),
        (["-k", "well"], False, 9.0),
    ],
)
def test_new_files_are_added_and_gone_ones_removed(
    arguments: list[str], new: bool, of_old: float | None, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not nightly'\nmarkers = nightly")
    (tmp_path / "seconds.json").write_text(json.dumps({"test_a.py": 1.0, "test_b.py": 9.0, "test_gone.py": 3.0}))
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(TAKES)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-v",
            "--dist",
            "loadfile",
            "--no-loadscope-reorder",
            *arguments,
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "seconds.json").read_text())
    assert set(found) == (
        {"test_a.py", "test_b.py", "test_c.py"} if new else {"test_a.py", "test_b.py", "test_gone.py"}
    )
    if of_old:
        assert found["test_b.py"] == of_old
    else:
        assert found["test_b.py"] < 9.0
    order = [line.split("test_", 1)[1][0] for line in done.stdout.splitlines() if "PASSED" in line]
    assert order == (list("cba") if "-n" in arguments else list("abc"))
