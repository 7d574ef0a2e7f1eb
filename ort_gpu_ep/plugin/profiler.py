"""GPU times of dispatches in ONNX Runtime's own profile, on its clock."""

from __future__ import annotations

import math
import os
import re
import time
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.plugin import slots
from ort_gpu_ep.plugin.abi import api, c_text, ffi
from ort_gpu_ep.plugin.tables import Table

if TYPE_CHECKING:
    from ort_gpu_ep.device import Gpu
    from ort_gpu_ep.plugin.state import SessionState

_KERNEL, _NO_THREAD = 2, -1
"""OrtProfilingEventCategory; and what ONNX Runtime's profiles name for work on a GPU, a row of its own."""

NO_TIMES = "onnxruntime's profile is without GPU times: the adapter has no timestamps, or something else measures with them now"


class Profiler(Table):
    """OrtEpProfilerImpl: of a session, or of one run by its RunOptions."""

    SLOTS = slots.PROFILER

    def __init__(self, state: SessionState, gpu: Gpu) -> None:
        from ort_gpu_ep.device.dispatch_times import DispatchTimes  # a session that no profile is taken of has no stopwatch

        super().__init__()
        self._state, self._times, self._origin_ns = state, DispatchTimes(gpu), 0

    def start_profiling(self, elapsed_ns: int) -> None:
        """elapsed_ns: since the time from which the profile counts."""
        self._origin_ns = time.perf_counter_ns() - elapsed_ns
        if self._times.start():
            self._state.profiles = (*self._state.profiles, self._times)
        else:
            self._state.record("notice", "profile", NO_TIMES)

    def end_profiling(self, container: Any) -> None:
        """Gives ONNX Runtime an event for each dispatch since it began."""
        found, made = self._end(), []
        out = ffi.new("void**")
        keys = [c_text("op_name"), c_text("shader")]
        try:
            for dispatch in found:
                values = [c_text(_plain(dispatch.run)), c_text(dispatch.shader)]
                begin_us, us = math.floor((dispatch.begin_ns - self._origin_ns) / 1e3), math.ceil(dispatch.ns / 1e3)
                api.CreateProfilingEvent(_KERNEL, os.getpid(), _NO_THREAD, c_text(_plain(dispatch.label)), begin_us, us,
                                         ffi.new("char*[]", keys), ffi.new("char*[]", values), len(keys), out)
                made.append(out[0])
            if made:
                api.ProfilingEventsContainer_AddEvents(container, ffi.new("void*[]", made), len(made))
        finally:
            for event in made:
                api.ReleaseProfilingEvent(event)

    def _end(self) -> Any:
        self._state.profiles = tuple(times for times in self._state.profiles if times is not self._times)
        return self._times.stop()

    def release(self) -> None:
        self._end()
        self.drop()


def _plain(text: str) -> str:
    """Without what JSON escapes: ONNX Runtime writes names between quotes, and only newer ones escape what is in them."""
    return re.sub(r"[\x00-\x1f]", " ", text.replace('"', "'").replace("\\", "/"))
