"""The load generator keeps the adapter busy for the part of time that it is told, and its process ends with the block or with us."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ort_gpu_ep.device.adapter import choose, order_among_equals
from ort_gpu_ep.device.timed_dispatch import LazyTimedDispatch, TimedDispatch
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.load.generator import DUTY, LoadGenerator
from ort_gpu_ep.load.probe import DispatchProbe
from ort_gpu_ep.utilization import EDGES

ROOT = Path(__file__).parents[2]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def cpu_share(pid: int, seconds: float) -> float:
    process = psutil.Process(pid)
    before, start = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - start)


def test_levels_lie_in_their_bands() -> None:
    assert [sum(duty > edge for edge in EDGES) for duty in DUTY.values()] == [1, 2, 3]


@pytest.mark.alone
def test_it_computes_as_long_as_told_and_ends() -> None:
    """On the software adapter its work is CPU time; other work on the machine makes it less, so the order is what counts."""
    info, shares = choose("software")[0], {}
    for level in ("low", "high"):
        with LoadGenerator(info, level, threads=1) as load:
            pid = load.pid
            assert psutil.Process(pid).environ()["LP_NUM_THREADS"] == "1"
            shares[level] = max(cpu_share(pid, 1.0) for _ in range(2))
        assert load.pid == 0
        assert gone(pid)
    assert 0.15 <= shares["low"] <= 0.6
    assert 1.3 * shares["low"] < shares["high"] < 1.2        # of one core


def test_it_ends_with_who_started_it() -> None:
    code = ("from ort_gpu_ep.device.adapter import choose\nfrom ort_gpu_ep.load.generator import LoadGenerator\nimport time\n"
            "with LoadGenerator(choose('software')[0], 0.1) as load:\n    print(load.pid, flush=True)\n    time.sleep(60)\n")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.send_signal(signal.SIGKILL)
    end = time.monotonic() + 10
    while not gone(pid):
        assert time.monotonic() < end, "it outlives its parent"
        time.sleep(0.05)


def test_an_adapter_that_is_not_there() -> None:
    info = dataclasses.replace(choose("software")[0], index=99)
    with pytest.raises(AdapterError, match="no such adapter"), LoadGenerator(info, "low"):
        pass


@pytest.mark.alone
def test_timed_dispatches_take_longer_the_more_they_do() -> None:
    info = choose("")[0]
    short, long = TimedDispatch(info), TimedDispatch(info, iterations=1 << 22)
    short(), long()
    assert min(long() for _ in range(3)) > 2.0 * min(short() for _ in range(5))
    assert min(long(4) for _ in range(5)) > 2.0 * min(long() for _ in range(5))
    short.close(), long.close()


def test_the_probe_works_on_a_real_adapter() -> None:
    lazy = LazyTimedDispatch(choose("")[0])
    assert lazy._dispatch is None
    source = DispatchProbe(lazy)
    assert lazy._dispatch is not None
    assert 0.0 < source.idle_s < 0.1
    assert 0.0 <= (source.read() or 0.0) <= 1.0
    lazy._dispatch.close()


def test_order_among_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    first = choose("")[0]
    others = [dataclasses.replace(first, index=i, device_id=d, backend=b) for i, (d, b) in
              enumerate([(7, "Vulkan"), (8, "Vulkan"), (7, "D3D12"), (7, "Vulkan")])]
    monkeypatch.setattr("ort_gpu_ep.device.adapter._enumerate", lambda: [(info, None) for info in others])
    assert [order_among_equals(info) for info in others] == [0, 0, 0, 1]
