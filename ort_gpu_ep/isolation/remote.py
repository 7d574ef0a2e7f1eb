"""A worker's GPU and its programs, seen from the sessions."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from ort_gpu_ep.config import Config
from ort_gpu_ep.device.circuit import Circuit
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.errors import AdapterError, DeviceError, DeviceHangError, DeviceLostError
from ort_gpu_ep.isolation.channel import SharedMemory
from ort_gpu_ep.isolation.leak_watch import Held, LeakWatch
from ort_gpu_ep.isolation.process import WorkerProcess, check_system, garbage
from ort_gpu_ep.isolation.process_memory import AccessCheck
from ort_gpu_ep.isolation.wire import GarbageError, device_of
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.utilization import Uses

log = logging.getLogger("ort_gpu_ep")

T = TypeVar("T")

START_S = 90.0
"""For a worker to load the driver, and to probe an adapter that is new to this machine (8 s at most)."""

RUN_S = 60.0
"""How long a run may take where hang_timeout_ms is 0: a stopped worker must not stop its parent for ever."""

MAX_KILLED = 5
"""So many workers may be killed by somebody else before they are ready, or while they compile one program: the system
does that, too, where compiling takes more memory than there is."""

_OPTIONS = ("adapter", "faults", "memory_limit_mb", "health", "quirks", "cache_dir")
"""What sessions must have in common to share a worker; the rest is a program's own."""


class BusyError(DeviceError):
    """A run has waited for others too long. It says nothing about the adapter."""


Request: TypeAlias = Callable[[tuple[object, ...], float], dict[str, Any]]
"""Asks a worker: (request, seconds) -> its answer."""


class Member(Protocol):
    """A program that each new worker compiles, see program.RemoteProgram."""

    config: Config
    number: int
    problem: str
    ended_workers: int

    @property
    def is_given_up(self) -> bool: ...

    def compile(self, memory: SharedMemory, request: Request) -> None:
        """In the first worker."""

    def compile_again(self, memory: SharedMemory, request: Request) -> None:
        """In one that follows."""

    def wait(self, error: Exception) -> None:
        """A worker failed of it."""


class RemoteGpu:
    """An adapter that a worker process has. Thread-safe; requests go one by one, and don't wait while a worker is
    started.

    info, limits: of the adapter. key: what its caches are named by. circuit: the trust in it; its probe replaces the
    worker. reaches: whether the worker reaches this process's memory. generations, runs: how many workers and runs
    there were. lost: always empty, because a worker that lost its device is replaced.
    """

    lost = ""
    reported = reaches = False
    info: AdapterInfo
    limits: Limits
    key: str

    def __init__(self, config: Config) -> None:
        self._config = replace(config, hang_timeout_ms=0)  # the parent has the deadline
        self.circuit, self.uses = Circuit(self._replace, test=self._test), Uses()
        self._starting, self._lock = threading.RLock(), threading.RLock()  # taken in this order
        self._process: WorkerProcess | None = None
        self._leak_watch: LeakWatch | None = None
        self._programs: weakref.WeakValueDictionary[int, Member] = weakref.WeakValueDictionary()
        self._users = self.generations = self.runs = self._compiles = 0

    @property
    def process(self) -> WorkerProcess:
        """The worker. Raises DeviceLostError while there is none."""
        if self._process is None:
            self.circuit.allows()  # in strict mode nobody else asks, and a new worker is wanted
            raise DeviceLostError(
                "the worker process is being replaced; try again, or use strict=0 to have the CPU answer meanwhile."
            )
        return self._process

    @property
    def pid(self) -> int | None:
        """Of the worker; None while there is none."""
        process = self._process
        return process.pid if process is not None else None

    def ensure(self) -> None:
        """Starts a worker if there is none. Raises AdapterError, ConfigError."""
        with self._starting:
            with self._lock:
                if self._process is not None and not self._process.is_alive:
                    self._discard()
            if self._process is None:
                self._start()
                self.circuit.passed()  # as behind `_replace`, which would end this worker for another one

    def _start(self) -> None:
        """Starts a worker with all programs, but for those that can't be compiled. Hold `_starting`, and not the lock:
        a start may hang."""
        process: WorkerProcess | None = None
        starts = 0
        while process is None:
            starts += 1
            try:
                process, answer, reaches = self._opened()
            except AdapterError as error:
                if not error.killed or starts >= MAX_KILLED:
                    raise
                continue
            programs = sorted(self._programs.values(), key=lambda p: p.ended_workers)
            try:
                for program in programs:
                    program.compile_again(process.memory, partial(self._ask, process))
            except (DeviceLostError, DeviceHangError) as error:
                self._kill(process)
                process = None
                if not program.is_given_up and not (error.killed and starts < MAX_KILLED):
                    raise self._no_worker(error) from error
                log.warning("%s: %s", self._config.adapter or "the GPU", program.problem)
            except BaseException:
                self._kill(process)
                raise
        with self._lock:
            (self.info, self.limits), self.key, self.reaches = device_of(answer), str(answer["key"]), reaches
            self.uses.sleeps = not self.info.is_software
            self._process, self.generations, self._leak_watch = process, self.generations + 1, LeakWatch(process.pid)
            process.is_opened(self.info.name)
            for program in programs:
                if program.number not in self._programs:  # its session has ended meanwhile
                    self.request(("release", program.number), RUN_S)

    def _opened(self) -> tuple[WorkerProcess, dict[str, Any], bool]:
        """A worker that has opened the adapter, its answer, and whether it reaches this process. Raises AdapterError,
        ConfigError."""
        process: WorkerProcess | None = None
        try:
            process = WorkerProcess()
            trial = AccessCheck(process.pid)
            request = ("open", self._config, self.runs, self._compiles, self.generations > 0, trial.address)
            answer = process.request(request, START_S)
            device_of(answer)
        except (OSError, GarbageError, DeviceLostError, DeviceHangError) as error:
            self._kill(process)
            raise self._no_worker(error) from error
        except BaseException:
            self._kill(process)
            raise
        return process, answer, trial.passed

    def _no_worker(self, error: Exception) -> AdapterError:
        problem = AdapterError(f"isolation=process: no worker opens adapter {self._config.adapter!r}: {error}")
        problem.killed = getattr(error, "killed", False)
        return problem

    @staticmethod
    def _kill(process: WorkerProcess | None) -> None:
        if process is not None:
            process.kill()

    def _replace(self) -> None:
        """The circuit's probe: a new worker that has checked its adapter, with all programs, or one that was started
        meanwhile."""
        before = self.generations
        with self._starting:
            if self.generations == before or self._process is None:
                self._discard()
                if not self._users:
                    raise DeviceError("no session uses the worker now")
                self._start()
            with self._lock:
                if not self._users:
                    self.end()

    def _test(self) -> None:
        """The probe of a worker in use. Raises what `probe` does."""
        with self._lock:
            self.request(("check",), RUN_S)

    def _discard(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            self._kill(process)

    def _ask(self, process: WorkerProcess, request: tuple[object, ...], timeout_s: float) -> dict[str, Any]:
        answer = process.request(request, timeout_s)
        self._compiles = int(answer.get("compiles", 0))
        return answer

    def request(self, request: tuple[object, ...], timeout_s: float) -> dict[str, Any]:
        """The worker's answer; a worker that fails is ended. Hold `lock` meanwhile. Raises DeviceError, what the worker
        raised."""
        try:
            return self._ask(self.process, request, timeout_s)
        except (DeviceLostError, DeviceHangError):
            self._discard()
            raise
        except Exception:  # the worker's own words: it goes on
            raise
        except BaseException:  # the answer would come when nobody expects it
            self._discard()
            raise

    def look_after(self, answer: Mapping[str, Any]) -> None:
        """After a run: a worker that leaks is replaced. answer: the run's."""
        try:
            memory_held = Held(*map(int, answer["held"]))
        except (KeyError, TypeError, ValueError) as error:
            raise self.protocol_error(f"{str(answer)[:80]}, expected what it holds") from error
        leak = self._leak_watch.leak(memory_held) if self._leak_watch is not None else ""
        if leak:
            self._discard()
            self.circuit.failed(f"{self.info.name}: {leak}", at_once=True)

    # ---- programs

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
        """Holds the lock, as long as the shared memory is in use. Raises BusyError, where others have it for so
        long."""
        if not self._lock.acquire(timeout=timeout_s):
            raise BusyError(f"{self.info.name}: the worker process was busy with other sessions for {timeout_s:g} s")
        try:
            yield
        finally:
            self._lock.release()

    def read(self, parse: Callable[..., T], answer: Mapping[str, Any], *about: object) -> T:
        """What a function of wire.py makes of an answer. Raises DeviceLostError, where that is none."""
        try:
            return parse(answer, *about)
        except GarbageError as error:
            raise self.protocol_error(str(error)) from error

    def is_out_of_reach(self, answer: Mapping[str, Any]) -> bool:
        """Whether the worker could not reach memory of this process; from then on, all tensors go through the shared
        memory."""
        if "out_of_reach" not in answer:
            return False
        log.info(
            "isolation=process: tensors are copied once more each way from now on: the worker can't reach %s",
            answer["out_of_reach"],
        )
        self.reaches = False
        return True

    def protocol_error(self, what: str) -> DeviceLostError:
        """Ends a worker that answers so; gives what to raise."""
        self._discard()
        return garbage(self.info.name, what)

    def add(self, program: Member) -> None:
        """Compiles a program. Raises what that raises; but where only the worker has failed, the next one compiles it,
        unless `strict`."""
        with self._starting:
            try:
                self.ensure()
                with self._lock:
                    program.compile(self.process.memory, self.request)
            except (AdapterError, DeviceLostError, DeviceHangError) as error:
                if program.config.strict:
                    raise
                program.wait(error)
                self.circuit.failed(program.problem, at_once=True, killed=error.killed)
            with self._lock:
                self._programs[program.number] = program

    def remove(self, program: Member) -> None:
        """Frees what the worker holds for a program."""
        with self._lock:
            there = self._programs.pop(program.number, None)
            if there is not None and self._process is not None:
                with suppress(DeviceError):  # a worker that fails now is replaced at the next run
                    self.request(("release", program.number), RUN_S)

    # ---- users

    def enter(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """The last one to go ends the worker."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self.end()

    def end(self) -> None:
        """Ends the worker; the next program starts another."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.end()

    def after_fork(self) -> None:
        """In the child: the worker is the parent's. The circuit starts one of the child's own, if it runs anything."""
        self._starting, self._lock, self.circuit = (
            threading.RLock(),
            threading.RLock(),
            Circuit(self._replace, test=self._test),
        )
        process, self._process = self._process, None
        if process is not None:
            process.abandon()


class Lease:
    """A user of a worker, from now until `end` or until nobody has the lease any more."""

    def __init__(self, gpu: RemoteGpu) -> None:
        self.gpu = gpu
        gpu.enter()
        self._finalizer = weakref.finalize(self, gpu.leave)
        self._finalizer.atexit = False

    def end(self) -> None:
        self._finalizer()


_open: dict[tuple[object, ...], RemoteGpu] = {}
_open_lock = threading.Lock()


def open_remote(config: Config) -> RemoteGpu:
    """The adapter that the config asks for, in the worker of all sessions that ask for the same.

    Raises AdapterError, ConfigError (a broken quirks file, faults that are none, Windows).
    """
    check_system()
    key = tuple(getattr(config, name) for name in _OPTIONS)
    with _open_lock:
        if not _open:
            atexit.register(_end_all)
        gpu = _open[key] = _open.get(key) or RemoteGpu(config)
    try:
        gpu.ensure()
    except AdapterError as error:
        if not (error.killed and gpu.generations):  # else what the adapter is like is known from the worker before
            raise
        gpu.circuit.failed(str(error), at_once=True, killed=True)
    return gpu


def _end_all() -> None:
    for gpu in list(_open.values()):
        gpu.end()


def after_fork() -> None:
    """In the child: workers are the parent's, and a thread that held a lock does not exist."""
    global _open_lock
    _open_lock = threading.Lock()
    for gpu in _open.values():
        gpu.after_fork()
