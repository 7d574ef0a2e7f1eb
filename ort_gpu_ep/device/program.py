"""A compiled partition: weights on the device, and its plans, each for all sizes that it holds for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from ort_gpu_ep import host
from ort_gpu_ep.config import Config
from ort_gpu_ep.device.gpu import Buffer, Gpu
from ort_gpu_ep.device.prepared import Prepared
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.graph import Array, Graph, Value
from ort_gpu_ep.scheduler import Plan
from ort_gpu_ep.scheduler.planner import Rewrite
from ort_gpu_ep.scheduler.template import Filled, make_template
from ort_gpu_ep.types import Shape, TensorType

MAX_PLANS = 8
"""Plans (with their pipelines and activation buffers) that a program keeps; the least recently used goes first. One plan serves all
sizes that need the same kernels, so there are more only for an operator that has a form for each size."""

MAX_SHAPES = 256
"""Sets of input types whose numbers a program keeps: what a new one takes is computed in less than a millisecond."""


MAX_SHOWN = 8
"""Sets of input types that `plans` tells of."""


class Program:
    """A partition, ready to run. Thread-safe.

    graph: constants are read now (their views may die with the caller). rewrite: fusion, run for each plan.
    Raises what `make_plan` raises for static shapes.
    """

    def __init__(self, graph: Graph, config: Config, gpu: Gpu, rewrite: Rewrite | None = None) -> None:
        self.config, self.gpu, self.rewrite = config, gpu, rewrite
        self._lock = threading.Lock()
        self._weights: dict[str, Buffer] = {}
        self._plans: list[Prepared] = []    # the most recently used last
        self._filled: OrderedDict[tuple[TensorType, ...], tuple[Prepared, Filled]] = OrderedDict()
        self.planned = 0        # plans ever made: a new size makes none where one holds for it
        self._closed = False
        self.uploads = self.uploaded_nbytes = 0     # of constants, now and when a plan is made
        self.graph = self._take_constants(graph)
        static = _static_types(graph)
        if static is not None:
            try:
                self._prepared(static)
            except Exception:
                self.close()
                raise

    def _take_constants(self, graph: Graph) -> Graph:
        """Large constants go to the device, small ones are copied; the graph that remains refers to neither ONNX Runtime nor a file."""
        values: dict[str, Value] = {}
        read = {n for node in graph.nodes for n in node.reads} | set(graph.outputs)
        for name, value in graph.values.items():
            if value.load is None:
                continue
            array = value.load()
            if array.nbytes <= host.MAX_CONSTANT_NBYTES:
                kept = np.array(array)
                values[name] = Value(name, value.dtype, value.shape, _giver(kept))
            else:
                if name in read:
                    self._weights[name] = self._upload(array)
                values[name] = Value(name, value.dtype, value.shape, _refuser(name))
        return graph.with_nodes(graph.nodes, values)

    def _upload(self, array: Array) -> Buffer:
        data = np.ascontiguousarray(array)
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
        """Device memory of the weights."""
        return sum(b.nbytes for b in self._weights.values())

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans with the numbers of the last sizes seen, the most recently used last."""
        with self._lock:
            return tuple(prepared.template.at(filled) for prepared, filled in list(self._filled.values())[-MAX_SHOWN:])

    def is_prepared(self, inputs: Sequence[TensorType]) -> bool:
        """Whether a run with these input types begins at once."""
        return tuple(inputs) in self._filled

    def prepare(self, inputs: Sequence[TensorType]) -> None:
        """Makes what a run with these input types needs. Raises UnsupportedNodeError, ShaderError, DeviceError."""
        with self._lock:
            self._prepared(tuple(inputs))

    def plan(self, inputs: Sequence[TensorType]) -> Plan:
        """The plan with the numbers of these input types (made if needed). Raises as `prepare`."""
        with self._lock:
            prepared, filled = self._prepared(tuple(inputs))
            return prepared.template.at(filled)

    def _prepared(self, types: tuple[TensorType, ...]) -> tuple[Prepared, Filled]:
        if self._closed:
            raise InternalError(f"program {self.graph.name} is closed")
        found = self._filled.get(types)
        if found is None:
            found = self._filled[types] = self._filled_plan(types) or self._new_plan(types)
            while len(self._filled) > MAX_SHAPES:
                self._filled.popitem(last=False)
        self._filled.move_to_end(types)
        if self._plans[-1] is not found[0]:
            self._plans.remove(found[0])
            self._plans.append(found[0])
        return found

    def _filled_plan(self, types: tuple[TensorType, ...]) -> tuple[Prepared, Filled] | None:
        """A plan that holds for these types, with their numbers."""
        for prepared in reversed(self._plans):
            filled = prepared.template.fill(types) if prepared.template.takes(types) else None
            if filled is not None:
                return prepared, filled
        return None

    def _new_plan(self, types: tuple[TensorType, ...]) -> tuple[Prepared, Filled]:
        template = make_template(self.graph, types, self.gpu.limits, self.rewrite)
        filled = template.fill(types)
        if filled is None:
            raise InternalError(f"program {self.graph.name}: a plan does not hold for the sizes that it was made for: {types}")
        for name in template.plan.weights:
            if name not in self._weights:
                self._weights[name] = self._upload(self._small(name))
        prepared = Prepared(template, self)
        self.planned += 1
        self._plans.append(prepared)
        while len(self._plans) > MAX_PLANS:
            self._drop(self._plans[0])
        return prepared, filled

    def _drop(self, prepared: Prepared) -> None:
        self._plans.remove(prepared)
        for types in [t for t, (owner, _) in self._filled.items() if owner is prepared]:
            del self._filled[types]
        prepared.close()

    def weight(self, name: str) -> Buffer:
        return self._weights[name]

    def run(self, inputs: Sequence[Tensor], make_output: Callable[[int, Shape], Tensor]) -> None:
        """Records the work of one run; it is submitted with the readback of its results. Does not wait.

        inputs: in the order of graph.inputs. make_output: gives the tensor for output `index` of that shape.
        """
        with self._lock:
            prepared, filled = self._prepared(tuple(t.type for t in inputs))
            outputs = [make_output(i, t.shape) for i, t in enumerate(filled.outputs)]
            prepared.run(filled, [*inputs], outputs)

    def close(self) -> None:
        """Frees the program's device memory."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for prepared in self._plans:
                prepared.close()
            for buffer in self._weights.values():
                self.gpu.free(buffer)
            self._plans.clear()
            self._filled.clear()
            self._weights.clear()
        self.gpu.trim()


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
