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

BETWEEN, BEYOND, ALONE = 0.05, 0.2, 0.35
"""Uncertainty of a prediction for each doubling of the distance to the nearest known size: between two of them, beyond,
and from one."""

BENDS = 0.08
"""Standard deviation of the logarithm of what one size takes around what its neighbours promise: tiles fit one better
than the next."""

PRIOR = 0.005
"""Weight of the assumed growth, in runs, at a quarter and at four times the nearest size: two sizes that differ by half
outweigh it."""

SPAN = 1.5
"""Largest over smallest of the sizes that tell how a time grows."""

ROUNDS, OUTLIER = 4, 0.1
"""Rounds of the robust fit, and the relative distance from it at which a size counts half."""


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
    runs. median_s: of the runs, where seconds is more because their tail counts.
    """

    seconds: float
    spread: float
    runs: int = 0
    sizes: int = 0
    loaded: bool = False
    least_s: float = math.inf
    median_s: float = math.inf

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

    __slots__ = ("loaded", "recent", "when_s", "work")

    def __init__(self, work: float) -> None:
        self.work, self.recent, self.when_s, self.loaded = work, deque[float](maxlen=RECENT), 0.0, False

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
        return Estimate(self.seconds, self.spread(now_s), len(self.recent), 0, self.loaded, self.least_s, self.median_s)

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
        cell.recent.append(seconds)
        cell.when_s, cell.loaded = now_s, False

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
        return _joined(mine, others) if mine is not None and others is not None else mine or others

    def _fit(self, size: Size, now_s: float) -> Estimate:
        """From the nearest other sizes, of which near ones count most, and one that fits badly little.

        Between them it is a straight line in logarithms, which follows bends; beyond them a straight line.
        """
        cells = sorted(
            (c for key, c in self._cells.items() if key != size.key), key=lambda c: _octaves(c.work, size.work)
        )[:NEAR]
        near, works = cells[0], [c.work for c in cells]
        octaves, inside = _octaves(near.work, size.work), min(works) <= size.work <= max(works)
        points = [
            (c.work, c.seconds, len(c.recent) / (1.0 + (2.0 * (_octaves(c.work, size.work) - octaves)) ** 2))
            for c in cells
        ]
        points += [(near.work * r, near.seconds * (1.0 - self.grows + self.grows * r), PRIOR) for r in (0.25, 4.0)]
        if inside:
            base, slope, off = _line([(math.log(w), math.log(t), k, 1.0) for w, t, k in points])
            seconds = math.exp(base + slope * math.log(size.work))
        else:
            base, slope, off = _line([(w, t, k, t) for w, t, k in points])
            least, most = min(_grown(c, size, min) for c in cells), max(_grown(c, size, max) for c in cells)
            seconds = min(max(base + slope * size.work, least), most)
        each = BETWEEN if inside else BEYOND if max(works) >= SPAN * min(works) else ALONE
        return Estimate(
            seconds,
            math.hypot(near.spread(now_s), each * octaves, off, BENDS),
            0,
            len(cells),
            all(c.loaded for c in cells),
        )


def _grown(cell: _Cell, size: Size, bound: Callable[[float, float], float]) -> float:
    """A bound of what another size takes: as much as this one, or more or less by the square of the work."""
    return cell.seconds * bound((size.work / cell.work) ** 2, 1.0)


def _ageing(age_s: float) -> float:
    return AGEING * math.log2(1.0 + max(age_s, 0.0) / AGE_S)


def _octaves(a: float, b: float) -> float:
    return abs(math.log2(a / b))


def _joined(mine: Estimate, others: Estimate) -> Estimate:
    """Two opinions, each by its certainty. Where they contradict each other, the result is less certain by as much: the
    ratio of Birge.

    A run that something disturbed is so no reason to leave a candidate alone.
    """
    a, b = mine.spread**-2, others.spread**-2
    middle = (a * math.log(mine.seconds) + b * math.log(others.seconds)) / (a + b)
    apart = abs(math.log(mine.seconds / others.seconds)) / math.hypot(mine.spread, others.spread)
    return replace(mine, seconds=math.exp(middle), spread=max(apart, 1.0) * (a + b) ** -0.5, sizes=others.sizes)


def _line(points: Sequence[tuple[float, float, float, float]]) -> tuple[float, float, float]:
    """(y at 0, slope, mean distance in units) of (x, y, weight, unit): least squares, outliers weighing less; it never
    falls."""
    weights = [k / (unit * unit) for _, _, k, unit in points]
    base = slope = 0.0
    far = [0.0]
    for _ in range(ROUNDS):
        total = sum(weights)
        mean_x = sum(k * p[0] for k, p in zip(weights, points, strict=True)) / total
        mean_y = sum(k * p[1] for k, p in zip(weights, points, strict=True)) / total
        across = sum(k * (p[0] - mean_x) ** 2 for k, p in zip(weights, points, strict=True))
        along = sum(k * (p[0] - mean_x) * (p[1] - mean_y) for k, p in zip(weights, points, strict=True))
        slope = max(along / across, 0.0)
        base = mean_y - slope * mean_x
        far = [abs(base + slope * x - y) / unit for x, y, _, unit in points]
        weights = [
            k / (unit * unit) / (1.0 + (d / OUTLIER) ** 2) for (_, _, k, unit), d in zip(points, far, strict=True)
        ]
    off = sum(k * d * u * u for k, d, (_, _, _, u) in zip(weights, far, points, strict=True))
    return base, slope, off / sum(k * u * u for k, (_, _, _, u) in zip(weights, points, strict=True))
