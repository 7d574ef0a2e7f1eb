"""Weights on disk for the CPU fallback, so that they take no memory while the GPU works.

Each process writes into a folder of its own under the cache, and holds a lock on it; folders whose lock nobody holds
are left over from dead processes and are removed.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from ort_gpu_ep import store
from ort_gpu_ep.files import PRIVATE_FOLDER, Held, open_regular
from ort_gpu_ep.runtime.backend import FilePlace

if TYPE_CHECKING:
    from ort_gpu_ep.ir.graph import Array

_RESERVE_NBYTES = 256 << 20
"""Room left free on the disk."""

_ALIGNMENT = 4096

_OURS = re.compile(r"\d+-\w+\.lock")
"""Names of locks: process and random digits. Nothing else is removed (`...lock` would be the lock of the folder
above)."""

_folders: dict[str, WeightFolder] = {}
_lock = threading.Lock()


class WeightFolder:
    """This process's folder below `root`."""

    def __init__(self, root: Path) -> None:
        store.make_folder(root)
        _remove_stale(root)
        self._owner = os.getpid()
        self.path = root / f"{self._owner}-{secrets.token_hex(4)}"
        self._lock_path = self.path.with_suffix(".lock")
        self._lock_file: BinaryIO | None = _locked(self._lock_path)
        self.path.mkdir(PRIVATE_FOLDER)
        atexit.register(self.remove)

    def remove(self) -> None:
        """Deletes the folder. A forked child leaves it to its parent."""
        if os.getpid() == self._owner and self._lock_file is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock_file.close()
            self._lock_file = None
            with suppress(OSError):  # somebody has cleared the folder, or put something else there
                self._lock_path.unlink()


class WeightFile:
    """The large constants of one partition: `add` each, `close_writing`, then `load` any number of times."""

    def __init__(self, cache_path: str, nbytes: int) -> None:
        """nbytes: what will be written. Raises OSError, if the disk does not take it."""
        folder = _folder(Path(cache_path) / "weights")
        if shutil.disk_usage(folder.path).free < nbytes + _RESERVE_NBYTES:
            raise OSError(f"less than {nbytes + _RESERVE_NBYTES} B are free for {folder.path}")
        self.path = folder.path / f"{secrets.token_hex(8)}.bin"
        self.places: dict[str, FilePlace] = {}
        self._held: Held | None = None
        self._file: BinaryIO | None = open_regular(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def add(self, name: str, array: Array) -> None:
        """Appends an array. Raises OSError."""
        assert self._file is not None
        offset = -(-self._file.tell() // _ALIGNMENT) * _ALIGNMENT
        self._file.seek(offset)
        self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self.places[name] = FilePlace(str(self.path), offset, array.dtype, array.shape)

    def close_writing(self) -> None:
        """Opens the file for reading: the content stays there even if somebody clears the cache folder."""
        assert self._file is not None
        self._file.close()
        self._held, self._file = Held(open_regular(self.path), str(self.path)), None

    def load(self, name: str) -> Array:
        """The array, mapped from the file. Raises ValueError, once it is removed."""
        mapping = self._held
        if mapping is None:
            raise ValueError(f"the weights in {self.path} were removed with their session")
        with mapping.opened() as file:
            return self.places[name].load(file)

    def remove(self) -> None:
        """Deletes the file. What is mapped stays readable."""
        file, self._file, self._held = self._file, None, None
        if file is not None:
            with suppress(OSError):  # a full disk, for what was not written yet
                file.close()
        with suppress(OSError):  # Windows, while it is mapped: then it goes with the folder
            self.path.unlink(missing_ok=True)


def _folder(root: Path) -> WeightFolder:
    with _lock:
        folder = _folders.get(str(root))
        if folder is None or not folder.path.is_dir():
            folder = _folders[str(root)] = WeightFolder(root)
        return folder


def _remove_stale(root: Path) -> None:
    """Deletes the folders of processes that are gone."""
    for lock_path in root.glob("*.lock"):
        if not _OURS.fullmatch(lock_path.name):
            continue
        try:
            lock = _locked(lock_path)
        except OSError:
            continue  # somebody lives there, or it is no file
        shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
        lock.close()
        lock_path.unlink(missing_ok=True)


def _locked(path: Path) -> BinaryIO:
    """An open file with an exclusive lock that ends with the process. Raises OSError, if somebody else has it, or it is
    no file."""
    file = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        store.lock(file)
    except OSError:
        file.close()
        raise
    return file


def after_fork() -> None:
    """In the child: a thread that held the lock does not exist, and the folder is the parent's."""
    global _lock
    _lock = threading.Lock()
    _folders.clear()
