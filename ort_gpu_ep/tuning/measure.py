"""Runs a model with other forms of its kernels, and keeps those that were faster.

A candidate is the whole model with another form of every kernel that has one: each form meets its real neighbours,
weights and caches, and a few candidates measure all choices at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.device.timing import WAKE_S, Stopwatch
from ort_gpu_ep.errors import ConfigError, OutOfDeviceMemoryError, WrongResultError
from ort_gpu_ep.health.open_adapter import tuning_key
from ort_gpu_ep.kernels.target import Choice, Tuned
from ort_gpu_ep.kernels.tuned import Measured, read, write
from ort_gpu_ep.plugin.verification import compare
from ort_gpu_ep.scheduler.plan import Dispatch

CANDIDATES = 4
"""Forms of each kernel that are measured, the best by estimate: the formula picks within 10 % of the best for most
(ops/tiles.py)."""

BUDGET_S = 10.0
WARM_RUNS, LEAST_RUNS, MOST_RUNS = 2, 3, 25

BEYOND_NOISE = 0.97
"""Another form than the estimate's has to take less than this part of its time."""

TOGETHER_NBYTES = 1 << 30
"""Weights of candidates that are held at the same time, so that they can take turns."""

_alone = threading.Lock()

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What was measured. choices: by key. estimated: the form of each that is taken without measuring. notes: what was
    left out."""

    adapter: str
    choices: Mapping[str, Measured]
    estimated: Mapping[str, str]
    candidates: int
    runs: int
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def saved_ns(self) -> float:
        """Of a run: what the estimated forms take longer than those that were chosen."""
        return sum(choice.ns[self.estimated[key]] - choice.ns[choice.form] for key, choice in self.choices.items())

    @property
    def changed(self) -> int:
        return sum(choice.form != self.estimated[key] for key, choice in self.choices.items())

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        rows = [
            {"key": key, "form": choice.form, "estimated": self.estimated[key], "ns": dict(choice.ns)}
            for key, choice in self.choices.items()
        ]
        return {
            "adapter": self.adapter,
            "candidates": self.candidates,
            "runs": self.runs,
            "seconds": self.seconds,
            "changed": self.changed,
            "saved_ns": self.saved_ns,
            "choices": rows,
            "notes": list(self.notes),
        }


@dataclass
class _Candidate:
    """The model with some forms. outputs: of its first run. times: key -> (form, nanoseconds of each run)."""

    session: Any
    outputs: list[Any]
    watch: Stopwatch
    times: dict[str, tuple[str, list[float]]] = field(default_factory=dict)


def tune(
    open_session: Callable[[], Any],
    feeds: Mapping[str, Any],
    gpu: Gpu,
    config: Config,
    budget_s: float = BUDGET_S,
    fresh: bool = False,
    models: Sequence[str] = (),
    progress: Progress | None = None,
) -> TuneResult:
    """Measures the forms of all kernels of a model that are not known yet, and keeps what was faster: for this process
    and on disk.

    open_session: makes a session of the model with all nodes on `gpu`. feeds: of its runs. budget_s: of running; making
    sessions comes on top. fresh: measures what is known, too. models: names to remember as tuned. progress: is called
    with what comes next and the part done. Raises ConfigError, where the adapter has no timestamps; what sessions and
    runs raise.
    """
    if "timestamp-query" not in gpu.limits.features:
        raise ConfigError(f"{gpu.info.name} has no timestamps: kernels can't be timed on it, so estimates choose.")
    say, start = progress or (lambda what, part: None), time.perf_counter()
    with _alone:
        before = gpu.limits.tuned
        say("planning", 0.0)
        with _forms(gpu, Tuned() if fresh else before):
            first = _opened(open_session, feeds, gpu)
        choices = {
            key: c
            for key, c in choices_of(first.session).items()
            if len(c.forms) > 1 and (fresh or not before.get(key))
        }
        estimated = {key: c.forms[0] for key, c in choices.items()}
        others = {} if fresh else dict(before.items())
        most = max((len(c.forms) for c in choices.values()), default=0)
        trials = [_trial(others, choices, k) for k in range(min(CANDIDATES, most))]
        taken, notes, runs = _measured(open_session, feeds, gpu, first, trials, budget_s, say, config.precision)
        best = {key: _best(estimated[key], taken[key]) for key in choices if estimated[key] in taken.get(key, {})}
        key = tuning_key(gpu.info)
        table = read(config.cache_path, key).with_choices(best, models)
        write(config.cache_path, key, table)
        gpu.limits = replace(gpu.limits, tuned=Tuned(dict(before.items()) | {k: m.form for k, m in best.items()}))
    say("done", 1.0)
    return TuneResult(gpu.info.name, best, estimated, len(trials), runs, time.perf_counter() - start, notes)


def _trial(known: Mapping[str, str], wanted: Mapping[str, Choice], place: int) -> Tuned:
    """Every choice with its form of that place by estimate; the first where there are not so many."""
    return Tuned({**known} | {key: c.forms[place] if place < len(c.forms) else c.forms[0] for key, c in wanted.items()})


@contextmanager
def _forms(gpu: Gpu, forms: Tuned) -> Iterator[None]:
    """Sessions that are made meanwhile take these forms, whoever makes them: forms change speed only."""
    before = gpu.limits.tuned
    gpu.limits = replace(gpu.limits, tuned=forms)
    try:
        yield
    finally:
        gpu.limits = replace(gpu.limits, tuned=before)


def _opened(open_session: Callable[[], Any], feeds: Mapping[str, Any], gpu: Gpu) -> _Candidate:
    """With its first run, in which sizes that the model leaves open are planned for."""
    session = open_session()
    return _Candidate(session, session.run(None, feeds), Stopwatch(gpu, each=True))


def choices_of(session: Any) -> dict[str, Choice]:
    """Key -> what there was to choose, of all plans of a session."""
    choices: dict[str, Choice] = {}
    for partition in session.state.partitions if session.state is not None else ():
        for plan in partition.program.plans if partition.program is not None else ():
            choices |= {
                s.kernel.choice.key: s.kernel.choice
                for s in plan.steps
                if isinstance(s, Dispatch) and s.kernel.choice is not None
            }
    return choices


def _measured(
    open_session: Callable[[], Any],
    feeds: Mapping[str, Any],
    gpu: Gpu,
    first: _Candidate,
    trials: Sequence[Tuned],
    budget_s: float,
    say: Progress,
    precision: str,
) -> tuple[dict[str, dict[str, float]], tuple[str, ...], int]:
    """Key -> form -> nanoseconds; what was left out; runs of each candidate at least."""
    taken, notes, least = dict[str, dict[str, float]](), list[str](), MOST_RUNS
    together = (
        max(1, TOGETHER_NBYTES // max(1, sum(p.program.weight_nbytes for p in first.session.state.partitions)))
        if trials
        else 1
    )
    for begin in range(0, len(trials), together):
        part = trials[begin : begin + together]
        opened = [] if begin else [first]  # which has the estimated forms
        for k, trial in list(enumerate(part))[len(opened) :]:
            say(f"candidate {begin + k + 1} of {len(trials)}", (begin + k / 2) / len(trials))
            try:
                with _forms(gpu, trial):
                    candidate = _opened(open_session, feeds, gpu)
                _check(first.outputs, candidate.outputs, precision)
                opened.append(candidate)
            except (OutOfDeviceMemoryError, WrongResultError) as error:
                notes.append(f"candidate {begin + k + 1} is left out: {error}")
        say("running", (begin + len(part) / 2) / len(trials))
        least = min(least, _run(opened, feeds, gpu, budget_s * len(part) / len(trials)))
        for candidate in opened:
            for key, (form, times) in candidate.times.items():
                taken.setdefault(key, {})[form] = median(times)
    return taken, tuple(notes), least if trials else 0


def _check(want: Sequence[Any], got: Sequence[Any], precision: str) -> None:
    """Raises WrongResultError: a form that this driver computes wrongly is none to choose."""
    for index, (g, w) in enumerate(zip(got, want, strict=True)):
        if isinstance(g, np.ndarray) and g.dtype.kind in "biuf" and g.size:
            compare(f"output {index}", g, w, precision)


def _run(candidates: Sequence[_Candidate], feeds: Mapping[str, Any], gpu: Gpu, budget_s: float) -> int:
    """Runs candidates in turn, every other round backwards, while there is time. How many rounds counted."""
    start, done, warm = time.perf_counter(), 0, 0
    while warm < WARM_RUNS or (not gpu.info.is_software and time.perf_counter() - start < WAKE_S):
        for candidate in candidates:
            candidate.session.run(None, feeds)
        warm += 1
    while candidates and done < MOST_RUNS and (done < LEAST_RUNS or time.perf_counter() - start < budget_s):
        for candidate in reversed(candidates) if done % 2 else candidates:
            for key, (form, ns) in _times(candidate, feeds, gpu).items():
                candidate.times.setdefault(key, (form, []))[1].append(ns)
        done += 1
    return done


def _times(candidate: _Candidate, feeds: Mapping[str, Any], gpu: Gpu) -> dict[str, tuple[str, float]]:
    """Key -> (form, nanoseconds of all dispatches of the nodes with that key) of one run."""
    before, gpu.timer = gpu.timer, candidate.watch
    try:
        candidate.session.run(None, feeds)
        times = candidate.watch.read()
    finally:
        gpu.timer = before
        gpu.flush()
    nodes: dict[tuple[int, str], float] = {}
    chosen: dict[tuple[int, str], Choice] = {}
    for owner, step, begin, end in times:
        dispatch = owner.template.plan.steps[step]
        node = id(owner), dispatch.label.rpartition("/")[0]
        nodes[node] = nodes.get(node, 0.0) + end - begin
        if dispatch.kernel.choice is not None:
            chosen[node] = dispatch.kernel.choice
    timed: dict[str, tuple[str, float]] = {}
    for node, choice in chosen.items():
        timed[choice.key] = choice.form, timed.get(choice.key, ("", 0.0))[1] + nodes[node]
    return timed


def _best(estimated: str, ns: Mapping[str, float]) -> Measured:
    """The fastest form; the estimated one where none is faster beyond noise."""
    best = min(ns, key=lambda form: ns[form])
    return Measured(best if ns[best] < BEYOND_NOISE * ns[estimated] else estimated, ns)
