"""Where the Vulkan loader looks for drivers and libraries on Linux.

Source: Vulkan-Loader, docs/LoaderDriverInterface.md and LoaderLayerInterface.md, "Linux Driver Discovery".
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

_ONLY = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
"""The first of these that is set replaces the search for drivers."""

_LIBRARIES = (
    "/usr/local/lib",
    "/usr/lib/{machine}-linux-gnu",
    "/lib/{machine}-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
)

ROOT = Path("/")


def only_named(environment: Mapping[str, str]) -> tuple[str, str]:
    """(variable, its value) of what replaces the search for drivers; empty where nothing does."""
    return next(((name, environment[name]) for name in _ONLY if environment.get(name)), ("", ""))


def manifests(environment: Mapping[str, str], root: Path = ROOT) -> tuple[Path, ...]:
    """The drivers' manifest files, in the loader's order; those that a variable names need not exist."""
    only = only_named(environment)[1]
    named = _named(environment.get("VK_ADD_DRIVER_FILES", ""), root) + _named(only, root)
    return tuple(named if only else [*named, *in_folders(environment, "icd.d", root)])


def in_folders(environment: Mapping[str, str], name: str, root: Path = ROOT) -> Iterator[Path]:
    """Manifests of a kind: icd.d, implicit_layer.d."""
    home = environment.get("HOME", "")
    configuration = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    data = environment.get("XDG_DATA_HOME") or f"{home}/.local/share"
    folders = [
        configuration,
        *(environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"),
        "/usr/local/etc",
        "/etc",
        data,
        *(environment.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":"),
    ]
    for folder in dict.fromkeys(folders):
        yield from sorted(_below(root, folder).joinpath("vulkan", name).glob("*.json"))


def library(name: str, environment: Mapping[str, str], root: Path = ROOT) -> list[Path]:
    """Where a library without a folder is found first; nothing where it is not."""
    folders = [
        *environment.get("LD_LIBRARY_PATH", "").split(":"),
        *(f.format(machine=platform.machine()) for f in _LIBRARIES),
    ]
    return next(([path] for folder in folders if folder and (path := _below(root, folder) / name).exists()), [])


def _named(text: str, root: Path) -> list[Path]:
    paths: list[Path] = []
    for part in filter(None, text.split(os.pathsep)):
        path = _below(root, part)
        paths += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return paths


def _below(root: Path, path: str) -> Path:
    """A path of the system whose root that is: tests have made-up ones."""
    return Path(path) if root == ROOT else root / path.lstrip("/")
