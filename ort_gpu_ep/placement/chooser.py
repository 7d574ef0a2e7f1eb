"""Which candidate answers a run: proved on the first run of each set of input shapes, remembered on disk."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.explain import adapter_of
from ort_gpu_ep.partitioner import Costs, Report
from ort_gpu_ep.placement.agreement import check_outputs
from ort_gpu_ep.placement.candidates import CPU, CUT, GPU, Candidate, Candidates
from ort_gpu_ep.placement.cpu_costs import cpu_costs
from ort_gpu_ep.placement.decisions import MAX_SIGNATURES, Decision, Decisions, NodeTimes, Signature, signature
from ort_gpu_ep.placement.trial import WAKE_S, race
from ort_gpu_ep.plugin import excuse
from ort_gpu_ep.profile import Profile

log = logging.getLogger("ort_gpu_ep")

HOPELESS = 3.0
"""A candidate predicted to be slower than the measured CPU by this factor is not run, if running it would take the whole budget."""

FLOOR = 0.8
"""Part of an empty run's time below which the CPU can't be beaten; the rest is for the noise of both measurements."""


class Chooser:
    """The choice of one session. Thread-safe.

    fixed: all input shapes are known, so that one decision holds for every run. profile: gives the adapter's (it may take seconds).
    changed: is told when a decision has been made. software: the adapter is the CPU.
    planned: the adapter and what the partitioner would do, once it was asked.
    """

    def __init__(
        self, candidates: Candidates, config: Config, profile: Callable[[], Profile], decisions: Decisions | None, fixed: bool,
        changed: Callable[[Decision], None], software: bool = False,
    ) -> None:
        self.candidates, self.config, self.fixed = candidates, config, fixed
        self.decided: dict[Signature, Decision] = {}
        self.planned: tuple[str, tuple[Report, ...]] | None = None
        self._profile, self._decisions, self._changed, self._software = profile, decisions, changed, software
        self._left_s, self._left_out = config.placement_budget_ms * 1e-3, list[str]()
        self._lock = threading.Lock()

    def decision(self, feeds: Mapping[str, Any]) -> Decision:
        """What holds for these inputs, found out now if need be. Threads that come while another one measures use the CPU."""
        key: Signature = () if self.fixed else signature(feeds)
        known = self.decided.get(key)
        if known is not None:
            return known
        if not self._lock.acquire(blocking=False):
            return Decision(CPU, "predicted", "another thread is measuring")
        try:
            return self.decided.get(key) or self._decide(key, feeds)
        finally:
            self._lock.release()

    def _decide(self, key: Signature, feeds: Mapping[str, Any]) -> Decision:
        named = signature(feeds)
        made = (self._decisions.get(named) if self._decisions is not None else None) or self._nearest(key) or self._prove(feeds)
        if made.source in ("measured", "floor") and self._decisions is not None:
            costs = self.candidates.costs if made.candidate == CUT else None
            self._decisions.put(named, made, NodeTimes(costs.cpu_s, costs.shapes) if costs is not None else None)
        self.decided[key] = made
        while len(self.decided) > MAX_SIGNATURES:      # those that were not measured go first
            self.decided.pop(next((k for k, d in self.decided.items() if d.source == "nearest"), next(iter(self.decided))))
        self._changed(made)
        return made

    def _nearest(self, key: Signature) -> Decision | None:
        """Once the budget is spent: what was measured for the shapes whose sizes are closest."""
        proved = [(k, d) for k, d in self.decided.items() if d.source in ("measured", "cached")]
        if self._left_s > 0 or not proved:
            return None
        size = _log_size(key)
        near, decision = min(proved, key=lambda item: abs(_log_size(item[0]) - size))
        shapes = ", ".join(f"{n}{list(s)}" for n, s in near)
        return replace(decision, source="nearest", why=f"placement_budget_ms is spent; as for {shapes}")

    def _prove(self, feeds: Mapping[str, Any]) -> Decision:
        """Runs the candidates on these inputs."""
        start = time.perf_counter()
        cpu = self.candidates.get(CPU)
        cpu_s = min(_timed(cpu, feeds) for _ in range(2))
        profile = self._profile()
        if cpu_s <= FLOOR * profile.run_s:
            why = f"it is done before a GPU could have answered ({profile.run_s * 1e3:.3f} ms for nothing at all)"
            return Decision(CPU, "floor", why, {CPU: cpu_s})
        self._learn(profile, feeds, cpu_s)
        predicted = _predicted(self.ask()[1])
        rivals = self._rivals(predicted, cpu_s)
        if self._left_s <= 0:
            best = min(predicted, key=predicted.__getitem__, default=CPU)
            return Decision(best, "predicted", "placement_budget_ms leaves no time to run the candidates", {}, predicted)
        measured = self._race(rivals, feeds, predicted)
        best = min(measured, key=measured.__getitem__)
        times = {n: f"{s * 1e3:.3f} ms" for n, s in measured.items()}
        log.info("placement: %s of %s; found out in %.1f s", best, times, time.perf_counter() - start)
        if not set(rivals) <= set(measured):
            why = "; ".join(["the fastest of those that could be run", *self._left_out])
            return Decision(best, "partial", why, measured, predicted)
        return Decision(best, "measured", "the fastest of those that were run", measured, predicted)

    def _learn(self, profile: Profile, feeds: Mapping[str, Any], cpu_s: float) -> None:
        """The CPU's cost of each node, for the cut: once a session, because a cut is a session of its own."""
        c = self.candidates
        if c.costs is not None:
            return
        try:
            found = cpu_costs(c.model, c.settings, c.kwargs, feeds, cpu_s)
        except Exception as error:   # no room for a file, an op of the user's own: assumed costs do
            log.info("placement: nodes could not be profiled on the CPU, costs are assumed: %s: %s", type(error).__name__, error)
            found = {}
        c.drop(CUT)                 # if there is one, it was made without these costs
        c.costs = Costs(profile, found, dict(signature(feeds)))

    def ask(self) -> tuple[str, tuple[Report, ...]]:
        """Asks the partitioner, by way of the candidate that it makes by its costs."""
        state = self.candidates.get(CUT).state
        self.planned = (adapter_of(state), tuple(state.reports)) if state is not None else ("none", ())
        return self.planned

    def _rivals(self, predicted: Mapping[str, float], cpu_s: float) -> list[str]:
        """The candidates besides the CPU that are worth a run. A cut that takes nothing, or all, is none of its own."""
        chosen = min(predicted, key=predicted.__getitem__, default=CPU)
        if chosen == GPU:
            self.candidates.add(replace(self.candidates.get(CUT), name=GPU))
        if chosen != CUT:
            self.candidates.drop(CUT)
        wanted = [CUT, GPU] if chosen == CUT else [GPU]
        return [n for n in wanted if not (predicted.get(n, 0.0) > HOPELESS * cpu_s and 3 * predicted.get(n, 0.0) > self._left_s)]

    def _race(self, rivals: list[str], feeds: Mapping[str, Any], predicted: Mapping[str, float]) -> dict[str, float]:
        """Median seconds of the CPU and of the rivals that work, and agree with it on the first run."""
        self._left_out = []
        cpu = self.candidates.get(CPU).session
        run_cpu = partial(cpu.run, None, feeds)
        runs: dict[str, Callable[[], object]] = {CPU: run_cpu}
        names, want = [output.name for output in cpu.get_outputs()], run_cpu() if rivals else []
        for name in rivals:
            candidate = None
            try:
                candidate = self.candidates.get(name)
                check_outputs(names, candidate.session.run(None, feeds), want, run_cpu)
            except Exception as error:   # whatever keeps a candidate from answering puts it out; the CPU has answered the same inputs
                if self.config.strict:
                    excuse(candidate.state if candidate else None, error)
                gpu = candidate.state.gpu if candidate is not None and candidate.state is not None else None
                if gpu is not None and isinstance(error, WrongResultError):
                    gpu.circuit.failed(f"WrongResultError: {error}", at_once=True)
                self._left_out.append(f"{name}: {type(error).__name__}: {error}")
                log.warning("placement: the candidate %r is left out, it fails: %s: %s", name, type(error).__name__, error)
                continue
            if candidate.state is not None and candidate.state.failures:
                log.warning("placement: the candidate %r is left out, the CPU had to answer for it", name)
            else:
                runs[name] = partial(candidate.session.run, None, feeds)
        start = time.perf_counter()
        try:
            return race(runs, self._left_s, 0.0 if self._software else WAKE_S, predicted)
        finally:
            self._left_s -= time.perf_counter() - start


def _predicted(reports: Sequence[Report]) -> dict[str, float]:
    """Seconds of each assignment of the main graph."""
    predictions = next((r.predictions for r in reversed(reports) if not r.nested), ())
    return {p.candidate: p.total_s for p in predictions}


def _timed(candidate: Candidate, feeds: Mapping[str, Any]) -> float:
    start = time.perf_counter()
    candidate.session.run(None, feeds)
    return time.perf_counter() - start


def _log_size(key: Signature) -> float:
    """Logarithm of the number of elements of all inputs."""
    return math.log(1 + sum(math.prod(shape) for _, shape in key))
