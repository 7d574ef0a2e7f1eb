"""Fallback for any adapter: times a tiny dispatch and compares it with its time on the idle GPU."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from ort_gpu_ep.load.source import Source, SourceError, clip

BURST = 3
"""Dispatches for each reading: one alone may meet a scheduler's tick."""

FIRST = 16
"""Dispatches for the first baseline; the first ones find cold caches and a sleeping GPU."""


class DispatchProbe(Source):
    """load = 1 - idle time / present time: of a GPU that is shared in turn we get that part less.

    dispatch: runs one and gives its seconds, waiting included. The idle time is the shortest ever seen, so a GPU that
    was busy at first looks less busy than it is, until it was idle once; one that clocks down looks busier. Our own
    runs delay it too (includes_own).

    Raises: SourceError, with what the driver raised.
    """

    name = "timed dispatch"
    includes_own = True
    forkable = False

    def __init__(self, dispatch: Callable[[], float]) -> None:
        self._dispatch = dispatch
        self.idle_s = min(self._time() for _ in range(FIRST))

    def _time(self) -> float:
        try:
            return max(self._dispatch(), 1e-9)
        except Exception as error:  # whatever a driver raises: there is no answer
            raise SourceError(f"timed dispatch: {error!r}") from error

    def read(self) -> float | None:
        times = [self._time() for _ in range(BURST)]
        self.idle_s = min(self.idle_s, *times)
        return clip(1.0 - self.idle_s / median(times))
