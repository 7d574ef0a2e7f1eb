"""Name, type, vendor and driver of an adapter as plain data, without opening it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from ort_gpu_ep.errors import AdapterError

FEATURES = (
    "shader-int64",
    "shader-f16",
    "shader-f64",
    "subgroup",
    "subgroup-matrix",
    "subgroup-size-control",
    "timestamp-query",
    "timestamp-query-inside-passes",
)
"""Asked for where the adapter has them."""

AMD, APPLE, ARM, INTEL, NVIDIA, QUALCOMM = 0x1002, 0x106B, 0x13B5, 0x8086, 0x10DE, 0x5143
"""PCI vendors, or Khronos's numbers for makers."""
MAKERS = {AMD: "amd", NVIDIA: "nvidia", ARM: "arm", QUALCOMM: "qualcomm", INTEL: "intel"}
COMPILERS = {"nvk": "nvk", "honeykrisp": "apple"}
"""By the driver's name, where the vendor says nothing or another."""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """An adapter, for people and for caches. type: discrete, integrated, software or unknown.

    pci: its address on the bus, `0000:65:00.0`; uuid: of the device, for NVIDIA's that of nvidia-smi. Empty where the
    system does not tell. family: the driver's name, as Vulkan has it (`radv`, `NVIDIA`, `Intel open-source Mesa
    driver`, `llvmpipe`), empty with other backends. driver_number: Vulkan's driverVersion, which each maker packs in
    its own way; 0 where it was not asked for.
    """

    index: int
    name: str
    type: str
    backend: str
    driver: str
    vendor_id: int
    device_id: int
    # a session's adapter was not asked for them unless it was chosen by them
    pci: str = field(default="", compare=False)
    uuid: str = field(default="", compare=False)
    family: str = field(default="", compare=False)
    driver_number: int = field(default=0, compare=False)

    @property
    def is_software(self) -> bool:
        return self.type == "software"

    @property
    def compiler(self) -> str:
        """Whose compiler makes the kernels' code: a maker's name, `nvk` for NVIDIA's GPUs by Mesa; empty where it is
        not known."""
        if self.family.lower() in COMPILERS:
            return COMPILERS[self.family.lower()]
        return "apple" if self.backend == "Metal" and self.name.startswith("Apple") else MAKERS.get(self.vendor_id, "")

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


_IDENTITY = re.compile(
    r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|(gpu-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE
)


def is_identity(wanted: str) -> bool:
    """Whether a text is a PCI address or a UUID, also as nvidia-smi writes them."""
    return _IDENTITY.fullmatch(wanted) is not None


def matches(wanted: str, info: AdapterInfo) -> bool:
    """Whether an index, a type, a PCI address, a UUID or a part of a name means this adapter."""
    if is_identity(wanted):
        domain, _, rest = wanted.lower().partition(":")
        return f"{int(domain, 16):04x}:{rest}" == info.pci if rest else wanted.lower().removeprefix("gpu-") == info.uuid
    return (
        wanted == str(info.index)
        or wanted.lower() == info.type
        or (not wanted.isdigit() and wanted.lower() in info.name.lower())
    )


def pick(found: Sequence[AdapterInfo], wanted: str) -> AdapterInfo:
    """The one of these adapters that `wanted` means. Raises AdapterError, naming what there is."""
    there = "; ".join(f"{i.index}: {i.name} ({i.type}, {i.backend})" for i in found) or "none"
    if not found:
        from ort_gpu_ep.webgpu.missing import no_adapter

        raise AdapterError(no_adapter(os.environ))
    for info in found:
        if not wanted or matches(wanted, info):
            return info
    identities = ", ".join(i.pci or i.uuid for i in found if i.pci or i.uuid)
    raise AdapterError(
        f"option adapter={wanted!r}: no such adapter; there are: {there}{f' ({identities})' if identities else ''}. "
        "Give an index, a type, a part of a name, a PCI address or a UUID."
    )
