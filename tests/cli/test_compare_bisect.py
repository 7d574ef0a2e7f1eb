"""ort-gpu-ep compare and bisect: exit codes, texts, data, and the files that show a difference."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.cli import peers
from ort_gpu_ep.kernels import questions
from ort_gpu_ep.kernels.registry import OPS
from tests.cli.test_cli import call, parsed, printed, rejected
from tests.comparison.test_bisection import scaled
from tests.unit.graphs import model_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "model.onnx"
    weights = {"w": np.random.default_rng(3).standard_normal((16, 12)).astype("f")}
    path.write_bytes(
        model_of(
            "(float[N, 16] x) => (float[N, 12] y) { h = MatMul(x, w) y = Softmax(h) }", weights
        ).SerializeToString()
    )
    return path


def test_within_tolerance(model: Path, tmp_path: Path) -> None:
    assert "ok    y float32[5, 12]" in printed("compare", model, "--dim", "N=5")
    text = printed("bisect", model, "--dim", "N=5", "--save", tmp_path / "out")
    assert "no node's values are beyond tolerance" in text
    assert "worst by itself: " in text
    assert not (tmp_path / "out").exists()


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products on the GPU are 1 % too large."""
    with questions.apart():
        monkeypatch.setitem(OPS, ("", "MatMul"), scaled(OPS["", "MatMul"], 1.01))
        yield


@pytest.mark.usefixtures("faulty")
def test_beyond_tolerance(model: Path, tmp_path: Path) -> None:
    options = ("--dim", "N=64")
    done = call("compare", model, *options)
    assert done.returncode == 1
    assert "WRONG y" in done.stdout
    assert "ort-gpu-ep bisect" in done.stdout
    done = call("bisect", model, *options, "--save", tmp_path / "out")
    assert done.returncode == 1
    assert "first beyond tolerance: MatMul" in done.stdout
    command = next(line for line in done.stdout.replace("\n", " ").split("written: ") if "/first/" in line)
    again = call(*shlex.split(command)[1:])
    assert again.returncode == 1
    assert "WRONG h" in again.stdout


def test_float64_decides(model: Path, tmp_path: Path) -> None:
    """At a tolerance that no float32 reaches: wrong is only who is farther from float64 than the other."""
    options = ("--dim", "N=64", "--tolerance", "1e-12")
    found = call("bisect", model, *options, "--json", "--save", tmp_path / "out")
    data = json.loads(found.stdout)
    assert data["against"] == "float64"
    assert data["first"] is not None
    ours, theirs = (d["relative"] for d in (data["first"]["own"], data["cpu_from_float64"][data["first"]["node"]]))
    worst = data["worst"]["own"]["relative"], data["cpu_from_float64"][data["worst"]["node"]]["relative"]
    assert found.returncode == (0 if ours <= theirs and worst[0] <= worst[1] else 1)
    assert "from float64: relative" in call("bisect", model, *options, "--save", tmp_path / "out").stdout


@pytest.mark.usefixtures("faulty")
def test_a_fault_of_the_gpu_is_far_from_float64(model: Path) -> None:
    done = call("compare", model, "--dim", "N=64", "--json")
    assert done.returncode == 1
    sides = json.loads(done.stdout)["outputs"][0]["float64"]
    assert sides["first"]["relative"] > 1e-3
    assert sides["second"]["relative"] < 1e-5


def test_a_fault_of_the_cpu_is_none_of_ours(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a network in which onnxruntime's sums were 60 times as far from float64 as ours."""
    plain = peers.peer("cpu", str(model))

    class Off:
        def run(self, names: None, values: Any) -> Any:
            return [a * np.float32(1.003) for a in plain.run(names, values)]

    monkeypatch.setattr(peers, "peer", lambda name, path: Off())
    done = call("compare", model, "--dim", "N=5")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "ok y float32[5, 12]" in text
    assert "cpu 0.003" in text.partition("from float64")[2]


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
