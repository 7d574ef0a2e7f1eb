"""The devices that the provider offers to ONNX Runtime: one for each adapter."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ort_gpu_ep.config import resolve
from ort_gpu_ep.device.info import AMD, APPLE, ARM, INTEL, NVIDIA, QUALCOMM, AdapterInfo
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.plugin.abi import NULL, api, c_text, ffi, text_of
from ort_gpu_ep.plugin.transfer import GPU_DEVICE

log = logging.getLogger("ort_gpu_ep")

ADAPTER = "adapter"
"""The key of a device's metadata that holds what the option of this name takes."""

_VENDORS = {
    AMD: "AMD",
    APPLE: "Apple",
    NVIDIA: "NVIDIA",
    ARM: "ARM",
    0x1414: "Microsoft",
    QUALCOMM: "Qualcomm",
    INTEL: "Intel",
    0x10005: "Mesa",
}
"""By PCI's numbers, and those of Khronos (VkVendorId)."""


def known_adapters() -> tuple[AdapterInfo, ...]:
    """What there is, seen by another process; none where drivers fail, or are to be loaded by sessions only
    (health=off).

    Raises: ConfigError, for the environment's options.
    """
    config = resolve()
    if config.health == "off":
        return ()
    from ort_gpu_ep.health.enumeration import look  # sessions register without it

    try:
        return look(config)
    except AdapterError as error:  # a session says so, if it comes to that
        log.info("no adapters to offer: %s", error)
        return ()


def metadata(info: AdapterInfo, all_of_them: Sequence[AdapterInfo]) -> dict[str, str]:
    """What onnxruntime shows of an adapter. `adapter`: its PCI address or UUID, where no other has the same, else its
    index."""
    names = [n for n in (info.pci, info.uuid) if n and sum(n in (a.pci, a.uuid) for a in all_of_them) == 1]
    return {
        ADAPTER: next(iter(names), str(info.index)),
        "index": str(info.index),
        "name": info.name,
        "vendor": _vendor(info),
        "type": info.type,
        "backend": info.backend,
        "driver": info.driver,
        "pci": info.pci,
        "uuid": info.uuid,
    }


def _vendor(info: AdapterInfo) -> str:
    return _VENDORS.get(info.vendor_id, f"{info.vendor_id:#06x}")


def choice(described: Any, count: int) -> dict[str, str]:
    """The option by which a session gets the device that was chosen for it. The first is what a session gets by itself,
    and what ONNX Runtime passes for a provider that is given by its name: no choice, so that the environment's holds.
    """
    if count != 1 or not described[0] or text_of(api.GetKeyValue(described[0], c_text("index"))) in ("", "0"):
        return {}
    return {ADAPTER: text_of(api.GetKeyValue(described[0], c_text(ADAPTER)))}


class Hardware:
    """The GPUs that ONNX Runtime sees, and those that it does not: made here, and released by `close`."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, int], Any] = {}

    def find(self, info: AdapterInfo, free: list[Any]) -> Any:
        """The one that is this adapter, which is taken out of `free`; else one made for it."""
        ids = info.vendor_id, info.device_id
        for device in free:
            if (api.HardwareDevice_VendorId(device), api.HardwareDevice_DeviceId(device)) == ids:
                free.remove(device)
                return device
        return self.make(*ids, _vendor(info), info.index)

    def make(self, vendor_id: int, device_id: int, vendor: str, place: int = 0) -> Any:
        """One of no hardware that ONNX Runtime knows; the same for the same numbers."""
        key = vendor_id, device_id, place
        if key not in self._made:
            pointer = ffi.new("void**")
            api.CreateHardwareDevice(GPU_DEVICE, vendor_id, device_id, c_text(vendor), NULL, pointer)
            self._made[key] = pointer[0]
        return self._made[key]

    def close(self) -> None:
        for device in self._made.values():
            api.ReleaseHardwareDevice(device)
        self._made.clear()
