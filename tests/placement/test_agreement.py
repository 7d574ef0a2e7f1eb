"""What counts as the CPU's results in a race."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.placement.proof import check_outputs

rng = np.random.default_rng(15)


def never() -> list[Any]:
    raise AssertionError("there was nothing to ask the CPU again")


def check(got: Any, want: Any, again: Any = None) -> None:
    check_outputs(["y"], [got], [want], never if again is None else lambda: [again])


def test_rounding_is_none() -> None:
    want = rng.normal(size=(50, 40)).astype("f")
    check(want * (1 + 1e-5), want)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3.0])
def test_one_float_is_enough(bad: float) -> None:
    want = rng.normal(size=(50, 40)).astype("f").clip(-1, 1)
    got = want.copy()
    got[7, 9] = bad
    with pytest.raises(WrongResultError, match=r"output 'y': 1 of 2000 elements differ .* at \(7, 9\)"):
        check(got, want, want)


def test_some_indices_may_turn_over() -> None:
    want = rng.permutation(1000)
    got = want.copy()
    got[[3, 4]] = got[[4, 3]]
    check(got, want)
    got[:20] += 1
    with pytest.raises(WrongResultError, match="elements differ"):
        check(got, want, want)


def test_counts_may_differ_but_not_ranks_and_types() -> None:
    want = rng.normal(size=(50, 4)).astype("f")
    check(want[:49], want)
    for got in (want[0], want.astype(np.float64)):
        with pytest.raises(WrongResultError, match=r"expected float32\[50, 4\]"):
            check(got, want, want)


def test_what_the_cpu_does_otherwise_each_time_is_not_judged() -> None:
    one, two, three = (rng.normal(size=100).astype("f") for _ in range(3))
    check(one, two, three)


def test_other_outputs_are_left_alone() -> None:
    check(["a"], ["b"])
    check(np.array(["a"]), np.array(["b"]))
