"""A worker in a process of this machine."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from typing import Any

from ort_gpu_ep.processes.child import ending
from ort_gpu_ep.scoring import worker
from ort_gpu_ep.scoring.transport import LAST_S, WorkerEndError


class Process:
    """One process in a pool of its own: a transport.Channel."""

    name = "the worker process"
    advice = "; a script that scores needs `if __name__ == '__main__':` around it"

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), worker.begin)
        self._process: Any = None  # once it has answered

    def ask(self, timeout_s: float, function: Callable[..., Any], *given: Any) -> Any:
        try:
            answer = self._pool.submit(function, *given).result(timeout_s)
        except BrokenExecutor:
            advice = self.advice if self._process is None else ""
            raise WorkerEndError(f"{self.name} ended ({self._ending()}){advice}") from None
        self._process = self._process or self._child()
        return answer

    def _child(self) -> Any:
        """All that this pool has started."""
        return next(iter((self._pool._processes or {}).values()), None)

    def _ending(self) -> str:
        process = self._process
        if process is None:
            return "while it started"
        until_s = time.monotonic() + LAST_S
        # the pool waits for it, too: one of both hears how it ended
        while process.exitcode is None and time.monotonic() < until_s:
            process.join(0.05)
        return ending(process.exitcode) if process.exitcode is not None else "it closed its pipe"

    def kill(self) -> None:
        process = self._process or self._child()
        if process is not None and process.exitcode is None:
            process.kill()
            process.join(LAST_S)  # what it shares is cleaned up behind it
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        self._pool.shutdown(wait=True)
