"""Pauses between runs, runs at the same time, and whether the GPU has lowered its clock meanwhile. Pure: told the
time."""

from __future__ import annotations

import math
from collections import deque

from ort_gpu_ep.utilization import SLEEPS_S, Uses

BUSY, PAUSED, RARE, CONCURRENT = "busy", "paused", "rare", "concurrent"
"""Rest of a GPU between two runs: none to speak of; such that it lowers its clock; longer (see RESTS_S). CONCURRENT is
as BUSY, but other threads of this process have runs under way at the same time."""

RESTS_S = (SLEEPS_S, 0.3)
"""Where one class of rest ends and the next begins."""

RESTS = {
    BUSY: "less than 30 ms between runs",
    PAUSED: "30 to 300 ms between runs",
    RARE: "more than 300 ms between runs",
    CONCURRENT: "other runs at the same time",
}

LAST = 3
"""Pauses whose median is the rhythm: one pause among quick runs changes nothing, two in three do."""

RECENT = 1 / 8
"""Weight of a run in the mean number of other runs under way."""

BEGINS, ENDS = 0.5, 0.25
"""From which mean number on runs count as concurrent, and below which they do no more."""

STAYS_S, STAYS_RUNS, REMEMBERED = 2.0, 12.0, 1024.0
"""How long runs without a rest are expected to go on before any were seen; as if so many runs had shown it; and how
many are remembered."""

_ORDER = (BUSY, PAUSED, RARE)


def rest_class(seconds: float) -> str:
    return _ORDER[sum(seconds > edge for edge in RESTS_S)]


class Rhythm:
    """Of one session. rest: the class of rest that the GPU has, or would have, between its runs. last: that before the
    latest run.

    others: the mean number of other runs under way when one begins.
    """

    def __init__(self, uses: Uses) -> None:
        self.uses = uses
        self.rest = self.last = BUSY
        self.others, self._concurrent = 0.0, False
        self._ended_s: float | None = None
        self._seen: deque[str] = deque(maxlen=LAST)
        self._began_s, self._runs = 0.0, 0  # of runs without a rest
        self._stayed, self._weight = STAYS_RUNS * math.log(STAYS_S), STAYS_RUNS

    def begin(self, now_s: float, others: int = 0) -> None:
        """A run is asked for, while other threads have so many under way. The pause before it is the session's own, or
        shorter where others use the GPU."""
        self.others += (others - self.others) * RECENT
        self._concurrent = self.others >= (ENDS if self._concurrent else BEGINS)
        if self._ended_s is None:
            self._began_s = now_s
            return
        if now_s - self._ended_s > SLEEPS_S:
            kept = math.exp(-self._runs / REMEMBERED)
            self._stayed = kept * self._stayed + self._runs * math.log(max(self._ended_s - self._began_s, 1e-3))
            self._weight = kept * self._weight + self._runs
            self._began_s, self._runs = now_s, 0
        self._runs += 1
        self.last = rest_class(min(now_s - self._ended_s, now_s - self.uses.last_s))
        self._seen.append(self.last)
        self.rest = sorted(self._seen, key=_ORDER.index)[(len(self._seen) - 1) // 2]
        if self.rest == BUSY and self._concurrent:
            self.rest = CONCURRENT
        if self.last == BUSY and (self._concurrent or others):
            self.last = CONCURRENT

    def end(self, now_s: float) -> None:
        self._ended_s = now_s

    def stays_s(self, now_s: float) -> float:
        """How much longer runs are expected to follow each other without a rest: as long as those before most runs did
        (the geometric mean over runs), and at least as long again as they do already."""
        past_s = now_s - self._began_s
        return max(past_s, math.exp(self._stayed / self._weight) - past_s)
