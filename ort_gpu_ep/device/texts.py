"""Composed shaders on disk: a process that opens a known model reads their texts instead of composing them again.

<cache>/shaders/<key>.wgsl has one line with the format, the key and the hash of the text, and then the text. The key is a hash of this
package's code and of all that the text follows from, so a file of another version is never asked for. A file that is not as it should be,
or that somebody else may have written, is not used: the text is composed, and the file replaced.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from ort_gpu_ep import store
from ort_gpu_ep.shaders import compose

log = logging.getLogger("ort_gpu_ep")

FORMAT = "// ort_gpu_ep 1"

MAX_FILE_NBYTES = 1 << 20
"""Of a file that is read: the longest text of the networks in models/ has 60 kB."""

MAX_FILES, MAX_NBYTES = 2048, 32 << 20
"""Of the folder. ResNet-50 has 48 texts of 1 to 75 kB."""

LOOK_EVERY = 64
"""Texts that are written between two looks at how large the folder is."""


class Texts:
    """The folder below a cache path. Thread-safe, also with other processes. code: what the texts of another version differ in."""

    def __init__(self, cache_path: str, code: str) -> None:
        self.folder, self._code = Path(cache_path) / "shaders", code
        self._written, self._may_write = 0, True

    def get(self, signature: Hashable, make: Callable[[], str]) -> str:
        """The text that follows from `signature`, which has the same repr in every process."""
        key = hashlib.sha256(f"{self._code} {signature!r}".encode()).hexdigest()
        path = self.folder / f"{key[:32]}.wgsl"
        try:
            return _read(path, key)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, ValueError) as error:
            log.info("cache file %s is ignored and made anew: %s: %s", path, type(error).__name__, str(error)[:200])
        text = make()
        if self._may_write:
            self._write(path, key, text)
        return text

    def _write(self, path: Path, key: str, text: str) -> None:
        data = text.encode()
        try:
            store.make_folder(self.folder)
            store.replace(path, _head(key, data) + data)
            self._written += 1
            if self._written % LOOK_EVERY == 1:
                self._make_room()
        except OSError as error:
            self._may_write = False
            log.info("cache folder %s can't be written: %s; shaders are composed by each process", self.folder, error)

    def _make_room(self) -> None:
        """Removes the oldest files where there are too many, down to three quarters; also what killed processes left half written."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):       # another process removes files, too
                    found.append((entry.stat(follow_symlinks=False), entry.path))
        found.sort(key=lambda pair: pair[0].st_mtime)
        files, nbytes = len(found), sum(status.st_size for status, _ in found)
        if files <= MAX_FILES and nbytes <= MAX_NBYTES:
            return
        for status, path in found:
            if files <= MAX_FILES * 3 // 4 and nbytes <= MAX_NBYTES * 3 // 4:
                break
            with suppress(OSError):      # another process was faster, or it is a folder
                os.unlink(path)
            files, nbytes = files - 1, nbytes - status.st_size


def _head(key: str, data: bytes) -> bytes:
    return f"{FORMAT} {key} {hashlib.sha256(data).hexdigest()}\n".encode()


def _read(path: Path, key: str) -> str:
    """Raises OSError; ValueError for a file that is not as `_write` leaves it."""
    with store.open_regular(path) as file:
        status = os.fstat(file.fileno())
        if hasattr(os, "geteuid") and (status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise ValueError(f"user {status.st_uid}, mode {stat.filemode(status.st_mode)}: others may have written it")
        data = file.read(MAX_FILE_NBYTES + 1)
    if len(data) > MAX_FILE_NBYTES:
        raise ValueError(f"more than {MAX_FILE_NBYTES} B")
    head, _, text = data.partition(b"\n")
    if head + b"\n" != _head(key, text):
        raise ValueError(f"it begins with {head[:80]!r}, which does not belong to what follows")
    return text.decode("utf-8")


@cache
def composer(cache_path: str, code: str) -> partial[str]:
    """`compose` with the texts below a cache path."""
    return partial(compose, kept=Texts(cache_path, code).get)
