"""What webgpu.h leaves to its implementations, as wgpu-native has it. dawn.py has the same functions for Dawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ort_gpu_ep.webgpu import dxc
from ort_gpu_ep.webgpu.library import address, checked, ffi, lib

_VULKAN, _METAL, _DX12 = 1 << 0, 1 << 2, 1 << 3
"""WGPUInstanceBackend: cffi doesn't compute what C writes so. Without OpenGL, whose compute shaders miss features that
the kernels need and whose libraries take time to load.
"""
_MAX_ADAPTERS = 256
"""Room for what wgpu-native enumerates: it is not told how much there is, and asked for the number it would look at all
drivers twice."""

_LEAKING_VERSION = 29 << 24 | 1 << 8 | 1
"""wgpu-native 29.0.1.1: releasing a command buffer that was never submitted leaks it, and with it its device, its
memory, a thread.

Its struct is {context pointer, id: u64, submitted: bool}, and its release gives back only what has `submitted` set.
Seen by tests/leaks/test_devices.py; other versions are left as they are.
"""


class WgpuNative:
    """features: the numbers of those of device/info.py's FEATURES that it knows. records_late: it records for the
    driver when command buffers are submitted, not when they are finished.
    """

    records_late = False

    features: Mapping[str, int]

    def __init__(self) -> None:
        self.features = {
            "shader-int64": lib.WGPUNativeFeature_ShaderInt64,
            "shader-f16": lib.WGPUFeatureName_ShaderF16,
            "shader-f64": lib.WGPUNativeFeature_ShaderF64,
            "subgroup": lib.WGPUNativeFeature_Subgroup,
            "timestamp-query": lib.WGPUFeatureName_TimestampQuery,
            "timestamp-query-inside-passes": lib.WGPUNativeFeature_TimestampQueryInsidePasses,
        }
        self._leaks = self.version() == _LEAKING_VERSION and ffi.sizeof("void *") == 8

    def version(self) -> int:
        return int(lib.wgpuGetVersion())

    def create_instance(self) -> Any:
        # no checks of indirect dispatches
        extras = ffi.new("WGPUInstanceExtras *", {"backends": _VULKAN | _METAL | _DX12, "flags": 0})
        extras.chain.sType = lib.WGPUSType_InstanceExtras
        if compiler := dxc.path().encode():
            buffer = ffi.from_buffer(compiler)
            extras.dx12ShaderCompiler, extras.dxcMaxShaderModel = (
                lib.WGPUDx12Compiler_Dxc,
                lib.WGPUDxcMaxShaderModel_V6_5,
            )
            extras.dxcPath = {"data": buffer, "length": len(buffer)}
        return checked.wgpuCreateInstance(
            ffi.new("WGPUInstanceDescriptor *", {"nextInChain": ffi.addressof(extras, "chain")})
        )

    def adapters(self, instance: Any) -> list[Any]:
        """A handle for each adapter of each backend but OpenGL."""
        room = ffi.new("WGPUAdapter[]", _MAX_ADAPTERS)
        return list(room[0 : checked.wgpuInstanceEnumerateAdapters(instance, ffi.NULL, room)])

    def fresh(self, instance: Any, adapter: Any) -> Any:
        """The handle to make a device of: the adapter's, or that of one like it where an adapter makes a single
        device."""
        return adapter

    def configurations(self, adapter: Any) -> tuple[tuple[str, int, int], ...]:
        """Of an adapter's matrix units: each as Limits.configurations has it, the least and the most invocations of its
        subgroups."""
        return ()

    def driver_name(self, vendor: str, description: str) -> str:
        """Vulkan's name of the driver: wgpu-native has it where WebGPU has the vendor."""
        return vendor

    def extend_limits(self, limits: Any) -> Any:
        """Chains to a WGPULimits that is to be filled. Returns what must live as long."""
        native = ffi.new("WGPUNativeLimits *")
        native.chain.sType = lib.WGPUSType_NativeLimits
        limits.nextInChain = ffi.addressof(native, "chain")
        return native

    def require(self, descriptor: Any, limits: Any, found: Any) -> Any:
        """Chains to a WGPUDeviceDescriptor and the WGPULimits that it asks for. found: what extend_limits returned.
        Returns likewise."""
        native = ffi.new("WGPUNativeLimits *", {"maxNonSamplerBindings": found.maxNonSamplerBindings})
        native.chain.sType = lib.WGPUSType_NativeLimits
        limits.nextInChain = ffi.addressof(native, "chain")
        return native

    def feature_numbers(self, names: list[str]) -> list[int]:
        """What a device is asked for so that it has these features."""
        return [self.features[name] for name in names]

    def wgsl(self, code: str, checked: bool) -> str:
        """The code as its compiler takes it. checked: it is to have bounds checks."""
        return code

    def trusted_module(self, device: Any, descriptor: Any) -> Any:
        """A WGPUShaderModule without bounds and loop checks, where it can leave them out for one module."""
        return checked.wgpuDeviceCreateShaderModuleTrusted(device, descriptor, 0)

    def polling(self) -> tuple[Any, Any]:
        """For the shim's loops: two functions, of which it calls the one that is not NULL (wgpuDevicePoll or
        wgpuInstanceProcessEvents)."""
        return address("wgpuDevicePoll"), ffi.NULL

    def polled(self, device: Any) -> Any:
        """The handle that this function takes for a device."""
        return device.handle

    def submit(self, device: Any, count: int, buffers: Any) -> int:
        """Submits command buffers in order. Returns the submission's index, to wait for."""
        return int(checked.wgpuQueueSubmitForIndex(device.queue, count, buffers))

    def poll(self, device: Any) -> bool:
        """Calls the callbacks of what has finished. Returns whether the queue is empty."""
        return bool(lib.wgpuDevicePoll(device.handle, False, ffi.NULL))

    def block(self, device: Any, index: int) -> None:
        """Waits for a submission, without the GIL, however long it takes."""
        lib.wgpuDevicePoll(device.handle, True, ffi.new("WGPUSubmissionIndex *", index))

    def droppable(self, command_buffer: Any) -> None:
        """Makes a finished command buffer one that may be dropped without being submitted."""
        if self._leaks:
            ffi.cast("uint8_t *", command_buffer.handle)[16] = 1

    def close(self, device: Any) -> None:
        """Before the last reference to a device goes."""

    def timestamp_period_ns(self, queue: Any) -> float:
        """Nanoseconds that one tick of a timestamp query stands for."""
        return float(lib.wgpuQueueGetTimestampPeriod(queue))

    def live(self, instance: Any) -> dict[str, int]:
        """How many objects of each kind, by its name in WebGPU, it holds for this process."""
        report = ffi.new("WGPUGlobalReport *")
        lib.wgpuGenerateReport(instance, report)
        return {
            kind[0].upper() + kind[1:-1]: int(getattr(report.hub, kind).numKeptFromUser)
            for kind, _ in ffi.typeof("WGPUHubReport").fields
        }
