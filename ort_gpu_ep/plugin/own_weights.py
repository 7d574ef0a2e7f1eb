"""A model's own file as the place of the CPU fallback's weights: what lies there as it is need not be written a second time."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.files import open_regular
from ort_gpu_ep.ir import external
from ort_gpu_ep.ir.model_file import StoredTensor, stored_tensors
from ort_gpu_ep.ir.types import SUB_BYTE
from ort_gpu_ep.runtime.backend import FilePlace

if TYPE_CHECKING:
    from ort_gpu_ep.ir.graph import Array

PART_NBYTES = 4 << 20
"""Of a weight, compared at a time."""

_SUB_BYTE = frozenset(t.name for t in SUB_BYTE)


class OwnWeights:
    """The files of one model. Thread-safe. They are held open, so that they may be deleted or replaced; one that is written to in place has
    no weights any more. path: of the model; empty, or of no ONNX file: there are none. Not on Windows, where nobody could delete them.
    """

    def __init__(self, path: str) -> None:
        self._path, self._places = path, dict[str, tuple[str, int, int]]()       # name -> file, offset, bytes
        self._files = dict[str, tuple[BinaryIO, tuple[int, int]]]()              # path -> open, size and time of change
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._files).atexit = False
        if path and os.name != "nt":
            with suppress(OSError, ValueError):     # onnxruntime has read it: it is replaced by now, or no ONNX file
                file = self._opened(path)
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    for tensor in stored_tensors(data):
                        self._note(tensor)

    def _note(self, tensor: StoredTensor) -> None:
        if not tensor.initializer:
            return
        if tensor.raw is not None:
            begin, end = tensor.raw
            self._places[tensor.name] = self._path, begin, end - begin
        elif tensor.external.get("length", "").isdecimal() and tensor.external.get("offset", "0").isdecimal():
            with suppress(ModelError):      # onnxruntime has not read it either
                file = external.path_of(tensor.external.get("location", ""), os.path.dirname(self._path), self._path)
                self._places[tensor.name] = file, int(tensor.external.get("offset", "0")), int(tensor.external["length"])

    def _opened(self, path: str) -> BinaryIO:
        if path not in self._files:
            file = open_regular(Path(path), follow=path == self._path)
            state = os.fstat(file.fileno())
            self._files[path] = file, (state.st_size, state.st_mtime_ns)
        return self._files[path][0]

    def place(self, name: str, array: Array) -> FilePlace | None:
        """Where a weight lies, if it is there byte for byte; None where it is not: onnxruntime has folded something into it, say."""
        path, offset, nbytes = self._places.get(name, ("", 0, -1))
        if nbytes != array.nbytes or array.dtype.name in _SUB_BYTE or array.dtype.byteorder == ">":
            return None
        with suppress(OSError):
            if self._holds(path, offset, np.ascontiguousarray(array).reshape(-1).view(np.uint8)):
                return FilePlace(path, offset, array.dtype, array.shape)
        return None

    def _holds(self, path: str, offset: int, content: Array) -> bool:
        """Whether a file has these bytes there. Read, not mapped: mapped pages would count as memory of this process."""
        part = np.empty(min(PART_NBYTES, content.size), np.uint8)
        with self._lock:
            file = self._opened(path)
            file.seek(offset)
            for at in range(0, content.size, PART_NBYTES):
                wanted = content[at:at + PART_NBYTES]
                if _read(file, part[:wanted.size]) != wanted.size or not np.array_equal(part[:wanted.size], wanted):
                    return False
        return True

    def load(self, place: FilePlace) -> Array:
        """The array, read from the file: what is mapped would change, or end the process, where somebody writes to the file or cuts it.

        Raises OSError where that has happened.
        """
        data = np.empty(int(np.prod(place.shape, dtype=np.int64)) * place.dtype.itemsize, np.uint8)
        with self._lock:
            file, before = self._files[place.path]
            file.seek(place.offset)
            count, state = _read(file, data), os.fstat(file.fileno())
        if count != data.size or (state.st_size, state.st_mtime_ns) != before:
            raise OSError(f"{place.path} was overwritten after the session had been made of it, and the weights that the CPU needs now "
                          "were there; put a new model in a file's place by os.replace")
        return data.view(place.dtype).reshape(place.shape)


def _read(file: BinaryIO, into: Array) -> int:
    """Fills an array of bytes from where the file is; returns how many there were."""
    return int(file.readinto(into.data))        # type: ignore[attr-defined]


def _close(files: dict[str, tuple[BinaryIO, tuple[int, int]]]) -> None:
    for file, _ in files.values():
        file.close()
