"""Dispatches of a chosen length, timed, on a device of their own: for load/probe.py and for the load that busy.py makes."""

from __future__ import annotations

import time

import numpy as np
import wgpu

from ort_gpu_ep.device.adapter import choose, request_device
from ort_gpu_ep.device.info import AdapterInfo

_SOURCE = """
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var y = x[id.x] + id.x;
    for (var k = 0u; k < TURNS; k++) { y = y * 1664525u + 1013904223u; }
    x[id.x] = y;
}
"""
"""A chain of dependent multiply-adds (the generator of Numerical Recipes) that no compiler shortens."""

TINY = 256
"""Turns of a probe's one workgroup, some microseconds: too little to slow anybody, enough to be queued behind others."""


class Pulse:
    """Calling it submits dispatches to a device of its own, so that it waits for others' work and for no lock of ours.

    groups, turns: workgroups of 64 of each dispatch, and the length of each invocation's loop.

    Raises: AdapterError, where the driver gives no device; what the driver raises.
    """

    def __init__(self, info: AdapterInfo, groups: int = 1, turns: int = TINY) -> None:
        self._groups = groups
        self._device = request_device(info, choose(str(info.index))[1])
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        self._buffer = self._device.create_buffer_with_data(label="pulse", data=np.zeros(64 * groups, np.uint32), usage=usage)
        module = self._device.create_shader_module(label="pulse", code=_SOURCE.replace("TURNS", f"{turns}u"))
        self._pipeline = self._device.create_compute_pipeline(
            label="pulse", layout="auto", compute={"module": module, "entry_point": "main"})
        self._group = self._device.create_bind_group(label="pulse", layout=self._pipeline.get_bind_group_layout(0), entries=[
            {"binding": 0, "resource": {"buffer": self._buffer, "offset": 0, "size": self._buffer.size}}])

    def __call__(self, dispatches: int = 1) -> float:
        """Seconds from submission to the result on the host."""
        encoder = self._device.create_command_encoder(label="pulse")
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(self._pipeline)
        compute.set_bind_group(0, self._group)
        for _ in range(dispatches):
            compute.dispatch_workgroups(self._groups)
        compute.end()
        commands, start = encoder.finish(), time.perf_counter()
        self._device.queue.submit([commands])
        self._device.queue.read_buffer(self._buffer, 0, 4)
        return time.perf_counter() - start

    def close(self) -> None:
        """Gives the device back."""
        self._device.destroy()


class LazyPulse:
    """The same, whose device is made by the first call: an adapter with a better source needs none."""

    def __init__(self, info: AdapterInfo) -> None:
        self._info = info
        self._pulse: Pulse | None = None

    def __call__(self) -> float:
        if self._pulse is None:
            self._pulse = Pulse(self._info)
        return self._pulse()
