"""Gpu.finish() returns when the GPU is done, not before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx

from models import build
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.device.pipelines import bind_group_layout
from ort_gpu_ep.device.timing import Timer
from ort_gpu_ep.webgpu import native

ROOT = Path(__file__).resolve().parents[2]

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
    """From before the work is handed in to behind `finish`, the host's clock passes at least what the GPU's has counted
    of it."""
    gpu = Gpu.open(Config())
    layout, device = bind_group_layout(gpu, (True,)), gpu.device
    pipe = device.create_compute_pipeline(
        "loop", device.create_pipeline_layout(layout), device.create_shader_module("loop", LOOP)
    )
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


def test_a_process_that_ends_leaves_no_driver_at_work(tmp_path: Path) -> None:
    """llvmpipe compiles what a session submits when it is opened on a thread of its own, here for a second: a process
    that ended meanwhile crashed.
    """
    onnx.save(build("squeezenet1_1"), tmp_path / "model.onnx")
    code = (
        "import ort_gpu_ep\nsession = ort_gpu_ep.InferenceSession('model.onnx', provider_options={'placement': "
        "'gpu'})\nprint('made')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MESA_SHADER_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert (done.returncode, done.stdout) == (0, "made\n"), done.stderr
