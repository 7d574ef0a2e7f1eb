"""The load generator keeps the adapter busy for the part of time that it is told, and its process ends with the block
or with us."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from ort_gpu_ep.device.adapter import choose, order_among_equals
from ort_gpu_ep.device.timed_dispatch import LazyTimedDispatch, TimedDispatch
from ort_gpu_ep.drills import busy
from ort_gpu_ep.drills.generator import DUTY, LoadGenerator
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.load.probe import DispatchProbe
from ort_gpu_ep.utilization import EDGES
from tests.patience import Clock, until

ROOT = Path(__file__).parents[2]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


class Machine:
    """In place of the adapter: it takes EACH_S for one dispatch, by a clock that only work and rest move, and ends
    after a second."""

    EACH_S = 0.7e-3

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.worked_s = Clock(monkeypatch, busy), 0.0
        self.began_s = self.clock.now_s
        monkeypatch.setattr(busy, "choose", lambda name: [None])
        monkeypatch.setattr(busy, "_calibrated", lambda info: self.work)
        monkeypatch.setattr(busy, "_end_with_parent", lambda: None)

    def work(self, dispatches: int) -> None:
        if self.clock.now_s - self.began_s >= 1.0:
            raise StopIteration
        self.clock.rest(dispatches * self.EACH_S)
        self.worked_s += dispatches * self.EACH_S


@pytest.mark.parametrize("level", DUTY)
def test_it_computes_as_long_as_told(
    level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A submission is begun while there is time for a part of it."""
    machine = Machine(monkeypatch)
    with pytest.raises(StopIteration):
        busy.main("software", DUTY[level])
    assert capsys.readouterr().out == "ready\n"
    longer = busy.TOGETHER * machine.EACH_S / busy.PERIOD_S
    assert DUTY[level] <= machine.worked_s <= min(DUTY[level] + longer, 1.0) + 1e-9


def test_levels_lie_in_their_bands() -> None:
    assert [sum(duty > edge for edge in EDGES) for duty in DUTY.values()] == [1, 2, 3]


def test_it_computes_and_ends() -> None:
    """On the software adapter its work is CPU time."""
    with LoadGenerator(choose("software")[0], "low", threads=1) as load:
        process = psutil.Process(load.pid)
        assert process.environ()["LP_NUM_THREADS"] == "1"
        assert process.cmdline()[-1] == str(DUTY["low"])
        before_s = sum(process.cpu_times()[:2])
        until(lambda: sum(process.cpu_times()[:2]) > before_s + 0.2, "work")
    assert load.pid == 0
    assert gone(process.pid)


def test_it_ends_with_who_started_it() -> None:
    code = (
        "from ort_gpu_ep.device.adapter import choose\nfrom ort_gpu_ep.drills.generator import "
        "LoadGenerator\nimport time\n"
        "with LoadGenerator(choose('software')[0], 0.1) as load:\n    print(load.pid, flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.send_signal(signal.SIGKILL)
    until(lambda: gone(pid), "its end: it outlives its parent")


def test_an_adapter_that_is_not_there() -> None:
    info = dataclasses.replace(choose("software")[0], index=99)
    with pytest.raises(AdapterError, match="no such adapter"), LoadGenerator(info, "low"):
        pass


@pytest.mark.parametrize(("iterations", "dispatches"), [(1, 1), (256, 1), (1000, 3)])
def test_timed_dispatches_do_all_of_their_work(iterations: int, dispatches: int) -> None:
    """Each goes through the whole chain of multiply-adds, over what the one before has left: that is what takes the
    time."""
    timed, want = TimedDispatch(choose("")[0], iterations=iterations), np.zeros(64, np.uint32)
    for _ in range(dispatches):
        want += np.arange(64, dtype=np.uint32)
        for _ in range(iterations):
            want = want * np.uint32(1664525) + np.uint32(1013904223)
    got, took_s = timed._single.run(1, dispatches, want.nbytes)
    np.testing.assert_array_equal(np.frombuffer(got, np.uint32), want)
    assert took_s > 0.0
    timed.close()


def test_the_probe_works_on_a_real_adapter() -> None:
    lazy = LazyTimedDispatch(choose("")[0])
    assert lazy._dispatch is None
    source = DispatchProbe(lazy)
    assert lazy._dispatch is not None
    assert 0.0 < source.idle_s < 1.0
    assert 0.0 <= (source.read() or 0.0) <= 1.0
    lazy._dispatch.close()


def test_order_among_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    first = choose("")[0]
    others = [
        dataclasses.replace(first, index=i, device_id=d, backend=b)
        for i, (d, b) in enumerate([(7, "Vulkan"), (8, "Vulkan"), (7, "D3D12"), (7, "Vulkan")])
    ]
    monkeypatch.setattr("ort_gpu_ep.device.adapter._enumerate", lambda: [(info, None) for info in others])
    assert [order_among_equals(info) for info in others] == [0, 0, 0, 1]
