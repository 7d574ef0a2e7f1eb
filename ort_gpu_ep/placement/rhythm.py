"""Pauses between runs, and whether the GPU has lowered its clock meanwhile. Pure: told the time."""

from __future__ import annotations

from collections import deque

from ort_gpu_ep.utilization import SLEEPS_S, Uses

BUSY, PAUSED, RARE = "busy", "paused", "rare"
"""Rest of a GPU between two runs: none to speak of; such that it lowers its clock; longer. See RESTS_S."""

RESTS_S = (SLEEPS_S, 0.3)
"""Where one class of rest ends and the next begins."""

RESTS = {BUSY: "less than 30 ms", PAUSED: "30 to 300 ms", RARE: "more than 300 ms"}

LAST = 3
"""Pauses whose median is the rhythm: one pause among quick runs changes nothing, two in three do."""

_ORDER = (BUSY, PAUSED, RARE)


def rest_class(seconds: float) -> str:
    return _ORDER[sum(seconds > edge for edge in RESTS_S)]


class Rhythm:
    """Of one session. rest: the class of rest that the GPU has, or would have, between its runs. last: that before the latest run."""

    def __init__(self, uses: Uses) -> None:
        self.uses = uses
        self.rest = self.last = BUSY
        self._ended_s: float | None = None
        self._seen: deque[str] = deque(maxlen=LAST)

    def begin(self, now_s: float) -> None:
        """A run is asked for. The pause before it is the session's own, or shorter where others use the GPU."""
        if self._ended_s is None:
            return
        self.last = rest_class(min(now_s - self._ended_s, now_s - self.uses.last_s))
        self._seen.append(self.last)
        self.rest = sorted(self._seen, key=_ORDER.index)[(len(self._seen) - 1) // 2]

    def end(self, now_s: float) -> None:
        self._ended_s = now_s
