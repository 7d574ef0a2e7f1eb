"""Dispatches of a chosen length, timed, on a device of their own: for load/probe.py and busy.py."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.device.single import Single

_SOURCE = """
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var y = x[id.x] + id.x;
    for (var k = 0u; k < ITERATIONS; k++) { y = y * 1664525u + 1013904223u; }
    x[id.x] = y;
}
"""
"""A chain of dependent multiply-adds (the generator of Numerical Recipes) that no compiler shortens."""

TINY = 256
"""Loop iterations of a probe's one workgroup, some microseconds: too little to slow anybody, enough to be queued behind
others."""


class TimedDispatch:
    """Calling it submits dispatches to a device of its own, so that it waits for others' work and for no lock of ours.

    groups, iterations: workgroups of 64 of each dispatch, and the length of each invocation's loop.

    Raises: AdapterError, where the driver gives no device; what the driver raises.
    """

    def __init__(self, info: AdapterInfo, groups: int = 1, iterations: int = TINY) -> None:
        self._groups = groups
        self._single = Single(
            info, "timed dispatch", _SOURCE.replace("ITERATIONS", f"{iterations}u"), np.zeros(64 * groups, np.uint32)
        )

    def __call__(self, dispatches: int = 1) -> float:
        """Seconds from submission to the result on the host."""
        return self._single.run(self._groups, dispatches, 4)[1]

    def close(self) -> None:
        """Gives the device back."""
        self._single.close()


class LazyTimedDispatch:
    """The same, whose device is made by the first call: an adapter with a better source needs none."""

    def __init__(self, info: AdapterInfo) -> None:
        self._info = info
        self._dispatch: TimedDispatch | None = None

    def __call__(self) -> float:
        if self._dispatch is None:
            self._dispatch = TimedDispatch(self._info)
        return self._dispatch()
