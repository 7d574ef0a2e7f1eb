"""ort-gpu-ep score: what it prints, and what it says of a bad request."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from ort_gpu_ep.cli import app
from tests.scoring.conftest import write_mlp


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The model and its data."""
    write_mlp(tmp_path / "mlp.onnx")
    np.savez(tmp_path / "x.npz", pixels=np.ones((20, 8), "f"), id=np.arange(20), rest=np.zeros(20))
    return [str(tmp_path / "mlp.onnx"), str(tmp_path / "x.npz"), "--columns", "x=pixels", "--key", "id"]


def test_score_prints_a_report_and_goes_on(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(
        app, ["score", *files, "--out", str(out), "--adapters", "cpu", "--batch", "5", "--shard-rows", "10", "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["schema"], found["rows"], found["scored"], found["refused"]) == (1, 20, 20, 0)
    assert found["adapters"][0]["batch"] == 5
    assert parquet.read_table(out).column("id").to_pylist() == list(range(20))
    (out / "part-0000001.parquet").unlink()
    done = CliRunner().invoke(app, ["score", *files, "--out", str(out), "--adapters", "cpu", "--shard-rows", "10"])
    assert done.exit_code == 0, done.output
    assert "10 rows in " in done.stdout
    assert "10 rows were there from an earlier run" in done.stdout
    assert "columns that are not used: rest" in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--columns", "y=pixels"], "the model has no input 'y'"),
        (["--batch", "0"], "batch: got '0', expected auto or a number of rows"),
        (["--option", "placement=fast"], "expected one of auto, gpu, cpu"),
    ],
)
def test_score_says_what_is_wrong(files: list[str], change: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["score", *files, "--out", str(tmp_path / "out"), *change])
    assert done.exit_code == 1
    assert message in " ".join(done.stderr.split())
