"""What a new process does before its first result when the caches are warm: it starts no other process and loads nothing it has no use for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, sys
started = []
names = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.spawn", "os.system", "os.startfile")
sys.addaudithook(lambda event, arguments: started.append(event) if event in names else None)
import numpy as np
from ort_gpu_ep import InferenceSession
from tests.unit.graphs import model_of
model = model_of("(float[4, 8] x) => (float[4, 8] y) { s = Softmax(x) y = Tanh(s) }").SerializeToString()
session = InferenceSession(model, provider_options={"placement": "gpu"})
y = session.run(None, {"x": np.zeros((4, 8), "f")})[0]
print(json.dumps({"started": started, "modules": sorted(sys.modules), "y": y.tolist(), "cpu": session.explain().count("cpu")}))
"""

NOT_NEEDED = ("wgpu", "cffi", "pycparser", "networkx", "psutil", "pynvml", "scipy", "rich", "typer", "matplotlib",
              "onnx.reference", "ort_gpu_ep.placement.runner", "ort_gpu_ep.calibration", "ort_gpu_ep.health.probes")


def first_result(cache: Path) -> Any:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
                          env=os.environ | {"ORT_GPU_EP_CACHE_DIR": str(cache)})
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A first process, which fills the caches, and a second one."""
    cache = tmp_path_factory.mktemp("cache")
    return first_result(cache), first_result(cache)


def test_a_second_process_starts_no_process(processes: tuple[Any, Any]) -> None:
    first, second = processes
    assert "subprocess.Popen" in first["started"]     # the first looks at the drivers, and probes the adapter, in processes of their own
    assert second["started"] == []
    assert (second["y"], second["cpu"]) == (first["y"], 0)


def test_a_second_process_loads_what_it_uses(processes: tuple[Any, Any]) -> None:
    loaded = set(processes[1]["modules"])
    assert {"numpy", "onnxruntime", "ort_gpu_ep.device.objects", "_cffi_backend"} <= loaded
    assert [name for name in NOT_NEEDED if name in loaded] == []
