"""Starts a process that keeps an adapter busy, for tests and for `ort-gpu-ep bench --load`."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from types import TracebackType
from typing import IO, TYPE_CHECKING

from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.processes.child import BEGIN_S, command, environment

if TYPE_CHECKING:
    from ort_gpu_ep.device.info import AdapterInfo

DUTY = {"low": 0.25, "medium": 0.60, "high": 0.95}
"""Parts of the time, one in each band of utilization.BANDS."""


class LoadGenerator:
    """`with LoadGenerator(info, "high"):` another process computes on the adapter for 95 % of the time.

    level: a name of DUTY or a part from 0 to 1. threads: on a software adapter, how many threads its driver (Mesa's
    llvmpipe) uses; by default half of the cores, for with none left the CPU candidate is as slow as the other one. It
    ends with the block, or with us.

    Raises: AdapterError, where the process does not begin, with what it printed; OSError, where none can be started.
    """

    def __init__(self, info: AdapterInfo, level: str | float, threads: int = 0) -> None:
        self.info, self.duty = info, DUTY[level] if isinstance(level, str) else level
        self._threads = threads or max((os.cpu_count() or 1) // 2, 1)
        self._process: subprocess.Popen[str] | None = None
        self._printed: IO[str] | None = None

    @property
    def pid(self) -> int:
        """The process, 0 before and after the block."""
        return self._process.pid if self._process else 0

    def __enter__(self) -> LoadGenerator:
        variables = environment() | ({"LP_NUM_THREADS": str(self._threads)} if self.info.is_software else {})
        self._printed = tempfile.TemporaryFile("w+")  # not a pipe, which nobody would read on
        self._process = subprocess.Popen(
            command("ort_gpu_ep.drills.busy", str(self.info.index), str(self.duty)),
            text=True,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
        )
        if self._first_line() != "ready":
            code, words = self._stop(), self._last_words()
            self._printed.close()
            raise AdapterError(f"load generator on {self.info.name}: the process ended with {code}: {words}")
        return self

    def _first_line(self) -> str:
        """What it says first; nothing if it ends or takes longer than BEGIN_S."""
        assert self._process is not None
        assert self._process.stdout is not None
        timer = threading.Timer(BEGIN_S, self._process.kill)
        timer.start()
        try:
            return self._process.stdout.readline().strip()
        finally:
            timer.cancel()

    def _last_words(self) -> str:
        if self._printed is None:
            return ""
        self._printed.seek(0)
        return self._printed.read().strip()[-400:]

    def _stop(self) -> int:
        """Ends the process by its id and gives its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return process.wait(10.0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if self._printed is not None:
            self._printed.close()
