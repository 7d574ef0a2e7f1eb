"""What the C heap keeps for later, given back to the system.

Reading a model takes memory that ONNX Runtime frees at once; glibc keeps it: 195 MiB behind a session of ResNet-50,
which has 98 MiB of weights.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

MIN_NBYTES = 16 << 20
"""Of weights: behind a smaller model it is not worth the time, and the heap is the whole program's. 20 ms behind
ResNet-50."""

LAST_RUN_S, LOOK_S = 1.0, 0.02
"""How long the last run of a session is waited for that nobody wants any more, and how often it is asked whether it is
over."""


@cache
def _trim() -> Any:
    """glibc's function; None with another C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None


def give_back(nbytes: int) -> None:
    """A model with so many bytes of weights has been read."""
    if nbytes >= MIN_NBYTES and (trim := _trim()) is not None:
        trim(0)


def give_back_behind(sessions: Sequence[Callable[[], object]], nbytes: int) -> None:
    """The same in another thread, once the sessions are gone, weak references to onnxruntime's own: runs may not have
    left them yet."""
    if nbytes >= MIN_NBYTES and _trim() is not None:
        with suppress(RuntimeError):  # no thread can begin any more: the process ends
            threading.Thread(target=_give_back_behind, args=(sessions, nbytes), name="ort_gpu_ep-heap").start()


def _give_back_behind(sessions: Sequence[Callable[[], object]], nbytes: int) -> None:
    end_s = time.monotonic() + LAST_RUN_S
    while (
        any(session() is not None for session in sessions)
        and time.monotonic() < end_s
        and threading.main_thread().is_alive()
    ):
        time.sleep(LOOK_S)
    give_back(nbytes)
