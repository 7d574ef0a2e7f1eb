"""A compiled partition: weights on the device, a prepared plan per set of input types, and the recording of runs."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ort_gpu_ep import host
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import native
from ort_gpu_ep.device.gpu import Buffer, Gpu
from ort_gpu_ep.device.library import GPUError
from ort_gpu_ep.device.pipelines import bind_group_layout, pipelines
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.graph import Array, Graph, Value
from ort_gpu_ep.registry import parts
from ort_gpu_ep.scheduler import Plan, make_plan
from ort_gpu_ep.scheduler.plan import Copy, Dispatch, Kind, Place
from ort_gpu_ep.scheduler.planner import Rewrite
from ort_gpu_ep.types import Shape, TensorType

MAX_PLANS = 8
"""Input shapes whose plans (and activation buffers) a program keeps; the least recently used goes first."""

MAX_BINDINGS = 16
"""Sets of input and output buffers whose bind groups a plan keeps."""


class Program:
    """A partition, ready to run. Thread-safe.

    graph: constants are read now (their views may die with the caller). rewrite: fusion, run for each plan.
    Raises what `make_plan` raises for static shapes.
    """

    def __init__(self, graph: Graph, config: Config, gpu: Gpu, rewrite: Rewrite | None = None) -> None:
        self.config, self.gpu, self.rewrite = config, gpu, rewrite
        self._lock = threading.Lock()
        self._weights: dict[str, Buffer] = {}
        self._plans: OrderedDict[tuple[TensorType, ...], Prepared] = OrderedDict()
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
        """The plans made so far, the most recently used last."""
        return tuple(p.plan for p in self._plans.values())

    def is_prepared(self, inputs: Sequence[TensorType]) -> bool:
        """Whether a run with these input types begins at once."""
        return tuple(inputs) in self._plans

    def plan(self, inputs: Sequence[TensorType]) -> Plan:
        """The plan for these input types (made if needed). Raises UnsupportedNodeError, ShaderError, DeviceError."""
        with self._lock:
            return self._prepared(tuple(inputs)).plan

    def _prepared(self, types: tuple[TensorType, ...]) -> Prepared:
        if self._closed:
            raise InternalError(f"program {self.graph.name} is closed")
        prepared = self._plans.get(types)
        if prepared is None:
            plan = make_plan(self.graph, dict(zip(self.graph.inputs, types, strict=True)), self.gpu.limits, self.rewrite)
            for name in plan.weights:
                if name not in self._weights:
                    self._weights[name] = self._upload(self._small(name))
            prepared = self._plans[types] = Prepared(plan, self)
            while len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)[1].close()
        self._plans.move_to_end(types)
        return prepared

    def weight(self, name: str) -> Buffer:
        return self._weights[name]

    def run(self, inputs: Sequence[Tensor], make_output: Callable[[int, Shape], Tensor]) -> None:
        """Records the work of one run; it is submitted with the readback of its results. Does not wait.

        inputs: in the order of graph.inputs. make_output: gives the tensor for output `index` of that shape.
        """
        with self._lock:
            prepared = self._prepared(tuple(t.type for t in inputs))
            outputs = [make_output(i, t.shape) for i, t in enumerate(prepared.plan.outputs)]
            prepared.run([*inputs], outputs)

    def close(self) -> None:
        """Frees the program's device memory."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for prepared in self._plans.values():
                prepared.close()
            for buffer in self._weights.values():
                self.gpu.free(buffer)
            self._plans.clear()
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


class Prepared:
    """A plan with its pipelines, buffers and bind groups, and at most one command buffer recorded ahead."""

    def __init__(self, plan: Plan, program: Program) -> None:
        self.plan, self.program, self.gpu = plan, program, program.gpu
        checked = program.config.checked_shaders
        self._pipelines = pipelines(self.gpu, plan, checked)
        self._slots: list[Buffer] = []
        self._constants: dict[str, Buffer] = {}
        try:
            for nbytes in plan.slots:
                self._slots.append(self.gpu.allocate(nbytes))
            for constant in plan.constants:
                self._constants[constant.name] = buffer = self.gpu.allocate(len(constant.data))
                if constant.data:
                    program.upload(buffer, native.address_of(constant.data), len(constant.data))
        except Exception:
            self.close()
            raise
        self._inner: dict[int, Any] = {}
        self._bindings: OrderedDict[tuple[Any, ...], list[Any]] = OrderedDict()
        self._ahead: tuple[Any, tuple[Any, ...], list[Any]] | None = None     # timer, key, command buffers
        self._last: tuple[tuple[Any, ...], list[Tensor], list[Tensor]] | None = None
        self._runs = itertools.count()

    def close(self) -> None:
        for buffer in (*self._slots, *self._constants.values()):
            self.gpu.free(buffer)
        self._slots, self._constants = [], {}
        self._ahead = self._last = None

    def run(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        if not self.plan.steps:
            return
        key = tuple((t.buffer.serial, t.offset_bytes) for t in (*inputs, *outputs))
        ahead, self._ahead = self._ahead, None
        command_buffers = ahead[2] if ahead and ahead[:2] == (self.gpu.timer, key) else self._record(key, inputs, outputs)
        self.gpu.execute(command_buffers, [(t.buffer, t.offset_bytes, t.type.nbytes) for t in outputs])
        self._last = (key, inputs, outputs)
        if next(self._runs):
            self.gpu.on_wait(self)

    def record_ahead(self) -> None:
        """Called while the host waits for the GPU: the next run most likely uses the same buffers."""
        if self.program._lock.acquire(blocking=False):
            try:
                if self._last and not self._ahead and self._slots is not None and not self.program._closed:
                    self._ahead = (self.gpu.timer, self._last[0], self._record(*self._last))
            finally:
                self.program._lock.release()

    def _record(self, key: tuple[Any, ...], inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        """The command buffers of a run: one, or with `submit_each` one a step."""
        steps = list(zip(self.plan.steps, self._pipelines, self._bind_groups(key, inputs, outputs), strict=True))
        try:
            return [self._encode(part, inputs, outputs) for part in ([[s] for s in steps] if self.gpu.submit_each else [steps])]
        except GPUError as error:
            raise self.gpu.failure(error, f"{self.program.graph.name}: a recording of\n{self.plan}\n") from error

    def _encode(self, steps: list[tuple[Dispatch | Copy, Any, Any]], inputs: list[Tensor], outputs: list[Tensor]) -> Any:
        encoder = self.gpu.device.create_command_encoder(self.program.graph.name)
        compute: Any = None
        timer = self.gpu.timer
        for step, pipe, group in steps:
            if isinstance(step, Dispatch):
                compute = compute or encoder.begin_compute_pass(timer.queries if timer else None)
                native.dispatch(compute, pipe, group, step.groups)
            else:
                if compute:
                    compute.end()
                    compute = None
                self._copy(encoder, step, inputs, outputs)
        if compute:
            compute.end()
        if timer:
            timer.resolve(encoder)
        return native.finish(encoder)

    def _copy(self, encoder: Any, step: Copy, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        (source, at), (target, to) = (self._buffer(p, inputs, outputs) for p in (step.source, step.target))
        native.copy_buffer(encoder, source.native, at, target.native, to, (step.nbytes + 3) & ~3)

    def _buffer(self, place: Place, inputs: list[Tensor], outputs: list[Tensor]) -> tuple[Buffer, int]:
        match place.kind:
            case Kind.INPUT:
                return inputs[place.index].buffer, inputs[place.index].offset_bytes
            case Kind.OUTPUT:
                return outputs[place.index].buffer, outputs[place.index].offset_bytes
            case Kind.WEIGHT:
                return self.program.weight(place.name), 0
            case Kind.CONSTANT:
                return self._constants[place.name], 0
            case _:
                return self._slots[place.index], 0

    def _bind_groups(self, key: tuple[Any, ...], inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        """A bind group for each step; those that touch no input or output are made once."""
        groups = self._bindings.get(key)
        if groups is None:
            groups = [self._bind_group(i, s, inputs, outputs) if isinstance(s, Dispatch) else None for i, s in enumerate(self.plan.steps)]
            self._bindings[key] = groups
            if len(self._bindings) > MAX_BINDINGS:
                self._bindings.popitem(last=False)
        self._bindings.move_to_end(key)
        return groups

    def _bind_group(self, index: int, step: Dispatch, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
        outer = any(t.place.kind in (Kind.INPUT, Kind.OUTPUT) for t in step.tensors)
        if not outer and index in self._inner:
            return self._inner[index]
        bindings: list[tuple[Any, int, int]] = []
        written: list[bool] = []
        for tensor in step.tensors:
            buffer, offset = self._buffer(tensor.place, inputs, outputs)
            nbytes = tensor.type.dtype.nbytes
            for first, elements in parts(tensor.type, self.gpu.limits.max_binding_nbytes):
                size = max((elements * nbytes + 3) & ~3, 8 if nbytes == 8 else 4)
                bindings.append((buffer.native, offset + first * nbytes, size))
                written.append(tensor.written)
        layout = bind_group_layout(self.gpu, tuple(written))
        try:
            group = self.gpu.device.create_bind_group(step.label, layout, bindings)
        except GPUError as error:
            raise self.gpu.failure(error, f"{step.label}: a bind group") from error
        if not outer:
            self._inner[index] = group
        return group
