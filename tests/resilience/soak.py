"""Threads that run mixed models on devices that fail at random; `python -m tests.resilience.soak` runs it in this
process.

SOAK_RUNS makes it longer. test_isolated_soak.py is the same with workers.
"""

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

import ort_gpu_ep
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.drills.faults import DEADLY
from ort_gpu_ep.drills.faults import KINDS as ALL_KINDS
from ort_gpu_ep.webgpu import objects, waiting
from tests.patience import brief_hangs, until
from tests.plugin.cases import info, island, make_model, node

GROWTH_NBYTES = 16 << 20
"""How much a soak may grow the process, however long it is: 5 runs of 150 end within 4 MiB of each other."""

KINDS = tuple(kind for kind in ALL_KINDS if kind not in DEADLY)
"""The others need a worker: test_isolated_soak.py."""

THREADS = 3
RUNS = int(os.environ.get("SOAK_RUNS", "300"))


def model(kind: int = 0) -> bytes:
    """0: a chain; 1: two partitions around a CPU node; 2: integers. All take x: [N, 16]."""
    rng = np.random.default_rng(kind)
    weights = {"W": rng.normal(size=(16, 16)).astype("f")}
    x = info("x", ["N", 16])
    if kind == 1:
        nodes = [node("MatMul", "t x", "a"), island("a", "b"), node("Tanh", "b", "y")]
        return make_model(
            [node("Transpose", "x", "t", perm=[1, 0]), *nodes[:1], node("Add", "a E", "s"), island("s", "b"), nodes[2]],
            [x],
            ["y"],
            {"E": 20 * np.eye(16, dtype="f")},
        )
    if kind == 2:
        return make_model([node("Abs", "x", "a"), node("ReduceSum", "a k", "y")], [x], ["y"], {"k": np.array([1])})
    return make_model(
        [node("MatMul", "x W", "h"), node("Relu", "h", "r"), node("Softmax", "r", "y")], [x], ["y"], weights
    )


def session(data: bytes, **options: object) -> Any:
    return ort_gpu_ep.InferenceSession(data, provider_options={"placement": "gpu", "verify": 1, **options})


class Soak:
    """Threads that run mixed models on devices that fail at random and come back; new sessions and devices every ten
    runs."""

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
            drill = f"{self.FAULTS};seed={self.seed + 1000 * number + first}"
            opened = session(self._models[kind], faults=drill)
            for _ in range(min(10, runs - first)):
                self.run(opened, kind, rng)
            opened.state.renewing.acquire()  # the last one is over: it would open the device again
            with self._lock:
                for name, count in opened.state.gpu.injected.items():
                    self.injected[name] += count
            Gpu._open.pop((opened.state.gpu.info.index, drill), None)
            Gpu._circuits.pop((opened.state.gpu.info.index, drill), None)

    def run(self, opened: Any, kind: int, rng: np.random.Generator) -> None:
        for circuit in (opened.state.gpu.circuit, *(partition.circuit for partition in opened.state.partitions)):
            circuit.reset()  # otherwise most runs would go to the CPU at once
        x = rng.normal(size=(int(rng.integers(1, 4)) * 8, 16)).astype("f")
        (got,), (want,) = opened.run(None, {"x": x}), self._cpu[kind].run(None, {"x": x})
        with self._lock:
            if np.allclose(got, want, rtol=2e-3, atol=2e-3):
                self.right += 1
            else:
                self.wrong.append(f"model {kind}: {np.abs(got - want).max()}")


def soak(seed: int, runs: int) -> Soak:
    made = Soak(seed)
    threads = [threading.Thread(target=made.thread, args=(n, runs // THREADS)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made._cpu.clear()  # they have threads
    return made


def held() -> tuple[int, int, int]:
    """Bytes, threads and wgpu-native's devices of this process, after what C libraries keep for later was given back.

    Threads that waited for a device and idle until the next one does are left out: there are as many as callers once
    waited at the same time, which is chance.
    """
    gc.collect()
    gc.collect()
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).malloc_trim(0)
    process, idle = psutil.Process(), len(waiting._idle)
    assert idle <= THREADS, idle
    return process.memory_info().rss, process.num_threads() - idle, objects.live()["Device"]


def main() -> None:
    """Prints what happened. Raises AssertionError for a result that is lost or wrong, and for what is still held at the
    end."""
    brief_hangs(pytest.MonkeyPatch())
    soak(1, max(90, RUNS // 3))  # the C library's heap reaches its size over the first thousands
    before, threads, devices = held()
    done = soak(2, RUNS)
    until(lambda: held()[1:] <= (threads, devices), "threads and devices gone")
    after, threads_after, devices_after = held()
    print(
        f"{done.right} right, {len(done.wrong)} wrong, injected {done.injected}, {before >> 20} -> {after >> 20} MiB, "
        f"{threads} -> {threads_after} threads, {devices} -> {devices_after} devices"
    )
    assert not done.wrong, done.wrong
    assert done.right == RUNS // THREADS * THREADS
    assert all(done.injected[kind] for kind in KINDS), done.injected
    assert threads_after <= threads
    assert devices_after <= devices
    assert after - before < GROWTH_NBYTES


if __name__ == "__main__":
    main()
