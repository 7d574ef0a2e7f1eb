"""Runs whose values all stay on the device. They bypass ONNX Runtime, which makes several calls for each value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, cast

from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.plugin.compute import Partition, Run
from ort_gpu_ep.plugin.direct import only_partition
from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.plugin.transfer import gpu_for, tensor_type

if TYPE_CHECKING:
    from ort_gpu_ep.device import Buffer
    from ort_gpu_ep.device.index_check import Word
    from ort_gpu_ep.ir.graph import Array
    from ort_gpu_ep.ir.types import Shape, TensorType
    from ort_gpu_ep.plugin.state import SessionState
    from ort_gpu_ep.runtime.bound import Bound
    from ort_gpu_ep.runtime.program import Program


class BoundRun(Run):
    """Runs of a session's only partition with values bound to its inputs and outputs. Not thread-safe; keeps the values."""

    def __init__(self, partition: Partition, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        super().__init__(partition, 0)
        self._values = *inputs, *outputs
        self._where = [(v.data_ptr(), tensor_type(v.element_type(), tuple(v.shape()))) for v in self._values]
        self._types = tuple(kind for _, kind in self._where[:len(inputs)])
        self._bound: Bound | None = None
        self._version = -1

    @staticmethod
    def of(session: Any, state: SessionState | None, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> BoundRun | None:
        """inputs, outputs: OrtValues on the device by their names. None where the session's runs need ONNX Runtime."""
        partition = only_partition(session, state)
        if partition is None or partition.state.gpu is None or set(partition.graph.outputs) != set(outputs):
            return None
        graph = partition.graph
        found = BoundRun(partition, [inputs[n] for n in graph.inputs], [outputs[n] for n in graph.outputs])
        return found if all(kind.nbytes and memory.owns(address) for address, kind in found._where) else None

    def run(self) -> bool:
        """One run, enqueued. Returns False, and has done nothing, where ONNX Runtime is to do it. Raises what the partition does."""
        partition = self.partition
        with partition.state.allowance:
            is_known = self._bound is not None and not self._bound.closed and memory.version == self._version
            if partition.avoids_the_gpu() or not (is_known or self._resolve()):
                return False
            partition.state.begin_run()
            partition.runs += 1
            partition.perform(self)
            return True

    def on_gpu(self) -> None:
        word: Word | Literal[False] | None = False
        while word is False:
            assert self._bound is not None, "where it is not, ONNX Runtime does the run"
            word = self._bound.run()
            if word is False and not self._resolve():       # its plan went meanwhile, and these sizes have none yet
                self._inputs, self._outputs = [], []
                try:
                    super().on_gpu()
                finally:
                    memory.release(self.pins)
                    self.pins = []
                return
        for storage in self._outputs:
            storage.content = None
        self.deliver(word)

    def output(self, index: int, shape: Shape) -> tuple[int, TensorType]:
        address, kind = self._where[len(self._types) + index]
        if kind.shape != shape:
            raise InternalError(f"output {self.partition.graph.outputs[index]!r}: a value of {kind} is bound, the CPU gives {list(shape)}")
        return address, kind

    def _input_address(self, index: int) -> tuple[int, TensorType]:
        return self._where[index]

    def record_ahead(self) -> bool:
        """While the host waits: records the next run. Whether that was to be done."""
        bound = self._bound
        return bound is not None and bound.record_ahead()

    def _resolve(self) -> bool:
        """Finds out where the values are, which may be elsewhere than before. Returns whether runs can go on from there."""
        program = cast("Program", self.partition.program)
        inputs, outputs = list[Tensor](), list[Tensor]()
        self._inputs, self._outputs, self._gpu = [], [], program.gpu
        for address, kind in self._where[:len(self._types)]:
            storage, offset = memory.read(program.gpu, address, kind.nbytes)
            memory.release([storage])       # its block holds it
            self._inputs.append((storage, offset))
            inputs.append(Tensor(cast("Buffer", storage.buffer), offset, kind))
        for address, kind in self._where[len(self._types):]:
            storage, offset = memory.write(program.gpu, address, kind.nbytes)
            self._outputs.append(storage)
            outputs.append(Tensor(cast("Buffer", storage.buffer), offset, kind))
        self._version = memory.version
        if self._bound is None or self._bound.closed or (self._bound.inputs, self._bound.outputs) != (inputs, outputs):
            self._bound = program.bound(inputs, outputs)
        return self._bound is not None


class Turns:
    """Runs that take turns, always in the same order."""

    def __init__(self, runs: Sequence[BoundRun]) -> None:
        self._runs, self._at = runs, 0

    def run(self, place: int) -> bool:
        """The run of a place, see BoundRun.run; those behind it are recorded when the host next waits."""
        self._at = place
        done = self._runs[place].run()
        gpu = self._runs[place].partition.state.gpu
        if done and gpu is not None:
            gpu.on_wait(self)
        return done

    def record_ahead(self) -> bool:
        """Records the first run to come that is not recorded. Whether there was one."""
        return any(self._runs[(self._at + k) % len(self._runs)].record_ahead() for k in range(1, len(self._runs) + 1))


def fill(value: Any, array: Array, waits: bool) -> None:
    """Copies a dense array into a value on the device, which has its size. waits: as Gpu.upload has it."""
    address = value.data_ptr()
    state = memory.state_of(address)
    with state.allowance if state is not None else nullcontext():
        memory.copy_in(gpu_for(address), address, array.ctypes.data, array.nbytes, waits)


def download_later(values: Sequence[Any]) -> Callable[[], list[bytes]] | None:
    """The content of small values on the device, as it is now: what this gives waits for it, and is called once. None where they are not
    all on a device of this process that works. Raises DeviceError, both times.
    """
    addresses = [value.data_ptr() for value in values]
    gpu = gpu_for(addresses[0]) if all(map(memory.owns, addresses)) else None
    if gpu is None:
        return None
    from ort_gpu_ep.runtime.later import Later  # loads wgpu-native

    found = [(*memory.read(gpu, address, value.tensor_size_in_bytes()), value.tensor_size_in_bytes())
             for address, value in zip(addresses, values, strict=True)]
    memory.release([storage for storage, _, _ in found])        # what is enqueued behind the copies may write there
    pieces = [(cast("Buffer", storage.buffer), offset, nbytes) for storage, offset, nbytes in found]
    later = Later(gpu, pieces, tuple({word for storage, _, _ in found for word in storage.words}))

    def wait() -> list[bytes]:
        content = later.wait()
        for address, data in zip(addresses, content, strict=True):
            memory.count("device_to_host", memory.state_of(address), len(data))
        return content

    return wait
