"""ort-gpu-ep tune: what changed, what is known, and how it is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.health.open_adapter import open_gpu
from ort_gpu_ep.kernels.target import UNTUNED
from tests.cli.test_cli import parsed, printed, rejected
from tests.unit.graphs import model_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tune") / "model.onnx"
    weights = {"w": np.random.default_rng(3).standard_normal((64, 64)).astype("f")}
    path.write_bytes(model_of("(float[N, 64] x) => (float[N, 64] y) { y = MatMul(x, w) }", weights).SerializeToString())
    return path


@pytest.fixture(autouse=True)
def untuned() -> Iterator[None]:
    gpu = open_gpu(Config())
    gpu.limits = replace(gpu.limits, tuned=UNTUNED)
    yield
    gpu.limits = replace(gpu.limits, tuned=UNTUNED)


def test_tune_list_forget(model: Path, tmp_path: Path) -> None:
    cache = ("-o", f"cache_dir={tmp_path}")
    assert "1 choices" in printed("tune", model, "--dim", "N=32", "--budget", 0, *cache)
    assert "product 32x64x1*64+: " in printed("tune", "--list", *cache)
    assert "1 choices forgotten" in printed("tune", "--forget", *cache)
    assert "nothing was known" in printed("tune", "--forget", *cache)
    assert " 0 choices are known" in printed("tune", "--list", *cache)


def test_json(model: Path, tmp_path: Path) -> None:
    cache = ("-o", f"cache_dir={tmp_path}", "--json")
    data = parsed("tune", model, "--dim", "N=32", "--budget", 0, *cache)
    (row,) = data["choices"]
    assert row["form"] in row["ns"]
    assert row["estimated"] in row["ns"]
    assert data["saved_ns"] >= 0
    known = parsed("tune", "--list", *cache)
    assert known["choices"] == [{k: row[k] for k in ("key", "form", "ns")}]
    assert parsed("tune", "--forget", *cache)["forgotten"] is True


def test_without_a_model(tmp_path: Path) -> None:
    assert "needs a MODEL" in rejected("tune", "-o", f"cache_dir={tmp_path}")
