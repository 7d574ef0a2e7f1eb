"""Chooses the candidate for a size and a class of pauses between runs, from the times so far. Pure: told the time.

A first run of a size goes by prediction from other sizes; steady runs refine it. A candidate that could be better is
tried one run at a time, and all that trying costs comes out of a budget.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ort_gpu_ep.placement import CPU
from ort_gpu_ep.placement.estimate import TAIL, Estimate, Size, Times
from ort_gpu_ep.placement.policy import Host, Policy, slowdown
from ort_gpu_ep.placement.rhythm import BUSY, CONCURRENT, PAUSED, RARE, Rhythm
from ort_gpu_ep.utilization import AWAKE_S, UNKNOWN, Load, Uses

WAKING, FIRST, ASSUMED = "waking", "first", "assumed"
"""Besides the classes of rest: runs of a GPU whose clock is not up yet; first runs of a size, which plan and compile;
no runs at all but what the partitioner predicts."""

KINDS = (BUSY, PAUSED, RARE, CONCURRENT, WAKING, FIRST, ASSUMED)

STEADY = (BUSY, CONCURRENT)
"""Classes of rest in which a GPU that is awake stays so."""

QUEUES = 0.5
"""Uncertainty of what a run takes beside others, where none of a candidate was seen."""

PROVEN = 8
"""Runs beside others that a candidate has to have for moving there: while others wait, nothing is chosen by what is
only expected."""

AWFUL = 2.0
"""How many times as long as elsewhere runs beside others have to take for a candidate to be left before its tail is
known."""

RETHINKS = 32
"""Runs beside others after which the choice is thought over, at most."""

CALM = 1.25
"""Predicted slowdown by others up to which a run tells what an idle machine takes."""

MAX_SIZES = 256
"""Sizes that a session remembers; the oldest go first."""

LAW, LAW_S = 1.05, 50e-6
"""What a session may take over the better side: less than that is not worth a trial."""

STAY, STAY_S = 1.02, 10e-6
"""A size keeps its candidate while another is better by less than this."""

SHARE = 0.02
"""Part of all time that trials, checks and wakings may cost in the long run, besides the budget a session begins
with."""

TRIES = 3
"""Trials of one candidate in one size for each run of it that counted: first runs and those in another rhythm do
not."""

UNTRIED, UNTRIED_RUNS = 2.0, 9
"""A size with so many runs tries each candidate that has not run there, unless it is predicted to be slower by this
factor: other sizes, and what disturbed their runs, are all that a prediction knows."""

SLEPT = 1.3
"""A run of a GPU that has slept counts as one awake if it takes no longer than predicted by this factor, or wins as it
is."""

SURE = 0.12
"""Uncertainty up to which a prediction tells an unusual run."""

NOVEL, NOVELTY = 0.5, 1 / 8
"""Above this part of runs with new sizes (an exponential mean) first runs are what counts, not steady ones."""

RETRY_S, LONGEST_RETRY_S = 1.0, 64.0
"""How long a candidate that failed is left out; doubled by each further failure."""

_SLOWER: Mapping[str, tuple[float, float]] = {
    PAUSED: (1.5, 0.5),
    RARE: (2.0, 0.5),
    WAKING: (2.0, 0.5),
    FIRST: (1.0, 0.3),
}
"""Where nothing was seen: factor over steady runs of a GPU, and its uncertainty. An H200 that has slept takes 4.8 times
as long."""

_SLOWER_CPU = (1.1, 0.15)
"""The same of the CPU: its threads and caches have slept, too."""


GUESSED = 0.5
"""Uncertainty of what the partitioner predicts: its costs are a factor of two off where it matters."""


@dataclass(slots=True)
class Entry:
    """What is known of one size.

    ready: whether all was found out that needs the candidates to be run side by side. floor: the CPU is done before a
    GPU could have answered, so that there is nothing to choose. runs: of the session with this size; seen: by
    candidate. choice: the candidate that is expected to be the best; following: the one that the next run takes;
    expected_s: what each was expected to take when that was thought of last, in a rhythm of class `rest`. policies:
    what moves runs to another one under load, by class of rest: what a GPU takes after a rest says nothing about quick
    runs. source, predicted_s: of the side by side, see Decision.
    """

    size: Size
    ready: bool = False
    floor: bool = False
    runs: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    choice: str = CPU
    following: str = CPU
    expected_s: dict[str, float] = field(default_factory=dict)
    rest: str = BUSY
    think_at: int = 1
    policies: dict[str, Policy | None] = field(default_factory=dict)
    tried: dict[tuple[str, str], int] = field(default_factory=dict)
    source: str = ""
    why: str = ""
    predicted_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def policy(self) -> Policy | None:
        return self.policies.get(self.rest)

    def without(self, name: str) -> float:
        """Seconds that are expected without this candidate."""
        return min((s for other, s in self.expected_s.items() if other != name), default=math.inf)


@dataclass(frozen=True, slots=True)
class Turn:
    """One run. rest: the class of the rest before it, empty where the rhythm has just changed. awake: whether the GPU's
    clock is up.

    trial: whether another candidate was expected to be better. without_s: what the best of the others is expected to
    take. load, policy: at which reading it began, and what looked at that.
    """

    entry: Entry
    name: str
    rest: str
    awake: bool
    trial: bool
    without_s: float
    load: Load
    policy: Policy | None


class Learner:
    """What the runs of one session have taught. Thread-safe.

    uses: of the adapter. budget_s: what finding out may cost beside SHARE of all time; with 0 nothing is tried.
    waking_s: what is left of as much again for runs of a GPU that wakes up: they lose time, which those of it awake win
    back. host: what the session's runs share.
    """

    def __init__(self, uses: Uses, budget_s: float, host: Host = Host()) -> None:  # noqa: B008  it is immutable
        self.rhythm, self.budget_s, self.host = Rhythm(uses), budget_s, host
        self.entries: dict[Hashable, Entry] = {}
        self.grows: dict[str, float] = {CPU: 0.85}
        self.spent_s = self.total_s = self.novelty = 0.0
        self.waking_s = budget_s
        self._times: dict[str, dict[str, Times]] = {}
        self._out: dict[str, tuple[float, float]] = {}
        self.lock = threading.RLock()

    # ---- the run path

    def entry(self, key: Hashable, work_of: Callable[[], float]) -> Entry:
        """Of a size; a new one if it was never asked for."""
        with self.lock:
            entry = self.entries.get(key)
            if entry is None:
                entry = self.entries[key] = Entry(Size(key, work_of()))
                while len(self.entries) > MAX_SIZES:
                    self.entries.pop(next(iter(self.entries)))
            return entry

    def forget(self, entry: Entry) -> None:
        """A size that never ran: its inputs were refused."""
        if not entry.seen:
            self.entries.pop(entry.size.key, None)

    def choose(self, entry: Entry, now_s: float, load: Load = UNKNOWN, others: int = 0) -> str:
        """The candidate for a run that begins now: by what its runs take on an idle machine, or the one that a load, or
        a deadline, moves the run to. others: how many runs other threads have under way.
        """
        self.rhythm.begin(now_s, others)
        self.novelty += ((not entry.runs) - self.novelty) * NOVELTY
        entry.runs += 1
        if entry.runs >= entry.think_at or entry.rest != self.rhythm.rest or entry.following in self._out:
            with self.lock:
                self._think(entry, now_s)
        if (policy := entry.policy) is not None:
            choice = policy.choose(load)
            if choice != policy.home and not self.is_out(choice, now_s):
                return choice
        return entry.following

    def begin(self, entry: Entry, name: str, now_s: float, load: Load = UNKNOWN) -> Turn:
        """The run begins, on this candidate."""
        rhythm = self.rhythm
        awake = name == CPU or rhythm.uses.awake(now_s)
        if name != CPU:
            rhythm.uses.begin(now_s)
        rest = rhythm.rest if rhythm.last == rhythm.rest else ""
        return Turn(
            entry, name, rest, awake, name == entry.following != entry.choice, entry.without(name), load, entry.policy
        )

    def unable(self, entry: Entry, name: str) -> None:
        """The candidate that was chosen is not there yet: that was no trial."""
        with self.lock:
            if name != entry.choice and entry.tried.get((name, entry.rest)):
                entry.tried[name, entry.rest] -= 1

    def end(self, turn: Turn, seconds: float, now_s: float, well: bool = True) -> bool:
        """The run is over. well: all of it ran where it should. Returns whether it was a steady one."""
        calm = slowdown(turn.name, turn.load, self.host.threads, self.host.software) <= CALM
        counts = well and (calm or turn.rest == CONCURRENT)
        self.rhythm.end(now_s)
        if turn.name != CPU:
            self.rhythm.uses.end(now_s)
        with self.lock:
            self.total_s += seconds
            self.waking_s = min(self.waking_s + SHARE * seconds, self.budget_s)
            if turn.trial:
                self.spent_s += max(seconds - turn.without_s, 0.0)
            elif self.rhythm.rest in STEADY and turn.name != CPU and self.rhythm.uses.sleeps and counts:
                self._account(turn, seconds)
            steady = self._count(turn, turn.name, seconds, now_s) if counts else False
        if turn.policy is not None and well and (steady or not calm):
            turn.policy.observe(turn.name, seconds, turn.load)
        return steady

    def went_on(self, turn: Turn, seconds: Sequence[float], now_s: float) -> None:
        """Further runs like this one, the last of which has just ended: they were chosen, begun and ended without
        asking."""
        with self.lock:
            turn.entry.runs += len(seconds)
            self.novelty *= (1.0 - NOVELTY) ** len(seconds)
            if turn.policy is not None:
                turn.policy.went_on(len(seconds))
            for one in seconds:
                self.end(turn, one, now_s)

    def checked(self, turn: Turn, seconds: float, now_s: float) -> None:
        """The CPU answered the same inputs once more, to compare: what that took counts, and comes out of the
        budget."""
        with self.lock:
            self.total_s += seconds
            self.spent_s += seconds
            self._count(turn, CPU, seconds, now_s)

    def _account(self, turn: Turn, seconds: float) -> None:
        """What a run of a GPU has won or lost against the others: one that is never awake for long loses more than it
        wins."""
        won_s = min(turn.without_s - seconds, self.budget_s) if math.isfinite(turn.without_s) else 0.0
        self.waking_s = min(self.waking_s + won_s, self.budget_s)
        if self.waking_s <= 0.0 and not turn.awake:
            turn.entry.think_at = 0

    def _count(self, turn: Turn, name: str, seconds: float, now_s: float) -> bool:
        """Files the time of a run under what it tells about. Returns whether that is what steady runs take."""
        entry, kind = turn.entry, turn.rest
        first = not entry.seen.get(name)
        if first and (turn.awake or name == CPU):
            self.times(name, FIRST).add(entry.size, seconds, now_s)
        if first:
            kind = ""
        elif kind in STEADY and not turn.awake and name != CPU:
            kind = self._waking(turn, name, seconds, now_s)
        entry.seen[name] = entry.seen.get(name, 0) + 1
        if kind:
            self.times(name, kind).add(entry.size, seconds, now_s)
        return kind in (*STEADY, PAUSED, RARE)

    def _waking(self, turn: Turn, name: str, seconds: float, now_s: float) -> str:
        """What a run of a GPU that wakes up counts as: a steady one, if it is as quick as that or wins anyway."""
        expected = self.times(name, turn.rest).at(turn.entry.size, now_s)
        expected_s = expected.seconds if expected is not None and expected.spread <= SURE else 0.0
        return turn.rest if seconds <= max(SLEPT * expected_s, turn.without_s) else WAKING

    def failed(self, name: str, now_s: float, for_s: float = 0.0) -> None:
        """A run of a candidate failed, or the CPU had to answer for it: it is left out for a while, at least for_s."""
        with self.lock:
            until_s, last_s = self._out.get(name, (0.0, RETRY_S / 2))
            pause_s = max(min(2 * last_s, LONGEST_RETRY_S), for_s)
            self._out[name] = (max(until_s, now_s + pause_s), pause_s)

    def succeeded(self, name: str) -> None:
        """A run of a candidate that had failed went well."""
        self._out.pop(name, None)

    # ---- what is known

    def times(self, name: str, kind: str) -> Times:
        kinds = self._times.setdefault(name, {})
        if kind not in kinds:
            kinds[kind] = Times(self.grows.get(name, 0.3), kind == CONCURRENT)
        return kinds[kind]

    def teach(self, size: Size, name: str, seconds: float, runs: int, now_s: float) -> None:
        """Counts steady runs that were measured in turn with other candidates'."""
        with self.lock:
            for _ in range(runs):
                self.times(name, BUSY).add(size, seconds, now_s)

    def assume(self, size: Size, name: str, seconds: float, now_s: float) -> None:
        """What a candidate is expected to take, until a run of it tells."""
        with self.lock:
            self.times(name, ASSUMED).add(size, seconds, now_s)

    @property
    def rivals(self) -> list[str]:
        """The candidates besides the CPU that anything is known of."""
        with self.lock:
            return [name for name, kinds in self._times.items() if name != CPU and any(kinds.values())]

    @property
    def left_out(self) -> bool:
        """Whether any candidate has failed lately."""
        return bool(self._out)

    def is_out(self, name: str, now_s: float) -> bool:
        return name in self._out and now_s < self._out[name][0]

    def estimate(self, name: str, kind: str, size: Size, now_s: float) -> Estimate | None:
        """What a candidate takes for this size in this rhythm, seen or predicted; None where nothing tells."""
        with self.lock:
            by_kind = self._times.get(name, {})
            estimate = by_kind[kind].at(size, now_s) if kind in by_kind else None
            if estimate is not None:
                return estimate
            if kind != BUSY:
                base = self.estimate(name, BUSY, size, now_s)
                if kind == CONCURRENT:
                    return base and base.slower(self._queue(name), QUEUES)
                awake = not self.rhythm.uses.sleeps and kind != FIRST
                return base and base.slower(*(_SLOWER_CPU if name == CPU or awake else _SLOWER[kind]))
            guess = by_kind[ASSUMED].at(size, now_s) if ASSUMED in by_kind else None
            return guess and guess.slower(1.0, GUESSED)

    def _queue(self, name: str) -> float:
        """How many times as long a run takes with the others beside it, if all are on the same side: each takes its
        turn on a GPU, and its share of the cores on the CPU."""
        runs = 1.0 + self.rhythm.others
        return max(runs * min(self.host.threads / self.host.cores, 1.0), 1.0) if name == CPU else runs

    @property
    def left_s(self) -> float:
        """What may be spent on trials now."""
        return self.budget_s + SHARE * self.total_s - self.spent_s if self.budget_s else 0.0

    # ---- thinking

    def decide(self, entry: Entry, now_s: float) -> None:
        """Thinks before the first run of a size."""
        with self.lock:
            self._think(entry, now_s)

    def _think(self, entry: Entry, now_s: float) -> None:
        entry.rest = self.rhythm.rest
        entry.think_at = entry.runs + max(1, min(entry.runs // 4, RETHINKS if entry.rest == CONCURRENT else 256))
        kind = FIRST if entry.runs == 1 and self.novelty > NOVEL and entry.rest in STEADY else entry.rest
        estimates = self._estimates((CPU, *self.rivals), kind, entry.size, now_s)
        if not estimates:
            entry.following = entry.choice = CPU
            return
        asleep = entry.rest in STEADY and not self.rhythm.uses.awake(now_s)
        choice = (
            self._beside_others(entry, estimates) if entry.rest == CONCURRENT else self._best(estimates, entry.choice)
        )
        if asleep and choice != CPU and self.waking_s <= 0.0 < self.budget_s:
            estimates |= self._estimates([name for name in estimates if name != CPU], WAKING, entry.size, now_s)
            choice = self._best(estimates, entry.choice)
        before, entry.choice, entry.following = entry.following, choice, choice
        entry.expected_s = {name: e.seconds for name, e in estimates.items()}
        if entry.runs > 1 or self.novelty > NOVEL:
            entry.following = self._trial(entry, estimates, asleep, before) or choice
        if entry.following != choice:
            entry.think_at = entry.runs + 1
        # there, what was measured tells more
        if self.host.deadline_s or (self.host.watched and entry.rest != CONCURRENT):
            entry.policies[entry.rest] = self.host.policy(entry.expected_s, choice, entry.policy)

    def _estimates(self, names: Collection[str], kind: str, size: Size, now_s: float) -> dict[str, Estimate]:
        """Of the candidates that are not left out, and that something is known of."""
        estimates = {name: self.estimate(name, kind, size, now_s) for name in names if not self.is_out(name, now_s)}
        return {name: e for name, e in estimates.items() if e is not None}

    def _beside_others(self, entry: Entry, found: Mapping[str, Estimate]) -> str:
        """The choice while other threads have runs under way.

        Once one candidate was seen there, others have to prove it in trials. What they took then is forgotten where one
        is chosen: runs of this session that were on the other side meanwhile have disturbed them. So a candidate is
        kept until its own tail is known.
        """
        present, seen = entry.choice, any(e.runs for e in found.values())
        if seen:
            found = {name: e for name, e in found.items() if e.runs >= PROVEN or name == present} or found
        best = self._best(found, present)
        if best == present or (present in found and found[best].seconds >= _to_beat(found[present], best, found[best])):
            return present
        runs = found[present].runs if seen and present in found else TAIL
        if runs < TAIL and (not runs or found[present].seconds <= AWFUL * found[best].seconds):
            return present
        if found[best].runs:
            self.times(best, CONCURRENT).forget(entry.size)
        return best

    def _best(self, found: Mapping[str, Estimate], present: str) -> str:
        best = min(found, key=lambda name: found[name].seconds)
        if present in found and found[present].seconds <= STAY * found[best].seconds + STAY_S:
            return present
        return best

    def _trial(self, entry: Entry, found: Mapping[str, Estimate], asleep: bool, before: str) -> str | None:
        """A candidate that could be better by more than is allowed, if the budget has what trying may cost."""
        able = []
        for name, estimate in found.items():
            best_s = _to_beat(found[entry.choice], name, estimate)
            sleeping = asleep and name != CPU and best_s < AWAKE_S / 4
            rouses = sleeping and before != name  # which costs more than a run: one standard deviation has to do
            low_s = math.sqrt(estimate.low_s * estimate.seconds) if rouses else estimate.low_s
            if entry.rest == CONCURRENT and not estimate.runs:
                low_s = estimate.seconds  # while others wait, a hope is no reason
            alone = entry.rest != CONCURRENT and not asleep
            unknown = alone and not estimate.runs and entry.runs > UNTRIED_RUNS and estimate.seconds <= UNTRIED * best_s
            if name == entry.choice or (LAW * low_s + LAW_S >= best_s and not unknown):
                continue
            counted, tried = estimate.runs, entry.tried.get((name, entry.rest), 0)
            cost_s = AWAKE_S / 2 if rouses else 0.0
            if (
                tried < TRIES * (counted + 1) + sleeping * AWAKE_S / best_s
                and cost_s + max(estimate.seconds - best_s, 0.0) <= self.left_s
            ):
                able.append(name)
        if not able:
            return None
        chosen = min(able, key=lambda name: found[name].low_s)
        entry.tried[chosen, entry.rest] = entry.tried.get((chosen, entry.rest), 0) + 1
        return chosen

    # ---- to and from disk

    def dump(self) -> Iterator[tuple[str, str, Size, float, int]]:
        """(candidate, kind, size, seconds, runs) of all that was seen."""
        with self.lock:
            for name, kinds in self._times.items():
                for kind, times in kinds.items():
                    for size, seconds, runs in times.dump():
                        yield name, kind, size, seconds, runs

    def load(self, rows: Collection[tuple[str, str, Size, float, int]], now_s: float) -> None:
        for name, kind, size, seconds, runs in rows:
            self.times(name, kind).load(size, seconds, runs, now_s)


def _to_beat(present: Estimate, name: str, rival: Estimate) -> float:
    """Seconds that a rival has to beat. Beside others, the CPU's tail is not known until it has run for a while, and is
    mostly the longer one, since threads of several sessions compete for the cores: until then the tail of a GPU, which
    takes runs in turn, does not count.
    """
    return min(present.seconds, present.median_s) if name == CPU and rival.runs < TAIL else present.seconds
