"""GPU times of dispatches in ONNX Runtime's own profile, on its clock."""

from __future__ import annotations

import math
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.plugin import slots
from ort_gpu_ep.plugin.abi import NULL, api, c_text, ffi, get
from ort_gpu_ep.plugin.tables import Table

if TYPE_CHECKING:
    from ort_gpu_ep.device import Gpu
    from ort_gpu_ep.device.dispatch_times import DispatchTimes, TimedDispatch
    from ort_gpu_ep.plugin.state import SessionState

_KERNEL, _NO_THREAD = 2, -1
"""OrtProfilingEventCategory; and what ONNX Runtime's profiles name for work on a GPU, a row of its own."""

_PLACED = 4
"""So many runs tell where the profile's zero is on the host's clock."""

NO_TIMES = (
    "onnxruntime's profile is without GPU times: the adapter has no timestamps, or something else measures "
    "with them now"
)


class Profiler(Table):
    """OrtEpProfilerImpl: of a session, or of one run by its RunOptions. ONNX Runtime makes one for each session, and
    most never start."""

    SLOTS = slots.PROFILER

    def __init__(self, state: SessionState, gpu: Gpu) -> None:
        super().__init__()
        self._state, self._gpu = state, gpu
        self._times: DispatchTimes | None = None
        # by time.perf_counter_ns the profile's zero is between these
        self._placed = self._first_ns = self._last_ns = 0

    def start_profiling(self, elapsed_ns: int) -> None:
        """elapsed_ns: since the time from which the profile counts."""
        self._last_ns = time.perf_counter_ns() - elapsed_ns  # the call may have waited for the interpreter
        from ort_gpu_ep.device.dispatch_times import DispatchTimes  # only where a profile is taken

        times = DispatchTimes(self._gpu)
        if times.start():
            self._times = times
            self._state.profiles = (*self._state.profiles, times)
        else:
            self._state.record("notice", "profile", NO_TIMES)

    def stop_event(self, correlation: int, event: Any) -> None:
        """A node is over; if one of our partitions just ran on this thread, that was the node, and its times bound
        where zero is."""
        latest = self._times.latest if self._times is not None else None
        if self._times is None or latest is None or latest[0] != threading.get_ident():
            return
        self._times.latest = None
        begin_us = get(api.ProfilingEvent_GetTimestampUs, event, "int64_t*")
        end_us = begin_us + get(api.ProfilingEvent_GetDurationUs, event, "int64_t*") + 1
        self._first_ns = max(self._first_ns, latest[2] - end_us * 1000)
        self._last_ns = min(self._last_ns, latest[1] - begin_us * 1000)
        self._placed += 1
        if self._placed >= _PLACED:
            # or each node of the profile would wait for Python
            self.pointer.slot[slots.PROFILER["StopEvent"].number] = NULL

    def end_profiling(self, container: Any) -> None:
        """Gives ONNX Runtime an event for each dispatch since it began."""
        times, events, origin_ns = self._end(), [], max(self._first_ns, self._last_ns)
        out = ffi.new("void**")
        keys = [c_text("op_name"), c_text("shader")]
        try:
            for dispatch in times:
                values = [c_text(_plain(dispatch.run)), c_text(dispatch.shader)]
                begin_us, us = math.floor((dispatch.begin_ns - origin_ns) / 1e3), math.ceil(dispatch.ns / 1e3)
                api.CreateProfilingEvent(
                    _KERNEL,
                    os.getpid(),
                    _NO_THREAD,
                    c_text(_plain(dispatch.label)),
                    begin_us,
                    us,
                    ffi.new("char*[]", keys),
                    ffi.new("char*[]", values),
                    len(keys),
                    out,
                )
                events.append(out[0])
            if events:
                api.ProfilingEventsContainer_AddEvents(container, ffi.new("void*[]", events), len(events))
        finally:
            for event in events:
                api.ReleaseProfilingEvent(event)

    def _end(self) -> list[TimedDispatch]:
        times, self._times = self._times, None
        self._state.profiles = tuple(each for each in self._state.profiles if each is not times)
        return times.stop() if times is not None else []

    def release(self) -> None:
        self._end()
        self.drop()


def _plain(text: str) -> str:
    """Without what JSON escapes: ONNX Runtime writes names between quotes, and only newer ones escape what is in
    them."""
    return re.sub(r"[\x00-\x1f]", " ", text.replace('"', "'").replace("\\", "/"))
