"""Counts the barriers that a plan causes, and lets one barrier serve several dispatches.

Within a compute pass wgpu puts a barrier in front of each dispatch that binds a buffer which was written since the pass
began, or that writes one which was read; the barrier waits for all work before it. A buffer that the pass has not bound
before costs nothing, and a barrier serves all that its dispatch binds. So of k dispatches which do not depend on each
other, each causes a barrier of its own by what it reads, unless the first of them binds that, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ort_gpu_ep.kernels.registry import Limits, part_count
from ort_gpu_ep.scheduler.plan import Copy, Dispatch, Kind, Place, conflicts


def share_barriers(steps: Sequence[Dispatch | Copy], limits: Limits) -> list[Dispatch | Copy]:
    """The same steps, where each that a barrier precedes also awaits what those after it read, as far as these then
    need none."""
    state, shared = dict[Place, bool](), list[Dispatch | Copy]()
    for i, step in enumerate(steps):
        if isinstance(step, Copy):
            state.clear()
        else:
            uses = step.uses
            if conflicts(state, uses):
                room = limits.max_buffers_per_stage - sum(
                    part_count(t.bound, limits.max_binding_nbytes) for t in step.tensors
                )
                step = replace(step, awaited=_awaited(steps[i + 1 :], {**state, **uses}, set(uses), room))
                uses = step.uses
            state.update(uses)
        shared.append(step)
    return shared


def unsettled(steps: Sequence[Dispatch | Copy]) -> list[tuple[Place, ...]]:
    """What each step reads that was written, and not read, since the pass began: what the barrier in front of it is
    for. Where steps of several runs take turns, one dispatch that binds this of all runs has the barrier that serves
    the step in each.
    """
    state, places = dict[Place, bool](), list[tuple[Place, ...]]()
    for step in steps:
        uses = step.uses if isinstance(step, Dispatch) else {}
        places.append(tuple(place for place, written in uses.items() if not written and state.get(place)))
        if isinstance(step, Copy):
            state.clear()
        state.update(uses)
    return places


def _awaited(
    later: Sequence[Dispatch | Copy], state: dict[Place, bool], own: set[Place], room: int
) -> tuple[Place, ...]:
    """What a barrier can serve of what later steps read, up to the first step that needs one of its own.

    state: behind the barrier's step. own: what that step binds. room: bindings that it has left.
    """
    places = list[Place]()
    for step in later:
        if isinstance(step, Copy):
            break
        uses = step.uses
        conflicting = conflicts(state, uses)
        if (
            any(uses[p] or p in own or p.kind is not Kind.SLOT for p in conflicting)
            or len(places) + len(conflicting) > room
        ):
            break
        places += conflicting
        state.update(uses)
        own |= {p for p, written in uses.items() if written}
    return tuple(places)
