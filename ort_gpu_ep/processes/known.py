"""The processes that belong to this program (this one and its workers), and the cores that they may use."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_workers: set[int] = set()


def count_as_own(pid: int) -> None:
    """From now on the work of this process is ours (a worker that runs plans): it is no load."""
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


def cores(root: Path = Path("/")) -> int:
    """How many cores this process may use: its affinity, and the quota of its control group where that is less.

    Source: `cpu.max` in the kernel's Documentation/admin-guide/cgroup-v2.rst, "$MAX $PERIOD" in microseconds.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text("ascii", "replace").split()[:2]
    except (OSError, ValueError):  # no control groups here: no quota
        return count
    return count if quota == "max" else max(min(count, -(-int(quota) // int(period))), 1)


@cache
def physical_cores() -> int:
    """Cores of the machine, however many threads each runs. Asked once: it takes up to 30 ms where there are many."""
    import psutil  # only here: most processes that load this module never ask

    return psutil.cpu_count(logical=False) or 1
