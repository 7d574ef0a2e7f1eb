"""Fixtures of the plugin tests."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep import plugin
from tests.plugin.cases import info, make_model, node

ROOT = Path(__file__).parents[2]
HEAD = """
import gc, os, sys, threading, time
import numpy as np
import onnxruntime
from ort_gpu_ep import plugin
from tests.plugin.cases import *
onnxruntime.set_default_logger_severity(4)
"""


@pytest.fixture(scope="session", autouse=True)
def registered() -> None:
    onnxruntime.set_default_logger_severity(4)
    plugin.register()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def mlp(rng: np.random.Generator) -> bytes:
    """relu(x @ W) + b, for x: [N, 16]."""
    return make_model(
        [node("MatMul", "x W", "h"), node("Relu", "h", "r"), node("Add", "r b", "y")],
        [info("x", ["N", 16])],
        ["y"],
        {"W": rng.normal(size=(16, 16)).astype("f"), "b": rng.normal(size=16).astype("f")},
    )


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in an interpreter of its own, with the names of cases.py in scope."""

    def run(code: str, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(HEAD + textwrap.dedent(code))
        path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        return subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )

    return run
