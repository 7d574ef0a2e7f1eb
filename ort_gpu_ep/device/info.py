"""What is known of an adapter without touching it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

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
