"""How long runs took, in buckets: quantiles, and the part that meets a deadline. Pure."""

from __future__ import annotations

import math

from ort_gpu_ep.utilization import BANDS

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


class Latency:
    """Of one candidate: all of its runs, and those at each level of load (utilization.BANDS)."""

    __slots__ = ("by_band", "overall")

    def __init__(self) -> None:
        self.overall, self.by_band = Histogram(), [Histogram() for _ in BANDS]

    def add(self, seconds: float, band: int | None) -> None:
        """band: None where the load is unknown."""
        self.overall.add(seconds)
        if band is not None:
            self.by_band[band].add(seconds)

    def as_dict(self) -> dict[str, object]:
        return {
            **self.overall.as_dict(),
            "bands": {b: h.as_dict() for b, h in zip(BANDS, self.by_band, strict=True) if h.runs},
        }
