"""The pool of freed buffers: what waits in it is bounded, and makes room where the driver has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import gpu as gpu_module
from ort_gpu_ep.device.adapter import choose
from ort_gpu_ep.device.buffers import POOL_FACTOR, POOL_NBYTES, Buffer, Buffers
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.errors import DeviceError, OutOfDeviceMemoryError
from ort_gpu_ep.webgpu.library import GPUError

MIB = 1 << 20


class Memory:
    """A driver that has so many bytes. made: how many buffers it was asked for."""

    def __init__(self, nbytes: int) -> None:
        self.left_nbytes, self.made = nbytes, 0

    def create_buffer(self, label: str, size: int, usage: int) -> Any:
        self.made += 1
        if size > self.left_nbytes:
            raise GPUError("out of memory")
        self.left_nbytes -= size

        def destroy() -> None:
            self.left_nbytes += size

        return SimpleNamespace(handle=None, destroy=destroy)


class Pool(Buffers):
    def __init__(self, nbytes: int) -> None:
        super().__init__(choose("")[0], Memory(nbytes), SimpleNamespace(max_buffer_nbytes=1 << 40))  # type: ignore[arg-type]
        self.flushed = 0

    def check_alive(self) -> None: ...

    def flush(self) -> None:
        self.flushed += 1

    def failure(self, error: Exception, what: str) -> DeviceError:
        return OutOfDeviceMemoryError(f"{what}: {error}")


def test_a_state_that_grows_leaves_no_more_than_it_needs() -> None:
    """Each step reads a state and writes a larger one, as a decoder's cache: all within the age at which buffers go by
    themselves."""
    pool = Pool(1 << 50)
    state, most = pool.allocate(MIB), 0
    for step in range(2, 400):
        following = pool.allocate(step * MIB)
        most = max(most, pool.stats.allocated_nbytes - pool.stats.pooled_nbytes)
        pool.free(state)
        state = following
        assert pool.stats.pooled_nbytes <= POOL_FACTOR * most + POOL_NBYTES
    assert pool.device.made < 100  # a size of the pool serves several steps


def test_values_of_two_sizes_take_turns_without_new_buffers() -> None:
    pool = Pool(1 << 50)
    for _ in range(20):
        for size in (300, 380):
            one: list[Buffer] = [pool.allocate(size * MIB) for _ in range(2)]
            for buffer in one:
                pool.free(buffer)
    assert pool.device.made == 4
    assert not pool.flushed


def test_what_waits_makes_room_where_the_driver_has_none() -> None:
    pool = Pool(100 * MIB)
    pool.free(pool.allocate(60 * MIB))
    assert pool.allocate(80 * MIB).nbytes == 80 * MIB
    with pytest.raises(OutOfDeviceMemoryError, match="held"):
        pool.allocate(80 * MIB)


def test_a_large_readback_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU copies ahead of the host; what fails half-way leaves nothing behind."""
    monkeypatch.setattr(gpu_module, "READBACK_NBYTES", 64 << 10)
    gpu = Gpu.open(Config())
    data = np.random.default_rng(0).integers(0, 256, 1_000_002, np.uint8)
    buffer = gpu.allocate(data.nbytes)
    gpu.upload(buffer, 0, data.ctypes.data, data.nbytes)
    got, small = np.zeros_like(data), np.zeros(5, np.uint8)
    before = gpu.stats.downloads
    gpu.download_all(
        [((buffer, 0, data.nbytes), got.ctypes.data), ((buffer, 8, 5), small.ctypes.data), ((buffer, 0, 0), 0)]
    )
    np.testing.assert_array_equal(got, data)
    np.testing.assert_array_equal(small, data[8:13])
    assert gpu.stats.downloads - before == 17  # sixteen parts of the large piece, and the small one

    def fail(index: int, source: int) -> None:
        raise OSError("the host is full")

    expected = len(gpu.device.expected)
    for _ in range(3):
        with pytest.raises(OSError, match="full"):
            gpu.lend([(buffer, 0, 60_000)] * 6, fail)
    assert len(gpu.device.expected) <= expected + 3  # mappings that were given up may yet be reported
    got[:] = 0
    gpu.download(buffer, 0, got.ctypes.data, data.nbytes)
    np.testing.assert_array_equal(got, data)
    gpu.free(buffer)
