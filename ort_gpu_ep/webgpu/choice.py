"""Which library drives the GPUs of this process, and why: wgpu-native or Dawn, one for all sessions; and the package
that brings Dawn.

The option `webgpu` may say so. With `auto` it is Dawn where its package is there and another process has tried it
(health/libraries.py), which has to be known before a library is loaded.

Dawn numbers its features anew and changes structures from version to version, so they come from the declarations of its
package, wgpudawn, and what those lack (dawn.py) holds for TESTED alone. wgpudawn's Python code stays unloaded: 0.17 s,
and it keeps an instance of its own.
"""

from __future__ import annotations

import ctypes
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.processes import child

WGPU, DAWN, AUTO = "wgpu", "dawn", "auto"
PACKAGE = "wgpudawn"
TESTED = (0, 32, 0, 4), (0, 32, 1)
"""The first version that this package was tested with, and the first one that it does not take; the extra `dawn` asks
for the same."""
EXTRA = "pip install '{}>={},<{}'".format(PACKAGE, *(".".join(map(str, version)) for version in TESTED))
_MODULE = f"{PACKAGE}._lib._wgpu_dawn"


@dataclass(frozen=True)
class DawnPackage:
    """version: of the package. release: of Dawn, a date. extension: the file with the library and its declarations."""

    version: str
    release: str
    extension: Path

    @property
    def name(self) -> str:
        return f"Dawn {self.release} ({PACKAGE} {self.version})"


def has_dawn() -> bool:
    """Whether some version of it is installed."""
    return find_spec(PACKAGE) is not None


@cache
def dawn_package() -> DawnPackage:
    """The package as it is installed, without loading it. Raises ConfigError, where it is missing or of a version that
    was not tested."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the package {PACKAGE}, which brings Dawn, is not installed. Install it: {EXTRA}")
    folder = Path(next(iter(spec.submodule_search_locations)))
    version, release = (
        _stated(folder / "_static_version.py", "version"),
        _stated(folder / "_lib" / "__init__.py", "dawn_version"),
    )
    first, end = (".".join(map(str, numbers)) for numbers in TESTED)
    if not TESTED[0] <= tuple(map(int, re.findall(r"\d+", version)[:4])) < TESTED[1]:
        raise ConfigError(
            f"{PACKAGE} {version or 'of an unknown version'} is installed; this version of ort_gpu_ep was tested with "
            f"{first} and newer ones before {end}. Install one of these: {EXTRA}"
        )
    places = [folder / "_lib" / f"_wgpu_dawn{suffix}" for suffix in EXTENSION_SUFFIXES]
    extension = next((place for place in places if place.exists()), None)
    if extension is None:
        raise ConfigError(
            f"{PACKAGE} {version} in {folder} has no compiled module for this Python ({sys.version.split()[0]}). "
            f"Install it anew: {EXTRA}"
        )
    return DawnPackage(version, release.lstrip("v"), extension)


def check_dawn(library: str) -> None:
    """Raises ConfigError, where the package can't be used, or a user's library can't be read. Loads nothing."""
    dawn_package()
    try:
        if library:
            Path(library).open("rb").close()
    except OSError as error:
        raise ConfigError(
            f"option webgpu_library={library!r} can't be read ({error.strerror or error}). Give the path of "
            f"Dawn's library, "
            "or webgpu=wgpu."
        ) from error


def _stated(file: Path, name: str) -> str:
    """The text that a module of the package assigns to a name; empty where it doesn't."""
    try:
        match = re.search(rf"""^{name}\s*=\s*["'](.+)["']""", file.read_text("utf-8"), re.MULTILINE)
    except OSError:
        return ""
    return match[1] if match is not None else ""


def load_dawn(library: str = "") -> tuple[Any, Any, str]:
    """(cffi's ffi, its lib, the library's name) of the package's Dawn, or of one that the user has: then with the
    package's declarations.

    Raises ConfigError.
    """
    package = dawn_package()
    module = sys.modules.get(_MODULE)
    if module is None:
        spec = spec_from_file_location(
            _MODULE, package.extension, loader=ExtensionFileLoader(_MODULE, str(package.extension))
        )
        assert spec is not None
        try:
            module = module_from_spec(spec)
        except ImportError as error:
            raise ConfigError(f"{package.name} can't be loaded ({error}). Install it anew: {EXTRA}") from error
        sys.modules[_MODULE] = module  # wgpudawn's own code, where a program uses it, takes the same
    if not library:
        return module.ffi, module.lib, package.name
    return module.ffi, _Own(library, module.ffi, module.lib), f"Dawn at {library}"


class _Own:
    """Functions of a user's library, numbers of the package's declarations."""

    def __init__(self, path: str, ffi: Any, declared: Any) -> None:
        self._ffi, self._declared = ffi, declared
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise ConfigError(
                f"option webgpu_library={path!r}: {error}. Give the path of Dawn's library, or webgpu=wgpu."
            ) from error
        try:
            self.wgpuAdapterPropertiesSubgroupMatrixConfigsFreeMembers  # noqa: B018  which only Dawn has
        except AttributeError as error:
            raise ConfigError(
                f"option webgpu_library={path!r}: this library is no Dawn with matrix units ({error}). "
                "Give the path of Dawn's library, or webgpu=wgpu."
            ) from error

    def __getattr__(self, name: str) -> Any:
        declared = getattr(self._declared, name)
        if not name.startswith("wgpu"):
            return declared
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        function = self._ffi.cast(self._ffi.typeof(self._ffi.addressof(self._declared, name)), address)
        setattr(self, name, function)
        return function


@dataclass(frozen=True)
class Choice:
    """kind: WGPU or DAWN. why: a clause."""

    kind: str
    why: str

    def __str__(self) -> str:
        return f"{dawn_package().name if self.kind == DAWN else 'wgpu-native'}: {self.why}"


_settled: Choice | None = None
_loaded = False
"""Whether a library has been loaded by it."""


def without_trial(config: Config) -> Choice | None:
    """What options and packages alone decide; None where Dawn would have to be tried."""
    asked = resolve().webgpu  # of the process: a session that leaves it open takes what its process has
    if asked != AUTO:
        return Choice(asked, f"webgpu={asked} was asked for")
    try:
        dawn_package()
    except ConfigError as error:
        return Choice(WGPU, str(error).partition(". ")[0])
    return Choice(WGPU, "with health=off nobody tries Dawn before it is used") if config.health == "off" else None


def settled() -> Choice | None:
    """None where nothing is decided so far."""
    return _settled


def settle(choice: Choice) -> None:
    """Decides it for this process and for the helpers that it starts. Where a library is loaded already, it only
    remembers why not."""
    global _settled
    if _settled is not None and _loaded:
        if choice.kind != _settled.kind:
            _settled = Choice(
                _settled.kind,
                f"it was loaded before Dawn had been tried; the next process uses the other one: {choice.why}",
            )
        return
    _settled = choice
    child.handed_on["ORT_GPU_EP_WEBGPU"] = choice.kind


def for_good() -> Choice:
    """The decision that a library is loaded by: wgpu-native where nobody has tried Dawn."""
    global _settled, _loaded
    _settled = _settled or without_trial(resolve()) or Choice(WGPU, "it was loaded before Dawn had been tried")
    _loaded = True
    return _settled


def version() -> str:
    """Names the library among those that caches know: empty for wgpu-native."""
    choice = _settled or without_trial(resolve())
    return dawn_package().name if choice is not None and choice.kind == DAWN else ""
