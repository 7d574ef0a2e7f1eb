"""A model's own file as the place of the CPU fallback's weights: what lies there as it is need not be written a second
time."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.files import ChangedError, Held, most_held, open_regular, read_at
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
    """The files of one model. Thread-safe. Those with weights are held open, so that they may be deleted or replaced;
    one that is written to in place has no weights any more. path: of the model; empty, or of no ONNX file: there are
    none.
    """

    def __init__(self, path: str) -> None:
        self._path, self._places = path, dict[str, tuple[str, int, int]]()  # name -> file, offset, bytes
        self._files = dict[str, Held]()
        if path and most_held():
            with (
                suppress(OSError, ValueError),  # onnxruntime has read it: it is replaced by now, or no ONNX file
                open_regular(Path(path), follow=True) as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                for tensor in stored_tensors(data):
                    self._note(tensor)

    def _note(self, tensor: StoredTensor) -> None:
        if not tensor.initializer:
            return
        if tensor.raw is not None:
            begin, end = tensor.raw
            self._places[tensor.name] = self._path, begin, end - begin
        elif tensor.external.get("length", "").isdecimal() and tensor.external.get("offset", "0").isdecimal():
            with suppress(ModelError):  # onnxruntime has not read it either
                file = external.path_of(tensor.external.get("location", ""), os.path.dirname(self._path), self._path)
                self._places[tensor.name] = (
                    file,
                    int(tensor.external.get("offset", "0")),
                    int(tensor.external["length"]),
                )

    def place(self, name: str, array: Array) -> FilePlace | None:
        """Where a weight lies, if it is there byte for byte, and the file can be held open; None where it is not:
        onnxruntime has folded something into it, say.
        """
        path, offset, nbytes = self._places.get(name, ("", 0, -1))
        if nbytes != array.nbytes or array.dtype.name in _SUB_BYTE or array.dtype.byteorder == ">":
            return None
        with suppress(OSError):
            file = self._files.get(path) or Held(open_regular(Path(path), follow=path == self._path), path)
            if file.is_held and _holds(file, offset, np.ascontiguousarray(array).reshape(-1).view(np.uint8)):
                self._files[path] = file
                return FilePlace(path, offset, array.dtype, array.shape)
        return None

    def load(self, place: FilePlace) -> Array:
        """The array, read from the file: what is mapped would change, or end the process, where somebody writes to the
        file or cuts it.

        Raises OSError where that has happened.
        """
        data = np.empty(int(np.prod(place.shape, dtype=np.int64)) * place.dtype.itemsize, np.uint8)
        try:
            with self._files[place.path].opened() as file:
                count = read_at(file, data.data, place.offset)
        except ChangedError as error:
            raise OSError(
                f"{error} after the session had been made of it, and the weights that the CPU needs now were "
                f"there; put a new "
                "model in a file's place by os.replace"
            ) from error
        if count != data.size:
            raise OSError(f"{place.path} ends in the middle of the weights that the CPU needs now")
        return data.view(place.dtype).reshape(place.shape)


def _holds(held: Held, offset: int, wanted: Array) -> bool:
    """Whether a file has these bytes there. Read, not mapped: mapped pages would count as memory of this process."""
    part = np.empty(min(PART_NBYTES, wanted.size), np.uint8)
    with held.opened() as file:
        for at in range(0, wanted.size, PART_NBYTES):
            some = wanted[at : at + PART_NBYTES]
            if read_at(file, part[: some.size].data, offset + at) != some.size or not np.array_equal(
                part[: some.size], some
            ):
                return False
    return True
