"""Peak rates of an adapter, measured: multiply-adds in registers, bytes of a copy, and bytes read of workgroup memory;
and what is waited for: a read, and a barrier.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ort_gpu_ep.device import Buffer, Gpu
from ort_gpu_ep.device.pipelines import bind_group_layout
from ort_gpu_ep.device.timing import Timer
from ort_gpu_ep.errors import OutOfDeviceMemoryError, ShaderError
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.kernels.cost_parameters import Roofs
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.library import GPUError

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
    let steps = bitcast<u32>(x[2].w);
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

_PLACES, _FACTOR, _OFFSET = 1 << 18, 1664525, 1013904223
"""Words of a table that no first-level cache holds, and of the generator that goes through all of them. Source:
Numerical Recipes."""

_READ = f"""
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(1) fn main() {{
    let steps = x[{_PLACES}];
    var place = 0u;
    for (var i = 0u; i < steps; i++) {{
        place = x[place];
    }}
    for (var k = 0u; k < 4u; k++) {{
        y[k] = place;
    }}
}}
"""
"""Each read names the place of the next one."""

_LANES = 256
_BARRIERS = 2
"""Of a step."""

_MEETING = f"""
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
var<workgroup> held: array<u32, {_LANES}>;
@compute @workgroup_size({_LANES}) fn main(@builtin(local_invocation_index) lane: u32) {{
    let steps = x[3];
    var count = 0u;
    for (var i = 0u; i < steps; i++) {{
        held[lane] = count;
        workgroupBarrier();
        count = held[(lane + 1u) & {_LANES - 1}u] + 1u;
        workgroupBarrier();
    }}
    y[lane] = count;
}}
"""
"""Each lane hands a number to the one before it."""
_CHAIN_STEPS = tuple(64 << 2 * k for k in range(5))


_READS, _APART = 8, 24
"""Of a lane in a step, and vectors between two of them."""

_HELD = _WORKGROUP_SIZE + _READS * _APART
"""Vectors of a workgroup: 4 KiB, so that many workgroups share a unit."""

_HOLD = f"""
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
var<workgroup> held: array<vec4<f32>, {_HELD}>;
@compute @workgroup_size({_WORKGROUP_SIZE})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    for (var i = lane; i < {_HELD}u; i += {_WORKGROUP_SIZE}u) {{
        held[i] = x[0] * f32(i & 1u);
    }}
    workgroupBarrier();
    let steps = bitcast<u32>(x[1].w);
    var sum = vec4<f32>();
    for (var i = 0u; i < steps; i++) {{
        let at = (lane + i) & {_WORKGROUP_SIZE - 1}u;
        {" ".join(f"sum += held[at + {k * _APART}u];" for k in range(_READS))}
    }}
    y[id.x] = sum;
}}
"""
"""Neighbours read neighbouring vectors, and in the next step other ones."""
_HOLD_STEPS = (2, *_STEPS)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where it is measured. timer: of the GPU, None where it has none that is believed. busy: other programs may keep
    all cores busy, so that the host's clock does not count.
    """

    gpu: Gpu
    timer: Timer | None = None
    busy: bool = False


def measure_roofs(bench: Bench, wake_s: float = 0.0) -> Roofs:
    """By the GPU's clock where there is one. wake_s: how long the GPU works first, or until its clock rises no more.

    0 is what can't be measured: no memory, a kernel that does not do what it should, or no clock that counts. Raises
    DeviceError, ShaderError.
    """
    return Roofs(
        _flops_per_s(bench, wake_s),
        _nbytes_per_s(bench),
        _wait_s(bench),
        _barrier_s(bench),
        _workgroup_nbytes_per_s(bench),
    )


def _flops_per_s(bench: Bench, wake_s: float = 0.0) -> float:
    """The chains end at 0.25 / (1 - 0.5), eight of them."""
    want = np.full(4, 0.5 * _CHAINS, np.float32)
    numbers = np.array([[0.5] * 4, [0.25] * 4, [0.0] * 4], np.float32).view(np.uint32).reshape(-1)
    step_s = _step_s(
        bench, "fma", _FMA, numbers, 16 * _WORKGROUP_SIZE * _FMA_GROUPS, lambda steps: want, _STEPS, _FMA_GROUPS, wake_s
    )
    return _FLOPS_PER_STEP / step_s if step_s else 0.0


def _wait_s(bench: Bench) -> float:
    table = (np.arange(_PLACES, dtype=np.uint64) * _FACTOR + _OFFSET) % _PLACES
    cells = np.append(table, 0).astype(np.uint32)

    def want(steps: int) -> Array:
        place = 0
        for _ in range(steps):
            place = (place * _FACTOR + _OFFSET) % _PLACES
        return np.full(4, place, np.uint32)

    return _step_s(bench, "read", _READ, cells, 16, want, _CHAIN_STEPS)


def _barrier_s(bench: Bench) -> float:
    zeros = np.zeros(4, np.uint32)
    return (
        _step_s(bench, "meeting", _MEETING, zeros, 4 * _LANES, lambda steps: np.full(4, steps, np.uint32), _CHAIN_STEPS)
        / _BARRIERS
    )


def _workgroup_nbytes_per_s(bench: Bench) -> float:
    """Bytes a second that all units read of workgroup memory, 0 where that can't be told.

    Every second vector holds halves, the others zeros: a lane meets both in turn, so the sums tell whether all steps
    were made.
    """
    numbers = np.array([0.5] * 4 + [0.0] * 4, np.float32).view(np.uint32)
    lanes = _FMA_GROUPS * _WORKGROUP_SIZE

    def want(steps: int) -> Array:
        return np.full(4, 0.5 * _READS * steps / 2, np.float32)

    step_s = _step_s(bench, "hold", _HOLD, numbers, 16 * lanes, want, _HOLD_STEPS, _FMA_GROUPS)
    return 16 * _READS * lanes / step_s if step_s else 0.0


def _step_s(
    bench: Bench,
    label: str,
    source: str,
    given: Array,
    y_nbytes: int,
    want: Callable[[int], Array],
    all_steps: Sequence[int],
    groups: int = 1,
    wake_s: float = 0.0,
) -> float:
    """Seconds of a step of a kernel that takes so many, as the last word of `given` (uint32) says; 0 where it can't be
    measured."""
    gpu, given = bench.gpu, given.copy()
    x, y = gpu.allocate(given.nbytes), gpu.allocate(y_nbytes)
    try:
        job = _Job(
            bench, label, source, (x, given.nbytes), (y, y_nbytes), groups, 1, want(all_steps[len(all_steps) // 2])
        )
        taken_s = 0.0
        given[-1] = all_steps[len(all_steps) // 2]
        job.fill(x, 0, given)
        _wake(job, wake_s)
        for steps in all_steps:
            given[-1], job.want = steps, want(steps)
            job.fill(x, 0, given)
            taken_s = job.least_s()
            if taken_s > LONG_S or taken_s == 0.0:
                break
        return taken_s / steps
    finally:
        gpu.free(x)
        gpu.free(y)


def _wake(job: _Job, wake_s: float) -> None:
    """Keeps the GPU at work for wake_s, and on until a run has not become 5 % shorter for half of wake_s: its clock is
    up. Three times wake_s at most.
    """
    start, least_s, since_s, now_s = time.perf_counter(), math.inf, 0.0, 0.0
    while now_s < wake_s or (now_s < 3 * wake_s and now_s - since_s < wake_s / 2):
        taken_s = job.once_s()
        now_s = time.perf_counter() - start
        if 0.0 < taken_s < 0.95 * least_s:
            least_s, since_s = taken_s, now_s


def _nbytes_per_s(bench: Bench) -> float:
    """Of the largest copy, which no cache holds: as large as bindings and memory allow, or long enough."""
    gpu = bench.gpu
    best, want, times = 0.0, np.arange(1, 5, dtype=np.float32), 1 if gpu.info.is_software else _COPIES
    most = min(
        gpu.limits.max_binding_nbytes, gpu.limits.max_buffer_nbytes, _GROUP_NBYTES * gpu.limits.max_groups_per_dimension
    )
    for nbytes in _COPIED_NBYTES:
        buffers: list[Buffer] = []
        with suppress(OutOfDeviceMemoryError):  # a smaller one does
            try:
                if nbytes > most:
                    break
                for _ in range(2):
                    buffers.append(gpu.allocate(nbytes))
                places = (buffers[0], nbytes), (buffers[1], nbytes)
                job = _Job(bench, "copy", _COPY, *places, nbytes // _GROUP_NBYTES, times, want)
                job.fill(buffers[0], nbytes - want.nbytes, want)
                job.fill(buffers[1], nbytes - want.nbytes, np.zeros_like(want))
                taken_s = job.least_s() / times
                best = 2 * nbytes / taken_s if taken_s > 0 else 0.0
                if taken_s > LONG_S:
                    break
            finally:
                for buffer in buffers:
                    gpu.free(buffer)
                gpu.trim()  # or the pool would keep the buffers of each size
    return best


class _Job:
    """A kernel from x to y, some times in a row. want: the last 16 bytes of y when it has done its work. Raises
    ShaderError."""

    def __init__(
        self,
        bench: Bench,
        label: str,
        source: str,
        x: tuple[Buffer, int],
        y: tuple[Buffer, int],
        groups: int,
        times: int,
        want: Array,
    ) -> None:
        self.bench, self.y, self.groups, self.times, self.want = bench, y, groups, times, want
        gpu = bench.gpu
        device, layout = gpu.device, bind_group_layout(gpu, (False, True))
        try:
            module = native.trusted_module(device, label, source)
            self.pipe = device.create_compute_pipeline(label, device.create_pipeline_layout(layout), module)
            self.group = device.create_bind_group(
                label, layout, [(buffer.native, 0, nbytes) for buffer, nbytes in (x, y)]
            )
        except GPUError as error:
            raise ShaderError(f"calibration/{label} does not compile on {gpu.info.name}: {error}") from error

    def fill(self, buffer: Buffer, offset: int, data: Array) -> None:
        self.bench.gpu.upload(buffer, offset, data.ctypes.data, data.nbytes)

    def least_s(self) -> float:
        """The least of some runs, of long ones few; the first does not count: memory may be made for it. 0 where y is
        wrong, or no clock counts.
        """
        self.once_s()
        taken = [self.once_s() for _ in range(2)]
        while len(taken) < REPEATS and sum(taken) < 5 * LONG_S:
            taken.append(self.once_s())
        return min(taken)

    def once_s(self) -> float:
        gpu, timer, (y, nbytes) = self.bench.gpu, self.bench.timer, self.y
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
        return 0.0 if self.bench.busy and taken_s != read_s else taken_s


def believed_s(read_s: float, waited_s: float) -> float:
    """What the GPU's clock says, where that can be: not more than the host waited, and of a long wait most of it."""
    return read_s if (0.5 * waited_s if waited_s > LONG_S else 0.0) < read_s <= waited_s else waited_s
