"""A tiny checked kernel on a fresh device: does the adapter work at all?"""

from __future__ import annotations

import numpy as np
import wgpu

from ort_gpu_ep.device.adapter import choose, request_device
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.errors import WrongResultError

_COUNT = 256
_SOURCE = """
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) { x[id.x] = x[id.x] * 3u + id.x; }
"""


def probe(info: AdapterInfo) -> None:
    """y = 3 x + i on 256 integers. Raises AdapterError, what the driver raises, or WrongResultError."""
    device = request_device(info, choose(str(info.index))[1])
    try:
        x = np.random.default_rng().integers(0, 1 << 30, _COUNT).astype(np.uint32)
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        buffer = device.create_buffer_with_data(label="probe", data=x, usage=usage)
        module = device.create_shader_module(label="probe", code=_SOURCE)
        pipeline = device.create_compute_pipeline(label="probe", layout="auto", compute={"module": module, "entry_point": "main"})
        group = device.create_bind_group(label="probe", layout=pipeline.get_bind_group_layout(0), entries=[
            {"binding": 0, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}])
        encoder = device.create_command_encoder(label="probe")
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(_COUNT // 64)
        compute.end()
        device.queue.submit([encoder.finish()])
        got = np.frombuffer(device.queue.read_buffer(buffer), np.uint32)
        want = x * np.uint32(3) + np.arange(_COUNT, dtype=np.uint32)
        if not np.array_equal(got, want):
            wrong = int(np.sum(got != want))
            raise WrongResultError(f"{info.name}: the probe gave {wrong} of {_COUNT} values wrong. Update the driver or use placement=cpu.")
    finally:
        device.destroy()
