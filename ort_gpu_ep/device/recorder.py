"""A thread that records a next run, where recording takes about as long as the GPU needs: who began the run can then look for its results.

Recording and polling are in C, without the GIL: on two cores they overlap. Where a recording is short beside the GPU's time, the thread of
the run makes it while it has to wait anyway, and nothing is handed over.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from ort_gpu_ep.device import background
from ort_gpu_ep.errors import forget_frames
from ort_gpu_ep.processes import cores

log = logging.getLogger("ort_gpu_ep")
T = TypeVar("T")

LATE = 0.75
"""A recording that takes so much of the time from submission to arrival, or more, is late: what is left is hardly more than looking for a
result that is there already, 0.05 ms where other work has emptied the caches (H200)."""

EARLY = 0.5
"""One that takes less than this of it on its thread is done in time by whomever: well below LATE, for the same recording takes longer or
shorter on another core."""

WORTH_S = 6e-5
"""A shorter recording stays where it is: handing something to a thread and back takes some 30 us."""

RUNS = 8
"""So many more runs must speak against a way than for it before it is left: a run that something disturbed decides nothing."""

PATIENCE_S = 10.0
"""What a fork and the end of the process wait for a recording at most, some 10,000 times what one takes."""

FORCED: bool | None = None
"""For benchmarks and tests, in place of the rule: True, on the thread; False, never."""


class Device(Protocol):
    """What the rule goes by, see gpu.py."""

    info: Any


def possible(gpu: Device) -> bool:
    """Whether another thread can record while the GPU works: not where the cores are the GPU, or there is only one."""
    return not gpu.info.is_software and cores() > 1


class Rule:
    """Which thread records, of one set of sizes. possible: whether it may be another one than the run's."""

    def __init__(self, possible: bool) -> None:
        self._possible, self._elsewhere, self._against = possible, False, 0

    @property
    def elsewhere(self) -> bool:
        """Whether another thread is to record."""
        return self._elsewhere if FORCED is None else FORCED

    def note(self, record_s: float, arrival_s: float) -> None:
        """A run is over: what its recording took, and the time from submission to arrival. The two overlap."""
        if not self._possible:
            return
        against = record_s < EARLY * arrival_s if self._elsewhere else record_s >= max(LATE * arrival_s, WORTH_S)
        self._against = self._against + 1 if against else max(self._against - 1, 0)
        if self._against == RUNS:
            self._elsewhere, self._against = not self._elsewhere, 0


class Job(Generic[T]):
    """A recording on the thread. It holds what it names, so that nobody has to wait for it who frees that.

    over: nothing is done any more. seconds: what it took, once it is over. arrival_s: from the submission of the run it was made during to
    that one's arrival.
    """

    __slots__ = ("__weakref__", "_done", "_error", "_found", "_of", "_record", "arrival_s", "over", "seconds")

    def __init__(self, record: Callable[[], T], of: Recorder) -> None:
        self._record, self._of = record, of
        self.over, self.seconds, self.arrival_s = False, 0.0, 0.0
        self._found: T | None = None
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def work(self) -> None:
        """On the thread."""
        start = time.perf_counter()
        try:
            self._found = self._record()
        except BaseException as error:      # whoever wants the recording is told
            forget_frames(error)
            self._error = error
        finally:
            self.seconds, self.over = time.perf_counter() - start, True
            self._done.release()

    def wait(self, timeout_s: float = -1) -> None:
        """Until it is over."""
        if not self.over and self._done.acquire(timeout=timeout_s):
            self._done.release()

    def result(self) -> T | None:
        """What was recorded, waited for. None where that failed, or in a child, which does not have the thread."""
        if self._of is not recorder:
            return None
        self.wait()
        if self._error is not None:
            log.warning("a recording ahead failed and is made again: %s: %s", type(self._error).__name__, self._error)
        return self._found


class Recorder:
    """The thread, from the first recording on. Thread-safe. It is a daemon that is told to end, and waited for, at exit."""

    def __init__(self, ended: bool = False) -> None:
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._last: Callable[[], Job[Any] | None] = lambda: None
        self._lock, self._ended = threading.Lock(), ended
        self._thread: threading.Thread | None = None

    def begin(self, record: Callable[[], T]) -> Job[T] | None:
        """Hands over a recording. None where the thread has another one, or there is no thread (any more).

        An interrupt in the middle of this leaves at most a recording that nobody asks for.
        """
        last = self._last()
        if self._ended or (last is not None and not last.over) or not self._runs():
            return None
        job = Job(record, self)
        self._jobs.put(job)
        self._last = weakref.ref(job)
        return job

    def _runs(self) -> bool:
        if self._thread is not None:
            return True
        with self._lock:
            if self._thread is None and not background.ending():
                thread = threading.Thread(target=self._work, name="ort_gpu_ep-record", daemon=True)
                try:
                    thread.start()
                except RuntimeError:        # the system gives no more threads
                    self._ended = True
                    return False
                self._thread = thread
                atexit.register(self.end)
        return self._thread is not None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.work()
            del job         # and with it a device that nobody else holds

    def settle(self) -> None:
        """Waits for the recording under way."""
        last = self._last()
        if last is not None:
            last.wait(PATIENCE_S)

    def end(self) -> None:
        """At exit: no thread of ours is in the driver when it is taken apart."""
        self._ended = True
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(PATIENCE_S)


def _before_fork() -> None:
    """What a recording locks in the driver would be locked in the child for ever."""
    recorder.settle()


def _after_fork() -> None:
    """In the child, which has no such thread and leaves the GPU alone."""
    global recorder
    recorder = Recorder(ended=True)


recorder = Recorder()
"""Of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
