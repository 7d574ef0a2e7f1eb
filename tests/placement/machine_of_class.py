"""Runs two models with placement=auto on an adapter that has the limits of a class of GPUs and, by its profile, the
rates of one: the machine's own adapter computes what the GPU is chosen for.

    python -m tests.placement.machine_of_class KIND CACHE

Prints a JSON list, for each model: the candidates of two runs, the decision after the first, its text. A run on the
CPU takes what that machine's CPU takes, not what this one does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime

import ort_gpu_ep as ort
from benchmarks.small_gpus import SMALL_GPUS, Machine
from ort_gpu_ep.calibration import cache as calibration
from ort_gpu_ep.device.adapter import hold_to
from ort_gpu_ep.device.classes import named
from ort_gpu_ep.placement import chooser, proof
from tests.unit.graphs import model_of

MODELS = ((1, 64, 2), (64, 512, 4))
"""Rows, and layers of so many columns: next to nothing, and 0.13 GFLOP."""


def chain(rows: int, columns: int, layers: int, rng: np.random.Generator) -> bytes:
    weights = {f"w{i}": rng.standard_normal((columns, columns)).astype("f") / columns**0.5 for i in range(layers)}
    names = ["x", *(f"v{i}" for i in range(1, layers)), "y"]
    body = " ".join(f"{names[i + 1]} = MatMul({names[i]}, w{i})" for i in range(layers))
    text = f"(float[{rows}, {columns}] x) => (float[{rows}, {columns}] y) {{ {body} }}"
    return bytes(model_of(text, weights).SerializeToString())


def takes(seconds: float) -> Callable[[Any, Any], float]:
    """A run on the CPU, said to take so long."""

    def timed(candidate: Any, feeds: Any) -> float:
        candidate.session.run(None, feeds)
        return seconds

    return timed


def evenly(profiled: Callable[..., proof.NodeProfile]) -> Callable[..., proof.NodeProfile]:
    """A profile of nodes of which all take as long: they are alike."""
    return lambda *given: replace(found := profiled(*given), seconds=dict.fromkeys(found.seconds, 1e-3))


def told(machine: Machine, shape: tuple[int, int, int], cache: str, rng: np.random.Generator) -> dict[str, Any]:
    rows, columns, layers = shape
    model, x = chain(*shape, rng), rng.standard_normal((rows, columns)).astype("f")
    chooser._timed = takes(2 * rows * columns**2 * layers / machine.cpu_flops_per_s)
    options = {"placement_budget_ms": "0", "health": "off", "load": "off", "cache_dir": cache}
    session = ort.InferenceSession(model, provider_options=options)
    assert session.wait_ready(300.0)
    (want,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    for run in range(2):
        (got,) = session.run(None, {"x": x})
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        if not run:  # decided; else the next run, which is measured, may be over before its candidate is there
            ((_, decision),) = session.explain().decisions
            answer = {**decision.as_dict(), "text": str(session.explain())}
            session.runner.candidates.get(decision.candidate)
    return {"used": sorted(session.stats()["runs_by_candidate"]), **answer}


def main(kind: str, cache: str) -> None:
    machine, rng = SMALL_GPUS[kind], np.random.default_rng()
    hold_to(named(kind))
    calibration.measure = lambda gpu, **how: replace(machine.profile, adapter=gpu.info.name)
    calibration.measure_roofs = lambda bench, wake_s: machine.roofs
    proof.node_profile = evenly(proof.node_profile)
    print(json.dumps([told(machine, shape, cache, rng) for shape in MODELS]))


if __name__ == "__main__":
    main(*sys.argv[1:])
