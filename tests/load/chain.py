"""A model for which two lavapipe threads beat one thread of onnxruntime, until another process takes one of the two cores.

Sines, cosines and hyperbolic functions of 131,072 numbers: one fused kernel on the GPU, op by op on the CPU. As a script, it runs both
sides through a Policy and a Sampler, bound to two cores, before, during and after such a load, and prints what happened as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

SIZE = 1 << 17
OPS = (*("Asinh", "Sinh") * 3, *("Sin", "Cos") * 8)
"""onnxruntime is slow at the first and quick at the others, lavapipe the other way round: together the GPU takes 0.6 to 0.8 of the time."""

PATIENCE_S = 10.0


def model() -> bytes:
    """y = cos(sin(... sinh(asinh(x))))."""
    from tests.unit.graphs import model_of

    names = ["x", *(f"t{i}" for i in range(len(OPS) - 1)), "y"]
    nodes = " ".join(f"{y} = {op}({x})" for op, x, y in zip(OPS, names, names[1:], strict=False))
    return bytes(model_of(f"(float[{SIZE}] x) => (float[{SIZE}] y) {{ {nodes} }}").SerializeToString())


def inputs() -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(3).standard_normal(SIZE).astype("f")}


def settings() -> Any:
    """One thread."""
    import onnxruntime

    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = made.inter_op_num_threads = 1
    made.log_severity_level = 4
    return made


def bind_to_two_cores() -> list[int]:
    """Binds this process, and lavapipe's threads, to two cores; before the driver is loaded."""
    two = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, two)
    os.environ["LP_NUM_THREADS"] = "2"
    return two


def wait_for_quiet(seconds: float = 15.0) -> None:
    """Until others leave the cores alone for half a second, or that long: other tests may be running."""
    from ort_gpu_ep.load.cpu import CpuLoad

    load, end = CpuLoad(), time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.5)
        if (load.read() or 0.0) < 0.1:
            break
    load.close()


@contextlib.contextmanager
def busy_core(core: int) -> Iterator[None]:
    """Three processes that compute on one core: a thread of ours there gets a quarter of it."""
    code = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile os.getppid() == {os.getpid()}:\n  sum(range(10**5))"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    try:
        time.sleep(0.3)
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


class Experiment:
    """Two sessions, a policy and a sampler."""

    def __init__(self) -> None:
        import onnxruntime

        import ort_gpu_ep as ort
        from ort_gpu_ep.device.adapter import choose
        from ort_gpu_ep.load import open_sampler
        from ort_gpu_ep.placement.policy import Policy

        cpu = onnxruntime.InferenceSession(model(), settings(), providers=["CPUExecutionProvider"])
        gpu = ort.InferenceSession(model(), settings(), provider_options={"placement": "gpu", "adapter": "software", "health": "off"})
        feeds = inputs()
        self.candidates: dict[str, Callable[[], Any]] = {"cpu": lambda: cpu.run(None, feeds), "gpu": lambda: gpu.run(None, feeds)}
        idle_s = {candidate: min(self.timed(candidate) for _ in range(12)) for candidate in self.candidates}
        self.difference = float(np.abs(self.candidates["cpu"]()[0] - self.candidates["gpu"]()[0]).max())
        sampler = open_sampler(choose("software")[0])
        assert sampler is not None
        self.sampler, self.policy = sampler, Policy(idle_s, threads=1, software=True)

    def timed(self, candidate: str) -> float:
        start = time.perf_counter()
        self.candidates[candidate]()
        return time.perf_counter() - start

    def run(self) -> str:
        load = self.sampler.latest
        candidate = self.policy.choose(load)
        self.policy.observe(candidate, self.timed(candidate), load)
        return candidate

    def phase(self, wanted: str) -> dict[str, Any]:
        """Runs until the policy has kept to the wanted candidate for a second, or for PATIENCE_S; then times both candidates in turn."""
        start, since, ran = time.monotonic(), time.monotonic(), Counter[str]()
        while time.monotonic() - start < PATIENCE_S:
            ran[self.run()] += 1
            if self.policy.current != wanted:
                since = time.monotonic()
            if time.monotonic() - since > 1.0 and self.sampler.latest.gpu is not None:
                break
        reached, load = self.policy.current, self.sampler.latest
        both = {candidate: median(self.timed(candidate) * 1e3 for _ in range(11)) for candidate in self.candidates}
        return {"reached": reached, "after_s": since - start, "runs": ran, "load": load.as_dict(), "median_ms": both}


def main() -> None:
    two = bind_to_two_cores()
    wait_for_quiet()
    experiment = Experiment()
    before = experiment.phase("gpu")
    with busy_core(two[1]):
        during = experiment.phase("cpu")
    after = experiment.phase("gpu")
    print(json.dumps({"before": before, "during": during, "after": after, "difference": experiment.difference,
                      "policy": experiment.policy.as_dict()}))


if __name__ == "__main__":
    main()
