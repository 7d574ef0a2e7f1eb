"""The start of a session with placement=auto: it runs on onnxruntime's CPU provider until measurements in the
background have ended.

Where nothing is known of the machine or the model, another process finds out (scout.py) and leaves it in the caches, so
that a driver may crash and a search may take long without the user's runs noticing. What is left for this process is a
device and the candidate that won.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from onnxruntime import OrtValue

from ort_gpu_ep.config import OPTIONS, Config
from ort_gpu_ep.device.background import Background, ending
from ort_gpu_ep.health.helper import FROM_OUTSIDE, Worker
from ort_gpu_ep.heap import give_back, give_back_behind
from ort_gpu_ep.placement import CPU
from ort_gpu_ep.placement.candidates import Candidate
from ort_gpu_ep.placement.source import Source, settings_lock
from ort_gpu_ep.plugin import CPU_PROVIDER, ensure_registered
from ort_gpu_ep.private import behind
from ort_gpu_ep.processes.child import ending as how_it_ended
from ort_gpu_ep.processes.interrupts import load
from ort_gpu_ep.session.early import FORKS, begin, in_order, known_verdict, uses_of
from ort_gpu_ep.session.opening import MODULES, SHARE, is_decided, look_for_gpu, make_runner

if TYPE_CHECKING:
    from ort_gpu_ep.isolation.remote import Lease
    from ort_gpu_ep.placement.runner import Runner

log = logging.getLogger("ort_gpu_ep")

Feeds: TypeAlias = Mapping[str, Any]
Take: TypeAlias = "Callable[[Runner | None, Lease | None, str], None]"

TURN_S = 5e-4
"""How long a thread may keep the interpreter from others meanwhile (5 ms by default): a run waits so long at each
return from C++."""

LOOK_S = 0.05
"""How often it is asked whether the process ends, or the session is gone."""

SILENT_S = 300.0
"""A process that finds out and says nothing for so long, besides the option hang_timeout_ms, is ended."""

LAST_S = 0.5
"""How long such a process may take to clear up."""

KNOWN = ("ort_gpu_ep.health.enumeration", "ort_gpu_ep.health.verdicts", "ort_gpu_ep.placement.decisions")
"""What tells whether another process has to find out."""

CHOOSING = ("ort_gpu_ep.placement.runner", "ort_gpu_ep.load")
"""What a session takes besides MODULES that chooses between candidates."""

DRIVING = ("ort_gpu_ep.health.open_adapter", "ort_gpu_ep.calibration")
"""What it takes where this process opens the device: both load the library of the GPU, which isolation=process keeps
out of it."""

SCOUT = "ort_gpu_ep.session.scout"
"""What such a process runs."""

SETTINGS = (
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "execution_mode",
    "execution_order",
    "graph_optimization_level",
    "inter_op_num_threads",
    "intra_op_num_threads",
    "use_deterministic_compute",
)
"""What can be read of SessionOptions and changes what a run takes. What can't be read (custom ops) may keep another
process from finding out; this one does then."""


class Stage(IntEnum):
    """How far the start of a session is. A session only goes on to a later stage."""

    FIRST_RUN = 0
    TURN = 1
    KNOWN = 2
    SEARCH = 3
    GPU = 4
    OVER = 5

    @property
    def waits_for(self) -> str:
        """For people."""
        return _WAITS_FOR[self]


_WAITS_FOR = {
    Stage.FIRST_RUN: "the first run",
    Stage.TURN: "its turn",
    Stage.KNOWN: "what earlier sessions have noted",
    Stage.SEARCH: "another process, which finds out where it runs best",
    Stage.GPU: "the GPU to be opened",
    Stage.OVER: "",
}


class Start:
    """Of one session. Thread-safe.

    settings: the user's SessionOptions. front: the session on the CPU, held no longer than it answers the runs. fixed:
    all its input shapes are known. threads: that it has, where they leave a core to the search (opening.py), else 0.
    become, take: of the session, held weakly; take is told at last what answers its runs (None: the CPU alone), and why
    if that is a surprise. runs: that the CPU has answered. least_s: the quickest of them
    behind the first.
    """

    def __init__(
        self,
        source: Source,
        settings: Any,
        options: Mapping[str, str],
        kwargs: Mapping[str, Any],
        config: Config,
        front: Candidate,
        fixed: bool,
        threads: int,
        become: Callable[[Candidate], None],
        take: Take,
    ) -> None:
        self.source, self.config, self.fixed, self._threads = source, config, fixed, threads
        self.front: Candidate | None = front
        self.stage, self.runs, self.least_s = Stage.FIRST_RUN, 0, math.inf
        self._settings, self._options, self._kwargs, self._become, self._take = settings, options, kwargs, become, take
        self._feeds: Feeds | None = None
        self._runner: Runner | None = None
        self._shapes: dict[str, Any] = {}
        self._over, self._cancelled, self._hurried = threading.Event(), threading.Event(), threading.Event()
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._searched = False  # by another process

    # ---- the session's threads

    def run(self, outputs: Any, feeds: Feeds, options: Any, values: bool = False) -> Any:
        """One run on the CPU, as Runner.run."""
        begin_s, front = time.perf_counter(), self.front
        if front is None:
            assert self._runner is not None, "the front is given back when there is a runner"
            return self._runner.run(outputs, feeds, options, values)
        session = front.session
        answer = (
            session.run_with_ort_values(outputs, feeds, options) if values else session.run(outputs, feeds, options)
        )
        self._ran(feeds, time.perf_counter() - begin_s)
        return answer

    def _ran(self, feeds: Feeds, seconds: float) -> None:
        """A run is over. With the first one, the search begins."""
        with self._lock:
            self._count(1)
        if self.stage is not Stage.FIRST_RUN:
            if seconds < self.least_s and (
                self.fixed or all(getattr(v, "shape", ()) == self._shapes.get(n) for n, v in feeds.items())
            ):
                self.least_s = seconds
            return
        if not self._begin():
            return
        load(FORKS)
        self._feeds = _copied(feeds)
        self._shapes = {name: value.shape for name, value in (self._feeds or {}).items()}
        _queue.add(self._work)

    def _begin(self) -> bool:
        """Whether this thread is the one that begins it."""
        with self._lock:
            if self.stage is not Stage.FIRST_RUN:
                return False
            self.stage, self._pid = Stage.TURN, os.getpid()
            return True

    def _count(self, runs: int) -> None:
        if self._runner is None:
            self.runs += runs
        elif runs:
            self._runner.runs[CPU] += runs

    @property
    def is_over(self) -> bool:
        """Also in a forked child, which has no thread that could go on."""
        return (
            self._over.is_set()
            or self._cancelled.is_set()
            or (self.stage is not Stage.FIRST_RUN and self._pid != os.getpid())
        )

    def wait(self, timeout_s: float | None = None, hurry: bool = False) -> bool:
        """Whether it is over, after this time at most; it begins now, without a run to try candidates with, if it has
        not.

        hurry: nothing is left to another process any more.
        """
        if self.is_over:
            return True
        first = self._begin()
        if hurry:
            self._hurried.set()
        if first or (hurry and self.stage is Stage.TURN):
            load(FORKS)
            threading.Thread(target=self._work, name="ort_gpu_ep-start").start()
        return self._over.wait(timeout_s)

    def cancel(self) -> None:
        """The session has become another one."""
        self._cancelled.set()

    def drop(self) -> None:
        """The session is gone: what it was made of is not kept until its turn."""
        self._cancelled.set()
        with self._lock:
            if self.stage <= Stage.TURN:
                self.stage, self._feeds = Stage.OVER, None
                del self.front, self.source

    # ---- the thread beside them

    def _work(self) -> None:
        with self._lock:
            if self.stage is not Stage.TURN:  # another thread has it, or the session is gone
                return
            self.stage = Stage.KNOWN
        assert self.front is not None, "until this thread has done its work"
        first = weakref.ref(behind(self.front.session))
        runner = lease = None
        why = ""
        try:
            with _short_turns():
                runner, lease, why = self._found()
        except Exception as error:  # the CPU goes on answering; explain() says why
            why = f"{type(error).__name__}: {error}"
        if why and not self._stops:
            log.warning("placement: the session stays on the CPU: %s", why)
        try:
            if self._threads and not self._stops:
                self._on_all_cores(runner)
        except Exception as error:  # the file has changed, no memory: it goes on with the threads that it has
            log.info("placement: runs on the CPU keep %d threads: %s: %s", self._threads, type(error).__name__, error)
        self._feeds = None
        self.stage = Stage.OVER
        with self._lock:
            self._runner, runs, self.runs = runner, self.runs, 0
            self._count(runs)
        if not self._cancelled.is_set():
            self._take(runner, lease, why)
        self._over.set()
        if runner is not None:
            self.front = None
        if not self._stops:
            give_back_behind([first], self.source.nbytes)  # what onnxruntime's sessions of the model took
            if self._searched:
                _queue.add(partial(_probe_the_rest, self.config))

    @property
    def _stops(self) -> bool:
        return self._cancelled.is_set() or ending()

    def _found(self) -> tuple[Runner | None, Lease | None, str]:
        """What answers the session's runs from now on, a lease of the worker if that has the GPU, and why there is none
        of both."""
        # opening the front took it, and sessions that this thread makes have another part of the heap
        give_back(self.source.nbytes)
        feeds, uses = self._feeds, uses_of(self.config, self.source)
        load(*KNOWN)
        alone = self._stops or self._hurried.is_set()
        if feeds is not None and not alone and not is_decided(self.config, self.source, self._settings, uses):
            why = self._search(feeds)
            if why is not None:
                return None, None, why
            uses = uses_of(self.config, self.source)  # that process has left pipelines
        if self._stops:
            return None, None, ""
        self.stage = Stage.GPU
        early = begin(self.config, self.source.path_or_bytes, uses)
        load(*MODULES)
        nothing_to_gain, lease, why = look_for_gpu(self.config, uses)
        if nothing_to_gain or self._stops:
            return None, lease, why
        ensure_registered()
        runner = make_runner(self.source, self._settings, self._options, self._kwargs, self.config)
        assert self.front is not None
        runner.begin(self.front, self.fixed, self._become)
        if not self._stops:
            with early.known() if early is not None else nullcontext():
                self._warm(runner, feeds)
        return runner, lease, ""

    def _on_all_cores(self, runner: Runner | None) -> None:
        """What the CPU runs from now on has all of onnxruntime's threads."""
        if runner is not None:
            runner.renew_cpu()
        else:
            self.front = Candidate(CPU, self.source.session(self._settings, [CPU_PROVIDER], [{}], self._kwargs))
            self._become(self.front)

    def _warm(self, runner: Runner, feeds: Feeds | None) -> None:
        """Makes the candidate that won the front."""
        if feeds is None or self._hurried.is_set():
            runner.lead()
            return
        runner.chooser.prover.profiles = False
        runner.warm(feeds)
        runner.chooser.prover.profiles = True

    # ---- another process

    def _search(self, feeds: Feeds) -> str | None:
        """Lets another process find out. Gives why the session is to stay on the CPU; None where this process goes
        on."""
        job = self._job(feeds)
        if job is None:
            return None
        payload = [np.ascontiguousarray(value).reshape(-1).view(np.uint8).data for value in feeds.values()]
        self.stage = Stage.SEARCH
        try:
            with self.source.there() as model, _folder() as folder:
                content = b"" if isinstance(model, str) else model
                job |= {"model": model if isinstance(model, str) else "", "nbytes": len(content), "folder": folder}
                scout = Worker(job, None, SCOUT, [content, *payload], listens=True)
                self._searched = True
                return self._follow(scout)
        except OSError as error:
            log.info("placement: no process can be started (%s): this process measures the candidates", error)
            return None

    def _job(self, feeds: Feeds) -> dict[str, object] | None:
        """All that is no payload; None where something can't be said."""
        if any(value.dtype.kind not in "biufc" for value in feeds.values()) or self._kwargs:
            return None
        with settings_lock:
            settings = {name: int(getattr(self._settings, name)) for name in SETTINGS if self._settings is not None}
        return {
            "options": _options(self.config),
            "settings": settings,
            "feeds": [[name, value.dtype.str, value.shape] for name, value in feeds.items()],
        }

    def _follow(self, scout: Worker) -> str | None:
        """Answers what the process asks, until it is done, or nobody wants to know any more. Gives what `_search`
        does."""
        deadline_s = time.monotonic() + SILENT_S
        answer: dict[str, Any] | None = {}
        # else there may be no GPU; what the winner needs is loaded meanwhile
        if in_order(self.config) is not None:
            load(*MODULES, *CHOOSING, *(DRIVING if self.config.isolation != "process" else ()))
        while not self._stops and not self._hurried.is_set() and time.monotonic() < deadline_s:
            try:
                answer = scout.line(LOOK_S)
            except TimeoutError:
                continue
            if answer is None or "done" in answer:
                break
            deadline_s = time.monotonic() + SILENT_S + self.config.hang_timeout_ms * 1e-3
            if "ask" in answer:
                share = 1 - 1 / SHARE if self._threads else 1.0
                scout.tell({"cpu_s": self.least_s * share if math.isfinite(self.least_s) else None})
        scout.hang_up()
        code = scout.end(patience_s=LAST_S)
        return self._told(answer, code, scout.pid)

    def _told(self, found: dict[str, Any] | None, code: int, pid: int) -> str | None:
        """What follows from the last line of the process, and from how it ended."""
        from ort_gpu_ep.health import markers

        if found is not None and "done" in found:
            return None if found["done"] else str(found["why"])
        if found is None and -code not in FROM_OUTSIDE:
            return (
                f"the process that was to find out where it runs best ended with {how_it_ended(code)}; see "
                f"`ort-gpu-ep doctor`"
            )
        markers.forgive(self.config.cache_path, pid)
        if self._stops or self._hurried.is_set():
            return None
        return (
            f"the process that was to find out where it runs best was ended ({how_it_ended(code)}); the next "
            f"session tries again"
        )


def _options(config: Config) -> dict[str, str]:
    """Of a process that finds out."""
    texts = {o.name: str(int(v)) if isinstance(v := getattr(config, o.name), bool) else str(v) for o in OPTIONS}
    return {**texts, "load": "off"}


@contextmanager
def _folder() -> Iterator[str]:
    """The path of a temporary folder, which such a process makes."""
    folder = os.path.join(tempfile.gettempdir(), f"ort_gpu_ep-scout-{secrets.token_hex(8)}")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _probe_the_rest(config: Config) -> None:
    """Another process runs the probes that no model has wanted so far, lest the next model's session wait for them.

    It gives way to a session whose turn comes, and ends with this process; probes that were not over then wait for a
    model again.
    """
    from ort_gpu_ep.health import markers

    verdict = known_verdict(config) if config.isolation != "process" else None  # whose worker has run them all
    if verdict is None or not verdict[1].late:
        return
    try:
        with _folder() as folder:
            job = {"options": _options(config), "settings": {}, "feeds": [], "model": "", "nbytes": 0, "folder": folder}
            scout = Worker(job, None, SCOUT, listens=True)
            while not ending() and not _queue.waits:
                with suppress(TimeoutError):
                    if scout.line(LOOK_S) is None:
                        break
            scout.hang_up()
            scout.end(patience_s=LAST_S)
            markers.forgive(config.cache_path, scout.pid)
    except OSError as error:
        log.info("no process can be started (%s): probes wait until a model wants them", error)


def _copied(feeds: Feeds) -> Feeds | None:
    """The inputs as they are now; None where one is no array."""
    copies = {}
    for name, value in feeds.items():
        if isinstance(value, OrtValue):
            value = value.numpy() if value.is_tensor() else None
        if not isinstance(value, np.ndarray):
            return None
        copies[name] = np.array(value)
    return copies


_turns_lock = threading.Lock()
_turns: list[float] = []
"""The interval before, for each thread that has shortened it."""


@contextmanager
def _short_turns() -> Iterator[None]:
    """The interpreter changes threads more often. Who sets another interval meanwhile keeps it."""
    with _turns_lock:
        _turns.append(sys.getswitchinterval())
        sys.setswitchinterval(min(TURN_S, _turns[0]))
    try:
        yield
    finally:
        with _turns_lock:
            before = _turns[0]
            _turns.pop()
            if not _turns and math.isclose(sys.getswitchinterval(), min(TURN_S, before), rel_tol=0.01):
                sys.setswitchinterval(before)


def _after_fork() -> None:
    """In the child: what was to be found out is the parent's."""
    global _queue, _turns_lock
    _queue, _turns_lock = Background(), threading.Lock()
    with suppress(IndexError):
        sys.setswitchinterval(_turns[0])
    _turns.clear()


def beside_runs(work: Callable[[], None]) -> None:
    """Does this in the background, after what other sessions find out."""
    _queue.add(work)


_queue = Background()
"""One session after the other: two searches at a time would disturb each other."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
