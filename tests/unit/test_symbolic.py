"""Sizes that a run brings: arithmetic like that of ints, guards for every answer, one function that gives the
values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.ir.formula import Formula
from ort_gpu_ep.ir.symbolic import (
    CountError,
    Real,
    Size,
    Trace,
    at_most,
    counts_of,
    derived,
    fitted,
    greater,
    hint,
    is_zero,
    largest,
    lesser,
    same,
)
from ort_gpu_ep.scheduler.counts import code_of

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "ceil": lambda a, b: -(-a // b),
    "largest": largest,
    "max": lambda a, b: max(a, b),
    "abs": lambda a, b: abs(a - b),
    "chosen": lambda a, b: a if a > b else b + 1,
}


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Operations on the values so far: the first three are sizes, then 2, 3, 7."""
    return [
        (draw(st.sampled_from(sorted(OPERATIONS))), draw(st.integers(0, 5 + k)), draw(st.integers(0, 5 + k)))
        for k in range(draw(st.integers(1, 8)))
    ]


def computed(program: list[tuple[str, int, int]], sizes: list[Any]) -> list[Any]:
    values = [*sizes, 2, 3, 7]
    for name, a, b in program:
        values.append(OPERATIONS[name](values[a], values[b]))
    return values


@given(
    programs(),
    st.lists(st.integers(0, 50), min_size=3, max_size=3),
    st.lists(st.integers(0, 50), min_size=3, max_size=3),
)
def test_a_formula_gives_what_ints_give(program: list[tuple[str, int, int]], first: list[int], then: list[int]) -> None:
    """For the sizes it was recorded with always; for others what ints give, or nothing where a guard answers
    otherwise."""
    trace = Trace()
    try:
        recorded = computed(program, [trace.symbol(k, n) for k, n in enumerate(first)])
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            computed(program, list(first))
        return
    formula = Formula(trace, recorded)
    assert [hint(v) for v in recorded] == computed(program, list(first))
    assert formula(first) == tuple(computed(program, list(first)))
    again = formula(then)
    assert again is None or again == tuple(computed(program, list(then)))


def sizes(*hints: int) -> tuple[Trace, list[Any]]:
    trace = Trace()
    return trace, [trace.symbol(k, n) for k, n in enumerate(hints)]


def test_equal_formulas_are_known_to_be_equal() -> None:
    trace, (n, length) = sizes(2, 30)
    assert same(math.prod((n, length, 384)), 384 * (length * n))
    assert same(math.prod((n, length, 384)) // (n * 12 * 32), length)
    assert (n * length * 8) % 4 == 0
    assert (n + length) - n == length
    assert [relation for _, relation in trace.guards] == ["=="], "the only question was whether n * 12 * 32 is zero"


def test_sizes_that_happen_to_be_equal_are_not_the_same() -> None:
    trace, (n, length) = sizes(8, 8)
    assert not same(n, length)
    assert not same(n, 8)
    assert n == length
    formula = Formula(trace, [n * length])
    assert formula((9, 9)) == (81,)
    assert formula((8, 9)) is None


@pytest.mark.parametrize(
    "use",
    [
        int,
        range,
        float,
        hash,
        lambda n: [0] * n,
        lambda n: "abcdefgh"[n],
        lambda n: n.bit_length(),
        bool,
        lambda n: np.zeros(n),
        lambda n: {n: 1},
    ],
    ids=["int", "range", "float", "hash", "repeated", "index", "attribute", "bool", "shape", "key"],
)
def test_what_needs_a_number_guards_it(use: Callable[[Any], object]) -> None:
    trace, (n,) = sizes(3)
    use(n)
    formula = Formula(trace, [])
    assert formula((3,)) == ()
    assert (formula((4,)) is None) == (use is not bool), "only its truth was asked for"
    assert formula((0,)) is None


def test_a_hint_guards_nothing() -> None:
    trace, (n,) = sizes(3)
    assert hint(n) == 3
    assert Formula(trace, [n])((400,)) == (400,)


def test_derived_numbers() -> None:
    trace, (n, m) = sizes(3, 12)
    ratio = derived(lambda a, b: a / b, n, m)
    assert isinstance(ratio, Real)
    assert isinstance(derived(lambda r: int(r * 100), ratio), Size)
    assert derived(max, 1, 2) == 2
    assert Formula(trace, [ratio, derived(lambda r: int(r * 100), ratio), n * 0.5])((1, 4)) == (0.25, 25, 0.5)


REAL_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b if b != 0 else a,
    "floordiv": lambda a, b: a // b if b != 0 else a,
    "mod": lambda a, b: a % b if b > 0 else b,
    "floor": lambda a, b: math.floor(a),
    "ceil": lambda a, b: math.ceil(b),
    "trunc": lambda a, b: math.trunc(a),
    "round": lambda a, b: round(b),
    "neg": lambda a, b: -a,
    "abs": lambda a, b: abs(b),
    "max": lambda a, b: max(a, b),
    "at most": lambda a, b: a if a <= b else b,
    "at least": lambda a, b: a if a >= b else b,
    "same": lambda a, b: 1 if a == b else 2.5,
    "other": lambda a, b: a if a != b else 0.5,
    "any": lambda a, b: a if b else 7,
    "number": lambda a, b: float(a),
}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(REAL_OPERATIONS)), st.integers(0, 7), st.integers(0, 7)),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.integers(0, 50), min_size=2, max_size=2),
    st.lists(st.integers(0, 50), min_size=2, max_size=2),
)
def test_floats_of_a_run_are_what_floats_give(
    program: list[tuple[str, int, int]], first: list[int], then: list[int]
) -> None:
    """Mixed with sizes, ints and floats: for other sizes the same, or nothing where a guard answers otherwise."""

    def values(sizes: list[Any]) -> list[Any]:
        found = [*sizes, derived(math.sqrt, sizes[0]), sizes[1] * 0.5, 3, 0.75, -2]
        for name, a, b in program:
            found.append(REAL_OPERATIONS[name](found[a % len(found)], found[b % len(found)]))
        return found

    trace = Trace()
    try:
        recorded = values([trace.symbol(k, n) for k, n in enumerate(first)])
        want = values(list(first))
        formula = Formula(trace, recorded)
        assert formula(first) == tuple(want)
        again, other = formula(then), values(list(then))
    except OverflowError:
        return
    assert again is None or again == tuple(other)


def test_floats_of_a_run_that_are_no_numbers_compare_as_floats_do() -> None:
    trace, (n,) = sizes(3)
    nan, infinite = derived(lambda k: math.nan, n), derived(lambda k: math.inf, n)
    assert nan != derived(float, nan)
    assert nan != 1.0
    assert not any((nan == 1, nan < 1, nan > 1, nan <= 1, nan >= 1, n <= math.nan, n >= math.nan))
    assert infinite > n * 1000
    assert math.isnan(float(nan))
    assert Formula(trace, [])((4,)) == ()


@pytest.mark.parametrize(
    "use",
    [float, int, hash, lambda r: np.float32(r), lambda r: np.array([r], object).astype("f"), lambda r: {r: 1}],
    ids=["float", "int", "hash", "numpy", "array", "key"],
)
def test_what_needs_the_number_of_a_float_guards_it(use: Callable[[Any], object]) -> None:
    trace, (n, m) = sizes(6, 3)
    use(derived(lambda a, b: a / b, n, m))
    formula = Formula(trace, [])
    assert formula((8, 4)) == (), "the same number"
    assert formula((9, 3)) is None


def test_equal_numbers_of_other_types_are_other_arguments() -> None:
    trace, (n,) = sizes(3)
    made = [derived(lambda a, b: str(b).count(".") + 2 * str(b).count("-"), n, b) for b in (1, 1.0, 0.0, -0.0)]
    assert Formula(trace, made)((3,)) == (0, 1, 1, 3)


def test_what_the_range_of_sizes_says_needs_no_guard() -> None:
    trace, (n, m) = sizes(3, 5)
    k = trace.symbol(2, -4, (-10, 10))
    assert all((n >= 0, n * m + 1 > 0, n // 2 >= 0, m % 7 < 7, largest(n, 4) >= 4, k < 11))
    assert not trace.guards
    assert all((n > 0, k < 5))
    assert len(trace.guards) == 2


def test_integers_wrap_around_in_their_type() -> None:
    trace = Trace()
    n, k = trace.symbol(0, 3), trace.symbol(1, 7, (-(2**31), 2**31 - 1))
    assert same(fitted(n + 1, -(2**63), 2**63 - 1), n + 1)
    assert not trace.guards
    low = fitted(k * k, -(2**31), 2**31 - 1)
    assert Formula(trace, [low])((3, 9)) == (81,)
    assert Formula(trace, [low])((3, 2**31 - 1)) is None, "planned anew"
    trace = Trace()
    k = trace.symbol(0, 2**31 - 1, (-(2**31), 2**31 - 1))
    assert Formula(trace, [fitted(k + 1, -(2**31), 2**31 - 1)])((2**31 - 1,)) == (-(2**31),)


def test_numbers_of_numpy() -> None:
    _, (n,) = sizes(3)
    assert n == np.float32(3)
    assert np.float32(2.5) < n
    assert n != np.float64(2.5)
    assert [hint(v) for v in (n + np.float32(0.5), np.float32(0.5) * n)] == [3.5, 1.5]
    assert same(np.int64(2) * n, 2 * n)
    assert [hint(v) for v in np.array([n, 4], object) * 2] == [6, 8]


def test_a_division_that_fails_for_other_sizes_is_an_answer() -> None:
    trace, (n,) = sizes(3)
    formula = Formula(trace, [12 // n])
    assert formula((5,)) == (2,)
    assert formula((0,)) is None


def test_an_answered_question_may_be_asked_again_in_other_terms() -> None:
    """After planning, too: the answer for n * k, and that k is m, say what holds for n * m."""
    trace = Trace()
    n, m, k = (trace.symbol(i, v) for i, v in enumerate((3, 5, 5)))
    assert n * k < 100
    assert k == m
    formula = Formula(trace, [n * k])
    assert n * k < 100
    assert formula((3, 7, 7)) == (21,)
    assert formula((30, 7, 7)) is None
    with pytest.raises(InternalError, match="after planning"):
        _ = n * k < 101


def test_what_an_equality_says_holds_in_all_that_follows() -> None:
    trace, (n, m, k) = sizes(3, 5, 10)
    assert n * k < 100
    assert k == 2 * m
    assert same(n * k + 1, 2 * n * m + 1)
    Formula(trace, [n * k])
    assert 2 * n * m < 100, "the guard says so, in other terms"


def test_an_equality_that_divides_no_number_says_only_itself() -> None:
    trace, (n, m) = sizes(9, 6)
    assert 2 * n == 3 * m
    assert not same(2 * n, 3 * m)
    assert Formula(trace, [n, m])((3, 2)) == (3, 2)
    assert Formula(trace, [n, m])((3, 3)) is None


def test_a_new_question_after_planning_raises() -> None:
    trace, (n,) = sizes(3)
    assert n != 1
    Formula(trace, [n])
    assert n != 1, "this one has its guard"
    with pytest.raises(InternalError, match="asked after planning"):
        _ = n < 7


def test_floats_compare() -> None:
    trace, (n,) = sizes(3)
    assert n < 3.5
    assert n > 2.5
    assert n != 3.5
    assert n == 3.0
    assert n < math.inf
    assert Formula(trace, [])((3,)) == ()


# ---- counts


def _counted(operations: list[tuple[str, int, int]], bounds: tuple[int, int]) -> tuple[Trace, list[Any]]:
    """Values that are calculated from two sizes and two counts, of which the second is bounded by the first."""
    trace = Trace()
    sizes = [trace.symbol(k, n) for k, n in enumerate(bounds)]
    first = trace.count("first", sizes[0] * 2)
    values: list[Any] = [*sizes, first, trace.count("second", first + sizes[1]), 2, 3]
    for name, one, other in operations:
        try:
            values.append(OF_COUNTS[name](values[one % len(values)], values[other % len(values)]))
        except (CountError, ZeroDivisionError):
            values.append(1)
    return trace, values


OF_COUNTS: dict[str, Callable[[Any, Any], Any]] = {
    **{
        name: OPERATIONS[name]
        for name in ("add", "sub", "mul", "floordiv", "mod", "ceil", "largest", "max", "abs", "chosen")
    },
    "lesser": lesser,
    "greater": greater,
    "minimum": lambda a, b: -largest(-a, -b),
    "missing": lambda a, b: a - lesser(a, b),
}


def _results(code: list[int], counts: list[int]) -> list[int]:
    """What sizes.wgsl does with programs."""
    results = []
    for start in code[1 : 1 + code[0]]:
        stack = list[int]()
        for at in range(start, len(code), 2):
            operation, word = code[at : at + 2]
            if operation == 8:
                results.append(stack[-1] & 0xFFFFFFFF)
                break
            if operation < 2:
                stack.append(counts[word] if operation else word - (word >> 31 << 32))
                continue
            right, left = stack.pop(), stack.pop()
            stack.append(
                {
                    2: lambda a, b: a + b,
                    3: lambda a, b: a * b,
                    4: lambda a, b: a // b if b else 0,
                    5: lambda a, b: a % b if b else 0,
                    6: max,
                }[operation](left, right)
            )
    return results


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(OF_COUNTS)), st.integers(0, 13), st.integers(0, 13)), min_size=1, max_size=7
    ),
    st.tuples(st.integers(1, 5), st.integers(1, 4)),
    st.data(),
)
def test_what_is_known_of_a_count_holds_for_all(
    operations: list[tuple[str, int, int]], bounds: tuple[int, int], data: st.DataObject
) -> None:
    """Answers, trends and the most there can be hold for every count; the device's programs calculate what the host
    would."""
    trace, values = _counted(operations, bounds)
    sizes = [v for v in values if counts_of(v)]
    below = []
    for value in sizes:
        for number in (0, 3):
            try:
                below.append((value - number, value < number))
            except CountError:
                continue
    trends = [trace.trend(v.terms) for v in sizes]
    most = [at_most(v) if trend in (0, 1) else 0 for v, trend in zip(sizes, trends, strict=True)]
    programs = []
    for value in sizes:
        try:
            programs.append((value, code_of([(0, value)], ["first", "second"])))
        except CountError:
            continue
    formula = Formula(trace, [*sizes, *(v for v, _ in below), *most, *(v for v, _ in programs)])
    of_codes = Formula(trace, [word for _, code in programs for word in code])
    first = data.draw(st.integers(0, 2 * bounds[0]))
    second = data.draw(st.integers(0, first + bounds[1]))
    got = formula(bounds, {"first": first, "second": second})
    words = of_codes(bounds)
    if got is None or words is None:
        return  # it divides by this count
    assert all((value < 0) == answer for value, (_, answer) in zip(got[len(sizes) :], below, strict=False))
    limits = got[len(sizes) + len(below) :]
    assert all(value <= limit for value, limit, trend in zip(got, limits, trends, strict=False) if trend in (0, 1))
    wanted = [v & 0xFFFFFFFF for v in limits[len(sizes) :]]
    at = 0
    for (_, code), value in zip(programs, wanted, strict=True):
        assert _results(list(words[at : at + len(code)]), [first, second]) == [value]
        at += len(code)


def test_a_count_may_be_none_and_the_most() -> None:
    """Each end of what it can be belongs to it, so neither is ruled out."""
    trace, (n,) = sizes(5)
    count = trace.count("c", n)
    assert not count < 0
    assert not count > n
    assert count <= n
    for relation in (lambda: count > 0, lambda: count < n, lambda: count < 1, lambda: count <= n - 1):
        with pytest.raises(CountError, match="only the run's data tell"):
            relation()


def test_a_count_is_no_number() -> None:
    trace = Trace()
    count = trace.count("count", trace.symbol(0, 7) * 4)
    assert hint(count) == 28
    assert count != 1
    assert count != 0
    assert count % 4
    assert count <= trace.symbol(0, 7) * 4
    assert not -count > 0
    assert is_zero(count + 1) is False
    for asked in (
        lambda: count < 9,
        lambda: int(count),
        lambda: float(count),
        lambda: {count: 1},
        lambda: is_zero(count),
        lambda: [0] * count,
        lambda: derived(math.sqrt, count),
    ):
        with pytest.raises(CountError):
            asked()
    assert not any(counts_of(Size(trace, terms, 0)) for terms, _ in trace.guards)
    assert trace.count("none", 0) == 0
    with pytest.raises(CountError):
        trace.count("other", 30 - count)
