"""What a run of the tests says where one of their processes dies or hangs: it ends, names the test, and shows why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PLUGIN = """
from tests.dead_processes import install
def pytest_configure(config):
    install(config, limit_s=2)
"""

DIES = """
import os, signal, pytest
def test_before(): pass
def test_dies():
    os.write(2, b"last words")
    os.kill(os.getpid(), signal.SIGABRT)
def test_behind(): pass
"""

HANGS = """
import faulthandler, signal, threading, pytest
def test_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    threading.Lock().acquire() and threading.Event().wait()
"""

AT_THE_END = """
import atexit, os, signal
def test_well():
    atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
"""

WELL = "def test_well(): pass\n"

BUSY = """
import threading
from xdist.workermanage import Marker, WorkerController
from tests.dead_processes import process_of

scheduled, of_node = threading.Event(), WorkerController.process_from_remote

def late(self, event):
    if event is Marker.END:
        scheduled.wait(60)
    of_node(self, event)

WorkerController.process_from_remote = late

def pytest_runtest_logreport(report):
    if report.nodeid.endswith("test_before") and report.when == "teardown" and hasattr(report, "node"):
        process_of(report.node).wait(60)

def pytest_runtest_logstart(nodeid):
    if nodeid.endswith("test_dies"):
        scheduled.set()
"""
"""As on a machine that is busy: the process is dead before the run has heard of the test before, and gives it the next
file; that it is dead it hears behind that."""


@pytest.mark.parametrize("busy", [False, True])
def test_a_run_ends_and_says_of_what_its_processes_died(busy: bool, tmp_path: Path) -> None:
    """One that dies, one that hangs where no signal reaches it, and one that dies behind its tests: no other test is
    lost."""
    (tmp_path / "conftest.py").write_text(PLUGIN + BUSY * busy)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, text in {"a": WELL, "b": WELL, "c": DIES, "d": HANGS, "e": WELL, "f": AT_THE_END}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-n",
            "2",
            "--dist",
            "loadfile",
            "--no-loadscope-reorder",
            "-vv",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 6 passed" in done.stdout, done.stdout
    for said in (
        "crashed while running 'test_c.py::test_dies'",
        "ended by SIGABRT",
        "in test_dies",
        "last words",
        "crashed while running 'test_d.py::test_hangs'",
        "Timeout (0:00:02)!",
        "in test_hangs",
        "ended by SIGSEGV",
    ):
        assert said in done.stdout, said
