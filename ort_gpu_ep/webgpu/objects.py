"""WebGPU's objects on top of the C functions of webgpu.h: the part of WebGPU that this package uses.

What validation can refuse goes through `checked` and raises a GPUError. An object is released with the last reference
to it, and holds its device.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ort_gpu_ep.processes import interrupts
from ort_gpu_ep.webgpu.implementation import own
from ort_gpu_ep.webgpu.library import NAME, checked, ffi, lib, on_error, text_of

MAP_READ, MAP_WRITE, COPY_SRC, COPY_DST = 1, 2, 4, 8
UNIFORM, STORAGE, QUERY_RESOLVE = 0x40, 0x80, 0x200
"""WGPUBufferUsage."""


def _write(view: Any, text: str) -> object:
    """Puts text into a WGPUStringView. Returns what must live as long as that is read."""
    data = text.encode()
    view.data, view.length = (buffer := ffi.from_buffer("char[]", data)), len(data)
    return buffer


class Object:
    """A handle of the library."""

    __slots__ = ("__weakref__", "device", "handle")
    _release: ClassVar[Callable[[Any], None]]

    def __init__(self, handle: Any, device: Any) -> None:
        self.handle, self.device = handle, device

    def __del__(self) -> None:
        handle, self.handle = getattr(self, "handle", None), None
        if handle:
            type(self)._release(handle)


def _kind(name: str) -> Any:
    """The class of the objects that wgpu<name>Release releases."""
    release = getattr(lib, f"wgpu{name}Release")
    return type(name, (Object,), {"__slots__": (), "_release": staticmethod(release), "__doc__": f"A WGPU{name}."})


BindGroupLayout, BindGroup, PipelineLayout, ShaderModule, ComputePipeline, CommandBuffer, QuerySet = map(
    _kind,
    ("BindGroupLayout", "BindGroup", "PipelineLayout", "ShaderModule", "ComputePipeline", "CommandBuffer", "QuerySet"),
)


class Buffer(Object):
    """Device memory. size: bytes."""

    __slots__ = ("size",)
    _release = lib.wgpuBufferRelease

    def __init__(self, handle: Any, device: Any, size: int) -> None:
        super().__init__(handle, device)
        self.size = size

    def destroy(self) -> None:
        """Gives the memory back at once; no work that was not submitted before may name the buffer."""
        checked.wgpuBufferDestroy(self.handle)


class ComputePass(Object):
    """A compute pass that is recorded."""

    __slots__ = ()
    _release = lib.wgpuComputePassEncoderRelease

    def end(self) -> None:
        checked.wgpuComputePassEncoderEnd(self.handle)


class CommandEncoder(Object):
    """Commands that are recorded."""

    __slots__ = ()
    _release = lib.wgpuCommandEncoderRelease

    def begin_compute_pass(self, timestamps: tuple[Any, int] | None = None) -> ComputePass:
        """timestamps: a QuerySet, and the first of the two of its entries that take the times of the beginning and the
        end."""
        descriptor = ffi.NULL
        if timestamps is not None:
            queries, first = timestamps
            writes = ffi.new(
                "WGPUPassTimestampWrites *",
                {"querySet": queries.handle, "beginningOfPassWriteIndex": first, "endOfPassWriteIndex": first + 1},
            )
            descriptor = ffi.new("WGPUComputePassDescriptor *", {"timestampWrites": writes})
        return ComputePass(checked.wgpuCommandEncoderBeginComputePass(self.handle, descriptor), self.device)

    def resolve_query_set(self, queries: Any, count: int, target: Buffer) -> None:
        """Records the copy of the first `count` queries to the start of a buffer."""
        checked.wgpuCommandEncoderResolveQuerySet(self.handle, queries.handle, 0, count, target.handle, 0)

    def finish(self) -> Any:
        """The CommandBuffer. Raises what is wrong with any of its commands."""
        return CommandBuffer(checked.wgpuCommandEncoderFinish(self.handle, ffi.NULL), self.device)


class Device(Object):
    """A device and its queue.

    on_loss: called with a text when the driver drops it; may come on any thread. expected: what wgpu-native will write
    to when buffers are mapped. That must live until then, also where nobody waits any more: as long as the device,
    which waits that do not end hold. polled: what the shim's loop polls.
    """

    __slots__ = ("expected", "number", "on_loss", "polled", "queue")
    _release = lib.wgpuDeviceRelease
    _alive: ClassVar[weakref.WeakValueDictionary[int, Device]] = weakref.WeakValueDictionary()
    _numbers = itertools.count(1)

    def __init__(self, handle: Any, number: int) -> None:
        super().__init__(handle, None)
        self.number, self.queue = number, checked.wgpuDeviceGetQueue(handle)
        self.on_loss: Callable[[str], object] | None = None
        self.expected: set[Any] = set()
        self.polled = own.polled(self)
        self._alive[number] = self

    def __del__(self) -> None:
        own.close(self)
        lib.wgpuQueueRelease(self.queue)
        super().__del__()

    def destroy(self) -> None:
        """Gives everything of the device back at once."""
        checked.wgpuDeviceDestroy(self.handle)

    def create_buffer(self, label: str, size: int, usage: int) -> Buffer:
        """size: bytes, a multiple of 4. usage: of the numbers above."""
        descriptor = ffi.new("WGPUBufferDescriptor *", {"size": size, "usage": usage})
        text = _write(descriptor.label, label)
        buffer = Buffer(checked.wgpuDeviceCreateBuffer(self.handle, descriptor), self, size)
        del text
        return buffer

    def create_shader_module(self, label: str, code: str) -> Any:
        """The ShaderModule of WGSL code, with bounds and loop checks."""
        return self._module(
            label,
            own.wgsl(code, True),
            lambda descriptor: checked.wgpuDeviceCreateShaderModule(self.handle, descriptor),
        )

    def create_shader_module_trusted(self, label: str, code: str) -> Any:
        """The same without checks, where the library can do that."""
        return self._module(
            label, own.wgsl(code, False), lambda descriptor: own.trusted_module(self.handle, descriptor)
        )

    def _module(self, label: str, code: str, create: Callable[[Any], Any]) -> Any:
        source, descriptor = ffi.new("WGPUShaderSourceWGSL *"), ffi.new("WGPUShaderModuleDescriptor *")
        source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
        descriptor.nextInChain = ffi.addressof(source, "chain")
        texts = _write(source.code, code), _write(descriptor.label, label)
        module = ShaderModule(create(descriptor), self)
        del texts
        return module

    def create_bind_group_layout(self, written: Sequence[bool], uniform: bool = False, awaited: int = 0) -> Any:
        """A BindGroupLayout of storage buffers of compute shaders, in the order of their bindings: read-write or
        read-only.

        uniform: behind them a uniform buffer with a dynamic offset. awaited: behind all, so many read-only ones that no
        shader names.
        """
        kinds = [lib.WGPUBufferBindingType_Storage if w else lib.WGPUBufferBindingType_ReadOnlyStorage for w in written]
        kinds += [lib.WGPUBufferBindingType_Uniform] if uniform else []
        kinds += [lib.WGPUBufferBindingType_ReadOnlyStorage] * awaited
        entries = ffi.new("WGPUBindGroupLayoutEntry[]", len(kinds))
        for index, (entry, kind) in enumerate(zip(entries, kinds, strict=True)):
            entry.binding, entry.visibility, entry.buffer.type = index, lib.WGPUShaderStage_Compute, kind
            entry.buffer.hasDynamicOffset = kind == lib.WGPUBufferBindingType_Uniform
        descriptor = ffi.new("WGPUBindGroupLayoutDescriptor *", {"entryCount": len(kinds), "entries": entries})
        return BindGroupLayout(checked.wgpuDeviceCreateBindGroupLayout(self.handle, descriptor), self)

    def create_bind_group(self, label: str, layout: Any, bindings: Sequence[tuple[Any, int, int]]) -> Any:
        """A BindGroup. bindings: (handle of a buffer, offset in bytes, bytes) in order."""
        entries = ffi.new(
            "WGPUBindGroupEntry[]",
            [
                (ffi.NULL, index, buffer, offset, size, ffi.NULL, ffi.NULL)
                for index, (buffer, offset, size) in enumerate(bindings)
            ],
        )
        descriptor = ffi.new(
            "WGPUBindGroupDescriptor *", {"layout": layout.handle, "entryCount": len(bindings), "entries": entries}
        )
        text = _write(descriptor.label, label)
        group = BindGroup(checked.wgpuDeviceCreateBindGroup(self.handle, descriptor), self)
        del text
        return group

    def create_pipeline_layout(self, group: Any) -> Any:
        """The PipelineLayout of a single bind group's layout."""
        groups = ffi.new("WGPUBindGroupLayout[]", [group.handle])
        descriptor = ffi.new("WGPUPipelineLayoutDescriptor *", {"bindGroupLayoutCount": 1, "bindGroupLayouts": groups})
        return PipelineLayout(checked.wgpuDeviceCreatePipelineLayout(self.handle, descriptor), self)

    def create_compute_pipeline(self, label: str, layout: Any, module: Any) -> Any:
        """The ComputePipeline of the entry point `main`. Compiles, without the GIL."""
        descriptor = ffi.new(
            "WGPUComputePipelineDescriptor *", {"layout": layout.handle, "compute": {"module": module.handle}}
        )
        texts = _write(descriptor.label, label), _write(descriptor.compute.entryPoint, "main")
        pipeline = ComputePipeline(checked.wgpuDeviceCreateComputePipeline(self.handle, descriptor), self)
        del texts
        return pipeline

    def create_query_set(self, count: int) -> Any:
        """A QuerySet of timestamps."""
        descriptor = ffi.new("WGPUQuerySetDescriptor *", {"type": lib.WGPUQueryType_Timestamp, "count": count})
        return QuerySet(checked.wgpuDeviceCreateQuerySet(self.handle, descriptor), self)

    def create_command_encoder(self, label: str = "") -> CommandEncoder:
        descriptor = ffi.new("WGPUCommandEncoderDescriptor *")
        text = _write(descriptor.label, label)
        encoder = CommandEncoder(checked.wgpuDeviceCreateCommandEncoder(self.handle, descriptor), self)
        del text
        return encoder


@ffi.callback("WGPUDeviceLostCallback", onerror=interrupts.late)  # type: ignore[untyped-decorator]  # cffi has none
@interrupts.callback
def _on_loss(device: Any, reason: int, message: Any, number: Any, unused: Any) -> None:
    if reason in (lib.WGPUDeviceLostReason_Destroyed, lib.WGPUDeviceLostReason_CallbackCancelled):
        return
    lost = Device._alive.get(int(ffi.cast("uintptr_t", number)))
    if lost is not None and lost.on_loss is not None:
        lost.on_loss(text_of(message))


_answers: dict[int, tuple[Any, str]] = {}


@ffi.callback("WGPURequestDeviceCallback", onerror=interrupts.late)  # type: ignore[untyped-decorator]  # cffi has none
@interrupts.callback
def _on_device(status: int, device: Any, message: Any, number: Any, unused: Any) -> None:
    pointer = device if status == lib.WGPURequestDeviceStatus_Success else None
    _answers[int(ffi.cast("uintptr_t", number))] = pointer, f"status {status}: {text_of(message)}"


class Adapter(Object):
    """A GPU as a backend offers it.

    info: the numbers of a WGPUAdapterInfo. limits: WGPULimits. features: those of device/info.py's FEATURES that it
    has. configurations: of its matrix units, as WgpuNative.configurations has them.
    """

    __slots__ = ("_extended", "configurations", "description", "driver_name", "features", "info", "limits", "name")
    _release = lib.wgpuAdapterRelease

    def __init__(self, handle: Any) -> None:
        super().__init__(handle, None)
        self.info = ffi.new("WGPUAdapterInfo *")
        self.limits = ffi.new("WGPULimits *")
        self._extended = own.extend_limits(self.limits)
        for status in (lib.wgpuAdapterGetInfo(handle, self.info), lib.wgpuAdapterGetLimits(handle, self.limits)):
            if status != lib.WGPUStatus_Success:
                raise RuntimeError(f"{NAME} does not tell what an adapter is (status {status})")
        self.name, self.description = text_of(self.info.device), text_of(self.info.description)
        self.driver_name = own.driver_name(text_of(self.info.vendor), self.description)
        lib.wgpuAdapterInfoFreeMembers(self.info[0])
        self.features = frozenset(
            name for name, number in own.features.items() if lib.wgpuAdapterHasFeature(handle, number)
        )
        self.configurations = own.configurations(handle) if "subgroup-matrix" in self.features else ()

    def restrict(self, features: Iterable[str], limits: Mapping[str, int]) -> None:
        """From now on it offers no more than this, by WebGPU's names of limits: wgpu-native holds its devices to it."""
        self.features &= frozenset(features)
        for name, value in limits.items():
            own = getattr(self.limits, name)
            setattr(self.limits, name, max(own, value) if name.startswith("min") else min(own, value))

    def request_device(self, label: str, features: Iterable[str]) -> Device:
        """A device with what the adapter offers. Raises RuntimeError, where the driver refuses."""
        numbers = ffi.new("WGPUFeatureName[]", own.feature_numbers(list(features)))
        limits = ffi.new("WGPULimits *", self.limits[0])
        descriptor = ffi.new(
            "WGPUDeviceDescriptor *",
            {"requiredFeatureCount": len(numbers), "requiredFeatures": numbers, "requiredLimits": limits},
        )
        chained = own.require(descriptor, limits, self._extended)
        text, number = _write(descriptor.label, label), next(Device._numbers)
        lost = descriptor.deviceLostCallbackInfo
        lost.mode, lost.callback, lost.userdata1 = (
            lib.WGPUCallbackMode_AllowSpontaneous,
            _on_loss,
            ffi.cast("void *", number),
        )
        descriptor.uncapturedErrorCallbackInfo.callback = on_error
        answer = ffi.new("WGPURequestDeviceCallbackInfo *")
        answer.mode, answer.callback, answer.userdata1 = (
            lib.WGPUCallbackMode_AllowProcessEvents,
            _on_device,
            ffi.cast("void *", number),
        )
        fresh = own.fresh(instance(), self.handle)
        checked.wgpuAdapterRequestDevice(fresh, descriptor, answer[0])
        lib.wgpuInstanceProcessEvents(instance())
        if fresh != self.handle:
            lib.wgpuAdapterRelease(fresh)
        handle, why = _answers.pop(number, (None, "no answer"))
        del text, chained
        if handle is None:
            raise RuntimeError(f"request for a device failed ({why})")
        return Device(handle, number)


_instances: list[Any] = []


def instance() -> Any:
    """The process's one instance: the Vulkan loader and the drivers, loaded by the first call."""
    if not _instances:
        _instances.append(own.create_instance())
    return _instances[0]


def enumerate_adapters() -> list[Adapter]:
    """All adapters of all backends but OpenGL."""
    return [Adapter(handle) for handle in own.adapters(instance())]


def live() -> dict[str, int]:
    """How many objects of each kind, by its name in WebGPU, the library holds for this process's instance; empty where
    it does not tell."""
    return own.live(instance())
