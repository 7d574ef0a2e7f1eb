"""Packages that carry their own models give the same answers below `ort-gpu-ep exec`, unchanged, and their nodes run on
the GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_examples import WITH_CLIENTS, check
from tests.clients.programs import CLIENTS

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("programs.py")
TABLE = re.findall(
    r"^\| (\S+) \S+ \| .* \| ([\d, ]+) of ([\d, ]+) \|", (ROOT / "docs" / "drop-in.md").read_text("utf-8"), re.M
)
"""Package, and for each of its sessions the nodes on the GPU, of all."""


def ran(name: str, folder: Path, *before: str) -> dict[str, Any]:
    """What a program answers, below a command or not."""
    path = folder / "answers.json"
    done = subprocess.run(
        [*before, sys.executable, str(PROGRAM), name, str(path)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=550,
        env={**os.environ, "ORT_GPU_EP_CACHE_DIR": str(folder / "cache")},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def below_exec(name: str, folder: Path, **options: str) -> dict[str, Any]:
    pairs = [text for option, value in options.items() for text in ("-o", f"{option}={value}")]
    return ran(name, folder, sys.executable, "-m", "ort_gpu_ep", "exec", *pairs, "--")


def assert_same(got: Any, want: Any) -> None:
    """Texts and numbers of boxes are equal, floats to 1e-3."""
    if isinstance(want, float):
        assert got == pytest.approx(want, rel=1e-3, abs=1e-3)
    elif isinstance(want, list | dict):
        assert type(got) is type(want)
        assert len(got) == len(want)
        for key in want if isinstance(want, dict) else range(len(want)):
            assert_same(got[key], want[key])
    else:
        assert got == want


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def plain(client: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    found = ran(client, tmp_path_factory.mktemp("plain"))
    assert found["answers"]
    assert found["sessions"] == []
    return found["answers"]


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(", ")]


def test_on_the_gpu(client: str, plain: Any, tmp_path: Path) -> None:
    found = below_exec(client, tmp_path, placement="gpu")
    assert_same(found["answers"], plain)
    (row,) = (row for row in TABLE if row[0].replace("-", "_").startswith(client))
    assert sorted((s["gpu"], s["gpu"] + s["cpu"]) for s in found["sessions"]) == sorted(
        zip(numbers(row[1]), numbers(row[2]), strict=True)
    )
    for session in found["sessions"]:
        assert session["providers"][0] == "WgpuExecutionProvider"
        assert session["stats"]["runs"] > 0
        assert session["stats"]["fallbacks"] == 0


def test_where_the_session_chooses(client: str, plain: Any, tmp_path: Path) -> None:
    found = below_exec(client, tmp_path, placement="auto", adapter="software")
    assert_same(found["answers"], plain)
    for session in found["sessions"]:
        assert sum(session["stats"]["runs_by_candidate"].values()) == session["stats"]["runs"]
        assert session["stats"]["fallbacks"] == 0


@pytest.mark.parametrize("name", WITH_CLIENTS)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, WITH_CLIENTS[name])
