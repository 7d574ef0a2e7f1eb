"""A real load, read by the real sampler, moves runs to the CPU. That they come back, and what sessions do:
tests/session/test_live_load.py."""

from __future__ import annotations

import os
import subprocess
import sys

from ort_gpu_ep.device.adapter import choose
from ort_gpu_ep.load import open_sampler
from ort_gpu_ep.placement.decider import Decider, Host
from ort_gpu_ep.utilization import Uses
from tests.patience import until

IDLE_S = {"cpu": 15e-3, "gpu": 10e-3}
"""What the candidates take on an idle machine; under a load, what the policy expects: a real run says more about this
machine."""


def test_others_on_all_cores_move_runs_to_the_cpu() -> None:
    sampler, decider = (
        open_sampler(choose("software")[0]),
        Decider(Uses(sleeps=False), 0.0, Host(1, 1, software=True, watched=True)),
    )
    assert sampler is not None
    entry = decider.entry("a size", lambda: 1.0)
    for name, seconds in IDLE_S.items():
        decider.teach(entry.size, name, seconds, 3, 0.0)
        entry.seen[name] = 1

    def moved() -> bool:
        load = sampler.latest
        turn = decider.begin(entry, decider.choose(entry, 0.0, load), 0.0, load)
        decider.end(turn, IDLE_S[turn.name] * decider.host.slowdown(turn.name, load), 0.0)
        return entry.choice == "cpu"

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
    assert "at GPU load" in entry.place.why
