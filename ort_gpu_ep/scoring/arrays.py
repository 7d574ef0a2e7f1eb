"""numpy's files. The arrays' first dimension is that of the rows."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from ort_gpu_ep.errors import ScoringError
from ort_gpu_ep.scoring.columns import Rows

NAME = "values"
"""The column of a .npy file, which names none."""


class _Member:
    """One array: any rows of it. stream: what is to be read, at any place. Raises ScoringError for what is no such
    array."""

    def __init__(self, stream: Callable[[], AbstractContextManager[IO[bytes]]], where: str) -> None:
        self._stream, self._where = stream, where
        try:
            with stream() as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                self.shape, is_fortran, self.dtype = read(file)
                self._begin = file.tell()
        except (ValueError, EOFError, OSError) as error:
            raise ScoringError(
                f"{where}: not an array as numpy writes it ({error}); numpy.save and numpy.savez do"
            ) from error
        if self.dtype.hasobject or not self.shape or (is_fortran and len(self.shape) > 1):
            what = (
                "of objects" if self.dtype.hasobject else "a single number" if not self.shape else "stored by columns"
            )
            raise ScoringError(
                f"{where}: the array is {what}, expected [rows, ...] of numbers, stored by rows "
                f"(numpy.ascontiguousarray)"
            )
        self._row_nbytes = prod(self.shape[1:]) * self.dtype.itemsize

    def read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        nbytes, data = (stop - start) * self._row_nbytes, bytearray()
        try:
            with self._stream() as file:
                file.seek(self._begin + start * self._row_nbytes)
                while len(data) < nbytes and (part := file.read(nbytes - len(data))):
                    data += part
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise self._unreadable(start, stop, str(error)) from error
        if len(data) < nbytes:
            raise self._unreadable(start, stop, "the file was cut short")
        return np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape[1:])

    def _unreadable(self, start: int, stop: int, why: str) -> ScoringError:
        return ScoringError(
            f"{self._where}: rows {start} to {stop - 1} can't be read ({why}). Write the file again; what was "
            f"scored stays"
        )


class _Arrays:
    """Members by column."""

    groups: tuple[int, ...] = ()

    def __init__(self, path: Path, members: Mapping[str, _Member]) -> None:
        self.path, self._members = path, members
        counts = {name: m.shape[0] for name, m in members.items()}
        if len(set(counts.values())) > 1:
            raise ScoringError(
                f"{path}: arrays of different numbers of rows: {', '.join(f'{n} {c}' for n, c in counts.items())}"
            )
        self.rows = next(iter(counts.values()), 0)
        self.kinds = {name: m.dtype for name, m in members.items()}

    def read(self, start: int, stop: int, names: Sequence[str]) -> Rows:
        return Rows(stop - start, {name: self._members[name].read(start, stop) for name in names})

    def close(self) -> None:
        """No file stays open."""


def _kept(file: IO[bytes]) -> Callable[[], AbstractContextManager[IO[bytes]]]:
    """A stream that stays open: to go on where the last read ended costs no decompression anew."""
    return lambda: nullcontext(file)


class NpyFile(_Arrays):
    """One array, the column `values`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, {NAME: _Member(lambda: path.open("rb"), str(path))})


class NpzFile(_Arrays):
    """An array a column."""

    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError) as error:
            raise ScoringError(f"{path}: not a whole .npz file ({error}); numpy.savez writes one") from error
        names = [name for name in self._zip.namelist() if name.endswith(".npy")]
        self._streams = {name: self._zip.open(name) for name in names}
        try:
            members = {
                name.removesuffix(".npy"): _Member(_kept(stream), f"{path}: {name}")
                for name, stream in self._streams.items()
            }
            super().__init__(path, members)
        except ScoringError:
            self.close()
            raise

    def close(self) -> None:
        for stream in self._streams.values():  # the file itself stays open as long as one of them is
            stream.close()
        self._zip.close()
