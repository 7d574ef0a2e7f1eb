"""Times of dispatches on the host's clock: what a stopwatch gives, whose clock has another origin and another rate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ort_gpu_ep.device import dispatch_times
from ort_gpu_ep.device.dispatch_times import DispatchTimes, TimedDispatch
from ort_gpu_ep.device.timing import Stopwatch

AHEAD_NS = 5_000_000_000
"""The host's clock, before the GPU's."""


class Watch(Stopwatch):
    """Gives the passes that a test has put in: (owner, step) -> beginning, end on the host's clock."""

    def __init__(self) -> None:
        self.each, self.holders = True, 0
        self.passes: dict[tuple[Any, int], tuple[float, float]] = {}

    def read(self, context: object = None) -> list[tuple[Any, int, float, float]]:
        found = [
            (owner, step, a - AHEAD_NS, b - AHEAD_NS)
            for (owner, step), (a, b) in self.passes.items()
            if context is None or owner.context is context
        ]
        return sorted(found, key=lambda times: times[2])


class Owner:
    """A plan of a program: a dispatch, a copy, a dispatch."""

    def __init__(self, context: object) -> None:
        self.context = context

    def last_plan(self) -> Any:
        first, last = (
            SimpleNamespace(label=f"{name}/kernel", kernel=SimpleNamespace(shader=f"{name}.wgsl"))
            for name in ("a", "b")
        )
        return SimpleNamespace(steps=(first, SimpleNamespace(), last))


class Host:
    """A device, and the clock of the host that waits for it. times: of runs on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.watch = 10 * AHEAD_NS, Watch()
        monkeypatch.setattr(dispatch_times, "time", SimpleNamespace(perf_counter_ns=lambda: self.now))
        self.gpu: Any = SimpleNamespace(timer=self.watch, limits=SimpleNamespace(features={"timestamp-query"}))
        self.gpu.stop_timing = lambda: setattr(self.gpu, "timer", None)
        self.owner = Owner("program")

    def times(self) -> DispatchTimes:
        found = DispatchTimes(self.gpu)
        assert found.start()
        return found

    def run(self, times: list[DispatchTimes], before_ns: int, after_ns: int, owner: Owner | None = None) -> int:
        """Two dispatches of 1 us each with 3 us between; the host waits so long before and after. Gives when the first
        one began."""
        owner, begin = owner or self.owner, self.now
        at = begin + before_ns
        self.watch.passes[owner, 0], self.watch.passes[owner, 2] = (at, at + 1000), (at + 4000, at + 5000)
        self.now = at + 5000 + after_ns
        for each in times:
            each.note(owner.context, "run", begin)
        return at


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_the_clock_is_the_hosts(host: Host) -> None:
    """Between the tightest bounds that runs give from below and from above, which need not be of one run."""
    times = host.times()
    loose, early, late = (
        host.run([times], 900_000, 700_000),
        host.run([times], 100, 700_000),
        host.run([times], 900_000, 300),
    )
    found = times.stop()
    assert [d.begin_ns for d in found] == pytest.approx(
        [at + shift for at in (loose, early, late) for shift in (0, 4000)], abs=201
    )
    assert found[:2] == [
        TimedDispatch("run", "a/kernel", "a.wgsl", found[0].begin_ns, 1000.0),
        TimedDispatch("run", "b/kernel", "b.wgsl", found[1].begin_ns, 1000.0),
    ]


def test_a_drift_moves_no_dispatch_out_of_its_run(host: Host) -> None:
    times, spans = host.times(), list[tuple[int, int]]()
    for drift in (0, 2_000_000, -2_000_000):
        begin = host.now
        host.now += drift  # within this run the GPU's clock is ahead by as much
        at = host.now + 1000
        host.watch.passes[host.owner, 0] = at, at + 1000
        host.now = begin + 4000
        times.note("program", "run", begin)
        spans.append((begin, host.now))
        host.now += 10_000_000
    for (begin, end), dispatch in zip(spans, times.stop(), strict=True):
        assert begin <= dispatch.begin_ns
        assert dispatch.begin_ns + dispatch.ns <= end


def test_what_ran_earlier_is_no_part_of_a_run(host: Host) -> None:
    host.run([], 1000, 1000)
    host.run([], 1000, 1000, Owner("program"))
    times = host.times()
    first = host.run([times], 1000, 1000)
    times.note("program", "the CPU answered", host.now)
    # another plan of the program: its stopwatch still tells of the first
    other = host.run([times], 1000, 1000, Owner("program"))
    assert [round(d.begin_ns) for d in times.stop()] == [first, first + 4000, other, other + 4000]


def test_two_profiles_get_every_run_each(host: Host) -> None:
    whole = host.times()
    host.run([whole], 0, 0)
    one = host.times()
    host.run([whole, one], 0, 0)
    assert len(one.stop()) == 2
    assert host.gpu.timer is host.watch
    assert len(whole.stop()) == 4
    assert host.gpu.timer is None
    assert whole.stop() == []


def test_programs_at_once_keep_their_own_times(host: Host) -> None:
    """One that is read later, and began earlier, than another one's."""
    times, other = host.times(), Owner("other program")
    begin = host.now
    for owner, at in ((host.owner, begin + 1000), (other, begin + 3000)):
        host.watch.passes[owner, 0] = at, at + 500
    host.now += 10_000
    times.note("other program", "second", begin)
    times.note("program", "first", begin)
    assert [d.run for d in times.stop()] == ["second", "first"]


def test_no_more_is_kept_than_onnxruntime_keeps(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_times, "MAX_DISPATCHES", 5)
    times = host.times()
    for _ in range(4):
        host.run([times], 0, 0)
    assert len(times.stop()) == 4


def test_another_timer_at_work_is_left_alone(host: Host) -> None:
    host.watch.each = False
    assert not DispatchTimes(host.gpu).start()
    host.gpu.timer, host.gpu.limits = None, SimpleNamespace(features=set())
    assert not DispatchTimes(host.gpu).start()
    assert host.gpu.timer is None
