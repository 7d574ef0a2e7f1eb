"""Runs of a session with several candidates."""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from onnxruntime import OrtValue

from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import ModelError, WrongResultError
from ort_gpu_ep.heap import give_back_behind
from ort_gpu_ep.kernels.profile import Profile
from ort_gpu_ep.load import Sampler
from ort_gpu_ep.partitioner import Costs
from ort_gpu_ep.placement import CPU, CUT
from ort_gpu_ep.placement.candidates import Candidate, Candidates
from ort_gpu_ep.placement.chooser import RETRY_S, Chooser
from ort_gpu_ep.placement.decider import STEADY, Entry, Host, Turn
from ort_gpu_ep.placement.decisions import Decisions, key_of, speed_options
from ort_gpu_ep.placement.proof import check_answer, check_outputs, opinion, rejected, trouble
from ort_gpu_ep.placement.rhythm import CONCURRENT
from ort_gpu_ep.placement.source import Source
from ort_gpu_ep.plugin import SessionState, fall_back_or_raise
from ort_gpu_ep.plugin.explain import Explanation, events_of, explanation, on_cpu
from ort_gpu_ep.plugin.io_binding import TENSORS
from ort_gpu_ep.private import behind
from ort_gpu_ep.processes import known as processes
from ort_gpu_ep.utilization import SLEEPS_S, UNKNOWN, Load, Uses, run_begins, run_ends

log = logging.getLogger("ort_gpu_ep")

MOST = 16
"""Runs that are filed together: what follows from them comes so much later, and 15 of 16 runs don't pay for it."""

KEEP_S = 60.0
"""How long a candidate is kept that no run uses."""


@dataclass(eq=False, slots=True)
class Streak:
    """Quick runs of one size on one candidate: no new decision, and their times are filed together.

    turn: the run that it begins with, at whose reading of the load nothing changes. most: runs that may follow.
    seconds: of those that did and are not filed yet. ended_s: the end of the latest.
    """

    candidate: Candidate
    turn: Turn
    most: int
    ended_s: float
    seconds: list[float] = field(default_factory=list)

    @staticmethod
    def after(candidate: Candidate, turn: Turn, ended_s: float) -> Streak | None:
        """None where the run was a trial, or of another rhythm, or where the next run asks for a decision."""
        entry = turn.entry
        most = min(MOST, entry.think_at - entry.runs - 1)
        same = turn.name == candidate.name and not turn.trial and turn.rest in STEADY and turn.awake
        if most < 1 or not same or turn.name != turn.place.choice:
            return None
        return Streak(candidate, turn, most, ended_s)

    def goes_on(self, entry: Entry, load: Load, others: int, now_s: float) -> bool:
        """Whether a run that begins now needs no decision. others: how many runs other threads have under way."""
        return (
            entry is self.turn.entry
            and load is self.turn.load
            and now_s - self.ended_s < SLEEPS_S
            and len(self.seconds) < self.most
            and (not others or self.turn.rest == CONCURRENT)
        )

    def taken(self) -> list[float]:
        """The seconds that are to be filed; nobody else gets them."""
        seconds, self.seconds = self.seconds, []
        self.most -= len(seconds)
        return seconds


class Runner:
    """What stands behind `InferenceSession.run` where placement=auto.

    model, settings, options, kwargs: as the candidates take them. device: names adapter, driver and code. profile:
    gives the adapter's, whole or not. uses: when this process has used it. sampler: of its load, None where runs are
    not to be moved for it. software: the adapter computes on the CPU.
    """

    def __init__(
        self,
        model: Source,
        settings: Any,
        options: Mapping[str, str],
        kwargs: Mapping[str, Any],
        config: Config,
        device: str,
        profile: Callable[[bool], Profile],
        uses: Uses,
        sampler: Sampler | None = None,
        software: bool = False,
    ) -> None:
        self.config, self.sampler = config, sampler
        self.candidates = Candidates(model, settings, options, kwargs)
        self._decisions: Decisions | None = None
        with suppress(OSError):  # onnxruntime will say what is wrong with the model's file
            key = key_of(model.path_or_bytes, device, settings, speed_options(config), model.digest())
            self._decisions = Decisions(config.cache_path, key)
            times = self._decisions.found.times if self._decisions.found is not None else None
            self.candidates.costs = Costs(profile(True), times.cpu_s, times.shapes) if times is not None else None
        self._profile, self._uses = profile, uses
        cores = processes.physical_cores()
        self._host = Host(
            (settings.intra_op_num_threads if settings is not None else 0) or cores,
            cores,
            software,
            config.deadline_ms * 1e-3,
            sampler is not None,
        )
        self._last: Entry | None = None
        self._used_s: dict[str, float] = {}
        self._tidy_s = math.inf
        self._said: dict[str, None] = {}
        self._gone = Counter(SessionState().counts())
        self.runs: Counter[str] = Counter()
        self._bound = threading.Event()
        self._streak: Streak | None = None
        self._filing = threading.Lock()

    @property
    def first(self) -> str:
        """The candidate to begin with: what was decided for this model last time, else plain onnxruntime, which is
        there at once."""
        learnt = self._decisions.found if self._decisions is not None else None
        return learnt.candidate if learnt is not None else CPU

    def begin(self, front: Candidate, fixed: bool, become: Callable[[Candidate], None]) -> None:
        """front: the session that is there now. fixed: all its input shapes are known. become: makes a candidate the
        session's front."""
        self.front, self.fixed, self._become = front, fixed, become
        self.candidates.add(front)
        self.chooser = Chooser(
            self.candidates,
            self.config,
            self._profile,
            self._decisions,
            fixed,
            weakref.WeakMethod(self._settle),
            self._uses,
            self._host,
        )
        self._tidy_s = time.perf_counter() + KEEP_S
        weakref.finalize(self, _save, self.chooser)

    def lead(self) -> None:
        """Makes what was decided for this model last time the front, if that is not the CPU. Raises what onnxruntime
        raises."""
        if self.first != CPU:
            self._lead(self.candidates.get(self.first))
            self._tidy(time.perf_counter(), 0.0 if self.fixed else KEEP_S)

    def renew_cpu(self) -> None:
        """The CPU's candidate had fewer threads than it should: it is made anew, now where it answers, else when it is
        wanted.

        Raises what onnxruntime raises, ModelError.
        """
        self.candidates.drop(CPU)
        if self.front.name == CPU:
            self._lead(self.candidates.get(CPU))

    def warm(self, feeds: Mapping[str, Any]) -> None:
        """For the inputs of a run that is over: the fastest becomes the front, compared with the CPU and warm, before
        runs come here.

        Raises what the CPU raises for these inputs.
        """
        entry, decider = self.chooser.entry(feeds), self.chooser.decider
        decider.decide(entry, time.perf_counter())
        name = entry.choice
        if entry.floor or name in (CPU, self.front.name):
            return
        candidate, cpu = None, self.candidates.get(CPU).session
        run_cpu = partial(cpu.run, None, feeds)
        try:
            candidate = self.candidates.get(name)
            check_answer(
                self.candidates.model,
                candidate,
                feeds,
                [output.name for output in cpu.get_outputs()],
                run_cpu(),
                run_cpu,
                self.config.precision,
            )
            candidate.session.run(None, feeds)  # the second one records ahead
            trouble(candidate)
        except Exception as error:  # whatever keeps it from answering: the CPU goes on
            rejected(candidate, name, error, self.config.strict)
            self._judge(name, False, math.inf if isinstance(error, WrongResultError) else RETRY_S)
            return
        self.chooser.agreed.add(name)
        entry.seen[name] = entry.seen.get(name, 0) + 1
        self._settle(entry)

    def run(self, outputs: Any, feeds: Mapping[str, Any], options: Any, values: bool = False) -> Any:
        """One run, as `session.run`. values: as `session.run_with_ort_values`, whose results are OrtValues that own
        their memory."""
        entry = self._last = self.chooser.entry(feeds)
        if entry.floor:
            candidate = self._candidate(CPU)
            if candidate.state is not None:
                return self._answer(candidate, outputs, feeds, options, values)[0]
            self.runs[CPU] += 1
            return _call(candidate.session, outputs, feeds, options, values)
        try:
            return self._run(entry, run_begins(), outputs, feeds, options, values)
        finally:
            run_ends()

    def _run(
        self, entry: Entry, others: int, outputs: Any, feeds: Mapping[str, Any], options: Any, values: bool
    ) -> Any:
        """One run that some candidate may answer. others: how many runs other threads have under way."""
        load, streak = self.sampler.latest if self.sampler is not None else UNKNOWN, self._streak
        if streak is not None:
            if streak.goes_on(entry, load, others, begin_s := time.perf_counter()):
                return self._go_on(streak, begin_s, outputs, feeds, options, values)
            self._file()
        candidate = self._choose(entry, load, others)
        decider, begin_s = self.chooser.decider, time.perf_counter()
        turn = decider.begin(entry, candidate.name, begin_s, load)
        due = self.chooser.check_due(turn, begin_s)
        try:
            answer, well = self._answer(candidate, outputs, feeds, options, values)
        except BaseException:
            decider.forget(entry)
            raise
        end_s = time.perf_counter()
        if well and due:
            answer, well = self._compared(turn, candidate, answer, outputs, feeds, values)
        steady = decider.end(turn, end_s - begin_s, end_s, well and entry.ready)
        if self.sampler is not None and candidate.name != CPU:
            self.sampler.used(entry.idle_s.get(candidate.name, end_s - begin_s))
        self._used_s[candidate.name] = end_s
        if steady and not decider.left_out:
            self._streak = Streak.after(candidate, turn, end_s)
        if end_s > self._tidy_s:
            self._tidy(end_s)
        return answer

    def _go_on(
        self, streak: Streak, begin_s: float, outputs: Any, feeds: Mapping[str, Any], options: Any, values: bool
    ) -> Any:
        """One more run like the one before."""
        try:
            answer, well = self._answer(streak.candidate, outputs, feeds, options, values)
        except BaseException:
            self._streak = None
            raise
        end_s = time.perf_counter()
        if not well:
            self._streak = None
        else:
            streak.seconds.append(end_s - begin_s)
        streak.ended_s = end_s
        self.chooser.decider.rhythm.end(end_s)
        if self.sampler is not None and streak.turn.name != CPU:
            self.sampler.used(streak.turn.entry.idle_s.get(streak.turn.name, end_s - begin_s))
        return answer

    def _file(self) -> None:
        """Ends a streak: what its runs took is counted like that of others."""
        with self._filing:
            streak, self._streak = self._streak, None
            seconds = streak.taken() if streak is not None else []
        if streak is None or not seconds:
            return
        self.chooser.decider.went_on(streak.turn, seconds, streak.ended_s)
        self._used_s[streak.turn.name] = streak.ended_s

    def _choose(self, entry: Entry, load: Load, others: int) -> Candidate:
        decider = self.chooser.decider
        name = decider.choose(entry, time.perf_counter(), load, others)
        candidate = self._candidate(name)
        if candidate.name != name:
            decider.unable(entry, name)
        return candidate

    def _candidate(self, name: str) -> Candidate:
        return self.candidates.ready(name) or self.front

    def _answer(
        self, candidate: Candidate, outputs: Any, feeds: Mapping[str, Any], options: Any, values: bool
    ) -> tuple[Any, bool]:
        """What the model gives, and whether the candidate did it all by itself."""
        self.runs[candidate.name] += 1
        state = candidate.state
        if state is None:
            return _call(candidate.session, outputs, feeds, options, values), True
        before = state.troubles
        state.begin_run()
        try:
            answer = _call(candidate.session, outputs, feeds, options, values)
        except Exception as error:
            fall_back_or_raise(state, error)
            answer = _call(self.candidates.get(CPU).session, outputs, feeds, options, values)
        well = state.troubles == before
        self._judge(candidate.name, well)
        return answer, well

    def _judge(self, name: str, well: bool, for_s: float = 0.0) -> None:
        decider = self.chooser.decider
        if not well:
            decider.failed(name, time.perf_counter(), for_s)
        elif decider.left_out:
            decider.succeeded(name)

    def _compared(
        self,
        turn: Turn,
        candidate: Candidate,
        answer: Any,
        outputs: Any,
        feeds: Mapping[str, Any],
        values: bool,
    ) -> tuple[Any, bool]:
        """The answer, if the CPU gives the same for these inputs, else the CPU's."""
        cpu = self.candidates.get(CPU).session if turn.name not in self.chooser.agreed else None
        if cpu is None:
            on_cpu = self.candidates.ready(CPU)
            if on_cpu is None:
                return answer, True
            cpu = on_cpu.session
        names, begin_s = outputs or [output.name for output in cpu.get_outputs()], time.perf_counter()
        want = _call(cpu, outputs, feeds, None, values)
        end_s = time.perf_counter()
        self.chooser.decider.checked(turn, end_s - begin_s, end_s)
        self._used_s[CPU] = end_s
        try:
            arrays = dict(zip(feeds, _arrays(list(feeds.values())), strict=True))
            check_outputs(
                names,
                _arrays(answer),
                _arrays(want),
                lambda: cpu.run(outputs, feeds),
                self.config.precision,
                partial(opinion, self.candidates.model, arrays),
            )
        except WrongResultError as error:
            rejected(candidate, candidate.name, error, self.config.strict)
            self._judge(candidate.name, False, math.inf)
            return want, False
        self.chooser.agreed.add(candidate.name)
        if self.fixed:  # no further size will be compared
            self._tidy(end_s, 0.0, candidate.name)
        return answer, True

    def _settle(self, entry: Entry) -> None:
        """The candidates were run side by side: the best becomes the front; of a model whose sizes are fixed the others
        go."""
        now_s = time.perf_counter()
        self._used_s |= {candidate.name: now_s for candidate in self.candidates.made}
        if not self._bound.is_set() and self.front.name != entry.choice:
            self._lead(self.candidates.get(entry.choice))
        self._tidy(now_s, 0.0 if self.fixed or entry.floor else KEEP_S, entry.choice)

    def _lead(self, candidate: Candidate) -> None:
        self.front = candidate
        self._become(candidate)

    def _tidy(self, now_s: float, keep_s: float = KEEP_S, but: str = "") -> None:
        """Candidates that no run has used for long give their memory back; they are made again, in the background, if
        they are wanted.

        but: what a comparison has chosen, which made sessions that are gone by now.
        """
        self._tidy_s = now_s + KEEP_S / 4
        self.chooser.save_now_and_then(now_s)
        used_s = dict(self._used_s)
        gone = []
        for candidate in self.candidates.made:
            if (
                now_s - used_s.get(candidate.name, -math.inf) >= keep_s
                and candidate is not self.front
                and candidate.name != but
            ):
                gone.append(weakref.ref(behind(candidate.session)))
                self._forget(candidate)
        if gone or but:
            give_back_behind(gone, self.candidates.model.nbytes)

    def _forget(self, candidate: Candidate) -> None:
        if candidate.state is not None:
            self._gone.update(candidate.state.counts())
            self._said.update(dict.fromkeys(events_of(candidate.state)))
        self.candidates.drop(candidate.name)

    def bind(self) -> None:
        """From now on the front stays, and knows device memory: a user binds values to it."""
        if not self._bound.is_set():
            self._bound.set()
            if self.front.state is None:
                chosen = [entry.choice for entry in self.chooser.decider.entries.values() if entry.choice != CPU]
                try:
                    self._lead(self.candidates.get(chosen[-1] if chosen else CUT))
                except ModelError as error:
                    log.warning("placement: the session binds on the CPU: %s", error)

    def explain(self) -> Explanation:
        """Of the candidate that the latest run's size goes by; before the first run, of the one that the partitioner
        expects to be best."""
        self._file()
        decided, prover = self.chooser.decided, self.chooser.prover
        latest = decided.get(self._last.size.key) if self._last is not None else None  # type: ignore[call-overload]
        if latest is not None and latest.candidate == CPU:
            adapter, reports = prover.planned or prover.ask()
            shown = on_cpu(adapter, reports, f"{latest.source}: {latest.why}")
        else:
            shown = explanation(self.candidates.get(latest.candidate if latest else CUT).state)
            shown = shown.predicted_by(prover.planned[1]) if prover.planned else shown
        said = dict.fromkeys(
            [*shown.events, *self._said, *(line for state in self.states for line in events_of(state))]
        )
        shapes = (", ".join(f"{name}{list(shape)}" for name, shape in key) or "every run" for key in decided)
        return replace(shown, events=tuple(said), decisions=tuple(zip(shapes, decided.values(), strict=True)))

    @property
    def states(self) -> tuple[SessionState, ...]:
        """Of the candidates that exist and use our provider."""
        return tuple(c.state for c in self.candidates.made if c.state is not None)

    def stats(self) -> dict[str, Any]:
        """Copies, fallbacks and renewals of all candidates, and the runs that each has answered."""
        self._file()
        total = Counter(self._gone)
        for state in self.states:
            total.update(state.counts())
        last, watched = self._last, self._host.watched
        thought, choice = last is not None and last.runs > 0, last is not None and len(last.idle_s) > 1
        return {
            **total,
            "runs": sum(self.runs.values()),
            "runs_by_candidate": dict(self.runs),
            **({"load": self.sampler.latest.as_dict()} if self.sampler is not None and thought else {}),
            **({"policy": self.chooser.decider.as_dict(last)} if last is not None and choice and watched else {}),
        }


def _call(session: Any, outputs: Any, feeds: Mapping[str, Any], options: Any, values: bool) -> Any:
    return session.run_with_ort_values(outputs, feeds, options) if values else session.run(outputs, feeds, options)


def _arrays(answer: Sequence[Any]) -> list[Any]:
    """What can be compared of a run's results: the tensors among OrtValues as arrays; what numpy has no type for stays
    as it is."""
    return [v.numpy() if isinstance(v, OrtValue) and v.is_tensor() and v.data_type() in TENSORS else v for v in answer]


def _save(chooser: Chooser) -> None:
    """At the end of a session, or of the process."""
    chooser.save()
