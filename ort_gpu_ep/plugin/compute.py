"""A compiled partition at work: ONNX Runtime's values in and out, and the CPU where the GPU fails."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ort_gpu_ep.device import Program, Tensor
from ort_gpu_ep.errors import DeviceError, InternalError
from ort_gpu_ep.graph import Array, Graph
from ort_gpu_ep.plugin import slots
from ort_gpu_ep.plugin.abi import input_of, output_of, tensor_of
from ort_gpu_ep.plugin.fallback import Fallback
from ort_gpu_ep.plugin.memory import Storage, memory
from ort_gpu_ep.plugin.state import SessionState, forget_frames
from ort_gpu_ep.plugin.tables import Table
from ort_gpu_ep.plugin.transfer import tensor_type
from ort_gpu_ep.types import Shape, TensorType


class Partition(Table):
    """OrtNodeComputeInfo.

    program: None where it could not be compiled; the CPU then does every run. fallback: None in strict mode.
    positions: which of the fused node's inputs the program reads, in the order of graph.inputs.
    runs, fallbacks: how often it ran, and how often on the CPU.
    """

    SLOTS = slots.NODE_COMPUTE_INFO

    def __init__(
        self, state: SessionState, graph: Graph, positions: tuple[int, ...], program: Program | None, fallback: Fallback | None
    ) -> None:
        super().__init__()
        self.state, self.graph, self.positions = state, graph, positions
        self.program, self.fallback = program, fallback
        self.output_dtypes = tuple(graph.values[name].dtype for name in graph.outputs)
        self.runs = self.fallbacks = 0

    def create_state(self, context: Any, out: Any) -> None:
        out[0] = self.pointer

    def release_state(self, compute_state: Any) -> None:
        """Nothing belongs to a state."""

    def compute(self, compute_state: int, context: int) -> None:
        self.runs += 1
        run = Run(self, context)
        try:
            run.on_gpu()
        except Exception as error:
            with self.state.recording(self.graph.name):
                if self.fallback is None:
                    raise
                self.fallbacks += 1
                self.state.record("fallback", self.graph.name, error)
                forget_frames(error)
                run.on_cpu(self.fallback)
        except BaseException:
            with self.state.recording(self.graph.name):
                raise
        finally:
            memory.release(run.pins)

    def close(self) -> None:
        """Frees what it holds on the device and on disk."""
        if self.program is not None and not memory.forked:
            self.program.close()
        if self.fallback is not None:
            self.fallback.close()


class Run:
    """One call of Compute. pins: storages that must not be reused before it ends."""

    def __init__(self, partition: Partition, context: int) -> None:
        self.partition, self.context = partition, context
        self.pins: list[Storage] = []
        self._inputs: list[tuple[Storage, int]] = []   # those read so far; they hold even where an output has taken their address
        self._late: list[tuple[Storage, int, int]] = []   # outputs in host memory: (storage, address, nbytes)

    def on_gpu(self) -> None:
        program, gpu = self.partition.program, self.partition.state.gpu
        if program is None or gpu is None:
            raise DeviceError("the partition was not compiled for the GPU")
        program.run([self._input(i) for i in range(len(self.partition.positions))], self._output)
        for storage, address, nbytes in self._late:
            gpu.download(storage.buffer, 0, address, nbytes)   # type: ignore[arg-type]

    def on_cpu(self, fallback: Fallback) -> None:
        """The same from the same inputs, which are still in device memory."""
        inputs = [self._host_input(i) for i in range(len(self.partition.positions))]
        for index, value in enumerate(fallback.run(inputs)):
            address, tensor = self._output_address(index, tuple(value.shape()))
            if memory.owns(address):
                memory.copy_in(self.partition.state.gpu if not memory.forked else None, address, value.data_ptr(), tensor.nbytes)
            elif tensor.nbytes:
                ctypes.memmove(address, value.data_ptr(), tensor.nbytes)

    def _input_address(self, index: int) -> tuple[int, TensorType]:
        address, shape, kind = tensor_of(input_of(self.context, self.partition.positions[index]))
        return address, _checked(address, tensor_type(kind, shape))

    def _input(self, index: int) -> Tensor:
        gpu = self.partition.state.gpu
        assert gpu is not None
        address, tensor = self._input_address(index)
        if tensor.nbytes and not memory.owns(address):
            storage, offset = memory.temporary(gpu, tensor.nbytes, address), 0
        else:
            storage, offset = memory.read(gpu, address, tensor.nbytes)
        self.pins.append(storage)
        self._inputs.append((storage, offset))
        return Tensor(storage.buffer, offset, tensor)   # type: ignore[arg-type]

    def _host_input(self, index: int) -> tuple[TensorType, Array]:
        address, tensor = self._input_address(index)
        data = np.empty(tensor.nbytes, np.uint8)
        if index < len(self._inputs) and tensor.nbytes:
            memory.fetch(*self._inputs[index], data.ctypes.data, tensor.nbytes)
        elif memory.owns(address):
            memory.copy_out(address, data.ctypes.data, tensor.nbytes)
        elif tensor.nbytes:
            ctypes.memmove(data.ctypes.data, address, tensor.nbytes)
        return tensor, data

    def _output_address(self, index: int, shape: Shape) -> tuple[int, TensorType]:
        dtype = self.partition.output_dtypes[index]
        if dtype is None:
            raise InternalError(f"output {self.partition.graph.outputs[index]!r} has no known element type")
        address = tensor_of(output_of(self.context, index, shape))[0]
        return address, _checked(address, tensor_type(dtype.onnx, shape))

    def _output(self, index: int, shape: Shape) -> Tensor:
        gpu = self.partition.state.gpu
        assert gpu is not None
        address, tensor = self._output_address(index, shape)
        if tensor.nbytes and not memory.owns(address):
            storage, offset = memory.temporary(gpu, tensor.nbytes), 0
            self.pins.append(storage)
            self._late.append((storage, address, tensor.nbytes))
        else:
            storage, offset = memory.write(gpu, address, tensor.nbytes)
        return Tensor(storage.buffer, offset, tensor)   # type: ignore[arg-type]


def _checked(address: int, tensor: TensorType) -> TensorType:
    if address == 0 and tensor.nbytes:
        raise InternalError(f"onnxruntime passes NULL for a {tensor}")
    return tensor
