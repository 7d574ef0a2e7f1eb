"""A partition that runs in a worker, seen from the parent."""

from __future__ import annotations

import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import DeviceError, DeviceHangError, DeviceLostError
from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.ir.types import MAX_TOLD, Shape, TensorType
from ort_gpu_ep.isolation.channel import SharedMemory, aligned
from ort_gpu_ep.isolation.process import PREPARE_S
from ort_gpu_ep.isolation.process_memory import NBYTES
from ort_gpu_ep.isolation.remote import MAX_KILLED, RUN_S, BusyError, RemoteGpu, Request
from ort_gpu_ep.isolation.wire import SharedPlace, outputs_of, specialized_of, with_constants, without_constants
from ort_gpu_ep.kernels.registry import UnknownValueError
from ort_gpu_ep.runtime.backend import FilePlace, Host
from ort_gpu_ep.scheduler import Plan
from ort_gpu_ep.scheduler.planner import Rewrite
from ort_gpu_ep.scheduler.template import Specialization, Template, make_template

if TYPE_CHECKING:
    from ort_gpu_ep.runtime.better_plans import UnitPlan

INLINE_NBYTES = 4 << 10
"""Larger constants don't go through the socket."""

MAX_ENDED_WORKERS = 2
"""So many workers may end while they compile a program."""

_numbers = itertools.count(1)


class RemoteProgram:
    """A partition, ready to run in the worker. Thread-safe.

    graph: only its structure is kept. constants: small ones, and files of large ones that stay until `close`. artefact:
    key of what is known of the model, empty where nothing is kept. problem: why no worker has it, empty where one does.
    ended_workers, killed_workers: how many ended by themselves, or were killed, while they compiled it, since one did.
    Raises what the worker's `Program` raises; with `strict`, DeviceLostError where compiling ends the worker.
    """

    def __init__(
        self,
        graph: Graph,
        constants: Mapping[str, Array | FilePlace],
        config: Config,
        gpu: RemoteGpu,
        rewrite: Rewrite | None = None,
        artefact: str = "",
    ) -> None:
        self.config, self.gpu, self.rewrite, self._artefact = config, gpu, rewrite, artefact
        self.number, self.weight_nbytes = next(_numbers), 0
        self.uploads = self.uploaded_nbytes = 0  # of constants, into the worker's device
        self._bare, self._constants = without_constants(graph), dict(constants)
        self.graph = with_constants(self._bare, constants)
        self.problem, self.ended_workers, self.killed_workers = "", 0, 0
        self.specialized: tuple[Specialization, ...] = ()
        self.unit_plans: tuple[UnitPlan, ...] = ()  # a worker's plans wait for their kernels
        self._timeout_s = config.hang_timeout_ms / 1e3 or RUN_S
        self._plans: OrderedDict[tuple[TensorType, ...], Plan | None] = OrderedDict()
        self._templates: list[Template] = []
        self._plans_lock = threading.Lock()
        gpu.add(self)

    def compile(self, memory: SharedMemory, request: Request) -> None:
        """Sends the partition to a worker."""
        end = 0
        large = {n: c for n, c in self._constants.items() if isinstance(c, np.ndarray) and c.nbytes > INLINE_NBYTES}
        places = {}
        for name, array in large.items():
            places[name] = SharedPlace(end, array.dtype, array.shape)
            end = aligned(end + array.nbytes)
        memory.reserve(end)
        for name, array in large.items():
            memory.bytes_at(places[name].offset, array.nbytes)[:] = (
                np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            )
        sent: dict[str, Array | FilePlace | SharedPlace] = {**self._constants, **places}
        answer = request(("compile", self.number, self._bare, sent, self.config, self._artefact), PREPARE_S)
        self.weight_nbytes = int(answer["weight_nbytes"])
        self.uploads += int(answer["uploads"])
        self.uploaded_nbytes += int(answer["uploaded_nbytes"])
        self.problem, self.ended_workers, self.killed_workers, self.specialized = "", 0, 0, ()

    def compile_again(self, memory: SharedMemory, request: Request) -> None:
        """In a new worker. What goes wrong is this program's own: its runs say so. Raises where the worker fails of
        it."""
        if self.is_given_up:
            return
        try:
            self.compile(memory, request)
        except (DeviceLostError, DeviceHangError) as error:
            self.wait(error)
            raise
        except Exception as error:
            self.problem = f"the new worker does not compile it: {type(error).__name__}: {error}"

    def wait(self, error: Exception) -> None:
        """Notes that the worker failed while it was to compile this; the next one compiles it, if there were not too
        many."""
        if isinstance(error, (DeviceLostError, DeviceHangError)):
            self.ended_workers += not error.killed
            self.killed_workers += error.killed
        ended = self.ended_workers + self.killed_workers
        self.problem = (
            str(error)
            if not self.is_given_up
            else (
                f"partition {self.graph.name} is left to the CPU: {ended} worker processes ended while they "
                f"compiled it. "
                f"Run `ort-gpu-ep doctor`, or update the driver. The last one: {error}"
            )
        )

    @property
    def is_given_up(self) -> bool:
        """Whether compiling it would cost the other sessions their worker once more."""
        return self.ended_workers >= MAX_ENDED_WORKERS or self.killed_workers >= MAX_KILLED

    def execute(self, host: Host) -> None:
        """See Executable."""
        inputs = host.inputs()
        for way, tensors in (("host_to_device", inputs), ("device_to_host", self._run(inputs, host))):
            for address, kind in tensors:
                if host.is_host(address):  # the other copies ONNX Runtime has asked for, and those are counted
                    host.count(way, kind.nbytes)

    def steady(self, inputs: Sequence[TensorType]) -> None:
        """Each run goes to the worker."""

    def blames(self, error: Exception) -> bool:
        """Not where it is between the sessions, or between this one and its worker."""
        return not isinstance(error, BusyError) and not self.problem

    def _run(self, inputs: Sequence[tuple[int, TensorType]], host: Host) -> list[tuple[int, TensorType]]:
        """inputs: (address, type) in the order of graph.inputs. Returns the same of the outputs."""
        types = tuple(kind for _, kind in inputs)
        with self.gpu.held(self._timeout_s):
            if self.problem:
                raise DeviceError(self.problem)
            self.gpu.runs += 1
            answer, end = self._send(inputs, host, self.gpu.reaches)
            places = self._places(answer, self.graph.outputs)
            targets = [host.output(index, shape) for index, (shape, _) in enumerate(places)]
            self._fetch(
                targets, [host.is_host(t[0]) and not any(_overlap(t, i) for i in inputs) for t in targets], places, end
            )
            for (address, kind), (_, offset) in zip(targets, places, strict=True):
                if offset is not None and kind.nbytes:
                    host.write(address, self.gpu.process.memory.address + offset, kind.nbytes)
            self.specialized = self.gpu.read(specialized_of, answer)
            self.gpu.look_after(answer)
        self._remember(types)
        return targets

    def _send(self, inputs: Sequence[tuple[int, TensorType]], host: Host, direct: bool) -> tuple[dict[str, Any], int]:
        """Has the worker run. direct: it takes large tensors from where they are. Gives its answer and where inputs end
        in the memory."""
        places_given, copied, end = [], [], 0
        for address, kind in inputs:
            is_near = direct and kind.nbytes >= NBYTES and host.is_host(address)
            places_given.append((kind.dtype.onnx, kind.shape, address if is_near else end, is_near))
            if not is_near:
                copied.append((address, end, kind.nbytes))
                end = aligned(end + kind.nbytes)
        memory = self.gpu.process.memory
        memory.reserve(end)
        for address, offset, nbytes in copied:
            if nbytes:
                host.read(address, memory.address + offset, nbytes)
        answer = self.gpu.request(("run", self.number, places_given, end, direct), self._timeout_s)
        return self._send(inputs, host, False) if self.gpu.is_out_of_reach(answer) else (answer, end)

    def _places(self, answer: Mapping[str, Any], outputs: Sequence[str]) -> list[tuple[Shape, int | None]]:
        """(shape, offset) of these outputs. Raises DeviceLostError, where they can't be there."""
        memory, places = self.gpu.process.memory, self.gpu.read(outputs_of, answer, len(outputs))
        memory.follow()
        for name, (shape, offset) in zip(outputs, places, strict=True):
            value = self.graph.values[name]
            nbytes = TensorType(value.dtype, shape).nbytes if value.dtype is not None else math.prod(shape)
            fits = nbytes <= self.gpu.limits.max_buffer_nbytes if offset is None else offset + nbytes <= memory.nbytes
            if not fits or (value.shape is not None and len(value.shape) != len(shape)):
                raise self.gpu.protocol_error(
                    f"output {name!r} of shape {shape} at {offset}, with {memory.nbytes} B shared"
                )
        return places

    def _fetch(
        self,
        targets: Sequence[tuple[int, TensorType]],
        direct: Sequence[bool],
        places: list[tuple[Shape, int | None]],
        end: int,
    ) -> None:
        """Has the worker write outputs that wait to where they belong, if `direct`; the others get a place in the
        shared memory."""
        missing = [index for index, (_, offset) in enumerate(places) if offset is None]
        near = {index: targets[index][0] for index in missing if direct[index]}
        if near and not self.gpu.is_out_of_reach(
            self.gpu.request(("fetch", self.number, list(near.items())), self._timeout_s)
        ):
            missing = [index for index in missing if index not in near]
        if missing:
            answer = self.gpu.request(("share", self.number, missing, end), self._timeout_s)
            for index, place in zip(
                missing, self._places(answer, [self.graph.outputs[i] for i in missing]), strict=True
            ):
                places[index] = place

    def _remember(self, types: tuple[TensorType, ...]) -> None:
        with self._plans_lock:
            self._plans.setdefault(types, None)
            self._plans.move_to_end(types)
            while len(self._plans) > MAX_TOLD:
                self._plans.popitem(last=False)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that the worker uses, made here when somebody asks: a plan follows from the graph, the types and
        the limits.

        Those that follow from the content of inputs, too, are left out: only the worker has read it.
        """
        with self._plans_lock:
            for types, plan in self._plans.items():
                if plan is None:
                    with suppress(UnknownValueError):
                        self._plans[types] = self._planned(types)
            return tuple(p for p in self._plans.values() if p is not None)

    def _planned(self, types: tuple[TensorType, ...]) -> Plan:
        for template in reversed(self._templates):
            filled = template.fill(types)
            if filled is not None:
                return template.at(filled)
        template = make_template(self.graph, types, self.gpu.limits.of(self.config), self.rewrite)
        filled = template.fill(types)
        assert filled is not None, "a template holds for the sizes that it was made for"
        self._templates.append(template)
        return template.at(filled)

    def wait_plans(self, timeout_s: float | None = None) -> bool:
        """There is nothing to wait for."""
        return True

    def shrink(self) -> None:
        """See Executable. Where there is no worker, nothing is held."""
        if self.gpu.pid is not None:
            with self.gpu.held(self._timeout_s):
                self.gpu.request(("shrink", self.number), self._timeout_s)

    def close(self) -> None:
        """Frees what the worker holds for it."""
        self.gpu.remove(self)


def _overlap(one: tuple[int, TensorType], other: tuple[int, TensorType]) -> bool:
    """Whether two tensors share memory: should the worker fail, the CPU needs inputs that nothing was written to."""
    return one[0] < other[0] + other[1].nbytes and other[0] < one[0] + one[1].nbytes
