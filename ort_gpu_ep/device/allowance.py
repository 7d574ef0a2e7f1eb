"""Limits of a session on a device that all sessions of a process share: memory, and how long it waits.

A thread works for one session at a time: `with allowance:` says for which.
"""

from __future__ import annotations

import threading

from ort_gpu_ep.errors import MemoryLimitError


class Allowance:
    """Of one session on one device, whose lock is held where `held_nbytes` changes.

    memory_nbytes: device memory that it may hold, 0 for what the adapter has. held_nbytes: what it holds. hang_timeout_s: how long it waits
    for the GPU, 0 for ever.
    """

    __slots__ = ("hang_timeout_s", "held_nbytes", "memory_nbytes")

    def __init__(self, memory_nbytes: int, hang_timeout_s: float) -> None:
        self.memory_nbytes, self.hang_timeout_s, self.held_nbytes = memory_nbytes, hang_timeout_s, 0

    def take(self, nbytes: int) -> None:
        """The session gets a buffer. Raises MemoryLimitError, and nothing is taken."""
        if self.memory_nbytes and self.held_nbytes + nbytes > self.memory_nbytes:
            raise MemoryLimitError(
                f"device memory: this session holds {self.held_nbytes} B and asks for {nbytes} B more, memory_limit_mb allows "
                f"{self.memory_nbytes} B. Use a smaller batch, or raise memory_limit_mb.")
        self.held_nbytes += nbytes

    def give_back(self, nbytes: int) -> None:
        """The session has freed a buffer."""
        self.held_nbytes -= nbytes

    def __enter__(self) -> Allowance:
        _thread.entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _thread.entered.pop()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.entered: list[Allowance] = []


_thread = _Thread()


def current() -> Allowance | None:
    """Of the session that this thread works for; None where it is none."""
    entered = _thread.entered
    return entered[-1] if entered else None
