"""One dispatch of a WGSL module without a plan, for probes of a driver."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ort_gpu_ep.device.buffers import Buffer
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.pipelines import bind_group_layout, worked_around
from ort_gpu_ep.errors import ShaderError
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.library import GPUError


def run_wgsl(gpu: Gpu, label: str, source: str, inputs: Sequence[Array], output: Array, groups: int) -> Array:
    """What `main` of a module leaves in its output buffer.

    source: @group(0) binds the inputs (read) at 0.., then the output (read_write). output: its content before the
    dispatch. groups: workgroups in x. Sizes are multiples of 4 bytes. Raises: ShaderError, DeviceError.
    """
    written = (*(False for _ in inputs), True)
    layout, source = bind_group_layout(gpu, written), worked_around(gpu, label, source)
    try:
        pipeline = gpu.device.create_compute_pipeline(
            label, gpu.device.create_pipeline_layout(layout), gpu.device.create_shader_module(label, source)
        )
    except GPUError as error:
        raise ShaderError(f"{label} does not compile on {gpu.info.name}: {error}") from error
    buffers = [_filled(gpu, array) for array in (*inputs, output)]
    bindings = [(b.native, 0, a.nbytes) for b, a in zip(buffers, (*inputs, output), strict=True)]
    encoder = gpu.device.create_command_encoder(label)
    compute = encoder.begin_compute_pass()
    native.dispatch(compute, pipeline, gpu.device.create_bind_group(label, layout, bindings), (groups, 1, 1))
    compute.end()
    gpu.enqueue(native.finish(encoder))
    got = np.empty_like(output)
    gpu.download(buffers[-1], 0, got.ctypes.data, got.nbytes)
    for buffer in buffers:
        gpu.free(buffer)
    return got


def _filled(gpu: Gpu, array: Array) -> Buffer:
    data = np.ascontiguousarray(array)
    buffer = gpu.allocate(data.nbytes)
    gpu.upload(buffer, 0, data.ctypes.data, data.nbytes)
    return buffer
