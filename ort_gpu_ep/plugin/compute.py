"""A compiled partition that ONNX Runtime runs: reads inputs, writes outputs, and falls back to the CPU."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ort_gpu_ep.device.circuit import Circuit
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import (
    DeviceError,
    DeviceHangError,
    DeviceLostError,
    InternalError,
    MemoryLimitError,
    MissingInputError,
    ShaderError,
    WrongResultError,
    forget_frames,
)
from ort_gpu_ep.ir.types import MAX_SHAPES
from ort_gpu_ep.plugin import slots
from ort_gpu_ep.plugin.abi import data_of, input_of, output_of, tensor_of
from ort_gpu_ep.plugin.known import Found, Known
from ort_gpu_ep.plugin.memory import Storage, memory
from ort_gpu_ep.plugin.places import gpu_for, tensor_type
from ort_gpu_ep.plugin.renewal import renew
from ort_gpu_ep.plugin.tables import Table
from ort_gpu_ep.plugin.verification import compare, third_opinion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ort_gpu_ep.device import Gpu
    from ort_gpu_ep.device.index_check import Word
    from ort_gpu_ep.ir.graph import Array, Graph
    from ort_gpu_ep.ir.types import Shape, TensorType
    from ort_gpu_ep.plugin.fallback import Fallback
    from ort_gpu_ep.plugin.state import SessionState
    from ort_gpu_ep.runtime.backend import Executable

_MAX_WORDS = 64
"""Runs whose words are carried along: values that stay on the device depend on all runs that they come from. Then they
are read."""


class Performed(Protocol):
    """A run as a partition does it."""

    def on_gpu(self) -> None:
        """Raises DeviceError, ShaderError, UnsupportedNodeError."""

    def on_cpu(self, fallback: Fallback) -> None:
        """The same from the same inputs."""


class Partition(Table):
    """OrtNodeComputeInfo.

    program: None where it could not be compiled; the CPU then does every run. fallback: None in strict mode without
    verify. positions: which of the fused node's inputs the program reads, in the order of graph.inputs. runs,
    fallbacks: how often it ran, and how often on the CPU. cpu_because: why its last run was on the CPU; empty if it was
    on the GPU. run_type: of runs through ONNX Runtime. forms: what runs past ONNX Runtime keep of the program
    (direct.py), by the sizes and the names that they are for. circuit: whether it may use the GPU, as far as that is
    for what its own runs did there; the adapter has another one.
    """

    SLOTS = slots.NODE_COMPUTE_INFO
    run_type: ClassVar[type[Run]]

    def __init__(
        self,
        state: SessionState,
        graph: Graph,
        positions: tuple[int, ...],
        program: Executable | None,
        fallback: Fallback | None,
    ) -> None:
        super().__init__()
        self.state, self.graph, self.positions = state, graph, positions
        self.program, self.fallback = program, fallback
        self.output_dtypes = tuple(graph.values[name].dtype for name in graph.outputs)
        self.runs = self.fallbacks = 0
        self.forms: dict[Any, Any] = {}
        self.cpu_because = "" if program is not None else "it could not be compiled"
        self.circuit = Circuit(None, what=f"partition {graph.name}")
        self.known: Known | None = None  # of onnxruntime's runs
        self._runs_of: dict[tuple[tuple[TensorType, ...], int], itertools.count[int]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def create_state(self, context: Any, out: Any) -> None:
        out[0] = self.pointer

    def release_state(self, compute_state: Any) -> None:
        """Nothing belongs to a state."""

    def compute(self, compute_state: int, context: int) -> None:
        self.runs += 1
        run, begin_ns = self.run_type(self, context), time.perf_counter_ns() if self.state.profiles else 0
        try:
            self.perform(run, self._reason_to_avoid_the_gpu())
        finally:
            memory.release(run.pins)
        if begin_ns:
            self._note(begin_ns)

    def _note(self, begin_ns: int) -> None:
        """Tells the profiles about a run that is over."""
        program: Any = self.program  # of this process, where there are any
        try:
            for times in self.state.profiles if program is not None else ():
                times.note(program.context, self.graph.name, begin_ns)
        except DeviceError as error:  # the run has its results
            self.state.record("warning", "profile", error)
            forget_frames(error)

    def perform(self, run: Performed, reason: str = "") -> None:
        """One run on the GPU, or on the CPU where that fails or there is a reason. Raises the failure in strict
        mode."""
        with self.state.allowance:
            self._perform(run, reason)

    def _perform(self, run: Performed, reason: str) -> None:
        try:
            if reason:
                with self.state.recording(self.graph.name):
                    self._answer_by_cpu(run, reason)
                return
            uses = self.program.gpu.uses if self.program is not None else None
            if uses is not None:
                uses.begin(time.perf_counter())
            run.on_gpu()
            self.cpu_because = ""
            self._succeeded()
        except Exception as error:
            if reason:
                raise
            self._failed(error)
            with self.state.recording(self.graph.name):
                if self.state.strict:
                    raise
                self._answer_by_cpu(run, error)
                forget_frames(error)
        except BaseException:
            with self.state.recording(self.graph.name):
                raise

    def avoids_the_gpu(self) -> bool:
        """Whether anything is to be done or said before a run can try the GPU."""
        program = self.program
        if program is None or memory.forked:
            return True
        return bool(program.gpu.lost or program.problem) or not (
            program.gpu.circuit.is_closed and self.circuit.is_closed
        )

    def _answer_by_cpu(self, run: Performed, why: BaseException | str) -> None:
        if self.fallback is None:
            raise InternalError(f"partition {self.graph.name} has no CPU version")
        self.fallbacks += 1
        self.cpu_because = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
        self.state.record("fallback", self.graph.name, why)
        run.on_cpu(self.fallback)

    def _reason_to_avoid_the_gpu(self) -> str:
        """Why this run does not try the GPU; empty where it does. In strict mode it always tries."""
        program = self.program
        if program is None:
            return ""
        gpu = program.gpu
        if not gpu.lost:
            adapter_may, this_may = gpu.circuit.allows(), self.circuit.allows()
            if self.state.strict:
                return ""
            if not adapter_may:
                return "the GPU is left alone after a failure; the CPU answers until it has passed a probe"
            if not this_may:
                return "this partition failed on the GPU; the CPU answers it for a while, and the GPU serves the others"
            return program.problem
        if not gpu.reported:  # the driver said so between two runs
            gpu.reported = True
            gpu.circuit.failed(f"the device was lost ({gpu.lost})", at_once=True)
        if self.fallback is not None and gpu.circuit.allows() and self.circuit.allows():
            renew(self.state)
        return (
            "" if self.state.strict else f"the device was lost ({gpu.lost}); the CPU answers until a new one is set up"
        )

    def _succeeded(self) -> None:
        if self.program is not None:
            gpu = self.program.gpu
            if gpu.circuit.doubted:
                gpu.circuit.succeeded()
            if self.circuit.doubted:
                self.circuit.succeeded()
            gpu.uses.end(time.perf_counter())

    def _failed(self, error: Exception) -> None:
        """Tells the circuits: a device that is gone is gone for all sessions; other failures may be this model's
        own."""
        if self.program is None or not isinstance(error, (DeviceError, ShaderError)):
            return
        if isinstance(error, MemoryLimitError) or not self.program.blames(error):
            return
        gpu, why = self.program.gpu, f"{type(error).__name__}: {str(error).splitlines()[0]}"
        wrong = isinstance(error, WrongResultError)
        if isinstance(error, (DeviceLostError, DeviceHangError)):
            gpu.reported = gpu.reported or bool(gpu.lost)
            gpu.circuit.failed(why, True, error.killed)
        else:
            gpu.circuit.suspect(why, self.state.model if wrong else None)
        if wrong:
            self._runs_of.clear()  # the next run on the GPU is compared with the CPU's, too
        self.circuit.failed(why, at_once=wrong, killed=error.killed)

    def leave_to_cpu(self, why: str) -> None:
        """Every run from now on."""
        self.replace(None)
        self.cpu_because = why

    def replace(self, program: Executable | None) -> None:
        """Goes on with another program, on another device, or with none."""
        with self._lock:
            unused = program if self._closed else self.program
            self.program = self.program if self._closed else program
            self.known = None
            self.forms = {}  # they hold the old program's device; who asks for both asks for these first
            self._runs_of.clear()
        if unused is not None:
            unused.close()

    def verify_due(self, types: tuple[TensorType, ...]) -> bool:
        """Whether this run is compared with the CPU: the first one of its input types (and after some sizes got another
        plan), then one in `verify`.
        """
        every = self.state.config.verify if self.state.config is not None else 0
        if not every or self.fallback is None:
            return False
        if len(self._runs_of) > MAX_SHAPES:
            self._runs_of.clear()
        program = self.program
        plans = (
            len(program.specialized) + sum(not plan.pending for plan in program.unit_plans)
            if program is not None
            else 0
        )
        return next(self._runs_of.setdefault((types, plans), itertools.count())) % every == 0

    def close(self) -> None:
        """Frees what it holds on the device and on disk."""
        with self._lock:
            self._closed = True
        if self.program is not None and not memory.forked:
            self.program.close()
        if self.fallback is not None:
            self.fallback.close()


class Run:
    """One call of Compute. pins: storages that must not be reused before it ends."""

    def __init__(self, partition: Partition, context: int) -> None:
        self.partition, self.context = partition, context
        self.pins: list[Storage] = []
        self._gpu: Gpu | None = None
        self._types: tuple[TensorType, ...] = ()  # of the inputs
        # those read so far; they hold even where an output has taken their address
        self._inputs: list[tuple[Storage, int]] = []
        self._outputs: list[Storage] = []
        self._late: list[tuple[Storage, int, int]] = []  # outputs in host memory: (storage, address, nbytes)
        self._places: list[tuple[int, TensorType]] = []  # of the inputs
        self._known: Known | None = None
        self._found: list[Found] = []  # values on the device that this run had to look for

    def on_gpu(self) -> None:
        program = self.partition.program
        if program is None:
            raise DeviceError("the partition was not compiled for the GPU")
        program.execute(self)
        if self.partition.verify_due(self._types):
            self._verify()

    # ---- for the program, as backend.py's Host

    def inputs(self) -> list[tuple[int, TensorType]]:
        places = self._all_places()
        self._types = tuple(kind for _, kind in places)
        return places

    def tensors(self, gpu: Gpu) -> list[Tensor]:
        tensors_known = self._known_on(gpu)
        self._gpu, self._known = gpu, tensors_known
        self._places = self._all_places()
        if tensors_known is not None:
            there = {
                i: value
                for i, value in tensors_known.inputs.items()
                if value.place == self._places[i] and not value.piece.gone
            }
            pins = [value.storage for value in there.values()]
            memory.pin(pins)
            self.pins += pins
        else:
            there = {}
        tensors = list[Tensor]()
        for index, place in enumerate(self._places):
            value = there.get(index)
            if value is not None:
                self._inputs.append((value.storage, value.offset))
                tensors.append(value.tensor)
            else:
                tensors.append(self._input(gpu, place))
                if memory.owns(place[0]):
                    self._found.append(Found(False, index, place, self._inputs[-1], tensors[-1]))
        self._types = tuple([t.type for t in tensors])
        return tensors

    def _all_places(self) -> list[tuple[int, TensorType]]:
        return [self._input_address(i) for i in range(len(self.partition.positions))]

    def _known_on(self, gpu: Gpu) -> Known | None:
        """What the partition's last runs there have found."""
        kept = self.partition.known
        return kept if kept is not None and kept.gpu is gpu else None

    def _keep(self, known: Known) -> None:
        self.partition.known = known

    def deliver(self, word: Word | None) -> None:
        assert self._gpu is not None
        if self._found:
            self._keep((self._known or Known(self._gpu)).with_found(self._found))
        before = {word for storage, _ in self._inputs for word in storage.words if not word.clean}
        words = (*before, *((word,) if word is not None else ()))
        for storage in self._outputs:
            storage.words = words
        if self._late or len(words) > _MAX_WORDS:
            self._gpu.download_all([((s.buffer, 0, nbytes), address) for s, address, nbytes in self._late], words)  # type: ignore[misc]
        for _, _, nbytes in self._late:
            self.count("device_to_host", nbytes)

    def count(self, way: str, nbytes: int) -> None:
        memory.count(way, self.partition.state, nbytes)

    def is_host(self, address: int) -> bool:
        return not memory.owns(address)

    def read(self, address: int, into: int, nbytes: int) -> None:
        if memory.owns(address):
            memory.copy_out(address, into, nbytes)
        else:
            ctypes.memmove(into, address, nbytes)

    def write(self, address: int, source: int, nbytes: int) -> None:
        if memory.owns(address):
            memory.copy_in(None, address, source, nbytes)
        else:
            ctypes.memmove(address, source, nbytes)

    def _verify(self) -> None:
        """Raises WrongResultError, where the CPU gives something else from the same inputs. Says so where it has no
        kernel for that."""
        partition = self.partition
        assert partition.fallback is not None
        assert partition.program is not None
        missing = partition.fallback.missing()
        if missing:
            partition.state.record(
                "warning", partition.graph.name, f"not verified, because the CPU can't run these nodes: {missing}"
            )
            return
        inputs, graph = [self._host_input(i) for i in range(len(partition.positions))], partition.graph
        pairs: list[tuple[Array, Array]] = []
        for index, value in enumerate(partition.fallback.run(inputs)):
            address, tensor = self.output(index, tuple(value.shape()))
            got, want = np.empty(tensor.shape, tensor.dtype.numpy), np.empty(tensor.shape, tensor.dtype.numpy)
            if tensor.nbytes:
                ctypes.memmove(want.ctypes.data, value.data_ptr(), tensor.nbytes)
                self.read(address, got.ctypes.data, tensor.nbytes)
            pairs.append((got, want))
        precision = partition.program.config.precision

        def check(ours: Sequence[Array], theirs: Sequence[Array]) -> None:
            for name, got, want in zip(graph.outputs, ours, theirs, strict=True):
                compare(f"{graph.name}, output {name!r}", got, want, precision)

        ours, theirs = [got for got, _ in pairs], [want for _, want in pairs]
        try:
            check(ours, theirs)
        except WrongResultError as error:
            feeds = {
                name: data.view(t.dtype.numpy).reshape(t.shape)
                for name, (t, data) in zip(graph.inputs, inputs, strict=True)
            }
            decided = third_opinion(partition.fallback.model, feeds, ours, theirs, check)
            if not decided.cpu_is_wrong:
                raise WrongResultError(f"{error} {decided.said}") from error
            partition.state.record("warning", graph.name, f"{error} {decided.said} The GPU's result stands.")

    def on_cpu(self, fallback: Fallback) -> None:
        """The same from the same inputs, which are still in device memory."""
        inputs = [self._host_input(i) for i in range(len(self.partition.positions))]
        for index, value in enumerate(fallback.run(inputs)):
            address, tensor = self.output(index, tuple(value.shape()))
            if memory.owns(address):
                memory.copy_in(gpu_for(address), address, value.data_ptr(), tensor.nbytes)
            elif tensor.nbytes:
                ctypes.memmove(address, value.data_ptr(), tensor.nbytes)

    def _input_address(self, index: int) -> tuple[int, TensorType]:
        try:
            address, shape, kind = tensor_of(input_of(self.context, self.partition.positions[index]))
        except InternalError as error:
            graph = self.partition.graph
            why = f"{graph.name}: input {graph.inputs[index]!r} has no value. Expected a tensor: feed or bind one"
            raise MissingInputError(why) from error
        return address, _checked(address, tensor_type(kind, shape))

    def _input(self, gpu: Gpu, place: tuple[int, TensorType]) -> Tensor:
        address, tensor = place
        if tensor.nbytes and not memory.owns(address):
            storage, offset = memory.temporary(gpu, tensor.nbytes, address), 0
            memory.count("host_to_device", self.partition.state, tensor.nbytes)
        else:
            storage, offset = memory.read(gpu, address, tensor.nbytes)
        self.pins.append(storage)
        self._inputs.append((storage, offset))
        return Tensor(storage.buffer, offset, tensor)  # type: ignore[arg-type]

    def content(self, index: int, tensor: TensorType) -> Array:
        """The content of a small input: shapes depend on it. What the GPU computed costs a readback, which is
        counted."""
        storage, offset = self._inputs[index]
        if storage.content is None:
            data = self._host_input(index)[1]
        else:
            data = (
                np.frombuffer(storage.content, np.uint8, tensor.nbytes, offset)
                if tensor.nbytes
                else np.empty(0, np.uint8)
            )
        return data.view(tensor.dtype.numpy).reshape(tensor.shape)

    def _host_input(self, index: int) -> tuple[TensorType, Array]:
        address, tensor = self._input_address(index)
        data = np.empty(tensor.nbytes, np.uint8)
        if index < len(self._inputs) and tensor.nbytes:
            storage, offset = self._inputs[index]
            memory.fetch(storage, offset, data.ctypes.data, tensor.nbytes)
            memory.count("device_to_host", self.partition.state, tensor.nbytes if storage.copy is None else 0)
        elif tensor.nbytes:
            self.read(address, data.ctypes.data, tensor.nbytes)
        return tensor, data

    def output(self, index: int, shape: Shape) -> tuple[int, TensorType]:
        dtype = self.partition.output_dtypes[index]
        if dtype is None:
            raise InternalError(f"output {self.partition.graph.outputs[index]!r} has no known element type")
        address = data_of(output_of(self.context, index, shape))
        return address, _checked(address, tensor_type(dtype.onnx, shape))

    def new_tensor(self, index: int, shape: Shape, over: int | None = None) -> Tensor:
        gpu, kept = self._gpu, self._known
        assert gpu is not None
        place = self.output(index, shape)
        value = kept.outputs.get(index) if kept is not None else None
        if (
            value is not None
            and value.place == place
            and not value.piece.gone
            and (value.over, value.users) == (over, value.storage.users)
        ):
            value.storage.content = None
            self._outputs.append(value.storage)
            return value.tensor
        address, tensor = place
        if over is not None and (there := self._written_over(over, place)) is not None:
            self._found.append(Found(True, index, place, self._inputs[over], there, over))
            return there
        if tensor.nbytes and not memory.owns(address):
            storage, offset = memory.temporary(gpu, tensor.nbytes), 0
            self.pins.append(storage)
            self._late.append((storage, address, tensor.nbytes))
        else:
            storage, offset = memory.write(gpu, address, tensor.nbytes)
        self._outputs.append(storage)
        created = Tensor(storage.buffer, offset, tensor)  # type: ignore[arg-type]
        if memory.owns(address):
            self._found.append(Found(True, index, place, (storage, offset), created, over))
        return created

    def _written_over(self, over: int, place: tuple[int, TensorType]) -> Tensor | None:
        """The tensor of an input that has the address of an output, if nothing else shares its storage: it can be
        changed in place."""
        (storage, offset), (address, tensor) = self._inputs[over], place
        if self._places[over] != place or not tensor.nbytes or not memory.owns(address):
            return None
        # the block's and this run's
        if storage.users != 2 and storage.users != 1 + sum(pinned is storage for pinned in self.pins):
            return None
        storage.content = None
        self._outputs.append(storage)
        return Tensor(storage.buffer, offset, tensor)  # type: ignore[arg-type]


Partition.run_type = Run


def _checked(address: int, tensor: TensorType) -> TensorType:
    if address == 0 and tensor.nbytes:
        raise InternalError(f"onnxruntime passes NULL for a {tensor}")
    return tensor
