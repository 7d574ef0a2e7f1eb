"""Slots: whatever is alive at the same time has memory of its own, and the order respects who needs whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_gpu_ep.kernels.target import OFFSET_ALIGNMENT
from ort_gpu_ep.scheduler.lifetime import (
    MEMORY_FOR_PARALLELISM,
    PARALLEL_NBYTES,
    UNUSED_NBYTES,
    assign_slots,
)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[tuple[str, ...]], list[int], dict[str, int]]:
    """Dispatches in a legal order: dispatch i writes v<i> (sometimes a second value) and reads earlier ones. Some
    values are outside."""
    uses: list[tuple[str, ...]] = []
    levels: list[int] = []
    sizes: dict[str, int] = {}
    level_of: dict[str, int] = {}
    for i in range(draw(st.integers(1, 16))):
        earlier = list(level_of)
        reads = draw(st.lists(st.sampled_from(earlier), max_size=3)) if earlier else []
        writes = [f"v{i}", f"t{i}"][: draw(st.integers(1, 2))]
        level = max((level_of[r] for r in reads), default=0)
        uses.append((*reads, "input", *writes))
        levels.append(level)
        for name in writes:
            level_of[name] = level + 1
            if draw(st.integers(0, 5)):
                sizes[name] = draw(st.integers(0, 5000))
    return uses, levels, sizes


@given(programs())
def test_live_values_never_share_a_slot(program: tuple[list[tuple[str, ...]], list[int], dict[str, int]]) -> None:
    uses, levels, sizes = program
    order, slot_of, _ = assign_slots(uses, levels, sizes)
    times = {name: [t for t, i in enumerate(order) if name in uses[i]] for name in sizes}
    for a in sizes:
        for b in sizes:
            if a < b and slot_of[a] == slot_of[b]:
                assert times[a][-1] < times[b][0] or times[b][-1] < times[a][0], (
                    f"{a} and {b} are alive at once in slot {slot_of[a]}"
                )


@given(programs())
def test_every_value_fits_its_slot(program: tuple[list[tuple[str, ...]], list[int], dict[str, int]]) -> None:
    uses, levels, sizes = program
    _, slot_of, slots = assign_slots(uses, levels, sizes)
    assert set(slot_of) == set(sizes)
    assert set(slot_of.values()) == set(range(len(slots)))
    assert all(slots[slot_of[n]] >= max(nbytes, 4) for n, nbytes in sizes.items())
    assert all(nbytes % OFFSET_ALIGNMENT == 0 for nbytes in slots)
    assert sum(slots) <= sum(-(-max(n, 4) // OFFSET_ALIGNMENT) * OFFSET_ALIGNMENT for n in sizes.values())


@given(programs())
def test_nothing_runs_before_what_it_needs(program: tuple[list[tuple[str, ...]], list[int], dict[str, int]]) -> None:
    uses, levels, sizes = program
    order, _, _ = assign_slots(uses, levels, sizes)
    assert sorted(order) == list(range(len(uses)))
    position = {i: t for t, i in enumerate(order)}
    for i, names in enumerate(uses):
        for name in names:
            if name != "input" and int(name[1:]) != i:
                assert position[int(name[1:])] < position[i]


def test_a_chain_needs_two_slots() -> None:
    uses = [("x", "a"), ("a", "b"), ("b", "c"), ("c", "d"), ("d", "y")]
    _, slot_of, slots = assign_slots(uses, [0, 1, 2, 3, 4], dict.fromkeys("abcd", 1000))
    assert slots == [1024, 1024]
    assert slot_of["a"] == slot_of["c"] != slot_of["b"] == slot_of["d"]


@pytest.mark.parametrize("nbytes", [300, 512])
def test_best_fit(nbytes: int) -> None:
    uses = [("a",), ("b",), ("a", "b", "c"), ("c", "d"), ("d", "y")]
    _, slot_of, slots = assign_slots(uses, [0, 1, 2, 3, 4], {"a": 4096, "b": 512, "c": 256, "d": nbytes})
    assert slot_of["d"] == slot_of["b"]
    assert slots == [4096, 512, 256]


def test_independent_branches_stay_parallel_while_memory_allows() -> None:
    """Two dispatches of one level may share no slot; if that took much more memory, the given order wins. Some memory
    is nothing."""
    small = [("x", "a"), ("a", "b"), ("x", "c"), ("c", "d"), ("b", "d", "y")]
    levels, large = [0, 1, 0, 1, 2], 2 * PARALLEL_NBYTES
    for most in (large, PARALLEL_NBYTES // 2):
        order, _, _ = assign_slots(small, levels, {"a": 256, "b": most, "c": 256, "d": most})
        assert order == [0, 2, 1, 3, 4]
    order, slot_of, slots = assign_slots(small, levels, {"a": large, "b": 256, "c": large, "d": 256})
    assert order == [0, 1, 2, 3, 4]
    assert slot_of["a"] == slot_of["c"]
    assert sum(slots) * MEMORY_FOR_PARALLELISM < 2 * large + 2 * 256


def test_many_branches_stay_parallel_where_they_take_little_memory() -> None:
    """Many times the least, and less than PARALLEL_NBYTES."""
    uses = [use for k in range(8) for use in (("x", f"a{k}"), (f"a{k}", f"b{k}"))]
    for nbytes, order in (
        (PARALLEL_NBYTES // 16, [*range(0, 16, 2), *range(1, 16, 2)]),
        (PARALLEL_NBYTES, [*range(16)]),
    ):
        assert assign_slots(uses, [0, 1] * 8, {f"a{k}": nbytes for k in range(8)})[0] == order


LEVELS = [0, 1, 1, 2, 2]
BRANCHES = [("x", "a"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "e")]


def test_what_branches_write_was_not_used_before() -> None:
    """But for the first of a level: a barrier stands in front of it anyway."""
    order, slot_of, slots = assign_slots(BRANCHES, LEVELS, dict.fromkeys("abcde", 1000), [0, 1, 2, 1, 2])
    assert order == [0, 2, 1, 4, 3]
    assert slot_of["e"] == slot_of["a"]
    assert slot_of["d"] not in {slot_of[n] for n in "abc"}
    assert slots == [1024] * 4


def test_slots_that_were_not_used_are_limited() -> None:
    """Where a value takes long to write itself, and where all of them take too much."""
    _, slot_of, _ = assign_slots(
        BRANCHES, LEVELS, {**dict.fromkeys("abce", 256), "a": UNUSED_NBYTES + 1, "d": UNUSED_NBYTES + 1}
    )
    assert slot_of["d"] == slot_of["a"]
    many = 40
    uses = [("x", "a0"), ("a0", "b0")] + [(f"{kind}{k - 1}", f"{kind}{k}") for k in range(1, many) for kind in "ab"]
    levels = [0, 0] + [k for k in range(1, many) for _ in "ab"]
    uses[1] = ("x", "b0")
    _, _, slots = assign_slots(uses, levels, {name: UNUSED_NBYTES for use in uses for name in use if name != "x"})
    assert 2 * UNUSED_NBYTES + PARALLEL_NBYTES // 2 < sum(slots) <= 3 * UNUSED_NBYTES + PARALLEL_NBYTES
