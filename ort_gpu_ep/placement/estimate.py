"""Estimates a candidate's time from the size of its inputs, with an uncertainty, from its measured runs. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

RECENT, ENOUGH = 9, 3
"""Runs of a size that count, the latest; and how many of them need no support by other sizes."""

SHARED, SHARED_NOISE = 256, 0.5
"""Runs of a size that count where others are under way at the same time, and the standard deviation of the logarithm of
one's time."""

TAIL = 64
"""From so many of them on, the longest count."""

KEPT, NEAR = 64, 24
"""Sizes that are remembered, and the nearest ones that a prediction for another size rests on."""

NOISE = 0.1
"""Standard deviation of the logarithm of a steady run's time: where fewer than ENOUGH runs tell, and at least half of
it where they do."""

AGE_S, AGEING = 30.0, 0.02
"""After AGE_S a time is less certain by AGEING, and as much again with each doubling: machines change."""

BENDS = 0.08
"""Standard deviation of the logarithm of what one size takes around what its neighbours promise: tiles fit one better
than the next."""

GROWTH = 0.5
"""Standard deviation of the part of a time that is assumed to grow with the work."""

LOCAL = 2.0
"""Between known sizes, one that is farther off than the nearest by half a doubling counts half."""

ROUNDS = 4
"""Rounds of the robust fit: a size that lies off it by as much as is expected counts half in the next."""


@dataclass(frozen=True, slots=True)
class Size:
    """What distinguishes inputs. key: their names and shapes. work: their number of elements, at least 1."""

    key: Hashable
    work: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """seconds of a run. spread: standard deviation of its logarithm. runs: of this very size that it rests on; 0:
    predicted from others.

    sizes: how many others it rests on. loaded: the runs are those of an earlier session. least_s: the quickest of few
    runs. median_s: of the runs, where seconds is more because their tail counts. raced: they were measured side by side
    with other candidates', all at once.
    """

    seconds: float
    spread: float
    runs: int = 0
    sizes: int = 0
    loaded: bool = False
    least_s: float = math.inf
    median_s: float = math.inf
    raced: bool = False

    @property
    def low_s(self) -> float:
        """What a run hardly ever falls below: two standard deviations, or the quickest of few runs: disturbances only
        make them longer."""
        return min(self.seconds * math.exp(-2.0 * self.spread), self.least_s)

    def slower(self, factor: float, spread: float) -> Estimate:
        """The same under circumstances that make a run slower by about this factor; never faster than it is without
        them."""
        return Estimate(self.seconds * factor, math.hypot(self.spread, spread), 0, self.sizes, self.loaded)


class _Cell:
    """The latest runs of one size."""

    __slots__ = ("loaded", "raced", "recent", "when_s", "work")

    def __init__(self, work: float) -> None:
        self.work, self.recent, self.when_s = work, deque[float](maxlen=RECENT), 0.0
        self.loaded = self.raced = False

    @property
    def seconds(self) -> float:
        return median_low(self.recent)

    @property
    def least_s(self) -> float:
        return min(self.recent) if len(self.recent) < RECENT else math.inf

    @property
    def median_s(self) -> float:
        return math.inf

    def estimate(self, now_s: float) -> Estimate:
        return Estimate(
            self.seconds, self.spread(now_s), len(self.recent), 0, self.loaded, self.least_s, self.median_s, self.raced
        )

    def add(self, seconds: float, now_s: float) -> None:
        if self.raced:  # counts as two runs from now on
            middle = self.seconds
            self.recent.clear()
            self.recent.extend((middle, middle))
        self.recent.append(seconds)
        self.when_s, self.loaded, self.raced = now_s, False, False

    def spread(self, now_s: float) -> float:
        n, middle = len(self.recent), self.seconds
        noise = NOISE
        if n >= ENOUGH:  # 1.48: of a normal distribution, the standard deviation over the median distance
            noise = max(NOISE / 2, 1.48 * median_low([abs(s - middle) for s in self.recent]) / middle)
        return math.hypot(noise / math.sqrt(n), _ageing(now_s - self.when_s))


class _Shared(_Cell):
    """The latest runs of one size that had others beside them. Their mean counts, because threads in a loop make 1 /
    mean runs a second, and so does what one in 100 exceeds: seconds is the geometric mean of both. A candidate that
    wins in one and loses more in the other is not the better one. Of few runs it is the median: their tail is mostly
    that of the runs beside them."""

    __slots__ = ()

    def __init__(self, work: float) -> None:
        super().__init__(work)
        self.recent = deque[float](maxlen=SHARED)

    @property
    def seconds(self) -> float:
        if len(self.recent) < TAIL:
            return self.median_s
        ordered = sorted(self.recent)
        return math.sqrt(sum(ordered) / len(ordered) * ordered[math.ceil(0.99 * len(ordered)) - 1])

    @property
    def median_s(self) -> float:
        return median_low(self.recent)

    @property
    def least_s(self) -> float:
        return math.inf

    def spread(self, now_s: float) -> float:
        return math.hypot(SHARED_NOISE / math.sqrt(len(self.recent)), _ageing(now_s - self.when_s))


class Times:
    """What one candidate takes over sizes, in one rhythm.

    grows: the part of its time that is assumed to grow with the work, until two sizes tell. shared: other runs are
    under way meanwhile.
    """

    def __init__(self, grows: float, shared: bool = False) -> None:
        self.grows, self._cell = grows, _Shared if shared else _Cell
        self._cells: dict[Hashable, _Cell] = {}

    def __bool__(self) -> bool:
        return bool(self._cells)

    def add(self, size: Size, seconds: float, now_s: float) -> None:
        """Counts a steady run."""
        cell = self._cells.get(size.key)
        if cell is None:
            cell = self._cells[size.key] = self._cell(size.work)
            if len(self._cells) > KEPT:
                self._cells.pop(
                    min(self._cells, key=lambda key: self._cells[key].when_s if key != size.key else math.inf)
                )
        cell.add(seconds, now_s)

    def race(self, size: Size, seconds: float, runs: int, now_s: float) -> None:
        """Counts runs that were measured in turn with other candidates'."""
        self.load(size, seconds, runs, now_s)
        self._cells[size.key].loaded, self._cells[size.key].raced = False, True

    def runs(self, size: Size) -> int:
        """Those of this session, one by one, that count of this size."""
        cell = self._cells.get(size.key)
        return len(cell.recent) if cell is not None and not (cell.raced or cell.loaded) else 0

    def quickest_s(self, size: Size) -> float:
        """The shortest of the latest runs of this size; infinite where there was none."""
        cell = self._cells.get(size.key)
        return min(cell.recent) if cell is not None else math.inf

    def load(self, size: Size, seconds: float, runs: int, now_s: float) -> None:
        """Puts in what an earlier session found; no more than a few runs of this one outweigh it."""
        cell = self._cells[size.key] = self._cell(size.work)
        cell.recent.extend([seconds] * min(max(runs, 1), ENOUGH))
        cell.when_s, cell.loaded = now_s, True

    def forget(self, size: Size) -> None:
        """Its runs so far say nothing about those to come."""
        self._cells.pop(size.key, None)

    def dump(self) -> Iterator[tuple[Size, float, int]]:
        """(size, median seconds, runs) of each size."""
        for key, cell in list(self._cells.items()):
            yield Size(key, cell.work), cell.seconds, len(cell.recent)

    def at(self, size: Size, now_s: float) -> Estimate | None:
        """What a run of this size takes; None where nothing is known."""
        own = self._cells.get(size.key)
        mine = own.estimate(now_s) if own is not None else None
        if own is not None and mine is not None and (len(own.recent) >= ENOUGH or len(self._cells) == 1):
            return mine
        others = self._fit(size, now_s) if len(self._cells) > (own is not None) else None
        return joined(mine, others) if mine is not None and others is not None else mine or others

    def _fit(self, size: Size, now_s: float) -> Estimate:
        """From the nearest other sizes, of which near ones count most, and one that fits badly little; and from what is
        assumed of growth.

        Between them it is a straight line in logarithms, which follows bends; beyond them a straight line. Its
        uncertainty is that of the line there: sizes close to each other say little about those far away.
        """
        cells = sorted(
            (c for key, c in self._cells.items() if key != size.key), key=lambda c: _octaves(c.work, size.work)
        )[:NEAR]
        near, works = cells[0], [c.work for c in cells]
        octaves, inside = _octaves(near.work, size.work), min(works) <= size.work <= max(works)
        local = LOCAL if inside else 1.0
        points = [
            (
                c.work,
                c.seconds,
                math.hypot(NOISE / math.sqrt(len(c.recent)), BENDS),
                1.0 + (local * (_octaves(c.work, size.work) - octaves)) ** 2,
            )
            for c in cells
        ]
        if inside:
            seconds, spread = _line(
                [(math.log(w), math.log(t), d, d * d * far) for w, t, d, far in points], math.log(size.work), self.grows
            )
            seconds = math.exp(seconds)
        else:
            seconds, spread = _line(
                [(w, t, t * d, (t * d) ** 2 * far) for w, t, d, far in points], size.work, self.grows, True
            )
            least, most = min(_grown(c, size, min) for c in cells), max(_grown(c, size, max) for c in cells)
            seconds = min(max(seconds, least), most)
            spread /= seconds
        return Estimate(
            seconds, math.hypot(near.spread(now_s), spread, BENDS), 0, len(cells), all(c.loaded for c in cells)
        )


def _grown(cell: _Cell, size: Size, bound: Callable[[float, float], float]) -> float:
    """A bound of what another size takes: as much as this one, or more or less by the square of the work."""
    return cell.seconds * bound((size.work / cell.work) ** 2, 1.0)


def _ageing(age_s: float) -> float:
    return AGEING * math.log2(1.0 + max(age_s, 0.0) / AGE_S)


def _octaves(a: float, b: float) -> float:
    return abs(math.log2(a / b))


def joined(mine: Estimate, others: Estimate) -> Estimate:
    """Two opinions, each by its certainty. Where they contradict each other, the result is less certain by as much: the
    ratio of Birge.

    A run that something disturbed is so no reason to leave a candidate alone.
    """
    a, b = mine.spread**-2, others.spread**-2
    middle = (a * math.log(mine.seconds) + b * math.log(others.seconds)) / (a + b)
    apart = abs(math.log(mine.seconds / others.seconds)) / math.hypot(mine.spread, others.spread)
    return replace(mine, seconds=math.exp(middle), spread=max(apart, 1.0) * (a + b) ** -0.5, sizes=others.sizes)


def _line(
    points: Sequence[tuple[float, float, float, float]], at: float, grows: float, relative: bool = False
) -> tuple[float, float]:
    """(y at a place, its uncertainty) of a line by points (x, y, standard deviation, variance that it counts by): least
    squares, outliers weighing less. It rises as `grows` says, as far as the points don't say otherwise, and never
    falls. relative: to y / x.
    """
    weights = [1.0 / variance for *_, variance in points]
    y = spread = 0.0
    for _ in range(ROUNDS):
        total = sum(weights)
        mean_x = sum(k * p[0] for k, p in zip(weights, points, strict=True)) / total
        mean_y = sum(k * p[1] for k, p in zip(weights, points, strict=True)) / total
        unit = mean_y / mean_x if relative else 1.0
        prior = (GROWTH * unit) ** -2
        across = prior + sum(k * (p[0] - mean_x) ** 2 for k, p in zip(weights, points, strict=True))
        along = prior * grows * unit + sum(
            k * (p[0] - mean_x) * (p[1] - mean_y) for k, p in zip(weights, points, strict=True)
        )
        slope = max(along / across, 0.0)
        y, spread = mean_y + slope * (at - mean_x), math.sqrt(1.0 / total + (at - mean_x) ** 2 / across)
        off = [(mean_y + slope * (x - mean_x) - y_here) / deviation for x, y_here, deviation, _ in points]
        weights = [1.0 / (variance * (1.0 + d * d)) for (*_, variance), d in zip(points, off, strict=True)]
    return y, spread
