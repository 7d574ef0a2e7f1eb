"""A compiled plan on the device: its pipelines, buffers and bind groups, and the commands of its runs."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ort_gpu_ep.device.allowance import ACTIVATIONS, CONSTANTS
from ort_gpu_ep.device.buffers import Buffer
from ort_gpu_ep.device.gpu import COMPILE_S
from ort_gpu_ep.device.pipelines import pipeline, pipelines
from ort_gpu_ep.device.staging import may_round
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.runtime.binding import Bound, bind_group, bound_of
from ort_gpu_ep.runtime.commands import CUT, BufferCopy, Command, Part, enqueue_alone, in_rows, with_head
from ort_gpu_ep.runtime.context import RECENT_RUNS, PlanContext
from ort_gpu_ep.runtime.error_words import Words
from ort_gpu_ep.scheduler.plan import ERROR_WORD, Copy, Dispatch, Kind, Place, Plan
from ort_gpu_ep.scheduler.template import Filled, Template
from ort_gpu_ep.shaders.composer import folded
from ort_gpu_ep.webgpu import native, objects

MAX_TURNS = 16
"""Sets of sizes (and of buffers that are given) that may take turns: a plan keeps the shader parameters and the
recordings of so many, with their bind groups, and the numbers that a set of sizes has moved on from."""

GROWTH = 1.5
"""A buffer that was too small gets so much more than it needs: ever longer inputs then seldom need another one."""

OFTEN = 256
"""Runs that show what is worth being fitted to. Sizes that had so many get a plan of their own (better_plans.py), which
takes some hundred runs on lavapipe. Buffers of which so many runs in a row needed less than half are made smaller: on
an H200 a larger size that comes back then takes 20 ms for new memory."""

SHRINK_NBYTES = 64 << 20
"""Buffers are made smaller, or given back by a plan that none of the last RECENT_RUNS runs used (that of a prompt,
while tokens follow), where that frees so much."""

MAX_PARTS = 64
"""Of a dispatch that takes long: each has a pipeline of its own."""


@dataclass(eq=False)
class _Shape:
    """What a plan keeps of one set of sizes. runs: how many there were, since this is kept. last: what recorded the
    last of them whose buffers were given (runs.py). left: the numbers that these sizes had with other parameters,
    before they moved on.
    """

    filled: Filled
    region: int
    runs: int = 0
    last: Any = None
    left: deque[tuple[int, ...]] = field(default_factory=lambda: deque(maxlen=MAX_TURNS))


class Prepared:
    """A template with its pipelines, buffers and bind groups. Not thread-safe: the context's lock is held.

    compiled: its pipelines, where they were compiled ahead: the plan is a specialised one then. often: told of a set of
    sizes that OFTEN runs had, which the plan does not fix. version: counts up when recordings made so far
    can't be submitted any more, see recording.py. is_warm: the driver has compiled it. closed: there will be no further
    run. words: in which its kernels note an index out of range, or None. last_use: see PlanContext.uses.
    """

    def __init__(
        self,
        template: Template,
        context: PlanContext,
        compiled: list[Any] | None = None,
        often: Callable[[Filled], object] | None = None,
    ) -> None:
        self.template, self.context, self.gpu, plan, once = (
            template,
            context,
            context.gpu,
            template.plan,
            context.prologue,
        )
        self._often, self.last_use = often, next(context.uses)
        self.is_specialized = compiled is not None
        steps = context.steps(plan)
        more = once.missing(plan)  # whose pipelines are nobody's when it has run
        compiled = compiled or pipelines(
            self.gpu, [*steps, *more], context.config.checked_shaders, context.composer, context.note
        )
        context.noted()
        self._pipelines = compiled[: len(steps)]
        self._of_parts: dict[tuple[str, tuple[int, int, int]], Any] = {}
        self.is_warm = self.is_specialized or not self.gpu.info.is_software
        # of the plan's step that each of them is
        self._numbers = [*range(len(plan.steps)), *(k for k, _ in plan.halved)]
        self._bound = [
            self._bound_of(k, s) if isinstance(s, Dispatch) else None
            for k, s in zip(self._numbers, steps, strict=False)
        ]
        behind = (
            {k: len(plan.steps) + n for n, (k, _) in enumerate(plan.halved)} if len(steps) > len(plan.steps) else {}
        )
        self._halved = [behind.get(k, k) for k in range(len(plan.steps))] if behind else []
        self._are_halved = False  # in the recording made last
        self._once = once.buffers(plan)
        self._slots: list[Buffer] = []
        self._constants: dict[str, Buffer] = {}
        self._parameters: Buffer | None = None
        self._shapes: OrderedDict[tuple[Any, ...], _Shape] = OrderedDict()
        self._current: _Shape | None = None  # whose constants are on the device
        # what a run calculates, it writes into the first one
        regions = 1 if template.plan.writes_parameters else MAX_TURNS
        self._regions = list(range(regions))  # those that are free
        self._inner: dict[int, Any] = {}
        # of steps that touch an input or output
        self._groups: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
        self.version, self.closed = 0, False
        self.words: Words | None = None
        self._needed: list[int] = []  # of each slot, the most since its size was last looked at
        self._wanted: tuple[int, ...] = ()  # by the latest run
        self._until_look = OFTEN
        try:
            for constant in template.plan.constants:
                if not constant.varying:
                    self._constants[constant.name] = self._filled_buffer(constant.data)
            for name, nbytes in template.plan.kept:
                self._constants[name] = self._filled_buffer(bytes(nbytes))
            if ERROR_WORD in self._constants:
                self.words = Words(self.gpu, self._constants[ERROR_WORD], context.graph.name, template.plan.reporting)
            if template.parameter_nbytes:
                usage = objects.UNIFORM | objects.COPY_DST | (objects.STORAGE if template.plan.writes_parameters else 0)
                self._parameters = self.gpu.create(regions * template.parameter_nbytes, usage)
        except Exception:
            self.close()
            raise
        context.plans.add(self)

    def _bound_of(self, index: int, step: Dispatch) -> Bound:
        return bound_of(
            self.gpu, step, 0 if self.template.offsets[index] is None else self.template.struct_nbytes(index)
        )

    def _filled_buffer(self, data: bytes) -> Buffer:
        buffer = self.gpu.allocate(len(data), CONSTANTS)
        if data:
            self.context.upload(buffer, native.address_of(data), len(data))
        return buffer

    def close(self) -> None:
        self.closed = True
        self.context.plans.discard(self)
        self.free_slots()
        for buffer in self._constants.values():
            self.gpu.free(buffer)
        if self._parameters is not None:
            self.gpu.flush()  # pending work may name it
            self.gpu.destroy(self._parameters)
        self._shapes.clear()
        self._constants, self._parameters, self._current = {}, None, None

    def last_plan(self) -> Plan:
        """The plan with the numbers of the last run, and its steps as that had them. Raises InternalError before the
        first."""
        if self._current is None:
            raise InternalError(f"program {self.context.graph.name}: no run of this plan is known")
        plan = self.template.at(self._current.filled)
        instead = dict(plan.halved) if self._are_halved else {}
        return (
            replace(plan, steps=tuple(instead.get(k, step) for k, step in enumerate(plan.steps)), halved=())
            if instead
            else plan
        )

    def numbers(self, names: Iterable[str]) -> dict[str, int]:
        """Waits for the last run. What it left in places that are kept, of one uint32 each. Raises DeviceError,
        InputError."""
        values = {name: np.zeros(1, np.uint32) for name in names}
        self.gpu.download_all([((self._constants[name], 0, 4), array.ctypes.data) for name, array in values.items()])
        return {name: int(array[0]) for name, array in values.items()}

    def rounded(self, filled: Filled) -> frozenset[int]:
        """Positions of the inputs that runs of these sizes, with memory of their own, round to float16 on the host."""
        may = self._halved and may_round(self.gpu, filled.inputs)
        return self.template.plan.halved_inputs if may else frozenset()

    def _chosen(self, inputs: Sequence[Tensor]) -> Sequence[int]:
        """Of each step, which of pipelines and bindings it has with such inputs: their types tell whether they were
        rounded."""
        types = self.template.plan.inputs
        is_rounded = self._halved and any(
            inputs[k].type.dtype is not types[k].dtype for k in self.template.plan.halved_inputs
        )
        return self._halved if is_rounded else range(len(self.template.plan.steps))

    def used(self, is_new: bool = False) -> None:
        """Another run of this plan. is_new: for which it was made."""
        self.context.made_plan.append(is_new)
        self.last_use = next(self.context.uses)

    def current(self, filled: Filled) -> _Shape:
        """Makes slots, parameters and constants those of a set of sizes, for the run that is enqueued next. Raises
        DeviceError."""
        if self.last_use % RECENT_RUNS == 0:
            self._free_idle()
        self._fit_slots(filled.slots)
        shape = self._shape(filled)
        shape.runs += 1
        if shape.runs == OFTEN and self.template.is_open and self._often is not None:
            self._often(filled)
        return shape

    def sized(self, filled: Filled) -> _Shape:
        """`current`, without a run: that is another call less in each."""
        self._fit_slots(filled.slots)
        return self._shape(filled)

    def keep_slots(self) -> None:
        """Its slots stay, however long no run used it: whoever has it has recorded them for good."""
        self.context.plans.discard(self)

    def free_slots(self) -> None:
        """Gives the memory of values inside the plan back, until the next run."""
        self._forget_bindings()
        for buffer in self._slots:
            self.gpu.free(buffer)
        self._slots = []

    def _free_idle(self) -> None:
        """Has plans that were not used lately free their slots, and what has waited in the pool for long go back to the
        driver."""
        for other in [p for p in list(self.context.plans) if self.last_use - p.last_use >= RECENT_RUNS]:
            if sum(b.nbytes for b in other._slots) >= SHRINK_NBYTES:
                other.free_slots()
        self.gpu.sweep()

    def warm_up(self, step: int, shape: _Shape, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Enqueues a step without workgroups, so that a driver that compiles at the first dispatch does so. Raises
        DeviceError.

        shape: the current one.
        """
        bound, index = self._bound[step], self._numbers[step]
        if bound is None:
            return
        offset, start = self.template.offsets[index], shape.region * self.template.parameter_nbytes
        group = self._bind_group(step, bound, inputs, outputs)
        where = None if offset is None else start + offset
        enqueue_alone(self.gpu, bound.label, (self._pipelines[step], group, (0, 0, 0), where, 1))

    def warm_up_all(self, shape: _Shape, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Before the first run on a driver that compiles at the first dispatch: what it takes for that is no hang.
        Raises DeviceError."""
        for step in self._chosen(inputs):
            self.warm_up(step, shape, inputs, outputs)
        self.gpu.flush(COMPILE_S)
        self.is_warm = True

    def _fit_slots(self, wanted: tuple[int, ...]) -> None:
        """Slots large enough for a run, and after many small runs not much larger than they need to be. Raises
        DeviceError: then none."""
        try:
            self._allocate_slots(wanted)
        except Exception:
            self.free_slots()
            raise

    def _allocate_slots(self, wanted: tuple[int, ...]) -> None:
        if not self._slots:
            for nbytes in wanted:
                self._slots.append(self.gpu.allocate(nbytes, ACTIVATIONS))
            self._needed, self._wanted = list(wanted), wanted
            return
        if not self.template.is_open:
            return
        self._until_look -= 1
        if wanted is not self._wanted:
            self._needed = [max(pair) for pair in zip(self._needed, wanted, strict=True)]
            for k, nbytes in enumerate(wanted):
                if nbytes > self._slots[k].nbytes:
                    self._resize(k, max(nbytes, min(int(nbytes * GROWTH), self.gpu.limits.max_buffer_nbytes)))
            self._wanted = wanted
        if not self._until_look:
            needed, before = sum(self._needed), sum(b.nbytes for b in self._slots)
            if before > 2 * needed and before - needed >= SHRINK_NBYTES:
                for k, nbytes in enumerate(self._needed):
                    self._resize(k, nbytes)
            self._until_look, self._needed = OFTEN, list(wanted)

    def _resize(self, slot: int, nbytes: int) -> None:
        self._forget_bindings()
        self.gpu.free(self._slots.pop(slot))  # before there is another one: together they may be more than fits
        self._slots.insert(slot, self.gpu.allocate(nbytes, ACTIVATIONS))

    def _forget_bindings(self) -> None:
        """Another buffer: no bind group or recording that may name the old one is used again."""
        self.version += 1
        self._inner.clear()
        self._groups.clear()
        for shape in self._shapes.values():
            shape.last = None

    def _shape(self, filled: Filled) -> _Shape:
        """What is kept of these sizes, their parameters and constants on the device."""
        shape = self._shapes.get(filled.numbers)
        is_new = shape is None
        if shape is None:
            shape = self._moved_on(filled) or self._added(filled)
        self._shapes.move_to_end(filled.numbers)
        if filled.constants and (is_new or self._current is not shape):
            self._current = None
            for name, data in filled.constants.items():
                self._set_constant(name, data)
        self._current = shape
        return shape

    def _added(self, filled: Filled) -> _Shape:
        """A region of its own for these sizes."""
        if not self._regions:
            self._regions.append(self._shapes.popitem(last=False)[1].region)
        shape = _Shape(filled, self._regions[-1])
        self._upload_parameters(shape.region, filled)
        self._shapes[filled.numbers] = shape  # only now: what failed is not on the device
        self._regions.pop()
        return shape

    def _moved_on(self, filled: Filled) -> _Shape | None:
        """The sizes of the last run with other parameters, where recordings stay as they are: a mask that grows by one
        each run. None where these sizes were left like that before: then sizes come again, and each set keeps what it
        has.
        """
        shape = self._current
        if shape is None or self._shapes.get(shape.filled.numbers) is not shape or filled.numbers in shape.left:
            return None
        if (shape.filled.groups, shape.filled.repeats, shape.filled.nbytes) != (
            filled.groups,
            filled.repeats,
            filled.nbytes,
        ):
            return None
        self._upload_parameters(shape.region, filled)
        shape.left.append(shape.filled.numbers)
        del self._shapes[shape.filled.numbers]
        shape.filled, shape.runs = filled, 0
        self._shapes[filled.numbers] = shape
        return shape

    def _upload_parameters(self, region: int, filled: Filled) -> None:
        if self._parameters is not None:
            data = filled.parameters
            self.gpu.upload(
                self._parameters, region * self.template.parameter_nbytes, native.address_of(data), len(data)
            )

    def _set_constant(self, name: str, data: bytes) -> None:
        buffer = self._constants.get(name)
        if buffer is None or buffer.nbytes < len(data):
            if buffer is not None:
                self._forget_bindings()
                self.gpu.free(self._constants.pop(name))
            buffer = self._constants[name] = self.gpu.allocate(len(data), CONSTANTS)
        if data:
            self.gpu.upload(buffer, 0, native.address_of(data), len(data))

    def parts(self, shape: _Shape, groups: list[Any], inputs: list[Tensor], outputs: list[Tensor]) -> list[Part]:
        """What a run records: dispatches in a row as one, but for a head, copies between them. groups: the bind group
        of each step."""
        timer = self.gpu.timer
        each = self.gpu.submit_each or (timer is not None and timer.each)
        parts = in_rows(self.commands(shape, groups, inputs, outputs), each)
        return with_head(parts) if native.RECORDS_LATE and timer is None else parts

    def commands(
        self, shape: _Shape, groups: list[Any], inputs: list[Tensor], outputs: list[Tensor]
    ) -> list[tuple[Command, ...]]:
        """Of each step, what it records: nothing for a copy of what is there already, and several parts of a dispatch
        that takes long."""
        start, runs = shape.region * self.template.parameter_nbytes, list[tuple[Command, ...]]()
        numbers, most, since = self._chosen(inputs), self.gpu.most_turns, 0
        self._are_halved = numbers is self._halved
        for index, step in enumerate(self.template.plan.steps):
            workgroups, offset = shape.filled.groups[index], self.template.offsets[index]
            if isinstance(step, Copy):
                (source, at), (target, to) = (self.place(p, inputs, outputs) for p in (step.source, step.target))
                nbytes = ((shape.filled.nbytes[index] or 0) + 3) & ~3
                in_place = source is target and at == to
                runs.append(() if in_place else (BufferCopy(source.native, at, target.native, to, nbytes),))
            else:
                assert workgroups is not None, "a dispatch has workgroups"
                whole, where = self._pipelines[numbers[index]], None if offset is None else start + offset
                repeats = shape.filled.repeats[index]
                turns = prod(workgroups) * step.turns * repeats
                since += turns
                if since <= most:
                    runs.append(((whole, groups[index], workgroups, where, repeats),))
                    continue
                if repeats > 1:
                    some = max(1, int(repeats * most / turns))
                    counts = [min(some, repeats - k) for k in range(0, repeats, some)]
                    runs.append(
                        tuple(c for count in counts for c in (CUT, (whole, groups[index], workgroups, where, count)))
                    )
                    since = turns * counts[-1] // repeats
                    continue
                in_parts = self._parts_of(numbers[index], whole, workgroups, ceil(turns / most))
                runs.append(tuple(c for part, count in in_parts for c in (CUT, (part, groups[index], count, where, 1))))
                since = turns // len(in_parts)
        return runs

    def _parts_of(
        self, number: int, start: Any, workgroups: tuple[int, int, int], count: int
    ) -> list[tuple[Any, tuple[int, int, int]]]:
        """A dispatch as several: the pipeline and the workgroups of each. start: the first one's pipeline. Raises
        ShaderError."""
        step = self.context.steps(self.template.plan)[number]
        assert isinstance(step, Dispatch), "a copy has no workgroups"
        whole = list(workgroups) if step.kernel.grid is not None else [prod(workgroups), 1, 1]
        axis = max(range(3), key=lambda a: whole[a])
        each = -(-whole[axis] // min(count, MAX_PARTS))
        parts, most = [], self.gpu.limits.max_groups_per_dimension
        for begin in range(0, whole[axis], each):
            first, part = [0, 0, 0], whole.copy()
            first[axis], part[axis] = begin, min(each, whole[axis] - begin)
            grid = (part[0], part[1], part[2]) if step.kernel.grid is not None else folded(part[0], most)
            parts.append((self._part_pipeline(step, (first[0], first[1], first[2])) if begin else start, grid))
        return parts

    def _part_pipeline(self, step: Dispatch, first: tuple[int, int, int]) -> Any:
        config = self.context.config
        part = pipeline(self.gpu, step, config.checked_shaders, self.context.composer, None, first)
        self._of_parts[step.label, first] = part  # as long as the plan is
        return part

    def place(self, place: Place, inputs: list[Tensor], outputs: list[Tensor]) -> tuple[Buffer, int]:
        """The buffer of a place, and the offset in it."""
        match place.kind:
            case Kind.INPUT:
                return inputs[place.index].buffer, inputs[place.index].offset_bytes
            case Kind.OUTPUT:
                return outputs[place.index].buffer, outputs[place.index].offset_bytes
            case Kind.WEIGHT:
                return self.context.weight(place.name), 0
            case Kind.PREPARED:
                return self._once[place], 0
            case Kind.PARAMETERS:
                assert self._parameters is not None, "a plan that writes parameters has some"
                return self._parameters, 0
            case Kind.CONSTANT | Kind.KEPT:
                return self._constants[place.name], 0
            case _:
                return self._slots[place.index], 0

    def bind(self, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        """The bind group of each step, None for a copy. Raises DeviceError."""
        steps = [(k, self._bound[k]) for k in self._chosen(inputs)]
        return [self._bind_group(k, bound, inputs, outputs) if bound else None for k, bound in steps]

    def _bind_group(self, index: int, bound: Bound, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
        def buffer_of(place: Place) -> tuple[Buffer, int]:
            return self.place(place, inputs, outputs)

        if not bound.outer:
            if index not in self._inner:
                self._inner[index] = bind_group(self.gpu, bound, buffer_of, self._parameters)
            return self._inner[index]
        places = [*(place for place, *_ in bound.pieces), *bound.awaited]
        key = (index, *((buffer.serial, offset) for buffer, offset in map(buffer_of, places)))
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = bind_group(self.gpu, bound, buffer_of, self._parameters)
        return group
