"""Limits of a session on a device that all sessions of a process share: memory, and how long it waits.

A thread works for one session at a time: `with allowance:` says for which.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ort_gpu_ep.errors import MemoryLimitError

WEIGHTS, REORDERED, DENSE = (
    "weights",
    "weights in a kernel's own order (Winograd, layouts)",
    "dense copies of compressed weights",
)
ACTIVATIONS, RUNS, VALUES = "activations", "inputs and outputs of repeated runs", "values between runs and partitions"
CONSTANTS, OTHER = "small constants", "other"
USES = (WEIGHTS, REORDERED, DENSE, ACTIVATIONS, RUNS, VALUES, CONSTANTS, OTHER)
"""What a session has device memory for."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Device memory of a session and of its process, in bytes of buffers, by the counts that memory_limit_mb is held
    to.

    session: by USES, what it holds. limit_nbytes: what memory_limit_mb allows it, 0 for what the adapter has. process:
    all buffers on this device; staging and waiting are among them, and no session's: for transfers, in memory that the
    host reaches, and freed ones that are kept for the next use. most: the most that the process had at once. A driver
    allots larger blocks; how large WebGPU does not tell.
    """

    session: dict[str, int]
    limit_nbytes: int
    process_nbytes: int
    staging_nbytes: int
    waiting_nbytes: int
    most_nbytes: int

    @property
    def session_nbytes(self) -> int:
        return sum(self.session.values())


class Allowance:
    """Of one session on one device, whose lock is held where `held_nbytes` changes.

    memory_nbytes: device memory that it may hold, 0 for what the adapter has. held: what it holds, by USES.
    hang_timeout_s: how long it waits for the GPU, 0 for ever.
    """

    __slots__ = ("hang_timeout_s", "held", "memory_nbytes")

    def __init__(self, memory_nbytes: int, hang_timeout_s: float) -> None:
        self.memory_nbytes, self.hang_timeout_s = memory_nbytes, hang_timeout_s
        self.held = dict.fromkeys(USES, 0)

    @property
    def held_nbytes(self) -> int:
        return sum(self.held.values())

    def take(self, nbytes: int, use: str = OTHER) -> None:
        """The session gets a buffer. Raises MemoryLimitError, and nothing is taken."""
        if self.memory_nbytes and self.held_nbytes + nbytes > self.memory_nbytes:
            raise MemoryLimitError(
                f"device memory: this session holds {self.held_nbytes} B and asks for {nbytes} B more, "
                f"memory_limit_mb allows "
                f"{self.memory_nbytes} B. Use a smaller batch, or raise memory_limit_mb."
            )
        self.held[use] += nbytes

    def give_back(self, nbytes: int, use: str = OTHER) -> None:
        """The session has freed a buffer."""
        self.held[use] -= nbytes

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
