"""Known faults of drivers, as data: quirks.json, and a file of the user's (option `quirks`).

A file is a JSON list; an entry is

    {"what": "...", "vendor": "0x10de", "device": "0x2330, 0x2340-0x234f", "family": "NVIDIA", "driver": ">=535,<545",
    "backend": "Vulkan",
     "system": "Linux >=6.1", "disables": ["softmax.wgsl"], "workarounds": {"fusion": "0"}, "bug": "https://...",
     "probe": "softmax", "update": "driver 545"}

vendor, device, family, driver, backend, system are optional and all that are given must fit. device: PCI ids and ranges
of them. family: a part of the driver's name as Vulkan has it (AdapterInfo.family), in any case. driver: comparisons
with the driver's version (device/driver_version.py). system: Linux, macOS or Windows, and comparisons with its version.
disables: shader files, device features, registry.PACKED, INLINED, WORKGROUP or ADAPTER. workarounds: see
workarounds.py. probe: the one that sees the fault. An entry has at least one of these three. update: what to update to,
for people.
"""

from __future__ import annotations

import json
import operator
import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ort_gpu_ep.config import Config
from ort_gpu_ep.device.driver_version import version_of
from ort_gpu_ep.device.info import FEATURES, AdapterInfo
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.health import workarounds
from ort_gpu_ep.health.workarounds import Workaround
from ort_gpu_ep.kernels.records import RECORDS
from ort_gpu_ep.kernels.registry import ADAPTER, INLINED, PACKED, WORKGROUP
from ort_gpu_ep.kernels.target import SHOWN_FEATURES

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_KEYS: dict[str, type] = {
    "what": str,
    "vendor": str,
    "device": str,
    "family": str,
    "driver": str,
    "backend": str,
    "system": str,
    "disables": list,
    "workarounds": dict,
    "bug": str,
    "probe": str,
    "update": str,
}
_NEEDED = ("what", "bug")
_ONE_OF = ("disables", "workarounds", "probe")
_SYSTEMS = ("Linux", "macOS", "Windows")

Bounds = tuple[tuple[str, tuple[int, ...]], ...]
"""(comparison, version) pairs, all of which must hold."""


@dataclass(frozen=True, slots=True)
class Quirk:
    """One fault of some adapters. vendor: -1 for any. devices: first and last id of each range, none for any. driver,
    versions: of the driver and of the system.
    """

    what: str
    disables: tuple[str, ...]
    bug: str
    probe: str = ""
    workarounds: tuple[tuple[str, int], ...] = ()
    vendor: int = -1
    devices: tuple[tuple[int, int], ...] = ()
    family: str = ""
    driver: Bounds = ()
    backend: str = ""
    system: str = ""
    versions: Bounds = ()
    update: str = ""

    def fits(self, info: AdapterInfo) -> bool:
        return (
            self.vendor in (-1, info.vendor_id)
            and self.backend in ("", info.backend)
            and self.family.lower() in info.family.lower()
            and (not self.devices or any(first <= info.device_id <= last for first, last in self.devices))
            and self._fits_system()
            and (not self.driver or _within(version_of(info), self.driver))
        )

    def _fits_system(self) -> bool:
        name, version = this_system()
        return not self.system or (self.system == name and _within(version, self.versions))

    @property
    def why(self) -> str:
        return f"known fault: {self.what} ({self.bug})"

    def __str__(self) -> str:
        """What it is, what is done about it, and what to update."""
        done = [f"not used: {', '.join(self.disables)}"] if self.disables else []
        done += [
            f"workaround: {', '.join(name if value == 1 else f'{name}={value}' for name, value in self.workarounds)}"
        ] * bool(self.workarounds)
        done += [f"probe '{self.probe}' looks for it"] if self.probe else []
        done += [f"update to {self.update}"] if self.update else []
        return "; ".join([self.why, *done])


def _within(version: tuple[int, ...], bounds: Bounds) -> bool:
    """Whether a version is known and within all of these bounds."""
    return bool(version or not bounds) and all(_COMPARE[sign](version, bound) for sign, bound in bounds)


@cache
def this_system() -> tuple[str, tuple[int, ...]]:
    """Linux, macOS, Windows, or what Python calls it; and its version, of Linux the kernel's."""
    name = {"Darwin": "macOS"}.get(platform.system(), platform.system())
    text = {"macOS": platform.mac_ver()[0], "Windows": platform.version()}.get(name, platform.release())
    number = re.match(r"\d+(?:\.\d+)*", text)
    return name, tuple(int(part) for part in number[0].split(".")) if number else ()


def known(config: Config) -> tuple[Quirk, ...]:
    """The package's quirks and those of the user's file. Raises ConfigError."""
    return (*shipped(), *(load(config.quirks) if config.quirks else ()))


def fitting(quirks: Iterable[Quirk], info: AdapterInfo) -> list[Quirk]:
    return [quirk for quirk in quirks if quirk.fits(info)]


def workarounds_for(quirks: Iterable[Quirk], info: AdapterInfo) -> list[Workaround]:
    """The workarounds of the quirks that fit an adapter."""
    return [Workaround(name, value, q.why) for q in fitting(quirks, info) for name, value in q.workarounds]


def reasons(quirks: Iterable[Quirk], info: AdapterInfo) -> list[tuple[str, str]]:
    """(what, why) of the quirks that fit an adapter."""
    return [(what, q.why) for q in fitting(quirks, info) for what in q.disables]


@cache
def shipped() -> tuple[Quirk, ...]:
    """The quirks that come with the package. Their names are not looked up, which would import every probe: a test
    does."""
    return parse((files("ort_gpu_ep.health") / "quirks.json").read_text("utf-8"), "quirks.json", names=False)


def load(path: str) -> tuple[Quirk, ...]:
    """The quirks of a user's file. Raises ConfigError, naming the line; no entry of such a file is applied."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"quirks file {path}: can't be read ({error}); expected a JSON list, see ort_gpu_ep/health/quirks.py"
        ) from error
    return parse(text, path)


def parse(text: str, where: str, names: bool = True) -> tuple[Quirk, ...]:
    """The quirks of a file's text. names: look up what entries name. Raises ConfigError, naming file and line of the
    first error."""
    decoder, quirks = json.JSONDecoder(), []
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        raise _wrong(where, text, at, "got no list", "a JSON list of quirks")
    at = _skip(text, at + 1)
    while text[at : at + 1] != "]":
        try:
            entry, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise _wrong(where, text, getattr(error, "pos", at), getattr(error, "msg", str(error)), "JSON") from error
        quirks.append(_quirk(entry, where, text, at, names))
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "]":
            raise _wrong(where, text, at, "got no comma", "a comma or the end of the list")
    return tuple(quirks)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _wrong(where: str, text: str, at: int, got: str, expected: str) -> ConfigError:
    line = text.count("\n", 0, at) + 1
    return ConfigError(
        f"quirks file {where}, line {line}: {got}; expected {expected}. No entry of this file is applied."
    )


def _quirk(entry: Any, where: str, text: str, at: int, names: bool) -> Quirk:
    if not isinstance(entry, dict):
        raise _wrong(where, text, at, f"got {type(entry).__name__}", "an object with " + ", ".join(_KEYS))
    for key, value in entry.items():
        place = max(text.find(f'"{key}"', at), at)
        if key not in _KEYS:
            raise _wrong(where, text, place, f"got key {key!r}", "one of " + ", ".join(_KEYS))
        if not isinstance(value, _KEYS[key]):
            raise _wrong(where, text, place, f"got {key} {value!r}", f"a {_KEYS[key].__name__}")
    missing = [key for key in _NEEDED if not entry.get(key)]
    if not any(entry.get(key) for key in _ONE_OF):
        missing.append(" or ".join(_ONE_OF))
    if missing:
        raise _wrong(
            where,
            text,
            at,
            f"an entry without {', '.join(missing)}",
            f"{', '.join(_NEEDED)}, and {' or '.join(_ONE_OF)}",
        )
    for target in entry.get("disables", ()) if names else ():
        if target not in known_targets():
            raise _wrong(
                where,
                text,
                text.find('"disables"', at),
                f"got {target!r} in disables",
                f"a shader file, a feature, or one of {ADAPTER!r}, {INLINED!r}, {PACKED!r}, {WORKGROUP!r}",
            )
    if names and entry.get("probe") and entry["probe"] not in probe_names():
        raise _wrong(
            where,
            text,
            text.find('"probe"', at),
            f"got probe {entry['probe']!r}",
            "a name that `ort-gpu-ep doctor` prints",
        )
    system, versions = _system(entry, where, text, at)
    return Quirk(
        entry["what"],
        tuple(entry.get("disables", ())),
        entry["bug"],
        entry.get("probe", ""),
        _workarounds(entry, where, text, at),
        _number(entry["vendor"], "vendor", where, text, at) if "vendor" in entry else -1,
        _devices(entry, where, text, at),
        entry.get("family", ""),
        _bounds(entry.get("driver", ""), "driver", where, text, at),
        entry.get("backend", ""),
        system,
        versions,
        entry.get("update", ""),
    )


def _workarounds(entry: dict[str, Any], where: str, text: str, at: int) -> tuple[tuple[str, int], ...]:
    start = max(text.find('"workarounds"', at), at)
    for name, value in entry.get("workarounds", {}).items():
        place = max(text.find(f'"{name}"', start), start)
        if name not in workarounds.NAMES:
            raise _wrong(where, text, place, f"got workaround {name!r}", "one of " + ", ".join(workarounds.NAMES))
        if not workarounds.is_value(name, value):
            raise _wrong(where, text, place, f"got {name} {value!r}", workarounds.expected(name))
    return tuple((name, int(value)) for name, value in entry.get("workarounds", {}).items())


def _number(value: str, key: str, where: str, text: str, at: int) -> int:
    try:
        return int(value, 16)
    except ValueError:
        raise _wrong(
            where, text, text.find(f'"{key}"', at), f"got {key} {value!r}", "a hexadecimal PCI id such as '0x10de'"
        ) from None


def _devices(entry: dict[str, Any], where: str, text: str, at: int) -> tuple[tuple[int, int], ...]:
    ranges = []
    for part in filter(None, (p.strip() for p in entry.get("device", "").split(","))):
        first, _, last = part.partition("-")
        ranges.append((_number(first, "device", where, text, at), _number(last or first, "device", where, text, at)))
    return tuple(ranges)


def _system(entry: dict[str, Any], where: str, text: str, at: int) -> tuple[str, Bounds]:
    name, _, versions = entry.get("system", "").partition(" ")
    if name and name not in _SYSTEMS:
        raise _wrong(where, text, text.find('"system"', at), f"got system {name!r}", f"one of {', '.join(_SYSTEMS)}")
    return name, _bounds(versions, "system", where, text, at)


def _bounds(comparisons: str, key: str, where: str, text: str, at: int) -> Bounds:
    bounds = []
    for part in filter(None, (p.strip() for p in comparisons.split(","))):
        match = re.fullmatch(r"(<=|>=|==|<|>)\s*(\d+(?:\.\d+)*)", part)
        if match is None:
            raise _wrong(
                where, text, text.find(f'"{key}"', at), f"got {key} {part!r}", "comparisons such as '>=535,<545'"
            )
        bounds.append((match[1], tuple(int(p) for p in match[2].split("."))))
    return tuple(bounds)


def known_targets() -> frozenset[str]:
    """What may be disabled."""
    import ort_gpu_ep.ops  # noqa: F401  fills RECORDS

    return frozenset({*RECORDS, *FEATURES, *SHOWN_FEATURES, ADAPTER, INLINED, PACKED, WORKGROUP})


def probe_names() -> frozenset[str]:
    import ort_gpu_ep.health.probes  # noqa: F401  fills the table
    from ort_gpu_ep.health.probe import PROBES

    return frozenset(PROBES)
