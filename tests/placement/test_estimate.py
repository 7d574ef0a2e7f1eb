"""What runs of some sizes tell about others, and how surely."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_gpu_ep.placement.estimate import AGE_S, ENOUGH, KEPT, Estimate, Size, Times


def size(work: float) -> Size:
    return Size(work, work)


def learnt(points: dict[float, float], grows: float = 0.5, runs: int = ENOUGH) -> Times:
    times = Times(grows)
    for work, seconds in points.items():
        for _ in range(runs):
            times.add(size(work), seconds, 0.0)
    return times


def at(times: Times, work: float, now_s: float = 0.0) -> Estimate:
    found = times.at(size(work), now_s)
    assert found is not None
    return found


def test_nothing_is_known_of_nothing() -> None:
    times = Times(0.5)
    assert not times
    assert times.at(size(3.0), 0.0) is None


def test_a_size_that_ran_often_enough_is_its_median() -> None:
    times = learnt({10.0: 1e-3, 20.0: 9e-3})
    for seconds in (5e-3, 5.1e-3, 90e-3):
        times.add(size(15.0), seconds, 0.0)
    assert (at(times, 15.0).seconds, at(times, 15.0).runs, at(times, 15.0).sizes) == (5.1e-3, 3, 0)


def test_one_size_tells_of_others_what_is_assumed() -> None:
    times = learnt({10.0: 4e-3}, grows=0.25)
    assert at(times, 10.0).seconds == 4e-3
    assert at(times, 40.0).seconds == pytest.approx(4e-3 * (0.75 + 0.25 * 4), rel=0.01)
    assert at(times, 40.0).spread > 0.5
    assert (at(times, 40.0).runs, at(times, 40.0).sizes) == (0, 1)


@given(st.floats(1e-4, 1e-2), st.floats(0.0, 1e-4), st.integers(0, 99))
@settings(max_examples=60)
def test_a_line_is_found(base_s: float, each_s: float, seed: int) -> None:
    """Within 8 % between the sizes that ran, within 15 % at twice the largest; one run in five is disturbed."""
    rng, times = random.Random(seed), Times(0.5)
    for work in (8.0, 16.0, 40.0, 64.0, 100.0, 128.0):
        for disturbed in (1.0, 1.0, 3.0, 1.0, 1.0):
            times.add(size(work), (base_s + each_s * work) * rng.uniform(1.0, 1.03) * disturbed, 0.0)
    for work, within in ((50.0, 0.08), (120.0, 0.08), (256.0, 0.15)):
        assert at(times, work).seconds == pytest.approx(base_s + each_s * work, rel=within)


def test_a_bend_is_followed() -> None:
    """Attention grows with the square of the length: a straight line through all sizes is off by a factor at both
    ends."""

    def truth(work: float) -> float:
        return 1e-3 + 1e-5 * work + 1e-6 * work * work

    times = learnt({w: truth(w) for w in (8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)})
    for work in (12.0, 90.0, 400.0):
        assert at(times, work).seconds == pytest.approx(truth(work), rel=0.2)


def test_a_size_that_was_disturbed_weighs_little() -> None:
    times = learnt({10.0: 2e-3, 20.0: 2.1e-3, 30.0: 20e-3, 40.0: 2.3e-3, 50.0: 2.4e-3})
    assert at(times, 25.0).seconds == pytest.approx(2.15e-3, rel=0.1)


def test_a_time_never_falls_with_the_work_nor_below_what_is_possible() -> None:
    times = learnt({10.0: 3e-3, 20.0: 2e-3})
    assert at(times, 200.0).seconds >= 0.9 * 2e-3
    steep = learnt({100.0: 1e-3, 110.0: 2e-3})
    assert at(steep, 1.0).seconds > 0.0
    assert at(steep, 1000.0).seconds <= 1.1 * 2e-3 * (1000 / 110) ** 2


def test_certainty_grows_with_runs_and_falls_with_distance_and_age() -> None:
    spreads = [at(learnt({10.0: 1e-3}, runs=n), 10.0).spread for n in (1, 2, 3, 9)]
    assert spreads == sorted(spreads, reverse=True)
    times = learnt({10.0: 1e-3, 20.0: 1.5e-3, 80.0: 4e-3})
    far = [at(times, work).spread for work in (20.0, 40.0, 160.0, 1600.0)]
    assert far == sorted(far)
    aged = [at(times, 20.0, now_s).spread for now_s in (0.0, AGE_S, 100 * AGE_S)]
    assert aged == sorted(aged)
    assert aged[0] < aged[2]


def test_a_noisy_size_is_less_certain() -> None:
    noisy = Times(0.5)
    for seconds in (1e-3, 2e-3, 3e-3, 4e-3, 5e-3):
        noisy.add(size(1.0), seconds, 0.0)
    assert at(noisy, 1.0).spread > 2 * at(learnt({1.0: 3e-3}, runs=5), 1.0).spread


def test_what_an_earlier_session_found_is_outweighed_by_runs() -> None:
    times = Times(0.5)
    times.load(size(1.0), 1e-3, 9, 0.0)
    assert (at(times, 1.0).seconds, at(times, 1.0).loaded) == (1e-3, True)
    for _ in range(ENOUGH + 1):
        times.add(size(1.0), 2e-3, 0.0)
    assert (at(times, 1.0).seconds, at(times, 1.0).loaded) == (2e-3, False)
    assert list(times.dump()) == [(size(1.0), 2e-3, 2 * ENOUGH + 1)]


def test_the_oldest_sizes_go_first() -> None:
    times = Times(0.5)
    for work in range(1, KEPT + 11):
        times.add(size(float(work)), 1e-3, float(work))
    assert [s.work for s, _, _ in times.dump()] == [float(w) for w in range(11, KEPT + 11)]


def test_slower_is_never_faster() -> None:
    base = Estimate(1e-3, 0.1, 3)
    made = base.slower(2.0, 0.5)
    assert (made.seconds, made.runs) == (2e-3, 0)
    assert made.low_s < made.seconds
