"""What a Plan is: frozen numbers and strings. It prints, compares and pickles.

Where it was made for sizes that vary (scheduler/template.py), some of its numbers are `symbolic.Size`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, TensorType
from ort_gpu_ep.kernels.registry import Kernel

ERROR_WORD = "\0error_flags"
"""Name of the KEPT place that holds the word of kernels that report; no value of a model has it, which come as C
strings."""

PARAMETERS = "\0parameters"
"""Stands for the uniform structs of all steps where values have names."""


class Kind(StrEnum):
    """Where a value lives during a run."""

    INPUT = "input"
    OUTPUT = "output"
    WEIGHT = "weight"
    CONSTANT = "constant"
    PREPARED = "prepared"
    KEPT = "kept"
    PARAMETERS = "parameters"
    SLOT = "slot"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A buffer of the run: input, output and slot by number; weight (a constant of the graph), constant (of the plan)
    and what the prologue prepares by name; kept: what is zero before the first run and after each, by name; parameters:
    all steps' uniform structs.
    """

    kind: Kind
    index: int = 0
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name.strip(chr(0)) or self.index}"


@dataclass(frozen=True, slots=True)
class Bound:
    """A tensor of a dispatch: the name its shader knows it by, its type, its place, and whether it is written.

    whole: of what is in the place, where the tensor is a part of it.
    """

    name: str
    type: TensorType
    place: Place
    written: bool
    whole: TensorType | None = None

    @property
    def bound(self) -> TensorType:
        """The type of what is bound."""
        return self.whole or self.type


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One `dispatch_workgroups`. level: length of the longest chain of dispatches before it.

    groups: workgroups in x, y and z; of a number that varies (count, 1, 1), not yet folded into what an adapter allows.
    awaited: places that it binds and does not read, behind all others: the barrier in front of it then serves the steps
    after it that do read them (barriers.py). turns: of the loops of one workgroup (kernels.records.turns_of), for the
    sizes that the plan was made for, to estimate its time by.
    """

    label: str
    kernel: Kernel
    tensors: tuple[Bound, ...]
    groups: tuple[int, int, int]
    level: int
    awaited: tuple[Place, ...] = ()
    turns: int = 0

    @property
    def bindings(self) -> dict[str, tuple[TensorType, bool]]:
        """WGSL name -> (type, written) of every tensor, in binding order."""
        return {t.name: (t.type, t.written) for t in self.tensors}

    @property
    def uses(self) -> dict[Place, bool]:
        """Every place that it binds -> whether it writes there."""
        return {**dict.fromkeys(self.awaited, False), **{t.place: t.written for t in self.tensors}}


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between places: for an output that is only another view of an input, a weight or another output, or begins
    as an input."""

    label: str
    source: Place
    target: Place
    nbytes: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that the host computed when the plan was made (shape arithmetic) and that a kernel or an output needs.

    varying: its elements where some of them are sizes of the run; `data` is then empty.
    """

    name: str
    type: TensorType
    data: bytes
    varying: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """One partition for one set of input types.

    slots: size in bytes of each reusable buffer. weights: constants of the graph that steps, or the prologue, read.
    prologue: dispatches that a program runs once: they read weights and write PREPARED places, which steps may read.
    kept: name and bytes of each KEPT place. inverses: dispatches from a PREPARED place back to the weight that it was
    made of. channels_last: nodes whose values are stored so. conversions: dispatches that bring a value into another
    layout. dense: PREPARED places of weights that are stored packed, written out once (the option `weights`), and of
    what is made of them. in_place: (input, output) that may be one buffer; the first steps copy one into the other,
    which a run leaves out where they are. halved: (number of a step, the step in its place) for runs that bring float32
    inputs in float16, see `halved_inputs`. intermediate_nbytes: what all intermediate tensors would take if each had a
    buffer of its own.
    """

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    steps: tuple[Dispatch | Copy, ...]
    slots: tuple[int, ...]
    weights: tuple[str, ...]
    constants: tuple[Constant, ...]
    intermediate_nbytes: int
    prologue: tuple[Dispatch, ...] = ()
    kept: tuple[tuple[str, int], ...] = ()
    channels_last: int = 0
    conversions: int = 0
    inverses: tuple[Dispatch, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    dense: tuple[Place, ...] = ()
    halved: tuple[tuple[int, Dispatch], ...] = ()

    @property
    def halved_inputs(self) -> frozenset[int]:
        """Positions of the float32 inputs that all steps round to float16 first: a run may as well bring them so."""
        read = (
            t for _, step in self.halved for t in step.tensors if t.place.kind is Kind.INPUT and t.type.dtype is FLOAT16
        )
        return frozenset(t.place.index for t in read if self.inputs[t.place.index].dtype is FLOAT32)

    @property
    def kept_places(self) -> frozenset[Place]:
        """What the prologue writes and has to stay: steps read it, or weights could be had back from it."""
        read = {t.place for step in (*self.steps, *self.inverses) if isinstance(step, Dispatch) for t in step.tensors}
        return frozenset({*read, *(step.source for step in self.steps if isinstance(step, Copy))})

    @property
    def dense_nbytes(self) -> int:
        """Device memory of what stays of `dense`."""
        if not self.dense:
            return 0
        kept = self.kept_places.intersection(self.dense)
        return sum(t.type.nbytes for step in self.prologue for t in step.tensors if t.written and t.place in kept)

    @property
    def dispatches(self) -> int:
        """Of every run: the prologue is not among them."""
        return sum(hint(s.kernel.repeats) for s in self.steps if isinstance(s, Dispatch))

    @property
    def writes_parameters(self) -> bool:
        """Whether steps calculate sizes that others read."""
        return any(t.place.kind is Kind.PARAMETERS for s in self.steps if isinstance(s, Dispatch) for t in s.tensors)

    @property
    def reporting(self) -> tuple[str, ...]:
        """Labels of the nodes whose kernels note an index out of range, or an integer divisor of 0."""
        names = [s.label.rpartition("/")[0] for s in self.steps if isinstance(s, Dispatch) and s.kernel.looks]
        return tuple(dict.fromkeys(names))

    @property
    def slot_nbytes(self) -> int:
        """Device memory that intermediate values take."""
        return sum(self.slots)

    @property
    def barriers(self) -> frozenset[int]:
        """The steps that wait for all before them, see barriers.py. A copy does, and ends a pass; behind it a pass
        begins anew."""
        barriers, state = set[int](), dict[Place, bool]()
        for i, step in enumerate(self.steps):
            if isinstance(step, Copy):
                state.clear()
                continue
            if conflicts(state, step.uses):
                barriers.add(i)
            state.update(step.uses)
        return frozenset(barriers)

    def __str__(self) -> str:
        lines = [
            f"inputs  {', '.join(map(str, self.inputs))}",
            f"outputs {', '.join(map(str, self.outputs))}",
            f"slots   {', '.join(map(str, self.slots)) or 'none'} (bytes)",
        ]
        lines += [f"once {_line(step)}" for step in self.prologue]
        barriers = self.barriers
        lines += [f"{i:4}{'|' if i in barriers else ' '}{_line(step)}" for i, step in enumerate(self.steps)]
        lines += [f"or {i} {_line(step)}" for i, step in self.halved]
        return "\n".join([*lines, f"{self.dispatches} dispatches, {len(barriers)} barriers (|)"])


def conflicts(state: Mapping[Place, bool], uses: Mapping[Place, bool]) -> list[Place]:
    """What needs a barrier. state: of each place that the pass has bound, whether it was written last. uses: of the
    next dispatch."""
    return [place for place, written in uses.items() if place in state and (written or state[place])]


def _line(step: Dispatch | Copy) -> str:
    if isinstance(step, Copy):
        return f"copy {step.label}: {step.source} -> {step.target} {step.nbytes} B"
    tensors = " ".join(
        f"{'>' if t.written else ''}{t.name}={t.place}:{t.type}{f' in {t.whole}' if t.whole else ''}"
        for t in step.tensors
    )
    tensors += f" awaits {', '.join(map(str, step.awaited))}" if step.awaited else ""
    tensors += f", {step.kernel.repeats} times" if hint(step.kernel.repeats) != 1 else ""
    return f"{step.label}: {step.kernel.shader} {math.prod(step.groups)} groups, level {step.level}: {tensors}"
