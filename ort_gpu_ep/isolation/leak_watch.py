"""Detects that a worker's memory grows although it compiles nothing new."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

ALLOWED_NBYTES = 1 << 30
"""Growth of a worker that computes the same again and again: heaps reach their size over the first thousands of
runs."""

PAUSE_S = 2.0
"""Between two looks, which take some 30 us each."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a worker says that it holds: bytes in buffers (of a software adapter they are the process's own); and how
    many pipelines it has compiled so far."""

    buffers_nbytes: int
    pipelines: int


class LeakWatch:
    """Watches one worker. Not thread-safe."""

    def __init__(self, pid: int) -> None:
        self._pid, self._looked_s = pid, 0.0
        self._first: tuple[int, Held] | None = None

    def leak(self, held: Held) -> str:
        """Says what a worker holds that it can't need; empty where that is nothing, or it is not time to look."""
        now = time.monotonic()
        if now - self._looked_s < PAUSE_S:
            return ""
        self._looked_s = now
        import psutil  # 9 ms that a session without a worker has no use for

        rss_nbytes = 0
        with suppress(psutil.Error):  # it is gone, which the next request finds out
            rss_nbytes = psutil.Process(self._pid).memory_info().rss
        if self._first is None or held.pipelines != self._first[1].pipelines:
            self._first = rss_nbytes, held
        before_nbytes, then = self._first
        grown = rss_nbytes - before_nbytes - max(held.buffers_nbytes - then.buffers_nbytes, 0)
        if grown <= ALLOWED_NBYTES:
            return ""
        return (
            f"the worker process holds {rss_nbytes >> 20} MiB, {grown >> 20} MiB more than when it last compiled "
            f"anything, and not in "
            "buffers. It is replaced; if this comes back, update the driver."
        )
