"""A compiled partition: weights on the device, and its plans, each for all sizes that it holds for."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ort_gpu_ep import host
from ort_gpu_ep.config import Config
from ort_gpu_ep.device.bound import Bound
from ort_gpu_ep.device.buffers import Buffer
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.index_check import Word
from ort_gpu_ep.device.pipelines import Composer, pipeline
from ort_gpu_ep.device.prepared import Prepared
from ort_gpu_ep.device.prologue import Prologue
from ort_gpu_ep.device.specialization import Key, Specializer
from ort_gpu_ep.device.steady import Steady
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import Code, InternalError, UnsupportedNodeError
from ort_gpu_ep.graph import Array, Graph, Value, fits_half, nonzeros_of
from ort_gpu_ep.registry import Limits, UnknownValueError
from ort_gpu_ep.scheduler import Plan
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import Rewrite
from ort_gpu_ep.scheduler.template import Filled, Specialization, Template, make_template, sources
from ort_gpu_ep.shaders import compose
from ort_gpu_ep.types import FLOAT32, Shape, TensorType, dtype_of, packed

MAX_PLANS = 8
"""Plans (with their pipelines and activation buffers) that a program keeps; the least recently used goes first. One plan serves all
sizes that need the same kernels, so there are more only for an operator that has a form for each size."""

MAX_SHAPES = 256
"""Sets of input types whose numbers a program keeps: what a new one takes is computed in less than a millisecond."""

RECENT_RUNS = 32
MOST_NEW = 24
"""Of so many runs, so many needed a plan of their own: what the data decides on varies too much, and planning takes longer than the CPU."""

MAX_SHOWN = 8
"""Sets of input types that `plans` tells of."""


Read: TypeAlias = Callable[[int, TensorType], Array]
"""The content of an input, by its position and type."""


class Program:
    """A partition, ready to run. Thread-safe. lock: held while a run is made ready and enqueued, not while it is waited for.

    graph: constants are read now (their views may die with the caller). rewrite: fusion, run for each plan. composer: of its shaders.
    ran: called with the outputs of each run behind its commands; there are no steady runs then, whose readback is one with the run.
    Raises what `make_plan` raises for static shapes.
    """

    def __init__(
        self, graph: Graph, config: Config, gpu: Gpu, rewrite: Rewrite | None = None, composer: Composer = compose,
        ran: Callable[[Sequence[Tensor]], object] | None = None,
    ) -> None:
        self.composer, self._ran = composer, ran
        self.config, self.gpu, self.rewrite = config, gpu, rewrite
        self.lock = threading.Lock()
        self._weights: dict[str, Buffer] = {}
        self.replaced: dict[str, Dispatch] = {}     # weights that are only there as the prologue packed them -> what gives them back
        self.prologue = Prologue(gpu, config.checked_shaders, self.weight, composer)
        self._plans: list[Prepared] = []    # general ones, the most recently used last
        self._specializer = Specializer(self)
        self._filled: OrderedDict[Key, tuple[Prepared, Filled]] = OrderedDict()
        self.steering: tuple[int, ...] = ()     # positions of the inputs whose content decides on shapes: read before a run
        self.planned = 0        # plans ever made: a new size makes none where one holds for it
        self._new: deque[bool] = deque(maxlen=RECENT_RUNS)      # whether each of the last runs needed one
        self.closed = False
        self.uploads = self.uploaded_nbytes = 0     # of constants, now and when a plan is made
        self.graph = self._take_constants(graph)
        static = _static_types(graph)
        if static is not None:
            try:
                self._prepared(static, None)
            except UnknownValueError:
                pass        # the first run brings what decides on shapes
            except Exception:
                self.close()
                raise

    @property
    def limits(self) -> Limits:
        """What its plans are made for: the adapter, as the options want it."""
        return self.gpu.limits.of(self.config)

    def _take_constants(self, graph: Graph) -> Graph:
        """Large constants go to the device, small ones are copied; the graph that remains refers to neither ONNX Runtime nor a file."""
        values: dict[str, Value] = {}
        read = {n for node in graph.nodes for n in node.reads} | set(graph.outputs)
        for name, value in graph.values.items():
            if value.load is None:
                continue
            array = value.load()
            if TensorType(dtype_of(array), array.shape).nbytes <= host.MAX_CONSTANT_NBYTES:
                kept = np.array(array)
                values[name] = Value(name, value.dtype, value.shape, _giver(kept))
            else:
                if name in read:
                    self._weights[name] = self._upload(array)
                fits = self.config.precision != FLOAT32.name and fits_half(value)
                values[name] = Value(name, value.dtype, value.shape, _refuser(name), nonzeros_of(value), fits)
        return graph.with_nodes(graph.nodes, values)

    def _upload(self, array: Array) -> Buffer:
        data = packed(array)
        buffer = self.gpu.allocate(data.nbytes)
        self.upload(buffer, data.ctypes.data, data.nbytes)
        return buffer

    def upload(self, buffer: Buffer, address: int, nbytes: int) -> None:
        """Copies a constant to the device, and counts it."""
        self.gpu.upload(buffer, 0, address, nbytes)
        if nbytes:
            self.uploads += 1
            self.uploaded_nbytes += nbytes

    def _small(self, name: str) -> Array:
        array = self.graph.constant(name)
        if array is None:
            raise InternalError(f"program {self.graph.name}: weight {name!r} is not a constant of its graph")
        return array

    @property
    def weight_nbytes(self) -> int:
        """Device memory of the weights, and of what is computed from them once."""
        with self.lock:
            return sum(b.nbytes for b in self._weights.values()) + self.prologue.nbytes

    @property
    def specialized(self) -> tuple[Specialization, ...]:
        """Sizes that have a plan of their own, or could not get one."""
        with self.lock:
            return tuple(self._specializer.records.values())

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans with the numbers of the last sizes seen, the most recently used last."""
        with self.lock:
            return tuple(prepared.template.at(filled) for prepared, filled in list(self._filled.values())[-MAX_SHOWN:])

    def is_prepared(self, inputs: Sequence[TensorType], read: Read | None = None) -> bool:
        """Whether a run with these input types (and contents) begins at once."""
        with self.lock:
            types = tuple(inputs)
            return (types, _key(self._content(types, read))) in self._filled

    def prepare(self, inputs: Sequence[TensorType], read: Read | None = None) -> None:
        """Makes what a run with these input types needs. Raises UnsupportedNodeError, ShaderError, DeviceError."""
        with self.lock:
            self._prepared(tuple(inputs), read)

    def plan(self, inputs: Sequence[TensorType], read: Read | None = None) -> Plan:
        """The plan with the numbers of these input types (made if needed). Raises as `prepare`."""
        with self.lock:
            prepared, filled = self._prepared(tuple(inputs), read)
            return prepared.template.at(filled)

    def _content(self, types: tuple[TensorType, ...], read: Read | None) -> dict[int, Array]:
        """The content of the inputs that decide on shapes. Raises UnknownValueError, where nobody can read them."""
        if self.steering and read is None:
            raise UnknownValueError(self.graph.inputs[self.steering[0]])
        return {index: read(index, types[index]) for index in self.steering} if read is not None else {}

    def _prepared(self, types: tuple[TensorType, ...], read: Read | None) -> tuple[Prepared, Filled]:
        if self.closed:
            raise InternalError(f"program {self.graph.name} is closed")
        values: Mapping[int, Array] = self._content(types, read)
        key: Key = (types, _key(values))
        found = self._filled.get(key)
        made = self.planned
        if found is None:
            found = self._filled_plan(types, values)
            if found is None:
                found, values = self._new_plan(types, values, read)
                key = (types, _key(values))     # more content may count than was known
            self._filled[key] = found
            while len(self._filled) > MAX_SHAPES:
                _, (owner, _) = self._filled.popitem(last=False)
                if owner.is_specialized:
                    self.drop(owner)
        self._new.append(self.planned > made)
        self._filled.move_to_end(key)
        self._use(found[0])
        return found

    def _use(self, prepared: Prepared) -> None:
        plans = self._specializer.plans if prepared.is_specialized else self._plans
        if plans[-1] is not prepared:
            plans.remove(prepared)
            plans.append(prepared)

    def used(self, prepared: Prepared) -> None:
        """Another run of a plan, by what `steady` gave. Under the lock."""
        self._new.append(False)
        self._use(prepared)

    def steady(self, inputs: Sequence[TensorType]) -> Steady | None:
        """What further runs with these input types go by; None where each needs `run`, or there was none yet."""
        with self.lock:
            found = None if self.gpu.submit_each else self._again(inputs)
            return found[0].steady(found[1]) if found is not None and Steady.fits(found[1]) else None

    def bound(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Bound | None:
        """Runs with these inputs and outputs each time; None where each needs `run`. Not with an empty tensor among them."""
        with self.lock:
            found = self._again([t.type for t in inputs])
            return Bound(*found, inputs, outputs) if found is not None and Steady.fits(found[1]) else None

    def _again(self, inputs: Sequence[TensorType]) -> tuple[Prepared, Filled] | None:
        """The plan of runs with these input types, that all go the same way; None where they may not, or there is nothing to do."""
        never = self.steering or self.closed or self._ran is not None
        found = None if never else self._filled.get((tuple(inputs), ()))
        return found if found is not None and found[0].template.plan.steps else None

    def _filled_plan(self, types: tuple[TensorType, ...], values: Mapping[int, Array]) -> tuple[Prepared, Filled] | None:
        """A plan that holds for these types, with their numbers."""
        for prepared in reversed(self._plans):
            filled = prepared.template.fill(types, values)
            if filled is not None:
                return prepared, filled
        return None

    def _new_plan(
        self, types: tuple[TensorType, ...], values: Mapping[int, Array], read: Read | None,
    ) -> tuple[tuple[Prepared, Filled], Mapping[int, Array]]:
        """A plan for these types, with their numbers, and the content that it follows from."""
        if sum(self._new) >= MOST_NEW and not self.config.strict:
            self._new.append(True)
            raise UnsupportedNodeError(
                Code.COST, f"{self.graph.name}: {sum(self._new)} of the last {len(self._new)} runs needed a plan of their own: "
                "shapes depend on data that is different each time. A run that an earlier plan holds for still goes to the GPU; "
                "placement=cpu avoids the rest.")
        template, values = self._template(types, values, read)
        filled = template.fill(types, values)
        if filled is None:
            raise InternalError(f"program {self.graph.name}: a plan does not hold for the sizes that it was made for: {types}")
        prepared = self.prepared(template)
        self.planned += 1
        while len(self._plans) > MAX_PLANS:
            self.drop(self._plans[0])
        return (prepared, filled), values

    def prepared(self, template: Template, compiled: list[Any] | None = None) -> Prepared:
        """Makes a plan one of this program's. compiled: as Prepared has it. Under the lock. Raises ShaderError, DeviceError."""
        for name in template.plan.weights:
            if name not in self._weights and name not in self.replaced:
                self._weights[name] = self._upload(self._small(name))
        made = Prepared(template, self, compiled)
        (self._specializer.plans if made.is_specialized else self._plans).append(made)
        self._release()
        return made

    # ---- plans of their own for sizes that come again and again, see specialization.py. Under the lock.

    def often(self, filled: Filled) -> None:
        """There were many runs of these sizes by a general plan."""
        found = next(((types, given) for (types, given), (_, known) in self._filled.items() if known is filled), None)
        if found is not None and self.config.specialize == "auto":
            types, given = found
            values = {k: np.frombuffer(data, types[k].dtype.numpy).reshape(types[k].shape)
                      for k, data in zip(self.steering, given, strict=True)}
            self._specializer.want(found, types, values)

    def missing_nbytes(self, plan: Plan) -> int:
        """Device memory of weights that a plan wants in an order in which they are not there."""
        restored = (self.replaced[name].tensors[-1].type.nbytes for name in plan.weights if name in self.replaced)
        return self.prologue.missing_nbytes(plan.prologue) + sum(restored)

    def apart(self, base: Template, filled: Filled) -> tuple[Template, list[Any]]:
        """A plan of the same sizes, each value with memory of its own, and its pipelines. Without the lock.

        It reads what `base` reads, which keeps that on the device. Raises UnsupportedNodeError, ShaderError, InternalError.
        """
        template = make_template(self.graph, filled.inputs, self.limits, self.rewrite, constant=True, apart=True)
        if not (set(template.plan.prologue) <= set(base.plan.prologue) and set(template.plan.weights) <= set(base.plan.weights)):
            raise InternalError(f"program {self.graph.name}: another plan of the same sizes reads other weights")
        return template, [pipeline(self.gpu, step, self.config.checked_shaders, self.composer) if isinstance(step, Dispatch) else None
                          for step in template.plan.steps]

    def placed(self, template: Template, compiled: list[Any]) -> Prepared:
        """What `apart` gave on the device; the caller closes it. Under the lock. Raises DeviceError."""
        return Prepared(template, self, compiled)

    def switch(self, key: Key, prepared: Prepared, filled: Filled) -> None:
        """Runs of these sizes have this plan from now on."""
        if key in self._filled:
            general, known = self._filled[key]
            general.leave(known)
        self._filled[key] = prepared, filled
        self._use(prepared)

    def _template(
        self, types: tuple[TensorType, ...], values: Mapping[int, Array], read: Read | None,
    ) -> tuple[Template, Mapping[int, Array]]:
        """Finds out on the way which inputs' content it takes: those that a value comes from which a builder asks for."""
        while True:
            try:
                return make_template(self.graph, types, self.limits, self.rewrite, values), values
            except UnknownValueError as error:
                wanted = sorted({*self.steering, *sources(self.graph, error.operand, types)})
                if wanted == list(self.steering) or read is None:
                    raise
                self.steering = tuple(wanted)
                values = self._content(types, read)

    def drop(self, prepared: Prepared) -> None:
        """Frees a plan; its sizes get another one when they come again. Under the lock."""
        (self._specializer.plans if prepared.is_specialized else self._plans).remove(prepared)
        for key in [k for k, (owner, _) in self._filled.items() if owner is prepared]:
            del self._filled[key]
            self._specializer.records.pop(key, None)
        prepared.close()
        plans = [p.template.plan for p in self._prepared_plans()]
        inverses = {step for plan in plans for step in plan.inverses}
        for name in [name for name, step in self.replaced.items() if step not in inverses]:
            self.weight(name)
        self.prologue.keep(plans)

    def _prepared_plans(self) -> list[Prepared]:
        return [*self._plans, *self._specializer.plans]

    def _release(self) -> None:
        """Frees weights that no run reads and that could be had back from what the prologue made of them."""
        plans = [p.template.plan for p in self._prepared_plans()]
        places = {place for plan in plans for step in plan.steps
                  for place in ([t.place for t in step.tensors] if isinstance(step, Dispatch) else [step.source])}
        for inverse in [step for plan in plans for step in plan.inverses]:
            weight = inverse.tensors[-1].place
            if weight not in places and weight.name in self._weights:
                self.gpu.free(self._weights.pop(weight.name))
                self.replaced[weight.name] = inverse

    def weight(self, name: str) -> Buffer:
        """A weight's buffer; what was freed is made again of what it was packed into. Raises DeviceError, ShaderError."""
        if name in self.replaced:
            self._weights[name] = self.prologue.restored(self.replaced[name])
            del self.replaced[name]
        return self._weights[name]

    def run(self, inputs: Sequence[Tensor], make_output: Callable[[int, Shape], Tensor], read: Read | None = None) -> Word | None:
        """Records the work of one run; it is submitted with the readback of its results. Does not wait.

        inputs: in the order of graph.inputs. make_output: gives the tensor for output `index` of that shape. read: gives the content of
        an input, by position and type, for those few that decide on shapes. Returns the word to read with the results, if there is one.
        """
        with self.lock:
            prepared, filled = self._prepared(tuple(t.type for t in inputs), read)
            outputs = [make_output(i, t.shape) for i, t in enumerate(filled.outputs)]
            word = prepared.run(filled, [*inputs], outputs)
            if self._ran is not None:
                self._ran(outputs)
            return word

    def close(self) -> None:
        """Frees the program's device memory."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            for prepared in self._prepared_plans():
                prepared.close()
            self.prologue.close()
            for buffer in self._weights.values():
                self.gpu.free(buffer)
            self._plans.clear()
            self._specializer.plans.clear()
            self._filled.clear()
            self._weights.clear()
        self.gpu.trim()


def _key(values: Mapping[int, Array]) -> tuple[bytes, ...]:
    """Of the content of some inputs, whose types are known."""
    return tuple(array.tobytes() for array in values.values())


def _giver(array: Array) -> Callable[[], Array]:
    return lambda: array


def _refuser(name: str) -> Callable[[], Array]:
    def refuse() -> Array:
        raise InternalError(f"constant {name!r} is on the device; a builder asked for its value")
    return refuse


def _static_types(graph: Graph) -> tuple[TensorType, ...] | None:
    types = []
    for name in graph.inputs:
        value = graph.values[name]
        if value.dtype is None or value.shape is None or not all(isinstance(d, int) and d >= 0 for d in value.shape):
            return None
        types.append(TensorType(value.dtype, tuple(d for d in value.shape if isinstance(d, int))))
    return tuple(types)
