"""Order of dispatches, lifetimes of values, and the slots they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES
from ort_gpu_ep.kernels.target import OFFSET_ALIGNMENT

MEMORY_FOR_PARALLELISM = 1.25
PARALLEL_NBYTES = 64 << 20
"""Independent branches next to each other, without barriers, may cost this factor of the memory of the tightest order
tried, or so much beyond it, if that is more: of the networks that are measured, the one with the most branches,
inception_v3, takes 12 MB in its tightest order and 63 MB so."""

UNUSED_NBYTES = DEFAULT_FIGURES.dispatch_nbytes
"""Of a larger value, writing alone takes longer than the barrier that a slot of its own saves."""


def assign_slots(
    uses: Sequence[tuple[str, ...]],
    levels: Sequence[int],
    sizes: Mapping[str, int],
    costs: Sequence[float] = (),
    largest_nbytes: int = UNUSED_NBYTES,
) -> tuple[list[int], dict[str, int], list[int]]:
    """Orders dispatches and gives each value in `sizes` a slot.

    uses: the values that each dispatch reads or writes. levels: depth of each dispatch. sizes: bytes of each slot
    value. costs: of each dispatch, bytes written; the largest of a level comes first: others then run beside it to the
    end, and it is the one that may write to slots used before. largest_nbytes: of a value that gets a slot of its own
    for the sake of a barrier. Returns: order (indices of dispatches), slot of each value, bytes of each slot. Two ways
    are tried: by level, where a slot is reused only in a later level, so that dispatches of a level need no barrier
    between them; and in the given order with immediate reuse, which takes the least memory. Of the first way, what
    dispatches of a level write (but for its first, which has a barrier in front of it anyway) goes to slots that were
    not used before, as far as memory allows: to write again what was read or written needs a barrier.
    """
    by_level = _by_level(levels, costs)
    in_order, times = [uses[i] for i in by_level], [levels[i] for i in by_level]
    shared = sum(_fit(in_order, times, sizes)[1])
    as_given = list(range(len(uses)))
    tight = (as_given, *_fit([uses[i] for i in as_given], as_given, sizes))
    allowed = max(MEMORY_FOR_PARALLELISM * sum(tight[2]), sum(tight[2]) + PARALLEL_NBYTES)
    return tight if shared > allowed else (by_level, *_fit(in_order, times, sizes, allowed - shared, largest_nbytes))


def slots_apart(
    uses: Sequence[tuple[str, ...]],
    levels: Sequence[int],
    sizes: Mapping[str, int],
    costs: Sequence[float] = (),
) -> tuple[list[int], dict[str, int], list[int]]:
    """As `assign_slots`, by level, with a slot for each value: nothing is ever written again."""
    order = _by_level(levels, costs)
    names = dict.fromkeys(name for i in order for name in uses[i] if name in sizes)
    return order, {name: slot for slot, name in enumerate(names)}, [_aligned(sizes[name]) for name in names]


def _by_level(levels: Sequence[int], costs: Sequence[float]) -> list[int]:
    return sorted(range(len(levels)), key=lambda i: (levels[i], -costs[i] if costs else 0, i))


def _aligned(nbytes: int) -> int:
    return -(-max(nbytes, 4) // OFFSET_ALIGNMENT) * OFFSET_ALIGNMENT


def _fit(
    uses: Sequence[tuple[str, ...]],
    times: Sequence[int],
    sizes: Mapping[str, int],
    unused_nbytes: float = 0,
    largest_nbytes: int = 0,
) -> tuple[dict[str, int], list[int]]:
    """Best fit: each value takes the free slot that wastes least, else the largest free one grows, else a new one is
    made.

    unused_nbytes: at most so much for slots that are made for what others of the same time than the first write, for
    one of them largest_nbytes.
    """
    last = {name: time for names, time in zip(uses, times, strict=True) for name in names}
    slot_of: dict[str, int] = {}
    slots: list[int] = []
    busy: list[tuple[int, int]] = []  # (time of last use, slot)
    free: list[int] = []
    for k, (names, time) in enumerate(zip(uses, times, strict=True)):
        beside = k > 0 and times[k - 1] == time
        free += [slot for until, slot in busy if until < time]
        busy = [(until, slot) for until, slot in busy if until >= time]
        for name in names:
            if name in slot_of or name not in sizes:
                continue
            nbytes = _aligned(sizes[name])
            unused = beside and nbytes <= min(largest_nbytes, unused_nbytes)
            unused_nbytes -= nbytes * unused
            slot = _choose([] if unused else free, slots, nbytes)
            slots[slot] = max(slots[slot], nbytes)
            slot_of[name] = slot
            busy.append((last[name], slot))
    return slot_of, slots


def _choose(free: list[int], slots: list[int], nbytes: int) -> int:
    fitting = [s for s in free if slots[s] >= nbytes]
    if fitting:
        slot = min(fitting, key=lambda s: slots[s])
    elif free:
        slot = max(free, key=lambda s: slots[s])
    else:
        slots.append(nbytes)
        return len(slots) - 1
    free.remove(slot)
    return slot
