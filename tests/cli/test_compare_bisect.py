"""ort-gpu-ep compare and bisect: exit codes, texts, data, and the files that show a difference."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_cli import call, parsed, printed, rejected
from tests.unit.graphs import model_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "model.onnx"
    weights = {"w": np.random.default_rng(3).standard_normal((16, 12)).astype("f")}
    path.write_bytes(model_of("(float[N, 16] x) => (float[N, 12] y) { h = MatMul(x, w) y = Softmax(h) }", weights).SerializeToString())
    return path


def test_within_tolerance(model: Path, tmp_path: Path) -> None:
    assert "ok    y float32[5, 12]" in printed("compare", model, "--dim", "N=5")
    text = printed("bisect", model, "--dim", "N=5", "--save", tmp_path / "out")
    assert "no node's values are beyond tolerance" in text
    assert "worst by itself: " in text
    assert not (tmp_path / "out").exists()


def test_beyond_tolerance(model: Path, tmp_path: Path) -> None:
    """What no float32 sum can reach stands for a fault."""
    options = ("--dim", "N=64", "--tolerance", "1e-12")
    done = call("compare", model, *options)
    assert done.returncode == 1
    assert "WRONG y" in done.stdout
    assert "ort-gpu-ep bisect" in done.stdout
    done = call("bisect", model, *options, "--save", tmp_path / "out")
    assert done.returncode == 1
    assert "first beyond tolerance: MatMul" in done.stdout
    command = next(line for line in done.stdout.replace("\n", " ").split("written: ") if "/first/" in line)
    again = call(*shlex.split(command)[1:], "--tolerance", "1e-12")
    assert again.returncode == 1
    assert "WRONG h" in again.stdout


def test_json(model: Path, tmp_path: Path) -> None:
    data = parsed("compare", model, "--dim", "N=5", "--json")
    assert data["within"] is True
    assert data["nodes"]["gpu"] == 2
    assert {"absolute", "relative", "ulp", "within"} <= set(data["outputs"][0])
    data = parsed("bisect", model, "--dim", "N=5", "--json")
    assert data["first"] is None
    assert data["worst"]["own"]["name"]
    assert data["written"] == {}


def test_bad_input_is_a_message(model: Path) -> None:
    assert "no such named size" in rejected("bisect", model, "--dim", "M=5")
    assert "expected a whole number" in rejected("compare", model, "--dim", "N=many")
