"""What is known of an adapter without touching it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ort_gpu_ep.errors import AdapterError

FEATURES = ("shader-int64", "shader-f16", "subgroup", "timestamp-query", "timestamp-query-inside-passes")
"""Asked for where the adapter has them."""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """An adapter, for people and for caches. type: discrete, integrated, software or unknown."""

    index: int
    name: str
    type: str
    backend: str
    driver: str
    vendor_id: int
    device_id: int

    @property
    def is_software(self) -> bool:
        return self.type == "software"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def matches(wanted: str, info: AdapterInfo) -> bool:
    """Whether an index, a type or a part of a name means this adapter."""
    return wanted == str(info.index) or wanted.lower() == info.type or (not wanted.isdigit() and wanted.lower() in info.name.lower())


def pick(found: Sequence[AdapterInfo], wanted: str) -> AdapterInfo:
    """The one of these adapters that `wanted` means. Raises AdapterError, naming what there is."""
    there = "; ".join(f"{i.index}: {i.name} ({i.type}, {i.backend})" for i in found) or "none"
    if not found:
        raise AdapterError(
            "no GPU adapter: got no Vulkan, Metal or DX12 adapter, expected at least one. Install a GPU driver, or Mesa's "
            "software driver (Debian, Ubuntu: mesa-vulkan-drivers), or use placement=cpu.")
    for info in found:
        if not wanted or matches(wanted, info):
            return info
    raise AdapterError(f"option adapter={wanted!r}: no such adapter; there are: {there}. Give an index, a type or a part of a name.")
