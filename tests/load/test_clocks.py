"""Who tells an adapter's clocks, and what is done where nobody does."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.load.clocks import Clocks, read_clocks
from ort_gpu_ep.load.source import SourceError

SMI = "Big GPU, 345, 1980, 2619\nBig GPU, 1980, 1980, 2619\nSmall GPU, [N/A], 100, 5\n"


def adapter(vendor_id: int, name: str = "Big GPU", kind: str = "discrete") -> AdapterInfo:
    return AdapterInfo(0, name, kind, "Vulkan", "1.2", vendor_id, 0x2330)


class Nvml:
    """What is used of pynvml."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    class NVMLError(Exception):
        """As pynvml's."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: {
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetName": "Big GPU",
            "nvmlDeviceGetProcessUtilization": [],
            "nvmlDeviceGetPciInfo": SimpleNamespace(pciDeviceId=0x2330 << 16 | 0x10DE, busId="00:1"),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=1),
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetClockInfo": 1500 if arguments[1:] == (1,) else 2619,
        }.get(name)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


def test_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    found = read_clocks(adapter(0x10DE))
    assert found == Clocks(1500, 1980, 2619, "NVML")
    assert str(found) == "cores 1500 of 1980 MHz, memory 2619 MHz (NVML)"


def test_nvidia_smi_where_there_is_no_library(nobody: None) -> None:
    assert read_clocks(adapter(0x10DE), 1, smi=lambda: SMI) == Clocks(1980, 1980, 2619, "nvidia-smi")
    assert read_clocks(adapter(0x10DE, "Small GPU"), smi=lambda: SMI) == Clocks(0, 100, 5, "nvidia-smi")
    assert read_clocks(adapter(0x10DE), 2, smi=lambda: SMI) is None


def test_nobody_knows(nobody: None) -> None:
    def fail() -> str:
        raise SourceError("a test")

    assert read_clocks(adapter(0x10DE), smi=fail) is None
    assert read_clocks(adapter(0x5143)) is None
    assert read_clocks(adapter(0x10DE, kind="software"), smi=lambda: SMI) is None


def card(root: Path, driver: str, vendor: int, files: dict[str, str]) -> Path:
    device = root / "sys/class/drm/card0/device"
    device.mkdir(parents=True)
    (device / "uevent").write_text(f"DRIVER={driver}\nPCI_SLOT_NAME=0000:03:00.0\n")
    (device / "vendor").write_text(hex(vendor))
    (device / "device").write_text("0x2330")
    for name, text in files.items():
        (device / name).write_text(text)
    return root


def test_amdgpu(tmp_path: Path) -> None:
    root = card(
        tmp_path,
        "amdgpu",
        0x1002,
        {"pp_dpm_sclk": "0: 500Mhz\n1: 1500Mhz *\n2: 2100Mhz\n", "pp_dpm_mclk": "0: 96Mhz *\n"},
    )
    assert read_clocks(adapter(0x1002), root=root) == Clocks(1500, 2100, 96, "amdgpu")
    (root / "sys/class/drm/card0/device/pp_dpm_sclk").write_text("")
    assert read_clocks(adapter(0x1002), root=root) is None


def test_i915(tmp_path: Path) -> None:
    root = card(tmp_path, "i915", 0x8086, {"../gt_act_freq_mhz": "350\n", "../gt_RP0_freq_mhz": "1450\n"})
    assert read_clocks(adapter(0x8086), root=root) == Clocks(350, 1450, 0, "i915")
