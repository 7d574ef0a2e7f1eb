"""What a source of load is, and the small parts that sources share."""

from __future__ import annotations

import time
from pathlib import Path


class SourceError(Exception):
    """A source is absent or can't be read; the message says which path or call, and why."""


class Source:
    """One way to find out how busy an adapter is.

    name: for people. includes_own: whether the reading counts this process's own work too. cost_s: CPU seconds that the
    last reading took outside the calling thread (in a process that it started). forkable: whether the child of a fork
    may read on.
    """

    name: str
    includes_own = False
    cost_s = 0.0
    forkable = True

    def read(self) -> float | None:
        """The busy part, 0 to 1, since the last reading, or over the driver's own period; None where there is no answer
        yet.

        Raises: SourceError.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Gives back what it holds: nothing, if it does not say otherwise."""


def read_text(path: Path) -> str:
    """A small file of the kernel. Raises SourceError with path and reason."""
    try:
        return path.read_text("ascii", "replace")
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from error


def clip(part: float) -> float:
    """A measured part, put between 0 and 1: counters that are read one after another may disagree by a little."""
    return min(max(part, 0.0), 1.0)


class Rate:
    """Seconds of a growing counter in each second that passes: its increase since the last reading."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def __call__(self, count: float, time_s: float | None = None) -> float | None:
        """None at first, and where no time has passed or the counter was reset."""
        now_s = time.monotonic() if time_s is None else time_s
        last, self._last = self._last, (count, now_s)
        if last is None or now_s <= last[1] or count < last[0]:
            return None
        return (count - last[0]) / (now_s - last[1])
