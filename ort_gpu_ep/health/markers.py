"""Detects processes that ended uncleanly with an adapter open, by a file that only a clean exit removes."""

from __future__ import annotations

import atexit
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import util
from pathlib import Path

from ort_gpu_ep import store
from ort_gpu_ep.files import open_regular
from ort_gpu_ep.health.verdicts import folder_of

log = logging.getLogger("ort_gpu_ep")

_mine: dict[Path, int] = {}


def leave(cache_path: str, key: str) -> None:
    """Marks the adapter as open in this process, once."""
    if any(
        path.name.startswith(key) and path.parent == folder_of(cache_path) and pid == os.getpid()
        for path, pid in _mine.items()
    ):
        return
    path = folder_of(cache_path) / f"{key}.{os.getpid()}-{secrets.token_hex(4)}.open"
    try:
        store.make_folder(path.parent)
        with open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            file.write(json.dumps({"pid": os.getpid(), "left": time.time()}).encode())
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)  # what a full disk left of it would count as an unclean exit
        log.info("no marker in %s: %s; an unclean exit will not be noticed", path.parent, error)
        return
    if not _mine:
        atexit.register(remove_mine)
        util.Finalize(None, remove_mine, exitpriority=0)  # processes of multiprocessing don't run atexit
    _mine[path] = os.getpid()


def remove_mine() -> None:
    """At a clean exit. A forked child leaves its parent's markers alone."""
    for path, pid in list(_mine.items()):
        if pid == os.getpid():
            del _mine[path]
            with suppress(OSError):  # somebody has cleared the folder, or put something else there
                path.unlink()


def take_stale(cache_path: str, key: str) -> int:
    """Removes the markers of processes that are gone, and says how many there were."""
    count = 0
    try:
        for path in _stale(cache_path, key):
            path.unlink(missing_ok=True)
            count += 1
    except OSError as error:
        log.info("markers in %s can't be read: %s", folder_of(cache_path), error)
    return count


def any_stale(cache_path: str, key: str) -> bool:
    """Whether a process that had the adapter open is gone without closing it."""
    try:
        return any(True for _ in _stale(cache_path, key))
    except OSError:
        return False


def forgive(cache_path: str, pid: int) -> None:
    """Removes the markers of a process that this one, or somebody else, has ended: that says nothing about an
    adapter."""
    with suppress(OSError):
        for path in folder_of(cache_path).glob(f"*.{pid}-*.open"):
            path.unlink(missing_ok=True)


def _stale(cache_path: str, key: str) -> Iterator[Path]:
    yield from (path for path in folder_of(cache_path).glob(f"{key}.*.open") if not _is_running(path))


def _is_running(path: Path) -> bool:
    """Whether the process that wrote a marker still lives, not another one with its number that was started later.

    A marker without a process in it (a full disk) counts as one of a dead one.
    """
    import psutil  # 9 ms, and most starts find no marker

    try:
        data = store.read_json(path)
        return bool(psutil.Process(int(data["pid"])).create_time() < float(data["left"]) + 1.0)
    except (psutil.AccessDenied, PermissionError):  # another user's
        return True
    except (OSError, ValueError, KeyError, TypeError, OverflowError, psutil.NoSuchProcess):
        return False
