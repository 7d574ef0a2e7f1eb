"""The roofs of an adapter: what is done in how many seconds, which are told; kernels that do their work."""

from __future__ import annotations

from dataclasses import astuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.calibration import roofs
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Buffer, Gpu
from ort_gpu_ep.errors import OutOfDeviceMemoryError, ShaderError
from ort_gpu_ep.kernels.cost_parameters import Roofs
from tests.patience import Clock


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return Gpu.open(Config())


def test_the_roofs_are_of_the_work_that_was_done(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a told clock, on which an adapter does 1e12 operations, and moves 1e11 bytes, in each second; a read takes 1
    us, a barrier 2; of workgroup memory it reads 3e12 bytes.
    """
    clock, job = Clock(monkeypatch, roofs), roofs._Job
    made, fill, download = job.__init__, job.fill, gpu.download
    doing: list[float] = [0.0]

    def begun(
        self: Any, bench: roofs.Bench, label: str, source: str, x: Any, y: Any, groups: int, times: int, want: Any
    ) -> None:
        made(self, bench, label, source, x, y, groups, times, want)
        self.told = label
        doing[0] = 2 * times * y[1] / 1e11

    def filled(self: Any, buffer: Buffer, offset: int, data: np.ndarray) -> None:
        fill(self, buffer, offset, data)
        steps = int(data[-1])
        if self.told == "fma":  # each invocation: so many steps of four times eight chains of four multiply-adds
            doing[0] = steps * self.groups * 64 * 4 * 8 * 4 * 2 / 1e12
        elif self.told == "hold":  # so many steps of eight vectors of 16 bytes
            doing[0] = steps * self.groups * 64 * 8 * 16 / 3e12
        elif self.told != "copy":
            doing[0] = steps * (1e-6 if self.told == "read" else 2 * 2e-6)

    def waited(*given: Any) -> None:
        download(*given)
        clock.rest(doing[0])

    monkeypatch.setattr(job, "__init__", begun)
    monkeypatch.setattr(job, "fill", filled)
    monkeypatch.setattr(gpu, "download", waited)
    assert astuple(roofs.measure_roofs(roofs.Bench(gpu))) == pytest.approx((1e12, 1e11, 1e-6, 2e-6, 3e12))


@pytest.mark.parametrize(("risen_s", "wakes_s"), [(0.1, 0.8), (0.7, 1.1), (9.0, 2.4)])
def test_a_gpu_at_rest_is_measured_when_its_clock_rises_no_more(
    monkeypatch: pytest.MonkeyPatch, risen_s: float, wakes_s: float
) -> None:
    """One that takes 10 ms a run at first, a tenth less in each tenth of a second, and 1 ms from risen_s on."""
    clock = Clock(monkeypatch, roofs)
    start_s = clock.now_s

    def run() -> float:
        at_s = clock.now_s - start_s
        taken_s = 1e-3 if at_s >= risen_s else 1e-2 * 0.9 ** int(10 * at_s)
        clock.rest(taken_s)
        return taken_s

    roofs._wake(SimpleNamespace(once_s=run), 0.8)  # type: ignore[arg-type]
    assert clock.now_s - start_s == pytest.approx(wakes_s, abs=0.03)


def test_little_memory_leaves_the_copy_out(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(nbytes: int) -> None:
        raise OutOfDeviceMemoryError("a test")

    monkeypatch.setattr(gpu, "allocate", none)
    assert roofs._nbytes_per_s(roofs.Bench(gpu)) == 0.0


def test_memory_is_given_back(gpu: Gpu) -> None:
    gpu.trim()
    before = gpu.stats.allocated_nbytes
    roofs.measure_roofs(roofs.Bench(gpu))
    gpu.trim()
    assert gpu.stats.allocated_nbytes == before


def test_a_shader_that_does_not_compile_is_said(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofs, "_FMA", "fn main( {")
    with pytest.raises(ShaderError, match="calibration/fma does not compile"):
        roofs.measure_roofs(roofs.Bench(gpu))


def test_kernels_that_do_not_do_their_work_give_no_roof(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofs, "_FMA", roofs._FMA.replace("i < steps", "i < 0u"))
    monkeypatch.setattr(roofs, "_COPY", roofs._COPY.replace("let i =", "let i = 0u *"))
    monkeypatch.setattr(roofs, "_READ", roofs._READ.replace("place = x[place]", "place = i"))
    monkeypatch.setattr(roofs, "_MEETING", roofs._MEETING.replace("] + 1u", "]"))
    monkeypatch.setattr(roofs, "_HOLD", roofs._HOLD.replace("held[at + 24u]", "held[lane + 25u]"))
    assert roofs.measure_roofs(roofs.Bench(gpu)) == Roofs()


def test_beside_a_busy_program_the_hosts_clock_does_not_count(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a profile would say for good that the adapter is as slow as the host was then."""
    assert roofs.measure_roofs(roofs.Bench(gpu, busy=True)) == Roofs()
    assert all(astuple(roofs.measure_roofs(roofs.Bench(gpu))))

    told = SimpleNamespace(writes=lambda step: None, resolve=lambda encoder: None, read_s=lambda: 1e-5)
    monkeypatch.setattr(roofs, "LONG_S", 3600.0)  # waits count as short ones: such a reading is believed
    assert roofs._nbytes_per_s(roofs.Bench(gpu, told, True)) == pytest.approx(2 * 128 * 2**20 / 1e-5)  # type: ignore[arg-type]


def test_which_clock_is_believed() -> None:
    assert roofs.believed_s(2.4e-3, 2.5e-3) == 2.4e-3
    assert roofs.believed_s(5e-6, 2.5e-3) == 2.5e-3  # it missed the kernel
    assert roofs.believed_s(3e-3, 2.5e-3) == 2.5e-3
    assert roofs.believed_s(0.0, 1e-4) == 1e-4
    assert roofs.believed_s(2e-5, 1.2e-4) == 2e-5  # most of a short wait is the host's
