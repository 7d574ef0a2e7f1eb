"""A program that PyInstaller makes has the GPU: the package's own hook brings shaders, shim and all modules along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ort_gpu_ep import EP_NAME
from ort_gpu_ep.__pyinstaller import get_hook_dirs
from tests.clients.frozen_program import X
from tests.unit.graphs import model_of

PROGRAM = Path(__file__).with_name("frozen_program.py")
W = np.linspace(-1, 1, 12, dtype="f").reshape(3, 4)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    hooks = [argument for place in get_hook_dirs() for argument in ("--additional-hooks-dir", place)]
    done = subprocess.run(
        [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN", *hooks, str(PROGRAM)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr
    return folder / "dist" / PROGRAM.stem / PROGRAM.stem


def test_a_frozen_program_and_its_children_have_the_gpu(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(
        model_of("(float[N, 3] x) => (float[N, 4] y) { h = MatMul(x, w) y = Relu(h) }", {"w": W}).SerializeToString()
    )
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [program, path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**environment, "ORT_GPU_EP_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    told, want = json.loads(done.stdout), np.maximum(X @ W, 0)
    np.testing.assert_allclose(told["y"], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(told["isolated"], want, rtol=1e-5, atol=1e-6)
    assert told["gpu"] == 2
    assert told["losses"] == sorted(told["losses"], reverse=True)
    assert "no interpreter" in told["missing"]
    assert told["child"][0] == [EP_NAME, "CPUExecutionProvider"]
    np.testing.assert_allclose(told["child"][1], want, rtol=1e-5, atol=1e-6)
