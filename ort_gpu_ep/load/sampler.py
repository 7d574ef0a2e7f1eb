"""One thread for each adapter that reads its load periodically; runs read the last value as an attribute."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from ort_gpu_ep.load.cpu import CpuLoad
from ort_gpu_ep.load.file import FileSource
from ort_gpu_ep.load.source import Source, SourceError, clip
from ort_gpu_ep.utilization import Load

log = logging.getLogger("ort_gpu_ep")

PERIOD_S, IDLE_PERIOD_S = 0.1, 1.0
"""Between two readings while runs ask for them, and while nobody does: NVML's own averages are over 1/6 to 1 s."""

SHARE = 0.0007
"""Of a core, that reading may take: the period grows until it does. Stays below 0.1 % with what is not seen by the
thread's clock."""

SMOOTHING_S = 0.25
"""Time constant of the exponential mean: one tick of /proc/stat in one reading of two cores is 5 %, and becomes 2 %."""

Finder = Callable[[], tuple[Source | None, tuple[str, ...]]]
"""Gives a source, and a sentence for each that was tried in vain."""

_samplers: weakref.WeakSet[Sampler] = weakref.WeakSet()


class Sampler:
    """Keeps `latest` up to date from the first look at it on.

    gpu: None on a software adapter, whose load is the CPU's, and where `find` looks for it: in the thread, for drivers
    take their time. notes: which sources were tried before the present one, and why they can't be used; whether that
    one is experimental.
    """

    def __init__(
        self, gpu: Source | None, cpu: CpuLoad | None = None, software: bool = False, find: Finder | None = None
    ) -> None:
        self.notes: tuple[str, ...] = ()
        self.software = software
        self._gpu, self._cpu, self._find, self._orphan = gpu, cpu or CpuLoad(), find, gpu
        self._latest = Load(None, 0.0, self._cpu.cores, "no reading yet", time.monotonic())
        self._wanted, self._said = True, ""
        self._own: deque[float] = deque(maxlen=4096)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._means: dict[str, tuple[float, float]] = {}
        self.samples, self.cost_s = 0, 0.0
        _samplers.add(self)

    @property
    def latest(self) -> Load:
        """The last reading; starts the thread on first use. No lock, less than 0.2 us."""
        self._wanted = True
        if self._thread is None:
            self.start()
        return self._latest

    def used(self, seconds: float) -> None:
        """Counts a run of ours on the GPU, by the seconds that it takes when idle; subtracted where a source can't tell
        us from others."""
        self._own.append(seconds)

    def start(self) -> None:
        """Starts the thread, if it does not run."""
        with self._lock:
            if self._thread is None:
                self._stop = threading.Event()
                self._thread = threading.Thread(
                    target=self._loop, args=(self._stop,), name="ort_gpu_ep-load", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Ends the thread; the next look at `latest` starts another."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def close(self) -> None:
        """Ends the thread and closes the sources."""
        self.stop()
        self._cpu.close()
        if self._gpu is not None:
            self._gpu.close()

    def _forked(self) -> None:
        """In the child of a fork, which has no thread of ours: it starts its own when it first looks."""
        self._thread, self._lock = None, threading.Lock()
        if self._find or (self._gpu and not self._gpu.forkable):
            # kept: the driver must not even hear that it is gone
            self._orphan, self._gpu, self._find = self._gpu, None, None
            self.notes = ("in a forked child the GPU's load can't be read (nor can the GPU be used)",)

    # ---- the thread

    def _loop(self, stop: threading.Event) -> None:
        self.find()
        period_s = PERIOD_S
        while not stop.wait(period_s):
            is_wanted, self._wanted = self._wanted, False
            before_s = time.thread_time()
            self.sample()
            spent_s = time.thread_time() - before_s + (self._gpu.cost_s if self._gpu else 0.0)
            self.cost_s += spent_s
            calm_s = PERIOD_S if is_wanted else min(2.0 * period_s, IDLE_PERIOD_S)
            period_s = max(calm_s, spent_s / SHARE)

    def find(self) -> None:
        """Looks for a source, if that was not done yet."""
        find, self._find = self._find, None
        if find is not None:
            self._gpu, self.notes = find()
            for note in self.notes:
                log.info("load: %s", note)

    def sample(self) -> None:
        """Takes one reading and publishes it. A source that fails is said once in the log, and in `latest.source`."""
        now_s = time.monotonic()
        name = "CPU" if self.software else self._gpu.name if self._gpu else "no source"
        gpu: float | None = None
        try:
            cpu = self._mean("cpu", self._read_cpu(), now_s)
            gpu = cpu if self.software else self._mean("gpu", self._read_gpu(now_s), now_s)
        except Exception as error:  # whatever a driver's library raises: the thread lives on, and the load is unknown
            self._means.pop("gpu", None)
            name = f"{name} failed: {error if isinstance(error, SourceError) else repr(error)}"
            if name != self._said:
                log.warning("the load is unknown, so no run is moved for it: %s", name)
                self._said = name
        mean = self._means.get("cpu")
        self.samples += 1
        self._latest = Load(gpu if mean else None, mean[1] if mean else 0.0, self._cpu.cores, name, now_s)

    def _read_cpu(self) -> float | None:
        told = self._gpu.cpu() if isinstance(self._gpu, FileSource) else None
        return self._cpu.read() if told is None else told

    def _read_gpu(self, now_s: float) -> float | None:
        if self._gpu is None:
            return None
        own_s, since_s = 0.0, now_s - self._latest.when_s
        while self._own:
            own_s += self._own.popleft()
        load = self._gpu.read()
        if load is not None and self._gpu.includes_own and since_s > 0.0:
            load = clip(load - own_s / since_s)
        return load

    def _mean(self, what: str, value: float | None, now_s: float) -> float | None:
        """The exponential mean over time; a reading without an answer keeps the last mean."""
        last = self._means.get(what)
        if value is None:
            return last[1] if last else None
        if last is not None:
            value = last[1] + (value - last[1]) * (1.0 - math.exp((last[0] - now_s) / SMOOTHING_S))
        self._means[what] = (now_s, value)
        return value


def _stop_all() -> None:
    for sampler in list(_samplers):
        sampler.stop()


def _after_fork() -> None:
    for sampler in list(_samplers):
        sampler._forked()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
