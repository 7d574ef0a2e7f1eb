"""Whether one set of measurements differs from another by more than they differ among themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

DRAWS = 2000
CONFIDENCE = 0.99
"""Of an interval: of twenty models that did not change, one in five comparisons shows one that seems to."""

LEAST = 0.01
"""A smaller change is not worth a line, however sure it is."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Of medians. ratio: new / old. low, high: between these it lies, by bootstrap, with CONFIDENCE."""

    old_ms: float
    new_ms: float
    ratio: float
    low: float
    high: float

    @property
    def is_beyond_noise(self) -> bool:
        return (self.low > 1.0 or self.high < 1.0) and abs(self.ratio - 1.0) > LEAST

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "beyond_noise": self.is_beyond_noise}


def difference(old: Sequence[Sequence[float]], new: Sequence[Sequence[float]], seed: int = 0) -> Difference:
    """Of milliseconds of the runs of each process.

    Runs of one process share what it drew (addresses, cores, clocks), so processes are drawn anew first, then the runs
    of each. With fewer than three processes a side their spread is not known: the interval is then that of runs alone.
    Source: the hierarchical bootstrap.
    """
    random = np.random.default_rng(seed)
    sides = [[np.asarray(runs, float) for runs in side] for side in (old, new)]
    was, now = (float(np.median([np.median(runs) for runs in side])) for side in sides)
    before, after = (_drawn(side, random) for side in sides)
    ratios = after / before
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Difference(was, now, now / was, float(low), float(high))


def _drawn(side: Sequence[np.ndarray], random: np.random.Generator) -> np.ndarray:
    """The medians of medians of DRAWS draws with replacement, [DRAWS]."""
    processes = random.integers(0, len(side), (DRAWS, len(side)))
    medians = np.empty(processes.shape)
    for k, runs in enumerate(side):
        drawn = processes == k
        medians[drawn] = np.median(runs[random.integers(0, len(runs), (int(drawn.sum()), len(runs)))], axis=1)
    return np.asarray(np.median(medians, axis=1))
