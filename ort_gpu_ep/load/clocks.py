"""Reads the clock rates of an adapter."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ort_gpu_ep.device.info import AMD, INTEL, NVIDIA, AdapterInfo
from ort_gpu_ep.load import nvml
from ort_gpu_ep.load.drm import find_card
from ort_gpu_ep.load.source import SourceError, read_text

SMI = ("nvidia-smi", "--format=csv,noheader,nounits", "--query-gpu=name,clocks.sm,clocks.max.sm,clocks.mem")

Text = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Clocks:
    """MHz of the shader cores, the most that they may run at, and the memory's; 0 where it is not told. source: who
    said so."""

    core_mhz: int
    most_mhz: int
    memory_mhz: int
    source: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        most = f" of {self.most_mhz}" if self.most_mhz else ""
        memory = f", memory {self.memory_mhz} MHz" if self.memory_mhz else ""
        return f"cores {self.core_mhz}{most} MHz{memory} ({self.source})"


def read_clocks(info: AdapterInfo, order: int = 0, root: Path = Path("/"), smi: Text | None = None) -> Clocks | None:
    """The clocks now, None where nothing tells them. order: which of several equal adapters. smi: gives nvidia-smi's
    lines."""
    ways: dict[int, tuple[Callable[[], Clocks], ...]] = {
        NVIDIA: (lambda: _nvml(info, order), lambda: _smi(info, order, smi or _run_smi)),
        AMD: (lambda: _amdgpu(info, order, root),),
        INTEL: (lambda: _i915(info, order, root),),
    }
    for way in ways.get(info.vendor_id, ()) if not info.is_software else ():
        try:
            return way()
        except SourceError:  # the next one may know
            continue
    return None


def _nvml(info: AdapterInfo, order: int) -> Clocks:
    source = nvml.NvmlLoad(info, order)
    try:
        library: Any = import_module("pynvml")
        cores = library.NVML_CLOCK_SM
        try:
            return Clocks(
                int(library.nvmlDeviceGetClockInfo(source.device, cores)),
                int(library.nvmlDeviceGetMaxClockInfo(source.device, cores)),
                int(library.nvmlDeviceGetClockInfo(source.device, library.NVML_CLOCK_MEM)),
                "NVML",
            )
        except library.NVMLError as error:
            raise SourceError(f"nvmlDeviceGetClockInfo: {error}") from error
    finally:
        source.close()


def _run_smi() -> str:
    try:
        return subprocess.run(SMI, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(f"nvidia-smi: {error}") from error


def _smi(info: AdapterInfo, order: int, text: Text) -> Clocks:
    rows = [[cell.strip() for cell in line.split(",")] for line in text().splitlines()]
    fitting = [row for row in rows if len(row) == 4 and row[0] == info.name]
    if order >= len(fitting):
        raise SourceError(f"nvidia-smi has no {info.name} (number {order})")
    core, most, memory = (int(cell) if cell.isdecimal() else 0 for cell in fitting[order][1:])
    return Clocks(core, most, memory, "nvidia-smi")


def _amdgpu(info: AdapterInfo, order: int, root: Path) -> Clocks:
    """Lines like `1: 1500Mhz *`, the present one starred. Source: Documentation/gpu/amdgpu/thermal.rst, "pp_dpm_*"."""
    card = find_card(info, root, order, ("amdgpu",))
    cores, memory = (
        re.findall(r"(\d+)Mhz( \*)?", read_text(card.path / f"pp_dpm_{what}")) for what in ("sclk", "mclk")
    )
    now, memory_now = (next((int(mhz) for mhz, star in clock if star), 0) for clock in (cores, memory))
    if not now:
        raise SourceError(f"{card.path / 'pp_dpm_sclk'}: no present clock")
    return Clocks(now, max(int(mhz) for mhz, _ in cores), memory_now, "amdgpu")


def _i915(info: AdapterInfo, order: int, root: Path) -> Clocks:
    """Source: i915_sysfs.c, attributes of the card: `gt_act_freq_mhz`, `gt_RP0_freq_mhz`."""
    card = find_card(info, root, order, ("i915",)).path.parent
    now, most = (_mhz(card / name) for name in ("gt_act_freq_mhz", "gt_RP0_freq_mhz"))
    return Clocks(now, most, 0, "i915")


def _mhz(path: Path) -> int:
    text = read_text(path).strip()
    if not text.isdecimal():
        raise SourceError(f"{path}: got {text[:40]!r}, expected a number")
    return int(text)
