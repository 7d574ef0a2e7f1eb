"""GPU time of runs, by timestamp queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import wgpu

from ort_gpu_ep.device import native

if TYPE_CHECKING:
    from ort_gpu_ep.device.gpu import Gpu


class Timer:
    """Two timestamps around a compute pass. One pass is timed at a time: benchmarks run one session."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._period_ns = native.timestamp_period_ns(gpu.device)
        self._queries = gpu.device.create_query_set(label="timer", type=wgpu.QueryType.timestamp, count=2)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        self._resolved = gpu.device.create_buffer(label="timer", size=256, usage=usage)
        self.buffer = gpu.create(16, wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST)

    @property
    def writes(self) -> dict[str, Any]:
        """For `begin_compute_pass(timestamp_writes=...)`."""
        return {"query_set": self._queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}

    def resolve(self, encoder: Any) -> None:
        """Records, after the pass, what makes its timestamps readable."""
        encoder.resolve_query_set(self._queries, 0, 2, self._resolved, 0)
        encoder.copy_buffer_to_buffer(self._resolved, 0, self.buffer.raw, 0, 16)

    def read_s(self) -> float:
        """Seconds between the two timestamps of the last timed pass. Waits for it."""
        ticks = np.zeros(2, np.uint64)
        self._gpu.download(self.buffer, 0, ticks.ctypes.data, 16)
        return float(ticks[1] - ticks[0]) * self._period_ns * 1e-9
