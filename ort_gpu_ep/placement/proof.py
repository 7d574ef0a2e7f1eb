"""Runs all candidates on the inputs of a run: which can answer it, whether they agree, and how long each takes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.kernels.profile import Profile
from ort_gpu_ep.partitioner import Costs, Report
from ort_gpu_ep.partitioner.costs import HOST_S
from ort_gpu_ep.placement.agreement import check_outputs
from ort_gpu_ep.placement.candidates import Candidate, Candidates
from ort_gpu_ep.placement.cpu_costs import cpu_costs
from ort_gpu_ep.placement.names import CPU, CUT, GPU
from ort_gpu_ep.placement.trial import CLEAR, WAKE_S, race
from ort_gpu_ep.plugin import fall_back_or_raise
from ort_gpu_ep.plugin.explain import adapter_of

log = logging.getLogger("ort_gpu_ep")

HOPELESS = 3.0
"""A candidate predicted to be slower than the measured CPU by this factor is not run, if running it would take the whole budget."""

GROWS = (0.02, 0.95)
"""Least and largest part of a GPU's time that is taken to grow with the size of the inputs."""


Raced: TypeAlias = tuple[dict[str, float], dict[str, str], frozenset[str]]
"""Median seconds of those that were run, why others were left out, and the wrong ones among these."""


@dataclass(frozen=True, slots=True)
class Proof:
    """measured_s: median seconds of those that were run. predicted_s: by the partitioner. failed: why others were left out, by name.

    wrong: those among them that gave wrong results. grows: part of a candidate's time that does not belong to runs, waits and dispatches.
    """

    measured_s: Mapping[str, float]
    predicted_s: Mapping[str, float]
    failed: Mapping[str, str] = field(default_factory=dict)
    wrong: frozenset[str] = frozenset()
    grows: Mapping[str, float] = field(default_factory=dict)


class Prover:
    """Of one session. planned: the adapter and what the partitioner would do, once it was asked. software: the adapter is the CPU.

    told_s: what the CPU takes, where another process is busy with such runs and says so; it is not run then. profiles: whether nodes may be
    profiled on the CPU, for which SessionOptions change for a moment: not while the user may make sessions of the same.
    """

    def __init__(self, candidates: Candidates, config: Config, software: bool) -> None:
        self.candidates, self.config, self.software = candidates, config, software
        self.planned: tuple[str, tuple[Report, ...]] | None = None
        self.told_s: float | None = None
        self.profiles = True
        self._left_s = config.placement_budget_ms * 1e-3
        self._first: Raced = {}, {}, frozenset()

    def clear(self, feeds: Mapping[str, Any], cpu_s: float, profile: Profile) -> Proof | None:
        """Runs the GPU alone against the CPU: all that is to be known where it has every node and is plainly faster, else None.

        What a cut would be made by, profiles of the CPU's nodes and of the GPU's kernels, takes several seconds. Not on a software adapter,
        whose runs may take long. cpu_s, profile: as of prove; of the profile, transfers and families are not needed.
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
            found = self._race(rivals, feeds, predicted)
            measured, failed, wrong = measured | found[0], failed | found[1], wrong | found[2]
        times = {n: f"{s * 1e3:.3f} ms" for n, s in measured.items()}
        log.info("placement: %s of %s; found out in %.1f s", min(measured, key=measured.__getitem__), times, time.perf_counter() - start)
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
        found: dict[tuple[int, str], float] = {}
        try:
            if self.profiles:
                found = cpu_costs(c.model, c.settings, c.kwargs, feeds, cpu_s)
        except Exception as error:   # no room for a file, an op of the user's own: assumed costs do
            log.info("placement: nodes could not be profiled on the CPU, costs are assumed: %s: %s", type(error).__name__, error)
        c.drop(CUT)                 # if there is one, it was made without these costs
        c.costs = Costs(profile, found, dict(shapes))

    def _rivals(self, predicted: Mapping[str, float], cpu_s: float) -> list[str]:
        """The candidates besides the CPU that are worth a run. A cut that takes nothing, or all, is none of its own."""
        chosen = min(predicted, key=predicted.__getitem__, default=CPU)
        if chosen == GPU and GPU not in self._first[0]:
            self.candidates.add(replace(self.candidates.get(CUT), name=GPU))
        if chosen != CUT:
            self.candidates.drop(CUT)
        wanted = [CUT, GPU] if chosen == CUT else [GPU]
        return [n for n in wanted if not (predicted.get(n, 0.0) > HOPELESS * cpu_s and 3 * predicted.get(n, 0.0) > self._left_s)]

    def _race(self, rivals: list[str], feeds: Mapping[str, Any], predicted: Mapping[str, float]) -> Raced:
        """Median seconds of the CPU and of the rivals that work, and agree with it on the first run; why others do not; the wrong ones."""
        failed, wrong = dict[str, str](), set[str]()
        cpu = self.candidates.get(CPU).session
        run_cpu = partial(cpu.run, None, feeds)
        runs: dict[str, Callable[[], object]] = {CPU: run_cpu}
        names, want = [output.name for output in cpu.get_outputs()], run_cpu() if rivals else []
        for name in rivals:
            candidate = None
            try:
                candidate = self.candidates.get(name)
                check_answer(candidate, feeds, names, want, run_cpu, self.config.precision)
            except Exception as error:   # whatever keeps a candidate from answering puts it out; the CPU has answered the same inputs
                failed[name] = rejected(candidate, name, error, self.config.strict)
                wrong |= {name} if isinstance(error, WrongResultError) else set()
            else:
                if candidate.state is None or candidate.state.partitions:      # else all of it runs on the CPU, which is there already
                    runs[name] = partial(candidate.session.run, None, feeds)
        before = {name: _failures(self.candidates.get(name)) for name in runs}
        start = time.perf_counter()
        try:
            times = race(runs, self._left_s, 0.0 if self.software else WAKE_S, predicted, told_s=self.told_s or 0.0)
        finally:
            self._left_s -= time.perf_counter() - start
        for name in [n for n in runs if n != CPU and _failures(self.candidates.get(n)) > before[n]]:
            failed[name] = rejected(self.candidates.get(name), name, RuntimeError("it failed while it was measured"), False)
            times = {n: s for n, s in times.items() if n != name}
        return times, failed, frozenset(wrong)


def check_answer(
    candidate: Candidate, feeds: Mapping[str, Any], names: Sequence[str], want: Sequence[Any], run_cpu: Callable[[], Any], precision: str,
) -> None:
    """Runs a candidate once. Raises what keeps it from answering, and WrongResultError where it does not agree with the CPU (`want`)."""
    got = candidate.session.run(None, feeds)
    trouble(candidate)
    check_outputs(names, got, want, run_cpu, precision)


def trouble(candidate: Candidate) -> None:
    """Raises what has kept a candidate, or a part of it, from the GPU: what it takes says nothing about the GPU then."""
    state = candidate.state
    if state is None:
        return
    found = next((event for event in list(state.events) if event.kind in ("error", "fallback")), None)
    if found is not None:
        raise found.error if isinstance(found.error, Exception) else RuntimeError(f"the CPU had to answer for it: {found.message}")


def rejected(candidate: Candidate | None, name: str, error: Exception, strict: bool) -> str:
    """Says that a candidate is left out, and why. Raises the cause in strict mode."""
    state = candidate.state if candidate is not None else None
    if strict:
        fall_back_or_raise(state, error)
    if state is not None and state.backend is not None and isinstance(error, WrongResultError):
        state.backend.adapter.circuit.failed(f"WrongResultError: {error}", at_once=True)
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
    return {name: min(max(1.0 - fixed_s / s, GROWS[0]), GROWS[1]) for name, s in seconds.items() if name != CPU and s > 0.0}
