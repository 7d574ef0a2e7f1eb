"""tests/daily.py: what is left to the night is the rest, and every day has each value. And what scripts/mutate.py names
is there."""

from __future__ import annotations

from importlib import import_module
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.daily import TIMES, part


@pytest.mark.parametrize("axes", [("abcdef", "xyz"), ("ab", "uvw", "xyz"), ([1, 2], [3, 4], [5, 6, 7], [8, 9])])
def test_each_pair_of_values_is_there_every_day(axes: tuple[list[int], ...]) -> None:
    found = part(*axes)
    assert [each.values for each in found] == list(product(*axes))
    daily = [each.values for each in found if not each.marks]
    assert len(daily) < len(found)
    if len(axes) == 2:
        assert all(sum(case[k] == value for case in daily) >= TIMES for k, axis in enumerate(axes) for value in axis)
    for (i, one), (j, other) in combinations(enumerate(axes), 2) if len(axes) > 2 else ():
        assert {(case[i], case[j]) for case in daily} == set(product(one, other))


def test_a_tuple_stands_for_several_arguments() -> None:
    assert [each.values for each in part([(1, "a"), (2, "b")], [[3]])] == [(1, "a", [3]), (2, "b", [3])]


def test_faults_are_planted_in_files_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """scripts/mutate.py: a file that was moved would have no faults, and its tests nothing to find."""
    root = Path(__file__).resolve().parents[2]
    monkeypatch.syspath_prepend(root / "scripts")
    for area in import_module("mutate").AREAS.values():
        assert all(any((root / "ort_gpu_ep").glob(pattern)) for pattern in area.files), area.files
        assert all((root / test).exists() for test in area.always), area.always
