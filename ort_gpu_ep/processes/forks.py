"""A fork waits for what other threads of this package import: the child, where those threads are not, could never
import it.

To be imported before the first such thread begins.
"""

from __future__ import annotations

import _imp
import concurrent.futures.thread  # noqa: F401  registers a lock to be held in forks: not while one waits
import importlib
import os
import threading
import time
from typing import Any

from ort_gpu_ep.processes.interrupts import TURN_S

PREFIX = "ort_gpu_ep"
"""With which the names of this package's threads begin."""

PATIENCE_S = 60.0
"""An import may wait for a lock of the thread that forks: the child then goes without that module."""

_bootstrap: Any = importlib.import_module("importlib._bootstrap")


def _importing() -> bool:
    """Whether another thread of this package imports something right now."""
    ours = {thread.ident for thread in threading.enumerate() if thread.name.startswith(PREFIX)} - {
        threading.get_ident()
    }
    locks = [lock() for lock in list(_bootstrap._module_locks.values())]
    return any(lock is not None and lock.owner in ours for lock in locks)


def _before() -> None:
    """Returns with the lock that every import needs to begin."""
    end_s = time.monotonic() + PATIENCE_S
    _imp.acquire_lock()
    while _importing() and time.monotonic() < end_s:
        _imp.release_lock()
        time.sleep(TURN_S)
        _imp.acquire_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_imp.release_lock, after_in_child=_imp.release_lock)
