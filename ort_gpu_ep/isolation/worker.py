"""The process that has the GPU: `python -m ort_gpu_ep.isolation.worker SOCKET MEMORY`, both inherited file descriptors.

It takes requests one by one and ends when the other end of its socket is gone, however its parent ended.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import socket
import sys
import threading
from dataclasses import dataclass, field

import numpy as np

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Buffer, Gpu, Program, Tensor
from ort_gpu_ep.device.probe import probe
from ort_gpu_ep.graph import Array, Graph
from ort_gpu_ep.health.admission import open_gpu
from ort_gpu_ep.health.markers import remove_mine
from ort_gpu_ep.health.verdicts import key_of
from ort_gpu_ep.isolation.channel import Channel, SharedMemory, aligned
from ort_gpu_ep.isolation.wire import FilePlace, SharedPlace, error_answer, limits_answer, with_constants
from ort_gpu_ep.partitioner import fuse
from ort_gpu_ep.types import BY_ONNX, Shape, TensorType

_ANSWER_S = 600.0
"""A parent that does not take an answer for so long will not come back."""


@dataclass
class _Held:
    """A program, and the buffers of its last run: the next run most likely has the same shapes."""

    program: Program
    types: tuple[TensorType, ...] = ()
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


class Worker:
    """The loop, and what it holds."""

    def __init__(self, channel: Channel, memory: SharedMemory) -> None:
        self._channel, self._memory = channel, memory
        self._programs: dict[int, _Held] = {}
        self._gpu: Gpu | None = None

    def serve(self) -> None:
        """Answers requests until the parent is gone."""
        while True:
            try:
                request = pickle.loads(self._channel.receive())
            except EOFError:
                return
            try:
                answer = getattr(self, f"_{request[0]}")(*request[1:])
            except Exception as error:   # the parent decides what it means
                answer = error_answer(error)
            if self._gpu is not None:
                answer["compiles"] = getattr(self._gpu, "compiles", 0)
            self._answer(answer)

    def _answer(self, answer: dict[str, object]) -> None:
        self._channel.send(json.dumps(answer).encode(), _ANSWER_S)

    @property
    def gpu(self) -> Gpu:
        assert self._gpu is not None, "the parent opens first"
        return self._gpu

    # ---- requests

    def _open(self, config: Config, runs: int, compiles: int, check: bool) -> dict[str, object]:
        """runs, compiles: how many there were in workers before this one; faults on purpose go on counting. check: probes."""
        self._gpu = gpu = open_gpu(config)
        if config.faults:
            gpu.resume(runs, compiles)   # type: ignore[attr-defined]
        if check:
            probe(gpu.info)
        return {"info": gpu.info.as_dict(), "limits": limits_answer(gpu.limits), "key": key_of(gpu.info)}

    def _compile(
        self, number: int, graph: Graph, constants: dict[str, Array | FilePlace | SharedPlace], config: Config
    ) -> dict[str, object]:
        arrays = {name: self._shared(c) if isinstance(c, SharedPlace) else c for name, c in constants.items()}
        program = Program(with_constants(graph, arrays), config, self.gpu, fuse if config.fusion else None)
        self._programs[number] = _Held(program)
        return {"weight_nbytes": program.weight_nbytes, "uploads": program.uploads, "uploaded_nbytes": program.uploaded_nbytes}

    def _shared(self, place: SharedPlace) -> Array:
        nbytes = int(np.prod(place.shape, dtype=np.int64)) * place.dtype.itemsize
        self._memory.reserve(place.offset + nbytes)
        data = self._memory.bytes_at(place.offset, nbytes)
        return data.view(place.dtype).reshape(place.shape)

    def _run(self, number: int, inputs: list[tuple[int, Shape, int]], end: int) -> dict[str, object]:
        """inputs: (element type, shape, offset) of each. end: of the inputs in the shared memory; outputs come behind."""
        held, gpu, memory = self._programs[number], self.gpu, self._memory
        types = tuple(TensorType(BY_ONNX[kind], shape) for kind, shape, _ in inputs)
        if not held.program.is_prepared(types):
            self._answer({"wait": True})   # compiling takes as long as it takes
            held.program.plan(types)
            self._answer({"wait": False})
        if held.types != types:
            self._drop_buffers(held)
            held.types, held.inputs = types, [self._tensor(t) for t in types]
        memory.reserve(end)
        for tensor, (_, _, offset) in zip(held.inputs, inputs, strict=True):
            gpu.upload(tensor.buffer, 0, memory.address + offset, tensor.type.nbytes)
        held.program.run(held.inputs, lambda i, shape: self._output(held, i, shape))
        offsets = []
        for tensor in held.outputs:
            offsets.append(end := aligned(end))
            end += tensor.type.nbytes
        memory.reserve(end)
        for tensor, offset in zip(held.outputs, offsets, strict=True):
            gpu.download(tensor.buffer, 0, memory.address + offset, tensor.type.nbytes)
        return {"outputs": [(t.type.shape, o) for t, o in zip(held.outputs, offsets, strict=True)]}

    def _release(self, number: int) -> dict[str, object]:
        held = self._programs.pop(number, None)
        if held is not None:
            self._drop_buffers(held)
            held.program.close()
        return {}

    # ---- inside

    def _output(self, held: _Held, index: int, shape: Shape) -> Tensor:
        graph = held.program.graph
        dtype = graph.values[graph.outputs[index]].dtype
        assert dtype is not None, "the parent checks the border of a partition"
        if index == len(held.outputs):
            held.outputs.append(self._tensor(TensorType(dtype, shape)))
        return held.outputs[index]

    def _tensor(self, kind: TensorType) -> Tensor:
        buffer: Buffer = self.gpu.allocate(max(kind.nbytes, 4))
        return Tensor(buffer, 0, kind)

    def _drop_buffers(self, held: _Held) -> None:
        for tensor in (*held.inputs, *held.outputs):
            self.gpu.free(tensor.buffer)
        held.types, held.inputs, held.outputs = (), [], []


def _watch(end: socket.socket, parent: int) -> None:
    """Ends this process when its parent is gone, also while a driver holds the main thread."""
    watched = select.poll()
    watched.register(end, select.POLLHUP | select.POLLERR)
    while True:
        for _, events in watched.poll(2000):
            if events & (select.POLLHUP | select.POLLERR):
                os._exit(0)
        if os.getppid() != parent:
            os._exit(0)


def main() -> None:
    """Serves until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)    # Ctrl-C is for the parent, which ends this process when it wants to
    end = socket.socket(fileno=int(sys.argv[1]))
    parent = os.getppid()
    worker = Worker(Channel(end), SharedMemory(int(sys.argv[2])))
    threading.Thread(target=_watch, args=(end, parent), daemon=True).start()
    try:
        worker.serve()
    finally:
        remove_mine()
        os._exit(0)      # not sys.exit: a driver's own exit handlers may crash or hang


if __name__ == "__main__":
    main()
