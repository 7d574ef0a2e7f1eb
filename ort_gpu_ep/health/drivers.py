"""What the Vulkan loader will load, found without loading it: manifest files and the libraries that they name.

Source: Vulkan-Loader, docs/LoaderDriverInterface.md and LoaderLayerInterface.md, "Linux Driver Discovery".
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from ort_gpu_ep import store
from ort_gpu_ep.health.bundle import DRIVER_VARIABLES
from ort_gpu_ep.health.worker import DRILL

_ONLY = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
"""The first of these that is set replaces the search for drivers."""
_VARIABLES = (*DRIVER_VARIABLES, "LD_LIBRARY_PATH", "DRI_PRIME", DRILL)
_DEVICES = ("dri/*", "nvidia*", "kfd", "kgsl*", "mali*")
_LIBRARIES = ("/usr/local/lib", "/usr/lib/{machine}-linux-gnu", "/lib/{machine}-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib")


def manifests(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The drivers' manifest files, in the loader's order; those that a variable names need not exist."""
    only = next((environment[name] for name in _ONLY if environment.get(name)), "")
    named = _named(environment.get("VK_ADD_DRIVER_FILES", "")) + _named(only)
    return tuple(named if only else [*named, *_in_folders(environment, "icd.d")])


def fingerprint(environment: Mapping[str, str]) -> str:
    """A key that changes with the drivers that would be loaded: files (size, time), variables, devices, kernel, wgpu.

    Where drivers are not found by files (Windows, macOS), with the system's version.
    """
    seen: list[object] = [wgpu_version(), platform.system(), platform.release(), platform.version()]
    seen += sorted((k, v) for k, v in environment.items() if k.startswith(_VARIABLES))
    layers = _in_folders(environment, "implicit_layer.d")
    for manifest in (*manifests(environment), *layers):
        seen += [_state(manifest), *(_state(library) for library in _libraries(manifest, environment))]
    seen += [_state(path) for path in _found("libvulkan.so.1", environment)]
    seen += sorted((str(p), os.access(p, os.R_OK | os.W_OK)) for pattern in _DEVICES for p in Path("/dev").glob(pattern))
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:24]


def wgpu_version() -> str:
    """Of wgpu-py, from its source: to load it takes 0.3 s, and importlib.metadata 20 ms."""
    found = find_spec("wgpu")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        text = Path(folder, "_version.py").read_text("utf-8")
        stated = re.search(r'^__version__ = "(.+)"', text, re.MULTILINE)
        if stated is not None:
            return stated[1]
    from importlib.metadata import version

    return version("wgpu")


def _named(text: str) -> list[Path]:
    found: list[Path] = []
    for part in filter(None, text.split(os.pathsep)):
        path = Path(part)
        found += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return found


def _in_folders(environment: Mapping[str, str], name: str) -> Iterator[Path]:
    home = environment.get("HOME", "")
    configuration = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    data = environment.get("XDG_DATA_HOME") or f"{home}/.local/share"
    folders = [configuration, *(environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"), "/usr/local/etc", "/etc", data,
               *(environment.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":")]
    for folder in dict.fromkeys(folders):
        yield from sorted(Path(folder, "vulkan", name).glob("*.json"))


def _libraries(manifest: Path, environment: Mapping[str, str]) -> list[Path]:
    """What a manifest names; nothing where it can't be read, which the loader skips too."""
    try:
        data = store.read_json(manifest, follow=True)
        entries = [data.get("ICD"), data.get("layer"), *(data.get("layers") or [])]
        names = [str(entry["library_path"]) for entry in entries if entry and entry.get("library_path")]
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return []
    return [path for name in names for path in ([manifest.parent / name] if "/" in name else _found(name, environment))]


def _found(name: str, environment: Mapping[str, str]) -> list[Path]:
    """Where a library without a folder is found first."""
    machine = platform.machine()
    folders = [*environment.get("LD_LIBRARY_PATH", "").split(":"), *(f.format(machine=machine) for f in _LIBRARIES)]
    return next(([path] for folder in folders if folder and (path := Path(folder, name)).exists()), [])


def _state(path: Path) -> tuple[str, int, int]:
    try:
        state = path.stat()
    except OSError:
        return str(path), -1, -1
    return str(path), state.st_size, state.st_mtime_ns
