"""Waiting with a deadline: another thread waits for the GPU, and is left behind where the GPU never ends."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.device.adapter import choose, limits_of, request_device
from ort_gpu_ep.errors import DeviceHangError, DeviceLostError
from ort_gpu_ep.webgpu import waiting
from tests.patience import Clock, until


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The GPU ends no work before this is set."""
    ends = threading.Event()
    monkeypatch.setattr(waiting, "block", lambda device, index: ends.wait(120))
    monkeypatch.setattr(waiting, "_idle", [])
    yield ends
    ends.set()


def waiters() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if isinstance(t, waiting.Waiter)]


def test_a_wait_that_does_not_end(block: threading.Event) -> None:
    before = len(waiters())
    assert not waiting.ends_in_time(object(), 1, 0.1)
    assert not waiting._idle, "a waiter that is still busy is not used again"
    assert len(waiters()) == before + 1
    block.set()
    until(lambda: len(waiters()) == before, "it goes when its wait ends after all")


def test_one_thread_for_one_wait_at_a_time(block: threading.Event) -> None:
    block.set()
    for _ in range(50):
        assert waiting.ends_in_time(object(), 1, 300)
    assert len(waiting._idle) == 1
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda i: waiting.ends_in_time(object(), i, 300), range(200)))
    assert len(waiting._idle) <= 4


def test_a_hang_ends_the_run_and_the_device(block: threading.Event) -> None:
    info, raw = choose("")
    gpu = Gpu(info, request_device(info, raw), limits_of(raw))
    gpu.hang_timeout_s, gpu.last_wait_s = 0.2, 1.0
    buffer, data = gpu.allocate(64), np.empty(16, "f")
    with pytest.raises(DeviceHangError, match="hang_timeout_ms"):
        gpu.download(buffer, 0, data.ctypes.data, 64)
    with pytest.raises(DeviceLostError):
        gpu.download(buffer, 0, data.ctypes.data, 64)


@pytest.mark.parametrize("last_wait_s", [0.0, 1.0], ids=["polled for", "waited for"])
@pytest.mark.parametrize("timeout_s", [0.0, 300.0], ids=["no deadline", "deadline"])
def test_what_is_read_is_right(timeout_s: float, last_wait_s: float, rng: np.random.Generator) -> None:
    info, raw = choose("")
    gpu = Gpu(info, request_device(info, raw), limits_of(raw))
    gpu.hang_timeout_s = timeout_s

    def one(seed: int) -> Any:
        sent = np.random.default_rng(seed).standard_normal(5000).astype("f")
        buffer, got = gpu.allocate(sent.nbytes), np.empty_like(sent)
        gpu.upload(buffer, 0, sent.ctypes.data, sent.nbytes)
        gpu.last_wait_s = last_wait_s
        gpu.download(buffer, 0, got.ctypes.data, got.nbytes)
        gpu.free(buffer)
        return np.array_equal(sent, got)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(40)))


def test_there_is_a_deadline_by_default() -> None:
    assert Gpu.open(Config()).hang_timeout_s == 120


class Queue:
    """A device whose results come one after another, each so many seconds after the one before, by a clock that each
    poll moves by POLL_S."""

    hang_timeout_s, lost = 120.0, ""
    POLL_S = 1e-3

    def __init__(self, clock: Clock, each_s: float, software: bool = False) -> None:
        self.info, self.pollers, self.clock = SimpleNamespace(is_software=software), waiting.Pollers(), clock
        self.last_wait_s = self.last_arrival_s = 0.0
        self.milestones: deque[tuple[int, float]] = deque()
        self.each_s, self.next_s = each_s, clock.now_s + each_s
        self.arrivals = [SimpleNamespace(status=0) for _ in range(8)]
        self.blocked, self._lock = 0, threading.Lock()

    def finished(self, arrival: Any) -> bool:
        with self._lock:
            self.clock.rest(self.POLL_S)
            if self.clock.now_s >= self.next_s:
                next((a for a in self.arrivals if not a.status), SimpleNamespace()).status = 1
                self.next_s += self.each_s
        time.sleep(0)  # the others come to wait
        return bool(arrival.status)

    def ends_in_time(self, index: int, timeout_s: float) -> bool:
        with self._lock:
            self.blocked += 1
        while not self.finished(self.arrivals[index]):
            pass
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch, waiting)


def test_those_that_wait_in_line_sleep_until_it_is_their_turn(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SPIN_ON_HARDWARE_S", 0.2)
    gpu = Queue(clock, 0.05)  # the eighth comes after twice the time that is polled for one
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda i: waiting.wait_until(gpu, i, gpu.arrivals[i]), range(8)))
    assert gpu.blocked == 0
    assert gpu.last_wait_s <= 0.05 + gpu.POLL_S, "since the one before"
    assert not gpu.pollers._waiting
    assert not gpu.pollers._led


def test_a_long_wait_is_not_polled_for_by_anybody(clock: Clock) -> None:
    gpu = Queue(clock, 0.1, software=True)
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(lambda i: waiting.wait_until(gpu, i, gpu.arrivals[i]), range(3)))
    assert gpu.blocked == 3
    assert gpu.last_wait_s > waiting.SPIN_S
    assert not gpu.pollers._led


def paced(gpu: Queue, pace: waiting.Pace, runs: int) -> list[float]:
    """Seconds of each wait of runs that follow each other at once."""
    found = []
    for index in range(runs):
        gpu.next_s, begin_s = gpu.clock.now_s + gpu.each_s, gpu.clock.now_s
        gpu.arrivals[index % 8].status = 0
        for other in gpu.arrivals:
            other.status = int(other is not gpu.arrivals[index % 8])
        pace.rest(begin_s)
        assert waiting.wait_until(gpu, index % 8, gpu.arrivals[index % 8])
        found.append(gpu.clock.now_s - begin_s)
        pace.note(found[-1])
    return found


def test_of_a_long_run_the_end_is_polled_for(clock: Clock) -> None:
    gpu, pace = Queue(clock, 0.02), waiting.Pace()
    took_s = paced(gpu, pace, 12)
    assert gpu.blocked <= 2, "once its time is known, no thread waits for it in the driver"
    assert max(took_s) <= 0.02 + 2 * gpu.POLL_S, "nor is it seen late"


def test_a_run_that_has_become_shorter_is_late_a_few_times_only(clock: Clock) -> None:
    gpu, pace = Queue(clock, 0.02), waiting.Pace()
    paced(gpu, pace, 10)
    gpu.each_s = 0.01
    took_s = paced(gpu, pace, 30)
    assert took_s[0] <= 0.02 + 2 * gpu.POLL_S
    assert took_s[-1] <= 0.01 + 2 * gpu.POLL_S


def test_short_runs_are_not_slept_through(clock: Clock) -> None:
    gpu, pace = Queue(clock, 0.004), waiting.Pace()
    before_s = clock.now_s
    for _ in range(8):
        pace.note(0.004)
    pace.rest(clock.now_s)
    assert clock.now_s == before_s
    assert max(paced(gpu, pace, 5)) <= 0.004 + 2 * gpu.POLL_S
