"""The pool of freed buffers: what waits in it is bounded, and makes room where the driver has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ort_gpu_ep.device.adapter import choose
from ort_gpu_ep.device.buffers import POOL_FACTOR, POOL_NBYTES, Buffer, Buffers
from ort_gpu_ep.device.library import GPUError
from ort_gpu_ep.errors import DeviceError, OutOfDeviceMemoryError

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
        super().__init__(choose("")[0], Memory(nbytes), SimpleNamespace(max_buffer_nbytes=1 << 40))      # type: ignore[arg-type]
        self.flushed = 0

    def check_alive(self) -> None: ...

    def flush(self) -> None:
        self.flushed += 1

    def failure(self, error: Exception, what: str) -> DeviceError:
        return OutOfDeviceMemoryError(f"{what}: {error}")


def test_a_state_that_grows_leaves_no_more_than_it_needs() -> None:
    """Each step reads a state and writes a larger one, as a decoder's cache: all within the age at which buffers go by themselves."""
    pool = Pool(1 << 50)
    state, most = pool.allocate(MIB), 0
    for step in range(2, 400):
        following = pool.allocate(step * MIB)
        most = max(most, pool.stats.allocated_nbytes - pool.stats.pooled_nbytes)
        pool.free(state)
        state = following
        assert pool.stats.pooled_nbytes <= POOL_FACTOR * most + POOL_NBYTES
    assert pool.device.made < 100       # a size of the pool serves several steps


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
