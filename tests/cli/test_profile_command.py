"""ort-gpu-ep profile: a table, data, a trace, a picture."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_cli import call, parsed, rejected
from tests.unit.graphs import model_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "a model.onnx"
    weights = {"w": np.random.default_rng(3).standard_normal((16, 8)).astype("f")}
    path.write_bytes(
        model_of("(float[N, 16] x) => (float[N, 8] y) { h = MatMul(x, w) y = Softmax(h) }", weights).SerializeToString()
    )
    return path


def test_the_table_fits_80_columns(model: Path) -> None:
    done = call("profile", model, "--runs", 3, "--dim", "N=5")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    for wanted in ("a model.onnx", "median of 3", "limits, measured", "before", "wait", "softmax", "5x8"):
        assert wanted in done.stdout


@pytest.mark.usefixtures("slow_drawing")
def test_files_and_data(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trace, plot, page = tmp_path / "trace.json", tmp_path / "roofline.png", tmp_path / "page.html"
    data = parsed("profile", model, "--runs", 3, "--json", "--trace", trace, "--plot", plot, "--html", page)
    assert data["model"] == model.name
    assert data["roofs"]["gflops"] > 0
    assert {"label", "kernel", "family", "us", "gflops", "gbytes", "roof_share"} <= set(data["dispatches"][0])
    assert sum(e["ph"] == "X" and e["tid"] == 2 for e in json.loads(trace.read_text("utf-8"))["traceEvents"]) == len(
        data["dispatches"]
    )
    assert plot.read_bytes().startswith(b"\x89PNG")
    drawn = re.search(r'<script id="data" type="application/json">(.*?)</script>', page.read_text("utf-8"))
    assert drawn is not None
    times = [kernel["us"] for box in json.loads(drawn.group(1))["boxes"] for kernel in box.get("kernels", [])]
    assert sum(times) == pytest.approx(sum(dispatch["us"] for dispatch in data["dispatches"]))


def test_top(model: Path) -> None:
    assert "the other" in call("profile", model, "--runs", 3, "--top", 0).stdout


def test_without_matplotlib(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install matplotlib" in rejected("profile", model, "--plot", tmp_path / "a.png").replace("\n", " ")


def test_on_the_cpu_there_is_nothing_to_profile(model: Path) -> None:
    assert "nothing of it runs on a GPU" in rejected("profile", model, "-o", "isolation=process").replace("\n", " ")
