"""The map from addresses to GPU buffers, checked against plain memory; and the weights on disk."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ort_gpu_ep.config import resolve
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import DeviceError, InternalError, OutOfDeviceMemoryError
from ort_gpu_ep.plugin import weight_file
from ort_gpu_ep.plugin.memory import Memory
from ort_gpu_ep.plugin.reservation import Reservation
from tests.patience import PATIENCE_S

NBYTES = 4096


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return Gpu.open(resolve())


@pytest.fixture(scope="module")
def space() -> Memory:
    return Memory()


@pytest.fixture
def block(space: Memory) -> Iterator[int]:
    address = space.allocate(NBYTES, None)
    yield address
    space.free(address)


def put(space: Memory, gpu: Gpu | None, address: int, data: Any) -> None:
    space.copy_in(gpu, address, data.ctypes.data, data.nbytes)


def fetch(space: Memory, address: int, nbytes: int) -> Any:
    data = np.empty(nbytes, np.uint8)
    space.copy_out(address, data.ctypes.data, nbytes)
    return data


@pytest.mark.parametrize(
    ("start", "nbytes", "stays"),
    [(0, 64, True), (8, 4, True), (NBYTES - 3, 3, False), (0, 6, False), (NBYTES - 6, 6, False)],
    ids=["begin", "inside", "odd", "not whole words", "odd end"],
)
def test_a_part_is_uploaded_where_the_value_is(
    start: int, nbytes: int, stays: bool, space: Memory, block: int, gpu: Gpu, rng: np.random.Generator
) -> None:
    """A recording of what reads the whole holds. The GPU writes whole words: what they would spoil moves."""
    whole, part = rng.integers(0, 255, NBYTES, np.uint8), rng.integers(0, 255, nbytes, np.uint8)
    put(space, gpu, block, whole)
    piece, version = space.piece_of(block, NBYTES), space.version
    put(space, gpu, block + start, part)
    assert (space.version == version, space.piece_of(block, NBYTES) is piece) == (stays, stays)
    whole[start : start + nbytes] = part
    np.testing.assert_array_equal(fetch(space, block, NBYTES), whole)


def test_a_part_of_what_another_value_has_too_is_not_uploaded_there(
    space: Memory, block: int, gpu: Gpu, rng: np.random.Generator
) -> None:
    whole, part, other = rng.integers(0, 255, NBYTES, np.uint8), np.zeros(64, np.uint8), space.allocate(NBYTES, None)
    put(space, gpu, block, whole)
    space.copy(gpu, block, other, NBYTES)
    put(space, gpu, block, part)
    np.testing.assert_array_equal(fetch(space, other, NBYTES), whole)
    space.free(other)


def test_what_was_uploaded_last_is_read_back_without_the_gpu(
    space: Memory, block: int, gpu: Gpu, rng: np.random.Generator
) -> None:
    whole = rng.integers(0, 255, NBYTES, np.uint8)
    put(space, gpu, block, whole)
    before = gpu.stats.downloads
    np.testing.assert_array_equal(fetch(space, block + 5, 100), whole[5:105])
    assert gpu.stats.downloads == before
    space.write(gpu, block, NBYTES)  # by a run
    fetch(space, block, NBYTES)
    assert gpu.stats.downloads == before + 1


ranges = st.tuples(st.integers(0, 60), st.integers(1, 30)).map(
    lambda t: (t[0] * 64, min(t[1] * 32, NBYTES - t[0] * 64))
)
kinds = st.sampled_from(["put", "host", "copy", "read", "fetch"])
actions = st.lists(st.tuples(kinds, ranges, st.integers(0, 30)), min_size=1, max_size=12)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(actions)
def test_it_behaves_like_memory(space: Memory, gpu: Gpu, actions: list[Any]) -> None:
    """Writes, copies and reads of overlapping ranges, on the GPU and on the host, give what plain memory gives."""
    address = space.allocate(NBYTES, None)
    model, rng = np.zeros(NBYTES, np.uint8), np.random.default_rng(0)
    put(space, gpu, address, model)
    for action, (start, nbytes), other in actions:
        if action in ("put", "host"):
            data = rng.integers(0, 255, nbytes, np.uint8)
            put(space, gpu if action == "put" else None, address + start, data)
            model[start : start + nbytes] = data
        elif action == "copy":
            to = other * 64
            nbytes = min(nbytes, NBYTES - to)
            space.copy(gpu, address + start, address + to, nbytes)
            model[to : to + nbytes] = model[start : start + nbytes].copy()
        elif action == "read":
            storage, offset = space.read(gpu, address + start, nbytes)
            assert offset % 256 == 0
            data = np.empty(nbytes, np.uint8)
            assert storage.buffer is not None
            gpu.download(storage.buffer, offset, data.ctypes.data, nbytes)
            np.testing.assert_array_equal(data, model[start : start + nbytes])
            space.release([storage])
        else:
            np.testing.assert_array_equal(fetch(space, address + start, nbytes), model[start : start + nbytes])
    np.testing.assert_array_equal(fetch(space, address, NBYTES), model)
    space.free(address)


def test_everything_is_given_back(space: Memory, gpu: Gpu) -> None:
    before = gpu.stats.allocated_nbytes - gpu.stats.pooled_nbytes
    address = space.allocate(NBYTES, None)
    put(space, gpu, address, np.zeros(NBYTES, np.uint8))
    put(space, gpu, address + 1024, np.zeros(512, np.uint8))
    space.copy(gpu, address, address + 2048, 512)
    assert gpu.stats.allocated_nbytes - gpu.stats.pooled_nbytes > before
    space.free(address)
    assert gpu.stats.allocated_nbytes - gpu.stats.pooled_nbytes == before


def test_a_range_that_a_run_reads_is_not_overwritten(space: Memory, gpu: Gpu, block: int) -> None:
    put(space, gpu, block, np.ones(256, np.uint8))
    pinned, _ = space.read(gpu, block, 256)
    target, _ = space.write(gpu, block, 256)
    assert target.buffer is not pinned.buffer
    assert space.write(gpu, block, 256)[0] is target
    space.release([pinned])


def test_steady_states_repeat_addresses_and_buffers(space: Memory, gpu: Gpu) -> None:
    def once() -> tuple[int, Any]:
        address = space.allocate(1000, None)
        buffer = space.write(gpu, address, 1000)[0].buffer
        space.free(address)
        return address, buffer

    assert once() == once()


def test_nothing_needs_a_gpu_buffer_before_it_is_written(space: Memory) -> None:
    address = space.allocate(1 << 40, None)
    space.free(address)


def test_no_bytes(space: Memory, gpu: Gpu) -> None:
    storage, _ = space.read(gpu, 0, 0)
    assert storage.buffer is not None
    space.write(gpu, 0, 0)
    space.copy_in(gpu, 0, 0, 0)
    space.copy_out(0, 0, 0)
    space.release([storage])


def test_stray_addresses_are_errors(space: Memory, gpu: Gpu, block: int) -> None:
    with pytest.raises(InternalError, match="not inside a live block"):
        space.read(gpu, block, NBYTES + 1)
    with pytest.raises(InternalError, match="freed twice"):
        space.free(block + 256)
    assert not space.owns(ctypes.addressof(ctypes.c_int()))


def test_after_a_fork_only_host_memory_works(gpu: Gpu) -> None:
    space = Memory()
    address = space.allocate(NBYTES, None)
    put(space, gpu, address, np.ones(256, np.uint8))
    put(space, None, address + 256, np.full(256, 2, np.uint8))
    space.after_fork()
    np.testing.assert_array_equal(fetch(space, address + 256, 256), np.full(256, 2))
    for use in (
        lambda: fetch(space, address, 256),
        lambda: space.read(gpu, address, 256),
        lambda: space.write(gpu, address, 256),
    ):
        with pytest.raises(DeviceError, match="forked child"):
            use()
    space.free(address)


def test_address_space_runs_out_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_gpu_ep.plugin.reservation._WANTED_NBYTES", 1 << 33)
    space = Reservation()
    first = space.take(1 << 32)
    space.take(1 << 32)
    with pytest.raises(OutOfDeviceMemoryError, match="address space"):
        space.take(1)
    space.give_back(first)
    assert space.take(1 << 32) == first


def test_arrays_come_back_from_the_file(tmp_path: Path) -> None:
    file = weight_file.WeightFile(str(tmp_path), 10_000)
    arrays = {
        "a": np.arange(100, dtype=np.int64),
        "b": np.ones((3, 5, 7), np.float16),
        "c": np.arange(12.0).reshape(3, 4).T,
    }
    for name, array in arrays.items():
        file.add(name, array)
    file.close_writing()
    for name, array in arrays.items():
        np.testing.assert_array_equal(file.load(name), array)
    file.remove()
    assert not list(tmp_path.glob("weights/*/*"))


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="are free"):
        weight_file.WeightFile(str(tmp_path), 1 << 60)


def test_folders_of_dead_processes_go_and_those_of_live_ones_stay(tmp_path: Path, python: Callable[..., Any]) -> None:
    code = f"""
from ort_gpu_ep.plugin import weight_file
file = weight_file.WeightFile({str(tmp_path)!r}, 10)
file.add("a", np.ones(3))
file.close_writing()
"""
    python(code + "os._exit(1)")
    assert len(list(tmp_path.glob("weights/*/*.bin"))) == 1
    mine = weight_file.WeightFile(str(tmp_path), 10)
    assert list(tmp_path.glob("weights/*/*.bin")) == [mine.path]
    python(code)
    assert list(tmp_path.glob("weights/*/*.bin")) == [mine.path]
    assert len(list(tmp_path.glob("weights/*"))) == 2
    mine.remove()


def test_a_free_waits_for_nobody(gpu: Gpu) -> None:
    """A value may be collected on a thread that has the GPU's lock, while another one has this lock and waits for the
    GPU's."""
    space = Memory()
    address, held, end = space.allocate(64, None), threading.Event(), threading.Event()

    def hold() -> None:
        with space._lock:
            held.set()
            end.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    freeing = threading.Thread(target=space.free, args=(address,), daemon=True)
    freeing.start()
    freeing.join(PATIENCE_S / 10)
    waits = freeing.is_alive()
    end.set()
    holder.join()
    assert not waits
    space.free(space.allocate(64, None))
    assert address not in space._blocks
