"""A real load, read by the real sampler, moves runs to the CPU. That they come back, and what sessions do:
tests/session/test_live_load.py."""

from __future__ import annotations

import os
import subprocess
import sys

from ort_gpu_ep.device.adapter import choose
from ort_gpu_ep.load import open_sampler
from ort_gpu_ep.placement.policy import Policy, slowdown
from tests.patience import until

IDLE_S = {"cpu": 15e-3, "gpu": 10e-3}
"""What the candidates take on an idle machine; under a load, what the policy expects: a real run says more about this
machine."""


def test_others_on_all_cores_move_runs_to_the_cpu() -> None:
    sampler, policy = open_sampler(choose("software")[0]), Policy(IDLE_S, 1, True)
    assert sampler is not None

    def moved() -> bool:
        load = sampler.latest
        candidate = policy.choose(load)
        policy.observe(candidate, IDLE_S[candidate] * slowdown(candidate, load, 1, True), load)
        return policy.current == "cpu"

    code = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(10**5))"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(sampler.latest.cores)]
    try:
        until(moved, "runs on the CPU")
    finally:
        for other in others:
            other.kill()
            other.wait()
    load = sampler.latest
    assert load.source == "CPU"
    assert load.gpu == load.cpu
    assert "at GPU load" in policy.why
