"""GPU time of runs, by timestamp queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ort_gpu_ep.device import native
from ort_gpu_ep.device.objects import COPY_DST, COPY_SRC, QUERY_RESOLVE

if TYPE_CHECKING:
    from ort_gpu_ep.device.gpu import Gpu


class Timer:
    """Two timestamps around a compute pass. One pass is timed at a time: benchmarks run one session."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._period_ns = native.timestamp_period_ns(gpu.device)
        self.queries = gpu.device.create_query_set(2)    # for `begin_compute_pass`
        self._resolved = gpu.device.create_buffer("timer", 256, QUERY_RESOLVE | COPY_SRC)
        self.buffer = gpu.create(16, COPY_SRC | COPY_DST)

    def resolve(self, encoder: Any) -> None:
        """Records, after the pass, what makes its timestamps readable."""
        encoder.resolve_query_set(self.queries, 2, self._resolved)
        native.copy_buffer(encoder, self._resolved.handle, 0, self.buffer.native, 0, 16)

    def read_s(self) -> float:
        """Seconds between the two timestamps of the last timed pass. Waits for it."""
        ticks = np.zeros(2, np.uint64)
        self._gpu.download(self.buffer, 0, ticks.ctypes.data, 16)
        return float(ticks[1] - ticks[0]) * self._period_ns * 1e-9
