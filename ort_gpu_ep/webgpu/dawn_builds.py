"""Builds of Dawn's library that this package knows: Dawn numbers its features and lays out its structures anew from build to build."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ort_gpu_ep.errors import ConfigError

PACKAGE = "ort_gpu_ep_dawn"
KNOWN = Path(__file__).with_suffix(".json")
_LIBRARIES = {"win32": "webgpu_dawn.dll", "darwin": "libwebgpu_dawn.dylib"}


@dataclass(frozen=True)
class Build:
    """name: for people. features, structures: the numbers of Dawn's own features and chained structures, by their names in it."""

    path: str
    name: str
    features: Mapping[str, int]
    structures: Mapping[str, int]


def find(path: str) -> Build:
    """The build at a path, or the one that the package ort-gpu-ep-dawn brings. Raises ConfigError, where it is not one that is known.

    A library is not loaded to find out: one of another build may end the process.
    """
    file = Path(path) if path else _installed()
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"option webgpu_library={path!r}: {file} can't be read ({error.strerror or error}). Give the path of Dawn's "
                          "library, or webgpu=wgpu.") from error
    builds = json.loads(KNOWN.read_text("utf-8"))
    if digest not in builds:
        names = ", ".join(sorted(build["name"] for build in builds.values()))
        raise ConfigError(f"{file} is no build of Dawn that this version of ort_gpu_ep knows (sha256 {digest}); known: {names}. "
                          "Use one of these, or webgpu=wgpu.")
    return Build(str(file), builds[digest]["name"], builds[digest]["features"], builds[digest]["structures"])


def _installed() -> Path:
    """The library of the package. Raises ConfigError, where that is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"option webgpu=dawn: no module named {PACKAGE!r}, which brings Dawn's library. Install it "
                          "(scripts/dawn_wheel.py makes it), give the library's path as webgpu_library, or use webgpu=wgpu.")
    return Path(next(iter(spec.submodule_search_locations)), _LIBRARIES.get(sys.platform, "libwebgpu_dawn.so"))
