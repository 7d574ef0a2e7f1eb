"""Behind a session no memory stays that only reading its model took."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ort_gpu_ep import heap
from tests.unit.graphs import model_of

ROOT = Path(__file__).parents[2]

HELD = """
import ctypes, sys
import ort_gpu_ep

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

session = ort_gpu_ep.InferenceSession(sys.argv[1], provider_options={"placement": "gpu", "strict": "1"})
before = resident()
ctypes.CDLL(None).malloc_trim(0)
print(before - resident())
"""


FOUND_OUT = """
import ctypes, sys, threading
import numpy as np
import ort_gpu_ep
from ort_gpu_ep.placement import chooser, proof

cpu_s = {"cpu": 1e-6, "gpu": 2.0}[sys.argv[3]]
proof.race = lambda runs, *given, **named: {name: cpu_s if name == "cpu" else 1.0 for name in runs}
chooser.FLOOR, chooser._timed = 0.0, lambda candidate, feeds: cpu_s

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

session = ort_gpu_ep.InferenceSession(sys.argv[1], provider_options={
    "placement": "auto", "adapter": "0", "cache_dir": sys.argv[2], "load": "off", "health": "off",
    "placement_budget_ms": {"cpu": 0, "gpu": 300}[sys.argv[3]]})        # 0: what is made of the model goes before anything is chosen
session.wait_ready()
session.run(None, {"h0": np.ones((1, 512), np.float32)})      # which finds out
assert session.get_providers()[0] == {"cpu": "CPUExecutionProvider", "gpu": "WgpuExecutionProvider"}[sys.argv[3]]
for thread in threading.enumerate():
    if thread.name == "ort_gpu_ep-heap":
        thread.join(60.0)
before = resident()
ctypes.CDLL(None).malloc_trim(0)
print(before - resident())
"""

needs_trim = pytest.mark.skipif(
    not sys.platform.startswith("linux") or heap._trim() is None, reason="a C library without malloc_trim"
)


@needs_trim
@pytest.mark.parametrize(
    ("program", "winner"), [(HELD, ""), (FOUND_OUT, "gpu"), (FOUND_OUT, "cpu")], ids=["gpu", "auto-gpu", "auto-cpu"]
)
def test_the_heap_holds_no_model(tmp_path: Path, program: str, winner: str) -> None:
    """100 weights of 1 MiB: without giving them back, glibc keeps 100 MiB."""
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.standard_normal((512, 512), np.float32) for k in range(100)}
    lines = " ".join(f"h{k + 1} = MatMul(h{k}, w{k})" for k in range(100))
    model = model_of(f"(float[1, 512] h0) => (float[1, 512] h100) {{ {lines} }}", weights)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "m.onnx"), str(tmp_path), winner],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 32


def test_a_small_model_leaves_the_heap_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = gives_back(monkeypatch)
    heap.give_back(heap.MIN_NBYTES - 1)
    heap.give_back_behind([], heap.MIN_NBYTES - 1)
    settled()
    assert calls == []
    heap.give_back(heap.MIN_NBYTES)
    assert calls == [0]


class Session:
    """Of onnxruntime's, for a weak reference."""


def settled() -> None:
    """Returns when no thread gives anything back."""
    for thread in threading.enumerate():
        if thread.name == "ort_gpu_ep-heap":
            thread.join(60.0)


def gives_back(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each time that it is done."""
    calls = list[int]()
    monkeypatch.setattr(heap, "_trim", lambda: calls.append)
    return calls


def test_what_the_last_run_still_uses_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, looks, session = gives_back(monkeypatch), threading.Semaphore(0), Session()
    monkeypatch.setattr(heap, "LAST_RUN_S", 600.0)
    monkeypatch.setattr(heap, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: looks.release()))
    heap.give_back_behind([weakref.ref(session)], heap.MIN_NBYTES)
    for _ in range(3):
        assert looks.acquire(timeout=60.0)
    assert calls == []
    del session
    settled()
    assert calls == [0]


def test_a_session_that_somebody_holds_is_not_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, session = gives_back(monkeypatch), Session()
    monkeypatch.setattr(heap, "LAST_RUN_S", 0.0)
    heap.give_back_behind([weakref.ref(session)], heap.MIN_NBYTES)
    settled()
    assert calls == [0]
