"""What ONNX Runtime uses to move tensors to and from device memory: allocator, data transfer, Memcpy kernels."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.errors import InputError, InternalError
from ort_gpu_ep.ir.types import DTYPES
from ort_gpu_ep.plugin import slots
from ort_gpu_ep.plugin.abi import NULL, api, c_text, ffi, get, input_of, key_value_pairs, output_of, tensor_of
from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.plugin.places import gpu_for, tensor_type
from ort_gpu_ep.plugin.tables import Table

if TYPE_CHECKING:
    from ort_gpu_ep.plugin.state import SessionState

VENDOR = "ort_gpu_ep"
CPU_DEVICE, GPU_DEVICE = 0, 1
_MEM_CPU_INPUT, _MEM_CPU_OUTPUT = -2, -1
_ANY_VERSION = 2147483646
"""ONNX Runtime takes its largest number for no range at all."""


class Allocator(Table):
    """OrtAllocator. state: the session it serves, None for the allocator that ONNX Runtime shares between sessions."""

    SLOTS = slots.ALLOCATOR

    def __init__(self, memory_info: Any, state: SessionState | None = None) -> None:
        super().__init__()
        self.memory_info, self.state = memory_info, state

    def alloc(self, nbytes: int) -> int:
        return memory.allocate(nbytes, self.state) if nbytes else 0

    reserve = alloc

    def free(self, address: int) -> None:
        if address:
            memory.free(address)

    def info(self) -> Any:
        return self.memory_info

    def get_stats(self, out: Any) -> None:
        """Bytes that the session and the process hold of the device, by the keys of ONNX Runtime's arenas; zeros
        without a device."""
        backend = self.state.backend if self.state is not None else None
        memory = None
        if backend is not None and backend.device is not None and backend.allowance is not None:
            memory = backend.device.memory_of(backend.allowance)
        out[0] = key_value_pairs(
            {
                "Limit": str(memory.limit_nbytes if memory else 0),
                "InUse": str(memory.session_nbytes if memory else 0),
                "TotalAllocated": str(memory.process_nbytes if memory else 0),
                "MaxInUse": str(memory.most_nbytes if memory else 0),
            }
        )

    def shrink(self) -> None:
        """Gives what no value, no weight and no run needs now back to the driver: the next run takes it again."""
        if self.state is not None:
            for partition in self.state.partitions:
                if partition.program is not None:
                    partition.program.shrink()
        for gpu in memory.gpus() if self.state is None else filter(None, [self.state.gpu]):
            if not gpu.lost and not memory.forked:
                gpu.trim()


class DataTransfer(Table):
    """OrtDataTransferImpl, for feeds, fetches, initializers and `OrtValue`s."""

    SLOTS = slots.DATA_TRANSFER

    def __init__(self, vendor_id: int) -> None:
        super().__init__()
        self.vendor_id = vendor_id

    def release(self) -> None:
        self.drop()

    def can_copy(self, source: Any, target: Any) -> bool:
        gpus = 0
        for device in (source, target):
            kind = api.MemoryDevice_GetDeviceType(device)
            if kind == GPU_DEVICE and api.MemoryDevice_GetVendorId(device) == self.vendor_id:
                gpus += 1
            elif kind != CPU_DEVICE:
                return False
        return gpus > 0

    def copy_tensors(self, sources: Any, targets: Any, streams: Any, count: int) -> None:
        outwards = []
        for i in range(count):
            address, into, nbytes = _places(sources[i], targets[i])
            if memory.owns(address) and not memory.owns(into):
                outwards.append((address, into, nbytes))
            else:
                _copy(address, into, nbytes)
        if outwards:
            with recording(*[address for address, _, _ in outwards]):
                memory.copy_out_all(outwards)


def recording(*addresses: int) -> AbstractContextManager[object]:
    """Works for the session that one of these addresses belongs to, if one does, and keeps what is raised meanwhile for
    it."""
    state = next(filter(None, map(memory.state_of, addresses)), None)
    return _Copying(state) if state is not None else nullcontext()


class _Copying:
    """See `recording`."""

    __slots__ = ("_allowance", "_errors")

    def __init__(self, state: SessionState) -> None:
        self._allowance, self._errors = state.allowance, state.recording("copy")

    def __enter__(self) -> None:
        self._allowance.__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            self._errors.__exit__(*error)
        finally:
            self._allowance.__exit__(*error)


def _places(source: int, target: int) -> tuple[int, int, int]:
    """Addresses of two tensor OrtValues, and the bytes of each. Raises InputError where they are not alike: a program
    may copy any two."""
    (address, shape, kind), (into, into_shape, into_kind) = tensor_of(source), tensor_of(target)
    tensor, place = tensor_type(kind, shape), tensor_type(into_kind, into_shape)
    if tensor.dtype is not place.dtype or tensor.size != place.size:
        raise InputError(
            f"copy between devices: got a source of {tensor} and a target of {place}, expected one element type "
            f"and as many "
            "elements. Make the target with the source's shape and type."
        )
    return address, into, tensor.nbytes


def copy_value(source: int, target: int) -> None:
    """Copies one tensor OrtValue into another, wherever the two are. Raises InputError where they are not alike."""
    _copy(*_places(source, target))


def _copy(address: int, into: int, nbytes: int) -> None:
    """Copies memory, wherever it is."""
    if nbytes == 0:
        return
    from_device, to_device = memory.owns(address), memory.owns(into)
    with recording(address, into):
        if to_device:
            if from_device:
                memory.copy(gpu_for(into), address, into, nbytes)
            else:
                memory.copy_in(gpu_for(into), into, address, nbytes)
        elif from_device:
            memory.copy_out(address, into, nbytes)
        else:
            raise InternalError(
                f"asked to copy {address:#x} to {into:#x}, neither of which is memory of {VENDOR}. "
                "Is a second GPU provider in the same session?"
            )


class MemcpyKernel(Table):
    """OrtKernelImpl of MemcpyFromHost and MemcpyToHost, which ONNX Runtime puts between our partitions and CPU
    nodes."""

    SLOTS = slots.KERNEL

    def compute(self, context: int) -> None:
        source = input_of(context, 0)
        copy_value(source, output_of(context, 0, tensor_of(source)[1]))

    def release(self) -> None:
        self.drop()


def memcpy_registry(ep_name: Any, create_kernel: Any) -> Any:
    """An OrtKernelRegistry with the two Memcpy kernels, for all element types that this package knows."""
    registry = _make(api.CreateKernelRegistry)
    for op in ("MemcpyFromHost", "MemcpyToHost"):
        from_host = op == "MemcpyFromHost"
        add_kernel(registry, ep_name, op, create_kernel, (0,) if from_host else (), () if from_host else (0,), "T")
    return registry


def add_kernel(
    registry: Any,
    ep_name: Any,
    op: str,
    create: Any,
    host_inputs: Iterable[int] = (),
    host_outputs: Iterable[int] = (),
    typed: str = "",
) -> None:
    """Adds a kernel for all versions of an op. host_inputs, host_outputs: what is in host memory. typed: what has one
    of our types."""
    builder = _make(api.CreateKernelDefBuilder)
    api.KernelDefBuilder_SetOperatorType(builder, c_text(op))
    api.KernelDefBuilder_SetDomain(builder, c_text(""))
    api.KernelDefBuilder_SetSinceVersion(builder, 1, _ANY_VERSION)
    api.KernelDefBuilder_SetExecutionProvider(builder, ep_name)
    for index in host_inputs:
        api.KernelDefBuilder_SetInputMemType(builder, index, _MEM_CPU_INPUT)
    for index in host_outputs:
        api.KernelDefBuilder_SetOutputMemType(builder, index, _MEM_CPU_OUTPUT)
    if typed:
        types = ffi.new("void*[]", [get(api.GetTensorDataType, dtype.onnx) for dtype in DTYPES])
        api.KernelDefBuilder_AddTypeConstraint(builder, c_text(typed), types, len(DTYPES))
    definition = get(api.KernelDefBuilder_Build, builder)
    api.KernelRegistry_AddKernel(registry, definition, create, NULL)
    api.ReleaseKernelDef(definition)
    api.ReleaseKernelDefBuilder(builder)


def _make(function: Any) -> Any:
    out = ffi.new("void**")
    function(out)
    return out[0]
