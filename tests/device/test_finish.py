"""Gpu.finish() returns when the GPU is done, not before."""

from __future__ import annotations

import time

import numpy as np

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu, native
from ort_gpu_ep.device.pipelines import bind_group_layout
from ort_gpu_ep.device.timing import Timer

LOOP = """
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var sum = y[id.x];
    for (var i = 0u; i < 4000u; i++) { sum = fma(sum, 0.5, 0.25); }
    y[id.x] = sum;
}
"""
GROUPS, TIMES = 1024, 5


def test_finish_waits_for_the_gpu() -> None:
    """From before the work is handed in to behind `finish`, the host's clock passes at least what the GPU's has counted of it."""
    gpu = Gpu.open(Config())
    layout, device = bind_group_layout(gpu, (True,)), gpu.device
    pipe = device.create_compute_pipeline("loop", device.create_pipeline_layout(layout), device.create_shader_module("loop", LOOP))
    buffer, timer = gpu.allocate(4 * 64 * GROUPS), Timer(gpu)
    zeros = np.zeros(64 * GROUPS, np.float32)
    gpu.upload(buffer, 0, zeros.ctypes.data, zeros.nbytes)
    group = device.create_bind_group("loop", layout, [(buffer.native, 0, zeros.nbytes)])
    for _ in range(TIMES):
        encoder = device.create_command_encoder("loop")
        compute = encoder.begin_compute_pass(timer.writes(0))
        native.dispatch(compute, pipe, group, (GROUPS, 1, 1))
        compute.end()
        timer.resolve(encoder)
        start = time.perf_counter()
        gpu.enqueue(native.finish(encoder))
        gpu.finish()
        waited_s = time.perf_counter() - start
        assert waited_s > 0.9 * timer.read_s()
    gpu.free(buffer)
