"""A compiled partition: its weights on the device, and its plans."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np

from ort_gpu_ep.config import Config
from ort_gpu_ep.device.allowance import RUNS, current
from ort_gpu_ep.device.buffers import Buffer
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.index_check import Word
from ort_gpu_ep.device.pipelines import Composer
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import Code, InternalError, OutOfDeviceMemoryError, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.ir.types import MAX_TOLD, TensorType
from ort_gpu_ep.kernels.registry import UnknownValueError
from ort_gpu_ep.runtime.artefact import Artefact
from ort_gpu_ep.runtime.better_plans import BetterPlans, UnitPlan
from ort_gpu_ep.runtime.context import PlanContext
from ort_gpu_ep.runtime.ends import Ends
from ort_gpu_ep.runtime.joined_runs import Contention
from ort_gpu_ep.runtime.plans import Found, Key, Plans
from ort_gpu_ep.runtime.prepared import Prepared
from ort_gpu_ep.runtime.recording import Recording
from ort_gpu_ep.runtime.runs import Steady
from ort_gpu_ep.scheduler import Plan
from ort_gpu_ep.scheduler.planner import Rewrite
from ort_gpu_ep.scheduler.template import Filled, Specialization, Template, sources
from ort_gpu_ep.shaders import compose

log = logging.getLogger("ort_gpu_ep")

MAX_PLANS = 8
"""Plans (with their pipelines and activation buffers) that a program keeps; the least recently used goes first. One
plan serves all sizes that need the same kernels, so there are more only for an operator that has a form for each
size."""

MOST_NEW = 24
"""Of the last runs (RECENT_RUNS), so many needed a plan of their own: what the data decides on varies too much, and
planning takes longer than the CPU."""


MakeOutput: TypeAlias = Callable[..., Tensor]
"""Gives the tensor for an output, by its position and shape, and where a plan says so by that of the input that it may
be, too."""

Read: TypeAlias = Callable[[int, TensorType], Array]
"""The content of an input, by its position and type."""


class Program:
    """A partition, ready to run. Thread-safe. lock: held while a run is made ready and enqueued, not while it is waited
    for.

    graph: constants are read now (their views may die with the caller). rewrite: fusion, run for each plan. composer:
    of its shaders. ran: called with the outputs of each run behind its commands; there are no steady runs then, whose
    readback is one with the run. artefact: what is known of the model; rewrite is then the partitioner's, or None.
    units_later: kernels on matrix units that take long to compile are compiled in the background, see better_plans.py.
    Raises what `make_plan` raises for static shapes.
    """

    def __init__(
        self,
        graph: Graph,
        config: Config,
        gpu: Gpu,
        rewrite: Rewrite | None = None,
        composer: Composer = compose,
        ran: Callable[[Sequence[Tensor]], object] | None = None,
        artefact: Artefact | None = None,
        units_later: bool = False,
    ) -> None:
        self.config, self.gpu, self.rewrite, self._ran = config, gpu, rewrite, ran
        # positions of the inputs whose content decides on shapes: read before a run
        self.steering: tuple[int, ...] = ()
        self.planned = 0  # plans ever made: a new size makes none where one holds for it
        self._last: tuple[TensorType, ...] = ()  # input types of the last run
        # of the last two, where these differ
        self._changed: tuple[tuple[TensorType, ...], tuple[TensorType, ...]] | None = None
        self._foreseen: tuple[Key, Found] | None = None
        self.context = PlanContext(graph, config, gpu, rewrite, composer, artefact)
        self.compiled = Plans(self.context, self._often, Contention.of)
        self.better, self._units_later = BetterPlans(self.context, self.compiled, self._values_of), units_later
        self.lock, self.graph = self.context.lock, self.context.graph
        self.allowance = current()
        if config.weights == "auto":
            gpu.holders.add(self)
        static = _static_types(graph)
        if static is not None:
            try:
                self._prepared(static, None)
            except UnknownValueError:
                pass  # the first run brings what decides on shapes
            except Exception:
                self.close()
                raise

    @property
    def uploads(self) -> int:
        """Constants copied to the device so far."""
        return self.context.uploads

    @property
    def uploaded_nbytes(self) -> int:
        """Bytes of constants copied to the device so far."""
        return self.context.uploaded_nbytes

    @property
    def weight_nbytes(self) -> int:
        """Device memory of the weights, and of what is computed from them once."""
        with self.lock:
            return self.context.weight_nbytes

    def weight(self, name: str) -> Buffer:
        """A weight's buffer, see PlanContext. Raises DeviceError, ShaderError."""
        return self.context.weight(name)

    @property
    def specialized(self) -> tuple[Specialization, ...]:
        """Sizes that have a plan of their own, or could not get one."""
        with self.lock:
            return tuple(self.compiled.records.values())

    @property
    def unit_plans(self) -> tuple[UnitPlan, ...]:
        """Plans on matrix units that were, or are, made beside the runs."""
        return self.better.unit_plans

    def wait_plans(self, timeout_s: float | None = None) -> bool:
        """Waits until none of these is being made; whether that is so. The next run goes by them."""
        return self.better.wait(timeout_s)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans with the numbers of the last sizes seen, the most recently used last."""
        with self.lock:
            return tuple(
                prepared.template.at(filled) for prepared, filled in list(self.compiled.found.values())[-MAX_TOLD:]
            )

    def is_prepared(self, inputs: Sequence[TensorType], read: Read | None = None) -> bool:
        """Whether a run with these input types (and contents) begins at once."""
        with self.lock:
            types = tuple(inputs)
            return (types, _key(self._content(types, read))) in self.compiled.found

    def prepare(self, inputs: Sequence[TensorType], read: Read | None = None) -> None:
        """Makes what a run with these input types needs. Raises UnsupportedNodeError, ShaderError, DeviceError."""
        with self.lock:
            self._prepared(tuple(inputs), read)

    def plan(self, inputs: Sequence[TensorType], read: Read | None = None) -> Plan:
        """The plan with the numbers of these input types (made if needed). Raises as `prepare`."""
        with self.lock:
            prepared, filled = self._prepared(tuple(inputs), read)
            return prepared.template.at(filled)

    def run(self, inputs: Sequence[Tensor], make_output: MakeOutput, read: Read | None = None) -> Word | None:
        """Records the work of one run; it is submitted with the readback of its results. Does not wait.

        inputs: in the order of graph.inputs. make_output: gives the tensor for an output. read: gives the content of an
        input, by position and type, for those few that decide on shapes. Returns the word to read with the results, if
        there is one.
        """
        with self.lock:
            prepared, filled = self._prepared(tuple([t.type for t in inputs]), read)
            counted, over = prepared.template.counted, prepared.template.over
            outputs = (
                self._most(filled)
                if counted
                else [make_output(i, t.shape, *over.get(i, ())) for i, t in enumerate(filled.outputs)]
            )
            try:
                try:
                    word = self.compiled.runs(prepared).run(filled, [*inputs], outputs)
                except OutOfDeviceMemoryError:
                    if not self._give_back():
                        raise
                    prepared, filled = self._prepared(tuple(t.type for t in inputs), read)
                    word = self.compiled.runs(prepared).run(filled, [*inputs], outputs)
                results = self._cut(prepared, filled, outputs, make_output) if counted else outputs
            finally:
                for tensor in outputs if counted else ():
                    self.gpu.free(tensor.buffer)
            if self._ran is not None:
                self._ran(results)
            self._foresee(filled.inputs)
            return word

    def _most(self, filled: Filled) -> list[Tensor]:
        """Buffers for the most that there can be of outputs whose sizes a run tells. Raises DeviceError, and has freed
        what it had."""
        tensors = list[Tensor]()
        try:
            for kind in filled.outputs:
                tensors.append(Tensor(self.gpu.allocate(kind.nbytes, RUNS), 0, kind))
        except OutOfDeviceMemoryError:
            for tensor in tensors:
                self.gpu.free(tensor.buffer)
            raise
        return tensors

    def _cut(
        self, prepared: Prepared, filled: Filled, whole: Sequence[Tensor], make_output: MakeOutput
    ) -> list[Tensor]:
        """Waits for a run that tells the sizes of outputs, and copies what is there of them."""
        template, outputs = prepared.template, list[Tensor]()
        for index, kind in enumerate(template.outputs(filled, prepared.numbers(template.counted))):
            output = make_output(index, kind.shape)
            self.gpu.copy(whole[index].buffer, 0, output.buffer, output.offset_bytes, output.type.nbytes)
            outputs.append(output)
        return outputs

    def _foresee(self, types: tuple[TensorType, ...]) -> None:
        """Notes a run. Where its sizes are others than in the run before, they most likely change by as much again: a
        mask that grows with each token.
        """
        before, self._last = self._last, types
        if before and before != types and not self.steering:
            self._changed = before, types
            self.gpu.on_wait(self)

    def while_waiting(self) -> None:
        """Finds the numbers of the next run's plan."""
        if self._changed is None or not self.lock.acquire(blocking=False):
            return
        try:
            (before, last), self._changed, self._foreseen = self._changed, None, None
            types = tuple(b if a is b or a == b else _grown(a, b) for a, b in zip(before, last, strict=True))
            key = Key((types, ()))
            if not self.context.closed and key not in self.compiled.found:
                found = self.compiled.fill(types, {})
                self._foreseen = None if found is None else (key, found)
        finally:
            self.lock.release()

    def give_back(self) -> bool:
        """Frees dense copies of packed weights, if no run is being made ready; later runs have plans without. Whether
        there were any."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            return self._give_back()
        finally:
            self.lock.release()

    def _give_back(self) -> bool:
        context, compiled = self.context, self.compiled
        if context.bound or not context.prologue.dense_nbytes or self.config.weights == "fast":
            return False
        log.warning(
            "%s: device memory is short: %d MiB of dense weights are given back, which are stored packed "
            "(option weights)",
            self.graph.name,
            context.prologue.dense_nbytes >> 20,
        )
        context.give_back()
        for prepared in [p for p in (*compiled.general, *compiled.specialized) if p.template.plan.dense]:
            compiled.drop(prepared)
        return True

    def steady(self, inputs: Sequence[TensorType]) -> Steady | None:
        """What further runs with these input types go by; None where each needs `run`, there was none yet, or there is
        nothing to do."""
        with self.lock:
            if self.gpu.submit_each or self.steering or self.context.closed or self._ran is not None:
                return None
            filled = self.compiled.found.get(Key((tuple(inputs), ())))
            template = None if filled is None else filled[0].template
            if (
                filled is None
                or template is None
                or not template.plan.steps
                or template.counted
                or not Steady.fits(filled[1])
            ):
                return None
            return self.compiled.runs(filled[0]).steady(filled[1])

    def key_of(self, types: tuple[TensorType, ...]) -> Key:
        """Of runs that repeat: the one that is there, if any, which is found again without comparing types."""
        key = Key((types, ()))
        with self.lock:
            return next((known for known in self.compiled.found if known == key), key)

    def run_bound(
        self,
        types: tuple[TensorType, ...],
        recording_for: Callable[[Prepared, Filled], Recording[Ends] | None],
        key: Key | None = None,
    ) -> Word | Literal[False] | None:
        """One run of what is bound, as `run`. recording_for: gives that for the plan and the numbers of these types.
        key: of the types, where the run repeats: its plan then keeps what it has.

        False, and nothing was enqueued, where that is None or the run needs `run`. Raises as that does.
        """
        with self.lock:
            if self.steering or self._ran is not None:
                return False
            found = self.compiled.found.get(key) if key is not None else None
            try:
                if found is None or key is None:
                    found = self._prepared(types, None)
                else:
                    self.compiled.found.move_to_end(key)
                    found[0].used()
                prepared, filled = found
                plan = prepared.template.plan
                recording = recording_for(prepared, filled) if plan.steps and not prepared.template.counted else None
                if recording is None or not (recording.checked or self._may_have(recording.ends, plan, filled)):
                    return False
                if not recording.checked and key is not None:
                    self.context.bound.add(recording)
                recording.checked = True
                word = recording.enqueue(prepared.current(filled))
            except UnknownValueError:
                return False  # `run` asks for content
            except OutOfDeviceMemoryError:
                if key is not None:  # nothing can be given back
                    raise
                return False
            if key is None:
                self._foresee(types)
            return word

    @staticmethod
    def _may_have(ends: Ends, plan: Plan, filled: Filled) -> bool:
        """Whether no tensor is empty, and outputs that are buffers of inputs are such as the plan writes in place."""
        shared = {(i, o) for i, a in enumerate(ends.inputs) for o, b in enumerate(ends.outputs) if a.buffer is b.buffer}
        return Steady.fits(filled) and shared <= set(plan.in_place)

    # ---- which plan a run has. Under the lock.

    def _content(self, types: tuple[TensorType, ...], read: Read | None) -> dict[int, Array]:
        """The content of the inputs that decide on shapes. Raises UnknownValueError, where nobody can read them."""
        if self.steering and read is None:
            raise UnknownValueError(self.graph.inputs[self.steering[0]])
        return {index: read(index, types[index]) for index in self.steering} if read is not None else {}

    def _prepared(self, types: tuple[TensorType, ...], read: Read | None) -> Found:
        if self.context.closed:
            raise InternalError(f"program {self.graph.name} is closed")
        values: Mapping[int, Array] = self._content(types, read)
        foreseen, planned = self._foreseen, self.planned
        is_foreseen = foreseen is not None and not values and foreseen[0][0] == types
        # whose hash is known
        key = foreseen[0] if foreseen is not None and is_foreseen else Key((types, _key(values)))
        filled = self.compiled.found.get(key)
        if filled is None:
            self._foreseen = None
            is_there = foreseen is not None and is_foreseen and not foreseen[1][0].closed
            filled = foreseen[1] if is_there and foreseen is not None else self.compiled.fill(types, values)
            if filled is None:
                try:
                    filled, values = self._new_plan(types, values, read)
                except OutOfDeviceMemoryError:
                    if not self._give_back():
                        raise
                    filled, values = self._new_plan(types, values, read)
                key = Key((types, _key(values)))  # more content may count than was known
            self.compiled.remember(key, filled)
        self.compiled.found.move_to_end(key)
        filled[0].used(self.planned > planned)
        return filled

    def _new_plan(
        self,
        types: tuple[TensorType, ...],
        values: Mapping[int, Array],
        read: Read | None,
    ) -> tuple[Found, Mapping[int, Array]]:
        """A plan for these types, with their numbers, and the content that it follows from."""
        recent = self.context.made_plan
        if sum(recent) >= MOST_NEW and not self.config.strict:
            recent.append(True)
            raise UnsupportedNodeError(
                Code.COST,
                f"{self.graph.name}: {sum(recent)} of the last {len(recent)} runs needed a plan of their own: "
                "shapes depend on data that is different each time. A run that an earlier plan holds for still goes "
                "to the GPU; "
                "placement=cpu avoids the rest.",
            )
        template, values = self._template(types, values, read)
        better = self.better.on_units(template, types, values) if self._units_later else None
        template = template if better is None else better.instead
        filled = template.fill(types, values)
        if filled is None:
            raise InternalError(
                f"program {self.graph.name}: a plan does not hold for the sizes that it was made for: {types}"
            )
        prepared = self.compiled.add(template)
        if better is not None:
            better.follow(prepared)
        self.planned += 1
        self.compiled.drop_oldest(self.compiled.general, MAX_PLANS)
        return (prepared, filled), values

    def _template(
        self,
        types: tuple[TensorType, ...],
        values: Mapping[int, Array],
        read: Read | None,
    ) -> tuple[Template, Mapping[int, Array]]:
        """Finds out on the way which inputs' content it takes: those that a value comes from which a builder asks
        for."""
        while True:
            try:
                return self.context.template(types, values), values
            except UnknownValueError as error:
                names = sorted({*self.steering, *sources(self.graph, error.operand, types)})
                if names == list(self.steering) or read is None:
                    raise
                self.steering = tuple(names)
                values = self._content(types, read)

    def _often(self, filled: Filled) -> None:
        """There were many runs of these sizes by a general plan: they get one of their own, see better_plans.py."""
        found = next((key for key, (_, known) in self.compiled.found.items() if known is filled), None)
        if found is not None and self.config.specialize == "auto":
            self.better.specialize(found)

    def _values_of(self, key: Key) -> dict[int, Array]:
        """The content of the inputs that decide on shapes, as a key has it."""
        types, values = key
        return {
            k: np.frombuffer(data, types[k].dtype.numpy).reshape(types[k].shape)
            for k, data in zip(self.steering, values, strict=True)
        }

    def shrink(self) -> None:
        """Frees what it holds only for runs: values inside of them, inputs and outputs that repeated runs keep. Weights
        stay."""
        with self.lock:
            if not self.context.closed:
                self.compiled.shrink()

    def close(self) -> None:
        """Frees the program's device memory."""
        with self.lock:
            if self.context.closed:
                return
            self.compiled.close()
            self.context.close()
        self.gpu.trim()


def _grown(before: TensorType, last: TensorType) -> TensorType:
    """What comes next, where each size changes by as much again; the last where that can't be."""
    if before.rank != last.rank or any(2 * n < m for m, n in zip(before.shape, last.shape, strict=True)):
        return last
    return TensorType(last.dtype, tuple(2 * n - m for m, n in zip(before.shape, last.shape, strict=True)))


def _key(values: Mapping[int, Array]) -> tuple[bytes, ...]:
    """Of the content of some inputs, whose types are known."""
    return tuple(array.tobytes() for array in values.values())


def _static_types(graph: Graph) -> tuple[TensorType, ...] | None:
    types = []
    for name in graph.inputs:
        value = graph.values[name]
        if value.dtype is None or value.shape is None or not all(isinstance(d, int) and d >= 0 for d in value.shape):
            return None
        types.append(TensorType(value.dtype, tuple(d for d in value.shape if isinstance(d, int))))
    return tuple(types)
