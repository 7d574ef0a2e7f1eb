"""OrtEpFactory: what ONNX Runtime asks when the library is registered and when a session wants our provider."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ort_gpu_ep.config import resolve
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.errors import ConfigError, forget_frames
from ort_gpu_ep.kernels.target import lacks
from ort_gpu_ep.plugin import slots
from ort_gpu_ep.plugin.abi import NULL, api, c_text, ffi, get, key_value_pairs, text_of
from ort_gpu_ep.plugin.backends import open_backend
from ort_gpu_ep.plugin.control_flow import add_control_flow
from ort_gpu_ep.plugin.given import GivenInitializers
from ort_gpu_ep.plugin.graph_capture import CapturingProvider
from ort_gpu_ep.plugin.offers import Hardware, choice, metadata
from ort_gpu_ep.plugin.plain import COMPILES
from ort_gpu_ep.plugin.provider import Provider, Shared
from ort_gpu_ep.plugin.state import SessionState, announce
from ort_gpu_ep.plugin.tables import Table, entry, owner_of
from ort_gpu_ep.plugin.transfer import (
    CPU_DEVICE,
    GPU_DEVICE,
    VENDOR,
    Allocator,
    DataTransfer,
    MemcpyKernel,
    memcpy_registry,
)
from ort_gpu_ep.providers import EP_NAME, STAND_IN_NAME, VENDOR_ID

adapters: tuple[AdapterInfo, ...] = ()
"""What is offered from the next registration on: set by registration.py, which knows whether anybody asked to see
them."""

_HARDWARE_VENDOR_ID = 0x57475055  # "WGPU"
_VIRTUAL_GPU = _HARDWARE_VENDOR_ID, 0
"""The ids of a virtual GPU, which stands for the one that a session chooses."""
_DEVICE_MEMORY, _DEVICE_ALLOCATOR = 0, 0
_WEBGPU_OPTIONS = frozenset(
    (
        "dawnBackendType",
        "dawnProcTable",
        "defaultBufferCacheMode",
        "deviceId",
        "enableInt64",
        "enablePIXCapture",
        "forceCpuNodeNames",
        "maxNumPendingDispatches",
        "maxStorageBufferBindingSize",
        "multiRotaryCacheConcatOffset",
        "powerPreference",
        "preferredLayout",
        "preserveDevice",
        "queryResolveBufferCacheMode",
        "sessionBufferPoolGenerations",
        "storageBufferCacheMode",
        "uniformBufferCacheMode",
        "validationMode",
        "webgpuDevice",
        "webgpuInstance",
    )
)


class Factory(Table):
    """The one factory of a registered library. name: of its provider."""

    SLOTS = slots.EP_FACTORY

    def __init__(self, name: str = EP_NAME) -> None:
        super().__init__()
        self.name = name
        self.c_name, self.c_vendor, self.c_version = (
            c_text(name),
            c_text(VENDOR),
            c_text(sys.modules["ort_gpu_ep"].__version__),
        )
        self.registry: Any = NULL
        self._memory_info: Any = NULL
        self._host_info: Any = NULL
        self._hardware, self.offered = Hardware(), 0

    def get_name(self) -> Any:
        return self.c_name

    def get_vendor(self) -> Any:
        return self.c_vendor

    def get_vendor_id(self) -> int:
        return _HARDWARE_VENDOR_ID

    def get_version(self) -> Any:
        return self.c_version

    def is_stream_aware(self) -> bool:
        return False

    def get_supported_devices(self, devices: Any, count: int, out: Any, room: int, offered: Any) -> None:
        """Offers the provider on each known adapter; where none is known once, on the first GPU that ONNX Runtime sees
        or a virtual one."""
        gpus = [devices[i] for i in range(count) if api.HardwareDevice_Type(devices[i]) == GPU_DEVICE]
        self.offered = 0
        if not adapters and room:
            self._offer(gpus[0] if gpus else self._hardware.make(*_VIRTUAL_GPU, VENDOR), {}, out)
        for info in adapters[:room]:
            self._offer(self._hardware.find(info, gpus), metadata(info, adapters), out)
        offered[0] = self.offered

    def _offer(self, hardware: Any, described: Mapping[str, str], out: Any) -> None:
        pointer, pairs = ffi.new("void**"), key_value_pairs(described)
        api.CreateEpDevice(self.pointer, hardware, pairs, NULL, pointer)
        api.ReleaseKeyValuePairs(pairs)
        if not self._memory_info:
            info = ffi.new("void**")
            api.CreateMemoryInfo_V2(self.c_name, GPU_DEVICE, VENDOR_ID, 0, _DEVICE_MEMORY, 0, _DEVICE_ALLOCATOR, info)
            self._memory_info = info[0]
        api.EpDevice_AddAllocatorInfo(pointer[0], self._memory_info)
        out[self.offered] = pointer[0]
        self.offered += 1

    def get_hardware_device_incompatibility_details(self, hardware: Any, details: Any) -> None:
        """The doctor's verdict, as far as it is known; what speaks against other hardware than GPUs."""
        from ort_gpu_ep.plugin.incompatibility import NO_GPU, incompatibility  # few ask

        if api.HardwareDevice_Type(hardware) == GPU_DEVICE:
            ids = api.HardwareDevice_VendorId(hardware), api.HardwareDevice_DeviceId(hardware)
            reason, notes = incompatibility(resolve(), None if ids == _VIRTUAL_GPU else ids)
        else:
            reason, notes = NO_GPU
        if notes:
            api.DeviceEpIncompatibilityDetails_SetDetails(details, reason, 0, c_text(notes))

    def create_ep(self, devices: Any, described: Any, count: int, options: Any, logger: Any, out: Any) -> None:
        """Raises ConfigError, and AdapterError in strict mode. ONNX Runtime's Python layer may then retry on the CPU:
        recorded."""
        state = SessionState()
        announce(state)
        with state.recording("CreateEp"):
            entries = read_entries(options)
            state.options = {**choice(described, count), **own_options(entries, self.name, state)}
            state.config = resolve(state.options)
            if state.config.placement != "cpu":
                self._open_gpu(state)
            if not self.registry:
                self.registry = memcpy_registry(self.c_name, create_memcpy_kernel)
                add_control_flow(self.registry, self.c_name)
            to_be_written = entries.get("ep.context_enable") == "1"
            forbidden = (
                COMPILES
                if entries.get("session.disable_model_compile") == "1" and state.config.placement != "cpu"
                else ""
            )
            if forbidden and state.strict:
                raise ConfigError(forbidden)
            if forbidden:
                state.record("warning", "placement", forbidden)
            shared = Shared(self.c_name, self.registry, self._host())
            kind = CapturingProvider if _captures(state) else Provider
            out[0] = kind(shared, state, GivenInitializers(options, shared.host), to_be_written, forbidden).pointer

    @staticmethod
    def _open_gpu(state: SessionState) -> None:
        assert state.config is not None
        try:
            state.backend, state.asked = open_backend(state.config), state.config
            state.config = state.backend.settled(state.config)
            if why := lacks(state.backend.adapter.limits, state.config.precision):
                if state.config.strict:
                    raise ConfigError(
                        f"precision={state.config.precision} on {state.backend.adapter.info.name}: {why}. "
                        "Choose precision=float32, or another adapter."
                    )
                state.record("warning", "precision", f"{state.config.precision} has no effect, float32 is used: {why}")
                state.config = replace(state.config, precision="float32")
            for notice in state.backend.notices:
                state.record("notice", "adapter", notice)
        except ConfigError:
            raise
        except Exception as error:  # no adapter, no driver, a forked child: the CPU answers
            if state.config.strict:
                raise
            state.record("error", "CreateEp", error)
            forget_frames(error)

    def release_ep(self, ep: int) -> None:
        provider = owner_of(ep)
        provider.drop()
        if isinstance(provider, Provider):
            if provider.state.backend is not None:
                provider.state.backend.close()
            provider.given.close()

    def create_allocator(self, memory_info: Any, options: Any, out: Any) -> None:
        out[0] = Allocator(memory_info).pointer

    def release_allocator(self, allocator: int) -> None:
        owner_of(allocator).drop()

    def create_data_transfer(self, out: Any) -> None:
        out[0] = DataTransfer(VENDOR_ID).pointer

    def _host(self) -> Any:
        """The OrtMemoryInfo of host memory."""
        if not self._host_info:
            info = ffi.new("void**")
            api.CreateMemoryInfo_V2(c_text("Cpu"), CPU_DEVICE, 0, 0, _DEVICE_MEMORY, 0, _DEVICE_ALLOCATOR, info)
            self._host_info = info[0]
        return self._host_info

    def close(self) -> None:
        """ONNX Runtime releases the factory: gives back what was made for it.

        Allocators of OrtValues that are still alive will be released through it later.
        """
        self.retire()
        if self.registry:
            api.ReleaseKernelRegistry(self.registry)
        for info in (self._memory_info, self._host_info):
            if info:
                api.ReleaseMemoryInfo(info)
        self._hardware.close()


def _captures(state: SessionState) -> bool:
    """Whether runs of a session are to be captured; where that was asked for and is not done, it is recorded."""
    if state.config is None or not state.config.graph_capture or state.config.placement == "cpu":
        return False
    if state.bypasses:
        why = "repeated runs of an ort_gpu_ep.InferenceSession bypass onnxruntime without it"
    elif state.gpu is None:
        why = "no GPU is used in this process"
    elif api.version < slots.EP["ReplayGraph"].since:
        why = f"onnxruntime 1.{slots.EP['ReplayGraph'].since} or newer asks for it"
    else:
        return True
    state.record("notice", "graph capture", f"graph_capture=1 has no effect: {why}")
    return False


def read_entries(session_options: Any) -> Mapping[str, str]:
    """The configuration of a session."""
    pairs = get(api.GetSessionOptionsConfigEntries, session_options)
    keys, values, count = ffi.new("char***"), ffi.new("char***"), ffi.new("size_t*")
    try:
        api.GetKeyValuePairs(pairs, keys, values, count)
        return {text_of(keys[0][i]): text_of(values[0][i]) for i in range(count[0])}
    finally:
        api.ReleaseKeyValuePairs(pairs)


def own_options(entries: Mapping[str, str], name: str, state: SessionState) -> dict[str, str]:
    """A provider's options, unknown ones too: ONNX Runtime stores them as `ep.<name in lower case>.<option>`.

    Of those of ONNX Runtime's WebGPU provider, the one that stands in for it has graph capture. The others mean nothing
    to it: it says which it was given.
    """
    prefix = f"ep.{name.lower()}."
    own = {key.removeprefix(prefix): value for key, value in entries.items() if key.startswith(prefix)}
    if name != STAND_IN_NAME:
        return own
    if "enableGraphCapture" in own:
        own.setdefault("graph_capture", own.pop("enableGraphCapture"))
    without_meaning = sorted(_WEBGPU_OPTIONS & own.keys())
    if without_meaning:
        state.record(
            "notice",
            "options",
            f"options of ONNX Runtime's WebGPU provider have no effect here: {', '.join(without_meaning)}",
        )
    return {key: value for key, value in own.items() if key not in _WEBGPU_OPTIONS}


@entry("sppo")
def create_memcpy_kernel(state: Any, info: Any, out: Any) -> None:
    out[0] = MemcpyKernel().pointer


@entry("scppozn")
def create_factories(name: Any, base: Any, logger: Any, out: Any, room: int, made: Any) -> None:
    """CreateEpFactories, by way of the shim. name: under which the library is registered."""
    api.load(ffi.cast("ApiBase*", base))
    made[0] = 0
    if room:
        out[0] = Factory(STAND_IN_NAME if text_of(name) == STAND_IN_NAME else EP_NAME).pointer
        made[0] = 1


@entry("sa")
def release_factory(address: int) -> None:
    """ReleaseEpFactory, by way of the shim."""
    factory = owner_of(address)
    assert isinstance(factory, Factory)
    factory.close()
