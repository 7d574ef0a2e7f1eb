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


def number(path: Path, text: str) -> float:
    """The first number of a text such as `37` or `37 %`. Raises SourceError, where it begins with something else."""
    first = text.replace("%", " ").split()[:1]
    try:
        return float(first[0])
    except (IndexError, ValueError) as error:
        raise SourceError(f"{path}: got {text.strip()[:40]!r}, expected a number") from error


def clip(part: float) -> float:
    """A measured part, put between 0 and 1: counters that are read one after another may disagree by a little."""
    return min(max(part, 0.0), 1.0)


class Percentage(Source):
    """A file that holds a busy percentage. Raises SourceError, where it can't be read."""

    includes_own = True

    def __init__(self, name: str, path: Path, full: float = 100.0) -> None:
        self.name, self.path, self._full = name, path, full
        self.read()

    def read(self) -> float | None:
        return clip(number(self.path, read_text(self.path)) / self._full)


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
