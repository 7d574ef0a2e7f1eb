"""What webgpu.h leaves to its implementations, as Dawn has it: wgpu_native.py's functions."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Mapping
from typing import Any

from ort_gpu_ep.processes import interrupts
from ort_gpu_ep.shim import loops as shim
from ort_gpu_ep.shim.declarations import ffi as shim_ffi
from ort_gpu_ep.webgpu.bounds import with_bounds
from ort_gpu_ep.webgpu.library import BUILD, checked, ffi, lib, text_of
from ort_gpu_ep.webgpu.wgpu_native import WgpuNative

_TOGGLES = 0x5000A
"""WGPUSType_DawnTogglesDescriptor, whose struct is the next one: wgpu-native's header has neither."""
_BACKENDS = {"win32": (lib.WGPUBackendType_D3D12, lib.WGPUBackendType_Vulkan), "darwin": (lib.WGPUBackendType_Metal,)}
_ON = ("allow_unsafe_apis", "disable_robustness", "use_vulkan_memory_model", "vulkan_enable_f16_on_nvidia")
"""disable_robustness: bounds.py writes the checks into those shaders that need them."""
_TYPES = {1: "float32", 2: "float16", 3: "uint32", 4: "int32", 5: "uint8", 6: "int8"}
"""WGPUSubgroupMatrixComponentType."""
_OFF = ("timestamp_quantization",)
_FOREVER_NS = 2 ** 64 - 1
_SUBGROUPS = re.compile(r"\b(subgroup|quad)[A-Z]\w*\(|@builtin\((subgroup_|num_subgroups)")
"""What naga takes as it is, and WGSL wants an `enable` for, which naga refuses."""

_answers: dict[int, tuple[Any, str]] = {}


@ffi.callback("WGPURequestAdapterCallback", onerror=interrupts.late)  # type: ignore[untyped-decorator]  # cffi has none
@interrupts.callback
def _on_adapter(status: int, adapter: Any, message: Any, number: Any, unused: Any) -> None:
    pointer = adapter if status == lib.WGPURequestAdapterStatus_Success else None
    _answers[int(ffi.cast("uintptr_t", number))] = pointer, text_of(message)


class _Toggles:
    """A DawnTogglesDescriptor: {chain, size_t, char const **, size_t, char const **}, the names that are on, then those that are off."""

    def __init__(self, on: tuple[str, ...]) -> None:
        self._names = [ffi.new("char[]", name.encode()) for name in (*on, *_OFF)]
        self._lists = ffi.new("char *[]", self._names[:len(on)]), ffi.new("char *[]", self._names[len(on):])
        self._words = ffi.new("uint64_t[]", 6)
        self.chain = ffi.cast("WGPUChainedStruct *", self._words)
        self.chain.sType = _TOGGLES
        for place, names in zip((2, 4), self._lists, strict=True):
            self._words[place], self._words[place + 1] = len(names), int(ffi.cast("uintptr_t", names))


class _Configurations(ctypes.Structure):
    """WGPUAdapterPropertiesSubgroupMatrixConfigs; by ctypes, since wgpu-native's header lacks the function that frees its list, too."""

    _fields_ = (("next", ctypes.c_void_p), ("sType", ctypes.c_uint32), ("count", ctypes.c_size_t), ("first", ctypes.c_void_p))

    def names(self) -> tuple[str, ...]:
        """Of five numbers each: the types of operands and sums, then rows (M), columns (N) and products (K)."""
        if not self.count:
            return ()
        numbers = (ctypes.c_uint32 * (5 * self.count)).from_address(self.first)
        each = [numbers[i:i + 5] for i in range(0, 5 * self.count, 5)]
        return tuple(f"{_TYPES.get(operands, operands)} {_TYPES.get(sums, sums)} {m}x{n}x{k}" for operands, sums, m, n, k in each)


class Dawn(WgpuNative):
    """Dawn. Its adapters are found by asking for the best one of each backend, so equal GPUs can't be told apart, and an adapter makes a
    single device. It leaves bounds checks out for a whole device or not at all: it does, and checked shaders have theirs in their text.
    """

    records_late = True

    def __init__(self) -> None:
        assert BUILD is not None
        self.features: Mapping[str, int] = {
            "shader-f16": lib.WGPUFeatureName_ShaderF16, "subgroup": lib.WGPUFeatureName_Subgroups,
            "timestamp-query": lib.WGPUFeatureName_TimestampQuery,
            "subgroup-matrix": BUILD.features["ChromiumExperimentalSubgroupMatrix"]}
        self._leaks = False
        self._build = BUILD
        self._toggles = _Toggles(_ON)
        self._instance: Any = None
        self._asked: dict[Any, Any] = {}
        self._submissions: dict[int, tuple[int, Any]] = {}
        self._next = 0
        address = shim_ffi.cast("uintptr_t", shim_ffi.addressof(shim.load(), "ort_gpu_ep_mapped"))
        self._noted = ffi.cast("WGPUQueueWorkDoneCallback", int(address))

    def create_instance(self) -> Any:
        waits = ffi.new("WGPUInstanceFeatureName[]", [lib.WGPUInstanceFeatureName_TimedWaitAny])
        self._instance = checked.wgpuCreateInstance(ffi.new("WGPUInstanceDescriptor *", {
            "nextInChain": self._toggles.chain, "requiredFeatureCount": 1, "requiredFeatures": waits}))
        return self._instance

    def adapters(self, instance: Any) -> list[Any]:
        by_identity: dict[tuple[int, int, int, str], Any] = {}
        for backend in _BACKENDS.get(sys.platform, (lib.WGPUBackendType_Vulkan,)):
            for preference in (lib.WGPUPowerPreference_HighPerformance, lib.WGPUPowerPreference_LowPower):
                for software in (False, True):
                    options = ffi.new("WGPURequestAdapterOptions *", {
                        "nextInChain": self._toggles.chain, "powerPreference": preference, "forceFallbackAdapter": software,
                        "backendType": backend})
                    handle = self._request(instance, options)
                    if handle is None:
                        continue
                    if by_identity.setdefault(self._kind(handle), handle) is handle:
                        self._asked[handle] = options
                    else:
                        lib.wgpuAdapterRelease(handle)
        return list(by_identity.values())

    def _request(self, instance: Any, options: Any) -> Any:
        """A WGPUAdapter, None where there is none."""
        self._next += 1
        number, answer = self._next, ffi.new("WGPURequestAdapterCallbackInfo *")
        answer.mode, answer.callback, answer.userdata1 = lib.WGPUCallbackMode_AllowProcessEvents, _on_adapter, ffi.cast("void *", number)
        self._wait(lib.wgpuInstanceRequestAdapter(instance, options, answer[0]))
        return _answers.pop(number)[0]

    @staticmethod
    def _kind(adapter: Any) -> tuple[int, int, int, str]:
        info = ffi.new("WGPUAdapterInfo *")
        if lib.wgpuAdapterGetInfo(adapter, info) != lib.WGPUStatus_Success:
            raise RuntimeError("Dawn does not tell what an adapter is")
        kind = int(info.backendType), int(info.vendorID), int(info.deviceID), text_of(info.device)
        lib.wgpuAdapterInfoFreeMembers(info[0])
        return kind

    def fresh(self, instance: Any, adapter: Any) -> Any:
        handle = self._request(instance, self._asked[adapter])
        if handle is None:
            raise RuntimeError("Dawn has this adapter no longer")
        return handle

    def configurations(self, adapter: Any) -> tuple[str, ...]:
        """Empty where Dawn does not tell: matrix units stay unused then."""
        chain = _Configurations(sType=self._build.structures["AdapterPropertiesSubgroupMatrixConfigs"])
        info = ffi.new("WGPUAdapterInfo *", {"nextInChain": ffi.cast("WGPUChainedStruct *", ctypes.addressof(chain))})
        if lib.wgpuAdapterGetInfo(adapter, info) != lib.WGPUStatus_Success:
            return ()
        lib.wgpuAdapterInfoFreeMembers(info[0])
        names = chain.names()
        ctypes.CDLL(self._build.path).wgpuAdapterPropertiesSubgroupMatrixConfigsFreeMembers(chain)
        return names

    def driver_name(self, vendor: str, description: str) -> str:
        """Vulkan's name of the driver: Dawn's description begins with it."""
        return description.partition(": ")[0] if ": " in description else ""

    def extend_limits(self, limits: Any) -> Any:
        return None

    def require(self, descriptor: Any, limits: Any, found: Any) -> Any:
        descriptor.nextInChain = self._toggles.chain
        return None

    def feature_numbers(self, names: list[str]) -> list[int]:
        return [*super().feature_numbers(names), self._build.features["ImplicitDeviceSynchronization"]]     # calls from several threads

    def wgsl(self, code: str, checked: bool) -> str:
        code = with_bounds(code) if checked else code
        return f"enable subgroups; {code}" if _SUBGROUPS.search(code) else code

    def trusted_module(self, device: Any, descriptor: Any) -> Any:
        return checked.wgpuDeviceCreateShaderModule(device, descriptor)

    def polling(self) -> tuple[Any, Any]:
        return ffi.NULL, ffi.addressof(lib, "wgpuInstanceProcessEvents")

    def polled(self, device: Any) -> Any:
        return self._instance

    def submit(self, device: Any, count: int, buffers: Any) -> int:
        """The index is that of a future, which the callback in C marks in a word."""
        checked.wgpuQueueSubmit(device.queue, count, buffers)
        word, answer = ffi.new("int *"), ffi.new("WGPUQueueWorkDoneCallbackInfo *")
        answer.mode, answer.callback, answer.userdata1 = lib.WGPUCallbackMode_AllowProcessEvents, self._noted, word
        index = int(lib.wgpuQueueOnSubmittedWorkDone(device.queue, answer[0]).id)
        for done in [i for i, (_, each) in self._submissions.copy().items() if each[0]]:
            self._submissions.pop(done, None)
        self._submissions[index] = device.number, word
        return index

    def poll(self, device: Any) -> bool:
        lib.wgpuInstanceProcessEvents(self._instance)
        return all(word[0] for number, word in self._submissions.copy().values() if number == device.number)

    def block(self, device: Any, index: int) -> None:
        _, word = self._submissions.get(index, (0, (1,)))
        if not word[0]:
            self._wait(ffi.new("WGPUFuture *", {"id": index})[0])

    def _wait(self, future: Any) -> None:
        waited = ffi.new("WGPUFutureWaitInfo[]", [{"future": future}])
        status = lib.wgpuInstanceWaitAny(self._instance, 1, waited, _FOREVER_NS)
        if status != lib.WGPUWaitStatus_Success:
            raise RuntimeError(f"Dawn refuses to wait (status {status})")

    def close(self, device: Any) -> None:
        lib.wgpuDeviceDestroy(device.handle)
        lib.wgpuInstanceProcessEvents(self._instance)     # what its mappings report to is freed with it

    def timestamp_period_ns(self, queue: Any) -> float:
        return 1.0

    def live(self, instance: Any) -> dict[str, int]:
        return {}
