"""Which adapters there are, which one a session gets, and what it offers."""

from __future__ import annotations

import threading
from typing import Any

import wgpu

from ort_gpu_ep.device.info import FEATURES, AdapterInfo, pick
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.registry import Limits

_TYPES = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "software"}
_PREFERENCE = ("discrete", "integrated", "unknown", "software")
_BACKENDS = ("Vulkan", "Metal", "D3D12")
"""OpenGL is left out: its compute shaders miss features that the kernels need."""


_lock = threading.Lock()
_found: list[tuple[AdapterInfo, Any]] | None = None


def adapters() -> tuple[AdapterInfo, ...]:
    """Every adapter whose backend can run the kernels, in the order of preference."""
    return tuple(info for info, _ in _enumerate())


def _enumerate() -> list[tuple[AdapterInfo, Any]]:
    """Looks once a process: enumerating loads every driver of the machine."""
    global _found
    with _lock:
        if _found is None:
            raw = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info.get("backend_type") in _BACKENDS]
            raw.sort(key=lambda a: _PREFERENCE.index(_TYPES.get(a.info.get("adapter_type", ""), "unknown")))
            _found = [(_info(i, a.info), a) for i, a in enumerate(raw)]
        return _found


def _info(index: int, info: Any) -> AdapterInfo:
    return AdapterInfo(
        index, str(info.get("device", "")), _TYPES.get(info.get("adapter_type", ""), "unknown"), str(info.get("backend_type", "")),
        str(info.get("description", "")), int(info.get("vendor_id", 0)), int(info.get("device_id", 0)))


def choose(wanted: str) -> tuple[AdapterInfo, Any]:
    """The adapter that `wanted` means: an index, a type, or a part of its name; "" for the best one.

    Raises: AdapterError, naming what there is.
    """
    found = _enumerate()
    return found[pick([info for info, _ in found], wanted).index]


def order_among_equals(info: AdapterInfo) -> int:
    """How many adapters of the same kind and backend come before this one: what tells equal GPUs apart where only their order is known."""
    return sum((a.vendor_id, a.device_id, a.backend) == (info.vendor_id, info.device_id, info.backend) and a.index < info.index
               for a in adapters())


def limits_of(raw: Any) -> Limits:
    """What kernels may use on this adapter."""
    got = raw.limits
    return Limits(
        frozenset(f for f in FEATURES if f in raw.features), got["max-storage-buffer-binding-size"], got["max-buffer-size"],
        min(got["max-storage-buffers-per-shader-stage"], 32), got["max-compute-workgroup-storage-size"],
        min(got["max-compute-invocations-per-workgroup"], got["max-compute-workgroup-size-x"]),
        got["max-compute-workgroups-per-dimension"], got["min-storage-buffer-offset-alignment"],
        LLVMPIPE_LOOP_ITERATIONS if "llvmpipe" in str(raw.info.get("device", "")) else ANY_LOOP_ITERATIONS)


LLVMPIPE_LOOP_ITERATIONS = 65535
"""See kernels.loop_bound."""
ANY_LOOP_ITERATIONS = 1 << 40

_NEEDED = (
    "max-storage-buffer-binding-size", "max-buffer-size", "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size", "max-compute-invocations-per-workgroup", "max-compute-workgroup-size-x",
    "max-compute-workgroups-per-dimension", "min-storage-buffer-offset-alignment")


def request_device(info: AdapterInfo, raw: Any) -> Any:
    """A device with the adapter's own limits. Raises AdapterError, where the driver refuses."""
    limits = {name: raw.limits[name] for name in _NEEDED}
    try:
        return raw.request_device_sync(
            label="ort_gpu_ep", required_features=[f for f in FEATURES if f in raw.features], required_limits=limits)
    except Exception as error:
        raise AdapterError(f"adapter {info.index} {info.name!r}: the driver gave no device ({error}). "
                           "Try another adapter (option adapter) or update the driver.") from error
