"""Runs with an IO binding that bypass ONNX Runtime, which makes a dozen calls for each bound value though few values change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from onnxruntime import OrtValue

from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.ir.types import Shape, TensorType
from ort_gpu_ep.plugin.compute import Partition, Run
from ort_gpu_ep.plugin.io_binding import HOST
from ort_gpu_ep.plugin.known import Known
from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.plugin.transfer import tensor_type

if TYPE_CHECKING:
    from ort_gpu_ep.device import Buffer, Gpu
    from ort_gpu_ep.ir.graph import Array
    from ort_gpu_ep.runtime.bound import Bound
    from ort_gpu_ep.runtime.prepared import Prepared
    from ort_gpu_ep.runtime.program import Program
    from ort_gpu_ep.scheduler.template import Filled


OWN_NBYTES = 8 << 20
"""What a binding's runs may keep on the device for their arrays: the logits of a prompt do not stay there."""


class _Refused(Exception):
    """The run is not such a one: nothing was enqueued, ONNX Runtime is to do it, or to say what is wrong."""


class BindingRun(Run):
    """Runs of a session's only partition with what is bound. Not thread-safe.

    What lies on the device is found once, and again where memory may have moved; arrays on the host may be others in each run. A run that
    finds memory as the one before it left it goes by `_bound`: what is bound there, and buffers of its own for what is on the host.
    made: values of the last run for HOST, by the output's name.
    """

    def __init__(
        self, partition: Partition, places: list[tuple[int, TensorType] | None], targets: list[tuple[int, TensorType] | None],
        unwanted: set[int],
    ) -> None:
        super().__init__(partition, 0)
        self._unwanted = unwanted       # positions of outputs that are not bound
        self.made, self._next_made, self._forgotten = dict[str, Any](), dict[str, Any](), set[str]()
        self._where, self._targets = places, targets
        self._arrays = [k for k, place in enumerate(places) if place is None]
        self._uploaded = [k for k, place in enumerate(places) if place is None or not memory.owns(place[0])]    # it may change in place
        self._made_here = [k for k, target in enumerate(targets) if target is None]
        self._reads_back = any(target is not None and not memory.owns(target[0]) for target in targets)
        self._shapes = [() if target is None else target[1].shape for target in targets]
        self._refused = False
        self._kept: Known | None = None
        self._bound: Bound | None = None
        self._own = dict[tuple[bool, int], Any]()       # storages, by whether it is an output's, and which
        self._read_from, self._written_to = list[tuple[Any, int]](), list[Any]()     # storages of `_bound`
        self._there: tuple[int, Any] | None = None          # memory's version and the program that the last run had

    @staticmethod
    def of(
        partition: Partition, dtypes: Mapping[str, np.dtype[Any] | None], given: Mapping[str, Any], wanted: Mapping[str, Any],
    ) -> BindingRun | None:
        """None where runs need ONNX Runtime.

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
        found = BindingRun(partition, places, targets, {k for k, n in enumerate(graph.outputs) if n not in wanted})
        fits = all(found._fits(k, place[1]) for k, place in enumerate(places) if place is not None)
        kinds = zip(targets, partition.output_dtypes, strict=True)      # memory for another type may be too small, too
        return found if fits and all(target is None or target[1].dtype is dtype for target, dtype in kinds) else None

    def run(self, given: Mapping[str, Any]) -> bool:
        """One run. Returns False, and has done nothing, where ONNX Runtime is to do it. Raises what the partition does."""
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
        self.pins, self._late, self._inputs, self._outputs, self._found, self._refused = [], [], [], [], [], False
        try:
            partition.perform(self)
        finally:
            memory.release(self.pins)
        partition.runs += not self._refused
        return not self._refused

    def forget(self, name: str) -> None:
        """The next run makes a new value for this output."""
        if self.made.pop(name, None) is not None:
            self._forgotten.add(name)

    def record_ahead(self) -> bool:
        """While the host waits for the GPU: makes the values that the next run will want, if it is like this one."""
        for name in self._forgotten - self._next_made.keys():
            value = self.made.get(name)
            if value is not None:
                dtype = self.partition.output_dtypes[self.partition.graph.outputs.index(name)]
                assert dtype is not None, "`of` has seen to it"
                self._next_made[name] = OrtValue.ortvalue_from_shape_and_type(value.shape(), dtype.numpy.type)
        return False

    def on_gpu(self) -> None:
        partition, before = self.partition, self._there
        program, config = partition.program, partition.state.config
        try:
            same = (memory.version, program) == before and config is not None and not config.verify
            if self._reads_back or not same or not self._as_bound(cast("Program", program)):
                self._bound = None
                super().on_gpu()
        except _Refused:
            self._refused = True
        self._there = memory.version, program

    # ---- runs by what is bound

    def _as_bound(self, program: Program) -> bool:
        """One run by `_bound`. False, and nothing was enqueued, where it needs another way."""
        gpu, places = program.gpu, self._all_places()
        self._gpu, self._places, self._types = gpu, places, tuple([kind for _, kind in places])
        word = program.run_bound(self._types, self._bound_for)
        if word is False:
            self._inputs, self._outputs, self._late = [], [], []
            return False
        gpu.on_wait(self)
        for storage in self._outputs:
            storage.content = None
        self.deliver(word)
        return True

    def _bound_for(self, prepared: Prepared, filled: Filled) -> Bound | None:
        """What such a run goes by, with what is on the host uploaded. None where an output is bound that has other sizes."""
        gpu = prepared.gpu
        makes, shapes = [(k, filled.outputs[k]) for k in self._made_here], [t.shape for t in filled.outputs]
        for k, t in makes:
            shapes[k] = self._shapes[k] = t.shape
        if shapes != self._shapes:
            return None
        wanted = {(False, k): self._types[k].nbytes for k in self._uploaded} | {(True, k): t.nbytes for k, t in makes}
        if sum(wanted.values()) > OWN_NBYTES or not all(wanted.values()):
            return None
        fits = all(key in self._own and self._own[key].nbytes >= nbytes for key, nbytes in wanted.items())
        if self._bound is None or self._bound.prepared is not prepared or not fits:
            self._bind(gpu, prepared, filled, wanted)
        for k in self._uploaded:
            storage, (address, kind) = self._own[False, k], self._places[k]
            gpu.upload(cast("Buffer", storage.buffer), 0, address, kind.nbytes)
            memory.count("host_to_device", self.partition.state, kind.nbytes)
        self._late = [(self._own[True, k], self.output(k, t.shape)[0], t.nbytes) for k, t in makes if k not in self._unwanted]
        self._inputs, self._outputs = self._read_from, self._written_to
        return self._bound

    def _bind(self, gpu: Gpu, prepared: Prepared, filled: Filled, wanted: Mapping[tuple[bool, int], int]) -> None:
        for key, nbytes in wanted.items():
            if key not in self._own or self._own[key].gpu is not gpu or self._own[key].nbytes < nbytes:
                memory.release([self._own.pop(key)] if key in self._own else [])
                self._own[key] = memory.temporary(gpu, nbytes if key[0] else nbytes + nbytes // 2)      # a mask grows with each token
        from ort_gpu_ep.runtime.bound import Bound  # only here: it loads wgpu-native

        self._read_from, self._written_to = [], []
        inputs, outputs = list[Tensor](), list[Tensor]()
        for k, (address, kind) in enumerate(self._places):
            storage, offset = (self._own[False, k], 0) if k in self._uploaded else memory.read(gpu, address, kind.nbytes)
            memory.release([] if k in self._uploaded else [storage])       # its block holds it
            self._read_from.append((storage, offset))
            inputs.append(Tensor(cast("Buffer", storage.buffer), offset, kind))
        for k, kind in enumerate(filled.outputs):
            target = self._targets[k]
            storage = self._own[True, k] if target is None else memory.write(gpu, target[0], kind.nbytes)[0]
            self._written_to.append(storage)
            outputs.append(Tensor(cast("Buffer", storage.buffer), 0, kind))
        self._bound = Bound(prepared, filled, inputs, outputs)

    # ---- for the program

    def new_tensor(self, index: int, shape: Shape, over: int | None = None) -> Tensor:
        if index in self._unwanted:
            dtype = self.partition.output_dtypes[index]
            assert dtype is not None, "`of` has seen to it"
            self.pins.append(memory.temporary(self._gpu, TensorType(dtype, shape).nbytes))      # type: ignore[arg-type]
            return Tensor(self.pins[-1].buffer, 0, TensorType(dtype, shape))        # type: ignore[arg-type]
        return super().new_tensor(index, shape, over)

    def _all_places(self) -> list[tuple[int, TensorType]]:
        return cast("list[tuple[int, TensorType]]", self._where)        # a run begins with its arrays' places

    def _known_on(self, gpu: Gpu) -> Known | None:
        return self._kept if self._kept is not None and self._kept.gpu is gpu else None

    def _keep(self, known: Known) -> None:
        self._kept = known

    def output(self, index: int, shape: Shape) -> tuple[int, TensorType]:
        target, name, dtype = self._targets[index], self.partition.graph.outputs[index], self.partition.output_dtypes[index]
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
            value = self.made[name] = OrtValue.ortvalue_from_shape_and_type(shape, dtype.numpy.type)     # views of it keep it alive
        return value.data_ptr(), tensor_type(dtype.onnx, shape)

    def _input_address(self, index: int) -> tuple[int, TensorType]:
        place = self._where[index]
        assert place is not None, "a run begins with its arrays' places"
        return place

    def _host_input(self, index: int) -> tuple[TensorType, Array]:
        address, tensor = self._input_address(index)
        if not tensor.nbytes or memory.owns(address):
            return super()._host_input(index)
        data = np.empty(tensor.nbytes, np.uint8)        # from where it is bound: its copy may be lost with the device
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
