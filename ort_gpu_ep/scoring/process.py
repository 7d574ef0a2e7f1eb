"""A worker process seen from its parent: calls with a deadline, and how it ended."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from typing import Any, ParamSpec, TypeVar

from ort_gpu_ep.processes.child import ending
from ort_gpu_ep.scoring import worker

P = ParamSpec("P")
T = TypeVar("T")

BEGIN_S = 120.0
"""For a process to start and import its packages: 2 s, longer on a machine with much else to do."""

_LAST_S = 10.0
"""For a worker to end by itself."""


class WorkerEndError(Exception):
    """The process ended, or did not answer in time and was ended; the message says which."""


class GoneError(WorkerEndError):
    """There will be no other worker in its place."""


class Process:
    """One worker process in a pool of its own: a drive.Worker. Not thread-safe. Raises WorkerEndError where it does not
    start."""

    name = kind = ""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._process: Any = None
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), worker.begin)
        try:
            self.pid = self._call(BEGIN_S, worker.identify)
        except WorkerEndError as error:
            raise WorkerEndError(
                f"{error}; a script that scores needs `if __name__ == '__main__':` around it"
            ) from error
        self._process = next((p for p in multiprocessing.active_children() if p.pid == self.pid), None)

    def open(self, setup: worker.Setup) -> worker.Failed | None:
        return self.call(worker.open_worker, setup)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(self._timeout_s, function, *args, **kwargs)

    def _call(self, timeout_s: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return self._pool.submit(function, *args, **kwargs).result(timeout_s)
        except TimeoutError:
            self.kill()
            raise WorkerEndError(f"the worker process did not answer within {timeout_s:g} s and was ended") from None
        except BrokenExecutor:
            raise WorkerEndError(f"the worker process ended ({self._ending()})") from None

    def _ending(self) -> str:
        process = self._process
        if process is None:
            return "while it started"
        until_s = time.monotonic() + _LAST_S
        # the pool waits for it, too: one of both hears how it ended
        while process.exitcode is None and time.monotonic() < until_s:
            process.join(0.05)
        return ending(process.exitcode) if process.exitcode is not None else "it closed its pipe"

    def kill(self) -> None:
        """Ends it at once, also where it is stopped or hangs."""
        process = self._process
        if process is None:  # it did not begin: all that this pool has started
            process = next(iter((self._pool._processes or {}).values()), None)
        if process is not None and process.exitcode is None:
            process.kill()
            process.join(_LAST_S)  # what it shares is cleaned up behind it
        self._pool.shutdown(wait=False, cancel_futures=True)

    def end(self) -> None:
        """Lets it end by itself; kills it where it does not."""
        try:
            self._call(_LAST_S, worker.finish)
        except WorkerEndError:
            self.kill()
        self._pool.shutdown(wait=True)
