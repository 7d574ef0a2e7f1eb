"""The roofs of this machine's adapter: measured, plausible, and no kernel is above them."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from ort_gpu_ep.calibration import roofs
from ort_gpu_ep.calibration.measure import Job
from ort_gpu_ep.calibration.workloads import random, single
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import OutOfDeviceMemoryError, ShaderError
from tests.patience import work_s


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return Gpu.open(Config())


def test_no_product_is_faster_than_the_roof(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds of a CPU, on all sides: a software adapter's work is this process's, whatever others do."""
    assert gpu.info.is_software
    monkeypatch.setattr(roofs, "time", SimpleNamespace(perf_counter=time.process_time))
    flops_per_s, nbytes_per_s = roofs.measure_roofs(gpu, None)
    job, n = Job(gpu, single("MatMul", (512, 512), [random((512, 512))])), 512
    try:
        job.run()
        taken_s = min(work_s(job.run) for _ in range(3))
    finally:
        job.close()
    assert flops_per_s > 2 * n**3 / taken_s
    array = np.zeros(1 << 24, np.uint8)
    assert 1e8 < nbytes_per_s < 20 * 2 * array.nbytes / min(work_s(array.copy) for _ in range(3))


def test_little_memory_leaves_the_copy_out(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(nbytes: int) -> None:
        raise OutOfDeviceMemoryError("a test")

    monkeypatch.setattr(gpu, "allocate", none)
    assert roofs._nbytes_per_s(gpu, None) == 0.0


def test_memory_is_given_back(gpu: Gpu) -> None:
    gpu.trim()
    before = gpu.stats.allocated_nbytes
    roofs.measure_roofs(gpu, None)
    gpu.trim()
    assert gpu.stats.allocated_nbytes == before


def test_a_shader_that_does_not_compile_is_said(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofs, "_FMA", "fn main( {")
    with pytest.raises(ShaderError, match="calibration/fma does not compile"):
        roofs.measure_roofs(gpu, None)


def test_kernels_that_do_not_do_their_work_give_no_roof(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofs, "_FMA", roofs._FMA.replace("i < steps", "i < 0u"))
    monkeypatch.setattr(roofs, "_COPY", roofs._COPY.replace("let i =", "let i = 0u *"))
    assert roofs.measure_roofs(gpu, None) == (0.0, 0.0)


def test_which_clock_is_believed() -> None:
    assert roofs.believed_s(2.4e-3, 2.5e-3) == 2.4e-3
    assert roofs.believed_s(5e-6, 2.5e-3) == 2.5e-3        # it missed the kernel
    assert roofs.believed_s(3e-3, 2.5e-3) == 2.5e-3
    assert roofs.believed_s(0.0, 1e-4) == 1e-4
    assert roofs.believed_s(2e-5, 1.2e-4) == 2e-5          # most of a short wait is the host's
