"""Finds the drivers that the Vulkan loader would load (manifest files and libraries), without loading them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ort_gpu_ep import store
from ort_gpu_ep.files import identity
from ort_gpu_ep.health.bundle import DRIVER_VARIABLES
from ort_gpu_ep.health.worker import DRILL
from ort_gpu_ep.webgpu import choice
from ort_gpu_ep.webgpu.loader_paths import in_folders, library, manifests

_VARIABLES = (*DRIVER_VARIABLES, "LD_LIBRARY_PATH", "DRI_PRIME", DRILL, "ORT_GPU_EP_WEBGPU_LIBRARY")
_CACHES = ("MESA_SHADER_CACHE_", "MESA_DISK_CACHE_", "MESA_GLSL_CACHE_")
"""Of these, what says where and how long drivers keep compiled kernels, and nothing about which drivers there are."""

_DEVICES = ("dri/*", "nvidia*", "kfd", "kgsl*", "mali*")


def fingerprint(environment: Mapping[str, str], driven_by: str | None = None) -> str:
    """A key that changes with the drivers that would be loaded: files (size, time), variables, devices, kernel, wgpu.

    Where drivers are not found by files (Windows, macOS), with the system's version. driven_by: the library that loads
    them; by default what this process has decided.
    """
    seen: list[object] = [wgpu_version(), choice.version() if driven_by is None else driven_by]
    seen += [platform.system(), platform.release(), platform.version()]
    seen += sorted((k, v) for k, v in environment.items() if k.startswith(_VARIABLES) and not k.startswith(_CACHES))
    layers = in_folders(environment, "implicit_layer.d")
    for manifest in (*manifests(environment), *layers):
        seen += [_state(manifest), *(_state(path) for path in _libraries(manifest, environment))]
    seen += [_state(path) for path in library("libvulkan.so.1", environment)]
    seen += sorted(
        (str(p), os.access(p, os.R_OK | os.W_OK)) for pattern in _DEVICES for p in Path("/dev").glob(pattern)
    )
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:24]


@cache
def wgpu_version() -> str:
    """Of wgpu-py, from its source: to load it takes 0.3 s, and importlib.metadata 20 ms. Every session asks for it five
    times."""
    spec = find_spec("wgpu")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        text = Path(folder, "_version.py").read_text("utf-8")
        stated = re.search(r'^__version__ = "(.+)"', text, re.MULTILINE)
        if stated is not None:
            return stated[1]
    from importlib.metadata import version

    return version("wgpu")


def _libraries(manifest: Path, environment: Mapping[str, str]) -> list[Path]:
    """What a manifest names; nothing where it can't be read, which the loader skips too."""
    try:
        data = store.read_json(manifest, follow=True)
        entries = [data.get("ICD"), data.get("layer"), *(data.get("layers") or [])]
        names = [str(entry["library_path"]) for entry in entries if entry and entry.get("library_path")]
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return []
    return [
        path for name in names for path in ([manifest.parent / name] if "/" in name else library(name, environment))
    ]


def _state(path: Path) -> tuple[str, str]:
    try:
        return str(path), identity(path).kept()
    except OSError:
        return str(path), ""
