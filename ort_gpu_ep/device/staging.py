"""Memory that the driver has mapped: uploads are written directly into it, without the copy of `Gpu.upload`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ort_gpu_ep.device import copying
from ort_gpu_ep.device.buffers import POOL_AGE_S, Buffer, size_class
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.library import GPUError
from ort_gpu_ep.webgpu.objects import COPY_SRC, MAP_WRITE

LARGE_NBYTES = 4 << 20
"""Inputs of a run that together take so much are filled in place. On an H200 (driver 580.159.04) 19.3 MB are in a GPU
buffer after 1.28 ms, 0.93 by four threads, and 1.2 to 2.0 where the queue writes them; 2.4 MB after 0.208 and 0.216,
0.6 MB after 0.068 and 0.072.
"""

USAGE = MAP_WRITE | COPY_SRC


class Staging:
    """Buffers of one Gpu that are filled, copied on the device and used again. Not thread-safe."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._free: list[Buffer] = []
        self._filled: list[Buffer] = []

    def upload(self, buffer: Buffer, nbytes: int, fill: Callable[[int], None]) -> None:
        """Copies what `fill` writes to an address into a buffer, by the next submission. Raises what `fill` raises,
        DeviceError."""
        gpu, size, start = self._gpu, -(-nbytes // 4) * 4, time.perf_counter()
        staging = self._take(size_class(size))
        self._filled.append(staging)
        try:
            address = native.map_write(gpu, staging.native, size)
            try:
                fill(address)
            finally:
                native.unmap(staging.native)
        except GPUError as error:
            raise gpu.failure(error, f"an upload of {nbytes} B") from error
        gpu.copy(staging, 0, buffer, 0, size)
        gpu.stats.uploads += 1
        gpu.stats.upload_s += time.perf_counter() - start
        gpu.stats.uploaded_nbytes += nbytes

    def _take(self, size: int) -> Buffer:
        for index, staging in enumerate(self._free):
            if staging.nbytes == size:
                return self._free.pop(index)
        return self._gpu.create(size, USAGE)

    def settle(self) -> None:
        """Waits for uploads that no readback came after: those of a run that failed, or that gave nothing. Raises
        DeviceError."""
        if self._filled:
            self._gpu.finish()
            self.recycle()

    def recycle(self) -> None:
        """The GPU is done with all that was uploaded: a readback has come, or `Gpu.finish` has returned."""
        now = time.monotonic()
        for staging in self._filled:
            staging.freed_s = now
        old = [b for b in self._free if b.freed_s < now - POOL_AGE_S]
        self._free, self._filled = [b for b in self._free if b.freed_s >= now - POOL_AGE_S] + self._filled, []
        for staging in old:
            self._gpu.destroy(staging)


def large_nbytes(gpu: Gpu, nbytes: int) -> int:
    """Of a run's inputs, what is filled in place: all or nothing. A driver that computes on the CPU copies as fast from
    anywhere."""
    return nbytes if nbytes >= LARGE_NBYTES and not gpu.info.is_software else 0


def may_round(gpu: Gpu, inputs: Sequence[TensorType]) -> bool:
    """Whether runs may bring such inputs in float16 where the plan takes them so: it is the bytes that take the time,
    not the rounding."""
    return bool(large_nbytes(gpu, sum(hint(t.nbytes) for t in inputs))) and copying.rounds_fast()
