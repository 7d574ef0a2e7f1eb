"""Where a model runs on a single-board computer, a laptop, a phone: by what the partitioner expects of GPUs with their
rates and limits, which are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import models
from benchmarks.small_gpus import SMALL_GPUS, expected_s
from ort_gpu_ep.ir.graph import Graph, from_onnx

ROOT = Path(__file__).parents[2]


@cache
def network(name: str) -> Graph:
    return from_onnx(models.build(name))


@pytest.mark.parametrize(
    ("kind", "name", "better"),
    [
        ("raspberry-pi-5", "lenet5", "cpu"),
        ("raspberry-pi-5", "unet", "cpu"),
        ("raspberry-pi-5", "encoder", "cpu"),
        ("intel-uhd", "lenet5", "cpu"),
        ("intel-uhd", "unet", "cpu"),
        ("mali-g7x", "lenet5", "cpu"),
        ("mali-g7x", "unet", "gpu"),
        ("apple-m1", "lenet5", "cpu"),
        ("apple-m1", "unet", "gpu"),
    ],
)
def test_what_is_expected_of_networks(kind: str, name: str, better: str) -> None:
    """A GPU that computes a third as fast as the CPU beside it, or has too little to do, is left alone."""
    seconds = expected_s(SMALL_GPUS[kind], kind, network(name))
    assert min(seconds, key=seconds.__getitem__) == better, seconds


@pytest.mark.parametrize(("kind", "large"), [("raspberry-pi-5", "cpu"), ("intel-uhd", "cpu"), ("mali-g7x", "gpu")])
def test_a_session_goes_by_it_and_says_why(kind: str, large: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.placement.machine_of_class", kind, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    little, much = json.loads(done.stdout)
    assert (little["used"], little["source"]) == (["cpu"], "floor")
    assert f"before a GPU could have answered ({SMALL_GPUS[kind].run_s * 1e3:.3f} ms" in little["text"]
    assert (much["used"][-1], much["candidate"], much["source"]) == (large, large, "predicted")
    cpu_s, gpu_s = (much["predicted_s"][name] for name in ("cpu", "gpu"))
    assert (gpu_s < cpu_s) == (large == "gpu")
    assert f"gpu {gpu_s * 1e3:.3f} ms predicted" in much["text"]
    assert f"as {kind} (integrated" in much["text"]
    if large == "cpu":
        assert "nodes: 0 on the GPU" in much["text"]
        assert f"on the CPU: 4 MatMul: COST: the whole is predicted to take cpu {cpu_s * 1e3:.3f} ms" in much["text"]
