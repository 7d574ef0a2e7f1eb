"""Memory that the driver has mapped for the host, to be filled in place: an upload without the copy that `Gpu.upload` takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from ort_gpu_ep.device import native
from ort_gpu_ep.device.buffers import POOL_AGE_S, Buffer, size_class
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.library import GPUError
from ort_gpu_ep.device.objects import COPY_SRC, MAP_WRITE

_USAGE = MAP_WRITE | COPY_SRC


class Staging:
    """Buffers of one Gpu that are filled, copied on the device and used again. Not thread-safe."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._free: list[Buffer] = []
        self._filled: list[Buffer] = []

    def upload(self, buffer: Buffer, nbytes: int, fill: Callable[[int], None]) -> None:
        """Copies what `fill` writes to an address into a buffer, by the next submission. Raises what `fill` raises, DeviceError."""
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
        return self._gpu.create(size, _USAGE)

    def settle(self) -> None:
        """Waits for uploads that no readback came after: those of a run that failed, or that gave nothing. Raises DeviceError."""
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
