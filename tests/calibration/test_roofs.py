"""The roofs of this machine's adapter: measured, plausible, and no kernel is above them."""

from __future__ import annotations

import numpy as np
import pytest

from ort_gpu_ep.calibration import roofs
from ort_gpu_ep.calibration.measure import Job
from ort_gpu_ep.calibration.workloads import random, single
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import OutOfDeviceMemoryError, ShaderError


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return Gpu.open(Config())


def test_no_product_is_faster_than_the_roof(gpu: Gpu) -> None:
    flops_per_s, nbytes_per_s = roofs.measure_roofs(gpu, None)
    job, n = Job(gpu, single("MatMul", (512, 512), [random((512, 512))])), 512
    try:
        job.run()
        taken_s = min(roofs._time(job.run) for _ in range(3))
    finally:
        job.close()
    assert flops_per_s > 2 * n**3 / taken_s
    array = np.zeros(1 << 24, np.uint8)
    assert 1e8 < nbytes_per_s < 20 * 2 * array.nbytes / min(roofs._time(array.copy) for _ in range(3))


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


def test_a_shader_that_does_not_compile_is_said(gpu: Gpu) -> None:
    with pytest.raises(ShaderError, match="calibration/fma does not compile"):
        roofs._pipeline(gpu, "fma", "fn main( {")
