"""A run on a Ray cluster of two nodes, with SIGKILL for everything, then for a worker, then for a node: every row once,
and right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.scoring.conftest import ROWS, Data, check_rows

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.ray


def command(data: Data, out: Path, how: str) -> list[str]:
    return [sys.executable, "-m", "tests.scoring.ray_run", str(data.model), str(data.file), str(out), how]


def killed_as_a_whole(data: Data, out: Path, environment: dict[str, str]) -> None:
    """The cluster, its workers and the run, once some parts are written."""
    process = subprocess.Popen(
        command(data, out, "until-killed"), cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert "committed" in iter(process.stdout.readline, "").__next__()
    finally:
        everything = [*psutil.Process(process.pid).children(recursive=True), process]
        for one in everything:
            one.kill()
        process.communicate()
    assert len(everything) > 5  # two of Ray's nodes have several processes each
    assert psutil.wait_procs(everything[:-1], timeout=300)[1] == []


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """With a folder for Ray's sockets, whose paths may not be long, and for the address that a killed cluster
    leaves."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        yield {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder}


def test_every_row_comes_out_once_whatever_ends(data: Data, tmp_path: Path, environment: dict[str, str]) -> None:
    out = tmp_path / "out.parquet"
    killed_as_a_whole(data, out, environment)
    assert not out.exists()
    done = subprocess.run(
        command(data, out, "with-ends"), cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    check_rows(out, data)
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["before"], report["scored"]) == (2500, ROWS - 2500)
    first, second = sorted(report["adapters"], key=lambda entry: bool(entry["given_up"]))
    assert any("its worker process has died" in why for why in first["replaced"]), first
    assert first["given_up"] == ""
    assert second["given_up"].endswith("is gone")
