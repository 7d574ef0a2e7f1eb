"""GPU times of dispatches on the host's clock, of all runs between two moments."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.timing import Stopwatch

MAX_DISPATCHES = 1_000_000
"""Of a profile; ONNX Runtime keeps as many events of its own."""

_lock = threading.Lock()
_labels: WeakKeyDictionary[Any, Sequence[tuple[str, str] | None]] = WeakKeyDictionary()
"""Of a plan's steps, see `_labels_of`."""


class TimedDispatch(NamedTuple):
    """run: what it belongs to. label: the nodes and the kernel. shader: the file. begin_ns: by time.perf_counter_ns."""

    run: str
    label: str
    shader: str
    begin_ns: float
    ns: float


@dataclass(frozen=True)
class _Run:
    """Its beginning and end by time.perf_counter_ns, and of each dispatch (label, shader), beginning and end in ns of
    the GPU's clock."""

    name: str
    begin_ns: int
    end_ns: int
    dispatches: Sequence[tuple[tuple[str, str], float, float]]

    @property
    def shifts(self) -> tuple[float, float]:
        """Between which the host's clock is ahead of the GPU's: all of the work was done while the host waited for
        it."""
        return self.begin_ns - self.dispatches[0][1], self.end_ns - max(end for *_, end in self.dispatches)


class DispatchTimes:
    """Each dispatch is a pass of its own meanwhile, and who notes a run waits for the GPU: runs take longer.
    Thread-safe."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._watch: Stopwatch | None = None
        self._before_ns = 0.0  # what began earlier is not of these runs
        self._read_ns: dict[object, float] = {}
        self._runs: list[_Run] = []
        self.latest: tuple[int, int, int] | None = None  # thread, beginning and end of the run that was noted last
        self._left = MAX_DISPATCHES

    def start(self) -> bool:
        """Whether times are taken from now on: not without timestamps, nor while something else measures with them.
        Waits for the GPU."""
        gpu = self._gpu
        with _lock:
            if gpu.timer is None and "timestamp-query" in gpu.limits.features:
                gpu.timer = Stopwatch(gpu, each=True)
            watch = gpu.timer
            if not isinstance(watch, Stopwatch) or not watch.each:
                return False
            watch.holders += 1
        self._before_ns = max((begin for _, _, begin, _ in watch.read()), default=0.0)
        self._watch = watch
        return True

    def note(self, context: object, name: str, begin_ns: int) -> None:
        """Reads the times of a run that is over. Waits for the GPU. Raises DeviceError.

        context: of its program. begin_ns: time.perf_counter_ns before it.
        """
        watch = self._watch
        if watch is None:
            return
        times, end_ns = watch.read(context), time.perf_counter_ns()
        with _lock:
            until = self._read_ns.get(context, self._before_ns)
            new = [entry for entry in times if entry[2] > until]
            if not 0 < len(new) <= self._left:  # none: the CPU answered
                return
            self._left -= len(new)
            self.latest = threading.get_ident(), begin_ns, end_ns
            self._read_ns[context] = max(begin for _, _, begin, _ in new)
            labels = [(_labels_of(owner)[step], begin, end) for owner, step, begin, end in new]
            self._runs.append(
                _Run(name, begin_ns, end_ns, [(label, begin, end) for label, begin, end in labels if label is not None])
            )

    def stop(self) -> list[TimedDispatch]:
        """Ends it. What was noted, in the order of runs; nothing the second time."""
        with _lock:
            watch, self._watch = self._watch, None
            if watch is not None:
                watch.holders -= 1
                if not watch.holders and self._gpu.timer is watch:
                    self._gpu.stop_timing()
            runs, self._runs = self._runs, []
        least, most = (
            max((run.shifts[0] for run in runs), default=0.0),
            min((run.shifts[1] for run in runs), default=0.0),
        )
        times = []
        for run in runs:
            low, high = run.shifts
            shift = max(low, min(high, (least + most) / 2))  # the clocks drift: what a run itself tells comes first
            times += [
                TimedDispatch(run.name, *label, begin + shift, end - begin) for label, begin, end in run.dispatches
            ]
        return times


def _labels_of(owner: Any) -> Sequence[tuple[str, str] | None]:
    """(label, shader) of each step of a plan that is a dispatch. owner: the Prepared that recorded it."""
    labels = _labels.get(owner)
    if labels is None:
        steps = owner.last_plan().steps
        labels = _labels[owner] = [(s.label, s.kernel.shader) if hasattr(s, "kernel") else None for s in steps]
    return labels
