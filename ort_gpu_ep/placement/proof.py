"""Runs all candidates on the inputs of a run: which can answer it, whether they agree with the CPU, and how long each
takes.

In this order: a proof, a race of candidates in turn, comparison with the CPU's results, ONNX Runtime's profile of the
CPU's nodes.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnxruntime

from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.ir.types import Shape
from ort_gpu_ep.kernels.profile import Profile
from ort_gpu_ep.partitioner import Costs, Report
from ort_gpu_ep.partitioner.costs import HOST_S
from ort_gpu_ep.placement import CPU, CUT, GPU
from ort_gpu_ep.placement.candidates import Candidate, Candidates
from ort_gpu_ep.placement.decider import SLEPT
from ort_gpu_ep.placement.source import Source, with_profiler
from ort_gpu_ep.plugin import CPU_PROVIDER, fall_back_or_raise
from ort_gpu_ep.plugin.explain import adapter_of
from ort_gpu_ep.plugin.verification import JUDGED_NBYTES, Opinion, compare, third_opinion

log = logging.getLogger("ort_gpu_ep")

HOPELESS = 3.0
"""A candidate predicted to be slower than the measured CPU by this factor is not run, if running it would take the
whole budget."""

GROWS = (0.02, 0.95)
"""Least and largest part of a GPU's time that is taken to grow with the size of the inputs."""

BLOCK, BLOCK_S, MAX_BLOCKS = 5, 0.05, 4
"""Runs in a row of one candidate that count, at least and for so long, and how often its turn comes at most. Steady
runs are what is decided about: run by run in turn, each would meet the other's threads, which onnxruntime lets spin
after a run, and its caches."""

WARM_UPS, WARM_UP_S = 3, 0.04
"""Runs before a block that don't count, at least and for so long: the first makes pipelines and buffers, the second
records ahead."""

WAKE_S, RAMP = 1.2, 6.0
"""How long a GPU is run before its first block, unless the race is clear: one that was left alone for a second or two
raises its clock only after 0.4 s of work, sometimes more than 0.6, and then by RAMP at most (an H200: from 345 to 1,980
MHz, ResNet-50 from 5.2 to 1.9 ms).
"""

PATIENCE = 2.5
"""How many times as long a GPU is run that loses against its prediction: after work that used little of it, an H200
stayed slow for more than 0.8 s, and what is decided is kept."""

REST_S = 0.01
"""Pause before a block, in which the threads of the candidate before go to sleep."""

CLEAR = 1.5
"""A race is over after two blocks if all others are slower than the best by this factor."""

TIES = 0.01
"""Part of an integer or boolean output that may differ: indices and decisions turn over where two scores are all but
equal."""

PROFILED = 3
"""Profiled runs; the first one pays for memory and threads and does not count."""

_SUFFIX = "_kernel_time"


Raced: TypeAlias = tuple[dict[str, float], dict[str, str], frozenset[str]]
"""Median seconds of those that were run, why others were left out, and the wrong ones among these."""


@dataclass(frozen=True, slots=True)
class Proof:
    """measured_s: median seconds of those that were run. predicted_s: by the partitioner. failed: why others were left
    out, by name.

    wrong: those among them that gave wrong results. grows: part of a candidate's time that does not belong to runs,
    waits and dispatches.
    """

    measured_s: Mapping[str, float]
    predicted_s: Mapping[str, float]
    failed: Mapping[str, str] = field(default_factory=dict)
    wrong: frozenset[str] = frozenset()
    grows: Mapping[str, float] = field(default_factory=dict)


class Prover:
    """Of one session. planned: the adapter and what the partitioner would do, once it was asked. software: the adapter
    is the CPU.

    told_s: what the CPU takes, where another process is busy with such runs and says so; it is not run then. profiles:
    whether nodes may be profiled on the CPU, for which SessionOptions change for a moment: not while the user may make
    sessions of the same.
    """

    def __init__(self, candidates: Candidates, config: Config, software: bool) -> None:
        self.candidates, self.config, self.software = candidates, config, software
        self.planned: tuple[str, tuple[Report, ...]] | None = None
        self.told_s: float | None = None
        self.profiles = True
        self._left_s = config.placement_budget_ms * 1e-3
        self._first: Raced = {}, {}, frozenset()

    def clear(self, feeds: Mapping[str, Any], cpu_s: float, profile: Profile) -> Proof | None:
        """Runs the GPU alone against the CPU: all that is to be known where it has every node and is plainly faster,
        else None.

        What a cut would be made by, profiles of the CPU's nodes and of the GPU's kernels, takes several seconds. Not on
        a software adapter, whose runs may take long. cpu_s, profile: as of prove; of the profile, transfers and
        families are not needed.
        """
        if self.software or self._left_s <= 0:
            return None
        first = self._race([GPU], feeds, {})
        self._first = first
        state = self.candidates.get(GPU).state if GPU in first[0] else None
        if state is None or first[0][GPU] * CLEAR > cpu_s or any(r.count("cpu") for r in state.reports if not r.nested):
            return None
        self.planned = adapter_of(state), tuple(state.reports)
        return Proof(first[0], {}, grows=_grows(state.reports, first[0], profile))

    def prove(self, feeds: Mapping[str, Any], shapes: Mapping[str, Any], cpu_s: float, profile: Profile) -> Proof:
        """Runs the candidates on these inputs, as far as the budget goes. cpu_s: what a run on the CPU takes."""
        start = time.perf_counter()
        self._learn(profile, feeds, shapes, cpu_s)
        reports = self.ask()[1]
        predicted = _predicted(reports)
        rivals = self._rivals(predicted, cpu_s)
        if self._left_s <= 0:
            return Proof({CPU: cpu_s}, predicted, grows=_grows(reports, predicted, profile))
        measured, failed, wrong = self._first
        rivals = [name for name in rivals if name not in measured and name not in failed]
        if rivals or not measured:
            proof = self._race(rivals, feeds, predicted)
            measured, failed, wrong = measured | proof[0], failed | proof[1], wrong | proof[2]
        times = {n: f"{s * 1e3:.3f} ms" for n, s in measured.items()}
        log.info(
            "placement: %s of %s; found out in %.1f s",
            min(measured, key=measured.__getitem__),
            times,
            time.perf_counter() - start,
        )
        return Proof(measured, predicted, failed, wrong, _grows(reports, {**predicted, **measured}, profile))

    def ask(self) -> tuple[str, tuple[Report, ...]]:
        """Asks the partitioner, by way of the candidate that it makes by its costs."""
        state = self.candidates.get(CUT).state
        self.planned = (adapter_of(state), tuple(state.reports)) if state is not None else ("none", ())
        return self.planned

    def _learn(self, profile: Profile, feeds: Mapping[str, Any], shapes: Mapping[str, Any], cpu_s: float) -> None:
        """The CPU's cost of each node, for the cut: once a session, because a cut is a session of its own."""
        c = self.candidates
        if c.costs is not None:
            return
        measured = NodeProfile({}, {})
        try:
            if self.profiles:
                measured = node_profile(c.model, c.settings, c.kwargs, feeds)
        except Exception as error:  # no room for a file, an op of the user's own: assumed costs do
            log.info(
                "placement: nodes could not be profiled on the CPU, costs are assumed: %s: %s",
                type(error).__name__,
                error,
            )
        c.drop(CUT)  # if there is one, it was made without these costs
        c.costs = Costs(profile, measured.scaled(cpu_s), dict(shapes), node_shapes=measured.shapes)

    def _rivals(self, predicted: Mapping[str, float], cpu_s: float) -> list[str]:
        """The candidates besides the CPU that are worth a run. A cut that takes nothing, or all, is none of its own."""
        chosen = min(predicted, key=predicted.__getitem__, default=CPU)
        if chosen == GPU and GPU not in self._first[0]:
            self.candidates.add(replace(self.candidates.get(CUT), name=GPU))
        if chosen != CUT:
            self.candidates.drop(CUT)
        names = [CUT, GPU] if chosen == CUT else [GPU]
        return [
            n
            for n in names
            if not (predicted.get(n, 0.0) > HOPELESS * cpu_s and 3 * predicted.get(n, 0.0) > self._left_s)
        ]

    def _race(self, rivals: list[str], feeds: Mapping[str, Any], predicted: Mapping[str, float]) -> Raced:
        """Median seconds of the CPU and of the rivals that work, and agree with it on the first run; why others do not;
        the wrong ones."""
        failed, wrong = dict[str, str](), set[str]()
        cpu = self.candidates.get(CPU).session
        run_cpu = partial(cpu.run, None, feeds)
        runs: dict[str, Callable[[], object]] = {CPU: run_cpu}
        names, want = [output.name for output in cpu.get_outputs()], run_cpu() if rivals else []
        for name in rivals:
            candidate = None
            try:
                candidate = self.candidates.get(name)
                check_answer(self.candidates.model, candidate, feeds, names, want, run_cpu, self.config.precision)
            except (
                Exception
            ) as error:  # whatever keeps a candidate from answering puts it out; the CPU has answered the same inputs
                failed[name] = rejected(candidate, name, error, self.config.strict)
                wrong |= {name} if isinstance(error, WrongResultError) else set()
            else:
                # else all of it runs on the CPU, which is there already
                if candidate.state is None or candidate.state.partitions:
                    runs[name] = partial(candidate.session.run, None, feeds)
        before = {name: _failures(self.candidates.get(name)) for name in runs}
        start = time.perf_counter()
        try:
            times = race(runs, self._left_s, 0.0 if self.software else WAKE_S, predicted, told_s=self.told_s or 0.0)
        finally:
            self._left_s -= time.perf_counter() - start
        for name in [n for n in runs if n != CPU and _failures(self.candidates.get(n)) > before[n]]:
            failed[name] = rejected(
                self.candidates.get(name), name, RuntimeError("it failed while it was measured"), False
            )
            times = {n: s for n, s in times.items() if n != name}
        return times, failed, frozenset(wrong)


def check_answer(
    model: Source,
    candidate: Candidate,
    feeds: Mapping[str, Any],
    names: Sequence[str],
    want: Sequence[Any],
    run_cpu: Callable[[], Any],
    precision: str,
) -> None:
    """Runs a candidate once. Raises what keeps it from answering, and WrongResultError where it does not agree with the
    CPU (`want`)."""
    got = candidate.session.run(None, feeds)
    trouble(candidate)
    check_outputs(names, got, want, run_cpu, precision, partial(opinion, model, feeds))


def trouble(candidate: Candidate) -> None:
    """Raises what has kept a candidate, or a part of it, from the GPU: what it takes says nothing about the GPU
    then."""
    state = candidate.state
    if state is None:
        return
    failure = next((event for event in list(state.events) if event.kind in ("error", "fallback")), None)
    if failure is not None:
        raise (
            failure.error
            if isinstance(failure.error, Exception)
            else RuntimeError(f"the CPU had to answer for it: {failure.message}")
        )


def rejected(candidate: Candidate | None, name: str, error: Exception, strict: bool) -> str:
    """Says that a candidate is left out, and why. Raises the cause in strict mode."""
    state = candidate.state if candidate is not None else None
    if strict:
        fall_back_or_raise(state, error)
    if isinstance(error, WrongResultError) and error.by_cpu:
        log.warning(
            "placement: onnxruntime's CPU gives wrong results for this model. The session goes on with them, "
            "as it began; "
            "placement=gpu gives those of float64: %s",
            error,
        )
        return f"onnxruntime's CPU is wrong, and the session stays with its answers: {error}"
    if state is not None and state.backend is not None and isinstance(error, WrongResultError):
        state.backend.adapter.circuit.suspect(f"WrongResultError: {error}", state.model)
    log.warning("placement: the candidate %r is left out, it fails: %s: %s", name, type(error).__name__, error)
    return f"{type(error).__name__}: {error}"


def _failures(candidate: Candidate) -> int:
    return candidate.state.troubles if candidate.state is not None else 0


def _predicted(reports: Sequence[Report]) -> dict[str, float]:
    """Seconds of each assignment of the main graph."""
    predictions = next((r.predictions for r in reversed(reports) if not r.nested), ())
    return {p.candidate: p.total_s for p in predictions}


def _grows(reports: Sequence[Report], seconds: Mapping[str, float], profile: Profile) -> dict[str, float]:
    """Part of a GPU's time that is neither an empty run nor its dispatches."""
    parts = [part for report in reports for part in report.partitions]
    fixed_s = len(parts) * (profile.run_s + HOST_S) + sum(part.dispatches for part in parts) * profile.dispatch_s
    if not parts:
        return {}
    return {
        name: min(max(1.0 - fixed_s / s, GROWS[0]), GROWS[1]) for name, s in seconds.items() if name != CPU and s > 0.0
    }


# ---- in turn


def race(
    runs: Mapping[str, Callable[[], object]],
    budget_s: float,
    wake_s: float = 0.0,
    predicted_s: Mapping[str, float] = MappingProxyType({}),
    clock: Callable[[], float] = time.perf_counter,
    rest: Callable[[float], object] = time.sleep,
    told_s: float = 0.0,
) -> dict[str, float]:
    """Median seconds of each candidate, in blocks; every other round backwards, so that a drift of the machine hits all
    of them.

    runs: the first one is the CPU. predicted_s: of the others, where known. wake_s: WAKE_S for a GPU, 0 for a software
    adapter. budget_s: after it, waking not counted, no run begins that is not needed: each candidate gets one run to
    warm up and one that counts in any case. told_s: what the CPU takes, where that is known: it is not run then. Raises
    what a run raises.
    """
    start, asleep_s, cpu = clock(), 0.0, next(iter(runs))
    times: dict[str, list[float]] = {name: [] for name in runs}
    if told_s:
        times[cpu].append(told_s)
    raced = [name for name in runs if not (told_s and name == cpu)]

    def late() -> bool:
        return clock() - start - asleep_s > budget_s

    for done in range(MAX_BLOCKS):
        for name in reversed(raced) if done % 2 else raced:
            rest(REST_S)
            if done == 0 and times[cpu]:
                asleep_s += _wake(runs[name], median(times[cpu]), predicted_s.get(name, 0.0), wake_s, clock)
            times[name] += _block(runs[name], late, clock)
        if late():
            break
        best = min(median(t) for t in times.values())
        if done and sum(median(t) <= CLEAR * best for t in times.values()) == 1:
            break
    return {name: median(t) for name, t in times.items()}


def _wake(
    run: Callable[[], object], cpu_s: float, predicted_s: float, wake_s: float, clock: Callable[[], float]
) -> float:
    """Runs until the GPU is awake, or it is plain that it wins asleep or can't win awake. Returns the seconds that
    took."""
    start, times = clock(), deque[float](maxlen=5)
    wins_s = max(cpu_s / CLEAR, min(cpu_s, SLEPT * predicted_s))
    patient_s = wake_s * (PATIENCE if 0 < predicted_s < cpu_s else 1)
    while clock() - start < (patient_s if not times or median(times) > cpu_s else wake_s):
        begin = clock()
        run()
        times.append(clock() - begin)
        if len(times) == 5 and not wins_s < median(times) < cpu_s * RAMP:
            break
    return clock() - start


def _block(run: Callable[[], object], late: Callable[[], bool], clock: Callable[[], float]) -> list[float]:
    """Seconds of some runs after some that don't count: one of each at least, and no more where it is late."""
    begin, done = clock(), 0
    while not done or not (late() or (done >= WARM_UPS and clock() - begin > WARM_UP_S)):
        run()
        done += 1
    times: list[float] = []
    while not times or not (late() or (len(times) >= BLOCK and sum(times) > BLOCK_S)):
        begin = clock()
        run()
        times.append(clock() - begin)
    return times


# ---- agreement

Judge: TypeAlias = "Callable[[Sequence[str], Sequence[Any], Sequence[Any], str], Opinion]"
"""Says who is wrong: names of outputs, the GPU's and the CPU's, and the option `precision`."""


def check_outputs(
    names: Sequence[str],
    got: Sequence[Any],
    want: Sequence[Any],
    again: Callable[[], Sequence[Any]],
    precision: str = "float32",
    judge: Judge | None = None,
) -> None:
    """Raises WrongResultError, where outputs differ from the CPU's by more than the option `verify` allows.

    again: runs the model on the CPU once more; one that gives something else each time (random numbers) is not judged.
    precision: the option of the session that gave `got`. judge: whom the error is to name.
    """
    try:
        _check(names, got, want, precision)
    except WrongResultError as error:
        try:
            _check(names, again(), want, "float32")
        except WrongResultError:
            log.info(
                "placement: the model gives other results each time it runs on the CPU; the GPU's are not "
                "compared with them"
            )
            return
        if judge is None:
            raise
        decided = judge(names, got, want, precision)
        wrong = WrongResultError(f"{error} {decided.said}")
        wrong.by_cpu = decided.cpu_is_wrong
        raise wrong from error


def opinion(
    model: Source,
    feeds: Mapping[str, Any],
    names: Sequence[str],
    got: Sequence[Any],
    want: Sequence[Any],
    precision: str,
) -> Opinion:
    """That of the model evaluated in float64."""
    from ort_gpu_ep.comparison.models import exposing

    return third_opinion(
        lambda: exposing(model.proto(JUDGED_NBYTES), names),
        feeds,
        got,
        want,
        partial(_check, names, precision=precision),
    )


def _check(names: Sequence[str], got: Sequence[Any], want: Sequence[Any], precision: str) -> None:
    for name, ours, theirs in zip(names, got, want, strict=True):
        if not isinstance(theirs, np.ndarray) or theirs.dtype.kind not in "biuf":
            continue  # sequences, maps and strings come from the CPU on both sides
        if ours.ndim != theirs.ndim or ours.dtype != theirs.dtype:
            raise WrongResultError(
                f"output {name!r}: got {ours.dtype}{list(ours.shape)}, expected {theirs.dtype}{list(theirs.shape)}"
            )
        if ours.shape != theirs.shape:
            continue  # so many were found or kept: a tie, as below
        if theirs.dtype.kind == "f" or np.count_nonzero(ours != theirs) > TIES * theirs.size:
            compare(f"output {name!r}", ours, theirs, precision)


# ---- the CPU's nodes


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """What onnxruntime's profiler says of the nodes of the main graph, by (node id, op): seconds, and the shapes of the
    tensors that they write.
    """

    seconds: Mapping[tuple[int, str], float]
    shapes: Mapping[tuple[int, str], tuple[Shape, ...]]

    def scaled(self, whole_s: float) -> dict[tuple[int, str], float]:
        """The seconds, scaled to sum up to what a run of the real session takes, which fuses more and is faster."""
        total_s = sum(self.seconds.values())
        return {key: seconds * whole_s / total_s for key, seconds in self.seconds.items()} if total_s else {}


def node_profile(
    model: Source,
    settings: Any,
    kwargs: Mapping[str, Any],
    feeds: Mapping[str, Any],
    runs: int | None = None,
) -> NodeProfile:
    """Runs the model on the CPU with onnxruntime's profiler. The user's own options are used: a copy would lose custom
    ops.

    The graph is optimised only as far as it is when a provider is asked for its nodes, so that ids agree. runs:
    PROFILED where it is None.

    Raises: OSError where no temporary file can be written, and what onnxruntime raises.
    """
    changed = settings if settings is not None else onnxruntime.SessionOptions()
    with tempfile.TemporaryDirectory(prefix="ort_gpu_ep-") as folder:
        with with_profiler(changed, str(Path(folder) / "profile"), onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC):
            session = model.session(changed, [CPU_PROVIDER], [{}], kwargs)
        for _ in range(PROFILED if runs is None else runs):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_bytes())
    times: dict[tuple[int, str], list[float]] = defaultdict(list)
    shapes: dict[tuple[int, str], tuple[Shape, ...]] = {}
    for event in _outside_bodies([e for e in events if e.get("cat") == "Node" and e["name"].endswith(_SUFFIX)]):
        key = int(event["args"]["node_index"]), event["args"]["op_name"]
        times[key].append(event["dur"] * 1e-6)
        shapes[key] = tuple(
            tuple(shape) for kinds in event["args"].get("output_type_shape", ()) for shape in kinds.values()
        )
    return NodeProfile({key: median(seconds[1:] or seconds) for key, seconds in times.items()}, shapes)


def _outside_bodies(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Events of the main graph: a body's nodes have indices of their own, and their time is in their If, Loop or Scan
    already."""
    end = -1
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        if event["ts"] >= end:
            yield event
            if event["args"]["op_name"] in ("If", "Loop", "Scan"):
                end = event["ts"] + event["dur"]
