"""A run that the CPU has answered for the GPU leaves no tensors behind."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import ort_gpu_ep
from ort_gpu_ep import register
from ort_gpu_ep.config import Config
from ort_gpu_ep.ir.types import BY_ONNX, TensorType
from ort_gpu_ep.placement.source import Source
from ort_gpu_ep.plugin.fallback import Fallback
from tests.plugin.cases import info, make_model, node, open_session, reference
from tests.unit.graphs import graph_of

ROOT = Path(__file__).parents[2]
NBYTES = 64 << 20
FLOAT = BY_ONNX[1]


def resident() -> int:
    """Without what the C library keeps for later: how much that is depends on the tests before."""
    gc.collect()
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def keeps_no_tensors(tmp_path: Path) -> None:
    graph = graph_of("(float[N, 1024] x) => (float[N, 1024] y) { h = Relu(x) y = Softmax(h) }")
    fallback = Fallback(graph, {"": 20}, Config(cache_dir=str(tmp_path)), print)

    def run(rows: int) -> None:
        x = np.ones((rows, 1024), "f")
        (y,) = fallback.run([(TensorType(FLOAT, x.shape), x.reshape(-1).view(np.uint8))])
        assert y.shape() == [rows, 1024]

    run(4)
    before = resident()
    run(NBYTES // 4096)
    assert resident() - before < NBYTES // 4


def takes_what_it_takes_without(tmp_path: Path) -> None:
    register()
    model = make_model([node("Relu", "x", "h"), node("Softmax", "h", "y")], [info("x", ["N", 1024])], ["y"], {})
    x, grown = np.ones((NBYTES // 4096, 1024), "f"), []
    for faults in ("slow@1x", "oom@1"):
        opened = open_session(model, isolation="process", faults=faults, cache_dir=str(tmp_path), health="off")
        before = resident()
        np.testing.assert_allclose(opened.run(x=x)[0][:2], reference(model, x=x[:2])[0], rtol=1e-5)
        grown.append(resident() - before)
        assert [p.fallbacks for p in opened.state.partitions] == [int(faults == "oom@1")]
        del opened
    assert grown[1] - grown[0] < NBYTES // 4, grown


def in_a_process(check: str, tmp_path: Path) -> None:
    """Of its own, whose memory nobody has used before."""
    code = (
        f"from pathlib import Path; from tests.leaks import test_fallback; "
        f"test_fallback.{check}(Path({str(tmp_path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_fallback_keeps_no_tensors(tmp_path: Path) -> None:
    """One run of 64 MiB left 132 MiB in onnxruntime's arena, for as long as the session lived."""
    in_a_process("keeps_no_tensors", tmp_path)


def test_a_session_after_a_fallback_takes_what_it_takes_without(tmp_path: Path) -> None:
    """With the GPU in a worker, so that its buffers don't count here; the session's own output stays in onnxruntime's
    arena either way."""
    in_a_process("takes_what_it_takes_without", tmp_path)


def test_a_session_for_one_run_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where values were only on a device that is lost, the whole model runs once on the CPU."""
    made: list[Any] = []
    create = Source.session

    def noted(self: Source, *arguments: Any) -> Any:
        session = create(self, *arguments)
        made.append(weakref.ref(session))
        return session

    monkeypatch.setattr(Source, "session", noted)
    model = make_model([node("Relu", "x", "h"), node("Softmax", "h", "y")], [info("x", ["N", 1024])], ["y"], {})
    session = ort_gpu_ep.InferenceSession(
        model, provider_options={"placement": "gpu", "faults": "lost@1", "cache_dir": str(tmp_path)}
    )
    x = np.random.default_rng(2).standard_normal((8, 1024)).astype("f")
    for _ in range(2):
        np.testing.assert_allclose(session.run(None, {"x": x})[0], reference(model, x=x)[0], rtol=1e-5, atol=1e-6)
    gc.collect()
    assert len(made) == 1
    assert [ref() for ref in made] == [None]
