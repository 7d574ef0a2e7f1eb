"""Arrays in shared memory, as Arrow's IPC tensors: what is there is read where it lies."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from ort_gpu_ep.errors import ScoringError
from ort_gpu_ep.scoring.columns import Array

FOLDER = "/dev/shm"

Layout = tuple[tuple[str, str], ...]
"""(name, type) of the arrays in the order in which they lie there."""


def put(name: str, arrays: Mapping[str, Array]) -> tuple[SharedMemory, Layout]:
    """New shared memory with these arrays. Raises ScoringError where the system has not got so much."""
    import pyarrow as pa

    tensors = [pa.Tensor.from_numpy(np.ascontiguousarray(a).view(np.uint8) if a.dtype == bool else np.ascontiguousarray(a))
               for a in arrays.values()]
    nbytes = sum(pa.ipc.get_tensor_size(t) for t in tensors) + 64
    free = shutil.disk_usage(FOLDER).free if os.path.isdir(FOLDER) else nbytes
    if nbytes > free:       # memory that is promised and not there ends a process by SIGBUS
        raise ScoringError(f"shared memory: {nbytes:,} bytes are needed, {FOLDER} has {free:,} left. Make it larger "
                           "(docker run --shm-size=8g), or score with fewer rows in a shard (--shard-rows)")
    memory = SharedMemory(name, create=True, size=nbytes)
    stream = pa.FixedSizeBufferWriter(pa.py_buffer(memory.buf))
    for tensor in tensors:
        pa.ipc.write_tensor(tensor, stream)
    stream.close()
    return memory, tuple((key, array.dtype.name) for key, array in arrays.items())


def get(memory: SharedMemory, layout: Layout) -> dict[str, Array]:
    """Views of the arrays. They must be gone before the memory is closed."""
    import pyarrow as pa

    stream = pa.BufferReader(pa.py_buffer(memory.buf))
    found = {}
    for name, dtype in layout:
        array: np.ndarray[Any, Any] = pa.ipc.read_tensor(stream).to_numpy()
        found[name] = array.view(bool) if dtype == "bool" else array
    return found


def take(name: str, layout: Layout) -> dict[str, Array]:
    """Copies of the arrays in memory that another process has made, which is gone afterwards."""
    memory = SharedMemory(name)
    try:
        return {key: array.copy() for key, array in get(memory, layout).items()}
    finally:
        memory.unlink()
        close(memory)


def close(memory: SharedMemory) -> bool:
    """Whether it could be closed: as long as there are views of it, it can't."""
    try:
        memory.close()
    except BufferError:
        return False
    return True


def remove(name: str) -> None:
    """What a process that is gone may have left."""
    with suppress(FileNotFoundError):
        memory = SharedMemory(name)
        memory.unlink()
        memory.close()
