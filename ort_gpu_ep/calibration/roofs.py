"""Peak rates of an adapter, measured: multiply-adds in registers, and bytes of a copy. The roofline of a profile."""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np

from ort_gpu_ep.device import Buffer, Gpu, native
from ort_gpu_ep.device.library import GPUError
from ort_gpu_ep.device.pipelines import bind_group_layout
from ort_gpu_ep.device.timing import Timer
from ort_gpu_ep.errors import OutOfDeviceMemoryError, ShaderError
from ort_gpu_ep.ir.graph import Array

LONG_S = 2e-3
"""A measurement that takes as long is long enough: launching takes some microseconds of it."""

REPEATS = 5

_WORKGROUP_SIZE, _CHAINS, _UNROLLED = 64, 8, 4
_FMA_GROUPS = 4096
_STEPS = tuple(8 << 2 * k for k in range(7))
_FLOPS_PER_STEP = _FMA_GROUPS * _WORKGROUP_SIZE * _CHAINS * _UNROLLED * 4 * 2

_FMA = f"""
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@compute @workgroup_size({_WORKGROUP_SIZE}) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let a = x[0];
    let b = x[1];
    let steps = u32(x[2].x);
    {" ".join(f"var c{k} = a * f32((id.x & 63u) + {k}u);" for k in range(_CHAINS))}
    for (var i = 0u; i < steps; i++) {{
        {" ".join(f"c{k} = fma(c{k}, a, b);" for _ in range(_UNROLLED) for k in range(_CHAINS))}
    }}
    y[id.x] = {" + ".join(f"c{k}" for k in range(_CHAINS))};
}}
"""
"""Chains of multiply-adds that don't wait for each other: 32 registers an invocation."""

_PIECES, _COPY_WORKGROUP_SIZE = 4, 256
_COPIES = 16
"""In a row: the largest takes 0.1 ms on a large GPU, as long as the host needs to notice."""

_COPY = f"""
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@compute @workgroup_size({_COPY_WORKGROUP_SIZE})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    let i = group.x * {_PIECES * _COPY_WORKGROUP_SIZE}u + lane;
    {" ".join(f"y[i + {k * _COPY_WORKGROUP_SIZE}u] = x[i + {k * _COPY_WORKGROUP_SIZE}u];" for k in range(_PIECES))}
}}
"""
_COPIED_NBYTES = (16 << 20, 64 << 20, 128 << 20)
"""Of each of two buffers. Large GPUs' caches hold up to 128 MiB."""
_GROUP_NBYTES = 16 * _PIECES * _COPY_WORKGROUP_SIZE


def measure_roofs(gpu: Gpu, timer: Timer | None, wake_s: float = 0.0, busy: bool = False) -> tuple[float, float]:
    """(floating-point operations, bytes read and written) a second, float32. By the GPU's clock where there is a timer that is believed.

    wake_s: how long the GPU works first, so that it raises its clock. busy: other programs may keep all cores busy, so the host's clock
    does not count. The result is 0 where it can't be measured: no memory, a kernel that does not do what it should, or no clock that
    counts. Raises DeviceError, ShaderError.
    """
    return _flops_per_s(gpu, timer, wake_s, busy), _nbytes_per_s(gpu, timer, busy)


def _flops_per_s(gpu: Gpu, timer: Timer | None, wake_s: float = 0.0, busy: bool = False) -> float:
    """The chains end at 0.25 / (1 - 0.5), eight of them."""
    nbytes, want = 16 * _WORKGROUP_SIZE * _FMA_GROUPS, np.full(4, 0.5 * _CHAINS, np.float32)
    x, y = gpu.allocate(48), gpu.allocate(nbytes)
    try:
        job = _Job(gpu, timer, "fma", _FMA, (x, 48), (y, nbytes), _FMA_GROUPS, 1, want, busy)
        job.fill(x, 0, np.array([[0.5] * 4, [0.25] * 4, [_STEPS[3]] * 4], np.float32))
        start = time.perf_counter()
        while time.perf_counter() - start < wake_s:
            job.once_s()
        for steps in _STEPS:
            job.fill(x, 0, np.array([[0.5] * 4, [0.25] * 4, [steps] * 4], np.float32))
            taken_s = job.least_s()
            if taken_s > LONG_S or taken_s == 0.0:
                break
        return steps * _FLOPS_PER_STEP / taken_s if taken_s > 0 else 0.0
    finally:
        gpu.free(x)
        gpu.free(y)


def _nbytes_per_s(gpu: Gpu, timer: Timer | None, busy: bool = False) -> float:
    """Of the largest copy, which no cache holds: as large as bindings and memory allow, or long enough."""
    found, want, times = 0.0, np.arange(1, 5, dtype=np.float32), 1 if gpu.info.is_software else _COPIES
    most = min(gpu.limits.max_binding_nbytes, gpu.limits.max_buffer_nbytes, _GROUP_NBYTES * gpu.limits.max_groups_per_dimension)
    for nbytes in _COPIED_NBYTES:
        buffers: list[Buffer] = []
        with suppress(OutOfDeviceMemoryError):      # a smaller one does
            try:
                if nbytes > most:
                    break
                for _ in range(2):
                    buffers.append(gpu.allocate(nbytes))
                places = (buffers[0], nbytes), (buffers[1], nbytes)
                job = _Job(gpu, timer, "copy", _COPY, *places, nbytes // _GROUP_NBYTES, times, want, busy)
                job.fill(buffers[0], nbytes - want.nbytes, want)
                job.fill(buffers[1], nbytes - want.nbytes, np.zeros_like(want))
                taken_s = job.least_s() / times
                found = 2 * nbytes / taken_s if taken_s > 0 else 0.0
                if taken_s > LONG_S:
                    break
            finally:
                for buffer in buffers:
                    gpu.free(buffer)
                gpu.trim()      # or the pool would keep the buffers of each size
    return found


class _Job:
    """A kernel from x to y, some times in a row. want: the last 16 bytes of y when it has done its work. busy: as in measure_roofs.
    Raises ShaderError.
    """

    def __init__(
        self, gpu: Gpu, timer: Timer | None, label: str, source: str, x: tuple[Buffer, int], y: tuple[Buffer, int], groups: int,
        times: int, want: Array, busy: bool = False,
    ) -> None:
        self.gpu, self.timer, self.y, self.groups, self.times, self.want, self.busy = gpu, timer, y, groups, times, want, busy
        device, layout = gpu.device, bind_group_layout(gpu, (False, True))
        try:
            module = native.trusted_module(device, label, source)
            self.pipe = device.create_compute_pipeline(label, device.create_pipeline_layout(layout), module)
            self.group = device.create_bind_group(label, layout, [(buffer.native, 0, nbytes) for buffer, nbytes in (x, y)])
        except GPUError as error:
            raise ShaderError(f"calibration/{label} does not compile on {gpu.info.name}: {error}") from error

    def fill(self, buffer: Buffer, offset: int, data: Array) -> None:
        self.gpu.upload(buffer, offset, data.ctypes.data, data.nbytes)

    def least_s(self) -> float:
        """The least of some runs, of long ones few; the first does not count: memory may be made for it. 0 where y is wrong, or no clock
        counts.
        """
        self.once_s()
        taken = [self.once_s() for _ in range(2)]
        while len(taken) < REPEATS and sum(taken) < 5 * LONG_S:
            taken.append(self.once_s())
        return min(taken)

    def once_s(self) -> float:
        gpu, timer, (y, nbytes) = self.gpu, self.timer, self.y
        try:
            encoder = gpu.device.create_command_encoder("roof")
            compute = encoder.begin_compute_pass(timer.writes(0) if timer is not None else None)
            for _ in range(self.times):
                native.dispatch(compute, self.pipe, self.group, (self.groups, 1, 1))
            compute.end()
            if timer is not None:
                timer.resolve(encoder)
            gpu.enqueue(native.finish(encoder))
        except GPUError as error:
            raise gpu.failure(error, "a recording of a roof") from error
        got, start = np.zeros_like(self.want), time.perf_counter()
        gpu.download(y, nbytes - got.nbytes, got.ctypes.data, got.nbytes)
        waited_s = time.perf_counter() - start
        if not np.array_equal(got, self.want):
            return 0.0
        read_s = timer.read_s() if timer is not None else 0.0
        taken_s = believed_s(read_s, waited_s)
        return 0.0 if self.busy and taken_s != read_s else taken_s


def believed_s(read_s: float, waited_s: float) -> float:
    """What the GPU's clock says, where that can be: not more than the host waited, and of a long wait most of it."""
    return read_s if (0.5 * waited_s if waited_s > LONG_S else 0.0) < read_s <= waited_s else waited_s
