"""What a new process does before its first result when the caches are warm: it starts no other process and loads
nothing it has no use for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import first_result_process
from benchmarks.first_result import one
from benchmarks.first_result_process import GROUPS, PARTS, Clock
from tests import patience
from tests.unit.graphs import model_of

MODEL = "(float[4, 8] x) => (float[4, 8] y) { s = Softmax(x) y = Tanh(s) }"
PROGRAM = """
import json, sys
started = []
names = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.spawn", "os.system", "os.startfile")
sys.addaudithook(lambda event, arguments: started.append(event) if event in names else None)
import numpy as np
from ort_gpu_ep import InferenceSession
from ort_gpu_ep.health import open_adapter
from tests.unit.graphs import model_of
open_adapter.QUICK_S = 300.0
session = InferenceSession(model_of("MODEL").SerializeToString(), provider_options={"placement": "gpu"})
y = session.run(None, {"x": np.zeros((4, 8), "f")})[0]
print(json.dumps({"started": started, "modules": sorted(sys.modules), "y": y.tolist(), "cpu": session.explain().count("cpu")}))
""".replace("MODEL", MODEL)

NOT_NEEDED = (
    "wgpu",
    "cffi",
    "pycparser",
    "networkx",
    "psutil",
    "pynvml",
    "scipy",
    "rich",
    "typer",
    "matplotlib",
    "onnx.reference",
    "ort_gpu_ep.placement.runner",
    "ort_gpu_ep.calibration",
    "ort_gpu_ep.health.probes",
)


def first_result(cache: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"ORT_GPU_EP_CACHE_DIR": str(cache)},
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A first process, which fills the caches, and a second one."""
    cache = tmp_path_factory.mktemp("cache")
    return first_result(cache), first_result(cache)


def test_a_second_process_starts_no_process(processes: tuple[Any, Any]) -> None:
    first, second = processes
    # the first looks at the drivers, and probes the adapter, in processes of their own
    assert "subprocess.Popen" in first["started"]
    assert second["started"] == []
    assert (second["y"], second["cpu"]) == (first["y"], 0)


def test_a_second_process_loads_what_it_uses(processes: tuple[Any, Any]) -> None:
    loaded = set(processes[1]["modules"])
    assert {"numpy", "onnxruntime", "ort_gpu_ep.webgpu.objects", "_cffi_backend"} <= loaded
    assert [name for name in NOT_NEEDED if name in loaded] == []


def test_the_benchmark_splits_the_whole_into_its_parts(tmp_path: Path) -> None:
    """It fails where a function that it times has gone or is not called any more."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of(MODEL).SerializeToString())
    start = time.monotonic()
    found = one(path, {"x": ("float32", [4, 8])}, {"placement": "gpu"}, tmp_path / "cache")
    whole_s, parts_s = time.monotonic() - start, found["parts_s"]
    assert tuple(parts_s) == PARTS
    assert {part for part in PARTS if parts_s[part] <= 0} == set()
    assert sum(parts_s.values()) <= whole_s
    assert found["cpu_nodes"] == 0
    assert {part for parts in GROUPS.values() for part in parts} < set(PARTS)


def test_the_benchmarks_clock_gives_time_to_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    told = patience.Clock(monkeypatch, first_result_process)
    clock = Clock(told.now_s)
    told.rest(0.003)
    with clock.part("outer"):
        told.rest(0.02)
        clock.wrap(told.rest, "inner")(0.1)
        told.rest(0.01)
    assert clock.spent_s == pytest.approx({"rest": 0.003, "outer": 0.03, "inner": 0.1})


def test_a_session_that_begins_on_the_cpu_loads_nothing_that_makes_partitions(tmp_path: Path) -> None:
    """What a first result takes beyond onnxruntime's own is what is imported for it."""
    (tmp_path / "model.onnx").write_bytes(model_of(MODEL).SerializeToString())
    program = (
        "import sys; from ort_gpu_ep import InferenceSession; "
        "session = InferenceSession(sys.argv[1], provider_options={'adapter': '0'}); "
        "heavy = ('onnx.', 'ort_gpu_ep.ops', 'ort_gpu_ep.partitioner', 'ort_gpu_ep.scheduler', "
        "'ort_gpu_ep.plugin.factory'); "
        "print(session._start is not None, [m for m in list(sys.modules) if m.startswith(heavy)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model.onnx")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.splitlines()[-1] == "True []"
