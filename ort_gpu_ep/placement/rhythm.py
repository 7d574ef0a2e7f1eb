"""How often a session is asked, and whether the GPU has gone to sleep in between. Pure: told the time."""

from __future__ import annotations

import math
from collections import deque

BUSY, PAUSED, RARE = "busy", "paused", "rare"
"""Rest of a GPU between two runs: none to speak of; such that it lowers its clock; longer. See RESTS_S."""

RESTS_S = (0.03, 0.3)
"""Where one class of rest ends and the next begins: an H200 runs as ever after 20 ms, and at 345 of 1,980 MHz after 100."""

RESTS = {BUSY: "less than 30 ms", PAUSED: "30 to 300 ms", RARE: "more than 300 ms"}

AWAKE_S = 0.6
"""How long a GPU that has slept works until its clock is up: an H200 0.4 s, sometimes more."""

LAST = 3
"""Pauses whose median is the rhythm: one pause among quick runs changes nothing, two in three do."""

_ORDER = (BUSY, PAUSED, RARE)


def rest_class(seconds: float) -> str:
    return _ORDER[sum(seconds > edge for edge in RESTS_S)]


class Uses:
    """When this process has used an adapter. sleeps: it is a GPU, not a driver that computes on the CPU. Shared by sessions."""

    def __init__(self, sleeps: bool = True) -> None:
        self.sleeps = sleeps
        self.last_s = self._since_s = -math.inf

    def begin(self, now_s: float) -> None:
        if now_s - self.last_s > RESTS_S[0]:
            self._since_s = now_s

    def end(self, now_s: float) -> None:
        self.last_s = max(self.last_s, now_s)

    def awake(self, now_s: float) -> bool:
        """Whether its clock is up, if a run begins now."""
        return not self.sleeps or (now_s - self.last_s <= RESTS_S[0] and now_s - self._since_s >= AWAKE_S)


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


_uses: dict[str, Uses] = {}


def uses_of(device: str, sleeps: bool) -> Uses:
    """Those of one adapter, the same for all sessions of this process."""
    return _uses.setdefault(device, Uses(sleeps))
