"""Order of dispatches, lifetimes of values, and the slots they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ALIGN_NBYTES = 256

MEMORY_FOR_PARALLELISM = 1.25
"""Independent branches next to each other may cost this factor of memory over the tightest order tried."""


def assign_slots(
    uses: Sequence[tuple[str, ...]], levels: Sequence[int], sizes: Mapping[str, int]
) -> tuple[list[int], dict[str, int], list[int]]:
    """Orders dispatches and gives each value in `sizes` a slot.

    uses: the values that each dispatch reads or writes. levels: depth of each dispatch. sizes: bytes of each slot value.
    Returns: order (indices of dispatches), slot of each value, bytes of each slot.
    Two ways are tried: by level, where a slot is reused only in a later level, so that dispatches of a level need no
    barrier between them; and in the given order with immediate reuse, which takes the least memory.
    """
    by_level = sorted(range(len(uses)), key=lambda i: (levels[i], i))
    parallel = (by_level, *_fit([uses[i] for i in by_level], [levels[i] for i in by_level], sizes))
    as_given = list(range(len(uses)))
    tight = (as_given, *_fit([uses[i] for i in as_given], as_given, sizes))
    return parallel if sum(parallel[2]) <= MEMORY_FOR_PARALLELISM * sum(tight[2]) else tight


def _fit(uses: Sequence[tuple[str, ...]], times: Sequence[int], sizes: Mapping[str, int]) -> tuple[dict[str, int], list[int]]:
    """Best fit: each value takes the free slot that wastes least, else the largest free one grows, else a new one is made."""
    last = {name: time for names, time in zip(uses, times, strict=True) for name in names}
    slot_of: dict[str, int] = {}
    slots: list[int] = []
    busy: list[tuple[int, int]] = []      # (time of last use, slot)
    free: list[int] = []
    for names, time in zip(uses, times, strict=True):
        free += [slot for until, slot in busy if until < time]
        busy = [(until, slot) for until, slot in busy if until >= time]
        for name in names:
            if name in slot_of or name not in sizes:
                continue
            nbytes = -(-max(sizes[name], 4) // ALIGN_NBYTES) * ALIGN_NBYTES
            slot = _choose(free, slots, nbytes)
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
        slots.append(0)
        return len(slots) - 1
    free.remove(slot)
    return slot
