"""Each source reads what its kernel or library says, from fake trees; what is absent or unreadable is said with path
and reason."""

from __future__ import annotations

import os
import plistlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.load import choose, fdinfo
from ort_gpu_ep.load.busy_files import COUNTERS, BusyFile, open_busy_file
from ort_gpu_ep.load.cpu import CpuLoad
from ort_gpu_ep.load.drm import find_card
from ort_gpu_ep.load.fdinfo import busy, open_fdinfo, parse
from ort_gpu_ep.load.macos import IoregLoad
from ort_gpu_ep.load.nvml import NvmlLoad
from ort_gpu_ep.load.probe import DispatchProbe
from ort_gpu_ep.load.source import SourceError
from ort_gpu_ep.processes import known as processes
from tests.patience import Clock

SLOT = "0000:03:00.0"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time between two readings."""
    return Clock(monkeypatch, fdinfo)


def adapter(
    vendor: int, device: int = 0x73BF, name: str = "a GPU", kind: str = "discrete", index: int = 0
) -> AdapterInfo:
    return AdapterInfo(index, name, kind, "Vulkan", "driver", vendor, device)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def card(root: Path, number: int, vendor: int, device: int, slot: str, driver: str) -> Path:
    folder = root / f"sys/class/drm/card{number}/device"
    write(folder / "vendor", f"{vendor:#06x}\n")
    write(folder / "device", f"{device:#06x}\n")
    write(folder / "uevent", f"DRIVER={driver}\nPCI_SLOT_NAME={slot}\n")
    (root / f"sys/class/drm/card{number}-DP-1").mkdir()
    return folder


def client(root: Path, pid: int, descriptor: int, **lines: str) -> Path:
    """A DRM client of a process; underscores in names stand for hyphens."""
    link = root / f"proc/{pid}/fd/{descriptor}"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to("/dev/dri/renderD128")
    text = "".join(f"drm-{name.replace('_', '-')}:\t{value}\n" for name, value in lines.items())
    return write(root / f"proc/{pid}/fdinfo/{descriptor}", "pos:\t0\nflags:\t02\n" + text)


# ---- cards


def test_equal_cards_are_told_apart_by_their_order(tmp_path: Path) -> None:
    for number, slot in enumerate(("0000:83:00.0", SLOT)):
        card(tmp_path, number, 0x1002, 0x73BF, slot, "amdgpu")
    card(tmp_path, 2, 0x8086, 0x1234, "0000:00:02.0", "i915")
    info = adapter(0x1002)
    assert [find_card(info, tmp_path, order).slot for order in (0, 1)] == [SLOT, "0000:83:00.0"]
    with pytest.raises(
        SourceError, match=r"no card 0x1002:0x73bf \(number 2\); there are: .*0000:00:02.0 \(0x8086:0x1234, i915\)"
    ):
        find_card(info, tmp_path, 2)
    with pytest.raises(SourceError, match="sys/class/drm: no such folder"):
        find_card(info, tmp_path / "nowhere")


def opened(name: str, vendor: int, root: Path) -> BusyFile:
    (counter,) = (c for c in COUNTERS if c.name == name)
    assert counter.vendor_id == vendor
    return open_busy_file(counter, adapter(vendor), root)


def open_amdgpu(root: Path) -> BusyFile:
    return opened("amdgpu", 0x1002, root)


def open_kgsl(root: Path) -> BusyFile:
    return opened("kgsl", 0x5143, root)


def open_mali(root: Path) -> BusyFile:
    return opened("mali", 0x13B5, root)


MALI_FILES = tuple(pattern for counter in COUNTERS if counter.name == "mali" for pattern in counter.files)


# ---- amdgpu


def test_amdgpu_less_our_own(tmp_path: Path, clock: Clock) -> None:
    folder = card(tmp_path, 0, 0x1002, 0x73BF, SLOT, "amdgpu")
    write(folder / "gpu_busy_percent", "80\n")
    source = open_amdgpu(tmp_path)
    assert (source.read(), source.includes_own) == (0.8, True)
    lines = {"driver": "amdgpu", "pdev": SLOT, "client_id": "5"}
    client(tmp_path, os.getpid(), 7, **lines, engine_gfx="1000 ns", engine_dec="0 ns")
    source = open_amdgpu(tmp_path)
    source.read()
    clock.rest(0.2)
    client(tmp_path, os.getpid(), 7, **lines, engine_gfx=f"{1000 + 60_000_000} ns", engine_dec="900000000 ns")
    found = source.read()
    assert found is not None
    assert found == pytest.approx(0.8 - 0.06 / 0.2)  # video is not counted
    assert source.includes_own is False


def test_amdgpu_without_its_file(tmp_path: Path) -> None:
    card(tmp_path, 0, 0x1002, 0x73BF, SLOT, "amdgpu")
    with pytest.raises(SourceError, match="none of gpu_busy_percent"):
        open_amdgpu(tmp_path)
    write(tmp_path / "sys/class/drm/card0/device/gpu_busy_percent", "busy")
    with pytest.raises(SourceError, match="gpu_busy_percent: got 'busy', expected a number"):
        open_amdgpu(tmp_path)


# ---- fdinfo, i915, xe


def test_the_parts_of_a_client() -> None:
    text = (
        "drm-driver: i915\ndrm-pdev: 0000:03:00.0\ndrm-engine-render: {} ns\ndrm-engine-video: {} "
        "ns\ndrm-engine-capacity-video: 2\n"
    )
    before, now = parse(text.format(100, 5), SLOT), parse(text.format(350, 900), SLOT)
    assert before is not None
    assert now is not None
    assert busy(before, now, 1000) == 0.25
    assert parse(text, "0000:04:00.0") is None
    assert parse("pos: 0\n", SLOT) is None
    text = (
        "drm-driver: xe\ndrm-cycles-ccs: {}\ndrm-total-cycles-ccs: {}\ndrm-engine-capacity-ccs: 4\ndrm-cycles-vcs: "
        "{}\ndrm-total-cycles-vcs: {}\n"
    )
    before, now = parse(text.format(0, 100, 0, 100), SLOT), parse(text.format(200, 200, 100, 200), SLOT)
    assert before is not None
    assert now is not None
    assert busy(before, now, 1) == 0.5  # of four engines
    text = "drm-driver: panfrost\ndrm-engine-fragment: {} ns\ndrm-cycles-fragment: 999\n"  # cycles without a total
    before, now = parse(text.format(0), SLOT), parse(text.format(600), SLOT)
    assert before is not None
    assert now is not None
    assert busy(before, now, 1000) == 0.6


def intel(root: Path, driver: str, mine: int, others: int, clock: Clock) -> None:
    """Milliseconds of work of this process and of another one, whose descriptor is duplicated."""
    total = round(clock.now_s * 1e9)
    for pid, descriptor, number, work in ((os.getpid(), 3, 1, mine), (4242, 5, 2, others), (4242, 6, 2, others)):
        if driver == "i915":
            engines = {"engine_render": f"{work * 1_000_000} ns"}
        else:
            engines = {"cycles_rcs": f"{work * 1_000_000}", "total_cycles_rcs": str(total)}
        client(root, pid, descriptor, driver=driver, pdev=SLOT, client_id=str(number), **engines)


@pytest.mark.parametrize("driver", ["i915", "xe"])
def test_intel_without_our_own(driver: str, tmp_path: Path, clock: Clock) -> None:
    card(tmp_path, 0, 0x8086, 0x56A0, SLOT, driver)
    intel(tmp_path, driver, 0, 0, clock)
    source = open_fdinfo(adapter(0x8086, 0x56A0), tmp_path, 0, (driver,))
    clock.rest(0.2)
    intel(tmp_path, driver, 150, 100, clock)
    found = source.read()
    assert found is not None
    assert found == pytest.approx(0.1 / 0.2)
    assert source.includes_own is False
    # another card's
    client(tmp_path, 77, 4, driver=driver, pdev="0000:99:00.0", client_id="9", engine_render="0 ns")
    (tmp_path / "proc/4242/fdinfo/5").unlink()
    (tmp_path / "proc/4242/fdinfo/6").unlink()
    assert source.read() == 0.0


def test_a_new_process_is_found(tmp_path: Path, clock: Clock) -> None:
    card(tmp_path, 0, 0x8086, 0x56A0, SLOT, "i915")
    intel(tmp_path, "i915", 0, 0, clock)
    source = open_fdinfo(adapter(0x8086, 0x56A0), tmp_path, 0, ("i915",))
    for step in range(1, 30):
        clock.rest(0.01)
        client(tmp_path, 555, 3, driver="i915", pdev=SLOT, client_id="7", engine_render=f"{step * 1_000_000_000} ns")
        if source.read() == 1.0:
            break
    else:
        pytest.fail("not found in 30 readings")


def test_workers_are_ours(tmp_path: Path, clock: Clock) -> None:
    card(tmp_path, 0, 0x8086, 0x56A0, SLOT, "i915")
    intel(tmp_path, "i915", 0, 0, clock)
    source = open_fdinfo(adapter(0x8086, 0x56A0), tmp_path, 0, ("i915",))
    processes.count_as_own(4242)
    try:
        clock.rest(0.2)
        intel(tmp_path, "i915", 0, 100, clock)
        assert source.read() == 0.0
    finally:
        processes.forget(4242)
    clock.rest(0.2)
    intel(tmp_path, "i915", 0, 200, clock)
    assert source.read() == pytest.approx(0.5)


def test_a_driver_that_does_not_count(tmp_path: Path) -> None:
    card(tmp_path, 0, 0x8086, 0x56A0, SLOT, "i915")
    client(tmp_path, os.getpid(), 3, driver="i915", pdev=SLOT)
    with pytest.raises(SourceError, match=r"of 1 readable clients of the card 0000:03:00.0 none has drm-engine-\*"):
        open_fdinfo(adapter(0x8086, 0x56A0), tmp_path, 0, ("i915",))
    with pytest.raises(SourceError, match="no card 0x8086:0x56a0 with driver xe"):
        open_fdinfo(adapter(0x8086, 0x56A0), tmp_path, 0, ("xe",))


# ---- phones


def test_kgsl(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/kgsl/kgsl-3d0"
    with pytest.raises(SourceError, match=r"none of .*/gpubusy, .*/gpu_busy_percentage"):
        open_kgsl(tmp_path)
    write(folder / "gpu_busy_percentage", "37 %\n")
    assert open_kgsl(tmp_path).read() == 0.37
    write(folder / "gpubusy", " 250000 1000000\n")
    source = open_kgsl(tmp_path)
    assert source.read() == 0.25
    write(folder / "gpubusy", "0 0\n")
    assert source.read() == 0.0
    write(folder / "gpubusy", "much\n")
    with pytest.raises(SourceError, match="got 'much', expected two numbers"):
        source.read()


@pytest.mark.parametrize("pattern", MALI_FILES)
def test_mali(pattern: str, tmp_path: Path) -> None:
    write(tmp_path / pattern.replace("*", "13000000"), "42%\n")
    assert open_mali(tmp_path).read() == 0.42


def test_no_mali(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="none of sys/class/misc/mali0"):
        open_mali(tmp_path)
    write(tmp_path / MALI_FILES[0], "")
    with pytest.raises(SourceError, match="utilization: got '', expected a number"):
        open_mali(tmp_path)


# ---- macOS


def registry(*entries: dict[str, Any]) -> Callable[[], bytes]:
    return lambda: plistlib.dumps(list(entries))


def test_ioreg() -> None:
    info = adapter(0x106B, name="Apple M2 Pro")
    mine = {
        "IOClass": "AGXAccelerator",
        "model": b"Apple M2 Pro\0",
        "PerformanceStatistics": {"Device Utilization %": 13},
    }
    other = {"model": "AMD Radeon Pro 560", "PerformanceStatistics": {"Device Utilization %": 99}}
    source = IoregLoad(info, registry(other, mine))
    assert source.read() == 0.13
    assert source.cost_s >= 0.0
    assert IoregLoad(adapter(0, name="?"), registry(mine)).read() == 0.13
    with pytest.raises(SourceError, match=r"2 accelerators, none with the model 'Intel'"):
        IoregLoad(adapter(0x8086, name="Intel"), registry(other, mine))
    with pytest.raises(SourceError, match="has no 'Device Utilization %'; it has Tiler"):
        IoregLoad(info, registry({"model": "Apple M2 Pro", "PerformanceStatistics": {"Tiler": 1}}))
    with pytest.raises(SourceError, match="no property list"):
        IoregLoad(info, lambda: b"garbage")
    with pytest.raises(SourceError, match="0 accelerators"):
        IoregLoad(info, lambda: b"")
    with pytest.raises(SourceError, match="ioreg -a -r"):
        IoregLoad(info)  # no such command here


# ---- NVML


class FakeNvml:
    """The part of pynvml that is used."""

    class NVMLError(Exception):
        pass

    def __init__(self, *devices: tuple[str, int, int], driver: bool = True) -> None:
        self.devices, self.driver, self.samples, self.fails, self.open = devices, driver, [], "", 0
        self.samples: list[Any]

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, device: int) -> bytes:
        return self.devices[device][0].encode()

    def nvmlDeviceGetPciInfo(self, device: int) -> Any:
        return SimpleNamespace(pciDeviceId=self.devices[device][1], busId=f"00000000:{device:02X}:00.0".encode())

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:
        if self.fails:
            raise self.NVMLError(self.fails)
        return SimpleNamespace(gpu=self.devices[device][2], memory=0)

    def nvmlDeviceGetProcessUtilization(self, device: int, since: int) -> list[Any]:
        found = [s for s in self.samples if s.timeStamp > since]
        if not found:
            raise self.NVMLError("Not Found")
        return found


H200 = ("NVIDIA H200", 0x233510DE, 90)


def test_nvml_picks_the_device() -> None:
    library = FakeNvml(("NVIDIA T4", 0x1EB810DE, 5), H200, ("NVIDIA H200", 0x233510DE, 20))
    info = adapter(0x10DE, 0x2335, "NVIDIA H200")
    for order, value in ((0, 0.9), (1, 0.2)):
        source = NvmlLoad(info, order, library)
        assert source.read() == value
        assert source.name == f"NVML 00000000:{order + 1:02X}:00.0"
        source.close()
    assert NvmlLoad(adapter(0x10DE, 0x9999, "NVIDIA T4"), 0, library).read() == 0.05  # by name
    with pytest.raises(SourceError, match=r"no device NVIDIA H200 .*number 2\); it has: NVIDIA T4, NVIDIA H200"):
        NvmlLoad(info, 2, library)
    assert library.open == 1


def test_nvml_less_our_own() -> None:
    library, now = FakeNvml(H200), [0.0]
    source = NvmlLoad(adapter(0x10DE, 0x2335), library=library, own=lambda: frozenset({7}), clock=lambda: now[0])
    assert (source.read(), source.includes_own) == (0.9, True)
    library.samples = [
        SimpleNamespace(pid=7, timeStamp=20, smUtil=60),
        SimpleNamespace(pid=8, timeStamp=20, smUtil=30),
        SimpleNamespace(pid=7, timeStamp=10, smUtil=99),
    ]
    assert source.read() == pytest.approx(0.3)
    assert source.includes_own is False
    now[0] = 0.5
    assert source.read() == pytest.approx(0.3)  # no new sample yet
    now[0] = 1.5
    assert source.read() == pytest.approx(0.9)  # we have done nothing for a second


def test_nvml_that_fails() -> None:
    with pytest.raises(SourceError, match="nvmlInit: Driver Not Loaded"):
        NvmlLoad(adapter(0x10DE), library=FakeNvml(H200, driver=False))
    library = FakeNvml(H200)
    source = NvmlLoad(adapter(0x10DE, 0x2335), library=library)
    library.fails = "GPU is lost"
    with pytest.raises(SourceError, match="nvmlDeviceGetUtilizationRates: GPU is lost"):
        source.read()


def test_nvml_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(SourceError, match="pip install nvidia-ml-py"):
        NvmlLoad(adapter(0x10DE))


# ---- the probe


def test_the_probe_compares_with_its_idle_time() -> None:
    took = [0.002]
    source = DispatchProbe(lambda: took[0])
    assert source.read() == 0.0
    took[0] = 0.004
    assert source.read() == 0.5
    took[0] = 0.001  # the first baseline was taken on a busy GPU
    assert source.read() == 0.0
    took[0] = 0.004
    assert source.read() == 0.75

    def lost() -> float:
        raise OSError("device lost")

    with pytest.raises(SourceError, match=r"timed dispatch: OSError\('device lost'\)"):
        DispatchProbe(lost)


# ---- which one


@pytest.mark.parametrize(
    ("vendor", "platform", "names"),
    [
        (0x10DE, "linux", ["NVML"]),
        (0x10DE, "win32", ["NVML"]),
        (0x1002, "linux", ["amdgpu", "fdinfo"]),
        (0x8086, "linux", ["xe", "i915"]),
        (0x5143, "linux", ["kgsl", "fdinfo"]),
        (0x13B5, "android", ["mali", "fdinfo"]),
        (0x106B, "darwin", ["IOKit"]),
        (0x1002, "win32", ["system counters"]),
        (0x14E4, "linux", ["fdinfo"]),
    ],
)
def test_the_adapter_decides(vendor: int, platform: str, names: list[str]) -> None:
    assert [name for name, _ in choose.openers(adapter(vendor), platform=platform)] == names


def test_what_is_absent_is_said_and_then_the_probe(tmp_path: Path) -> None:
    sources = choose.openers(adapter(0x1002), root=tmp_path, platform="linux")
    source, notes = choose.find_source(sources, lambda: 0.001)
    assert isinstance(source, DispatchProbe)
    assert [n.split(":")[0] for n in notes] == ["amdgpu", "fdinfo"]
    assert all(str(tmp_path / "sys/class/drm") in n for n in notes)
    assert choose.find_source([("kgsl", lambda: source), ("fdinfo", lambda: source)])[1][0].startswith(
        "kgsl: experimental"
    )
    assert choose.find_source([("NVML", lambda: source)])[1] == ()
    source, notes = choose.find_source(sources)
    assert source is None
    assert "no source is left" in notes[-1]
    source, notes = choose.find_source(choose.openers(adapter(0x1002), platform="win32"))
    assert (source, notes[0]) == (None, "system counters: win32: no counters of this system are read")


def test_a_sampler_for_each_adapter(tmp_path: Path) -> None:
    software = adapter(0x10005, kind="software", index=70)
    sampler = choose.open_sampler(software)
    assert sampler is not None
    assert sampler is choose.open_sampler(software)
    assert sampler.software
    assert choose.open_sampler(software, "off") is None
    told = choose.open_sampler(software, f"file:{write(tmp_path / 'load', '0.7')}")
    assert told is not None
    told.sample()
    assert (told.latest.gpu, told.latest.cpu) == (0.7, 0.7)
    with pytest.raises(ConfigError, match=r"option load='file:/nowhere': /nowhere: No such file"):
        choose.open_sampler(software, "file:/nowhere")
    with pytest.raises(ConfigError, match="option load: got 'on', expected auto, off or file:PATH"):
        choose.open_sampler(software, "on")


def test_a_line_of_proc_stat_that_the_read_cuts_is_not_read(tmp_path: Path) -> None:
    """The 256 bytes that are read end behind the name of a core's line, which then looks like the line of all cores."""
    (tmp_path / "proc").mkdir()
    head = "cpu  100 0 100 800 0 0 0 0 0 0\n"
    text = head + "x" * (256 - len(head) - len("\ncpu")) + "\ncpu7 1 1 1 1 1 1 1 1 0 0\n"
    assert text[:256].endswith("\ncpu")
    (tmp_path / "proc/stat").write_text(text)
    load = CpuLoad(tmp_path, lambda: 0.0)
    assert load._times() == (200 * load._tick_s, 1000 * load._tick_s)
