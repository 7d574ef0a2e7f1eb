"""What webgpu.h leaves to its implementations, as Dawn has it: wgpu_native.py's functions."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

from ort_gpu_ep.config import resolve
from ort_gpu_ep.processes import interrupts
from ort_gpu_ep.shim import loops as shim
from ort_gpu_ep.shim.declarations import ffi as shim_ffi
from ort_gpu_ep.webgpu import blobs
from ort_gpu_ep.webgpu.bounds import with_bounds
from ort_gpu_ep.webgpu.choice import dawn_package
from ort_gpu_ep.webgpu.library import address, checked, ffi, lib, text_of
from ort_gpu_ep.webgpu.wgpu_native import WgpuNative

log = logging.getLogger("ort_gpu_ep")

_BACKENDS = {"win32": (lib.WGPUBackendType_D3D12, lib.WGPUBackendType_Vulkan), "darwin": (lib.WGPUBackendType_Metal,)}
_ON = (
    "allow_unsafe_apis",
    "disable_robustness",
    "disable_workgroup_init",
    "use_vulkan_memory_model",
    "vulkan_enable_f16_on_nvidia",
)
"""disable_robustness: bounds.py writes the checks into those shaders that need them. disable_workgroup_init: no kernel
needs zeros there (tests/health/test_workgroup_memory.py)."""
_OFF = ("timestamp_quantization",)
_FOREVER_NS = 2**64 - 1
_SUBGROUPS = re.compile(r"\b(subgroup|quad)[A-Z]\w*\(|@builtin\((subgroup_|num_subgroups)")
"""What naga takes as it is, and WGSL wants an `enable` for, which naga refuses."""
_ENUMERATE = "wgpu_dawn_enumerate_adapters"
"""wgpudawn's own function; a user's library lacks it, since Dawn's C interface has no list of adapters."""

_KEEPS_BLOBS = "20261009.190412", 0x00050007
"""wgpudawn does not declare the descriptor of Dawn's blob cache, and releases of Dawn have it in other layouts: the
release that _cache is of, and the descriptor's number there."""

_answers: dict[int, tuple[Any, str]] = {}


@ffi.callback("WGPURequestAdapterCallback", onerror=interrupts.late)  # type: ignore[untyped-decorator]  # cffi has none
@interrupts.callback
def _on_adapter(status: int, adapter: Any, message: Any, number: Any, unused: Any) -> None:
    pointer = adapter if status == lib.WGPURequestAdapterStatus_Success else None
    _answers[int(ffi.cast("uintptr_t", number))] = pointer, text_of(message)


@ffi.callback(  # type: ignore[untyped-decorator]  # cffi has none
    "size_t(size_t, void const *, size_t, void *, void *, void *)", onerror=interrupts.late
)
@interrupts.callback
def _on_load(key_nbytes: int, key: Any, nbytes: int, room: Any, unused: Any, unused_too: Any) -> int:
    """Dawn asks for the size, then for the bytes, which it checks by a hash of its own."""
    lent = blobs.current()
    try:
        blob = lent.load(bytes(ffi.buffer(key, key_nbytes))) if lent is not None else b""
    except Exception as error:  # C++ is above
        log.warning("a pipeline is compiled anew: %s: %s", type(error).__name__, error)
        return 0
    if room and nbytes != len(blob):
        return 0
    if room:
        ffi.memmove(room, blob, nbytes)
    return len(blob)


@ffi.callback(  # type: ignore[untyped-decorator]  # cffi has none
    "void(size_t, void const *, size_t, void const *, void *, void *)", onerror=interrupts.late
)
@interrupts.callback
def _on_store(key_nbytes: int, key: Any, nbytes: int, blob: Any, unused: Any, unused_too: Any) -> None:
    lent = blobs.current()
    try:
        if lent is not None:
            lent.store(bytes(ffi.buffer(key, key_nbytes)), bytes(ffi.buffer(blob, nbytes)))
    except Exception as error:  # C++ is above
        log.warning("a compiled pipeline is not kept: %s: %s", type(error).__name__, error)


def _cache(following: Any) -> Any:
    """A WGPUDawnCacheDeviceDescriptor, chained before what follows; None for a library whose layout is not known. It is
    {chain: {next, type}, isolation key: {data, length}, to load and to store: {next, function, two of the user's}}.
    """
    release, number = _KEEPS_BLOBS
    if resolve().webgpu_library or dawn_package().release != release:
        return None
    next_one, load, store = (int(ffi.cast("uintptr_t", pointer)) for pointer in (following, _on_load, _on_store))
    return ffi.new("uintptr_t[]", [next_one, number, 0, 0, 0, load, 0, 0, 0, store, 0, 0])


class _Toggles:
    """A WGPUDawnTogglesDescriptor, with all that it points to. Names that a stage does not have are no error, as Dawn
    reads them."""

    def __init__(self, on: tuple[str, ...]) -> None:
        self._names = [ffi.new("char[]", name.encode()) for name in (*on, *_OFF)]
        self._lists = ffi.new("char *[]", self._names[: len(on)]), ffi.new("char *[]", self._names[len(on) :])
        self._descriptor = ffi.new(
            "WGPUDawnTogglesDescriptor *",
            {
                "enabledToggleCount": len(on),
                "enabledToggles": self._lists[0],
                "disabledToggleCount": len(_OFF),
                "disabledToggles": self._lists[1],
            },
        )
        self._descriptor.chain.sType = lib.WGPUSType_DawnTogglesDescriptor
        self.chain = ffi.addressof(self._descriptor, "chain")


class Dawn(WgpuNative):
    """Dawn. An adapter makes a single device. wgpudawn lists all adapters; with another library they are found by
    asking for the best one of each backend, so equal GPUs can't be told apart. It leaves bounds checks out for a whole
    device or not at all: it does, and checked shaders have theirs in their text.
    """

    records_late = True

    def __init__(self) -> None:
        self.features = {
            "shader-f16": lib.WGPUFeatureName_ShaderF16,
            "subgroup": lib.WGPUFeatureName_Subgroups,
            "timestamp-query": lib.WGPUFeatureName_TimestampQuery,
            "subgroup-matrix": lib.WGPUFeatureName_ChromiumExperimentalSubgroupMatrix,
            "subgroup-size-control": lib.WGPUFeatureName_SubgroupSizeControl,
        }
        self._leaks = False
        self._types = {
            getattr(lib, f"WGPUSubgroupMatrixComponentType_{letter}{bits}"): f"{kind}{bits}"
            for letter, kind, bits in (
                ("F", "float", 32),
                ("F", "float", 16),
                ("U", "uint", 32),
                ("I", "int", 32),
                ("U", "uint", 8),
                ("I", "int", 8),
            )
        }
        self._toggles = _Toggles(_ON)
        self._cache = _cache(self._toggles.chain)
        self._instance: Any = None
        self._asked: dict[Any, Any] = {}
        self._submissions: dict[int, tuple[int, Any]] = {}
        self._next = 0
        address = shim_ffi.cast("uintptr_t", shim_ffi.addressof(shim.load(), "ort_gpu_ep_mapped"))
        self._noted = ffi.cast("WGPUQueueWorkDoneCallback", int(address))

    def create_instance(self) -> Any:
        waits = ffi.new("WGPUInstanceFeatureName[]", [lib.WGPUInstanceFeatureName_TimedWaitAny])
        self._instance = checked.wgpuCreateInstance(
            ffi.new(
                "WGPUInstanceDescriptor *",
                {"nextInChain": self._toggles.chain, "requiredFeatureCount": 1, "requiredFeatures": waits},
            )
        )
        return self._instance

    def adapters(self, instance: Any) -> list[Any]:
        listed = self._listed(instance)
        if listed is not None:
            self._asked.update((handle, place) for place, handle in enumerate(listed))
            return listed
        by_identity: dict[tuple[int, int, int, str], Any] = {}
        for backend in _BACKENDS.get(sys.platform, (lib.WGPUBackendType_Vulkan,)):
            for preference in (lib.WGPUPowerPreference_HighPerformance, lib.WGPUPowerPreference_LowPower):
                for software in (False, True):
                    options = ffi.new(
                        "WGPURequestAdapterOptions *",
                        {
                            "nextInChain": self._toggles.chain,
                            "powerPreference": preference,
                            "forceFallbackAdapter": software,
                            "backendType": backend,
                        },
                    )
                    handle = self._request(instance, options)
                    if handle is None:
                        continue
                    if by_identity.setdefault(self._kind(handle), handle) is handle:
                        self._asked[handle] = options
                    else:
                        lib.wgpuAdapterRelease(handle)
        return list(by_identity.values())

    def _listed(self, instance: Any) -> list[Any] | None:
        """All adapters, in an order that stays; None where the library has no list."""
        enumerate_adapters = getattr(lib, _ENUMERATE, None)
        if enumerate_adapters is None:
            return None
        options = ffi.new("WGPURequestAdapterOptions *", {"nextInChain": self._toggles.chain})
        room = ffi.new("WGPUAdapter[]", enumerate_adapters(instance, options, ffi.NULL, 0))
        return list(room[0 : min(len(room), enumerate_adapters(instance, options, room, len(room)))])

    def _request(self, instance: Any, options: Any) -> Any:
        """A WGPUAdapter, None where there is none."""
        self._next += 1
        number, answer = self._next, ffi.new("WGPURequestAdapterCallbackInfo *")
        answer.mode, answer.callback, answer.userdata1 = (
            lib.WGPUCallbackMode_AllowProcessEvents,
            _on_adapter,
            ffi.cast("void *", number),
        )
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
        asked = self._asked[adapter]
        if not isinstance(asked, int):
            handle = self._request(instance, asked)
        else:
            listed = self._listed(instance) or []
            handle = listed[asked] if asked < len(listed) and self._kind(listed[asked]) == self._kind(adapter) else None
            for other in listed:
                if other != handle:
                    lib.wgpuAdapterRelease(other)
        if handle is None:
            raise RuntimeError("Dawn has this adapter no longer")
        return handle

    def configurations(self, adapter: Any) -> tuple[tuple[str, int, int], ...]:
        """Empty where Dawn does not tell: matrix units stay unused then."""
        chain = ffi.new("WGPUAdapterPropertiesSubgroupMatrixConfigs *")
        chain.chain.sType = lib.WGPUSType_AdapterPropertiesSubgroupMatrixConfigs
        info = ffi.new("WGPUAdapterInfo *", {"nextInChain": ffi.addressof(chain, "chain")})
        if lib.wgpuAdapterGetInfo(adapter, info) != lib.WGPUStatus_Success:
            return ()
        lib.wgpuAdapterInfoFreeMembers(info[0])
        told = tuple(
            (
                f"{self._types.get(one.componentType, '?')} {self._types.get(one.resultComponentType, '?')} "
                f"{one.M}x{one.N}x{one.K}",
                int(one.minSubgroupSize),
                int(one.maxSubgroupSize),
            )
            for one in chain.configs[0 : chain.configCount]
        )
        lib.wgpuAdapterPropertiesSubgroupMatrixConfigsFreeMembers(chain[0])
        return told

    def driver_name(self, vendor: str, description: str) -> str:
        """Vulkan's name of the driver: Dawn's description begins with it."""
        return description.partition(": ")[0] if ": " in description else ""

    def extend_limits(self, limits: Any) -> Any:
        return None

    def require(self, descriptor: Any, limits: Any, found: Any) -> Any:
        kept = self._cache
        descriptor.nextInChain = self._toggles.chain if kept is None else ffi.cast("WGPUChainedStruct *", kept)
        return None

    def feature_numbers(self, names: list[str]) -> list[int]:
        # calls from several threads
        return [*super().feature_numbers(names), lib.WGPUFeatureName_ImplicitDeviceSynchronization]

    def wgsl(self, code: str, checked: bool) -> str:
        code = with_bounds(code) if checked else code
        return f"enable subgroups; {code}" if _SUBGROUPS.search(code) else code

    def trusted_module(self, device: Any, descriptor: Any) -> Any:
        return checked.wgpuDeviceCreateShaderModule(device, descriptor)

    def polling(self) -> tuple[Any, Any]:
        return ffi.NULL, address("wgpuInstanceProcessEvents")

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
        lib.wgpuInstanceProcessEvents(self._instance)  # what its mappings report to is freed with it

    def timestamp_period_ns(self, queue: Any) -> float:
        return 1.0

    def live(self, instance: Any) -> dict[str, int]:
        return {}
