"""The runs of a session whose placement is chosen while it runs."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil

from ort_gpu_ep.config import Config
from ort_gpu_ep.explain import Explanation, explanation, on_cpu
from ort_gpu_ep.load import Sampler
from ort_gpu_ep.partitioner import Costs
from ort_gpu_ep.placement.candidates import CPU, CUT, Candidate, Candidates
from ort_gpu_ep.placement.chooser import Chooser
from ort_gpu_ep.placement.decisions import Decision, Decisions, key_of
from ort_gpu_ep.placement.policy import Policy
from ort_gpu_ep.plugin import SessionState, excuse
from ort_gpu_ep.profile import Profile
from ort_gpu_ep.utilization import UNKNOWN

log = logging.getLogger("ort_gpu_ep")

_SPEED = ("checked_shaders", "fusion", "memory_limit_mb", "quirks", "faults")
"""Options that change what a candidate takes."""

WITHIN = 20.0
"""A candidate that is slower than the best by this factor on an idle machine is never the better one: policy.WORST."""


class Runner:
    """What stands behind `InferenceSession.run` where placement=auto.

    model, settings, options, kwargs: as the candidates take them. device: names adapter, driver and code. profile: gives the adapter's.
    sampler: of its load, None where runs are not to be moved for it. software: the adapter computes on the CPU.
    """

    def __init__(
        self, model: str | bytes, settings: Any, options: Mapping[str, str], kwargs: Mapping[str, Any], config: Config, device: str,
        profile: Callable[[], Profile], sampler: Sampler | None = None, software: bool = False,
    ) -> None:
        self.config, self.sampler, self.software = config, sampler, software
        self.candidates = Candidates(model, settings, options, kwargs)
        self._decisions: Decisions | None = None
        with suppress(OSError):        # onnxruntime will say what is wrong with the model's file
            key = key_of(model, device, settings, {name: str(getattr(config, name)) for name in _SPEED})
            self._decisions = Decisions(config.cache_path, key)
            times = self._decisions.times
            self.candidates.costs = Costs(profile(), times.cpu_s, times.shapes) if times is not None else None
        self._profile = profile
        self._policies: dict[int, Policy] = {}
        self._gone = Counter(SessionState().counts())
        self._runs: Counter[str] = Counter()
        self._bound = threading.Event()

    @property
    def first(self) -> str:
        """The candidate to begin with: what was decided for this model last time, else plain onnxruntime, which is there at once."""
        latest = self._decisions.latest if self._decisions is not None else None
        return latest.candidate if latest is not None else CPU

    def begin(self, front: Candidate, fixed: bool, become: Callable[[Candidate], None]) -> None:
        """front: the session that is there now. fixed: all its input shapes are known. become: makes a candidate the session's front."""
        self.front, self.fixed, self._become = front, fixed, become
        self.candidates.add(front)
        self.chooser = Chooser(self.candidates, self.config, self._profile, self._decisions, fixed, self._decided, self.software)

    def run(self, outputs: Any, feeds: Mapping[str, Any], options: Any) -> Any:
        decision = self.chooser.decision(feeds)
        policy = self._policies.get(id(decision))
        if policy is None:
            return self._answer(self._candidate(decision.candidate), outputs, feeds, options)
        load = self.sampler.latest if self.sampler is not None else UNKNOWN
        candidate = self.candidates.ready(policy.choose(load)) or self._candidate(decision.candidate)
        start = time.perf_counter()
        answer = self._answer(candidate, outputs, feeds, options)
        policy.observe(candidate.name, time.perf_counter() - start, load)
        if self.sampler is not None and candidate.name != CPU:
            self.sampler.used(policy.idle_s[candidate.name])
        return answer

    def _candidate(self, name: str) -> Candidate:
        return self.candidates.ready(name) or self.front

    @property
    def _latest_policy(self) -> Policy | None:
        """That of the decision made last."""
        return next((self._policies[id(d)] for d in reversed(self.chooser.decided.values()) if id(d) in self._policies), None)

    def _watch(self, decision: Decision) -> None:
        """A policy for runs that another candidate may answer better when the machine is busy."""
        rivals = {n: s for n, s in decision.measured_s.items() if s <= WITHIN * decision.measured_s[decision.candidate]}
        if len(rivals) > 1 and (self.sampler is not None or self.config.deadline_ms):
            self._policies[id(decision)] = Policy(rivals, self._threads, self.software, self.config.deadline_ms * 1e-3)

    @property
    def _threads(self) -> int:
        """Of a run on the CPU: onnxruntime's default is the physical cores."""
        settings = self.candidates.settings
        return (settings.intra_op_num_threads if settings is not None else 0) or psutil.cpu_count(logical=False) or 1

    def _answer(self, candidate: Candidate, outputs: Any, feeds: Mapping[str, Any], options: Any) -> Any:
        self._runs[candidate.name] += 1
        if candidate.state is not None:
            candidate.state.begin_run()
        try:
            return candidate.session.run(outputs, feeds, options)
        except Exception as error:
            excuse(candidate.state, error)
            return self.candidates.get(CPU).session.run(outputs, feeds, options)

    def _decided(self, decision: Decision) -> None:
        """What lost gives its memory back; it is made again if the decision changes."""
        known = {id(d) for d in self.chooser.decided.values()}
        self._policies = {key: policy for key, policy in self._policies.items() if key in known}
        self._watch(decision)
        wanted = {d.candidate for d in self.chooser.decided.values()} | {decision.candidate}
        chosen = self.candidates.get(decision.candidate)
        if not self._bound.is_set() and self.front.name not in wanted:
            self._become(chosen)
            self.front = chosen
        for candidate in self.candidates.made:
            if candidate.name not in wanted and candidate is not self.front:
                self._forget(candidate)

    def _forget(self, candidate: Candidate) -> None:
        if candidate.state is not None:
            self._gone.update(candidate.state.counts())
        self.candidates.drop(candidate.name)

    def bind(self) -> None:
        """From now on the front stays, and knows device memory: a user binds values to it."""
        if not self._bound.is_set():
            self._bound.set()
            if self.front.state is None:
                decided = {d.candidate for d in self.chooser.decided.values()} - {CPU}
                self.front = self.candidates.get(next(iter(decided), CUT))
                self._become(self.front)

    def explain(self) -> Explanation:
        """Of the candidate that the latest decision names; before the first run, of the one that the partitioner expects to be best."""
        decided = dict(self.chooser.decided)
        latest = next(reversed(decided.values()), None)
        if latest is not None and latest.candidate == CPU:
            adapter, reports = self.chooser.planned or self.chooser.ask()
            shown = on_cpu(adapter, reports, f"{latest.source}: {latest.why}")
        else:
            shown = explanation(self.candidates.get(latest.candidate if latest else CUT).state)
            shown = shown.predicted_by(self.chooser.planned[1]) if self.chooser.planned else shown
        shapes = (", ".join(f"{name}{list(shape)}" for name, shape in key) or "every run" for key in decided)
        return replace(shown, decisions=tuple(zip(shapes, decided.values(), strict=True)))

    @property
    def states(self) -> tuple[SessionState, ...]:
        """Of the candidates that exist and use our provider."""
        return tuple(c.state for c in self.candidates.made if c.state is not None)

    def stats(self) -> dict[str, Any]:
        """Copies, fallbacks and renewals of all candidates, and the runs that each has answered."""
        total = Counter(self._gone)
        for state in self.states:
            total.update(state.counts())
        return {**total, "runs": sum(self._runs.values()), "runs_by_candidate": dict(self._runs),
                **({"load": self.sampler.latest.as_dict()} if self.sampler is not None and self._policies else {}),
                **({"policy": self._latest_policy.as_dict()} if self._latest_policy is not None else {})}
