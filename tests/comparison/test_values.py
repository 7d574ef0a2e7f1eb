"""How far arrays are from each other, by each measure."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.comparison.values import difference, differences

F = np.float32


def test_equal_arrays() -> None:
    x = np.array([1.0, -0.0, np.nan, np.inf, -np.inf], F)
    found = difference("x", x, x.copy())
    assert (found.absolute, found.relative, found.ulp, found.misplaced) == (0.0, 0.0, 0, 0)
    assert found.within(0.0)


def test_one_representable_number_apart() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        want = np.array([1.0, -3.0, 0.0], dtype)
        got = (
            np.nextafter(want, np.array(10, dtype), dtype=dtype)
            if dtype is not np.float16
            else np.nextafter(want, dtype(10))
        )
        assert difference("x", got, want).ulp == 1


def test_numbers_are_counted_across_zero() -> None:
    tiny = np.nextafter(F(0), F(1))
    assert difference("x", np.array([tiny], F), np.array([-tiny], F)).ulp == 2


def test_measures() -> None:
    found = difference("x", np.array([[1.0, 2.5]], F), np.array([[1.0, 2.0]], F))
    assert found.absolute == 0.5
    assert found.relative == 0.25
    assert found.l2 == pytest.approx(0.5 / 5**0.5)
    assert (found.at, found.got, found.want) == ((0, 1), "2.5", "2.0")
    assert not found.within()
    assert found.within(0.3)
    assert "at [0, 1]: got 2.5, expected 2.0" in str(found)


@pytest.mark.parametrize(
    ("got", "want", "misplaced"),
    [
        ([np.nan, 1.0], [0.0, 1.0], 1),
        ([np.inf, 1.0], [-np.inf, 1.0], 1),
        ([np.inf], [np.inf], 0),
        ([1.0, 1.0], [np.nan, np.inf], 2),
    ],
)
def test_what_is_not_finite_stands_where_the_cpu_has_it(got: list[float], want: list[float], misplaced: int) -> None:
    found = difference("x", np.array(got, F), np.array(want, F))
    assert found.misplaced == misplaced
    assert found.within(1e30) == (misplaced == 0)


@pytest.mark.parametrize(("dtype", "within"), [("uint8", True), ("int8", True), ("int32", False), ("int64", False)])
def test_integers(dtype: str, within: bool) -> None:
    assert difference("x", np.array([3], dtype), np.array([4], dtype)).within(1.0) is within


def test_booleans_and_texts() -> None:
    assert not difference("x", np.array([True]), np.array([False])).within()
    assert difference("x", np.array(["a"], object), np.array(["a"], object)).within()
    assert not difference("x", np.array(["a", "b"], object), np.array(["a", "c"], object)).within()


def test_another_shape_or_type_is_no_match() -> None:
    for got in (np.zeros((2, 3), F), np.zeros((3, 2), np.float64), np.zeros(0, F)):
        found = difference("x", got, np.zeros((3, 2), F))
        assert not found.within(1e30)
        assert json.loads(json.dumps(found.as_dict()))["relative"] is None
    assert difference("x", np.zeros((0, 2), F), np.zeros((0, 2), F)).within()


def test_zero_is_exact() -> None:
    assert not difference("x", np.array([1e-9], F), np.array([0.0], F)).within(0.5)


def test_sequences_are_left_out() -> None:
    x: Any = np.zeros(2, F)
    assert [d.name for d in differences(["a", "b"], [x, [x]], [x, [x]])] == ["a"]
