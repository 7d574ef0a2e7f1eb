"""A sample of the drills: `python -m tests.session.drills --kills 500 --losses 200 --ends 200 --openings 1000` does
more.

The ends are in test_background.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ort_gpu_ep
from tests.session.drills import ROOT, kills, losses


@pytest.mark.timeout(1800)
def test_workers_are_killed_and_devices_lost() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.session.drills",
        "--kills",
        "6",
        "--losses",
        "15",
        "--openings",
        "12",
        "--seed",
        "3",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert sum(found["kills"]["kills"].values()) >= 6
    assert found["kills"]["wrong"] == found["losses"]["wrong"] == found["openings"]["wrong"] == []
    assert sum(found["openings"]["stages"].values()) == 12
    assert [h["devices"] for h in found["losses"]["held"].values()][1:] == [found["losses"]["held"]["3"]["devices"]] * 3


def test_drills_see_a_wrong_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = ort_gpu_ep.InferenceSession.run
    monkeypatch.setattr(ort_gpu_ep.InferenceSession, "run", lambda *args: [a + 1 for a in whole(*args)])
    assert "wrong answers" in kills(1, 0, tmp_path)["wrong"][0]
    assert "wrong answers" in losses(5, 0, tmp_path)["wrong"][0]
