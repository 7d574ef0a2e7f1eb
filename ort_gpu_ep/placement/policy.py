"""Chooses the candidate of the next run by the load of GPU and CPU. Pure: no clock, no I/O, no device."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from ort_gpu_ep.placement import CPU, GPU
from ort_gpu_ep.utilization import BANDS, EDGES, Load

LEAVE = 1.10
"""A run leaves the candidate that is best on an idle machine when another is predicted this much faster, and returns
when it is not slower any more. Between the two nothing moves: twice the 5 % that repeated medians of an idle machine
differ by."""

TRIFLE_S = 20e-6
"""Nor does a run leave for less than this: what a switch of session costs in Python."""

DWELL_S, LONGEST_DWELL_S, CALM = 0.5, 120.0, 0.25
"""A candidate is kept for DWELL_S. Each further switch doubles that, up to the longest, until the load has changed by
CALM: under a load that only trembles the number of switches is logarithmic in time. Source: route flap damping, RFC
2439."""

SETTLE_S = 0.5
"""A run counts for its band only if the band is still the same so much later: smoothing makes loads known late
(load/sampler.py)."""

RECENT, ENOUGH = 9, 3
"""Predictions are the median of the last RECENT settled runs, from ENOUGH on; one run counts for each reading of the
load."""

EXPLORE_EVERY, EXPLORE_SHARE = 128, 0.01
"""A candidate that might be better is tried in at most one run of 128, and for at most 1 % of all time: one 10 times
slower in one of 1,000."""

WORST = 20.0
"""The largest slowdown that the model predicts: a load of 95 % and one of 100 % can't be told apart by sampling."""

WITHIN = WORST
"""A candidate that is slower than the best by this factor on an idle machine is never the better one."""

SPREAD = 0.25
"""Of the logarithm of latencies, where none was seen yet: p95 is 1.5 times the median, as on a busy desktop."""

SAME_CHANCE, KEEP_CHANCE = 0.02, 0.05
"""Chances of meeting a deadline that count as equal, and how much better another must be for the present candidate to
be left."""


SHORTEST_S, LONGEST_S = 1e-6, 256.0
"""Bounds of the buckets: the quickest call that Python can make, and longer than any hang that is waited for."""

STEPS = 8
"""Buckets to each power of two: a quantile is at most 4.5 % off, less than runs differ by."""

HALF_LIFE = 512
"""Runs after which one weighs half: p99 then rests on the 740 latest runs, seven of which are beyond it."""

_COUNT = math.ceil(math.log2(LONGEST_S / SHORTEST_S) * STEPS) + 2
_SCALE, _OFFSET = STEPS / math.log(2.0), -math.log2(SHORTEST_S) * STEPS + 1.0
_GROWTH = 2.0 ** (1.0 / HALF_LIFE)
_HUGE = 1e100


class Histogram:
    """Seconds in buckets whose bounds grow by 2^(1/8). Instead of decaying all, each new run weighs a little more than
    the last."""

    __slots__ = ("_weight", "_weights", "runs")

    def __init__(self) -> None:
        self.runs = 0
        self._weight = 1.0
        self._weights = [0.0] * _COUNT

    def add(self, seconds: float) -> None:
        """Counts a run. O(1), less than 1 us."""
        self.runs += 1
        bucket = int(math.log(seconds) * _SCALE + _OFFSET) if seconds > SHORTEST_S else 0
        self._weights[bucket if bucket < _COUNT else _COUNT - 1] += self._weight
        self._weight *= _GROWTH
        if self._weight > _HUGE:
            self._weights = [w / _HUGE for w in self._weights]
            self._weight = 1.0

    def quantile(self, part: float) -> float:
        """The latency in seconds that `part` of the runs, 0 to 1, stay below; NaN before the first run."""
        total = sum(self._weights)
        left = part * total
        if not total:
            return math.nan
        for bucket, weight in enumerate(self._weights):
            if weight and left <= weight:
                return _lower(bucket + min(left / weight, 1.0))
            left -= weight
        return LONGEST_S

    def below(self, seconds: float) -> float:
        """The part of the runs, 0 to 1, that took at most this long; NaN before the first run."""
        total = sum(self._weights)
        if not total:
            return math.nan
        place = math.log(max(seconds, SHORTEST_S)) * _SCALE + _OFFSET
        bucket = min(int(place), _COUNT - 1)
        return (sum(self._weights[:bucket]) + self._weights[bucket] * min(place - bucket, 1.0)) / total

    def as_dict(self) -> dict[str, float | int]:
        """runs, and p50, p95, p99 in milliseconds."""
        return (
            {"runs": self.runs, **{f"p{p}_ms": self.quantile(p / 100) * 1e3 for p in (50, 95, 99)}}
            if self.runs
            else {"runs": 0}
        )


def _lower(place: float) -> float:
    """The latency at a place among the buckets; a whole number is a bucket's lower bound."""
    return SHORTEST_S * math.exp2((place - 1.0) / STEPS)


class Host(NamedTuple):
    """What the runs of a session share. threads: of a run on the CPU; cores: there; software: the adapter computes on
    the CPU. deadline_s: 0, or how long a run may take. watched: the load is read, and moves runs.
    """

    threads: int = 1
    cores: int = 1
    software: bool = False
    deadline_s: float = 0.0
    watched: bool = False

    def policy(self, idle_s: Mapping[str, float], home: str, present: Policy | None) -> Policy | None:
        """Of candidates with these times on an idle machine, of which `home` is the best: the present one, where it
        knows them all; None where there is nothing to choose.
        """
        longest_s = WITHIN * min(idle_s.values(), default=0.0)
        rivals = {name: s for name, s in idle_s.items() if s <= longest_s}
        if len(rivals) < 2:
            return None
        if present is None or set(present.idle_s) != set(rivals):
            present = Policy(rivals, self.threads, self.software, self.deadline_s)
        present.learn(rivals, home)
        return present


class Policy:
    """Chooses between candidates by predicted latency. Thread-safe; see docs/load.md.

    idle_s: seconds of each candidate on an idle machine, as measured. threads: of the one on the CPU. software: the
    adapter computes on the CPU. deadline_s: 0, or how long a run may take.
    """

    def __init__(self, idle_s: Mapping[str, float], threads: int, software: bool, deadline_s: float = 0.0) -> None:
        self.idle_s, self.threads, self.software, self.deadline_s = dict(idle_s), max(threads, 1), software, deadline_s
        self.home = self.current = min(self.idle_s, key=lambda candidate: self.idle_s[candidate])
        self.switches = self.explored = 0
        self.why = "fastest on an idle machine"
        self._lock = threading.Lock()
        self._all = {candidate: Histogram() for candidate in self.idle_s}
        self._by_band = {candidate: [Histogram() for _ in BANDS] for candidate in self.idle_s}
        self._recent = {candidate: [deque[float](maxlen=RECENT) for _ in BANDS] for candidate in self.idle_s}
        self._pending: dict[str, deque[tuple[float, float]]] = {
            candidate: deque(maxlen=16) for candidate in self.idle_s
        }
        self._noted_s = dict.fromkeys(self.idle_s, -math.inf)
        self._bands = {False: 0, True: 0}  # of the GPU's load, of the CPU's
        self._seen: Load | None = None
        self._wish, self._wishes = self.current, 0
        self._dwell_s, self._switched, self._runs = DWELL_S, None, 0
        self._calls, self._explore_at = 0, EXPLORE_EVERY
        self._total_s = self._spent_s = 0.0

    _switched: Load | None

    # ---- the run path

    def choose(self, load: Load) -> str:
        """The candidate for this run. An unknown load moves nothing. Thinks once per reading of the load; else less
        than 1 us."""
        if load.gpu is None or len(self.idle_s) < 2:
            return self.current
        self._calls += 1
        self.follow(load)
        if self._calls >= self._explore_at:
            with self._lock:
                return self._explore(load)
        return self.current

    def follow(self, load: Load) -> str:
        """As `choose`, without a try of what might be better: for those to whom another candidate costs more than a run
        on it."""
        if load.gpu is not None and (self._seen is None or load.when_s != self._seen.when_s):
            with self._lock:
                self._decide(load)
        return self.current

    def went_on(self, runs: int) -> None:
        """So many runs took the candidate of the one before, at the same reading of the load, without asking."""
        self._calls += runs

    def observe(self, candidate: str, seconds: float, load: Load) -> None:
        """Counts a run of a candidate. load: what `choose` was asked with."""
        band = self._bands[self._of_cpu(candidate)]
        with self._lock:
            self._all[candidate].add(seconds)
            self._runs += 1
            self._total_s += seconds
            if candidate != self.current:
                self._spent_s += seconds
            if load.gpu is None:
                return
            self._by_band[candidate][band].add(seconds)
            if load.when_s != self._noted_s[candidate]:
                self._noted_s[candidate] = load.when_s
                self._pending[candidate].append((load.when_s, seconds))

    def learn(self, idle_s: Mapping[str, float], home: str) -> None:
        """What an idle machine takes is known better by now. home: the candidate that is the best there."""
        with self._lock:
            self.idle_s |= {name: s for name, s in idle_s.items() if name in self.idle_s}
            if home in self.idle_s and home != self.home:
                self.current = home if self.current == self.home else self.current
                self.home = home

    # ---- thinking

    def _of_cpu(self, candidate: str) -> bool:
        """Whether the CPU's load, not the GPU's, decides how long a candidate takes."""
        return self.software or candidate == CPU

    def _decide(self, load: Load) -> None:
        """Switches if another candidate has been better at two readings in a row and the present one was kept long
        enough."""
        self._seen = load
        self._settle(load)
        predicted = {candidate: self._predict(candidate, load) for candidate in self.idle_s}
        wish = self._best(predicted, load)
        self._wish, self._wishes = wish, self._wishes + 1 if wish == self._wish else 1
        if wish == self.current or self._wishes < 2:
            return
        last = self._switched
        if last is not None:
            if abs((load.gpu or 0.0) - (last.gpu or 0.0)) > CALM or abs(load.cpu - last.cpu) > CALM:
                self._dwell_s = DWELL_S
            if load.when_s - last.when_s < self._dwell_s or self._runs < 2:
                return
            self._dwell_s = min(2 * self._dwell_s, LONGEST_DWELL_S)
        self.current, self._switched, self._runs = wish, load, 0
        self.switches += 1
        self._explore_at = self._calls + EXPLORE_EVERY
        times = ", ".join(f"{candidate} {s * 1e3:.3g} ms" for candidate, s in predicted.items())
        self.why = (
            f"predicted {times} at GPU load {load.gpu or 0.0:.0%}, CPU load {load.cpu:.0%} of {load.cores} "
            f"cores ({load.source})"
        )

    def _settle(self, load: Load) -> None:
        """Moves the bands; runs of a band that has lasted are believed, others are forgotten."""
        for of_cpu, value in ((False, load.cpu if self.software else load.gpu or 0.0), (True, load.cpu)):
            band = _band(value)
            if band != self._bands[of_cpu]:
                self._bands[of_cpu] = band
                for candidate in self.idle_s:
                    if self._of_cpu(candidate) == of_cpu:
                        self._pending[candidate].clear()
        for candidate, pending in self._pending.items():
            while pending and load.when_s - pending[0][0] >= SETTLE_S:
                self._recent[candidate][self._bands[self._of_cpu(candidate)]].append(pending.popleft()[1])

    def _predict(self, candidate: str, load: Load) -> float:
        """Seconds: the median of what was seen in this band, or else idle time x slowdown."""
        seen = self._recent[candidate][self._bands[self._of_cpu(candidate)]]
        return (
            median(seen)
            if len(seen) >= ENOUGH
            else self.idle_s[candidate] * slowdown(candidate, load, self.threads, self.software)
        )

    def _best(self, predicted: Mapping[str, float], load: Load) -> str:
        """The fastest candidate, or with a deadline the fastest of those that most likely meet it; with the handicap of
        hysteresis."""
        candidates = list(predicted)
        if self.deadline_s:
            chance = {candidate: self._chance(candidate, predicted[candidate]) for candidate in candidates}
            most = max(chance.values())
            candidates = [
                p for p in candidates if chance[p] >= most - (KEEP_CHANCE if p == self.current else SAME_CHANCE)
            ]
        free = (self.home, self.current)
        return min(
            candidates,
            key=lambda p: (predicted[p] if p in free else predicted[p] * LEAVE + TRIFLE_S, p != self.current),
        )

    def _chance(self, candidate: str, predicted_s: float) -> float:
        """The part of runs that meet the deadline: as seen in this band, or of a log-normal distribution around the
        prediction."""
        seen = self._by_band[candidate][self._bands[self._of_cpu(candidate)]]
        if seen.runs >= RECENT:
            return seen.below(self.deadline_s)
        return 0.5 * (1.0 + math.erf(math.log(self.deadline_s / predicted_s) / SPREAD / math.sqrt(2.0)))

    def _explore(self, load: Load) -> str:
        """One run of a candidate that could be the better one, if the time for that has been saved up."""
        self._explore_at = self._calls + EXPLORE_EVERY
        now_s = self._predict(self.current, load)
        saved_s = EXPLORE_SHARE * self._total_s - self._spent_s
        worth_s = max(
            now_s, self.deadline_s if self.deadline_s and self._chance(self.current, now_s) < 1.0 - SAME_CHANCE else 0.0
        )
        able = [
            p
            for p in self.idle_s
            if p != self.current and self.idle_s[p] < worth_s and self._predict(p, load) <= saved_s
        ]
        if not able:
            return self.current
        self.explored += 1
        return min(able, key=lambda p: self._noted_s[p])

    # ---- what came of it

    def as_dict(self) -> dict[str, object]:
        """The present candidate, why, and for each candidate its runs and p50, p95, p99 in milliseconds, over all and
        by band of load."""
        with self._lock:
            candidates = {
                candidate: {
                    "idle_ms": self.idle_s[candidate] * 1e3,
                    **self._all[candidate].as_dict(),
                    "bands": {b: h.as_dict() for b, h in zip(BANDS, self._by_band[candidate], strict=True) if h.runs},
                }
                for candidate in self.idle_s
            }
            return {
                "current": self.current,
                "home": self.home,
                "why": self.why,
                "switches": self.switches,
                "explored": self.explored,
                "deadline_ms": self.deadline_s * 1e3,
                "candidates": candidates,
            }


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


def _band(value: float) -> int:
    return sum(value > edge for edge in EDGES)
