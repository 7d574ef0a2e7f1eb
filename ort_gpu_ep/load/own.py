"""Which processes are ours: this one, and workers that it has started. Their work is not load."""

from __future__ import annotations

import os

_workers: set[int] = set()


def count_as_own(pid: int) -> None:
    """From now on the work of this process is ours (a worker that runs plans)."""
    _workers.add(pid)


def forget(pid: int) -> None:
    """The worker has ended."""
    _workers.discard(pid)


def workers() -> tuple[int, ...]:
    """The process ids of our workers."""
    return tuple(_workers)


def own_pids() -> frozenset[int]:
    """The process ids of this process and its workers."""
    return frozenset((os.getpid(), *_workers))
