"""The legality of a Plan, as rules. Tests run them on every plan they make; `check` raises InternalError."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.ir.graph import Part
from ort_gpu_ep.ir.symbolic import is_symbolic
from ort_gpu_ep.ir.types import FLOAT16
from ort_gpu_ep.kernels.registry import Limits, part_count
from ort_gpu_ep.scheduler.plan import Copy, Dispatch, Kind, Place, Plan
from ort_gpu_ep.shaders.composer import parameters

_READ_ONLY = (Kind.INPUT, Kind.WEIGHT, Kind.CONSTANT, Kind.PREPARED)


def violations(plan: Plan, limits: Limits | None = None) -> list[str]:
    """What is wrong with a plan, one sentence each; empty for a legal one. limits: of the adapter, where bindings are
    to be counted."""
    problems, prepared = _prologue_violations(plan)
    written, filling = set(prepared), dict[Place, list[Part]]()
    for i, step in enumerate(plan.steps):
        reads, writes = _uses(step)
        problems += [f"step {i} {step.label}: {problem}" for problem in _part_violations(step, filling)]
        for place in reads:
            if (place.kind not in _READ_ONLY or place.kind is Kind.PREPARED) and place not in written:
                problems.append(f"step {i} {step.label}: reads {place} before anything wrote it")
        for place in writes:
            if place.kind in _READ_ONLY:
                problems.append(f"step {i} {step.label}: writes {place}")
            if place in reads:
                problems.append(f"step {i} {step.label}: reads and writes {place}")
        if len(set(writes)) < len(writes):
            problems.append(f"step {i} {step.label}: writes one place twice")
        if isinstance(step, Dispatch):
            problems += [f"step {i} {step.label}: {problem}" for problem in _binding_violations(step, written, limits)]
        written.update(writes)
        problems += [
            f"step {i} {step.label}: {n} B in {p} of {plan.slots[p.index]} B"
            for p, n in _slot_sizes(step)
            if n > plan.slots[p.index]
        ]
    for k, tensor in enumerate(plan.outputs):
        if tensor.nbytes and Place(Kind.OUTPUT, k) not in written:
            problems.append(f"output {k} {tensor} is never written")
    problems += [*_in_place_violations(plan), *_halved_violations(plan)]
    return [
        *problems,
        *(
            f"{place} is never whole: {missing} elements of a row are missing"
            for place in filling
            if (missing := _missing(filling[place]))
        ),
    ]


def _in_place_violations(plan: Plan) -> Iterator[str]:
    """What is wrong with the pairs that may be one buffer: a run that gets one buffer for both leaves out the copy, and
    no more."""
    copies = Counter(
        (s.source.index, s.target.index)
        for s in plan.steps
        if isinstance(s, Copy) and (s.source.kind, s.target.kind) == (Kind.INPUT, Kind.OUTPUT)
    )
    reads = Counter(place.index for step in plan.steps for place in set(_uses(step)[0]) if place.kind is Kind.INPUT)
    first = plan.steps[: len(plan.in_place)]
    for i, o in plan.in_place:
        pair = f"input {i} and output {o}, one buffer in place"
        if plan.inputs[i] != plan.outputs[o]:
            yield f"{pair}: {plan.inputs[i]} is not {plan.outputs[o]}"
        if copies[i, o] != 1 or not any(isinstance(s, Copy) and s.source == Place(Kind.INPUT, i) for s in first):
            yield f"{pair}: the first steps do not copy one into the other"
        if reads[i] > 1:
            yield f"{pair}: another step reads the input"
    for side in zip(*plan.in_place, strict=True):
        if len(set(side)) < len(side):
            yield f"in place: one value in two pairs of {plan.in_place}"


def _halved_violations(plan: Plan) -> Iterator[str]:
    """What is wrong with the steps that read inputs in float16: all that read these, and each does what the one in its
    place does."""
    halved, inputs = dict(plan.halved), {Place(Kind.INPUT, i) for i in plan.halved_inputs}
    for i, copy in halved.items():
        own = plan.steps[i] if i in range(len(plan.steps)) else None
        if not isinstance(own, Dispatch) or _but_for(copy, inputs) != _but_for(own, inputs):
            yield f"step {i} with inputs in float16, {copy.label}: binds or writes something else than the one without"
        if {t.type.dtype for t in copy.tensors if t.place in inputs} - {FLOAT16}:
            yield f"step {i} with inputs in float16, {copy.label}: reads one of them in another type"
    for i, step in enumerate(plan.steps):
        if i not in halved and inputs.intersection(_uses(step)[0]):
            yield f"step {i} {step.label}: reads in float32 what other steps may read in float16"


def _but_for(step: Dispatch, places: set[Place]) -> tuple[object, ...]:
    """What a dispatch binds, without the element types in some places."""
    tensors = [
        (t.name, t.place, t.written, t.type.shape, None if t.place in places else t.type, t.whole) for t in step.tensors
    ]
    return step.label, step.kernel.shader, step.kernel.outputs, step.groups, step.awaited, tensors


def _part_violations(step: Dispatch | Copy, filling: dict[Place, list[Part]]) -> Iterator[str]:
    """What is wrong with parts of values: they are disjoint, and read only when all are there. filling: those in each
    place, by then."""
    for place in _uses(step)[0]:
        if missing := _missing(filling.get(place, [])):
            yield f"reads {place} of which {missing} elements of a row are not written yet"
    if isinstance(step, Copy):
        return
    for tensor in (t for t in step.tensors if t.written):
        before, part = filling.pop(tensor.place, []), step.kernel.into if tensor.whole is not None else None
        other = part is None or any(p.value != part.value for p in before)
        if other and _missing(before):
            yield f"writes {tensor.place} before {before[0].value!r} in it is whole"
        if part is None:
            continue
        kept = before if not other and _missing(before) else []
        filling[tensor.place] = [*kept, part]
        if part.start + part.size > part.row or any(
            p.start < part.start + part.size and part.start < p.start + p.size for p in kept
        ):
            yield (
                f"writes elements {part.start} to {part.start + part.size} of rows of {part.row} in "
                f"{tensor.place}, where others are"
            )


def _missing(parts: Sequence[Part]) -> int:
    """Elements of a row that none of its parts brings."""
    return parts[0].row - sum(p.size for p in parts) if parts else 0


def _binding_violations(step: Dispatch, written: set[Place], limits: Limits | None) -> list[str]:
    """What is wrong with what a dispatch awaits, and with the number of its bindings. written: before it."""
    own = {t.place for t in step.tensors}
    problems = [f"awaits {place}, which is no slot" for place in step.awaited if place.kind is not Kind.SLOT]
    problems += [f"awaits {place} before anything wrote it" for place in step.awaited if place not in written]
    problems += [f"awaits {place}, which it binds anyway" for place in step.awaited if place in own]
    if len(set(step.awaited)) < len(step.awaited):
        problems.append("awaits one place twice")
    if limits is not None:
        count = len(step.awaited) + sum(part_count(t.bound, limits.max_binding_nbytes) for t in step.tensors)
        if count > limits.max_buffers_per_stage:
            problems.append(f"binds {count} buffers of {limits.max_buffers_per_stage}")
    return problems


def _prologue_violations(plan: Plan) -> tuple[list[str], set[Place]]:
    """What is wrong with the prologue, and what it writes: it is the same for all sizes and runs, so it knows weights
    alone."""
    said: list[str] = []
    written: set[Place] = set()
    for i, step in enumerate(plan.prologue):
        reads, writes = _uses(step)
        said += [
            f"prologue {i} {step.label}: reads {place}"
            for place in reads
            if place.kind is not Kind.WEIGHT and place not in written
        ]
        said += [
            f"prologue {i} {step.label}: reads {place}, which is not among the weights"
            for place in reads
            if place.kind is Kind.WEIGHT and place.name not in plan.weights
        ]
        said += [f"prologue {i} {step.label}: writes {place}" for place in writes if place.kind is not Kind.PREPARED]
        said += [f"prologue {i} {step.label}: writes {place} once more" for place in writes if place in written]
        if parameters(step.kernel, step.bindings) or any(map(is_symbolic, step.groups)):
            said.append(f"prologue {i} {step.label}: depends on sizes of a run")
        written.update(writes)
    for i, step in enumerate(plan.inverses):
        reads, writes = _uses(step)
        said += [
            f"inverse {i} {step.label}: reads {place}, which the prologue does not write"
            for place in reads
            if place not in written
        ]
        said += [
            f"inverse {i} {step.label}: writes {place}, which is not among the weights"
            for place in writes
            if place.kind is not Kind.WEIGHT or place.name not in plan.weights
        ]
    return said, written


def check(plan: Plan, limits: Limits | None = None) -> None:
    """Raises InternalError, naming every violation, for an illegal plan. limits: as in `violations`."""
    problems = violations(plan, limits)
    if problems:
        raise InternalError("illegal plan:\n" + "\n".join(problems) + f"\n{plan}")


def _uses(step: Dispatch | Copy) -> tuple[list[Place], list[Place]]:
    if isinstance(step, Copy):
        return [step.source], [step.target]
    return [t.place for t in step.tensors if not t.written], [t.place for t in step.tensors if t.written]


def _slot_sizes(step: Dispatch | Copy) -> list[tuple[Place, int]]:
    if isinstance(step, Copy):
        return [(p, step.nbytes) for p in (step.source, step.target) if p.kind is Kind.SLOT]
    return [(t.place, t.bound.nbytes) for t in step.tensors if t.place.kind is Kind.SLOT]
