"""The histogram of latencies agrees with numpy's quantiles, forgets, and is quick."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_gpu_ep.placement.latency import HALF_LIFE, LONGEST_S, STEPS, Histogram
from tests.patience import steps

SECONDS = st.floats(2e-6, 200.0)


def filled(values: list[float]) -> Histogram:
    made = Histogram()
    for value in values:
        made.add(value)
    return made


@given(st.lists(SECONDS, min_size=1, max_size=60), st.sampled_from([0.05, 0.5, 0.95]))
def test_quantiles_lie_between_neighbours(values: list[float], part: float) -> None:
    """Within a bucket's width of the values around that place; the weights of 60 runs differ by 8 %, so a place by
    5."""
    ordered, got = sorted(values), filled(values).quantile(part)
    place = part * len(values)
    low, high = ordered[max(int(place - 5), 0)], ordered[min(math.ceil(place + 5), len(values) - 1)]
    assert low / 1.1 <= got <= high * 1.1


def test_quantiles_of_a_distribution(rng: np.random.Generator) -> None:
    values = rng.lognormal(math.log(3e-3), 0.4, 5000)
    made = filled(list(values))
    for part in (0.5, 0.95, 0.99):
        assert made.quantile(part) == pytest.approx(np.quantile(values, part), rel=0.12)
    assert made.below(3e-3) == pytest.approx(0.5, abs=0.05)
    assert made.below(1e-5) == 0.0
    assert made.below(100.0) == 1.0


def test_recent_runs_weigh_more() -> None:
    made = filled([1.0] * 10 * HALF_LIFE + [0.001] * 2 * HALF_LIFE)
    assert made.quantile(0.5) == pytest.approx(0.001, rel=0.1)
    assert made.below(0.01) == pytest.approx(0.75, abs=0.01)  # two half-lives
    assert made.runs == 12 * HALF_LIFE


def test_the_weights_stay_finite() -> None:
    made = Histogram()
    made._weight = 9e99
    for _ in range(200):
        made.add(0.01)
    assert made._weight < 1e10
    assert made.quantile(0.5) == pytest.approx(0.01, rel=0.1)


def test_a_place_within_a_bucket() -> None:
    """Runs that are alike are spread over the width of their bucket."""
    made = filled([0.01] * 8)
    assert made.quantile(0.75) / made.quantile(0.25) == pytest.approx(2 ** (0.5 / STEPS), rel=1e-3)


def test_extremes() -> None:
    assert math.isnan(Histogram().quantile(0.5))
    assert math.isnan(Histogram().below(1.0))
    assert Histogram().as_dict() == {"runs": 0}
    assert filled([0.0]).quantile(0.5) <= 1e-6
    assert filled([1e9]).quantile(0.5) > filled([LONGEST_S]).quantile(0.5) >= LONGEST_S / 1.1
    assert set(filled([0.002]).as_dict()) == {"runs", "p50_ms", "p95_ms", "p99_ms"}


def test_adding_is_quick() -> None:
    made = Histogram()
    assert steps(lambda: made.add(0.0123)) < 150
