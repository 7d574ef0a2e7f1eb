"""Lists the adapters, chooses one for a session, and reads its limits and features."""

from __future__ import annotations

import threading

from ort_gpu_ep.device.classes import DeviceClass
from ort_gpu_ep.device.identity import identified, physical_devices
from ort_gpu_ep.device.info import FEATURES, NVIDIA, AdapterInfo, is_identity, pick
from ort_gpu_ep.errors import AdapterError, ConfigError
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.webgpu.library import GPUError, lib
from ort_gpu_ep.webgpu.objects import Adapter, Device, enumerate_adapters

_TYPES = {
    lib.WGPUAdapterType_DiscreteGPU: "discrete",
    lib.WGPUAdapterType_IntegratedGPU: "integrated",
    lib.WGPUAdapterType_CPU: "software",
}
_PREFERENCE = ("discrete", "integrated", "unknown", "software")
_BACKENDS = {
    lib.WGPUBackendType_Vulkan: "Vulkan",
    lib.WGPUBackendType_Metal: "Metal",
    lib.WGPUBackendType_D3D12: "D3D12",
}

_lock = threading.Lock()
_found: list[tuple[AdapterInfo, Adapter]] | None = None
_identified: tuple[AdapterInfo, ...] | None = None
_held_to: DeviceClass | None = None


def hold_to(found: DeviceClass) -> None:
    """All adapters of this process offer no more than a class of GPUs does, and say that they are integrated ones.

    What it can't change is the size of subgroups: it counts as unknown then. Raises ConfigError, once adapters were
    looked at.
    """
    global _held_to
    with _lock:
        if _found is not None:
            raise ConfigError(
                f"device class {found.name}: this process has looked at its adapters already; hold them to it before"
            )
        _held_to = found


def adapters() -> tuple[AdapterInfo, ...]:
    """Every adapter whose backend can run the kernels, in the order of preference, with PCI address and UUID."""
    global _identified
    if _identified is None:  # asks the Vulkan loader once more, some 40 ms: only those who want to know pay for it
        _identified = tuple(identified([info for info, _ in _enumerate()], physical_devices()))
    return _identified


def _enumerate() -> list[tuple[AdapterInfo, Adapter]]:
    """Looks once a process: enumerating loads every driver of the machine."""
    global _found
    with _lock:
        if _found is None:
            raw = [a for a in enumerate_adapters() if a.info.backendType in _BACKENDS]
            if _held_to is not None:
                for adapter in raw:
                    adapter.restrict(_held_to.features, _held_to.limits)
            raw.sort(key=lambda a: _PREFERENCE.index(_type(a)))
            _found = [(_info(i, a), a) for i, a in enumerate(raw)]
        return _found


def _type(raw: Adapter) -> str:
    return _TYPES.get(raw.info.adapterType, "unknown")


def _info(index: int, raw: Adapter) -> AdapterInfo:
    name, kind = (raw.name, _type(raw)) if _held_to is None else (f"{raw.name} as {_held_to.name}", "integrated")
    return AdapterInfo(
        index,
        name,
        kind,
        _BACKENDS[raw.info.backendType],
        raw.description,
        raw.info.vendorID,
        raw.info.deviceID,
        family=raw.driver_name,
    )


def choose(wanted: str) -> tuple[AdapterInfo, Adapter]:
    """The adapter that `wanted` means: an index, a type, a PCI address, a UUID, or a part of its name; "" for the best
    one.

    Raises: AdapterError, naming what there is.
    """
    pairs = _enumerate()
    infos = adapters() if is_identity(wanted) else [info for info, _ in pairs]
    chosen = pick(infos, wanted)
    return chosen, pairs[chosen.index][1]


def order_among_equals(info: AdapterInfo) -> int:
    """How many adapters of the same kind and backend come before this one: what tells equal GPUs apart where only their
    order is known."""
    return sum(
        (a.vendor_id, a.device_id, a.backend) == (info.vendor_id, info.device_id, info.backend) and a.index < info.index
        for a, _ in _enumerate()
    )


def limits_of(raw: Adapter) -> Limits:
    """What kernels may use on this adapter."""
    got = raw.limits
    return Limits(
        raw.features,
        got.maxStorageBufferBindingSize,
        got.maxBufferSize,
        _storage_buffers(raw),
        got.maxComputeWorkgroupStorageSize,
        min(got.maxComputeInvocationsPerWorkgroup, got.maxComputeWorkgroupSizeX),
        got.maxComputeWorkgroupsPerDimension,
        got.minStorageBufferOffsetAlignment,
        LLVMPIPE_LOOP_ITERATIONS if "llvmpipe" in raw.name else ANY_LOOP_ITERATIONS,
        _subgroup_size(raw),
        configurations=tuple(name for name, _, _ in raw.configurations),
        configuration_subgroups=tuple((least, most) for _, least, most in raw.configurations),
    )


MOST_BUFFERS = 32
"""That a kernel may bind, where the adapter takes so many."""

BESIDE_STORAGE = 2
"""Other buffers of a pipeline: the uniform of a run's sizes, and on Metal the one that naga puts the buffers' sizes
in."""


def _storage_buffers(raw: Adapter) -> int:
    """On Metal storage buffers share one table with all other buffers; wgpu (wgpu-hal, src/metal) tells the size of the
    table."""
    told: int = raw.limits.maxStorageBuffersPerShaderStage
    return min(told - BESIDE_STORAGE if _BACKENDS[raw.info.backendType] == "Metal" else told, MOST_BUFFERS)


_SUBGROUP_SIZES = {NVIDIA: 32}
"""PCI vendor -> invocations of every subgroup. NVIDIA: a warp (CUDA C++ Programming Guide, "Hardware
Implementation")."""


def _subgroup_size(raw: Adapter) -> int:
    """What the backend tells where it is one size; wgpu-native 27 tells 0. Then what is known of the vendor's
    hardware."""
    low, high = raw.info.subgroupMinSize, raw.info.subgroupMaxSize
    if _held_to is not None and (low, high) != _held_to.subgroups:
        return 0
    return high if low == high > 0 else _SUBGROUP_SIZES.get(raw.info.vendorID, 0) if not high else 0


LLVMPIPE_LOOP_ITERATIONS = 65535
"""See kernels.loop_bound."""
ANY_LOOP_ITERATIONS = 1 << 40


def request_device(info: AdapterInfo, raw: Adapter) -> Device:
    """A device with the adapter's own limits. Raises AdapterError, where the driver refuses."""
    try:
        return raw.request_device("ort_gpu_ep", [f for f in FEATURES if f in raw.features])
    except (RuntimeError, GPUError) as error:
        raise AdapterError(
            f"adapter {info.index} {info.name!r}: the driver gave no device ({error}). "
            "Try another adapter (option adapter) or update the driver."
        ) from error
