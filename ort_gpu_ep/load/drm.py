"""Linux's graphics cards as sysfs lists them, and which of them an adapter is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ort_gpu_ep.load.source import SourceError

if TYPE_CHECKING:
    from ort_gpu_ep.device.info import AdapterInfo


@dataclass(frozen=True, slots=True)
class Card:
    """A card below /sys/class/drm. slot: its PCI address, or the name of its platform device; driver: of the kernel."""

    path: Path
    vendor_id: int
    device_id: int
    slot: str
    driver: str


def cards(root: Path) -> list[Card]:
    """All cards, by their slots.

    Raises: SourceError, where the kernel has no such folder.
    Source: Documentation/ABI/testing/sysfs-bus-pci (vendor, device); card0-HDMI-A-1 and the like are connectors.
    """
    folder = root / "sys/class/drm"
    if not folder.is_dir():
        raise SourceError(f"{folder}: no such folder")
    all_cards = [_card(path / "device") for path in folder.glob("card*") if re.fullmatch(r"card\d+", path.name)]
    return sorted(all_cards, key=lambda card: card.slot)


def _card(device: Path) -> Card:
    facts = dict(line.split("=", 1) for line in _text(device / "uevent").splitlines() if "=" in line)
    slot = facts.get("PCI_SLOT_NAME") or device.resolve().name
    return Card(device, _hex(device / "vendor"), _hex(device / "device"), slot, facts.get("DRIVER", ""))


def _text(path: Path) -> str:
    """A file of a card; platform devices lack some of them."""
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""


def _hex(path: Path) -> int:
    text = _text(path).strip()
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else 0


def find_card(info: AdapterInfo, root: Path, order: int = 0, drivers: tuple[str, ...] = ()) -> Card:
    """The card of an adapter: by PCI vendor and device; of several equal ones the one at `order`. drivers: of the
    kernel, to choose from.

    Raises: SourceError, saying what there is.
    """
    there = cards(root)
    fitting = [
        c
        for c in there
        if (not drivers or c.driver in drivers)
        and (c.vendor_id in (0, info.vendor_id) and c.device_id in (0, info.device_id))
    ]
    if order >= len(fitting):
        listed = (
            ", ".join(f"{c.slot} ({c.vendor_id:#06x}:{c.device_id:#06x}, {c.driver or 'no driver'})" for c in there)
            or "none"
        )
        condition = f" with driver {' or '.join(drivers)}" if drivers else ""
        raise SourceError(
            f"{root / 'sys/class/drm'}: no card {info.vendor_id:#06x}:{info.device_id:#06x}{condition} "
            f"(number {order}); "
            f"there are: {listed}"
        )
    return fitting[order]
