"""The CPU's load by other processes, on the cores that this one may use."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from ort_gpu_ep.load.source import Source, SourceError, clip, read_text
from ort_gpu_ep.processes.known import cores, workers

Times = tuple[float, float]
"""Seconds that the cores were busy, and that they existed."""


class OwnTime:
    """CPU seconds of this process, and of the workers that processes/known.py knows."""

    def __init__(self, root: Path = Path("/"), pids: Callable[[], Iterable[int]] = workers) -> None:
        self._root, self._pids = root, pids
        self._tick_s = 1.0 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
        self._workers: dict[int, float] = {}

    def __call__(self) -> float:
        for pid in self._pids():
            self._workers[pid] = max(self._of(pid), self._workers.get(pid, 0.0))
        return time.process_time() + sum(self._workers.values())

    def _of(self, pid: int) -> float:
        """utime + stime, fields 14 and 15 of /proc/PID/stat (proc_pid_stat(5)); 0 for a process that has ended."""
        try:
            fields = read_text(self._root / "proc" / str(pid) / "stat").rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) * self._tick_s
        except SourceError:
            return 0.0


class CpuLoad(Source):
    """Busy part of the usable cores, own work subtracted.

    Linux: /proc/stat (Documentation/filesystems/proc.rst, 1.7), whose columns are user, nice, system, idle, iowait,
    irq, softirq, steal; user includes guest. Stolen time counts as busy: nobody here can have it. Elsewhere: psutil.
    """

    name = "CPU"

    def __init__(self, root: Path = Path("/"), own_s: Callable[[], float] | None = None) -> None:
        self._path = root / "proc/stat"
        self._own_s = own_s or OwnTime(root)
        self._tick_s = 1.0 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
        self.cores = cores(root)
        self._file = self._open()
        self._lines = self._usable()
        self._last = (*self._times(), self._own_s())

    def _open(self) -> int | None:
        try:
            return os.open(self._path, os.O_RDONLY)
        except OSError:  # no Linux
            return None

    def _usable(self) -> tuple[bytes, ...]:
        """The lines to read: that of all cores, or those of the cores that this process is bound to."""
        if self._file is None or not hasattr(os, "sched_getaffinity"):
            return ()
        there = [line.split()[0] for line in _start_of(self._file, 1 << 20).splitlines() if line.startswith(b"cpu")]
        mine = [b"cpu%d" % core for core in sorted(os.sched_getaffinity(0))]
        return tuple(mine) if len(mine) < len(there) - 1 and set(mine) <= set(there) else (b"cpu",)

    def _times(self) -> Times:
        if self._file is None:
            timed = psutil.cpu_times()
            return sum(timed) - timed.idle - getattr(timed, "iowait", 0.0), sum(timed)
        busy = total = 0
        # the lines of the cores stand first; the rest, thousands of interrupts on a large machine, is not needed, and
        # its last line is cut
        whole = _start_of(self._file, 256 if self._lines == (b"cpu",) else 1 << 16).rpartition(b"\n")[0]
        for line in whole.splitlines():
            words = line.split()
            if words and words[0] in self._lines:
                ticks = [int(w) for w in words[1:9]]
                total += sum(ticks)
                busy += sum(ticks) - ticks[3] - ticks[4]
        if not total:
            raise SourceError(f"{self._path}: no line begins with {self._lines[0].decode()!r}")
        return busy * self._tick_s, total * self._tick_s

    def read(self) -> float | None:
        """Raises SourceError, where /proc/stat has another form."""
        now, last = (*self._times(), self._own_s()), self._last
        if now[1] <= last[1]:
            return None  # no tick has passed
        self._last = now
        # own time starts anew after a fork
        return clip((now[0] - last[0] - max(now[2] - last[2], 0.0)) / (now[1] - last[1]))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _start_of(file: int, nbytes: int) -> bytes:
    """Of an open file, from its first byte on."""
    if sys.platform == "win32":
        os.lseek(file, 0, os.SEEK_SET)
        return os.read(file, nbytes)
    return os.pread(file, nbytes, 0)
