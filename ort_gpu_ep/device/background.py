"""A thread for work that can wait, one piece at a time; it ends when there is none."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext

from ort_gpu_ep.device.allowance import Allowance, current


class Background:
    """A queue and its thread. Thread-safe. The thread is no daemon: at exit Python waits for the piece at work, which
    looks at `ending`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Callable[[], None], Allowance | None]] = deque()
        self._works = False

    def add(self, work: Callable[[], None]) -> None:
        """work: called once, for the session that this thread works for; it raises nothing."""
        with self._lock:
            self._waiting.append((work, current()))
            if self._works:
                return
            self._works = True
        threading.Thread(target=self._work, name="ort_gpu_ep-background").start()

    @property
    def waits(self) -> bool:
        """Whether there is work besides the piece that the thread is at."""
        return bool(self._waiting)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._works = False
                    return
                work, allowance = self._waiting.popleft()
            with allowance if allowance is not None else nullcontext():
                work()


def ending() -> bool:
    """Whether the process is about to end."""
    return not threading.main_thread().is_alive()


def _after_fork() -> None:
    """In the child: the thread does not exist, and what waited is the parent's."""
    global background
    background = Background()


background = Background()
"""Of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
