"""Why there is no adapter, on made-up systems: the cause as it is named, and the remedy for that system."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from ort_gpu_ep.webgpu.missing import no_adapter, no_driver

LIB = f"usr/lib/{platform.machine()}-linux-gnu"
LOADER, GLX, ICD = f"{LIB}/libvulkan.so.1", f"{LIB}/libGLX_nvidia.so.0", "usr/share/vulkan/icd.d/nvidia_icd.json"
X = (f"{LIB}/libX11.so.6", f"{LIB}/libXext.so.6")
NVIDIA, RENDER = "dev/nvidia0", "dev/dri/renderD128"
UBUNTU, FEDORA = "ID=ubuntu\nID_LIKE=debian\n", 'ID="fedora"\n'


def said(
    root: Path, files: tuple[str, ...], release: str = UBUNTU, closed: tuple[str, ...] = (), **environment: str
) -> str:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("")
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc" / "os-release").write_text(release)
    return no_adapter(environment, root, lambda path: path.name not in closed)


@pytest.mark.parametrize(
    ("files", "release", "environment", "cause", "remedy"),
    [
        (
            (NVIDIA,),
            UBUNTU,
            {},
            "the Vulkan loader (libvulkan.so.1) is not installed",
            "apt-get install libvulkan1. Or",
        ),
        ((RENDER,), FEDORA, {}, "the Vulkan loader", "dnf install vulkan-loader mesa-vulkan-drivers"),
        (
            (NVIDIA, LOADER, ".dockerenv"),
            UBUNTU,
            {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"},
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility keeps its Vulkan driver out of the container",
            "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics",
        ),
        ((NVIDIA, LOADER, "run/.containerenv"), UBUNTU, {}, "NVIDIA_DRIVER_CAPABILITIES=(unset)", "graphics"),
        (
            (NVIDIA, LOADER, ".dockerenv"),
            UBUNTU,
            {"NVIDIA_DRIVER_CAPABILITIES": "all"},
            "not its Vulkan driver (libGLX_nvidia.so.0)",
            "on the host",
        ),
        (
            (NVIDIA, LOADER),
            UBUNTU,
            {},
            "not its Vulkan driver (libGLX_nvidia.so.0), as after an installation for computing alone",
            "libnvidia-gl-XXX",
        ),
        (
            (NVIDIA, LOADER, GLX),
            UBUNTU,
            {},
            "no manifest of it in the loader's folders",
            "> /etc/vulkan/icd.d/nvidia_icd.json",
        ),
        (
            (NVIDIA, LOADER, GLX, ICD),
            UBUNTU,
            {},
            "can't be loaded without libX11.so.6 and libXext.so.6",
            "apt-get install libx11-6 libxext6",
        ),
        ((NVIDIA, LOADER, GLX, ICD, *X), UBUNTU, {}, "which offers no device", "nvidia-smi"),
        (
            (RENDER, LOADER),
            UBUNTU,
            {},
            "there is a GPU (renderD128), but no Vulkan driver for it",
            "apt-get install mesa-vulkan-drivers",
        ),
        (
            (RENDER, LOADER, "usr/share/vulkan/icd.d/old.json"),
            UBUNTU,
            {},
            "(old.json) offer no device that can compute",
            "vulkaninfo --summary",
        ),
        (("dev/dxg", LOADER), UBUNTU, {}, "this is WSL2", "run in Windows itself"),
        ((LOADER,), UBUNTU, {}, "no GPU is visible", "apt-get install mesa-vulkan-drivers"),
        ((LOADER, ".dockerenv"), "", {}, "no GPU is visible", "--gpus all (NVIDIA) or --device /dev/dri"),
        (
            (RENDER, LOADER),
            UBUNTU,
            {"VK_DRIVER_FILES": "/none.json"},
            "VK_DRIVER_FILES=/none.json names no driver that exists",
            "Unset VK_DRIVER_FILES",
        ),
    ],
)
def test_the_cause_is_named_with_its_remedy(
    files: tuple[str, ...],
    release: str,
    environment: Mapping[str, str],
    cause: str,
    remedy: str,
    tmp_path: Path,
) -> None:
    text = said(tmp_path, files, release, **environment)
    assert text.startswith("no GPU adapter: ")
    assert cause in text
    assert remedy in text
    assert text.endswith("Or use placement=cpu.")


@pytest.mark.parametrize("container", [False, True])
def test_a_user_outside_of_the_group(container: bool, tmp_path: Path) -> None:
    text = said(tmp_path, (RENDER, LOADER, *((".dockerenv",) if container else ())), closed=("renderD128",))
    assert "this user may not open it: its group is " in text
    assert ("--group-add " if container else "sudo usermod -aG ") in text


def test_the_version_of_the_kernel_module_names_the_package(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24\n"
    )
    assert "libnvidia-gl-535" in said(tmp_path, (NVIDIA, LOADER))


def test_the_manifest_of_the_remedy_is_one(tmp_path: Path) -> None:
    """Once it is written, the next cause is another one."""
    text = said(tmp_path, (NVIDIA, LOADER, GLX, *X))
    manifest = re.search(r"echo '(.*)'", text)
    assert manifest is not None
    assert json.loads(manifest[1])["ICD"]["library_path"] == "libGLX_nvidia.so.0"
    (tmp_path / "etc/vulkan/icd.d").mkdir(parents=True)
    (tmp_path / "etc/vulkan/icd.d/nvidia_icd.json").write_text(manifest[1])
    assert "offers no device" in said(tmp_path, ())


def test_files_tell_that_there_is_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a manifest, or a loader that searches elsewhere, that only a look can tell."""
    monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))
    assert "no GPU is visible" in no_driver({}, _made(tmp_path / "none", LOADER))
    assert no_driver({}, _made(tmp_path / "one", LOADER, ICD)) == ""
    (tmp_path / "prefix" / "lib").mkdir(parents=True)
    (tmp_path / "prefix" / "lib" / "libvulkan.so.1").touch()
    assert no_driver({}, _made(tmp_path / "none", LOADER)) == ""


def _made(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root
