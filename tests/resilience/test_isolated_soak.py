"""The soak with a worker: threads, mixed models, random faults of every kind, those that end a process too.

SOAK_RUNS makes it longer, SOAK_SEED another one; `python -m tests.resilience.test_isolated_soak` runs it alone.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import psutil

import ort_gpu_ep
from ort_gpu_ep.drills.faults import KINDS as ALL_KINDS
from ort_gpu_ep.isolation import remote
from tests.resilience.soak import RUNS, model, session

KINDS = tuple(kind for kind in ALL_KINDS if kind != "leak")
"""A leak is seen after a while only: tests/isolation/test_worker_ends.py."""

SEED = int(os.environ.get("SOAK_SEED", "5"))
ROUND, THREADS = 240, 3
"""Runs of one worker's drill, in which each kind of fault comes once, and threads that share it."""
SEEN = {
    "abort": "SIGABRT",
    "segfault": "SIGSEGV",
    "hang": "DeviceHangError",
    "lost": "fault on purpose: lost",
    "oom": "OutOfDeviceMemoryError",
    "corrupt": "WrongResultError",
    "compile": "ShaderError",
}
"""What an event says of each kind."""
GROWTH_NBYTES = 48 << 20
"""Of this process, after the first round: arenas of ONNX Runtime's sessions and of the allocator; ten times the runs
may not need more."""


def drill(rng: random.Random) -> str:
    """Each kind at a random run of a round, `compile` at one of the first shaders, and some more of the harmless
    ones."""
    at = [f"{kind}@{rng.randint(1, 3) if kind == 'compile' else rng.randint(2, ROUND * 2 // 3)}" for kind in KINDS]
    return ",".join([*at, "oom~0.02", "corrupt~0.02"]) + f";seed={rng.randrange(10**6)}"


class Soak:
    """Rounds of runs that fail at random places. right, wrong: what the runs gave. seen: faults by kind, as the
    sessions told of them."""

    def __init__(self, seed: int) -> None:
        self.seed, self.right, self.wrong, self.seen, self.replaced = seed, 0, list[str](), Counter[str](), 0
        self._lock = threading.Lock()
        self._models = [model(kind) for kind in range(3)]
        self._cpu = [ort_gpu_ep.InferenceSession(m, providers=["CPUExecutionProvider"]) for m in self._models]

    def round(self, number: int, runs: int) -> None:
        faults = drill(random.Random(f"{self.seed}/{number}"))
        opened = [
            session(m, isolation="process", faults=faults, hang_timeout_ms=4000, health="off") for m in self._models
        ]
        gpu = opened[0].state.backend.adapter
        threads = [
            threading.Thread(target=self._thread, args=(opened, [self.seed, number, t], runs // THREADS))
            for t in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for event in (e for s in opened for e in list(s.state.events)):
            self.seen.update(kind for kind, text in SEEN.items() if text in event.message)
        self.replaced += gpu.generations - 1
        for key in [k for k, v in remote._open.items() if v is gpu]:
            del remote._open[key]

    def _thread(self, opened: list[Any], seed: list[int], runs: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(runs):
            kind = int(rng.integers(3))
            gpu = opened[kind].state.backend.adapter
            gpu.ensure()  # otherwise most runs would go to the CPU at once
            gpu.circuit.reset()
            x = rng.normal(size=(int(rng.integers(1, 4)) * 8, 16)).astype("f")
            (got,), (want,) = opened[kind].run(None, {"x": x}), self._cpu[kind].run(None, {"x": x})
            with self._lock:
                if np.allclose(got, want, rtol=2e-3, atol=2e-3):
                    self.right += 1
                else:
                    self.wrong.append(f"model {kind}: {np.abs(got - want).max()}")


def soak(seed: int, runs: int) -> tuple[Soak, int, int, float]:
    """(what happened, RSS after the first round, RSS at the end, seconds)."""
    made, start = Soak(seed), time.monotonic()
    before = 0
    for number, first in enumerate(range(0, runs, ROUND)):
        made.round(number, min(ROUND, runs - first))
        gc.collect()
        before = before or psutil.Process().memory_info().rss
    return made, before, psutil.Process().memory_info().rss, time.monotonic() - start


def test_soak_with_a_worker() -> None:
    runs = -(-RUNS // ROUND) * ROUND
    done, before, after, seconds = soak(SEED, runs)
    print(
        f"seed {SEED}: {runs} runs in {seconds / 60:.1f} min, {done.right} right, {len(done.wrong)} wrong, faults "
        f"{dict(done.seen)}, "
        f"{done.replaced} workers replaced, RSS {before >> 20} -> {after >> 20} MiB"
    )
    assert not done.wrong
    assert done.right == runs
    assert set(done.seen) == set(KINDS), done.seen
    assert done.replaced >= 4
    assert after - before < GROWTH_NBYTES
    assert not [p for p in psutil.Process().children() if "ort_gpu_ep.isolation.worker" in " ".join(p.cmdline())]


if __name__ == "__main__":
    test_soak_with_a_worker()
