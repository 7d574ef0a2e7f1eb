"""Quirk files: who they are for, and what is said about a broken one."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import AdapterInfo
from ort_gpu_ep.device.driver_version import version_of
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.health import open_adapter
from ort_gpu_ep.health import quirks as quirks_module
from ort_gpu_ep.health.quirks import load, parse, reasons, shipped

INFO = AdapterInfo(
    0,
    "Graphics 630",
    "integrated",
    "Vulkan",
    "Mesa 23.1.9 (LLVM 15.0.6)",
    0x8086,
    0x5912,
    family="Intel open-source Mesa driver",
)
ENTRY: dict[str, Any] = {
    "what": "rows come out wrong",
    "disables": ["softmax.wgsl"],
    "bug": "https://example.org/1",
    "probe": "softmax",
}


def one(**more: Any) -> bool:
    (quirk,) = parse(json.dumps([{**ENTRY, **more}]), "f")
    return quirk.fits(INFO)


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        ({}, True),
        ({"vendor": "0x8086"}, True),
        ({"vendor": "0x10de"}, False),
        ({"device": "5912"}, True),
        ({"device": "5913"}, False),
        ({"backend": "Metal"}, False),
        ({"driver": ">=23.1,<23.2"}, True),
        ({"driver": "<23.1.9"}, False),
        ({"driver": "<=23.1.9"}, True),
        ({"vendor": "0x8086", "driver": ">24"}, False),
        ({"device": "0x5900-0x5911, 5913"}, False),
        ({"device": "1, 0x5910-0x591f"}, True),
        ({"family": "intel open-source"}, True),
        ({"family": "radv"}, False),
        ({"system": "macOS <26.6.1"}, True),
        ({"system": "macOS"}, True),
        ({"system": "macOS <26.6"}, False),
        ({"system": "macOS >=26,<26.7"}, True),
        ({"system": "Linux"}, False),
        ({"system": "Windows <26.6.1"}, False),
    ],
)
def test_who_a_quirk_is_for(more: dict[str, str], fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quirks_module, "this_system", lambda: ("macOS", (26, 6, 0)))
    assert one(**more) is fits


@pytest.mark.parametrize(
    ("system", "told", "want"),
    [
        ("Darwin", "26.6.1", ("macOS", (26, 6, 1))),
        ("Windows", "10.0.26100", ("Windows", (10, 0, 26100))),
        ("Linux", "6.1.0-38-amd64", ("Linux", (6, 1, 0))),
        ("Linux", "unknown", ("Linux", ())),
    ],
)
def test_which_system_this_is(
    system: str, told: str, want: tuple[str, tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "mac_ver", lambda: (told if system == "Darwin" else "", ("", "", ""), ""))
    monkeypatch.setattr(platform, "version", lambda: told if system == "Windows" else "#1 SMP 5.5.5")
    monkeypatch.setattr(platform, "release", lambda: told if system == "Linux" else "25.6.0")
    assert quirks_module.this_system.__wrapped__() == want


@pytest.mark.parametrize(
    ("vendor", "text", "number", "want"),
    [
        (0x10005, "Mesa 22.3.6 (LLVM 15.0.6)", 1, (22, 3, 6)),
        (0x1002, "radv: Mesa 25.0.7-2", 0, (25, 0, 7)),
        (0x1002, "Mesa 26", 0, (26,)),
        (0x10DE, "580.159.04", 0x91278100, (580, 159, 4)),
        (0x10DE, "32.0.15.6094", 0, (560, 94)),
        (0x10DE, "D3D12 driver version 32.0.16.1074", 0, (610, 74)),
        (0x10DE, "", 580 << 22 | 159 << 14 | 4 << 6, (580, 159, 4, 0)),
        (0x10DE, str(580 << 22 | 159 << 14 | 4 << 6), 0, (580, 159, 4, 0)),
        (0x8086, "Intel driver", 101 << 14 | 5762, (101, 5762)),
        (0x8086, "31.0.101.5762", 0, (101, 5762)),
        (0x8086, "101.2111", 0, (101, 2111)),
        (0x13B5, "v1.r32p1-01eac0.2a893c04ca0026c2e6802dbe7d7af5c5", 32 << 22 | 1 << 12, (32, 1)),
        (0x13B5, "", 49 << 22 | 1 << 12, (49, 1, 0)),
        (
            0x5143,
            "Driver Build: 6c9f0ca2e9, I2e5a7c2d79, 1661417391\nDate: 08/25/22\nCompiler Version: EV031.36.08.11",
            512 << 22 | 842 << 12 | 19,
            (512, 842, 19),
        ),
        (0x5143, "Mesa 26.1.2", 7, (26, 1, 2)),
        (0x1002, "24.5.1 (LLPC)", 8, (24, 5, 1)),
        (0x144D, "", 25 << 22, (25, 0, 0)),
        (1, "no number", 0, ()),
        (0x5143, "Compiler Version: EV031.36.08.11", 0, ()),
    ],
)
def test_versions_of_all_makers(vendor: int, text: str, number: int, want: tuple[int, ...]) -> None:
    assert version_of(AdapterInfo(0, "a GPU", "discrete", "Vulkan", text, vendor, 1, driver_number=number)) == want


def test_an_unknown_version_fits_no_range() -> None:
    (quirk,) = parse(json.dumps([{**ENTRY, "driver": "<99"}]), "f")
    assert not quirk.fits(AdapterInfo(0, "x", "discrete", "Vulkan", "unknown", 1, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "line 1: got no list"),
        ('[\n{"what": 1}]', "line 2: got what 1; expected a str"),
        ('[\n{"what": "x",\n"vendr": "1"}]', "line 3: got key 'vendr'; expected one of what, vendor"),
        ("[\n" + json.dumps(ENTRY) + ",\n{,}]", "line 3: "),
        ("[\n\n{}]", "line 3: an entry without what, bug, disables or workarounds or probe"),
        (json.dumps([{**ENTRY, "system": "BeOS 5"}]), "got system 'BeOS'; expected one of Linux, macOS, Windows"),
        (json.dumps([{**ENTRY, "system": "macOS 26"}]), "got system '26'; expected comparisons"),
        (json.dumps([{**ENTRY, "device": "0x1-what"}]), "got device 'what'; expected a hexadecimal"),
        (json.dumps([{**ENTRY, "workarounds": {"sign_bits": "2"}}]), "got sign_bits '2'; expected '1'"),
        (
            json.dumps([{**ENTRY, "disables": ["softmx.wgsl"]}], indent=1),
            "line 5: got|line 4: got 'softmx.wgsl' in disables",
        ),
        (json.dumps([{**ENTRY, "probe": "sofmax"}]), "got probe 'sofmax'"),
        (json.dumps([{**ENTRY, "vendor": "intel"}]), "got vendor 'intel'; expected a hexadecimal"),
        (json.dumps([{**ENTRY, "driver": "535"}]), "got driver '535'; expected comparisons"),
        ("[" + json.dumps(ENTRY), "line 1: got no comma"),
        ("", "line 1: got no list"),
    ],
)
def test_errors_name_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load(str(tmp_path / "q.json"))
    assert "q.json" in str(caught.value)
    assert "No entry of this file is applied" in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json: can't be read"):
        load("nowhere.json")
    with pytest.raises(ConfigError, match=r"nowhere\.json"):
        open_adapter.open_gpu(Config(quirks="nowhere.json", health="off"))


def test_the_shipped_file_is_sound() -> None:
    text = (Path(quirks_module.__file__).parent / "quirks.json").read_text("utf-8")
    assert parse(text, "quirks.json") == shipped()
    assert all(q.bug.startswith("https://") for q in shipped())
    assert all(q.driver or q.system or q.family or q.vendor >= 0 for q in shipped())


RADV, MESA_INTEL, WINDOWS_INTEL = "radv", "Intel open-source Mesa driver", "Intel Corporation"


@pytest.mark.parametrize(
    ("system", "info", "want"),
    [
        (
            "Linux",
            AdapterInfo(
                0, "llvmpipe", "software", "Vulkan", "Mesa 22.3.6 (LLVM 15.0.6)", 0x10005, 0, family="llvmpipe"
            ),
            ["counted_subgroups"],
        ),
        (
            "Linux",
            AdapterInfo(0, "llvmpipe", "software", "Vulkan", "Mesa 26.2.6 (LLVM 21)", 0x10005, 0, family="llvmpipe"),
            [],
        ),
        (
            "Linux",
            AdapterInfo(0, "RX 7900", "discrete", "Vulkan", "Mesa 25.0.7-2", 0x1002, 0x744C, family=RADV),
            ["sign_bits"],
        ),
        (
            "Linux",
            AdapterInfo(0, "RX 6800", "discrete", "Vulkan", "Mesa 25.0.7-2", 0x1002, 0x73BF, family=RADV),
            ["sign_bits", "compile_alone"],
        ),
        ("Linux", AdapterInfo(0, "RX 6800", "discrete", "Vulkan", "Mesa 25.3.0", 0x1002, 0x73BF, family=RADV), []),
        ("Linux", AdapterInfo(0, "Arc", "discrete", "Vulkan", "Mesa 25.2.1", 0x8086, 0x56A0, family=MESA_INTEL), []),
        (
            "Linux",
            AdapterInfo(0, "Arc", "discrete", "Vulkan", "Mesa 25.0.7", 0x8086, 0x56A0, family=MESA_INTEL),
            ["matrix-units", "matrix-units-int8", "matrix-units-attention"],
        ),
        (
            "Windows",
            AdapterInfo(
                0,
                "UHD",
                "integrated",
                "Vulkan",
                "Intel driver",
                0x8086,
                1,
                family=WINDOWS_INTEL,
                driver_number=101 << 14 | 1994,
            ),
            ["adapter"],
        ),
        (
            "Windows",
            AdapterInfo(0, "Arc", "discrete", "Vulkan", "101.8600", 0x8086, 1, family=WINDOWS_INTEL),
            ["subgroup", "matrix-units", "matrix-units-int8", "matrix-units-attention"],
        ),
        ("Windows", AdapterInfo(0, "Arc", "discrete", "Vulkan", "101.8860", 0x8086, 1, family=WINDOWS_INTEL), []),
        ("Windows", AdapterInfo(0, "RTX", "discrete", "Vulkan", "580.88", 0x10DE, 1, family="NVIDIA"), []),
        ("Linux", AdapterInfo(0, "H200", "discrete", "Vulkan", "580.159.04", 0x10DE, 0x2335, family="NVIDIA"), []),
        (
            "Windows",
            AdapterInfo(
                0,
                "X1-85",
                "integrated",
                "Vulkan",
                "Driver Build: x",
                0x5143,
                1,
                family="Qualcomm Technologies Inc. Adreno Vulkan Driver",
                driver_number=512 << 22 | 842 << 12 | 19,
            ),
            ["subgroup", "matrix-units", "matrix-units-int8", "matrix-units-attention", "scalar_bounds"],
        ),
        (
            "Linux",
            AdapterInfo(
                0, "Adreno 730", "integrated", "Vulkan", "Mesa 26.2.6", 0x5143, 0x7030001, family="turnip Mesa driver"
            ),
            [],
        ),
        ("macOS", AdapterInfo(0, "Apple M3", "integrated", "Metal", "", 0, 0), ["opaque_divisors"]),
        (
            "macOS",
            AdapterInfo(0, "M3", "integrated", "Vulkan", "Mesa 26.2", 0x106B, 1, family="KosmicKrisp"),
            ["subgroup"],
        ),
        (
            "Windows",
            AdapterInfo(0, "UHD", "integrated", "D3D12", "31.0.101.5700", 0x8086, 0x4680),
            ["matrix-units", "matrix-units-int8", "matrix-units-attention"],
        ),
        ("Windows", AdapterInfo(0, "Arc", "discrete", "D3D12", "32.0.101.8980", 0x8086, 0x56A0), []),
        ("Linux", AdapterInfo(0, "T4", "discrete", "Vulkan", "580.88", 0x10DE, 0x1EB8), ["matrix-units-attention"]),
        (
            "Linux",
            AdapterInfo(0, "Xclipse", "integrated", "Vulkan", "", 0x144D, 1, driver_number=24 << 22),
            ["exchanged_stores", "compared_below_one"],
        ),
    ],
)
def test_what_is_done_on_which_adapter(
    system: str, info: AdapterInfo, want: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quirks_module, "this_system", lambda: (system, (26, 6, 0)))
    assert [
        *[what for what, _ in reasons(shipped(), info)],
        *[w.name for w in quirks_module.workarounds_for(shipped(), info)],
    ] == want


def test_reasons_name_the_bug() -> None:
    quirks = parse(json.dumps([ENTRY, {**ENTRY, "vendor": "0x1"}]), "f")
    assert reasons(quirks, INFO) == [("softmax.wgsl", "known fault: rows come out wrong (https://example.org/1)")]
