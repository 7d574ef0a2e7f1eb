"""Timestamps, and dispatches that take long."""

from __future__ import annotations

import time

import numpy as np

from ort_gpu_ep.device.timing import start_timing
from ort_gpu_ep.errors import DeviceError
from ort_gpu_ep.health.probe import Trial, Unsupported, agree, probe
from ort_gpu_ep.ir.graph import Array

STOPPED_CLOCK = "timestamps stand still"


@probe("timestamps", "timing", disables=("timestamp-query", "timestamp-query-inside-passes"), fault=STOPPED_CLOCK)
def timestamps(trial: Trial) -> str:
    """A timed product takes more than nothing and less than the host waited."""
    gpu = trial.gpu
    if not start_timing(gpu) or gpu.timer is None:
        raise Unsupported("the adapter has no timestamp-query")
    try:
        start = time.perf_counter()
        trial.node("MatMul", 13, [trial.normal(67, 129), trial.normal(129, 35)])  # as "matrix product"
        waited = time.perf_counter() - start
        seconds = 0.0 if trial.planted == STOPPED_CLOCK else gpu.timer.read_s()
    finally:
        gpu.timer = None
    if not 0 < seconds < waited:
        raise DeviceError(
            f"a pass took {seconds * 1e3:.3f} ms by its timestamps, the host waited {waited * 1e3:.3f} ms"
        )
    return f"{seconds * 1e3:.2f} ms"


_STEPS = 16

_LONG = """
@group(0) @binding(0) var<storage, read> iterations: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var x = id.x + 1u;
    for (var k = 0u; k < iterations[0]; k++) {
        STEPS
    }
    out[id.x] = x;
}
""".replace("STEPS", "x = x * 1664525u + 1013904223u; " * _STEPS)

ITERATIONS = 60_000
"""Mesa's llvmpipe ends an invocation's loops after 65,535 iterations, all of them together."""
ENOUGH_S = 0.1


@probe("long dispatches", "timing", fault=(r"k < iterations\[0\]", "iterations[0] > 0u"), timeout_s=10.0)
def long_dispatches(trial: Trial) -> str:
    """Long loops in more and more workgroups, until a dispatch takes 0.1 s: a driver that stops them early is found by
    the result, one that hangs by the time limit."""
    groups, seconds = 1, 0.0
    while seconds < ENOUGH_S and groups <= 4096:
        start = time.perf_counter()
        got = trial.wgsl("long", _LONG, [np.array([ITERATIONS], np.uint32)], ("uint32", 64 * groups), groups)
        seconds = time.perf_counter() - start
        agree(f"{ITERATIONS} iterations in {groups} workgroups", got, _expected(ITERATIONS * _STEPS, 64 * groups))
        groups *= 4
    return f"{seconds * 1e3:.0f} ms"


def _expected(steps: int, count: int) -> Array:
    """The generators' states after `steps`, by repeated squaring of the step x -> a x + c."""
    a, c, total_a, total_c, mask = 1664525, 1013904223, 1, 0, (1 << 32) - 1
    while steps:
        if steps & 1:
            total_a, total_c = total_a * a & mask, (total_c * a + c) & mask
        a, c, steps = a * a & mask, (a + 1) * c & mask, steps >> 1
    return (np.arange(1, count + 1, dtype=np.uint64) * total_a + total_c & mask).astype(np.uint32)
