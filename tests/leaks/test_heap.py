"""Behind a session no memory stays that only reading its model took."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


@pytest.mark.skipif(not sys.platform.startswith("linux") or heap._trim() is None, reason="a C library without malloc_trim")
def test_the_heap_holds_no_model(tmp_path: Path) -> None:
    """8 weights of 12 MiB: without giving them back, glibc keeps more than 90 MiB."""
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.standard_normal((1774, 1774), np.float32) for k in range(8)}
    lines = " ".join(f"h{k + 1} = MatMul(h{k}, w{k})" for k in range(8))
    model = model_of(f"(float[1, 1774] h0) => (float[1, 1774] h8) {{ {lines} }}", weights)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    done = subprocess.run([sys.executable, "-c", HELD, str(tmp_path / "m.onnx")], capture_output=True, text=True, cwd=ROOT, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 32


def test_a_small_model_leaves_the_heap_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(heap, "_trim", lambda: calls.append)
    heap.give_back(heap.MIN_NBYTES - 1)
    assert calls == []
    heap.give_back(heap.MIN_NBYTES)
    assert calls == [0]
