"""Why there is no Vulkan adapter: the cause as files and devices show it, and the remedy for this system."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ort_gpu_ep.webgpu.loader_paths import ROOT, library, manifests, only_named

_PACKAGES = {
    "debian": ("apt-get install", {"loader": "libvulkan1", "mesa": "mesa-vulkan-drivers", "x": "libx11-6 libxext6"}),
    "fedora": ("dnf install", {"loader": "vulkan-loader", "mesa": "mesa-vulkan-drivers", "x": "libX11 libXext"}),
    "arch": ("pacman -S", {"loader": "vulkan-icd-loader", "mesa": "vulkan-radeon vulkan-intel", "x": "libx11 libxext"}),
    "suse": (
        "zypper install",
        {"loader": "libvulkan1", "mesa": "libvulkan_radeon libvulkan_intel", "x": "libX11-6 libXext6"},
    ),
    "alpine": (
        "apk add",
        {"loader": "vulkan-loader", "mesa": "mesa-vulkan-ati mesa-vulkan-intel", "x": "libx11 libxext"},
    ),
}
"""Family of distributions -> how packages are installed, and their names."""

_WORDS = {"loader": "the Vulkan loader", "mesa": "Mesa's Vulkan drivers", "x": "libX11 and libXext"}
"""What they are called where the distribution is not known."""

_NVIDIA_ICD = '{"file_format_version":"1.0.0","ICD":{"library_path":"libGLX_nvidia.so.0","api_version":"1.3"}}'
_INSTEAD = "Or use placement=cpu."


def no_adapter(environment: Mapping[str, str], root: Path = ROOT, may_use: Callable[[Path], bool] | None = None) -> str:
    """One text: what is the matter, and what to do. may_use: whether this user may open a device, as os.access tells by
    default."""
    if root == ROOT and platform.system() != "Linux":
        return (
            "no GPU adapter: got no Vulkan, Metal or DX12 adapter, expected at least one. Install the driver of the "
            "GPU's maker. "
            f"{_INSTEAD}"
        )
    system = _System(environment, root, may_use or (lambda path: os.access(path, os.R_OK | os.W_OK)))
    cause, remedy = system.cause()
    return f"no GPU adapter: {cause}. {remedy} {_INSTEAD}"


def no_driver(environment: Mapping[str, str], root: Path = ROOT) -> str:
    """The text of `no_adapter` where files alone tell that there is no Vulkan driver; empty where only a look at the
    adapters can tell.

    A loader in Python's own folder (conda's) searches folders of its own.
    """
    if root == ROOT and platform.system() != "Linux":
        return ""
    if (
        any(path.exists() for path in manifests(environment, root))
        or (Path(sys.prefix) / "lib" / "libvulkan.so.1").exists()
    ):
        return ""
    return no_adapter(environment, root)


class _System:
    """What can be seen of a system without loading a driver."""

    def __init__(self, environment: Mapping[str, str], root: Path, may_use: Callable[[Path], bool]) -> None:
        self.environment, self.root, self.may_use = environment, root, may_use
        self.is_container = (
            any((root / path).exists() for path in (".dockerenv", "run/.containerenv")) or "container" in environment
        )
        self.nvidia = sorted([*(root / "dev").glob("nvidia[0-9]*"), *(root / "dev").glob("nvidiactl")])
        self.render = sorted((root / "dev" / "dri").glob("renderD*"))

    def cause(self) -> tuple[str, str]:
        """(what is the matter, the remedy), the first that is seen."""
        name, value = only_named(self.environment)
        files = [path for path in manifests(self.environment, self.root) if path.exists()]
        if name and not files:
            return (
                f"{name}={value} names no driver that exists, and replaces the search for them",
                f"Unset {name}, or name a driver's .json.",
            )
        if not library("libvulkan.so.1", self.environment, self.root):
            return "the Vulkan loader (libvulkan.so.1) is not installed", self._install("loader", "mesa")
        if self.nvidia:
            return self._of_nvidia(files)
        closed = [path for path in self.render if not self.may_use(path)]
        if closed:
            return self._of_closed(closed[0])
        if (self.root / "dev" / "dxg").exists():
            return (
                "this is WSL2, whose GPU (/dev/dxg) needs a Vulkan driver of Mesa's called dzn, which not every "
                "distribution builds",
                f"{self._install('mesa')} If no dzn_icd.json comes with it, run in Windows itself.",
            )
        if self.render and not files:
            return f"there is a GPU ({self.render[0].name}), but no Vulkan driver for it", self._install("mesa")
        if self.render:
            names = ", ".join(path.name for path in files)
            return (
                f"the drivers that are installed ({names}) offer no device that can compute",
                "Update them; `vulkaninfo --summary` shows what they offer.",
            )
        visible = (
            "give the container a GPU: --gpus all (NVIDIA) or --device /dev/dri (AMD, Intel)"
            if self.is_container
            else ("load the GPU's kernel driver")
        )
        return (
            "no GPU is visible (/dev/nvidia*, /dev/dri/renderD*), and no software driver is installed",
            f"If there is one, {visible}. Without one, Mesa's software driver: {self._install('mesa')}",
        )

    def _of_nvidia(self, found: list[Path]) -> tuple[str, str]:
        here = f"an NVIDIA GPU is there ({self.nvidia[0].name})"
        if not library("libGLX_nvidia.so.0", self.environment, self.root):
            capabilities = self.environment.get("NVIDIA_DRIVER_CAPABILITIES", "")
            if self.is_container and not {"all", "graphics"} & set(capabilities.split(",")):
                return (
                    f"{here}, but NVIDIA_DRIVER_CAPABILITIES={capabilities or '(unset)'} keeps its Vulkan driver "
                    f"out of the container",
                    "Start it with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics.",
                )
            return (
                f"{here}, but not its Vulkan driver (libGLX_nvidia.so.0), as after an installation for computing alone",
                f"Install {self._nvidia_package()} {'on the host' if self.is_container else ''}".rstrip() + ".",
            )
        if not any("nvidia" in path.name.lower() or "libGLX_nvidia" in _text(path) for path in found):
            return (
                f"{here} with its Vulkan driver, but no manifest of it in the loader's folders",
                f"As root: mkdir -p /etc/vulkan/icd.d && echo '{_NVIDIA_ICD}' > /etc/vulkan/icd.d/nvidia_icd.json",
            )
        missing = [name for name in ("libX11.so.6", "libXext.so.6") if not library(name, self.environment, self.root)]
        if missing:
            return (
                f"{here} with its Vulkan driver, which can't be loaded without {' and '.join(missing)}",
                self._install("x"),
            )
        closed = [path for path in self.nvidia if not self.may_use(path)]
        if closed:
            return (
                f"{here}, but this user may not open /dev/{closed[0].name}",
                "Change its permissions, or run as a user who may.",
            )
        return (
            f"{here} with its Vulkan driver, which offers no device",
            "Compare the versions of driver and kernel module (`nvidia-smi`); restart after an update.",
        )

    def _nvidia_package(self) -> str:
        """By the kernel module's version."""
        version = re.search(r"\b(\d{3})\.\d+", _text(self.root / "proc" / "driver" / "nvidia" / "version"))
        major = version[1] if version else "XXX"
        family = self._family()
        if family == "debian":
            return f"libnvidia-gl-{major} (Ubuntu) or nvidia-vulkan-icd (Debian)"
        return "the driver's graphics libraries (nvidia-utils, nvidia-driver-libs)"

    def _of_closed(self, path: Path) -> tuple[str, str]:
        group = _group(path)
        remedy = (
            f"Start it with --group-add {path.stat().st_gid}"
            if self.is_container
            else f"sudo usermod -aG {group} $USER, then log in again"
        )
        return f"there is a GPU ({path.name}), but this user may not open it: its group is {group}", f"{remedy}."

    def _family(self) -> str:
        text = _text(self.root / "etc" / "os-release").lower()
        ids = " ".join(re.findall(r'^id(?:_like)?="?([^"\n]*)', text, re.MULTILINE))
        named = {
            "debian": ("debian", "ubuntu"),
            "fedora": ("fedora", "rhel", "centos", "amzn"),
            "arch": ("arch",),
            "suse": ("suse",),
            "alpine": ("alpine",),
        }
        return next((family for family, names in named.items() if any(name in ids for name in names)), "")

    def _install(self, *parts: str) -> str:
        command, packages = _PACKAGES.get(self._family(), ("", {}))
        if self.nvidia:
            parts = tuple(part for part in parts if part != "mesa")
        if not command:
            return f"Install {' and '.join(_WORDS[part] for part in parts)}."
        return f"{command} {' '.join(packages[part] for part in parts)}."


def _text(path: Path) -> str:
    """Empty for a file that can't be read: then it shows nothing."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _group(path: Path) -> str:
    number = path.stat().st_gid
    if sys.platform == "win32":
        return str(number)
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
