"""GPU time of runs, by timestamp queries."""

from __future__ import annotations

from typing import Any

import numpy as np

from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.objects import COPY_DST, COPY_SRC, QUERY_RESOLVE

WAKE_S = 0.8
"""How long a GPU works before its kernels are timed: one that was left alone raises its clock only after 0.4 s,
sometimes more than 0.6 (an H200)."""

PAIRS = 2048
"""Pairs of timestamps in one query set: WebGPU allows 4,096 queries."""


class Timer:
    """Two timestamps around a compute pass. One pass is timed at a time: benchmarks run one session."""

    each = False

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._period_ns = native.timestamp_period_ns(gpu.device)
        self._queries = gpu.device.create_query_set(2)
        self._resolved = gpu.device.create_buffer("timer", 256, QUERY_RESOLVE | COPY_SRC)
        self.buffer = gpu.create(16, COPY_SRC | COPY_DST)

    def recording(self, owner: object, first: int) -> Timer:
        """What a command buffer's passes are timed by. owner, first: whose it is, and the first step in it."""
        return self

    def writes(self, step: int) -> tuple[Any, int]:
        """For `begin_compute_pass`. step: the first of the pass."""
        return self._queries, 0

    def resolve(self, encoder: Any) -> None:
        """Records, after the pass, what makes its timestamps readable."""
        encoder.resolve_query_set(self._queries, 2, self._resolved)
        native.copy_buffer(encoder, self._resolved.handle, 0, self.buffer.native, 0, 16)

    def read_s(self) -> float:
        """Seconds between the two timestamps of the last timed pass. Waits for it."""
        ticks = np.zeros(2, np.uint64)
        self._gpu.download(self.buffer, 0, ticks.ctypes.data, 16)
        return float(ticks[1] - ticks[0]) * self._period_ns * 1e-9


def start_timing(gpu: Gpu) -> bool:
    """Measures the GPU time of every run recorded from now on, until `Gpu.stop_timing`. False where the adapter has no
    timestamps."""
    if gpu.timer is None and "timestamp-query" in gpu.limits.features:
        gpu.timer = Timer(gpu)
    return gpu.timer is not None


class Stopwatch:
    """Timestamps around every pass of everything that is recorded meanwhile. each: a pass for every dispatch. holders:
    who shares it."""

    def __init__(self, gpu: Gpu, each: bool) -> None:
        self._gpu, self.each, self.holders = gpu, each, 0
        self._recordings: dict[tuple[Any, int], _Recording] = {}

    def recording(self, owner: Any, first: int) -> _Recording:
        """What a command buffer's passes are timed by; that of the same work recorded again takes its place."""
        recording = self._recordings.get((owner, first))
        if recording is None:
            recording = self._recordings[owner, first] = _Recording(self._gpu, self.each)
        recording.steps.clear()
        return recording

    def read(self, context: object = None) -> list[tuple[Any, int, float, float]]:
        """(owner, first step, beginning, end in ns) of each pass as it ran last, in the order of time. Waits.

        context: of the program whose passes are wanted, all without one.
        """
        recordings = [
            (owner, r)
            for (owner, _), r in list(self._recordings.items())
            if context is None or owner.context is context
        ]
        rows = [(owner, *times) for owner, recording in recordings for times in recording.read()]
        return sorted(rows, key=lambda times: times[2])

    def read_s(self) -> float:
        """Seconds of all passes together. Waits."""
        return sum(end - begin for _, _, begin, end in self.read()) * 1e-9


class _Recording:
    """The timestamps of one command buffer. steps: the first of each of its passes."""

    def __init__(self, gpu: Gpu, each: bool) -> None:
        self._gpu, self.each, self.steps = gpu, each, list[int]()
        self._period_ns = native.timestamp_period_ns(gpu.device)
        self._sets: list[tuple[Any, Any, Any]] = []

    def writes(self, step: int) -> tuple[Any, int]:
        at, pair = divmod(len(self.steps), PAIRS)
        if at == len(self._sets):
            device, nbytes = self._gpu.device, 16 * PAIRS
            self._sets.append(
                (
                    device.create_query_set(2 * PAIRS),
                    device.create_buffer("times", nbytes, QUERY_RESOLVE | COPY_SRC),
                    self._gpu.create(nbytes, COPY_SRC | COPY_DST),
                )
            )
        self.steps.append(step)
        return self._sets[at][0], 2 * pair

    def resolve(self, encoder: Any) -> None:
        for first in range(0, len(self.steps), PAIRS):
            count = 2 * min(PAIRS, len(self.steps) - first)
            queries, resolved, buffer = self._sets[first // PAIRS]
            encoder.resolve_query_set(queries, count, resolved)
            native.copy_buffer(encoder, resolved.handle, 0, buffer.native, 0, 8 * count)

    def read(self) -> list[tuple[int, float, float]]:
        """(step, beginning, end) of each pass; none before its first run."""
        ticks = np.zeros((-(-len(self.steps) // PAIRS), PAIRS, 2), np.uint64)
        for rows, (_, _, buffer) in zip(ticks, self._sets, strict=False):
            self._gpu.download(buffer, 0, rows.ctypes.data, rows.nbytes)
        begin_end = ticks.reshape(-1, 2)[: len(self.steps)].astype(np.float64) * self._period_ns
        return [(step, float(a), float(b)) for step, (a, b) in zip(self.steps, begin_end, strict=True) if b]
