"""Files in which drivers of the Linux kernel show how busy a GPU is: a row a driver. No hardware has confirmed them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ort_gpu_ep.device.info import AMD, ARM, QUALCOMM, AdapterInfo
from ort_gpu_ep.load.drm import find_card
from ort_gpu_ep.load.fdinfo import OwnBusy
from ort_gpu_ep.load.source import Source, SourceError, clip, read_text

Parse: TypeAlias = Callable[[str], float]
"""The busy part, 0 to 1, that a file's text says. Raises ValueError, whose text is what was expected."""


def percent(text: str) -> float:
    """`37`, `37 %`, `37%`."""
    first = text.replace("%", " ").split()[:1]
    try:
        return float(first[0]) / 100.0
    except (IndexError, ValueError):
        raise ValueError("a number") from None


def busy_and_total(text: str) -> float:
    """Two numbers, microseconds of work and of time in the driver's last window; both are 0 while the GPU sleeps."""
    words = text.split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        raise ValueError("two numbers")
    busy, total = int(words[0]), int(words[1])
    return busy / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Counter:
    """What one driver shows. name: the driver's. vendor_id: of its GPUs. files: patterns of paths, the most exact
    first, each with what reads it. in_card: they lie below the adapter's own folder in sysfs, and our own part, where
    the driver counts its clients', is subtracted."""

    name: str
    vendor_id: int
    files: Mapping[str, Parse]
    in_card: bool = False


COUNTERS = (
    # Documentation/gpu/amdgpu/thermal.rst: what the SMU's firmware says. Engines gfx and compute in amdgpu_fdinfo.c.
    Counter("amdgpu", AMD, {"gpu_busy_percent": percent}, in_card=True),
    # Adreno under its own driver, as on Android: kgsl_pwrctrl.c, gpubusy_show and gpu_busy_percentage_show.
    Counter(
        "kgsl",
        QUALCOMM,
        {
            "sys/class/kgsl/kgsl-3d0/gpubusy": busy_and_total,
            "sys/class/kgsl/kgsl-3d0/gpu_busy_percentage": percent,  # more phones let programs read this one
        },
    ),
    # Mali under Arm's own driver: the file differs from vendor to vendor.
    Counter(
        "mali",
        ARM,
        {
            "sys/class/misc/mali0/device/utilization": percent,  # Samsung's Exynos: gpu_custom_interface.c
            "sys/class/misc/mali0/device/utilisation": percent,
            "sys/devices/platform/*.mali/utilization": percent,
            "sys/devices/*.mali/utilization": percent,
            "sys/kernel/gpu/gpu_busy": percent,  # Samsung, for programs without root: `37%`
            "sys/module/ged/parameters/gpu_loading": percent,  # MediaTek's GED
            "sys/kernel/debug/mali0/gpu_utilisation": percent,  # debugfs, root only
        },
    ),
)


class BusyFile(Source):
    """One of these files. own: our own part of it.

    Raises: SourceError, where it can't be read.
    """

    def __init__(self, name: str, path: Path, parse: Parse, own: OwnBusy | None = None) -> None:
        self.name, self._path, self._parse, self._own, self.includes_own = name, path, parse, own, True
        self._busy()

    def _busy(self) -> float:
        text = read_text(self._path)
        try:
            return clip(self._parse(text))
        except ValueError as error:
            raise SourceError(f"{self._path}: got {text.strip()[:40]!r}, expected {error}") from error

    def read(self) -> float | None:
        busy, own = self._busy(), self._own() if self._own is not None else None
        self.includes_own = own is None
        return busy if own is None else clip(busy - own)


def open_busy_file(counter: Counter, info: AdapterInfo, root: Path = Path("/"), order: int = 0) -> BusyFile:
    """The first file of a driver that can be read. order: which of several equal adapters.

    Raises: SourceError, with what was wrong with each that exists.
    """
    name, own = counter.name, None
    if counter.in_card:
        card = find_card(info, root, order, (counter.name,))
        name, root, own = f"{counter.name} {card.slot}", card.path, OwnBusy(card.slot, root)
    wrong = []
    for pattern, parse in counter.files.items():
        for path in sorted(root.glob(pattern)):
            try:
                return BusyFile(f"{name} {path.name}", path, parse, own)
            except SourceError as error:
                wrong.append(str(error))
    raise SourceError("; ".join(wrong) or f"{root}: none of {', '.join(counter.files)}")
