"""A process that loads drivers in place of this one. Imports nothing that loads a driver itself."""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.health.worker import DONE
from ort_gpu_ep.processes.child import BEGIN_S, command, ending, environment, starved_s

START_S = 30.0
"""A worker that has not begun its first probe by then hangs while it opens the device."""

STARVED = 0.02
"""A worker that has waited for a core for less than this part of its limit had enough of the machine."""


class Worker:
    """One process and the lines that it prints. touches: whether it has said that it goes to the drivers now.

    It is killed where nobody has the object any more, and waited for however it ends.
    """

    def __init__(
        self,
        job: dict[str, object],
        variables: Mapping[str, str] | None = None,
        module: str = "ort_gpu_ep.health.worker",
        payload: Iterable[Any] = (),
        listens: bool = False,
    ) -> None:
        """variables: of the environment, besides this process's. payload: buffers that follow the job. listens: it gets
        lines later.

        Raises OSError, if no process can be started.
        """
        self._process = subprocess.Popen(
            command(module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # a terminal's Ctrl-C is for the parent
            env={**environment(), **(variables or {})},
            start_new_session=True,
        )
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self.touches = False
        _running[id(self)] = self
        self._dropped = weakref.finalize(self, _end, self._process)
        self._dropped.atexit = False  # kill_all says when
        # it has no reference to this object; before all that an interrupt may end
        self._reader = threading.Thread(
            target=_read, args=(self._process, self._lines), name="ort_gpu_ep-probe", daemon=True
        )
        self._reader.start()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            for part in payload:
                self._process.stdin.write(part)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it ended before it read its job; how, the exit code says
        if not listens:
            self.hang_up()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: dict[str, object]) -> None:
        """Sends a line to a process that listens."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()

    def hang_up(self) -> None:
        """No line follows: a process that listens ends now."""
        _close(self._process)

    def line(self, timeout_s: float) -> dict[str, Any] | None:
        """The next line; None at the end. Raises TimeoutError."""
        try:
            text = self._lines.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            raise TimeoutError from None
        line: dict[str, Any] | None = json.loads(text) if text else None
        self.touches = self.touches or (line is not None and "touches" in line)
        return line

    def answer(self, limit_s: float, deadline: float = math.inf) -> dict[str, Any] | None:
        """The next line, as `line` gives it. What the process waits for a core does not count: a machine that is busy
        is no hang.

        deadline: of the monotonic clock; it holds in any case.
        """
        left_s = limit_s
        while True:
            before = starved_s(self._process.pid)
            try:
                return self.line(min(left_s, deadline - time.monotonic()))
            except TimeoutError:
                left_s = max(
                    (s - before.get(thread, 0.0) for thread, s in starved_s(self._process.pid).items()), default=0.0
                )
                if left_s < STARVED * limit_s or time.monotonic() >= deadline:
                    raise

    def end(self, kill: bool = False, patience_s: float = 10.0) -> int:
        """Waits for the process, or ends it; its exit code."""
        if kill:
            self._process.kill()
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:  # a driver that hangs while it is unloaded
            self._process.kill()
            code = self._process.wait()
        self.hang_up()
        self._reader.join()
        _running.pop(id(self), None)
        self._dropped.detach()
        return code


def _close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Of an object that nobody has."""
    process.kill()
    _close(process)


def _read(process: subprocess.Popen[bytes], lines: queue.Queue[bytes | None]) -> None:
    """To its end, which it waits for: else the process stays a zombie where its owner does not."""
    assert process.stdout is not None
    with process.stdout as stdout:
        for line in stdout:
            if line.endswith(b"\n"):  # not what a crash has cut short
                lines.put(line)
    lines.put(None)
    process.wait()


_running: weakref.WeakValueDictionary[int, Worker] = weakref.WeakValueDictionary()


def kill_all() -> None:
    """Ends the helpers of this process, which is about to end itself."""
    for reference in _running.valuerefs():  # at once: another thread may start one now
        if (worker := reference()) is not None:
            worker._process.kill()


def _after_fork() -> None:
    """In the child: the helpers are the parent's, and shall see when that is gone."""
    for worker in list(_running.values()):
        worker._process.returncode = 0
        for pipe in (worker._process.stdin, worker._process.stdout):
            with suppress(OSError, AttributeError):
                os.close(pipe.fileno())  # type: ignore[union-attr]  # not `close`: a lock of its buffer may be held
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class HelperError(AdapterError):
    """The process that was to look failed by itself, or was ended from outside: that says nothing about a driver."""


FROM_OUTSIDE = frozenset(getattr(signal, name, 0) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGXCPU"))
"""Signals that people, service managers and the kernel (out of memory, limits) send; drivers don't."""


def list_adapters(variables: Mapping[str, str] | None = None, timeout_s: float = 0.0) -> list[dict[str, Any]]:
    """The adapters as a worker sees them. timeout_s: START_S by default.

    Raises: AdapterError where a driver kills or hangs the process that looks; HelperError where that process fails by
    itself; OSError where no process can be started.
    """
    worker, timeout_s = Worker({"task": "list"}, variables), timeout_s or START_S
    try:
        line = worker.answer(BEGIN_S)
        if worker.touches:
            line = worker.answer(timeout_s)
    except TimeoutError:
        worker.end(kill=True)
        if not worker.touches:
            raise HelperError(
                f"the process that looks for GPU adapters does not begin: no answer after {BEGIN_S:.0f} s."
            ) from None
        raise AdapterError(f"looking for GPU adapters hangs: no answer after {timeout_s:.0f} s. {_ADVICE}") from None
    except BaseException:  # Ctrl-C, which it does not get itself
        worker.end(kill=True)
        raise
    code = worker.end()
    if line is not None and "failed" in line:
        raise HelperError(f"the process that looks for GPU adapters failed ({line['failed']}).")
    if not worker.touches or -code in FROM_OUTSIDE:
        raise HelperError(f"the process that looks for GPU adapters ended before it did ({ending(code)}).")
    if line is None or code != DONE:
        raise AdapterError(f"looking for GPU adapters ends the process ({ending(code)}). {_ADVICE}")
    return list(line["adapters"])


_ADVICE = "Update or remove a GPU driver (VK_DRIVER_FILES chooses which ones Vulkan loads)."
