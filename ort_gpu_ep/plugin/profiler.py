"""GPU times of dispatches in ONNX Runtime's own profile, on its clock."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.errors import DeviceError, forget_frames
from ort_gpu_ep.plugin import slots
from ort_gpu_ep.plugin.abi import api, c_text, ffi
from ort_gpu_ep.plugin.tables import Table

if TYPE_CHECKING:
    from ort_gpu_ep.device import Gpu
    from ort_gpu_ep.device.timing import Stopwatch
    from ort_gpu_ep.plugin.compute import Partition
    from ort_gpu_ep.plugin.state import SessionState

KERNEL_CATEGORY = 2
NO_THREAD = -1
"""What ONNX Runtime's profiles name for work on a GPU: it is a row of its own."""
MAX_DISPATCHES = 1_000_000
"""As many events as ONNX Runtime keeps of its own."""

NO_TIMESTAMPS = "onnxruntime's profile is without GPU times: the adapter has no timestamps, or something else measures with them now"

_lock = threading.Lock()


@dataclass(frozen=True)
class _Run:
    """A partition's run: its beginning and end (time.perf_counter_ns), and (label, shader, beginning, end in ns of the GPU) of dispatches."""

    partition: str
    begin_ns: int
    end_ns: int
    dispatches: Sequence[tuple[str, str, float, float]]

    @property
    def shifts(self) -> tuple[float, float]:
        """Between which the host's clock is ahead of the GPU's: all of the work was done while the host waited for it."""
        return self.begin_ns - self.dispatches[0][2], self.end_ns - max(end for *_, end in self.dispatches)


class Profiler(Table):
    """OrtEpProfilerImpl, of one session or of one run (RunOptions). Each dispatch is a pass of its own meanwhile, and a partition's run
    ends when the GPU has done it: runs take longer.
    """

    SLOTS = slots.PROFILER

    def __init__(self, state: SessionState, gpu: Gpu) -> None:
        super().__init__()
        self._state, self._gpu = state, gpu
        self.watch: Stopwatch | None = None
        self._origin_ns = 0
        self._runs: list[_Run] = []
        self._left = MAX_DISPATCHES

    def start_profiling(self, elapsed_ns: int) -> None:
        """elapsed_ns: since the time from which the profile counts."""
        self._origin_ns = time.perf_counter_ns() - elapsed_ns
        self._runs, self._left = [], MAX_DISPATCHES
        self.watch = _begin(self._gpu)
        if self.watch is None:
            self._state.record("notice", "profile", NO_TIMESTAMPS)
            return
        with _lock:
            self._state.profilers = (*self._state.profilers, self)

    def note(self, run: _Run) -> None:
        """Another run of a partition of the session."""
        if self._left >= len(run.dispatches):
            self._left -= len(run.dispatches)
            self._runs.append(run)

    def stop(self) -> None:
        """No dispatch is timed any more for this profile."""
        with _lock:
            self._state.profilers = tuple(p for p in self._state.profilers if p is not self)
        watch, self.watch = self.watch, None
        if watch is not None:
            _end(self._gpu, watch)

    def end_profiling(self, container: Any) -> None:
        self.stop()
        runs, self._runs = self._runs, []
        least = max((run.shifts[0] for run in runs), default=0.0)
        most = min((run.shifts[1] for run in runs), default=0.0)
        for run in runs:
            low, high = run.shifts
            shift = max(low, min(high, (least + most) / 2)) - self._origin_ns       # the clocks drift: each run decides on its own
            _add(container, [(label, _arguments(shader, run.partition), begin + shift, end - begin)
                             for label, shader, begin, end in run.dispatches])

    def release(self) -> None:
        self.stop()
        self.drop()


def _arguments(shader: str, partition: str) -> dict[str, str]:
    return {"op_name": partition, "shader": shader}


def _add(container: Any, events: Sequence[tuple[str, dict[str, str], float, float]]) -> None:
    """(name, arguments, beginning and duration in ns) of dispatches to an OrtProfilingEventsContainer."""
    made = []
    try:
        for name, arguments, begin_ns, ns in events:
            keys, values = [c_text(key) for key in arguments], [c_text(_escaped(value)) for value in arguments.values()]
            out = ffi.new("void**")
            api.CreateProfilingEvent(
                KERNEL_CATEGORY, os.getpid(), NO_THREAD, c_text(_escaped(name)), math.floor(begin_ns / 1e3), math.ceil(ns / 1e3),
                ffi.new("char*[]", keys), ffi.new("char*[]", values), len(keys), out)
            made.append(out[0])
        if made:
            api.ProfilingEventsContainer_AddEvents(container, ffi.new("void*[]", made), len(made))
    finally:
        for event in made:
            api.ReleaseProfilingEvent(event)


def _escaped(text: str) -> str:
    """ONNX Runtime writes what it is given between quotes."""
    return json.dumps(text)[1:-1]


def _begin(gpu: Gpu) -> Stopwatch | None:
    """A stopwatch for each dispatch of a device, which all profiles share until `_end`. None where there is none to be had."""
    from ort_gpu_ep.device.timing import Stopwatch

    with _lock:
        if gpu.timer is None and "timestamp-query" in gpu.limits.features:
            gpu.timer = Stopwatch(gpu, each=True)
        watch = gpu.timer
        if not isinstance(watch, Stopwatch) or not watch.each:
            return None
        watch.holders += 1
        return watch


def _end(gpu: Gpu, watch: Stopwatch) -> None:
    with _lock:
        watch.holders -= 1
        if not watch.holders and gpu.timer is watch:
            gpu.stop_timing()


def note_run(partition: Partition, begin_ns: int) -> None:
    """Reads the times of a run that is over, for the profiles of its session. Waits for the GPU. begin_ns: time.perf_counter_ns before it."""
    program, profilers = partition.program, partition.state.profilers
    watch = profilers[0].watch if profilers else None
    if program is None or watch is None:
        return
    try:
        times = watch.read_new(program.context)     # type: ignore[attr-defined]    # profilers are for a device of this process
    except DeviceError as error:        # the run has its results
        partition.state.record("warning", "profile", error)
        forget_frames(error)
        return
    end_ns = time.perf_counter_ns()
    if not times:       # the CPU answered
        return
    labels = {owner: owner.last_plan().steps for owner in {owner for owner, *_ in times}}
    found = [(labels[owner][step].label, labels[owner][step].kernel.shader, begin, end) for owner, step, begin, end in times]
    for profiler in profilers:
        profiler.note(_Run(partition.graph.name, begin_ns, end_ns, found))
