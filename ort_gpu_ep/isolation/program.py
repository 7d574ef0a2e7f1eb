"""A partition in a worker, as the parent has it."""

from __future__ import annotations

import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import DeviceError
from ort_gpu_ep.graph import Array, Graph
from ort_gpu_ep.isolation.channel import aligned
from ort_gpu_ep.isolation.process import PREPARE_S
from ort_gpu_ep.isolation.remote import RUN_S, RemoteGpu
from ort_gpu_ep.isolation.wire import FilePlace, SharedPlace, with_constants, without_constants
from ort_gpu_ep.scheduler import Plan, make_plan
from ort_gpu_ep.scheduler.planner import Rewrite
from ort_gpu_ep.types import Shape, TensorType

INLINE_NBYTES = 4 << 10
"""Larger constants don't go through the socket."""

_MAX_TYPES = 8
"""Sets of input types that a program remembers for `plans`, as many as a worker keeps."""

_numbers = itertools.count(1)

Read = Callable[[int, int, int], object]
"""(address, into, nbytes): copies a tensor of ONNX Runtime's to host memory."""
Write = Callable[[int, int, int], object]
"""(address, source, nbytes): copies host memory to a tensor of ONNX Runtime's."""


class RemoteProgram:
    """A partition, ready to run in the worker. Thread-safe.

    graph: only its structure is kept. constants: small ones, and files of large ones that stay until `close`.
    Raises what the worker's `Program` raises, and DeviceLostError where compiling ends the worker.
    """

    def __init__(
        self, graph: Graph, constants: Mapping[str, Array | FilePlace], config: Config, gpu: RemoteGpu, rewrite: Rewrite | None = None
    ) -> None:
        self.config, self.gpu, self.rewrite = config, gpu, rewrite
        self.number, self.weight_nbytes = next(_numbers), 0
        self.uploads = self.uploaded_nbytes = 0     # of constants, into the worker's device
        self._bare, self._constants = without_constants(graph), dict(constants)
        self.graph = with_constants(self._bare, constants)
        self._problem = ""
        self._timeout_s = config.hang_timeout_ms / 1e3 or RUN_S
        self._plans: OrderedDict[tuple[TensorType, ...], Plan | None] = OrderedDict()
        self._plans_lock = threading.Lock()
        gpu.add(self)

    def compile(self) -> None:
        """Sends the partition to the worker. Hold the GPU's lock."""
        memory, end = self.gpu.process.memory, 0
        large = {n: c for n, c in self._constants.items() if isinstance(c, np.ndarray) and c.nbytes > INLINE_NBYTES}
        places = {}
        for name, array in large.items():
            places[name] = SharedPlace(end, array.dtype, array.shape)
            end = aligned(end + array.nbytes)
        memory.reserve(end)
        for name, array in large.items():
            memory.bytes_at(places[name].offset, array.nbytes)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        sent: dict[str, Array | FilePlace | SharedPlace] = {**self._constants, **places}
        answer = self.gpu.request(("compile", self.number, self._bare, sent, self.config), PREPARE_S)
        self.weight_nbytes = int(answer["weight_nbytes"])
        self.uploads += int(answer["uploads"])
        self.uploaded_nbytes += int(answer["uploaded_nbytes"])

    def compile_again(self) -> None:
        """In a new worker. What goes wrong is this program's own: its runs say so."""
        try:
            self._problem = ""
            self.compile()
        except Exception as error:
            self._problem = f"the new worker does not compile it: {type(error).__name__}: {error}"
            if self.gpu.pid is None:
                raise

    def run(self, inputs: Sequence[tuple[int, TensorType]], read: Read, write: Write,
            make_output: Callable[[int, Shape], tuple[int, TensorType]]) -> None:
        """inputs: (address, type) in the order of graph.inputs. make_output: gives the same for output `index` of a shape."""
        types = tuple(kind for _, kind in inputs)
        offsets, end = [], 0
        for kind in types:
            offsets.append(end)
            end = aligned(end + kind.nbytes)
        with self.gpu.lock:
            if self._problem:
                raise DeviceError(self._problem)
            memory = self.gpu.process.memory
            memory.reserve(end)
            for (address, kind), offset in zip(inputs, offsets, strict=True):
                if kind.nbytes:
                    read(address, memory.address + offset, kind.nbytes)
            given = [(kind.dtype.onnx, kind.shape, offset) for kind, offset in zip(types, offsets, strict=True)]
            places = self.gpu.run(self, ("run", self.number, given, end), self._timeout_s)
            memory.follow()
            self._check(places, memory.nbytes)
            for index, (shape, offset) in enumerate(places):
                address, kind = make_output(index, shape)
                if kind.nbytes:
                    write(address, memory.address + offset, kind.nbytes)
        self._remember(types)

    def _check(self, places: Sequence[tuple[Shape, int]], nbytes: int) -> None:
        """Raises DeviceLostError, where outputs can't be in the shared memory."""
        for name, (shape, offset) in zip(self.graph.outputs, places, strict=True):
            value = self.graph.values[name]
            ends = offset + math.prod(shape) * (value.dtype.nbytes if value.dtype is not None else 1)
            if ends > nbytes or (value.shape is not None and len(value.shape) != len(shape)):
                raise self.gpu.senseless(f"output {name!r} of shape {shape} at {offset}, with {nbytes} B shared")

    def _remember(self, types: tuple[TensorType, ...]) -> None:
        with self._plans_lock:
            self._plans.setdefault(types, None)
            self._plans.move_to_end(types)
            while len(self._plans) > _MAX_TYPES:
                self._plans.popitem(last=False)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that the worker uses, made here when somebody asks: a plan follows from the graph, the types and the limits."""
        with self._plans_lock:
            for types, plan in self._plans.items():
                if plan is None:
                    inputs = dict(zip(self.graph.inputs, types, strict=True))
                    self._plans[types] = make_plan(self.graph, inputs, self.gpu.limits, self.rewrite)
            return tuple(p for p in self._plans.values() if p is not None)

    def close(self) -> None:
        """Frees what the worker holds for it."""
        self.gpu.remove(self)
