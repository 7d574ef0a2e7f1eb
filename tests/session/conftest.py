"""Models and sessions of these tests: the drop-in class on whatever adapter is there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gpu_ep as ort
from ort_gpu_ep.calibration import cache as calibration
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import OutOfDeviceMemoryError
from ort_gpu_ep.kernels.profile import GUESSED
from ort_gpu_ep.webgpu import objects
from tests.unit.graphs import model_of

ROOT = Path(__file__).parents[2]
NODES = 4
"""Of the model `mlp`, after onnxruntime has made a Gemm of its MatMul and Add."""

Feeds = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="session", autouse=True)
def quiet() -> None:
    onnxruntime.set_default_logger_severity(4)


@pytest.fixture
def no_mapped_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device has none left that the host could write to."""
    create = Gpu.create

    def refuse(self: Gpu, size: int, usage: int) -> Any:
        if usage & objects.MAP_WRITE:
            raise OutOfDeviceMemoryError("none left")
        return create(self, size, usage)

    monkeypatch.setattr(Gpu, "create", refuse)


def gpu_session(model: Any, settings: Any = None, **options: object) -> Any:
    """Every node that has a kernel on the GPU."""
    return ort.InferenceSession(model, settings, provider_options={"placement": "gpu", **options})


def with_rows(model: bytes, rows: int) -> bytes:
    """The same with its first dimension fixed."""
    made = onnx.ModelProto.FromString(model)
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = rows
    return bytes(made.SerializeToString())


def on_the_cpu(model: Any, feeds: Feeds, outputs: list[str] | None = None) -> list[Any]:
    """What onnxruntime's own CPU provider answers."""
    return list(onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(outputs, feeds))


def assert_close(got: list[Any], want: list[Any]) -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5)


@pytest.fixture
def mlp(rng: np.random.Generator) -> bytes:
    """softmax(relu(x w + b)), and the sum of the hidden layer's rows."""
    constants = {"w": rng.standard_normal((16, 8)).astype("f"), "b": rng.standard_normal(8).astype("f")}
    text = (
        "(float[N, 16] x) => (float[N, 8] y, float[N] z) "
        "{ h = MatMul(x, w) a = Add(h, b) r = Relu(a) y = Softmax(r) z = ReduceSum<keepdims=0>(r, axes) }"
    )
    return bytes(model_of(text, {**constants, "axes": np.array([1])}).SerializeToString())


@pytest.fixture
def island() -> bytes:
    """A node that only the CPU has, between two of ours."""
    text = (
        "(float[2, 4, 4] x) => (float[2, 4, 4] y) <float[2, 4, 4] i> { a = Tanh(x) i = com.microsoft.Inverse(a) e = "
        "Exp(i) y = Neg(e) }"
    )
    return bytes(model_of(text).SerializeToString())


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return rng.standard_normal((5, 16)).astype("f")


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in an interpreter of its own; environment variables as keywords."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        return subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )

    return run


@pytest.fixture
def auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Sessions on the adapter that is there, software or not, with a cache of their own; what the adapter takes is
    guessed, not measured.

    They have waited for it: their first run tries the candidates.
    """
    monkeypatch.setattr(calibration, "measure", lambda gpu, **how: replace(GUESSED, adapter=gpu.info.name))
    monkeypatch.setattr(calibration, "_known", {})

    def opened(model: Any, settings: Any = None, **options: object) -> Any:
        given = {"adapter": "0", "cache_dir": str(tmp_path / "cache"), "load": "off", **options}
        session = ort.InferenceSession(model, settings, provider_options=given)
        assert session.wait_ready(300.0)
        return session

    return opened


@pytest.fixture
def slow_on_one_thread() -> tuple[bytes, Any, dict[str, np.ndarray[Any, Any]]]:
    """Ops that onnxruntime computes one after the other, element by element."""
    ops = ("Asinh", "Atan") * 3
    names = ["x", *(f"v{i}" for i in range(len(ops) - 1)), "y"]
    body = " ".join(f"{out} = {op}({name})" for op, name, out in zip(ops, names, names[1:], strict=False))
    model = model_of(f"(float[262144] x) => (float[262144] y) {{ {body} }}").SerializeToString()
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    return model, settings, {"x": np.random.default_rng(3).standard_normal(262144).astype("f")}
