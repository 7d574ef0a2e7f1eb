"""Runs with values that are bound, which bypass ONNX Runtime: it makes a dozen calls for each value, though few values
change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from onnxruntime import OrtValue

from ort_gpu_ep import private
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.ir.types import Shape, TensorType
from ort_gpu_ep.plugin.compute import Partition, Run
from ort_gpu_ep.plugin.io_binding import HOST
from ort_gpu_ep.plugin.known import Known
from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.plugin.places import gpu_for, tensor_type

if TYPE_CHECKING:
    from ort_gpu_ep.device import Buffer, Gpu
    from ort_gpu_ep.ir.graph import Array
    from ort_gpu_ep.plugin.state import SessionState
    from ort_gpu_ep.runtime.ends import Ends
    from ort_gpu_ep.runtime.plans import Key
    from ort_gpu_ep.runtime.prepared import Prepared
    from ort_gpu_ep.runtime.program import Program
    from ort_gpu_ep.runtime.recording import Recording
    from ort_gpu_ep.scheduler.template import Filled


OWN_NBYTES = 8 << 20
"""What a binding's runs may keep on the device for their arrays: the logits of a prompt do not stay there."""


class _Refused(Exception):
    """The run is not such a one: nothing was enqueued, ONNX Runtime is to do it, or to say what is wrong."""


class BoundRun(Run):
    """Runs of a session's only partition with what is bound. Not thread-safe.

    What lies on the device is found once, and again where memory may have moved; arrays on the host may be others in
    each run. A run that finds memory as the one before it left it goes by a recording: for what is bound there, and
    buffers of its own for what is on the host. made: values of the last run for HOST, by the output's name.
    """

    def __init__(
        self,
        partition: Partition,
        places: list[tuple[int, TensorType] | None],
        targets: list[tuple[int, TensorType] | None],
        unwanted: set[int],
        repeats: bool,
    ) -> None:
        """places: of the inputs, None for an array, which each run brings. targets: of the outputs, None for a new
        value on the host. unwanted: positions of outputs that are not bound. repeats: there will be many runs, and
        Turns records them ahead.
        """
        super().__init__(partition, 0)
        self._unwanted, self._repeats = unwanted, repeats
        self.made, self._next_made, self._forgotten = dict[str, Any](), dict[str, Any](), set[str]()
        self._where, self._targets = places, targets
        self._arrays = [k for k, place in enumerate(places) if place is None]
        # it may change in place
        self._uploaded = [k for k, place in enumerate(places) if place is None or not memory.owns(place[0])]
        self._made_here = [k for k, target in enumerate(targets) if target is None]
        self._reads_back = any(target is not None and not memory.owns(target[0]) for target in targets)
        self._shapes = [() if target is None else target[1].shape for target in targets]
        self._refused = False
        self._kept: Known | None = None
        self._key: Key | None = None  # of a run that repeats
        self._recording: Recording[Ends] | None = None
        self._filled: Filled | None = None  # that it was last used with
        self._own = dict[tuple[bool, int], Any]()  # storages, by whether it is an output's, and which
        self._read_from, self._written_to = list[tuple[Any, int]](), list[Any]()  # storages of the recording
        self._there: tuple[int, Any] | None = None  # memory's version and the program that the last run had

    @staticmethod
    def of(
        partition: Partition,
        dtypes: Mapping[str, np.dtype[Any] | None],
        given: Mapping[str, Any],
        wanted: Mapping[str, Any],
    ) -> BoundRun | None:
        """Runs of an IO binding; None where they need ONNX Runtime.

        dtypes: numpy's of each of the session's inputs, if there is one. given, wanted: what is bound.
        """
        graph = partition.graph
        is_whole = bool(wanted) and set(wanted) <= set(graph.outputs) and set(given) == set(dtypes)
        if partition.state.gpu is None or not is_whole or any(v is None for v in (*given.values(), *wanted.values())):
            return None
        if any(dtype is None or dtype.numpy is None for dtype in partition.output_dtypes):
            return None
        places = [None if isinstance(given[n], np.ndarray) else _place_of(given[n]) for n in graph.inputs]
        targets = [None if wanted.get(n, HOST) is HOST else _place_of(wanted[n]) for n in graph.outputs]
        runs = BoundRun(partition, places, targets, {k for k, n in enumerate(graph.outputs) if n not in wanted}, False)
        fits = all(runs._fits(k, place[1]) for k, place in enumerate(places) if place is not None)
        kinds = zip(targets, partition.output_dtypes, strict=True)  # memory for another type may be too small, too
        return runs if fits and all(target is None or target[1].dtype is dtype for target, dtype in kinds) else None

    def run(self, given: Mapping[str, Any]) -> bool:
        """One run. Returns False, and has done nothing, where ONNX Runtime is to do it. Raises what the partition
        does."""
        partition, names = self.partition, self.partition.graph.inputs
        for index in self._arrays:
            array = given[names[index]]
            dtype = partition.graph.values[names[index]].dtype
            if dtype is None or array.dtype != dtype.numpy:
                return False
            place = self._where[index] = array.ctypes.data, tensor_type(dtype.onnx, array.shape)
            if not self._fits(index, place[1]):
                return False
        if partition.avoids_the_gpu():
            return False
        if self._repeats:
            partition.state.begin_run()
        self.pins, self._late, self._inputs, self._outputs, self._found, self._refused = [], [], [], [], [], False
        try:
            partition.perform(self)
        finally:
            if self.pins:
                memory.release(self.pins)
        partition.runs += not self._refused
        return not self._refused

    def forget(self, name: str) -> None:
        """The next run makes a new value for this output."""
        if self.made.pop(name, None) is not None:
            self._forgotten.add(name)

    def while_waiting(self) -> bool:
        """Makes the values that the next run will want, and records it, if it is like this one. Whether it was to be
        recorded."""
        for name in self._forgotten - self._next_made.keys():
            value = self.made.get(name)
            if value is not None:
                dtype = self.partition.output_dtypes[self.partition.graph.outputs.index(name)]
                assert dtype is not None, "`of` has seen to it"
                self._next_made[name] = OrtValue.ortvalue_from_shape_and_type(value.shape(), dtype.numpy.type)
        return self._recording is not None and self._recording.record_ahead()

    def on_gpu(self) -> None:
        partition, there = self.partition, (memory.version, self.partition.program)
        config, moved = partition.state.config, there != self._there
        always = self._reads_back or config is None or config.verify or (moved and not self._repeats)
        try:
            if always or not self._by_recording(cast("Program", partition.program), moved):
                self._recording = None
                super().on_gpu()
        except _Refused:
            self._refused = True
        self._there = memory.version, partition.program
        if not (self._repeats or self._late or self._refused) and self._gpu is not None:
            self._gpu.submit_ahead()

    # ---- runs by a recording

    def _by_recording(self, program: Program, moved: bool) -> bool:
        """One run. False, and nothing was enqueued, where it needs another way. moved: memory may be elsewhere than in
        the last run."""
        if moved or not self._repeats:
            self._places, self._filled = self._all_places(), None if moved else self._filled
            self._types = tuple([kind for _, kind in self._places])
            self._key = program.key_of(self._types) if self._repeats else None
        self._gpu = program.gpu
        word = program.run_bound(self._types, self._recording_for, self._key)
        if word is False:
            self._inputs, self._outputs, self._late = [], [], []
            return False
        if not self._repeats:
            program.gpu.on_wait(self)
        if self._late:
            program.gpu.submit_long()
        for storage in self._outputs:
            storage.content = None
        self.deliver(word)
        return True

    def _recording_for(self, prepared: Prepared, filled: Filled) -> Recording[Ends] | None:
        """What such a run goes by, with what is on the host uploaded. None where an output is bound that has other
        sizes."""
        recording = self._recording
        if recording is None or recording.prepared is not prepared or filled is not self._filled:
            recording = self._bind(prepared, filled)
            if recording is None:
                return None
        for k in self._uploaded:
            storage, (address, kind) = self._own[False, k], self._places[k]
            prepared.gpu.upload(cast("Buffer", storage.buffer), 0, address, kind.nbytes)
            memory.count("host_to_device", self.partition.state, kind.nbytes)
        if self._made_here:
            targets = [(k, filled.outputs[k]) for k in self._made_here if k not in self._unwanted]
            self._late = [(self._own[True, k], self.output(k, t.shape)[0], t.nbytes) for k, t in targets]
        self._inputs, self._outputs = self._read_from, self._written_to
        return recording

    def _bind(self, prepared: Prepared, filled: Filled) -> Recording[Ends] | None:
        """Finds where the values are. The recording stays where it is for the same ends."""
        gpu = prepared.gpu
        makes, shapes = [(k, filled.outputs[k]) for k in self._made_here], [t.shape for t in filled.outputs]
        for k, t in makes:
            shapes[k] = self._shapes[k] = t.shape
        wanted = {(False, k): self._types[k].nbytes for k in self._uploaded} | {(True, k): t.nbytes for k, t in makes}
        if shapes != self._shapes or sum(wanted.values()) > OWN_NBYTES or not all(wanted.values()):
            return None
        fits = all(key in self._own and self._own[key].nbytes >= nbytes for key, nbytes in wanted.items())
        is_of_plan = self._recording is not None and self._recording.prepared is prepared
        if self._recording is None or not is_of_plan or not fits or (self._filled is None and self._repeats):
            from ort_gpu_ep.runtime.ends import Ends  # only here: these load wgpu-native
            from ort_gpu_ep.runtime.recording import Recording

            # where this fails, the next run looks again
            before, self._recording = self._recording if is_of_plan else None, None
            inputs, outputs = self._tensors(gpu, filled, wanted)
            is_same = before is not None and (before.ends.inputs, before.ends.outputs) == (inputs, outputs)
            self._recording = before if is_same else Recording(prepared, Ends(inputs, outputs))
        self._filled = filled
        return self._recording

    def _tensors(
        self, gpu: Gpu, filled: Filled, wanted: Mapping[tuple[bool, int], int]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Inputs and outputs on the device. wanted: bytes of those that are buffers of its own, as `_own` has them."""
        for key, nbytes in wanted.items():
            if key not in self._own or self._own[key].gpu is not gpu or self._own[key].nbytes < nbytes:
                memory.release([self._own.pop(key)] if key in self._own else [])
                # a mask grows with each token
                self._own[key] = memory.temporary(gpu, nbytes if key[0] else nbytes + nbytes // 2)
        self._read_from, self._written_to = [], []
        inputs, outputs = list[Tensor](), list[Tensor]()
        for k, (address, kind) in enumerate(self._places):
            storage, offset = (
                (self._own[False, k], 0) if k in self._uploaded else memory.read(gpu, address, kind.nbytes)
            )
            memory.release([] if k in self._uploaded else [storage])  # its block holds it
            self._read_from.append((storage, offset))
            inputs.append(Tensor(cast("Buffer", storage.buffer), offset, kind))
        for k, kind in enumerate(filled.outputs):
            target = self._targets[k]
            storage = self._own[True, k] if target is None else memory.write(gpu, target[0], kind.nbytes)[0]
            self._written_to.append(storage)
            outputs.append(Tensor(cast("Buffer", storage.buffer), 0, kind))
        return inputs, outputs

    # ---- for the program

    def new_tensor(self, index: int, shape: Shape, over: int | None = None) -> Tensor:
        if index in self._unwanted:
            dtype = self.partition.output_dtypes[index]
            assert dtype is not None, "`of` has seen to it"
            self.pins.append(memory.temporary(self._gpu, TensorType(dtype, shape).nbytes))  # type: ignore[arg-type]
            return Tensor(self.pins[-1].buffer, 0, TensorType(dtype, shape))  # type: ignore[arg-type]
        return super().new_tensor(index, shape, over)

    def _all_places(self) -> list[tuple[int, TensorType]]:
        return cast("list[tuple[int, TensorType]]", self._where)  # a run begins with its arrays' places

    def _known_on(self, gpu: Gpu) -> Known | None:
        return self._kept if self._kept is not None and self._kept.gpu is gpu else None

    def _keep(self, known: Known) -> None:
        self._kept = known

    def output(self, index: int, shape: Shape) -> tuple[int, TensorType]:
        target, name, dtype = (
            self._targets[index],
            self.partition.graph.outputs[index],
            self.partition.output_dtypes[index],
        )
        if target is not None:
            if target[1].shape != shape:
                raise _Refused(f"output {name!r}: a value of {target[1]} is bound, the run gives {list(shape)}")
            return target
        if dtype is None:
            raise InternalError(f"output {name!r} has no known element type")
        value = self.made.get(name)
        if value is None and (ready := self._next_made.pop(name, None)) is not None:
            value = self.made[name] = ready
        if value is None or tuple(value.shape()) != shape:
            # views of it keep it alive
            value = self.made[name] = OrtValue.ortvalue_from_shape_and_type(shape, dtype.numpy.type)
        return value.data_ptr(), tensor_type(dtype.onnx, shape)

    def _input_address(self, index: int) -> tuple[int, TensorType]:
        place = self._where[index]
        assert place is not None, "a run begins with its arrays' places"
        return place

    def _host_input(self, index: int) -> tuple[TensorType, Array]:
        address, tensor = self._input_address(index)
        if not tensor.nbytes or memory.owns(address):
            return super()._host_input(index)
        data = np.empty(tensor.nbytes, np.uint8)  # from where it is bound: its copy may be lost with the device
        self.read(address, data.ctypes.data, tensor.nbytes)
        return tensor, data

    def _fits(self, index: int, kind: TensorType) -> bool:
        """Whether an input is of the type and the sizes that the model declares."""
        value = self.partition.graph.values[self.partition.graph.inputs[index]]
        if value.dtype is not kind.dtype or value.shape is None or len(value.shape) != len(kind.shape):
            return False
        pairs = zip(value.shape, kind.shape, strict=True)
        return all(not isinstance(wanted, int) or wanted < 0 or wanted == size for wanted, size in pairs)


def _place_of(value: Any) -> tuple[int, TensorType]:
    return value.data_ptr(), tensor_type(value.element_type(), tuple(value.shape()))


class Turns:
    """Runs that take turns, always in the same order."""

    def __init__(self, runs: Sequence[BoundRun]) -> None:
        self._runs, self._at = runs, 0

    @staticmethod
    def of(
        session: Any, state: SessionState | None, values: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    ) -> Turns | None:
        """values: of each run, OrtValues on the device by the names of inputs and outputs. None where the runs need
        ONNX Runtime."""
        partition = only_partition(session, state)
        if partition is None or partition.state.gpu is None:
            return None
        graph, runs = partition.graph, list[BoundRun]()
        for inputs, outputs in values:
            if set(graph.outputs) != set(outputs):
                return None
            places, targets = (
                [_place_of(inputs[n]) for n in graph.inputs],
                [_place_of(outputs[n]) for n in graph.outputs],
            )
            if not all(kind.nbytes and memory.owns(address) for address, kind in (*places, *targets)):
                return None
            runs.append(BoundRun(partition, [*places], [*targets], set(), True))
        return Turns(runs)

    def run(self, place: int) -> bool:
        """The run of a place, see BoundRun.run; those behind it are recorded when the host next waits."""
        self._at = place
        run = self._runs[place]
        done = run.run({})
        gpu = run.partition.state.gpu
        if done and gpu is not None:
            gpu.on_wait(self)
        return done

    def while_waiting(self) -> bool:
        """Records the first run to come that is not recorded. Whether there was one."""
        return any(self._runs[(self._at + k) % len(self._runs)].while_waiting() for k in range(1, len(self._runs) + 1))


def only_partition(session: Any, state: SessionState | None) -> Partition | None:
    """The partition that takes a session's inputs and gives its outputs; None where runs need ONNX Runtime, too."""
    if state is None or len(state.partitions) != 1 or state.config is None or state.config.verify:
        return None
    partition, options = state.partitions[0], private.settings_of(session)
    if not isinstance(partition, Partition) or (options is not None and options.enable_profiling):
        return None
    inputs, outputs = {i.name for i in session.get_inputs()}, {o.name for o in session.get_outputs()}
    return partition if outputs <= set(partition.graph.outputs) and set(partition.graph.inputs) <= inputs else None


def fill(value: Any, array: Array, waits: bool) -> None:
    """Copies a dense array into a value on the device, which has its size. waits: as Gpu.upload has it."""
    address = value.data_ptr()
    state = memory.state_of(address)
    with state.allowance if state is not None else nullcontext():
        memory.copy_in(gpu_for(address), address, array.ctypes.data, array.nbytes, waits)


def lacks_room(value: Any) -> bool:
    """Whether the content of a value in device memory is on the host although its device works: it has no room there."""
    address = value.data_ptr()
    piece = memory.piece_of(address, value.tensor_size_in_bytes())
    return gpu_for(address) is not None and (piece is None or piece.storage.gpu is None)


def download_later(values: Sequence[Any]) -> Callable[[], list[bytes]] | None:
    """The content of small values on the device, as it is now: what this gives waits for it, and is called once. None
    where they are not all on a device of this process that works. Raises DeviceError, both times.
    """
    addresses = [value.data_ptr() for value in values]
    gpu = gpu_for(addresses[0]) if all(map(memory.owns, addresses)) else None
    if gpu is None:
        return None
    parts = [
        (*memory.read(gpu, address, value.tensor_size_in_bytes()), value.tensor_size_in_bytes())
        for address, value in zip(addresses, values, strict=True)
    ]
    memory.release([storage for storage, _, _ in parts])  # what is enqueued behind the copies may write there
    pieces = [(cast("Buffer", storage.buffer), offset, nbytes) for storage, offset, nbytes in parts]
    later = gpu.read_later(pieces, tuple({word for storage, _, _ in parts for word in storage.words}))

    def wait() -> list[bytes]:
        content = later()
        for address, data in zip(addresses, content, strict=True):
            memory.count("device_to_host", memory.state_of(address), len(data))
        return content

    return wait
