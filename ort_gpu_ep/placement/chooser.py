"""Chooses the candidate for a run, from measured runs of this size and others, after one comparison of all
candidates."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakMethod

from ort_gpu_ep.config import Config
from ort_gpu_ep.kernels.profile import Profile
from ort_gpu_ep.placement import CPU, CUT, GPU
from ort_gpu_ep.placement.candidates import Candidate, Candidates
from ort_gpu_ep.placement.decider import ASSUMED, Decider, Entry, Host, Turn
from ort_gpu_ep.placement.decisions import Decision, Decisions, Learnt, NodeTimes, Signature, signature, work_of
from ort_gpu_ep.placement.estimate import Estimate
from ort_gpu_ep.placement.proof import Proof, Prover, rejected
from ort_gpu_ep.placement.rhythm import BUSY
from ort_gpu_ep.utilization import Uses

log = logging.getLogger("ort_gpu_ep")

FLOOR = 0.8
"""Part of an empty run's time below which the CPU can't be beaten; the rest is for the noise of both measurements."""

MEASURED = 3
"""Runs that a median of the side by side counts as: the decider asks for no more to believe it."""

RETRY_S = 30.0
"""How long a candidate that failed side by side with others is left out, at least; a wrong one for the life of the
session."""

CHECK_S = 4e-3
"""Predicted time of a run on the CPU up to which the first run of a size on a candidate is compared with it."""

SAVE_S = 30.0
"""How often what was learnt is written, at most, besides at the end of the session."""


class Chooser:
    """The choice of one session. Thread-safe.

    fixed: all input shapes are known, so that one decision holds for every run. profile: gives the adapter's, whole or
    not; it may take seconds. proved: is told when the candidates were run side by side; weak, since the chooser
    outlives the session until all is saved. uses: of the adapter. host: what the runs share. tells_cpu_s: what a run on
    the CPU takes in another process, if one makes them.
    """

    def __init__(
        self,
        candidates: Candidates,
        config: Config,
        profile: Callable[[bool], Profile],
        decisions: Decisions | None,
        fixed: bool,
        proved: WeakMethod[Callable[[Entry], None]],
        uses: Uses,
        host: Host,
    ) -> None:
        self.candidates, self.config, self.fixed = candidates, config, fixed
        self.decider = Decider(uses, config.placement_budget_ms * 1e-3, host)
        self.prover = Prover(candidates, config, host.software)
        self.agreed: set[str] = set()
        self.tells_cpu_s: Callable[[], float | None] = _nobody_tells
        self._profile, self._decisions, self._tell = profile, decisions, proved
        self._proved = False
        self._lock = threading.Lock()
        self._saved_s = -math.inf
        if decisions is not None and decisions.found is not None:
            self._load(decisions.found)

    def _load(self, found: Learnt) -> None:
        decider = self.decider
        decider.grows |= found.grows
        decider.load(found.rows, time.perf_counter())
        for size in found.floors:
            entry = decider.entry(size.key, lambda size=size: size.work)  # type: ignore[misc]
            entry.ready = entry.floor = True
            entry.source, entry.why = "cached", "it was done before a GPU could have answered"
        self._proved = any(row[2] not in found.floors for row in found.rows)
        self.agreed = {
            name for name in decider.rivals if any(row[0] == name and row[1] != ASSUMED for row in found.rows)
        }

    def entry(self, feeds: Mapping[str, Any]) -> Entry:
        """What is known of these inputs; found out now if need be. Threads that come while another one measures use the
        CPU."""
        key: Signature = () if self.fixed else signature(feeds)
        entry = self.decider.entries.get(key)
        if entry is not None and entry.ready:
            return entry
        entry = self.decider.entry(key, lambda: work_of(key))
        if not entry.ready and self._lock.acquire(blocking=False):
            try:
                if not entry.ready:
                    self._prepare(entry, feeds)
            except BaseException:
                self.decider.forget(entry)
                raise
            finally:
                self._lock.release()
        return entry

    def _prepare(self, entry: Entry, feeds: Mapping[str, Any]) -> None:
        """Once a session, all candidates are run side by side: as soon as a run on the CPU takes longer than an empty
        one on the GPU."""
        decider, now_s = self.decider, time.perf_counter()
        if not self._proved:
            cpu = self.candidates.get(CPU)
            self.prover.told_s = self.tells_cpu_s()
            cpu_s = self.prover.told_s or min(_timed(cpu, feeds) for _ in range(2))
            profile = self._profile(self.prover.software)
            if cpu_s <= FLOOR * profile.run_s:
                entry.floor, entry.source = True, "floor"
                entry.why = (
                    f"it is done before a GPU could have answered ({profile.run_s * 1e3:.3f} ms for nothing at all)"
                )
                decider.teach(entry.size, CPU, cpu_s, 1, now_s)
            else:
                self._believe(entry, self._proof(feeds, cpu_s, profile))
                self._proved = True
            decider.decide(entry, time.perf_counter())
            entry.ready = True
            tell = self._tell()
            if tell is not None:
                tell(entry)
            if entry.floor:
                self.save_now_and_then(now_s)
            else:
                self.save()
        entry.ready = True

    def _proof(self, feeds: Mapping[str, Any], cpu_s: float, profile: Profile) -> Proof:
        """Runs the candidates. Where that can't be done (the model's file was overwritten, a full disk), the CPU
        answers."""
        try:
            clear = self.prover.clear(feeds, cpu_s, profile)
            return clear or self.prover.prove(feeds, dict(signature(feeds)), cpu_s, self._profile(True))
        except Exception as error:
            if self.config.strict:
                raise
            return Proof({CPU: cpu_s}, {}, {GPU: rejected(None, GPU, error, strict=False)})

    def _believe(self, entry: Entry, proof: Proof) -> None:
        """Passes on what the candidates took side by side."""
        decider, now_s = self.decider, time.perf_counter()
        decider.grows |= proof.grows
        entry.predicted_s = proof.predicted_s
        decider.rhythm.uses.begin(now_s - 1e-3)
        decider.rhythm.uses.end(now_s)
        for name, seconds in proof.measured_s.items():
            decider.teach(entry.size, name, seconds, MEASURED, now_s)
            entry.seen[name] = 1
        for name, seconds in proof.predicted_s.items():
            if name not in proof.measured_s and name not in proof.failed:
                decider.assume(entry.size, name, seconds, now_s)
        for name in proof.failed:
            decider.failed(name, now_s, math.inf if name in proof.wrong else RETRY_S)
        self.agreed |= set(proof.measured_s) - {CPU}
        entry.source = "partial" if proof.failed else ""
        entry.why = "; ".join(
            ["the fastest of those that could be run", *(f"{n}: {why}" for n, why in proof.failed.items())]
        )

    # ---- comparing

    def check_due(self, turn: Turn, now_s: float) -> bool:
        """Whether the CPU is to answer the same inputs: the first run of a candidate, and of each size while that is
        cheap."""
        name = turn.name
        size, decider = turn.entry.size, self.decider
        if name == CPU or turn.entry.seen.get(name):
            return False
        if name not in self.agreed:
            return decider.budget_s > 0.0
        here, cpu = decider.estimate(name, BUSY, size, now_s), decider.estimate(CPU, turn.entry.rest, size, now_s)
        ran = here is not None and here.runs > 0  # in an earlier session
        return not ran and cpu is not None and cpu.seconds <= min(CHECK_S, decider.left_s)

    # ---- what came of it

    def decision(self, entry: Entry) -> Decision:
        """What holds for a size now, and why."""
        decider, now_s = self.decider, time.perf_counter()
        names = [CPU, *decider.rivals]
        estimates = {n: e for n in names if (e := decider.estimate(n, entry.rest, entry.size, now_s)) is not None}
        if entry.rest != BUSY and not any(e.runs for e in estimates.values()):
            estimates = {n: e for n in names if (e := decider.estimate(n, BUSY, entry.size, now_s)) is not None}
        own = {n: e for n, e in estimates.items() if e.runs}
        predicted = {**entry.predicted_s, **{n: e.seconds for n, e in estimates.items() if not e.runs}}
        source, why = _reason(entry, estimates, self.config.placement_budget_ms)
        return Decision(
            entry.choice,
            source,
            why,
            {n: e.seconds for n, e in own.items()},
            predicted,
            {n: e.runs for n, e in own.items()},
            entry.rest,
            entry.size.work,
        )

    @property
    def decided(self) -> dict[Signature, Decision]:
        """Of each size, the latest last."""
        return {entry.size.key: self.decision(entry) for entry in list(self.decider.entries.values()) if entry.ready}  # type: ignore[misc]

    def save_now_and_then(self, now_s: float) -> None:
        if now_s - self._saved_s > SAVE_S:
            self.save()

    def save(self) -> None:
        """Writes what was learnt, unless a candidate failed: a later session finds out for itself. Quietly does nothing
        where it can't."""
        self._saved_s = time.perf_counter()
        entries = list(self.decider.entries.values())
        if self._decisions is None or not entries or any(e.source == "partial" for e in entries):
            return
        costs = self.candidates.costs
        times = NodeTimes(costs.cpu_s, costs.shapes) if costs is not None and CUT in self.decider.rivals else None
        floors = tuple(e.size for e in entries if e.floor)
        self._decisions.save(
            Learnt(entries[-1].choice, tuple(self.decider.dump()), floors, dict(self.decider.grows), times)
        )


def _reason(entry: Entry, known: Mapping[str, Estimate], budget_ms: int) -> tuple[str, str]:
    """(source, why) of a decision."""
    if entry.floor or entry.source == "partial":
        return entry.source, entry.why
    if not budget_ms and not all(e.runs for e in known.values()):
        return "predicted", "placement_budget_ms leaves no time to run the candidates"
    if all(e.runs for e in known.values()):
        if any(e.loaded for e in known.values()):
            return "cached", "the fastest of those that an earlier session ran"
        return "measured", "the fastest of those that were run"
    sizes = max(e.sizes for e in known.values())
    if not sizes:
        return "predicted", "the fastest by what was measured and what the partitioner expects of the others"
    return "predicted", f"the fastest by what {sizes} other size{'s' if sizes != 1 else ''} took"


def _nobody_tells() -> float | None:
    return None


def _timed(candidate: Candidate, feeds: Mapping[str, Any]) -> float:
    start = time.perf_counter()
    candidate.session.run(None, feeds)
    return time.perf_counter() - start
