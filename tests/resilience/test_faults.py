"""Faults on purpose: each kind alone, strict or not, and a soak of all of them with threads. ORT_GPU_EP_SOAK_RUNS makes it longer."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from typing import Any

import numpy as np
import psutil
import pytest
import wgpu

import ort_gpu_ep
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.device.adapter import adapters
from ort_gpu_ep.device.faults import DEADLY, FaultyGpu, parse_faults
from ort_gpu_ep.device.faults import KINDS as ALL_KINDS
from ort_gpu_ep.device.probe import probe
from ort_gpu_ep.errors import ConfigError, DeviceHangError, DeviceLostError, OutOfDeviceMemoryError, ShaderError, WrongResultError
from ort_gpu_ep.plugin.verification import compare
from tests.plugin.cases import assert_close, info, island, make_model, node, reference

ERRORS = {
    "lost": DeviceLostError, "hang": DeviceHangError, "oom": OutOfDeviceMemoryError, "corrupt": WrongResultError,
    "compile": ShaderError}
GROWTH_NBYTES = 16 << 20
"""How much a soak may grow the process, however long it is: 5 runs of 150 end within 4 MiB of each other."""
KINDS = tuple(kind for kind in ALL_KINDS if kind not in DEADLY)
"""The others need a worker: test_isolated_soak.py."""
RUNS = int(os.environ.get("ORT_GPU_EP_SOAK_RUNS", "300"))


def model(kind: int = 0) -> bytes:
    """0: a chain; 1: two partitions around a CPU node; 2: integers. All take x: [N, 16]."""
    rng = np.random.default_rng(kind)
    weights = {"W": rng.normal(size=(16, 16)).astype("f")}
    x = info("x", ["N", 16])
    if kind == 1:
        nodes = [node("MatMul", "t x", "a"), island("a", "b"), node("Tanh", "b", "y")]
        return make_model([node("Transpose", "x", "t", perm=[1, 0]), *nodes[:1], node("Add", "a E", "s"), island("s", "b"), nodes[2]],
                          [x], ["y"], {"E": 20 * np.eye(16, dtype="f")})
    if kind == 2:
        return make_model([node("Abs", "x", "a"), node("ReduceSum", "a k", "y")], [x], ["y"], {"k": np.array([1])})
    return make_model([node("MatMul", "x W", "h"), node("Relu", "h", "r"), node("Softmax", "r", "y")], [x], ["y"], weights)


def session(data: bytes, **options: object) -> Any:
    return ort_gpu_ep.InferenceSession(data, provider_options={"placement": "gpu", "verify": 1, "hang_timeout_ms": 300, **options})


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_is_answered_by_the_cpu(kind: str, rng: np.random.Generator) -> None:
    opened = session(model(), faults=f"{kind}@{1 if kind == 'compile' else 2};seed=1")
    for _ in range(4):
        x = rng.normal(size=(3, 16)).astype("f")
        assert_close(opened.run(None, {"x": x}), reference(model(), x=x))
    gpu = opened._state.gpu
    assert isinstance(gpu, FaultyGpu)
    assert gpu.injected[kind] == 1
    assert any(ERRORS[kind].__name__ in event for event in opened.explain().events)
    assert gpu.circuit.state == ("open" if kind in ("lost", "hang", "corrupt") else "closed")
    assert bool(gpu.lost) == (kind in ("lost", "hang"))
    assert opened.stats()["fallbacks"] >= 1


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "compile"])
def test_each_fault_raises_in_strict_mode(kind: str, rng: np.random.Generator) -> None:
    opened = session(model(), faults=f"{kind}@2;seed=2", strict=1)
    x = rng.normal(size=(3, 16)).astype("f")
    assert_close(opened.run(None, {"x": x}), reference(model(), x=x))
    with pytest.raises(ERRORS[kind]):
        opened.run(None, {"x": x})


def test_the_gpu_is_used_again_after_the_probe(rng: np.random.Generator) -> None:
    opened = session(model(), faults="corrupt@1;seed=3")
    x = rng.normal(size=(3, 16)).astype("f")
    opened.run(None, {"x": x})
    gpu = opened._state.gpu
    assert isinstance(gpu, FaultyGpu)
    opened.run(None, {"x": x})
    assert gpu.runs == 1
    gpu.circuit._clock = lambda: 1e12
    gpu.circuit._start = lambda work: work()
    assert_close(opened.run(None, {"x": x}), reference(model(), x=x))
    assert gpu.runs == 2


def test_a_new_session_gets_a_new_device_after_a_loss(rng: np.random.Generator) -> None:
    config = Config(faults="lost@1;seed=4")
    opened = session(model(), faults=config.faults)
    opened.run(None, {"x": rng.normal(size=(3, 16)).astype("f")})
    assert opened._state.gpu.lost
    assert not Gpu.open(config).lost


def test_slow_answers_and_only_slows(rng: np.random.Generator) -> None:
    opened = session(model(), faults="slow@3x", verify=0)
    x = rng.normal(size=(3, 16)).astype("f")
    assert_close(opened.run(None, {"x": x}), reference(model(), x=x))
    assert opened.stats()["fallbacks"] == 0


def test_the_probe_passes_on_a_working_adapter() -> None:
    probe(adapters()[0])


@pytest.mark.parametrize("text", ["lost", "lost@0", "explode@1", "slow@2", "lost@1;speed=3", "hang~2"])
def test_a_wrong_switch_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="option faults="):
        parse_faults(text)


@pytest.mark.parametrize(("got", "want", "ok"), [
    ([1.0, 2.0], [1.0, 2.0001], True), ([1.0, 2.0], [1.0, 2.1], False), ([np.nan, 1.0], [np.nan, 1.0], True),
    ([np.nan, 1.0], [0.0, 1.0], False), ([np.inf], [np.inf], True), ([np.inf], [-np.inf], False), ([1.0], [np.nan], False)])
def test_what_counts_as_wrong(got: list[float], want: list[float], ok: bool) -> None:
    arrays = np.array(got, "f"), np.array(want, "f")
    if ok:
        compare("y", *arrays)
    else:
        with pytest.raises(WrongResultError, match="1 of"):
            compare("y", *arrays)


class Soak:
    """Threads that run mixed models on devices that fail at random and come back; new sessions and devices every ten runs."""

    FAULTS = "lost~0.02,hang~0.01,corrupt~0.05,oom~0.05,compile~0.05"

    def __init__(self, seed: int) -> None:
        self.seed, self.right, self.wrong = seed, 0, list[str]()
        self.injected = dict.fromkeys(ALL_KINDS, 0)
        self._lock = threading.Lock()
        self._models = [model(kind) for kind in range(3)]
        self._cpu = [ort_gpu_ep.InferenceSession(m, providers=["CPUExecutionProvider"]) for m in self._models]

    def thread(self, number: int, runs: int) -> None:
        rng = np.random.default_rng([self.seed, number])
        for first in range(0, runs, 10):
            kind = int(rng.integers(3))
            faults = f"{self.FAULTS};seed={self.seed + 1000 * number + first}"
            opened = session(self._models[kind], faults=faults, hang_timeout_ms=100)
            for _ in range(min(10, runs - first)):
                self.run(opened, kind, rng)
            opened._state.renewing.acquire()      # the last one is over: it would open the device again
            with self._lock:
                for name, count in opened._state.gpu.injected.items():
                    self.injected[name] += count
            Gpu._open.pop((opened._state.gpu.info.index, faults), None)
            Gpu._circuits.pop((opened._state.gpu.info.index, faults), None)

    def run(self, opened: Any, kind: int, rng: np.random.Generator) -> None:
        opened._state.gpu.circuit.reset()   # otherwise most runs would go to the CPU at once
        x = rng.normal(size=(int(rng.integers(1, 4)) * 8, 16)).astype("f")
        (got,), (want,) = opened.run(None, {"x": x}), self._cpu[kind].run(None, {"x": x})
        with self._lock:
            if np.allclose(got, want, rtol=2e-3, atol=2e-3):
                self.right += 1
            else:
                self.wrong.append(f"model {kind}: {np.abs(got - want).max()}")


def soak(seed: int, runs: int) -> Soak:
    made = Soak(seed)
    threads = [threading.Thread(target=made.thread, args=(n, runs // 3)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made._cpu.clear()     # they have threads
    return made


def held() -> tuple[int, int, int]:
    """Bytes, threads and wgpu-native's devices of this process, after what C libraries keep for later was given back."""
    gc.collect()
    gc.collect()
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).malloc_trim(0)
    process = psutil.Process()
    return process.memory_info().rss, process.num_threads(), wgpu.diagnostics.wgpu_native_counts.get_dict()["Device"]["count"]


def test_soak() -> None:
    soak(1, max(90, RUNS // 3))      # the C library's heap reaches its size over the first thousands
    before, threads, devices = held()
    done = soak(2, RUNS)
    after, threads_after, devices_after = held()
    print(f"{done.right} right, {len(done.wrong)} wrong, injected {done.injected}, {(after - before) >> 20} MiB grown")
    assert not done.wrong
    assert done.right == RUNS // 3 * 3
    assert all(done.injected[kind] for kind in KINDS), done.injected
    assert (threads_after, devices_after) <= (threads, devices)
    assert after - before < GROWTH_NBYTES
