"""The process that has the GPU, with the arguments SOCKET MEMORY, both inherited file descriptors (isolation/process.py
starts it).

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
import time
from dataclasses import astuple, dataclass, field

import numpy as np

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Buffer, Gpu, Tensor
from ort_gpu_ep.device.buffers import Piece
from ort_gpu_ep.device.index_check import Word
from ort_gpu_ep.device.probe import probe
from ort_gpu_ep.device.staging import Staging
from ort_gpu_ep.drills.faults import FaultyGpu, after_run
from ort_gpu_ep.health.markers import remove_mine
from ort_gpu_ep.health.open_adapter import open_gpu
from ort_gpu_ep.health.verdicts import key_of
from ort_gpu_ep.health.workarounds import with_workarounds
from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.ir.types import BY_ONNX, Shape, TensorType
from ort_gpu_ep.isolation.channel import Channel, SharedMemory, aligned
from ort_gpu_ep.isolation.process_memory import NBYTES, ProcessMemory, answer_trial
from ort_gpu_ep.isolation.wire import SharedPlace, error_answer, limits_answer, with_constants
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.runtime.artefact import composer, opened
from ort_gpu_ep.runtime.backend import FilePlace
from ort_gpu_ep.runtime.program import Program

_ANSWER_S = 600.0
"""A parent that does not take an answer for so long will not come back."""


_CLEAN_END_S = 1.0
"""How long the main thread, which sees the end of its parent too, may take to remove what it leaves otherwise."""


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
        self._staging: Staging | None = None
        self._parent_memory: ProcessMemory | None = None

    def serve(self) -> None:
        """Answers requests until the parent is gone."""
        while True:
            try:
                request = pickle.loads(self._channel.receive())
            except EOFError:
                return
            try:
                answer = getattr(self, f"_{request[0]}")(*request[1:])
            except Exception as error:  # the parent decides what it means
                answer = error_answer(error)
            if self._gpu is not None:
                answer["compiles"] = getattr(self._gpu, "compiles", 0)
                answer["held"] = (self._gpu.stats.allocated_nbytes, self._gpu.compiled)
            self._answer(answer)

    def _answer(self, answer: dict[str, object]) -> None:
        self._channel.send(json.dumps(answer).encode(), _ANSWER_S)

    @property
    def gpu(self) -> Gpu:
        assert self._gpu is not None, "the parent opens first"
        return self._gpu

    @property
    def staging(self) -> Staging:
        assert self._staging is not None, "the parent opens first"
        return self._staging

    @property
    def parent_memory(self) -> ProcessMemory:
        if self._parent_memory is None:
            raise OSError("its memory can't be reached")
        return self._parent_memory

    # ---- requests

    def _open(self, config: Config, runs: int, compiles: int, check: bool, trial: int) -> dict[str, object]:
        """runs, compiles: how many there were in workers before this one; faults on purpose go on counting. check:
        probes the adapter.

        trial: address of the bytes that process_memory.AccessCheck has in the parent.
        """
        self._gpu = gpu = open_gpu(config)
        # for all that share this worker
        gpu.memory_limit_nbytes = with_workarounds(config, gpu.workarounds).memory_limit_mb << 20
        self._staging, self._parent_memory = Staging(gpu), answer_trial(os.getppid(), trial)
        if isinstance(gpu, FaultyGpu):
            gpu.resume(runs, compiles)
        if check:
            probe(gpu.info)
        return {"info": gpu.info.as_dict(), "limits": limits_answer(gpu.limits), "key": key_of(gpu.info)}

    def _check(self) -> dict[str, object]:
        probe(self.gpu.info)
        return {}

    def _compile(
        self,
        number: int,
        graph: Graph,
        constants: dict[str, Array | FilePlace | SharedPlace],
        config: Config,
        key: str,
    ) -> dict[str, object]:
        """key: of what is known of the model, empty where nothing is kept."""
        artefact = opened(config.cache_path, key) if key else None
        arrays = {name: self._shared(c) if isinstance(c, SharedPlace) else c for name, c in constants.items()}
        program = Program(
            with_constants(graph, arrays),
            config,
            self.gpu,
            rewrite if config.fusion else None,
            composer(artefact),
            after_run(self.gpu),
            artefact,
        )
        self._programs[number] = _Held(program)
        return {
            "weight_nbytes": program.weight_nbytes,
            "uploads": program.uploads,
            "uploaded_nbytes": program.uploaded_nbytes,
        }

    def _shared(self, place: SharedPlace) -> Array:
        nbytes = int(np.prod(place.shape, dtype=np.int64)) * place.dtype.itemsize
        self._memory.reserve(place.offset + nbytes)
        data = self._memory.bytes_at(place.offset, nbytes)
        return data.view(place.dtype).reshape(place.shape)

    def _run(
        self, number: int, inputs: list[tuple[int, Shape, int, bool]], end: int, direct: bool
    ) -> dict[str, object]:
        """inputs: (element type, shape, place, whether that is an address of the parent's) of each; else an offset in
        the shared memory.

        end: of the inputs there; outputs come behind. direct: large outputs are left for `_fetch`, with None as their
        offset.
        """
        entry, memory = self._programs[number], self._memory
        types = tuple(TensorType(BY_ONNX[kind], shape) for kind, shape, _, _ in inputs)
        memory.reserve(end)

        def content(index: int, kind: TensorType) -> Array:
            data = memory.bytes_at(inputs[index][2], kind.nbytes)  # small ones are never left in the parent
            return data.copy().view(kind.dtype.numpy).reshape(kind.shape)

        if not entry.program.is_prepared(types, content):
            self._answer({"wait": True})  # compiling takes as long as it takes
            entry.program.prepare(types, content)
            self._answer({"wait": False})
        if entry.types != types:
            self._drop_buffers(entry)
            entry.types, entry.inputs = types, [self._tensor(t) for t in types]
        self.staging.settle()
        try:
            for tensor, (_, _, place, is_address) in zip(entry.inputs, inputs, strict=True):
                self._upload(tensor, place, is_address)
        except OSError as error:
            return {"out_of_reach": str(error)}
        word = entry.program.run(entry.inputs, lambda i, shape, over=None: self._output(entry, i, shape), content)
        late = [direct and tensor.type.nbytes >= NBYTES for tensor in entry.outputs]
        offsets = iter(
            self._download([t for t, is_late in zip(entry.outputs, late, strict=True) if not is_late], end, word)
        )
        return {
            "outputs": [
                (t.type.shape, None if is_late else next(offsets))
                for t, is_late in zip(entry.outputs, late, strict=True)
            ],
            "specialized": list(map(astuple, entry.program.specialized)),
        }

    def _fetch(self, number: int, wanted: list[tuple[int, int]]) -> dict[str, object]:
        """Writes outputs of the last run to addresses of the parent's. wanted: (index, address)."""
        tensors = [self._programs[number].outputs[index] for index, _ in wanted]
        try:
            memory = self.parent_memory
            self.gpu.lend(
                [_piece(t) for t in tensors],
                lambda i, source: memory.write(wanted[i][1], source, tensors[i].type.nbytes),
            )
        except OSError as error:
            return {"out_of_reach": str(error)}
        self.staging.recycle()
        return {}

    def _share(self, number: int, wanted: list[int], end: int) -> dict[str, object]:
        """Outputs of the last run, by index, into the shared memory behind `end`."""
        outputs = [self._programs[number].outputs[index] for index in wanted]
        return {"outputs": list(zip((t.type.shape for t in outputs), self._download(outputs, end), strict=True))}

    def _shrink(self, number: int) -> dict[str, object]:
        entry = self._programs.get(number)
        if entry is not None:
            self._drop_buffers(entry)
            entry.program.shrink()
            self.gpu.trim()
        return {}

    def _release(self, number: int) -> dict[str, object]:
        entry = self._programs.pop(number, None)
        if entry is not None:
            self._drop_buffers(entry)
            entry.program.close()
        return {}

    # ---- inside

    def _upload(self, tensor: Tensor, place: int, is_address: bool) -> None:
        nbytes = tensor.type.nbytes
        if is_address:
            self.staging.upload(tensor.buffer, nbytes, lambda into: self.parent_memory.read(place, into, nbytes))
        else:
            self.gpu.upload(tensor.buffer, 0, self._memory.address + place, nbytes)

    def _download(self, tensors: list[Tensor], end: int, word: Word | None = None) -> list[int]:
        """Into the shared memory behind `end`; their offsets. Raises InputError where the word is set."""
        offsets = []
        for tensor in tensors:
            offsets.append(end := aligned(end))
            end += tensor.type.nbytes
        self._memory.reserve(end)
        pieces = [(_piece(t), self._memory.address + offset) for t, offset in zip(tensors, offsets, strict=True)]
        self.gpu.download_all(pieces, () if word is None else (word,))
        if any(tensor.type.nbytes for tensor in tensors):
            self.staging.recycle()
        return offsets

    def _output(self, held: _Held, index: int, shape: Shape) -> Tensor:
        graph = held.program.graph
        dtype = graph.values[graph.outputs[index]].dtype
        assert dtype is not None, "the parent checks the border of a partition"
        if index == len(held.outputs):
            held.outputs.append(self._tensor(TensorType(dtype, shape)))
        elif (
            held.outputs[index].type.shape != shape
        ):  # the same types as in the run before, but another content decides
            self.gpu.free(held.outputs[index].buffer)
            held.outputs[index] = self._tensor(TensorType(dtype, shape))
        return held.outputs[index]

    def _tensor(self, kind: TensorType) -> Tensor:
        buffer: Buffer = self.gpu.allocate(max(kind.nbytes, 4))
        return Tensor(buffer, 0, kind)

    def _drop_buffers(self, held: _Held) -> None:
        for tensor in (*held.inputs, *held.outputs):
            self.gpu.free(tensor.buffer)
        held.types, held.inputs, held.outputs = (), [], []


def _piece(tensor: Tensor) -> Piece:
    return tensor.buffer, 0, tensor.type.nbytes


def _watch(end: socket.socket, parent: int) -> None:
    """Ends this process when its parent is gone, also while a driver holds the main thread, which has time to end it
    cleanly before."""
    if sys.platform != "win32":  # where a worker has no socket of its parent's
        watched = select.poll()
        watched.register(end, select.POLLHUP | select.POLLERR)
        while os.getppid() == parent and not any(
            events & (select.POLLHUP | select.POLLERR) for _, events in watched.poll(2000)
        ):
            pass
    time.sleep(_CLEAN_END_S)
    os._exit(0)


def main() -> None:
    """Serves until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process when it wants to
    end = socket.socket(fileno=int(sys.argv[1]))
    parent = os.getppid()
    worker = Worker(Channel(end), SharedMemory(int(sys.argv[2])))
    threading.Thread(target=_watch, args=(end, parent), daemon=True).start()
    try:
        worker.serve()
    finally:
        remove_mine()
        os._exit(0)  # not sys.exit: a driver's own exit handlers may crash or hang


if __name__ == "__main__":
    main()
