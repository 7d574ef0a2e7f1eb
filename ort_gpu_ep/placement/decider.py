"""Chooses the candidate of a run by what it takes now: idle time x load x rest x others beside it. Pure: told the time.

A first run of a size goes by prediction from other sizes; steady runs refine it. A candidate that could be better is
tried one run at a time, and all that trying costs comes out of one budget.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ort_gpu_ep.ir.types import MAX_SHAPES
from ort_gpu_ep.placement import CPU, GPU
from ort_gpu_ep.placement.estimate import ENOUGH, TAIL, Estimate, Size, Times, joined
from ort_gpu_ep.placement.latency import Latency
from ort_gpu_ep.placement.rhythm import BUSY, CONCURRENT, PAUSED, RARE, Rhythm, rest_class
from ort_gpu_ep.utilization import AWAKE_S, EDGES, UNKNOWN, Load, Uses

WAKING, FIRST, ASSUMED = "waking", "first", "assumed"
"""Besides the classes of rest: runs of a GPU whose clock is not up yet; first runs of a size, which plan and compile;
no runs at all but what the partitioner predicts."""

KINDS = (BUSY, PAUSED, RARE, CONCURRENT, WAKING, FIRST, ASSUMED)

STEADY = (BUSY, CONCURRENT)
"""Classes of rest in which a GPU that is awake stays so."""

UNSEEN = 0.5
"""Uncertainty where no run of a candidate was seen: of what it takes by the partitioner, whose costs are a factor of two
off where it matters, and of what it takes beside others."""

PROVEN = 8
"""Runs beside others that a candidate has to have for moving there: while others wait, nothing is chosen by what is
only expected."""

AWFUL = 2.0
"""How many times as long as elsewhere runs beside others have to take for a candidate to be left before its tail is
known."""

RETHINKS = 32
"""Runs beside others after which the choice is thought over, at most."""

LOADED = (1.25, 1.67, 5.0)
"""Predicted slowdowns by a load at which one class ends and the next begins: below the first, runs tell what an idle
machine takes."""

SUFFERS = 0.4
"""Standard deviation of the power of the predicted slowdown that a load really is: some models suffer less, some
more."""

WORST = 20.0
"""The largest slowdown that is predicted: a load of 95 % and one of 100 % can't be told apart by sampling."""

LEAVE, TRIFLE_S = 1.10, 20e-6
"""Under a load a run leaves the candidate that is best on an idle machine where another is predicted to be so much
faster, and returns when it is not slower any more: twice the 5 % that repeated medians differ by, and what a switch of
session costs in Python."""

DWELL_S, LONGEST_DWELL_S, CALM = 0.5, 120.0, 0.25
"""A candidate is kept for DWELL_S. Each further switch doubles that, up to the longest, until the load has changed by
CALM: under a load that only trembles the number of switches is logarithmic in time. Source: route flap damping, RFC
2439."""

SETTLE_S = 0.5
"""A run counts only if the load is still the same so much later: smoothing makes loads known late (load/sampler.py)."""

SPREAD = 0.25
"""Of the logarithm of latencies, where none was seen yet: p95 is 1.5 times the median, as on a busy desktop."""

TELLS, SAME_CHANCE, KEEP_CHANCE = 9, 0.02, 0.05
"""Runs that tell the chance of meeting a deadline; chances that count as equal, and how much better another must be for
the present candidate to be left."""

LAW, LAW_S = 1.05, 50e-6
"""What a session may take over the better side: less than that is not worth a trial."""

STAY, STAY_S = 1.02, 10e-6
"""A size keeps its candidate while another is better by less than this."""

SHARE = 0.02
"""Part of all time that trials, checks and failures may cost in the long run, besides the budget a session begins
with."""

TRIES = 3
"""Trials of one candidate in one size for each run of it that counted: first runs and those in another rhythm do
not."""

UNTRIED, RACED, UNTRIED_RUNS = 2.0, 1.5, 9
"""A size with so many runs tries each candidate that has not run there, unless it is predicted to be slower by the
first factor: other sizes, and what disturbed their runs, are all that a prediction knows. The second is for one that
only ran side by side with the others, all in the same second."""

SLEPT = 1.3
"""A GPU that may have slept is awake if a run takes no longer than predicted by this factor; its run counts as one awake
also where it wins as it is."""

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


class Host(NamedTuple):
    """What the runs of a session share. threads: of a run on the CPU; cores: there; software: the adapter computes on
    the CPU. deadline_s: 0, or how long a run may take. watched: the load is read, and moves runs.
    """

    threads: int = 1
    cores: int = 1
    software: bool = False
    deadline_s: float = 0.0
    watched: bool = False

    def of_cpu(self, name: str) -> bool:
        """Whether the CPU's load, not the GPU's, decides how long a candidate takes."""
        return self.software or name == CPU

    def slowdown(self, name: str, load: Load) -> float:
        return slowdown(name, load, self.threads, self.software)


@dataclass(slots=True)
class Place:
    """Where the runs of one size go in one rhythm. home: the best candidate on an idle machine. choice: the best under
    the load, with the handicap of hysteresis. switched: the load at the latest move; runs: since then; dwell_s: how
    long none is allowed. wish, wishes: the better candidate at the latest readings, and at how many.
    """

    home: str = CPU
    choice: str = CPU
    why: str = "fastest on an idle machine"
    switches: int = 0
    explored: int = 0
    switched: Load | None = None
    dwell_s: float = DWELL_S
    runs: int = 0
    wish: str = ""
    wishes: int = 0
    read_s: float = -math.inf
    latency: dict[str, Latency] = field(default_factory=dict)


@dataclass(slots=True)
class Entry:
    """What is known of one size.

    ready: whether all was found out that needs the candidates to be run side by side. floor: the CPU is done before a
    GPU could have answered, so that there is nothing to choose. runs: of the session with this size; seen: by
    candidate. following: the candidate that the next run takes; idle_s, expected_s: what each was expected to take when
    that was thought of last, in a rhythm of class `rest`, on an idle machine and under the load. places: by class of
    rest, since what a GPU takes after a rest says nothing about quick runs. source, predicted_s: of the side by side,
    see Decision.
    """

    size: Size
    ready: bool = False
    floor: bool = False
    runs: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    following: str = CPU
    idle_s: dict[str, float] = field(default_factory=dict)
    expected_s: dict[str, float] = field(default_factory=dict)
    rest: str = BUSY
    think_at: int = 1
    place: Place = field(default_factory=Place)
    places: dict[str, Place] = field(default_factory=dict)
    tried: dict[tuple[str, str, int], int] = field(default_factory=dict)
    source: str = ""
    why: str = ""
    predicted_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def choice(self) -> str:
        return self.place.choice

    def without(self, name: str) -> float:
        """Seconds that are expected without this candidate."""
        return min((s for other, s in self.expected_s.items() if other != name), default=math.inf)


@dataclass(frozen=True, slots=True)
class Turn:
    """One run. rest: the class of the rest before it, empty where the rhythm has just changed. awake: whether the GPU's
    clock is up.

    trial: whether another candidate was expected to be better. without_s: what the best of the others is expected to
    take. load: at which reading it began. place: which it counts for.
    """

    entry: Entry
    name: str
    rest: str
    awake: bool
    trial: bool
    without_s: float
    load: Load
    place: Place


class Decider:
    """What the runs of one session have taught. Thread-safe.

    uses: of the adapter. budget_s: what finding out may cost beside SHARE of all time; with 0 nothing is tried.
    waking_s: what runs of a GPU that wakes up have lost, and those of it awake have not won back: the same budget pays
    for it. host: what the session's runs share.
    """

    def __init__(self, uses: Uses, budget_s: float, host: Host = Host()) -> None:  # noqa: B008  it is immutable
        self.rhythm, self.budget_s, self.host = Rhythm(uses), budget_s, host
        self.entries: dict[Hashable, Entry] = {}
        self.grows: dict[str, float] = {CPU: 0.85}
        self.spent_s = self.total_s = self.novelty = self.waking_s = 0.0
        self._rousing, self._wakes = False, True
        self._times: dict[str, dict[tuple[str, int], Times]] = {}
        self._out: dict[str, tuple[float, float]] = {}
        self._read_s = -math.inf
        self._levels: dict[str, int] = {}
        self._pending: dict[tuple[str, str, Hashable], deque[tuple[float, Size, float]]] = {}
        self.lock = threading.RLock()

    # ---- the run path

    def entry(self, key: Hashable, work_of: Callable[[], float]) -> Entry:
        """Of a size; a new one if it was never asked for."""
        with self.lock:
            entry = self.entries.get(key)
            if entry is None:
                entry = self.entries[key] = Entry(Size(key, work_of()))
                while len(self.entries) > MAX_SHAPES:
                    self.entries.pop(next(iter(self.entries)))
            return entry

    def forget(self, entry: Entry) -> None:
        """A size that never ran: its inputs were refused."""
        if not entry.seen:
            self.entries.pop(entry.size.key, None)

    def choose(self, entry: Entry, now_s: float, load: Load = UNKNOWN, others: int = 0) -> str:
        """The candidate for a run that begins now. others: how many runs other threads have under way. An unknown load
        moves nothing."""
        self.rhythm.begin(now_s, others)
        rested = self.rhythm.last not in STEADY
        if rested and self._rousing:
            self._rousing = self._wakes = False
        self.novelty += ((not entry.runs) - self.novelty) * NOVELTY
        entry.runs += 1
        if load.when_s != self._read_s and load.gpu is not None:
            with self.lock:
                self._settle(load, now_s)
        if (
            entry.runs >= entry.think_at
            or entry.rest != self.rhythm.rest
            or (rested and entry.rest in STEADY and entry.following != CPU)  # its clock may be down again
            or entry.following in self._out
            or (load.when_s != entry.place.read_s and load.gpu is not None and self.host.watched)
        ):
            with self.lock:
                self._think(entry, now_s, load)
        return entry.following

    def begin(self, entry: Entry, name: str, now_s: float, load: Load = UNKNOWN) -> Turn:
        """The run begins, on this candidate."""
        rhythm = self.rhythm
        awake = name == CPU or rhythm.uses.awake(now_s)
        rest = rhythm.rest if rhythm.last == rhythm.rest else ""
        if name != CPU:
            if rest in (PAUSED, RARE):
                rest = rest_class(now_s - rhythm.uses.last_s)  # longer, where the runs before were the CPU's
            rhythm.uses.begin(now_s)
        return Turn(
            entry, name, rest, awake, name == entry.following != entry.choice, entry.without(name), load, entry.place
        )

    def unable(self, entry: Entry, name: str) -> None:
        """The candidate that was chosen is not there yet: that was no trial."""
        with self.lock:
            for key in entry.tried:
                if key[:2] == (name, entry.rest) and name != entry.choice and entry.tried[key]:
                    entry.tried[key] -= 1

    def end(self, turn: Turn, seconds: float, now_s: float, well: bool = True) -> bool:
        """The run is over. well: all of it ran where it should. Returns whether it was a steady one."""
        self.rhythm.end(now_s)
        if turn.name != CPU:
            self.rhythm.uses.end(now_s)
        with self.lock:
            self.total_s += seconds
            turn.place.runs += 1
            if turn.trial:
                self.spent_s += max(seconds - turn.without_s, 0.0)
            if not well:
                return False
            if turn.name != CPU and not turn.trial and turn.rest in STEADY and math.isfinite(turn.without_s):
                self._account(turn, seconds)
            steady = self._count(turn, turn.name, seconds, now_s)
            if steady and self.host.watched:
                turn.place.latency.setdefault(turn.name, Latency()).add(seconds, self._band(turn.name, turn.load))
        return steady

    def went_on(self, turn: Turn, seconds: Sequence[float], now_s: float) -> None:
        """Further runs like this one, the last of which has just ended: they were chosen, begun and ended without
        asking."""
        with self.lock:
            turn.entry.runs += len(seconds)
            self.novelty *= (1.0 - NOVELTY) ** len(seconds)
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
        """What runs of a GPU that wakes up lose, those of it awake win back."""
        self.waking_s = max(self.waking_s + seconds - turn.without_s, 0.0)
        self._rousing, self._wakes = not turn.awake, self._wakes or turn.awake

    def _count(self, turn: Turn, name: str, seconds: float, now_s: float) -> bool:
        """Files the time of a run under what it tells about. Returns whether that is what steady runs take."""
        entry, kind = turn.entry, turn.rest
        first = not entry.seen.get(name)
        level = self._level(name, turn.load) if kind != CONCURRENT else 0
        if first and (turn.awake or name == CPU) and not level:
            self.times(name, FIRST).add(entry.size, seconds, now_s)
        if first:
            kind = ""
        elif kind in STEADY and not turn.awake and name != CPU:
            kind = self._waking(turn, name, seconds, now_s)
        entry.seen[name] = entry.seen.get(name, 0) + 1
        if kind and not (kind == WAKING and level):
            times = self.times(name, kind, level)
            if turn.load.gpu is None or kind in (WAKING, CONCURRENT) or times.runs(entry.size) < ENOUGH:
                times.add(entry.size, seconds, now_s)
                entry.tried.pop((name, kind, level), None)
            else:
                pending = self._pending.setdefault((name, kind, entry.size.key), deque(maxlen=16))
                if not pending or pending[-1][0] != turn.load.when_s:
                    pending.append((turn.load.when_s, entry.size, seconds))
        return kind in (*STEADY, PAUSED, RARE)

    def _waking(self, turn: Turn, name: str, seconds: float, now_s: float) -> str:
        """What a run of a GPU that wakes up counts as: a steady one, if it is as quick as that or wins anyway."""
        expected = self.estimate(name, turn.rest, turn.entry.size, now_s, turn.load)
        expected_s = expected.seconds if expected is not None and expected.spread <= SURE else 0.0
        return turn.rest if seconds <= max(SLEPT * expected_s, turn.without_s) else WAKING

    def _settle(self, load: Load, now_s: float) -> None:
        """A new reading: runs count that began under a load that has lasted, others are forgotten."""
        self._read_s = load.when_s
        for name in self._times:
            level = self._level(name, load)
            changed, self._levels[name] = level != self._levels.get(name, level), level
            for (of, kind, _), pending in list(self._pending.items()):
                if of == name and changed:
                    pending.clear()
                while of == name and pending and load.when_s - pending[0][0] >= SETTLE_S:
                    _, size, seconds = pending.popleft()
                    self.times(name, kind, level).add(size, seconds, now_s)
                    if (entry := self.entries.get(size.key)) is not None:
                        entry.tried.pop((name, kind, level), None)
        if len(self._pending) > MAX_SHAPES:
            self._pending = {key: pending for key, pending in self._pending.items() if pending}

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

    def times(self, name: str, kind: str, level: int = 0) -> Times:
        """level: see LOADED."""
        kinds = self._times.setdefault(name, {})
        if (kind, level) not in kinds:
            kinds[kind, level] = Times(self.grows.get(name, 0.3), kind == CONCURRENT)
        return kinds[kind, level]

    def teach(self, size: Size, name: str, seconds: float, runs: int, now_s: float) -> None:
        """Counts steady runs that were measured in turn with other candidates'."""
        with self.lock:
            self.times(name, BUSY).race(size, seconds, runs, now_s)

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

    def estimate(self, name: str, kind: str, size: Size, now_s: float, load: Load = UNKNOWN) -> Estimate | None:
        """What a candidate takes for this size in this rhythm and under this load, seen or predicted; None where
        nothing tells."""
        with self.lock:
            by_kind, level = self._times.get(name, {}), self._level(name, load) if kind != CONCURRENT else 0
            times = by_kind.get((kind, level))
            seen = times.at(size, now_s) if times is not None else None
            if level and (seen is None or seen.runs < ENOUGH):
                calm, slower = self.estimate(name, kind, size, now_s), self.host.slowdown(name, load)
                expected = calm and calm.slower(slower, SUFFERS * math.log(slower))
                return joined(seen, expected) if seen is not None and expected is not None else seen or expected
            if seen is not None:
                return seen
            if kind != BUSY:
                base = self.estimate(name, BUSY, size, now_s)
                if kind == CONCURRENT:
                    return base and base.slower(self._queue(name), UNSEEN)
                awake = not self.rhythm.uses.sleeps and kind != FIRST
                return base and base.slower(*(_SLOWER_CPU if name == CPU or awake else _SLOWER[kind]))
            guess = self.times(name, ASSUMED).at(size, now_s)
            return guess and guess.slower(1.0, UNSEEN)

    def _level(self, name: str, load: Load) -> int:
        """The class of slowdown that a load is predicted to be."""
        if load.gpu is None:
            return 0
        slower = self.host.slowdown(name, load)
        return sum(slower > edge for edge in LOADED)

    def _band(self, name: str, load: Load) -> int | None:
        """The level of the load itself, as it is shown (utilization.BANDS)."""
        value = load.cpu if self.host.of_cpu(name) else load.gpu
        return None if load.gpu is None or value is None else sum(value > edge for edge in EDGES)

    def _queue(self, name: str) -> float:
        """How many times as long a run takes with the others beside it, if all are on the same side: each takes its
        turn on a GPU, and its share of the cores on the CPU."""
        runs = 1.0 + self.rhythm.others
        return max(runs * min(self.host.threads / self.host.cores, 1.0), 1.0) if name == CPU else runs

    @property
    def left_s(self) -> float:
        """What may be spent on trials now."""
        return self.budget_s + SHARE * self.total_s - self.spent_s - self.waking_s if self.budget_s else 0.0

    # ---- thinking

    def decide(self, entry: Entry, now_s: float) -> None:
        """Thinks before the first run of a size."""
        with self.lock:
            self._think(entry, now_s, UNKNOWN)

    def _think(self, entry: Entry, now_s: float, load: Load) -> None:
        entry.rest = rest = self.rhythm.rest
        entry.place = place = entry.places.setdefault(rest, Place(entry.choice, entry.choice))
        entry.think_at = entry.runs + max(1, min(entry.runs // 4, RETHINKS if rest == CONCURRENT else 256))
        kind = FIRST if entry.runs == 1 and self.novelty > NOVEL and rest in STEADY else rest
        kinds = dict.fromkeys((n for n in (CPU, *self.rivals) if not self.is_out(n, now_s)), kind)
        idle = self._estimates(kinds, entry.size, now_s, UNKNOWN)
        if not idle:
            entry.following = place.home = place.choice = CPU
            return
        home = self._beside_others(place.home, entry, idle) if rest == CONCURRENT else _best(idle, place.home)
        asleep = rest in STEADY and not self.rhythm.uses.awake(now_s)
        if asleep and home != CPU:
            waking = idle | self._estimates({n: WAKING for n in idle if n != CPU}, entry.size, now_s, UNKNOWN)
            if not self._worth_waking(idle[home], waking[home], waking[best := _best(waking, place.home)], now_s):
                idle, home, kinds = waking, best, {n: WAKING if n != CPU else kind for n in kinds}
        if place.choice == place.home or place.choice not in idle:
            place.choice = home
        place.home, estimates = home, idle
        if (
            self.host.watched
            and load.gpu is not None
            and len(idle) > 1
            and (rest != CONCURRENT or self.host.deadline_s)
        ):
            estimates = self._estimates(kinds, entry.size, now_s, load)
            self._follow(place, estimates, load)
        entry.idle_s = {name: e.seconds for name, e in idle.items()}
        before, choice, entry.following = entry.following, place.choice, place.choice
        entry.expected_s = {name: e.seconds for name, e in estimates.items()}
        if self.budget_s and (entry.runs > 1 or self.novelty > NOVEL):
            entry.following = self._trial(entry, estimates, load, asleep, before) or choice
        if entry.following != choice:
            entry.think_at = entry.runs + 1

    def _estimates(self, kinds: Mapping[str, str], size: Size, now_s: float, load: Load) -> dict[str, Estimate]:
        """Of the candidates that something is known of."""
        estimates = {name: self.estimate(name, kind, size, now_s, load) for name, kind in kinds.items()}
        return {name: e for name, e in estimates.items() if e is not None}

    def _worth_waking(self, awake: Estimate, waking: Estimate, without: Estimate, now_s: float) -> bool:
        """Whether the quick runs that are to come win back what the GPU loses until its clock is up; where it came up
        last time, the budget may also pay for finding out."""
        if waking.seconds <= without.seconds:
            return True
        runs = AWAKE_S / waking.seconds
        lost_s = runs * (waking.seconds - without.seconds)
        if self._rousing or (self._wakes and lost_s <= self.left_s):
            return True
        return (self.rhythm.stays_s(now_s) / without.seconds - runs) * (without.seconds - awake.seconds) > lost_s

    def _beside_others(self, present: str, entry: Entry, estimates: Mapping[str, Estimate]) -> str:
        """The choice while other threads have runs under way.

        Once one candidate was seen there, others have to prove it in trials. What they took then is forgotten where one
        is chosen: runs of this session that were on the other side meanwhile have disturbed them. So a candidate is
        kept until its own tail is known.
        """
        seen = any(e.runs for e in estimates.values())
        if seen:
            estimates = {name: e for name, e in estimates.items() if e.runs >= PROVEN or name == present} or estimates
        best = _best(estimates, present)
        if best == present or (
            present in estimates and estimates[best].seconds >= _to_beat(estimates[present], best, estimates[best])
        ):
            return present
        runs = estimates[present].runs if seen and present in estimates else TAIL
        if runs < TAIL and (not runs or estimates[present].seconds <= AWFUL * estimates[best].seconds):
            return present
        if estimates[best].runs:
            self.times(best, CONCURRENT).forget(entry.size)
        return best

    def _follow(self, place: Place, estimates: Mapping[str, Estimate], load: Load) -> None:
        """Moves runs if another candidate has been better at two readings in a row and the present one was kept long
        enough."""
        if load.when_s == place.read_s:
            return
        place.read_s = load.when_s
        names = list(estimates)
        if self.host.deadline_s:
            chance = {name: self._chance(place, name, estimates[name], load) for name in names}
            names = [
                n
                for n in names
                if chance[n] >= max(chance.values()) - (KEEP_CHANCE if n == place.choice else SAME_CHANCE)
            ]
        free = (place.home, place.choice)
        wish = min(
            names,
            key=lambda n: (
                estimates[n].seconds if n in free else estimates[n].seconds * LEAVE + TRIFLE_S,
                n != place.choice,
            ),
        )
        place.wish, place.wishes = wish, place.wishes + 1 if wish == place.wish else 1
        if wish == place.choice or place.wishes < 2:
            return
        last = place.switched
        if last is not None:
            if abs((load.gpu or 0.0) - (last.gpu or 0.0)) > CALM or abs(load.cpu - last.cpu) > CALM:
                place.dwell_s = DWELL_S
            if load.when_s - last.when_s < place.dwell_s or place.runs < 2:
                return
            place.dwell_s = min(2 * place.dwell_s, LONGEST_DWELL_S)
        place.choice, place.switched, place.runs = wish, load, 0
        place.switches += 1
        times = ", ".join(f"{name} {e.seconds * 1e3:.3g} ms" for name, e in estimates.items())
        place.why = (
            f"predicted {times} at GPU load {load.gpu or 0.0:.0%}, CPU load {load.cpu:.0%} of {load.cores} "
            f"cores ({load.source})"
        )

    def _chance(self, place: Place, name: str, expected: Estimate, load: Load) -> float:
        """The part of runs that meet the deadline: as seen at this level of load, or of a log-normal distribution
        around the prediction."""
        band, latency = self._band(name, load), place.latency.get(name)
        if latency is not None and band is not None and latency.by_band[band].runs >= TELLS:
            return latency.by_band[band].below(self.host.deadline_s)
        return 0.5 * (1.0 + math.erf(math.log(self.host.deadline_s / expected.seconds) / SPREAD / math.sqrt(2.0)))

    def _trial(
        self, entry: Entry, estimates: Mapping[str, Estimate], load: Load, asleep: bool, before: str
    ) -> str | None:
        """A candidate that could be better by more than is allowed, if the budget has what trying may cost."""
        able, present, concurrent = [], estimates[entry.choice], entry.rest == CONCURRENT
        late = self.host.deadline_s and self._chance(entry.place, entry.choice, present, load) < 1.0 - SAME_CHANCE
        for name, estimate in estimates.items():
            best_s = max(_to_beat(present, name, estimate), self.host.deadline_s if late else 0.0)
            sleeping = asleep and name != CPU and best_s < AWAKE_S / 4
            rouses = sleeping and before != name  # which costs more than a run: one standard deviation has to do
            low_s = estimate.low_s
            if entry.rest == BUSY and estimate.runs < ENOUGH:
                low_s = min(
                    low_s, self.times(name, FIRST).quickest_s(entry.size)
                )  # a first run is no quicker than others
            if rouses:
                low_s = math.sqrt(low_s * estimate.seconds)
            # while others wait, or nobody knows what there is to beat, a hope is no reason
            if (concurrent and not estimate.runs) or (rouses and not present.runs and entry.runs > 1):
                low_s = estimate.seconds
            doubt = RACED if estimate.raced else 0.0 if estimate.runs else UNTRIED
            if concurrent or asleep or entry.runs <= UNTRIED_RUNS:
                doubt = 0.0
            if estimate.runs >= (PROVEN if concurrent else ENOUGH) and estimate.seconds <= best_s and not late:
                continue  # known to be better: it is the load that has to last
            if name == entry.choice or (LAW * low_s + LAW_S >= best_s and estimate.seconds > doubt * best_s):
                continue
            tried = entry.tried.get((name, entry.rest, self._level(name, load)), 0)
            cost_s = AWAKE_S / 2 if rouses else 0.0
            if (
                tried < TRIES + sleeping * AWAKE_S / best_s
                and cost_s + max(estimate.seconds - best_s, 0.0) <= self.left_s
            ):
                able.append(name)
        if not able:
            return None
        chosen = min(able, key=lambda name: estimates[name].low_s)
        key = chosen, entry.rest, self._level(chosen, load)
        entry.tried[key] = entry.tried.get(key, 0) + 1
        entry.place.explored += 1
        return chosen

    # ---- what came of it

    def as_dict(self, entry: Entry) -> dict[str, object]:
        """The present candidate of a size, why, and of each candidate the runs and p50, p95, p99 in milliseconds, over
        all and by load."""
        with self.lock:
            place = entry.place
            candidates = {
                name: {"idle_ms": s * 1e3, **place.latency.get(name, Latency()).as_dict()}
                for name, s in entry.idle_s.items()
            }
            return {
                "current": place.choice,
                "home": place.home,
                "why": place.why,
                "switches": place.switches,
                "explored": place.explored,
                "deadline_ms": self.host.deadline_s * 1e3,
                "candidates": candidates,
            }

    def dump(self) -> Iterator[tuple[str, str, Size, float, int]]:
        """(candidate, kind, size, seconds, runs) of all that was seen, but under load."""
        with self.lock:
            for name, kinds in self._times.items():
                for (kind, level), times in kinds.items():
                    for size, seconds, runs in times.dump() if not level else ():
                        yield name, kind, size, seconds, runs

    def load(self, rows: Collection[tuple[str, str, Size, float, int]], now_s: float) -> None:
        for name, kind, size, seconds, runs in rows:
            self.times(name, kind).load(size, seconds, runs, now_s)


def slowdown(candidate: str, load: Load, threads: int, software: bool) -> float:
    """How many times as long a run takes under a load, 1 where it is unknown.

    CPU: threads / free cores. GPU: 1 / (1 - load), as for a processor shared in turn. A candidate on both: the worse of
    the two.
    """
    free = max(load.cores * (1.0 - load.cpu), load.cores / WORST)
    if load.gpu is None:
        return 1.0
    if software:
        cores = threads if candidate == CPU else load.cores
        return min(max(1.0, cores / free), WORST)
    on_cpu = min(max(1.0, threads / free), WORST)
    on_gpu = 1.0 / max(1.0 - load.gpu, 1.0 / WORST)
    return on_cpu if candidate == CPU else on_gpu if candidate == GPU else max(on_cpu, on_gpu)


def _best(estimates: Mapping[str, Estimate], present: str) -> str:
    best = min(estimates, key=lambda name: estimates[name].seconds)
    stay = LEAVE if 0 < estimates[best].runs < ENOUGH else STAY
    if present in estimates and estimates[present].seconds <= stay * estimates[best].seconds + STAY_S:
        return present
    return best


def _to_beat(present: Estimate, name: str, rival: Estimate) -> float:
    """Seconds that a rival has to beat. Beside others, the CPU's tail is not known until it has run for a while, and is
    mostly the longer one, since threads of several sessions compete for the cores: until then the tail of a GPU, which
    takes runs in turn, does not count.
    """
    return min(present.seconds, present.median_s) if name == CPU and rival.runs < TAIL else present.seconds
