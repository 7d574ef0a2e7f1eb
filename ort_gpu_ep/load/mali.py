"""Arm's Mali under its own driver: the file differs from vendor to vendor."""

from __future__ import annotations

from pathlib import Path

from ort_gpu_ep.load.source import Percentage, SourceError

VENDOR = 0x13B5

PATHS = (
    "sys/class/misc/mali0/device/utilization",  # Samsung's Exynos: gpu_custom_interface.c
    "sys/class/misc/mali0/device/utilisation",
    "sys/devices/platform/*.mali/utilization",
    "sys/devices/*.mali/utilization",
    "sys/kernel/gpu/gpu_busy",  # Samsung, for programs without root: `37%`
    "sys/module/ged/parameters/gpu_loading",  # MediaTek's GED
    "sys/kernel/debug/mali0/gpu_utilisation",  # debugfs, root only
)
"""Where Mali's kernel drivers put a percentage, the most exact first."""


def open_mali(root: Path = Path("/")) -> Percentage:
    """The first of PATHS that holds a percentage.

    Raises: SourceError, with what was wrong with each that exists.
    """
    wrong = []
    for pattern in PATHS:
        for path in sorted(root.glob(pattern)):
            try:
                return Percentage(f"mali {path.name}", path)
            except SourceError as error:
                wrong.append(str(error))
    raise SourceError("; ".join(wrong) or f"{root}: none of {', '.join(PATHS)}")
