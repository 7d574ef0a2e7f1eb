"""State of a session: its options, placement reports, errors and copies.

ONNX Runtime swallows an exception in GetCapability and its Python layer retries a failed CreateEp on the CPU, so both
are recorded here; `capture()` gives the states of the sessions that the calling thread creates meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ort_gpu_ep.errors import AdapterError, DeviceError, InputError
from ort_gpu_ep.files import fingerprint
from ort_gpu_ep.providers import EP_NAME

if TYPE_CHECKING:
    from ort_gpu_ep.config import Config
    from ort_gpu_ep.device import Gpu
    from ort_gpu_ep.device.circuit import Circuit
    from ort_gpu_ep.device.dispatch_times import DispatchTimes
    from ort_gpu_ep.ir.graph import Graph
    from ort_gpu_ep.partitioner import Costs, Report
    from ort_gpu_ep.plugin.fallback import Fallback
    from ort_gpu_ep.runtime.artefact import Artefact
    from ort_gpu_ep.runtime.backend import Backend, Executable

log = logging.getLogger("ort_gpu_ep")

_MAX_LISTED = 1000
"""Events of a session, and copies of a run, that are listed one by one: a loop body may make any number of them."""
_numbers = itertools.count(1)
_told: set[str] = set()
_thread = threading.local()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a user should be able to find out.

    kind: "error" (a callback failed), "fallback" (the CPU answered for the GPU), "warning", "notice".
    where: the callback or the partition.
    """

    number: int
    kind: str
    where: str
    message: str
    error: BaseException | None = field(default=None, compare=False)


@dataclass
class Copies:
    """Copies that the plugin has made: how many of each kind, and their bytes."""

    host_to_device: int = 0
    device_to_host: int = 0
    device_to_device: int = 0
    host_to_device_nbytes: int = 0
    device_to_host_nbytes: int = 0
    device_to_device_nbytes: int = 0

    def add(self, kind: str, nbytes: int) -> None:
        """kind: `host_to_device`, `device_to_host` or `device_to_device`."""
        counts = vars(self)
        with _count_lock:
            counts[kind] += 1
            counts[f"{kind}_nbytes"] += nbytes

    def add_run(self, inputs: int, inputs_nbytes: int, outputs: int, outputs_nbytes: int) -> None:
        """The copies of a run: inputs to the device, outputs from it."""
        with _count_lock:
            self.host_to_device += inputs
            self.host_to_device_nbytes += inputs_nbytes
            self.device_to_host += outputs
            self.device_to_host_nbytes += outputs_nbytes

    def as_dict(self) -> dict[str, int]:
        return dict(vars(self))


_NOBODYS = nullcontext()
_count_lock = threading.Lock()
COPIES = Copies()
"""All copies of this process."""


class Compiled(Protocol):
    """What a state knows of a partition at work, see compute.Partition."""

    graph: Graph
    program: Executable | None
    fallback: Fallback | None
    circuit: Circuit
    runs: int
    fallbacks: int
    cpu_because: str

    def replace(self, program: Executable | None) -> None:
        """Goes on with another program, on another device, or with none."""

    def leave_to_cpu(self, why: str) -> None:
        """Every run from now on."""


class SessionState:
    """One EP instance, which is one session.

    options: the provider options as given. config: None until they are checked. asked: as the options say it, which the
    adapter may need otherwise. fingerprint: of the model's file or bytes, where `capture` was given it. artefact:
    what is known of it on disk. costs: what placement=auto decides by, where `capture` was given any; else the provider
    finds out for itself. backend: None where there is no adapter, or none is wanted. reports: one a graph, bodies of If
    and Loop first. graphs: of each report, without the content of constants. partitions: what was compiled, in ONNX
    Runtime's order. ready: whether the session was created to the end. troubles: how many events say that something
    failed, or that the CPU answered: a run during which it grew is no measure of the GPU. renewals: how often the
    programs were rebuilt on a new device. renewing: held while that goes on. runs: how many `begin_run` was told of.
    last_run: (kind, nbytes) of each copy since the last one; runs that overlap share it. cpu_because: why the CPU
    answered the whole of the last run, past all partitions; empty where it did not. bypasses: repeated runs of the
    session bypass ONNX Runtime. profiles: what wants the times of
    runs now, for ONNX Runtime's profiles (profiler.py). unwanted_optimizers: those of onnxruntime that the session must
    do without: nodes that stay on its CPU would end the process.
    """

    def __init__(self) -> None:
        self.options: Mapping[str, str] = {}
        self.config: Config | None = None
        self.asked: Config | None = None
        self.model_path = self.fingerprint = ""
        self.artefact: Artefact | None = None
        self.costs: Costs | None = None
        self.backend: Backend | None = None
        self.reports: list[Report] = []
        self.graphs: list[Graph] = []
        self.partitions: list[Compiled] = []
        self.events: deque[Event] = deque(maxlen=_MAX_LISTED)
        self.troubles = 0
        self.copies = Copies()
        self.ready = False
        self.renewals = 0
        self.renewing = threading.Lock()
        self.runs = 0
        self.last_run: list[tuple[str, int]] = []
        self.cpu_because = ""
        self.bypasses = False
        self.profiles: tuple[DispatchTimes, ...] = ()
        self.unwanted_optimizers = set[str]()
        self._said: set[tuple[str, str]] = set()

    def begin_run(self) -> None:
        """The session begins a run; what is copied from now on belongs to it. (A callback by ONNX Runtime's OnRunStart
        takes 7 us.)"""
        self.runs += 1
        self.last_run = []
        self.cpu_because = ""

    def count(self, kind: str, nbytes: int) -> None:
        """Notes a copy of this session, see `Copies.add`."""
        self.copies.add(kind, nbytes)
        if len(self.last_run) < _MAX_LISTED:
            self.last_run.append((kind, nbytes))

    def count_run(self, counts: tuple[int, int, int, int], crossings: Sequence[tuple[str, int]]) -> None:
        """Notes the copies of a whole run: for `Copies.add_run`, and one by one."""
        self.copies.add_run(*counts)
        if len(self.last_run) < _MAX_LISTED:
            self.last_run += crossings

    def stats(self) -> dict[str, Any]:
        """What `session.stats()` gives."""
        last: dict[str, list[int]] = {kind: [] for kind in ("host_to_device", "device_to_host", "device_to_device")}
        for kind, nbytes in list(self.last_run):
            last[kind].append(nbytes)
        return {**self.counts(), "last_run": last}

    @property
    def gpu(self) -> Gpu | None:
        """The device of this process that the session uses; None with isolation=process."""
        return self.backend.device if self.backend is not None else None

    @property
    def allowance(self) -> AbstractContextManager[object]:
        """Inside of it this thread works for this session: what it takes of the device counts as the session's."""
        own = self.backend.allowance if self.backend is not None else None
        return own if own is not None else _NOBODYS

    @property
    def strict(self) -> bool:
        return self.config is not None and self.config.strict

    @property
    def model(self) -> Hashable:
        """Tells models apart: sessions of one model on the GPU, with the same options, have the same."""
        return tuple((node.op, *node.writes) for partition in self.partitions for node in partition.graph.nodes)

    @property
    def failures(self) -> int:
        """How many runs or partitions the CPU has taken over."""
        return sum(event.kind == "fallback" for event in list(self.events))

    def counts(self) -> dict[str, int]:
        """The numbers of `stats()`, which sum up over candidates."""
        programs = [p.program for p in self.partitions if p.program is not None]
        return {
            "runs": self.runs,
            **self.copies.as_dict(),
            "weights": sum(p.uploads for p in programs),
            "weights_nbytes": sum(p.uploaded_nbytes for p in programs),
            "fallbacks": self.failures,
            "renewals": self.renewals,
            "specialized": sum(not s.why for p in programs for s in p.specialized),
        }

    @property
    def errors(self) -> list[BaseException]:
        """The exceptions behind the events, oldest first."""
        return [event.error for event in list(self.events) if event.error is not None]

    def report(self, report: Report, graph: Graph) -> None:
        """Keeps what was decided on a graph. A model with local functions is asked twice, before and after ONNX Runtime
        inlines those that nobody takes: the last answer counts.
        """
        before = [k for k, earlier in enumerate(self.reports) if not earlier.nested]
        if not report.nested and before:
            count = len(self.reports)
            kept = [*range(before[-1] + 1, count)] or [k for k in range(count) if self.reports[k].nested]
            self.reports[:], self.graphs[:] = [self.reports[k] for k in kept], [self.graphs[k] for k in kept]
        self.reports.append(report)
        self.graphs.append(graph)

    def labels(self) -> dict[str, str]:
        """ONNX Runtime's name of a fused node, which ends in 20 digits -> what the report calls its partition."""
        labels = {}
        for partition in list(self.partitions):
            for report in self.reports:
                for part in report.partitions:
                    if set(part.outputs) & set(partition.graph.outputs):
                        labels[partition.graph.name] = (
                            f"partition {part.index}{f' of {report.graph}' if report.nested else ''}"
                        )
        return labels

    def record(self, kind: str, where: str, what: BaseException | str) -> Event:
        """Keeps an event, and logs it unless the same was said before."""
        message = what if isinstance(what, str) else f"{type(what).__name__}: {what}"
        error = None if isinstance(what, str) else what
        event = Event(next(_numbers), kind, where, message, error)
        self.events.append(event)
        self.troubles += kind in ("error", "fallback")
        if (where, message) not in self._said and len(self._said) < _MAX_LISTED:
            self._said.add((where, message))
            if not isinstance(error, AdapterError):
                label = self.labels().get(where, "a partition") if where.startswith(f"{EP_NAME}_") else where
                log.log(
                    logging.INFO if kind == "notice" else logging.WARNING,
                    "%s: %s",
                    label,
                    message.replace(where, label),
                )
            elif not self.strict:  # what is strict is raised
                say_once(str(error))
        return event

    def recording(self, where: str) -> ErrorRecorder:
        """Records an exception that leaves the block, and marks it so that `cause_of` finds it again."""
        return ErrorRecorder(self, where)

    def cause_of(self, error: BaseException) -> BaseException | None:
        """The exception of ours that ONNX Runtime has turned into `error`; None if it is not ours."""
        match = re.search(r"\[ort_gpu_ep event (\d+)\]", str(error))
        number = int(match[1]) if match else -1
        return next((e.error for e in list(self.events) if e.number == number), None)


class ErrorRecorder:
    """See SessionState.recording. Each copy enters one: a generator would take twice as many calls."""

    __slots__ = ("_state", "_where")

    def __init__(self, state: SessionState, where: str) -> None:
        self._state, self._where = state, where

    def __enter__(self) -> None:
        """Nothing has happened yet."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            event = self._state.record("error", self._where, error)
            error.add_note(f"[ort_gpu_ep event {event.number}]")


def say_once(why: str) -> None:
    """Logs why sessions of this process run on the CPU, once for all of them."""
    if why not in _told:
        _told.add(why)
        log.warning("running on the CPU: %s", why)


def fall_back_or_raise(state: SessionState | None, error: Exception) -> None:
    """Returns where the CPU may answer a run that failed, and records it; else raises what the user should see.

    That is onnxruntime's own exception, where a run on the CPU in place of the GPU ended in one.
    """
    cause = state.cause_of(error) if state is not None else None
    if cause is not None and type(cause).__module__.startswith("onnxruntime."):
        raise cause from None
    if state is None or not isinstance(cause, (DeviceError, InputError)):
        raise error
    if state.strict:
        raise cause from error
    state.cpu_because = state.record("fallback", "run", cause).message


@contextmanager
def capture(costs: Costs | None = None, model: object = None, bypasses: bool = False) -> Iterator[list[SessionState]]:
    """Collects the state of every session that this thread begins to create inside the block, failed ones too.

    costs: what these sessions' placement=auto decides by. model: of theirs, a path or bytes; where it is neither, the
    provider goes by what onnxruntime tells of it. bypasses: see SessionState.
    """
    seen: list[SessionState] = []
    stack: list[tuple[list[SessionState], Costs | None, object, bool]] = _thread.__dict__.setdefault("captures", [])
    stack.append((seen, costs, model, bypasses))
    try:
        yield seen
    finally:
        stack.pop()


def announce(state: SessionState) -> None:
    """Tells the `capture()` blocks of this thread about a new session."""
    for seen, costs, model, bypasses in _thread.__dict__.get("captures", []):
        seen.append(state)
        state.bypasses = state.bypasses or bypasses
        state.costs = costs or state.costs
        if isinstance(model, (str, bytes, os.PathLike)):
            state.fingerprint = fingerprint(model if isinstance(model, bytes) else os.fspath(model))


def after_fork() -> None:
    """In the child: a thread that held the lock does not exist."""
    global _count_lock
    _count_lock = threading.Lock()
