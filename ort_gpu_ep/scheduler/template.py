"""A plan for every size: made once, for symbols in place of the sizes that the model leaves open, and filled in for
each run.

A new shape changes numbers only: workgroup counts, the parameters of shaders, the bytes of buffers and copies. What the
plan does (kernels, order, which values share a slot) stays, as long as the sizes answer the trace's guards as those of
the first run did; where they don't (a size of 1 that broadcasts, say), another template is made.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ort_gpu_ep.ir.formula import Formula
from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.ir.symbolic import Size, Trace, counts_of, is_symbolic, mapped
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels import host, shape_arithmetic
from ort_gpu_ep.kernels.lowering import is_readable
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.scheduler.counts import struct_nbytes
from ort_gpu_ep.scheduler.plan import Copy, Dispatch, Plan
from ort_gpu_ep.scheduler.planner import Rewrite, make_plan
from ort_gpu_ep.shaders.composer import folded, parameters


@dataclass(frozen=True, slots=True)
class Filled:
    """The numbers of a template for one set of input sizes.

    numbers: what they follow from: the sizes of the inputs, and the integers in those whose content counts. groups:
    workgroups of each step (None for a copy). repeats: how often each is dispatched in a row. nbytes: of each copy
    (None for a dispatch). parameters: the uniform structs, each at its step's `offsets` of the template. slots: bytes.
    constants: by name, those that vary.
    """

    inputs: tuple[TensorType, ...]
    numbers: tuple[int, ...]
    outputs: tuple[TensorType, ...]
    groups: tuple[tuple[int, int, int] | None, ...]
    repeats: tuple[int, ...]
    nbytes: tuple[int | None, ...]
    slots: tuple[int, ...]
    parameters: bytes
    constants: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Specialization:
    """Sizes that have a plan of their own, or for which making one failed.

    inputs: their types. seconds: what making it took. why: what failed; empty where the plan is in use.
    """

    inputs: tuple[str, ...]
    seconds: float
    why: str = ""

    def __str__(self) -> str:
        text = (
            f"constants, compiled beside the runs in {self.seconds:.1f} s"
            if not self.why
            else f"numbers of each run: {self.why}"
        )
        return f"{', '.join(self.inputs)}: sizes are {text}"


class Template:
    """A plan with symbols, and the function that fills them in.

    plan: what was made; its numbers may be Sizes, of the closed `trace`. over: outputs that may be an input's buffer,
    and that input. varies: whether any is a Size. is_open: whether inputs have other sizes in other runs. counted: the
    KEPT places of one uint32 each, in which a run leaves the counts that sizes of outputs follow from: a Filled has the
    most that there can be. offsets: where in `Filled.parameters` each step's struct is, None without one.
    """

    def __init__(self, plan: Plan, trace: Trace, limits: Limits, values: Mapping[int, Array] | None = None) -> None:
        self.plan, self._limits, self.trace, self._values = plan, limits, trace, dict(values or {})
        self.over = {output: (source,) for source, output in plan.in_place}
        self.offsets: list[int | None] = []
        needs = _Wanted()
        self._outputs = _Varying(
            plan.outputs, {k: needs.add(t.shape) for k, t in enumerate(plan.outputs) if any(map(is_symbolic, t.shape))}
        )
        self._slots = needs.add(plan.slots)
        dispatches = {k: s for k, s in enumerate(plan.steps) if isinstance(s, Dispatch)}
        self._groups = _Varying(
            [s.groups if isinstance(s, Dispatch) else None for s in plan.steps],
            {k: needs.add(s.groups) for k, s in dispatches.items() if any(map(is_symbolic, s.groups))},
        )
        self._repeats = _Varying(
            [s.kernel.repeats if isinstance(s, Dispatch) else 1 for s in plan.steps],
            {k: needs.add((s.kernel.repeats,)) for k, s in dispatches.items() if is_symbolic(s.kernel.repeats)},
        )
        self._nbytes = _Varying(
            [s.nbytes if isinstance(s, Copy) else None for s in plan.steps],
            {
                k: needs.add((s.nbytes,))
                for k, s in enumerate(plan.steps)
                if isinstance(s, Copy) and is_symbolic(s.nbytes)
            },
        )
        self._constants = [(c, needs.add(c.type.shape), needs.add(c.varying)) for c in plan.constants if c.varying]
        self._parameters = self._place_parameters(needs)
        self.parameter_nbytes = self._layout.size
        self._formula = Formula(trace, needs.values)
        self._symbols: list[Any] = []
        shapes = [size for t in plan.outputs for size in t.shape]
        self.counted = counts_of(*shapes)
        self._cut = Formula(trace, shapes) if self.counted else None
        self.is_open = bool(self._values) or any(is_symbolic(size) for t in plan.inputs for size in t.shape)
        if self.is_open or trace.has_counts:  # nothing else brings symbols in
            mapped(plan, self._symbols.append)
        self.varies = bool(self._symbols)

    def _place_parameters(self, wanted: _Wanted) -> slice:
        """The values of all steps' parameters, whose structs lie behind one another in one."""
        layout, values, end = "<", list[Any](), 0
        self._struct_nbytes = dict[int, int]()
        for step in self.plan.steps:
            names = parameters(step.kernel, step.bindings) if isinstance(step, Dispatch) else []
            self.offsets.append(end if names else None)
            if names:
                nbytes = struct_nbytes(len(names))
                layout += (
                    "".join("I" if isinstance(value, Size) else "f" for _, value in names)
                    + f"{nbytes - 4 * len(names)}x"
                )
                self._struct_nbytes[end] = 4 * len(names)
                values += [value for _, value in names]
                end += nbytes
        self._layout = struct.Struct(layout)
        return wanted.add(values)

    def struct_nbytes(self, step: int) -> int:
        """Bytes of a step's parameters."""
        offset = self.offsets[step]
        assert offset is not None, "a step with parameters"
        return self._struct_nbytes[offset]

    def fill(self, types: Sequence[TensorType], given: Mapping[int, Array] | None = None) -> Filled | None:
        """The numbers for these input types and contents, or None where the plan does not hold for them.

        given: the content of the inputs that the template was made with the content of.
        """
        numbers = self._numbers(types, given or {})
        values = None if numbers is None else self._formula(numbers)
        if values is None:
            return None
        most, steps, given_outputs = self._limits.max_groups_per_dimension, self.plan.steps, self.plan.outputs
        return Filled(
            tuple(types),
            tuple(numbers or ()),
            self._outputs.at(lambda k, where: TensorType(given_outputs[k].dtype, values[where])),
            self._groups.at(lambda k, where: _grid(steps[k], values[where], most)),
            self._repeats.at(lambda k, where: values[where][0]),
            self._nbytes.at(lambda k, where: values[where][0]),
            values[self._slots],
            self._packed(values[self._parameters]),
            {c.name: np.array(values[w], c.type.dtype.numpy).tobytes() for c, _, w in self._constants},
        )

    def outputs(self, filled: Filled, counts: Mapping[str, int]) -> tuple[TensorType, ...]:
        """The types of the outputs, once a run has told the counts."""
        sizes = iter((self._cut(filled.numbers, counts) if self._cut else None) or ())
        return tuple(TensorType(t.dtype, tuple(next(sizes) for _ in t.shape)) for t in self.plan.outputs)

    def _packed(self, values: Sequence[Any]) -> bytes:
        """The uniform structs. A number below zero is that modulo 2^32, one beyond float32 infinite."""
        try:
            return self._layout.pack(*values)
        except (struct.error, OverflowError):
            with np.errstate(over="ignore"):
                return self._layout.pack(*(v & 0xFFFFFFFF if type(v) is int else float(np.float32(v)) for v in values))

    def _numbers(self, types: Sequence[TensorType], given: Mapping[int, Array]) -> list[int] | None:
        """What the symbols stand for; None for other element types, ranks, or contents that are no integers."""
        if [(t.dtype, t.rank) for t in types] != [(t.dtype, t.rank) for t in self.plan.inputs] or not set(
            self._values
        ) <= set(given):
            return None
        numbers = [d for t in types for d in t.shape]
        for index in sorted(self._values):
            mine, its = self._values[index], given[index]
            if mine.shape != its.shape:
                return None
            if its.dtype.kind in "iu":
                numbers += [int(v) for v in its.reshape(-1)]
            elif not np.array_equal(mine, its, equal_nan=its.dtype.kind == "f"):
                return None
        return numbers

    def at(self, filled: Filled) -> Plan:
        """The plan as plain data, with the numbers of one set of input sizes."""
        if not self.varies:
            return self.plan
        numbers = iter(Formula(self.trace, self._symbols)(filled.numbers) or ())
        plan: Plan = mapped(self.plan, lambda size: next(numbers))
        steps = tuple(
            replace(s, groups=g) if isinstance(s, Dispatch) and g is not None else s
            for s, g in zip(plan.steps, filled.groups, strict=True)
        )
        constants = tuple(
            replace(c, data=filled.constants[c.name], varying=()) if c.varying else c for c in plan.constants
        )
        halved = tuple((k, replace(step, groups=filled.groups[k] or step.groups)) for k, step in plan.halved)
        return replace(plan, steps=steps, constants=constants, halved=halved)


def _grid(step: Any, groups: Sequence[int], most: int) -> tuple[int, int, int]:
    return folded(groups[0], most) if step.kernel.grid is None else (groups[0], groups[1], groups[2])


class _Wanted:
    """The values that a formula is to give, and where in its result each group of them is."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def add(self, values: Sequence[Any]) -> slice:
        start = len(self.values)
        self.values += values
        return slice(start, len(self.values))


class _Varying:
    """A row of values, of which those at some places depend on the sizes. places: those, and where in a formula's
    result they are."""

    def __init__(self, values: Iterable[Any], places: Mapping[int, slice]) -> None:
        self._values, self._places = tuple(values), tuple(places.items())

    def at(self, value: Callable[[int, slice], Any]) -> tuple[Any, ...]:
        """With what `value` gives for each such place."""
        if not self._places:
            return self._values
        values = list(self._values)
        for k, where in self._places:
            values[k] = value(k, where)
        return tuple(values)


def make_template(
    graph: Graph,
    types: Sequence[TensorType],
    limits: Limits,
    rewrite: Rewrite | None = None,
    values: Mapping[int, Array] | None = None,
    *,
    constant: bool = False,
    apart: bool = False,
) -> Template:
    """A plan for these input types and for all that differ from them in sizes that the graph leaves open.

    values: the content of some inputs, by position; their integers may differ from run to run as sizes may. constant:
    the plan is for these sizes and contents alone, as if the model fixed them. apart: each value has a slot of its own.
    Raises: UnsupportedNodeError, where a row declines a node with these types; UnknownValueError, where it needs the
    content of another value.
    """
    trace, values = Trace(), values or {}
    inputs, place = dict[str, TensorType](), 0
    for index, (name, tensor) in enumerate(zip(graph.inputs, types, strict=True)):
        declared = (
            tensor.shape if constant or index in values else graph.values[name].shape if name in graph.values else None
        )
        inputs[name] = TensorType(
            tensor.dtype,
            tuple(_dimension(trace, place + axis, size, declared, axis) for axis, size in enumerate(tensor.shape)),
        )
        place += tensor.rank
    contents: dict[str, Array] = {}
    for index in sorted(values):
        contents[graph.inputs[index]], place = _content(trace, place, values[index], constant)
    return Template(
        make_plan(graph, inputs, limits, rewrite, contents, apart=apart, trace=trace), trace, limits, values
    )


def _content(trace: Trace, place: int, array: Array, constant: bool) -> tuple[Array, int]:
    """An input's content as the plan sees it, integers as symbols unless they are guarded, and the place of the next
    number."""
    if array.dtype.kind not in "iu":
        return array, place
    symbols = [trace.symbol(place + k, int(v), range_of(array)) for k, v in enumerate(array.reshape(-1))]
    if constant:
        return np.array([int(s) for s in symbols], array.dtype).reshape(array.shape), place + array.size
    return shape_arithmetic.objects(symbols).reshape(array.shape), place + array.size


def range_of(array: Array) -> tuple[int, int]:
    """Between which integers the content of an input is."""
    limits = np.iinfo(array.dtype)
    return int(limits.min), int(limits.max)


def _dimension(trace: Trace, place: int, size: int, declared: Sequence[Any] | None, axis: int) -> int:
    """What the model fixes is a number (that every run must have), what it leaves open a symbol."""
    symbol = trace.symbol(place, size)
    fixed = declared is not None and len(declared) > axis and declared[axis] == size
    return int(symbol) if fixed else symbol


def sources(graph: Graph, name: str, types: Sequence[TensorType]) -> set[int]:
    """The positions of the small inputs from whose content a value is calculated. types: of the graph's inputs."""
    producers, queue, seen = graph.producers(), [name], set[str]()
    while queue:
        value = queue.pop()
        if value not in seen:
            seen.add(value)
            queue += producers[value].reads if value in producers and not host.is_shape_only(producers[value]) else ()
    return {k for k, (n, t) in enumerate(zip(graph.inputs, types, strict=True)) if n in seen and is_readable(t)}
