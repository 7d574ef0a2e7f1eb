"""The worker process: one session, two batches at a time.

Sessions allow several runs at a time: while one computes, the next one's inputs are uploaded and the last one's outputs
read back.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection, parent_process
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ort_gpu_ep.errors import AdapterError, DeviceError, OutOfDeviceMemoryError, ScoringError
from ort_gpu_ep.scoring import memory, visible
from ort_gpu_ep.scoring.columns import Array
from ort_gpu_ep.scoring.model import Model
from ort_gpu_ep.scoring.running import Busy, open_session, score_rows

DEPTH = 2
"""Batches under way."""

_STALE = 3
"""Doublings of the batch that bring nothing, after which no larger one is tried."""

_MAPPED = 3
"""Shards that stay mapped."""


@dataclass(frozen=True, slots=True)
class Setup:
    """adapter: as in the option, or `cpu`. options: of the provider.

    load: of a process that may be on another machine, where it finds its adapter itself: writes the model's files into
    a folder there, and gives where the model is. where: that machine, for people.
    """

    model: Model
    adapter: str
    options: dict[str, Any]
    load: Callable[[Path], str] | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """Rows start to stop of some arrays. answer: the name of the shared memory to make for the outputs; empty: they
    come as they are."""

    source: memory.Source
    start: int
    stop: int
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """outputs: none where the model refused all rows. busy_s: of this worker until now."""

    outputs: memory.Segment | dict[str, Array]
    errors: dict[int, str]
    busy_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """kind: `device`, whose process is replaced; `memory`, too little for so many rows; `fatal`, the same anywhere."""

    kind: str
    message: str


@dataclass(slots=True)
class _State:
    model: Model
    session: Any
    folder: TemporaryDirectory[str] | None = None
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(DEPTH, "ort_gpu_ep-score"))
    under_way: deque[Future[Done | Failed]] = field(default_factory=deque)
    shards: dict[str, memory.Opened] = field(default_factory=dict)
    retired: list[memory.Opened] = field(default_factory=list)
    busy: Busy = field(default_factory=Busy)
    lock: Any = field(default_factory=threading.Lock)


_state: _State | None = None


def begin() -> None:
    """Ctrl-C is the parent's business, and without a parent there is nothing to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, name="ort_gpu_ep-parent", daemon=True).start()


def _follow() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def identify() -> int:
    """The process id."""
    return os.getpid()


def open_worker(setup: Setup) -> Failed | tuple[str, str]:
    """Makes the session. Name and kind of the adapter, where it was found here."""
    global _state
    adapter, path, names, folder = setup.adapter, setup.model.path, ("", ""), None
    try:
        if setup.load is not None:
            adapter, kind, place = visible.chosen(adapter, setup.options)
            names = f"{setup.where}: {kind} {place}".strip(), kind
            folder = TemporaryDirectory(prefix="ort_gpu_ep-model-")
            path = setup.load(Path(folder.name))
        _state = _State(setup.model, open_session(path, adapter, setup.options), folder)
    except Exception as error:
        # a worker before this one may not have ended yet, which has the adapter
        is_claimed = isinstance(error, AdapterError) and adapter == visible.AUTO
        kind = "device" if is_claimed or isinstance(error, DeviceError) else "fatal"
        return Failed(kind, f"{type(error).__name__}: {error}")
    return names


def exchange(task: Task | None) -> Done | Failed | None:
    """Takes a batch, and gives the oldest under way once there are DEPTH, or where none came; None: nothing yet."""
    state = _opened()
    if task is not None:
        state.under_way.append(state.pool.submit(_work, state, task))
    if state.under_way and (task is None or len(state.under_way) >= DEPTH):
        return state.under_way.popleft().result()
    return None


def measure(task: Task, limit: int, budget_s: float) -> list[tuple[int, float]] | Failed:
    """(rows, rows a second) for batches of 1, 2, 4, ... rows, until more rows bring nothing, or the time is over.
    limit: the most."""
    state, rates, until_s = _opened(), list[tuple[int, float]](), time.perf_counter() + budget_s
    rows = {name: a[task.start : task.stop] for name, a in _arrays(state, task).items()}
    size = 1
    try:
        while size <= limit:
            feeds = {name: np.resize(a, (size, *a.shape[1:])) for name, a in rows.items()}
            run = partial(score_rows, partial(_run, state), state.model, feeds)
            start = time.perf_counter()
            if run().errors:
                return Failed("fatal", "the model refused rows of the measurement")
            first_s = time.perf_counter() - start
            times = [_timed(run) for _ in range(3 if first_s < 0.2 else 1)]
            rates.append((size, size / min(times)))
            stale = len(rates) > _STALE and max(r for _, r in rates[-_STALE:]) < 1.03 * max(
                r for _, r in rates[:-_STALE]
            )
            if stale or time.perf_counter() > until_s:
                break
            size *= 2
    except OutOfDeviceMemoryError as error:
        return rates or Failed("memory", str(error))
    except Exception as error:
        return _failed(error)
    return rates


def rate(task: Task, size: int, budget_s: float) -> float | Failed:
    """Rows a second in batches of this size, as many under way as in a run. The first ones, which compile, do not
    count."""
    state = _opened()
    feeds = {
        name: np.resize(a[task.start : task.stop], (size, *a.shape[1:])) for name, a in _arrays(state, task).items()
    }
    run = partial(score_rows, partial(_run, state), state.model, feeds)

    def several(until_s: float) -> int:
        runs = 0
        while not runs or time.perf_counter() < until_s:
            run()
            runs += 1
        return runs

    try:
        run()
        start = time.perf_counter()
        runs = [state.pool.submit(several, start + budget_s) for _ in range(DEPTH)]
        return sum(r.result() for r in runs) * size / (time.perf_counter() - start)
    except Exception as error:
        return _failed(error)


def _timed(run: Any) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _opened() -> _State:
    assert _state is not None, "open_worker comes first"
    return _state


def _run(state: _State, feeds: Mapping[str, Array]) -> list[Array]:
    with state.busy.run():
        return list(state.session.run([v.name for v in state.model.outputs], dict(feeds)))


def _work(state: _State, task: Task) -> Done | Failed:
    try:
        arrays = _arrays(state, task)
        scored = score_rows(
            partial(_run, state), state.model, {name: a[task.start : task.stop] for name, a in arrays.items()}
        )
        outputs: memory.Segment | dict[str, Array] = scored.arrays
        if scored.arrays and task.answer:
            block = memory.put(task.answer, scored.arrays)
            outputs = block.source
            block.close()
    except Exception as error:
        return _failed(error)
    return Done(outputs, scored.errors, state.busy.total_s)


def _failed(error: Exception) -> Failed:
    kind = (
        "memory"
        if isinstance(error, OutOfDeviceMemoryError)
        else "device"
        if isinstance(error, DeviceError)
        else "fatal"
    )
    return Failed(kind, str(error) if isinstance(error, ScoringError) else f"{type(error).__name__}: {error}")


def _arrays(state: _State, task: Task) -> Mapping[str, Array]:
    """The shard's arrays; those of shards before it are given back when no run reads them."""
    with state.lock:
        if task.source.name not in state.shards:
            while len(state.shards) >= _MAPPED:
                state.retired.append(state.shards.pop(next(iter(state.shards))))
            state.retired = [shard for shard in state.retired if not shard.close()]
            state.shards[task.source.name] = task.source.open()
        return state.shards[task.source.name].arrays


def finish() -> None:
    """Lets the session, the shared memory and the model's files go: the process ends cleanly then."""
    global _state
    state = _opened()
    state.pool.shutdown()
    for shard in (*state.retired, *state.shards.values()):
        shard.close()
    if state.folder is not None:
        state.folder.cleanup()
    _state = None
