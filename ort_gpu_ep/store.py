"""Small files in the cache folder: read with doubts, written whole or not at all, for this user only.

Whatever lies in the cache, reading it ends soon and gives a value or nothing: other programs write there too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import stat
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, TypeVar

from platformdirs import user_cache_dir

from ort_gpu_ep.files import PRIVATE_FOLDER, open_regular

log = logging.getLogger("ort_gpu_ep")

T = TypeVar("T")

FORMAT = 6
"""Of all these files: it grows when what one of them holds changes, and all are made anew."""

MAX_NBYTES = 16 << 20
"""Of a file that is read: decisions for 256 shapes of a model with thousands of nodes take less than one MiB."""

_MAX_DIGITS = 20
"""Of an integer: those of 64 bits have no more, sign included."""

_LONG = re.compile(rb"\d{19}")
"""In a file without such a row of digits each integer is short enough."""

_LARGE = re.compile(rb"[eE]\+?\d{3}|\d{200}")
"""In a file without one of these each number is finite."""

_unwritable = set[Path]()
"""Caches that can't be written to, which was said."""

_shared: weakref.WeakValueDictionary[Path, Any] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()

_said = set[tuple[Path, str]]()
"""Files that can't be used, and why, until they are written anew."""

NO_CACHE = os.path.join(os.devnull, "no cache")
"""A folder that nobody can have: nothing is read there, and nothing written, as in one that the process may not write
to."""


def cache_folder() -> str:
    """This package's, of the user. NO_CACHE where nothing says where that is, which is said once: there is no HOME, and
    the user is in no list of users, as in containers that run with any number for a user.
    """
    try:
        folder = user_cache_dir("ort_gpu_ep")
        why = "" if os.path.isabs(folder) else f"it would be {folder}"  # as older versions of platformdirs say it
    except (RuntimeError, KeyError, OSError) as error:
        why = str(error)
    if not why:
        return folder
    told = Path(NO_CACHE), why
    if told not in _said:
        _said.add(told)
        log.warning("there is no cache folder (%s): %s", why, COST)
    return NO_CACHE


COST = (
    "each process tests the adapter, measures, plans and composes shaders anew, which takes seconds; "
    "ORT_GPU_EP_CACHE_DIR names another folder"
)


def tell_unwritable(folder: Path, error: OSError) -> None:
    """Once of a cache, whichever of its folders it is, and nothing else happens."""
    root = folder.parent
    if root not in _unwritable and root != Path(NO_CACHE):
        _unwritable.add(root)
        log.warning("cache folder %s can't be written: %s; %s", root, error, COST)


def lock(file: IO[bytes], wait: bool = False) -> None:
    """Takes the lock of an open file, which ends with the process. Raises OSError, where another one has it and this
    does not wait."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def read_json(path: Path, follow: bool = False) -> Any:
    """What a JSON file holds. Raises OSError; ValueError for what is none, too large, nested too deeply, or has numbers
    beyond 64 bits."""
    with open_regular(path, follow=follow) as file:
        data = file.read(MAX_NBYTES + 1)
    if len(data) > MAX_NBYTES:
        raise ValueError(f"more than {MAX_NBYTES} B")
    return parse_json(data)


def parse_json(data: bytes) -> Any:
    """What JSON says. Raises ValueError for what is none, nested too deeply, or has numbers beyond 64 bits."""
    try:
        return json.loads(
            data.decode("utf-8"),
            parse_int=_integer if _LONG.search(data) else None,
            parse_float=_float if _LARGE.search(data) else None,
            parse_constant=_float,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"got {text[:40]}, expected a finite number")
    return number


def record(kind: type[T], data: Mapping[str, Any]) -> T:
    """A dataclass of strings and integers. Raises TypeError where a field is missing, unknown or of another type."""
    for field in fields(kind):  # type: ignore[arg-type]
        expected = {"str": str, "int": int}[str(field.type)]
        if type(data.get(field.name)) is not expected:
            raise TypeError(f"{field.name}: got {str(data.get(field.name))[:40]}, expected {field.type}")
    return kind(**data)


def read(path: Path, parse: Callable[[dict[str, Any]], T]) -> T | None:
    """What `parse` makes of the file; None where there is none, or none that can be used, which the log says."""
    try:
        data = read_json(path)
        if data["format"] != FORMAT:
            raise ValueError(f"format {str(data['format'])[:40]}, expected {FORMAT}")
        return parse(data)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        problem = path, f"{type(error).__name__}: {str(error)[:200]}"
        if problem not in _said:  # more than one thread may look for it before it is made anew
            _said.add(problem)
            log.info("cache file %s is ignored and made anew: %s", *problem)
        return None


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it that are missing, for this user only. Raises OSError."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(PRIVATE_FOLDER, exist_ok=True)


def replace(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, for this user only. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")  # which makes it for this user only
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write(path: Path, data: Mapping[str, object]) -> bool:
    """Stores data. False where the cache can't be written: that is said, and nothing else happens."""
    try:
        text = json.dumps({"format": FORMAT, **data}, allow_nan=False)
        make_folder(path.parent)
        replace(path, text.encode())
        _said.difference_update([problem for problem in _said if problem[0] == path])
    except ValueError as error:
        log.info("what belongs into %s is not kept: %s", path, error)
        return False
    except OSError as error:
        tell_unwritable(path.parent, error)
        return False
    return True


# ---- files with a seal: their first line tells the key that they are for and the hash of what follows


def read_sealed(path: Path, key: str, most: int) -> bytes:
    """What `write_sealed` wrote for this key, at most so many bytes. Raises OSError, FileNotFoundError where there is
    none; ValueError for any other file: one that was cut or changed, is for another key, or that another user owns or
    may write.
    """
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        if hasattr(os, "geteuid") and (
            status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        ):
            raise ValueError(f"user {status.st_uid}, mode {stat.filemode(status.st_mode)}: others may have written it")
        if status.st_size > most:
            raise ValueError(f"more than {most} B")
        data = file.read(status.st_size)  # memory for so many is taken at once
    head, _, content = data.partition(b"\n")
    if head + b"\n" != _seal(key, content):
        raise ValueError(f"it begins with {head[:80]!r}, which does not belong to what follows")
    return content


def write_sealed(path: Path, key: str, content: bytes) -> None:
    """Writes a file, in a folder that is made where it is missing. key: of one line; it names the format, too. Raises
    OSError."""
    make_folder(path.parent)
    replace(path, _seal(key, content) + content)


def sealed_nbytes(key: str, content: bytes) -> int:
    """Of the file that `write_sealed` writes."""
    return len(_seal(key, b"")) + len(content)


def _seal(key: str, content: bytes) -> bytes:
    return f"{key} {hashlib.sha256(content).hexdigest()}\n".encode()


def shared(path: Path, make: Callable[[], T]) -> T:
    """What stands for a file in this process: one object, as long as somebody holds it, made by who asks first."""
    with _shared_lock:
        value: T | None = _shared.get(path)
        if value is None:
            value = _shared[path] = make()
        return value


def _after_fork() -> None:
    """In the child: a thread that held a lock does not exist."""
    global _shared_lock
    _shared_lock = threading.Lock()
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def make_room(folder: Path, files: int, nbytes: int) -> None:
    """Where a folder has more files or bytes, removes the oldest down to three quarters: also what killed processes
    left half written.

    Raises OSError, where the folder can't be read.
    """
    there = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another process removes files, too
                there.append((entry.stat(follow_symlinks=False), entry.path))
    count, total = len(there), sum(status.st_size for status, _ in there)
    if count <= files and total <= nbytes:
        return
    for status, path in sorted(there, key=lambda pair: pair[0].st_mtime):
        if count <= files * 3 // 4 and total <= nbytes * 3 // 4:
            break
        with suppress(OSError):  # another process was faster, or it is a folder
            os.unlink(path)
        count, total = count - 1, total - status.st_size
