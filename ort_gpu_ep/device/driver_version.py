"""The version of an adapter's driver, in its maker's own numbering, so that versions can be compared."""

from __future__ import annotations

import re

from ort_gpu_ep.device.info import ARM, INTEL, NVIDIA, QUALCOMM, AdapterInfo

_DOTTED = re.compile(r"\d+(?:\.\d+)+")


def version_of(info: AdapterInfo) -> tuple[int, ...]:
    """The driver's version; () where neither its description nor its number tells.

    Mesa's drivers: Mesa's version. ARM: release and patch, `v1.r32p1-...` -> (32, 1). Qualcomm: its number, as
    512.842.19, since the description tells a build. NVIDIA by D3D12: `32.0.15.6094` -> (560, 94). Intel on Windows: the
    last two numbers, (101, 5762). Else the first dotted number of the description, or the driver's number.
    """
    text, number = info.driver, info.driver_number
    if mesa := re.search(r"\bMesa (\d+(?:\.\d+)*)", text):
        return _numbers(mesa[1])
    if text.isdecimal() and int(text) >= 1 << 22:  # packed
        text, number = "", number or int(text)
    if info.vendor_id == ARM:
        release = re.search(r"\br(\d+)p(\d+)", text)
        return (int(release[1]), int(release[2])) if release else _packed(info.vendor_id, number)
    if info.vendor_id == QUALCOMM:
        return _packed(info.vendor_id, number)
    match = _DOTTED.search(text)
    if match is None:
        return _packed(info.vendor_id, number)
    version = _numbers(match[0])
    if len(version) == 4 and info.vendor_id == NVIDIA:
        digits = "".join(match[0].split(".")[2:])[-5:]
        return int(digits[:-2]), int(digits[-2:])
    return version[2:] if len(version) == 4 and info.vendor_id == INTEL else version


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _packed(vendor_id: int, number: int) -> tuple[int, ...]:
    """VkPhysicalDeviceProperties.driverVersion: NVIDIA packs 10, 8, 8 and 6 bits, Intel on Windows 18 and 14, others
    10, 10 and 12."""
    if not number:
        return ()
    if vendor_id == NVIDIA:
        return number >> 22, number >> 14 & 0xFF, number >> 6 & 0xFF, number & 0x3F
    return (
        (number >> 14, number & 0x3FFF) if vendor_id == INTEL else (number >> 22, number >> 12 & 0x3FF, number & 0xFFF)
    )
