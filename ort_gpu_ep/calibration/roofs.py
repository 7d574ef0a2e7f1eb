"""The most that an adapter does: multiply-adds in registers, and bytes in a plain copy. What kernels are compared with."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from ort_gpu_ep.device import Buffer, Gpu, native
from ort_gpu_ep.device.library import GPUError
from ort_gpu_ep.device.pipelines import bind_group_layout
from ort_gpu_ep.device.timing import Timer
from ort_gpu_ep.errors import OutOfDeviceMemoryError, ShaderError

LONG_S = 2e-3
"""A measurement that takes as long is long enough: launching takes some microseconds of it."""

REPEATS = 5

_LANES, _CHAINS, _UNROLLED = 64, 8, 4
_FMA_GROUPS = 4096
_STEPS = tuple(16 << 2 * k for k in range(6))
_FLOPS_PER_STEP = _FMA_GROUPS * _LANES * _CHAINS * _UNROLLED * 4 * 2

_FMA = f"""
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@compute @workgroup_size({_LANES}) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let a = x[0];
    let b = x[1];
    let steps = u32(x[2].x);
    {" ".join(f"var c{k} = a * f32(id.x + {k}u);" for k in range(_CHAINS))}
    for (var i = 0u; i < steps; i++) {{
        {" ".join(f"c{k} = fma(c{k}, a, b);" for _ in range(_UNROLLED) for k in range(_CHAINS))}
    }}
    y[id.x] = {" + ".join(f"c{k}" for k in range(_CHAINS))};
}}
"""
"""Chains of multiply-adds that don't wait for each other: 32 registers an invocation."""

_PIECES, _COPY_LANES = 4, 256

_COPY = f"""
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@compute @workgroup_size({_COPY_LANES})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    let i = group.x * {_PIECES * _COPY_LANES}u + lane;
    {" ".join(f"y[i + {k * _COPY_LANES}u] = x[i + {k * _COPY_LANES}u];" for k in range(_PIECES))}
}}
"""
_COPIED_NBYTES = (16 << 20, 64 << 20, 256 << 20)
_GROUP_NBYTES = 16 * _PIECES * _COPY_LANES


def measure_roofs(gpu: Gpu, timer: Timer | None) -> tuple[float, float]:
    """(floating-point operations, bytes read and written) a second, float32. By the GPU's clock where there is a timer.

    0 where it can't be measured. Raises DeviceError, ShaderError.
    """
    return _flops_per_s(gpu, timer), _nbytes_per_s(gpu, timer)


def _flops_per_s(gpu: Gpu, timer: Timer | None) -> float:
    pipe = _pipeline(gpu, "fma", _FMA)
    x, y = gpu.allocate(48), gpu.allocate(16 * _LANES * _FMA_GROUPS)
    try:
        for steps in _STEPS:
            data = np.array([[0.5] * 4, [0.25] * 4, [steps] * 4], np.float32)
            gpu.upload(x, 0, data.ctypes.data, data.nbytes)
            taken_s = _least_s(gpu, timer, pipe, (x, 48), (y, 16 * _LANES * _FMA_GROUPS), _FMA_GROUPS)
            if taken_s > LONG_S:
                break
        return steps * _FLOPS_PER_STEP / taken_s if taken_s > 0 else 0.0
    finally:
        gpu.free(x)
        gpu.free(y)


def _nbytes_per_s(gpu: Gpu, timer: Timer | None) -> float:
    """Of the largest copy, which no cache holds: as large as bindings and memory allow, or long enough."""
    pipe, found = _pipeline(gpu, "copy", _COPY), 0.0
    most = min(gpu.limits.max_binding_nbytes, gpu.limits.max_buffer_nbytes, _GROUP_NBYTES * gpu.limits.max_groups_per_dimension)
    for nbytes in _COPIED_NBYTES:
        buffers: list[Buffer] = []
        with suppress(OutOfDeviceMemoryError):      # a smaller one does
            try:
                if nbytes > most:
                    break
                buffers = [gpu.allocate(nbytes) for _ in range(2)]
                taken_s = _least_s(gpu, timer, pipe, (buffers[0], nbytes), (buffers[1], nbytes), nbytes // _GROUP_NBYTES)
                found = 2 * nbytes / taken_s if taken_s > 0 else found
                if taken_s > LONG_S:
                    break
            finally:
                for buffer in buffers:
                    gpu.free(buffer)
    return found


def _pipeline(gpu: Gpu, label: str, source: str) -> Any:
    device = gpu.device
    try:
        module = native.trusted_module(device, label, source)
        return device.create_compute_pipeline(label, device.create_pipeline_layout(bind_group_layout(gpu, (False, True))), module)
    except GPUError as error:
        raise ShaderError(f"calibration/{label} does not compile on {gpu.info.name}: {error}") from error


def _least_s(gpu: Gpu, timer: Timer | None, pipe: Any, x: tuple[Buffer, int], y: tuple[Buffer, int], groups: int) -> float:
    """The least of some runs, of long ones few; the first does not count: memory may be made for it."""
    group = gpu.device.create_bind_group("roof", bind_group_layout(gpu, (False, True)), [(b.native, 0, nbytes) for b, nbytes in (x, y)])
    _once(gpu, timer, pipe, group, groups)
    taken = [_once(gpu, timer, pipe, group, groups) for _ in range(2)]
    while len(taken) < REPEATS and taken[-1] < 10 * LONG_S:
        taken.append(_once(gpu, timer, pipe, group, groups))
    return min(taken)


def _once(gpu: Gpu, timer: Timer | None, pipe: Any, group: Any, groups: int) -> float:
    try:
        encoder = gpu.device.create_command_encoder("roof")
        compute = encoder.begin_compute_pass(timer.writes(0) if timer is not None else None)
        native.dispatch(compute, pipe, group, (groups, 1, 1))
        compute.end()
        if timer is not None:
            timer.resolve(encoder)
        commands = native.finish(encoder)
    except GPUError as error:
        raise gpu.failure(error, "a recording of a roof") from error
    gpu.enqueue(commands)
    waited_s = _time(gpu.finish)
    read_s = timer.read_s() if timer is not None else 0.0
    return read_s if 0 < read_s <= waited_s else waited_s


def _time(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
