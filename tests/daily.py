"""Tests of each combination of many values: a part of them every day, all at night (`pytest -m nightly` runs the
rest)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest

TIMES = 2
"""How often each value is there, of two axes."""


def part(*axes: Sequence[Any], of_two: int = TIMES) -> list[Any]:
    """Parameters for the product of the axes, in its order. Every day: of three axes or more, each pair of values; of
    two, each value so often.

    A tuple stands for several arguments of the test.
    """
    cases = list(product(*(range(len(axis)) for axis in axes)))
    together, times = (1, of_two) if len(axes) == 2 else (2, 1)
    wanted = {case: list(combinations(enumerate(case), together)) for case in cases}
    seen, chosen = Counter[Any](), set[tuple[int, ...]]()
    while rest := [case for case in cases if case not in chosen and any(seen[w] < times for w in wanted[case])]:
        best = max(
            rest, key=lambda case: (sum(seen[w] < times for w in wanted[case]), -sum(seen[w] for w in wanted[case]))
        )
        chosen.add(best)
        seen.update(wanted[best])
    return [pytest.param(*_flat(axes, case), marks=[] if case in chosen else pytest.mark.nightly) for case in cases]


def half(count: int) -> list[Any]:
    """Seeds: the even ones every day."""
    return [pytest.param(seed, marks=pytest.mark.nightly if seed % 2 else []) for seed in range(count)]


def _flat(axes: Sequence[Sequence[Any]], case: tuple[int, ...]) -> list[Any]:
    values = [axis[k] for axis, k in zip(axes, case, strict=True)]
    return [argument for value in values for argument in (value if isinstance(value, tuple) else (value,))]
