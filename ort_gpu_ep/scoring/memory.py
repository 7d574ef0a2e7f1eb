"""Arrays in shared memory, as Arrow IPC tensors, read without a copy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Protocol

import numpy as np

from ort_gpu_ep.errors import ScoringError
from ort_gpu_ep.scoring.columns import Array

FOLDER = "/dev/shm"

Layout = tuple[tuple[str, str], ...]
"""(name, type) of the arrays in the order in which they lie there."""


class Opened(Protocol):
    """Arrays that a worker reads."""

    @property
    def arrays(self) -> Mapping[str, Array]: ...

    def close(self) -> bool:
        """Whether they could be given back: as long as there are other views of them, they can't."""


class Source(Protocol):
    """Where a worker finds the arrays of a shard; plain data. name: another one for other arrays."""

    @property
    def name(self) -> str: ...

    def open(self) -> Opened: ...


class Held(Protocol):
    """Arrays that workers can have, until they are released."""

    @property
    def source(self) -> Source: ...

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """Shared memory of this name with arrays of this layout."""

    name: str
    layout: Layout

    def open(self) -> Mapped:
        memory = SharedMemory(self.name)
        return Mapped(memory, _views(memory, self.layout))

    def take(self) -> dict[str, Array]:
        """Copies of the arrays that another process has put there; the memory is gone afterwards."""
        opened = self.open()
        try:
            return {key: array.copy() for key, array in opened.arrays.items()}
        finally:
            opened.unlink()


class Mapped:
    """A piece of shared memory in this process, and views of its arrays."""

    def __init__(self, memory: SharedMemory, arrays: Mapping[str, Array]) -> None:
        self.arrays, self._memory = arrays, memory

    def close(self) -> bool:
        self.arrays = {}
        try:
            self._memory.close()
        except BufferError:
            return False
        return True

    def unlink(self) -> None:
        self._memory.unlink()
        self.close()


class Owned:
    """Shared memory that this process has made."""

    def __init__(self, memory: SharedMemory, layout: Layout) -> None:
        self.source, self._mapped = Segment(memory.name, layout), Mapped(memory, {})

    def close(self) -> None:
        """Leaves it to whoever knows its name."""
        self._mapped.close()

    def release(self) -> None:
        self._mapped.unlink()


def put(name: str, arrays: Mapping[str, Array]) -> Owned:
    """New shared memory with these arrays. Raises ScoringError where the system has not got so much."""
    import pyarrow as pa

    tensors = [
        pa.Tensor.from_numpy(np.ascontiguousarray(a).view(np.uint8) if a.dtype == bool else np.ascontiguousarray(a))
        for a in arrays.values()
    ]
    nbytes = sum(pa.ipc.get_tensor_size(t) for t in tensors) + 64
    free = shutil.disk_usage(FOLDER).free if os.path.isdir(FOLDER) else nbytes
    if nbytes > free:  # memory that is promised and not there ends a process by SIGBUS
        raise ScoringError(
            f"shared memory: {nbytes:,} bytes are needed, {FOLDER} has {free:,} left. Make it larger "
            "(docker run --shm-size=8g), or score with fewer rows in a shard (--shard-rows)"
        )
    memory = SharedMemory(name, create=True, size=nbytes)
    stream = pa.FixedSizeBufferWriter(pa.py_buffer(memory.buf))
    for tensor in tensors:
        pa.ipc.write_tensor(tensor, stream)
    stream.close()
    return Owned(memory, tuple((key, array.dtype.name) for key, array in arrays.items()))


def _views(memory: SharedMemory, layout: Layout) -> dict[str, Array]:
    import pyarrow as pa

    stream = pa.BufferReader(pa.py_buffer(memory.buf))
    views = {}
    for name, dtype in layout:
        array: np.ndarray[Any, Any] = pa.ipc.read_tensor(stream).to_numpy()
        views[name] = array.view(bool) if dtype == "bool" else array
    return views


def remove(name: str) -> None:
    """What a process that is gone may have left."""
    with suppress(FileNotFoundError):
        Mapped(SharedMemory(name), {}).unlink()
