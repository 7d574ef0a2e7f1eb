"""Waiting for the GPU with a deadline. The blocking wait has none, so another thread waits, and the caller waits for
it."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

from ort_gpu_ep.webgpu.implementation import own

SPIN_S = 3e-4
SPIN_ON_HARDWARE_S = 5e-3
"""A wait that was shorter the last time is polled for, by a loop in C that leaves the GIL to others: handing it to a
thread and back takes some 30 us, and a blocking wait of a driver ends up to 0.36 ms late (H200). A longer one is not:
polling takes a core, which a software adapter computes with (docs/faults.md).
"""

REST_LEFT_S, REST_LATEST = 1.5e-3, 8
"""Of a run that takes longer than is polled for, only the end is: its caller sleeps until so long before the quickest
of the latest such runs was done."""

_idle: list[Waiter] = []


class Waiter(threading.Thread):
    """A thread that waits for submissions, one after another. One for each caller that waits at the same time."""

    def __init__(self) -> None:
        super().__init__(name="ort_gpu_ep-wait", daemon=True)
        self._go, self._done = threading.Semaphore(0), threading.Lock()
        self._done.acquire()
        # it holds the device: one that is freed during a wait would crash the process
        self._job: tuple[Any, int] | None = None
        self.start()

    def run(self) -> None:
        while True:
            self._go.acquire()
            if self._job is None:
                return
            block(*self._job)
            self._job = None
            self._done.release()

    def wait(self, device: Any, index: int, timeout_s: float) -> bool:
        """Whether the submission was done in time. If not, this waiter is of no more use."""
        self._job = (device, index)
        self._go.release()
        done = False
        try:
            done = self._done.acquire(timeout=timeout_s)
        finally:
            if not done:  # too late, or interrupted: the thread ends after the wait, if that ends
                self._go.release()
        return done


def block(device: Any, index: int) -> None:
    """Waits for a submission, without the GIL, however long it takes."""
    own.block(device, index)


def ends_in_time(device: Any, index: int, timeout_s: float) -> bool:
    """Whether a submission is done within the time. A thread is left behind with it where it is not."""
    try:
        waiter = _idle.pop()
    except IndexError:
        waiter = Waiter()
    done = waiter.wait(device, index, timeout_s)
    if done:
        _idle.append(waiter)
    return done


def wait_until(gpu: Any, index: int, arrival: Any) -> bool:
    """Waits until a submission of the Gpu is done. False where its hang_timeout_s is over before, or the limit of a
    milestone.

    Time runs from the last milestone on.
    """
    start = time.perf_counter()
    # wgpu-native 29 may call a queue empty right after a submission
    if arrival is not None and _polled(gpu, arrival, start):
        if gpu.milestones:
            _pass(gpu, index)
        return True
    for milestone in [m for m in list(gpu.milestones) if m[0] < index]:
        if not gpu.ends_in_time(*milestone):
            return False
        _pass(gpu, milestone[0] + 1)
        start = time.perf_counter()
    done = gpu.ends_in_time(index, gpu.hang_timeout_s - (time.perf_counter() - start))
    _note(gpu, start)
    return bool(done)


def _pass(gpu: Any, index: int) -> None:
    """Forgets the milestones before a submission that is done, or about to be. Other threads may do so, too."""
    for milestone in list(gpu.milestones):
        if milestone[0] < index:
            with suppress(ValueError):
                gpu.milestones.remove(milestone)


def _note(gpu: Any, start: float) -> None:
    """What came now took the GPU so long: since it was waited for, or since what came before it."""
    now = time.perf_counter()
    gpu.last_wait_s, gpu.last_arrival_s = now - max(start, gpu.last_arrival_s), now


def _polled(gpu: Any, arrival: Any, start: float) -> bool:
    """Whether what is waited for came while it was polled for. One thread polls at a time, for others would share its
    core."""
    most_s = min(SPIN_S if gpu.info.is_software else SPIN_ON_HARDWARE_S, gpu.hang_timeout_s)
    return bool(gpu.last_wait_s < most_s and gpu.pollers.wait(gpu, arrival, most_s, start))


class Pace:
    """How long runs of one plan and size take on a GPU, in one session: what may be slept of the next one.
    Thread-safe."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=REST_LATEST)

    def rest(self, since_s: float) -> None:
        """Sleeps through the part of a run, submitted at since_s (time.perf_counter), in which it is hardly ever
        done."""
        latest = list(self._latest)
        if not latest or (least_s := min(latest)) <= SPIN_ON_HARDWARE_S:
            return
        left_s = since_s + least_s - REST_LEFT_S - time.perf_counter()
        if left_s > 0.0:
            time.sleep(left_s)

    def note(self, seconds: float) -> None:
        """A run was done so long after its submission."""
        self._latest.append(seconds)


class _Waiting:
    """A thread that waits for its turn. leads: it is to poll from now on."""

    __slots__ = ("arrival", "leads", "wake")

    def __init__(self, arrival: Any) -> None:
        self.arrival, self.leads, self.wake = arrival, False, threading.Lock()
        self.wake.acquire()


class Pollers:
    """Which of the threads that wait for results of one device polls for them: the first, then the next whose result is
    not there yet (leader and followers). The others sleep: a poll takes what has arrived for all, and the queue runs in
    order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._led = False
        self._waiting: deque[_Waiting] = deque()

    def wait(self, gpu: Any, arrival: Any, most_s: float, start: float) -> bool:
        """Whether it arrived, or the device was lost. False where nothing at all arrived for most_s, or from `start`
        for hang_timeout_s."""
        if not self._leads(arrival, start + gpu.hang_timeout_s):
            return arrival is not None and bool(arrival.status)
        begin = max(start, gpu.last_arrival_s)
        try:
            while gpu.last_wait_s < most_s:
                if gpu.finished(arrival) or gpu.lost:
                    _note(gpu, start)
                    return True
                if time.perf_counter() - begin >= most_s:
                    gpu.last_wait_s = most_s
            return False
        finally:
            self._pass_on()

    def _leads(self, arrival: Any, until_s: float) -> bool:
        """Whether it is this thread's turn to poll. If another one polls, waits until it is, or nothing is left to wait
        for."""
        with self._lock:
            if not self._led:
                self._led = True
                return True
            mine = _Waiting(arrival)
            self._waiting.append(mine)
        try:
            mine.wake.acquire(timeout=max(until_s - time.perf_counter(), 0.0))
        except BaseException:
            self._leave(mine)
            if mine.leads:
                self._pass_on()
            raise
        self._leave(mine)
        return mine.leads

    def _leave(self, mine: _Waiting) -> None:
        with self._lock:
            if mine in self._waiting:
                self._waiting.remove(mine)

    def _pass_on(self) -> None:
        with self._lock:
            self._led = False
            while self._waiting and not self._led:
                following = self._waiting.popleft()
                following.leads = self._led = following.arrival is None or not following.arrival.status
                following.wake.release()
