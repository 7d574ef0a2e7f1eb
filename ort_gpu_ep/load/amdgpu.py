"""AMD's GPUs on Linux: `gpu_busy_percent`, with our own part by fdinfo subtracted where the driver counts it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ort_gpu_ep.load.drm import find_card
from ort_gpu_ep.load.fdinfo import OwnBusy
from ort_gpu_ep.load.source import Percentage, clip

if TYPE_CHECKING:
    from ort_gpu_ep.device.info import AdapterInfo

VENDOR = 0x1002


class AmdgpuLoad(Percentage):
    """How busy the SMU's firmware says the GPU is, in percent.

    Source: Documentation/gpu/amdgpu/thermal.rst, "gpu_busy_percent"; engines gfx and compute in amdgpu_fdinfo.c.
    """

    def __init__(self, info: AdapterInfo, root: Path = Path("/"), order: int = 0) -> None:
        card = find_card(info, root, order, ("amdgpu",))
        super().__init__(f"amdgpu {card.slot}", card.path / "gpu_busy_percent")
        self._own = OwnBusy(card.slot, root)

    def read(self) -> float | None:
        load = super().read()
        own = self._own() if hasattr(self, "_own") else None
        self.includes_own = own is None
        return load if load is None or own is None else clip(load - own)
