"""The sampler publishes what its source reads, off the run path, for less than 0.1 % of a core, and survives failures,
exit and fork."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ort_gpu_ep.load import sampler as sampler_module
from ort_gpu_ep.load.cpu import CpuLoad, OwnTime
from ort_gpu_ep.load.file import FileSource
from ort_gpu_ep.load.sampler import IDLE_PERIOD_S, PERIOD_S, SHARE, Sampler
from ort_gpu_ep.load.source import SourceError
from tests.patience import Clock, steps, until

ROOT = Path(__file__).parents[2]


class Told:
    """A source that says what the test wants."""

    name, cost_s, forkable = "told", 0.0, True

    def __init__(self, value: float | None = 0.5, includes_own: bool = False) -> None:
        self.value, self.includes_own, self.closed = value, includes_own, False
        self.error: Exception | None = None

    def read(self) -> float | None:
        if self.error:
            raise self.error
        return self.value

    def close(self) -> None:
        self.closed = True


class Cpu:
    """A CPU whose others do what the test wants; the real one has no answer until a tick has passed."""

    cores = 2

    def __init__(self, value: float = 0.25) -> None:
        self.value = value

    def read(self) -> float:
        return self.value

    def close(self) -> None:
        """Holds nothing."""


def told(source: Any, **how: Any) -> Sampler:
    """A sampler that waits for nothing."""
    return Sampler(source, Cpu(), **how)  # type: ignore[arg-type]


class Stop:
    """What ends the sampler's thread: here it lets the clock run for as long as the thread would wait, so many
    times."""

    def __init__(self, clock: Clock, times: int) -> None:
        self.clock, self.times, self.waits_s = clock, times, list[float]()

    def wait(self, seconds: float) -> bool:
        self.clock.rest(seconds)
        self.waits_s.append(seconds)
        return len(self.waits_s) > self.times


def waits_s(sampler: Sampler, clock: Clock, times: int) -> list[float]:
    """How long it waits before each of so many readings, all in this thread."""
    stop = Stop(clock, times)
    sampler._thread = threading.current_thread()  # so that no look starts another one
    sampler._loop(stop)  # type: ignore[arg-type]
    sampler._thread = None
    return stop.waits_s[:-1]


def test_publishes_readings() -> None:
    sampler, begin_s = Sampler(Told(0.7)), time.monotonic()
    try:
        assert (sampler._latest.gpu, sampler._latest.source) == (None, "no reading yet")
        until(lambda: sampler.latest.gpu is not None)
        load = sampler.latest
        assert load.gpu == pytest.approx(0.7)
        assert (load.source, load.cores) == ("told", len(os.sched_getaffinity(0)))
        assert 0.0 <= load.cpu <= 1.0
        assert begin_s < load.when_s < time.monotonic()
        assert 0.0 <= load.age_s <= time.monotonic() - begin_s
    finally:
        sampler.close()


def test_nothing_runs_before_the_first_look() -> None:
    sampler = Sampler(Told())
    assert sampler._thread is None
    time.sleep(2.5 * PERIOD_S)
    assert sampler.samples == 0
    sampler.close()


def test_smoothing_follows_a_step() -> None:
    source = Told(0.0)
    sampler, now = Sampler(source), 10.0
    sampler._mean("x", 0.0, now)
    seen = [sampler._mean("x", 1.0, now + 0.1 * i) for i in range(1, 11)]
    assert seen == sorted(seen)  # type: ignore[type-var]
    assert seen[4] == pytest.approx(1.0 - math.exp(-2.0))  # two time constants
    assert sampler._mean("x", None, now + 2.0) == seen[-1]
    sampler.close()


def test_own_work_is_subtracted_where_the_source_can_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, sampler_module)
    for includes_own, wanted in ((True, 0.3), (False, 0.8)):
        sampler = told(Told(0.8, includes_own))
        sampler.sample()
        clock.rest(0.2)
        sampler._means.clear()
        for _ in range(10):
            sampler.used(0.01)
        sampler.sample()
        assert sampler.latest.gpu == pytest.approx(wanted)
        sampler.close()


def test_a_failing_source_is_said_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    source = Told(0.4)
    sampler = told(source)
    sampler.sample()
    for error, text in (
        (SourceError("/sys/x: gone"), "told failed: /sys/x: gone"),
        (OSError("driver"), "told failed: OSError('driver')"),
    ):
        source.error = error
        sampler.sample()
        sampler.sample()
        assert (sampler.latest.gpu, sampler.latest.source) == (None, text)
        assert sum(text in r.message for r in caplog.records) == 1
    source.error, source.value = None, 0.9
    sampler.sample()
    assert sampler.latest.gpu == pytest.approx(0.9)  # no mean with what was read before
    sampler.close()
    assert source.closed


def test_without_a_source_the_load_is_unknown() -> None:
    sampler = told(None)
    sampler.sample()
    assert (sampler.latest.gpu, sampler.latest.source) == (None, "no source")
    sampler.close()


def test_the_source_is_looked_for_in_the_thread() -> None:
    """Opening a session does not wait for a driver; what the search takes does not count as cost of readings."""
    looked: list[str] = []

    def find() -> tuple[Told, tuple[str, ...]]:
        looked.append(threading.current_thread().name)
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass
        return Told(0.7), ("other: absent",)

    sampler = Sampler(None, find=find)
    assert looked == []
    until(lambda: sampler.latest.gpu is not None)
    assert looked == ["ort_gpu_ep-load"]
    assert (sampler.latest.source, sampler.notes) == ("told", ("other: absent",))
    sampler.stop()
    _ = sampler.latest
    time.sleep(0.2)
    assert len(looked) == 1
    sampler.close()


def test_a_forked_child_leaves_the_driver_alone() -> None:
    for forkable in (True, False):
        source = Told(0.5)
        source.forkable = forkable
        sampler = told(source)
        sampler._forked()
        sampler.sample()
        assert sampler.latest.gpu == (0.5 if forkable else None)
        assert bool(sampler.notes) is not forkable
        assert sampler._orphan is source
        sampler.close()


def test_on_a_software_adapter_the_load_is_the_cpus() -> None:
    sampler = told(None, software=True)
    sampler.sample()
    assert sampler.latest.gpu == sampler.latest.cpu == 0.25
    assert sampler.latest.source == "CPU"
    sampler.close()


def test_backs_off_when_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, source = Clock(monkeypatch, sampler_module), Told()
    sampler = told(source)
    # it begins as if somebody had looked
    assert waits_s(sampler, clock, 6) == [PERIOD_S, PERIOD_S, 0.2, 0.4, 0.8, IDLE_PERIOD_S]
    monkeypatch.setattr(source, "read", lambda: sampler.latest and 0.5)
    # each reading after the first look
    assert waits_s(sampler, clock, 5) == [PERIOD_S, 2 * PERIOD_S, *[PERIOD_S] * 3]
    sampler.close()


@pytest.mark.parametrize("cost_s", [1e-5, 1e-4, 2e-3])
def test_an_expensive_source_is_read_less_often(cost_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often somebody looks, reading takes less than a thousandth of a core; a part of it that the source
    counts, too."""
    clock, readings = Clock(monkeypatch, sampler_module), 10

    class Busy(Told):
        def read(self) -> float | None:
            clock.spent_s += cost_s
            self.cost_s = cost_s
            return sampler.latest and 0.5

    sampler = told(Busy())
    waited_s = waits_s(sampler, clock, readings + 1)[1:]  # before each of the others but the first
    assert waited_s == pytest.approx([max(PERIOD_S, 2 * cost_s / SHARE)] * readings)
    assert sampler.cost_s == pytest.approx(2 * cost_s * (readings + 1))
    assert 2 * cost_s * readings < 0.001 * sum(waited_s)
    sampler.close()


def test_a_reading_costs_little() -> None:
    """All that the thread does ten times a second, where the source is the CPU's load: less than a thousandth of a
    core, by instructions."""
    sampler = Sampler(None, software=True)
    sampler.sample()
    assert steps(sampler.sample) < 5000
    sampler.close()


def test_looking_is_quick() -> None:
    sampler = Sampler(Told())
    _ = sampler.latest  # starts the thread
    assert steps(lambda: sampler.latest) < 30
    sampler.close()


def test_a_stopped_sampler_starts_again() -> None:
    sampler = Sampler(Told())
    _ = sampler.latest
    sampler.stop()
    assert sampler._thread is None
    before = sampler.samples
    _ = sampler.latest
    until(lambda: sampler.samples > before)
    sampler.close()


def test_survives_fork_and_exit() -> None:
    """The child has no thread, starts its own, and both end at once."""
    code = """
import os, time
from ort_gpu_ep.load.sampler import Sampler
sampler = Sampler(None, software=True)
def wait(n):
    end = time.monotonic() + 250
    while sampler.samples < n:
        assert time.monotonic() < end
        sampler.latest; time.sleep(0.02)
wait(2)
pid = os.fork()
if pid == 0:
    assert sampler._thread is None
    wait(sampler.samples + 2)
    assert 0 <= sampler.latest.cpu <= 1
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
wait(sampler.samples + 1)
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=500,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_file_tells_the_load(tmp_path: Path) -> None:
    path = tmp_path / "load"
    path.write_text("0.6 0.25")
    sampler = Sampler(FileSource(path))
    sampler.sample()
    assert (sampler.latest.gpu, sampler.latest.cpu) == (0.6, 0.25)
    path.write_text("unknown")
    assert FileSource(path).read() is None
    path.write_text("0.5")
    assert FileSource(path, software=True).cpu() == 0.5
    assert FileSource(path).cpu() is None
    path.write_text("much")
    sampler.sample()
    assert sampler.latest.gpu is None
    assert "got 'much', expected the GPU's load" in sampler.latest.source
    sampler.close()


# ---- the CPU


def proc_stat(root: Path, *lines: str) -> None:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/stat").write_text("\n".join([*lines, "intr 5 0 0", "ctxt 3"]) + "\n")


def test_cpu_load_from_the_kernels_counters(tmp_path: Path) -> None:
    """Of 200 ticks 100 are busy (2 stolen, 10 nice), 40 of them ours."""
    own = iter([1.0, 1.4])
    proc_stat(tmp_path, "cpu  1000 0 500 8000 100 0 10 0 300 0")
    load = CpuLoad(tmp_path, lambda: next(own))
    proc_stat(tmp_path, "cpu  1068 10 515 8095 105 1 14 2 300 0")
    assert load.read() == pytest.approx((100 - 40) / 200)
    load.close()


def test_no_tick_has_passed(tmp_path: Path) -> None:
    proc_stat(tmp_path, "cpu  1000 0 500 8000 100 0 10 0 300 0")
    load = CpuLoad(tmp_path, lambda: 0.0)
    assert load.read() is None
    load.close()


def test_a_process_bound_to_one_core_sees_that_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    proc_stat(tmp_path, "cpu  100 0 0 100 0 0 0 0", "cpu0 100 0 0 0 0 0 0 0", "cpu1 0 0 0 100 0 0 0 0")
    load = CpuLoad(tmp_path, lambda: 0.0)
    proc_stat(tmp_path, "cpu  220 0 0 180 0 0 0 0", "cpu0 200 0 0 0 0 0 0 0", "cpu1 20 0 0 180 0 0 0 0")
    assert load.read() == pytest.approx(0.2)
    assert load.cores == 1
    load.close()


def test_a_quota_bounds_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    proc_stat(tmp_path, "cpu  100 0 0 100 0 0 0 0")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    for text, wanted in (("250000 100000", 3), ("max 100000", 64), ("50000 100000", 1)):
        (tmp_path / "sys/fs/cgroup/cpu.max").write_text(text)
        assert CpuLoad(tmp_path, lambda: 0.0).cores == wanted


def test_no_proc_goes_by_psutil(tmp_path: Path) -> None:
    load = CpuLoad(tmp_path)
    time.sleep(0.1)
    found = load.read()
    assert found is None or 0.0 <= found <= 1.0
    assert load._file is None


def test_another_format_is_an_error(tmp_path: Path) -> None:
    proc_stat(tmp_path, "processors 3")
    with pytest.raises(SourceError, match="no line begins with 'cpu'"):
        CpuLoad(tmp_path)


def test_own_work_is_not_load() -> None:
    """For real: of two that look at the same cores, the one that knows of this process's work sees less."""
    without, with_own = CpuLoad(), CpuLoad(own_s=lambda: 0.0)

    def sees_less() -> bool:
        without.read(), with_own.read()
        start_s = time.process_time()
        while time.process_time() - start_s < 0.1:
            pass
        others, all_of_it = without.read(), with_own.read()
        return others is not None and all_of_it is not None and others < all_of_it

    until(sees_less, "own work counted once")  # others may begin and end between two readings
    without.close(), with_own.close()


def test_the_work_of_others_is_load() -> None:
    load = CpuLoad()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            until(lambda: (load.read() or 0.0) > 0.0, "load")
        finally:
            other.kill()
    load.close()


def test_workers_that_are_ours_are_not_load(tmp_path: Path) -> None:
    """Fields 14 and 15 of their stat, counted from the end of the name, which may hold spaces and brackets."""
    (tmp_path / "proc/77").mkdir(parents=True)
    (tmp_path / "proc/77/stat").write_text("77 (a (b) c) S 1 1 1 0 -1 4 10 0 0 0 150 50 0 0 20 0 1 0 100 0 0")
    own, workers_s = OwnTime(tmp_path, lambda: [77, 78]), 200 / os.sysconf("SC_CLK_TCK")
    before_s = time.process_time()
    assert before_s <= own() - workers_s <= time.process_time()
    (tmp_path / "proc/77/stat").unlink()  # it has ended: what it took was ours all the same
    before_s = time.process_time()
    assert before_s <= own() - workers_s <= time.process_time()
