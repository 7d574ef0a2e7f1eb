"""UUID and PCI address of an adapter, from the Vulkan loader, since WebGPU does not provide them.

Source: Vulkan 1.1, VkPhysicalDeviceIDProperties; VK_EXT_pci_bus_info. NVIDIA's deviceUUID is the UUID of NVML and CUDA.
"""

from __future__ import annotations

import ctypes
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ort_gpu_ep.device.info import AdapterInfo

_LIBRARIES = {"win32": "vulkan-1.dll", "darwin": "libvulkan.1.dylib"}
_API_1_1 = 1 << 22 | 1 << 12
_APPLICATION_INFO, _INSTANCE_INFO = 0, 1
_PROPERTIES_2, _ID_PROPERTIES, _PCI_PROPERTIES = 1000059001, 1000071004, 1000212000
_SUCCESS = 0


@dataclass(frozen=True, slots=True)
class PhysicalDevice:
    """A device as the Vulkan loader lists it. uuid: of the device, with dashes. pci: `0000:65:00.0`, empty where it has
    none.

    driver_number: driverVersion, as its maker packs it.
    """

    name: str
    vendor_id: int
    device_id: int
    uuid: str
    pci: str
    driver_number: int = 0


class _ApplicationInfo(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_uint32),
        ("engine", ctypes.c_char_p),
        ("engine_version", ctypes.c_uint32),
        ("api", ctypes.c_uint32),
    )


class _InstanceInfo(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application", ctypes.POINTER(_ApplicationInfo)),
        ("layer_count", ctypes.c_uint32),
        ("layers", ctypes.c_void_p),
        ("extension_count", ctypes.c_uint32),
        ("extensions", ctypes.c_void_p),
    )


class _Properties(ctypes.Structure):
    """VkPhysicalDeviceProperties2. limits: VkPhysicalDeviceLimits and VkPhysicalDeviceSparseProperties, which nobody
    reads here."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("api", ctypes.c_uint32),
        ("driver", ctypes.c_uint32),
        ("vendor_id", ctypes.c_uint32),
        ("device_id", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("name", ctypes.c_char * 256),
        ("cache_uuid", ctypes.c_uint8 * 16),
        ("limits", ctypes.c_uint64 * 128),
    )


class _IdProperties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("device_uuid", ctypes.c_uint8 * 16),
        ("driver_uuid", ctypes.c_uint8 * 16),
        ("luid", ctypes.c_uint8 * 8),
        ("node_mask", ctypes.c_uint32),
        ("luid_valid", ctypes.c_uint32),
    )


class _PciProperties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("domain", ctypes.c_uint32),
        ("bus", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("function", ctypes.c_uint32),
    )


class _Extension(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char * 256), ("version", ctypes.c_uint32))


def physical_devices() -> tuple[PhysicalDevice, ...]:
    """What the Vulkan loader lists, in its order, which is that of the adapters; nothing where there is no loader or it
    fails."""
    try:
        loader: Any = ctypes.CDLL(_LIBRARIES.get(sys.platform, "libvulkan.so.1"))
    except OSError:
        return ()
    application = _ApplicationInfo(_APPLICATION_INFO, None, b"ort_gpu_ep", 0, None, 0, _API_1_1)
    creation, instance = _InstanceInfo(_INSTANCE_INFO, None, 0, ctypes.pointer(application)), ctypes.c_void_p()
    if loader.vkCreateInstance(ctypes.byref(creation), None, ctypes.byref(instance)) != _SUCCESS:
        return ()
    try:
        count = ctypes.c_uint32()
        loader.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
        handles = (ctypes.c_void_p * count.value)()
        loader.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles)
        return tuple(_device(loader, ctypes.c_void_p(handle)) for handle in handles[: count.value])
    finally:
        loader.vkDestroyInstance(instance, None)


def _device(loader: Any, handle: ctypes.c_void_p) -> PhysicalDevice:
    pci = _PciProperties(_PCI_PROPERTIES)
    has_pci = _has_pci(loader, handle)
    identity = _IdProperties(_ID_PROPERTIES, ctypes.addressof(pci) if has_pci else None)
    properties = _Properties(_PROPERTIES_2, ctypes.addressof(identity))
    loader.vkGetPhysicalDeviceProperties2(handle, ctypes.byref(properties))
    address = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.{pci.function:x}" if has_pci else ""
    return PhysicalDevice(
        properties.name.decode("utf-8", "replace"),
        properties.vendor_id,
        properties.device_id,
        str(uuid.UUID(bytes=bytes(identity.device_uuid))),
        address,
        properties.driver,
    )


def _has_pci(loader: Any, handle: ctypes.c_void_p) -> bool:
    count = ctypes.c_uint32()
    loader.vkEnumerateDeviceExtensionProperties(handle, None, ctypes.byref(count), None)
    extensions = (_Extension * count.value)()
    loader.vkEnumerateDeviceExtensionProperties(handle, None, ctypes.byref(count), extensions)
    return any(extension.name == b"VK_EXT_pci_bus_info" for extension in extensions)


def identified(adapters: Sequence[AdapterInfo], devices: Sequence[PhysicalDevice]) -> list[AdapterInfo]:
    """The adapters with their UUIDs, PCI addresses and the numbers of their drivers.

    Equal GPUs are told apart by their order, which is the loader's in both lists; where one list has more of a kind
    than the other, that says nothing, and they stay unknown.
    """
    infos = list[AdapterInfo]()
    for info in adapters:
        if info.backend != "Vulkan":
            infos.append(info)
            continue
        key = (info.name, info.vendor_id, info.device_id)
        equal = [a.index for a in adapters if a.backend == "Vulkan" and (a.name, a.vendor_id, a.device_id) == key]
        same = [d for d in devices if (d.name, d.vendor_id, d.device_id) == key]
        device = same[equal.index(info.index)] if len(same) == len(equal) else None
        infos.append(
            info
            if device is None
            else replace(info, pci=device.pci, uuid=device.uuid, driver_number=device.driver_number)
        )
    return infos
