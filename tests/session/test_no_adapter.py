"""A machine without a GPU: the CPU answers and says so once; strict mode raises; the process ends well."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Python = Callable[..., subprocess.CompletedProcess[str]]

CODE = """
    import logging
    import numpy as np
    import onnxruntime
    import ort_gpu_ep as ort

    logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
    onnxruntime.set_default_logger_severity(4)
    x = np.random.default_rng(1).standard_normal((5, 16)).astype("f")
    want = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"]).run(None, {"x": x})
"""


@pytest.fixture(params=["no such file", "empty file", "no driver in it"])
def nothing(request: pytest.FixtureRequest, tmp_path: Path, mlp: bytes) -> dict[str, str]:
    """Environment of a machine without a driver."""
    path = tmp_path / "icd.json"
    if request.param != "no such file":
        broken = '{"file_format_version": "1.0.0", "ICD": {"library_path": "libnowhere.so"}}'
        path.write_text("" if request.param == "empty file" else broken)
    (tmp_path / "model.onnx").write_bytes(mlp)
    return {"VK_DRIVER_FILES": str(path), "VK_ICD_FILENAMES": str(path)}


def test_the_cpu_answers_and_says_so_once(python: Python, nothing: dict[str, str]) -> None:
    done = python(
        CODE
        + """
    for options in ({}, {}, {"placement": "gpu"}, {"placement": "gpu"}):
        session = ort.InferenceSession("model.onnx", provider_options=options)
        for got, w in zip(session.run(None, {"x": x}), want, strict=True):
            np.testing.assert_allclose(got, w, rtol=1e-6)
        assert session.wait_ready(300.0)
        assert session.explain().adapter == "none"
        assert session.explain().count("gpu") == 0
        assert session.explain().count("cpu") > 0
        assert "no GPU adapter" in str(session.explain())
    assert ort.adapters() == ()
    print("all well")
    """,
        **nothing,
    )
    assert (done.returncode, done.stdout) == (0, "all well\n"), done.stderr
    said = [line for line in done.stderr.splitlines() if "running on the CPU" in line]
    assert len(said) == 1, done.stderr
    assert "Or use placement=cpu." in said[0]


def test_strict_raises(python: Python, nothing: dict[str, str]) -> None:
    done = python(
        CODE
        + """
    for options in ({"strict": 1}, {"strict": 1, "placement": "gpu"}, {"adapter": "discrete"}):
        try:
            ort.InferenceSession("model.onnx", provider_options=options)
        except ort.AdapterError as error:
            assert "no GPU adapter" in str(error)
        else:
            raise AssertionError(options)
    session = ort.InferenceSession("model.onnx", provider_options={"strict": 1, "placement": "cpu"})
    np.testing.assert_allclose(session.run(None, {"x": x})[0], want[0], rtol=1e-6)
    print("all well")
    """,
        **nothing,
    )
    assert (done.returncode, done.stdout) == (0, "all well\n"), done.stderr


def test_plain_onnxruntime(python: Python, nothing: dict[str, str]) -> None:
    """The provider is offered, takes nothing, and tells why."""
    done = python(
        CODE
        + """
    ort.register()
    session = onnxruntime.InferenceSession("model.onnx", providers=[ort.EP_NAME, "CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], want[0], rtol=1e-6)
    print("all well")
    """,
        **nothing,
    )
    assert (done.returncode, done.stdout) == (0, "all well\n"), done.stderr
    assert done.stderr.count("no GPU adapter") == 1, done.stderr


def test_a_process_with_open_sessions_ends_well(python: Python, tmp_path: Path, mlp: bytes) -> None:
    """With a GPU: sessions in a reference cycle, never closed, after a run."""
    (tmp_path / "model.onnx").write_bytes(mlp)
    done = python(
        CODE
        + """
    class Holder: pass
    for _ in range(2):
        holder = Holder()
        holder.me, holder.session = holder, ort.InferenceSession("model.onnx", provider_options={"placement": "gpu"})
        np.testing.assert_allclose(holder.session.run(None, {"x": x})[0], want[0], rtol=1e-4, atol=1e-5)
        assert holder.session.explain().count("cpu") == 0
    print("all well")
    """
    )
    assert (done.returncode, done.stdout) == (0, "all well\n"), done.stderr
