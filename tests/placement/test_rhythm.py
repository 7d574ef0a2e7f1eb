"""Classes of rest, and a GPU that wakes up."""

from __future__ import annotations

import pytest

from ort_gpu_ep.placement.rhythm import (
    BEGINS,
    BUSY,
    CONCURRENT,
    ENDS,
    PAUSED,
    RARE,
    RECENT,
    RESTS_S,
    Rhythm,
    rest_class,
)
from ort_gpu_ep.utilization import AWAKE_S, Uses


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-0.1, BUSY),
        (0.02, BUSY),
        (RESTS_S[0], BUSY),
        (0.1, PAUSED),
        (0.2, PAUSED),
        (RESTS_S[1], PAUSED),
        (0.4, RARE),
        (9.0, RARE),
    ],
)
def test_classes(seconds: float, expected: str) -> None:
    assert rest_class(seconds) == expected


def pauses(rhythm: Rhythm, *seconds: float) -> list[str]:
    """The rhythm at the begin of runs that come after these pauses, and take 1 ms."""
    now_s, found = 50.0, []
    rhythm.begin(now_s)
    rhythm.end(now_s)
    for pause_s in seconds:
        now_s += pause_s
        rhythm.begin(now_s)
        found.append(rhythm.rest)
        rhythm.end(now_s := now_s + 1e-3)
    return found


def test_a_rhythm_is_the_median_of_three_pauses() -> None:
    assert pauses(Rhythm(Uses()), 0.2, 0.2) == [PAUSED, PAUSED]
    assert pauses(Rhythm(Uses()), 0.0, 0.0, 0.2, 0.0, 0.0) == [BUSY] * 5
    assert pauses(Rhythm(Uses()), 0.0, 0.0, 0.2, 0.2, 0.2, 9.0, 9.0) == [BUSY, BUSY, BUSY, PAUSED, PAUSED, PAUSED, RARE]


def test_what_others_do_with_the_gpu_keeps_it_awake() -> None:
    uses = Uses()
    rhythm = Rhythm(uses)
    rhythm.begin(1.0)
    rhythm.end(1.0)
    uses.begin(1.39)
    uses.end(1.4)
    rhythm.begin(1.41)
    assert rhythm.rest == BUSY


def test_a_gpu_wakes_up_by_work_and_sleeps_by_rest() -> None:
    uses, now_s = Uses(), 10.0
    assert not uses.awake(now_s)
    while now_s < 10.0 + AWAKE_S:
        assert not uses.awake(now_s)
        uses.begin(now_s)
        uses.end(now_s := now_s + 5e-3)
    assert uses.awake(now_s)
    assert uses.awake(now_s + 0.02)
    assert not uses.awake(now_s + 0.1)
    assert Uses(sleeps=False).awake(now_s)


def test_runs_are_concurrent_from_one_mean_to_below_another() -> None:
    """Each edge belongs to it: runs that reach the upper one are, and those at the lower one still are."""
    rhythm, now_s = Rhythm(Uses()), 50.0
    rests = []
    for mean in (0.0, BEGINS - RECENT, BEGINS, ENDS, ENDS - RECENT, ENDS):
        now_s += 1e-3
        rhythm.others = 0.0  # so that one run makes the mean what it is to be
        rhythm.begin(now_s, round(mean / RECENT))
        rhythm.end(now_s)
        assert rhythm.others == mean
        rests.append(rhythm.rest)
    assert rests == [BUSY, BUSY, CONCURRENT, CONCURRENT, BUSY, BUSY]
