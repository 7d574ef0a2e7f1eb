"""Finds DirectX's newer shader compiler, DXC. Windows includes only the older FXC, without float16, 64-bit integers and
subgroups."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

FILE = "dxcompiler.dll"
LOST = (
    f"Its shaders are compiled by FXC, without float16, 64-bit integers and subgroups, since {FILE} was not found: "
    f"put that of "
    "https://github.com/microsoft/DirectXShaderCompiler/releases into a folder of PATH."
)
"""What an adapter of DirectX lacks where DXC is not found."""


def path() -> str:
    """Where DXC is: beside wgpu-native, as its own tool puts it there, or in a folder of PATH. Empty where it is not
    found, or not used."""
    if sys.platform != "win32":
        return ""
    wgpu = find_spec("wgpu")
    beside = [
        Path(folder) / "resources" for folder in (wgpu.submodule_search_locations or () if wgpu is not None else ())
    ]
    folders = [*beside, *(Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder)]
    return next((str(folder / FILE) for folder in folders if (folder / FILE).is_file()), "")


def lost(backend: str) -> str:
    """What an adapter of this backend lacks for want of DXC, and how to get it; empty where nothing."""
    return LOST if backend == "D3D12" and not path() else ""
