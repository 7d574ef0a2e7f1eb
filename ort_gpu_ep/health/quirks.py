"""Known faults of drivers, as data: quirks.json, and a file of the user's (option `quirks`).

A file is a JSON list; an entry is

    {"what": "...", "vendor": "0x10de", "device": "0x2330", "driver": ">=535,<545", "backend": "Vulkan",
     "disables": ["softmax.wgsl"], "workarounds": {"fusion": "0"}, "bug": "https://...", "probe": "softmax"}

vendor, device, driver, backend are optional and all that are given must fit. driver: comparisons with the first dotted number
in the driver's description. disables: shader files, device features, registry.PACKED, INLINED, WORKGROUP or ADAPTER. workarounds: see
workarounds.py. An entry has at least one of the two.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ort_gpu_ep.device.info import FEATURES, AdapterInfo
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.health import workarounds
from ort_gpu_ep.kernels.records import RECORDS
from ort_gpu_ep.kernels.registry import ADAPTER, INLINED, PACKED, WORKGROUP
from ort_gpu_ep.kernels.target import SHOWN_FEATURES

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt}
_KEYS: dict[str, type] = {"what": str, "vendor": str, "device": str, "driver": str, "backend": str, "disables": list, "workarounds": dict,
         "bug": str, "probe": str}
_NEEDED = ("what", "bug", "probe")


@dataclass(frozen=True, slots=True)
class Quirk:
    """One fault of some adapters. driver: (comparison, version) pairs; vendor, device: -1 for any."""

    what: str
    disables: tuple[str, ...]
    bug: str
    probe: str
    workarounds: tuple[tuple[str, int], ...] = ()
    vendor: int = -1
    device: int = -1
    driver: tuple[tuple[str, tuple[int, ...]], ...] = ()
    backend: str = ""

    def fits(self, info: AdapterInfo) -> bool:
        version = version_of(info.driver)
        return (self.vendor in (-1, info.vendor_id) and self.device in (-1, info.device_id) and self.backend in ("", info.backend)
                and (not self.driver or bool(version)) and all(_COMPARE[sign](version, bound) for sign, bound in self.driver))


def version_of(text: str) -> tuple[int, ...]:
    """The first dotted number in a driver's description, () where there is none: `Mesa 22.3.6 (LLVM 15.0.6)` -> (22, 3, 6)."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(p) for p in found.group().split(".")) if found else ()


def shipped() -> tuple[Quirk, ...]:
    """The quirks that come with the package."""
    return parse((files("ort_gpu_ep.health") / "quirks.json").read_text("utf-8"), "quirks.json")


def load(path: str) -> tuple[Quirk, ...]:
    """The quirks of a user's file. Raises ConfigError, naming the line; no entry of such a file is applied."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"quirks file {path}: can't be read ({error}); expected a JSON list, see ort_gpu_ep/health/quirks.py") from error
    return parse(text, path)


def parse(text: str, where: str) -> tuple[Quirk, ...]:
    """The quirks of a file's text. Raises ConfigError, naming file and line of the first error."""
    decoder, found = json.JSONDecoder(), []
    at = _skip(text, 0)
    if text[at:at + 1] != "[":
        raise _wrong(where, text, at, "got no list", "a JSON list of quirks")
    at = _skip(text, at + 1)
    while text[at:at + 1] != "]":
        try:
            entry, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise _wrong(where, text, getattr(error, "pos", at), getattr(error, "msg", str(error)), "JSON") from error
        found.append(_quirk(entry, where, text, at))
        at = _skip(text, end)
        if text[at:at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at:at + 1] != "]":
            raise _wrong(where, text, at, "got no comma", "a comma or the end of the list")
    return tuple(found)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _wrong(where: str, text: str, at: int, got: str, expected: str) -> ConfigError:
    line = text.count("\n", 0, at) + 1
    return ConfigError(f"quirks file {where}, line {line}: {got}; expected {expected}. No entry of this file is applied.")


def _quirk(entry: Any, where: str, text: str, at: int) -> Quirk:
    if not isinstance(entry, dict):
        raise _wrong(where, text, at, f"got {type(entry).__name__}", "an object with " + ", ".join(_KEYS))
    for key, value in entry.items():
        place = max(text.find(f'"{key}"', at), at)
        if key not in _KEYS:
            raise _wrong(where, text, place, f"got key {key!r}", "one of " + ", ".join(_KEYS))
        if not isinstance(value, _KEYS[key]):
            raise _wrong(where, text, place, f"got {key} {value!r}", f"a {_KEYS[key].__name__}")
    missing = [key for key in _NEEDED if not entry.get(key)]
    if not entry.get("disables") and not entry.get("workarounds"):
        missing.insert(1, "disables or workarounds")
    if missing:
        raise _wrong(where, text, at, f"an entry without {', '.join(missing)}", f"{', '.join(_NEEDED)}, and disables or workarounds")
    known = known_targets()
    for target in entry.get("disables", ()):
        if target not in known:
            raise _wrong(where, text, text.find('"disables"', at), f"got {target!r} in disables", "a shader file, a feature, or one of "
                         f"{ADAPTER!r}, {INLINED!r}, {PACKED!r}, {WORKGROUP!r}")
    if entry["probe"] not in probe_names():
        raise _wrong(where, text, text.find('"probe"', at), f"got probe {entry['probe']!r}", "a name that `ort-gpu-ep doctor` prints")
    vendor, device = (_number(entry, key, where, text, at) for key in ("vendor", "device"))
    return Quirk(entry["what"], tuple(entry.get("disables", ())), entry["bug"], entry["probe"], _workarounds(entry, where, text, at),
                 vendor, device, _range(entry, where, text, at), entry.get("backend", ""))


def _workarounds(entry: dict[str, Any], where: str, text: str, at: int) -> tuple[tuple[str, int], ...]:
    start = max(text.find('"workarounds"', at), at)
    for name, value in entry.get("workarounds", {}).items():
        place = max(text.find(f'"{name}"', start), start)
        if name not in workarounds.NAMES:
            raise _wrong(where, text, place, f"got workaround {name!r}", "one of " + ", ".join(workarounds.NAMES))
        if not workarounds.is_value(name, value):
            raise _wrong(where, text, place, f"got {name} {value!r}", workarounds.expected(name))
    return tuple((name, int(value)) for name, value in entry.get("workarounds", {}).items())


def _number(entry: dict[str, Any], key: str, where: str, text: str, at: int) -> int:
    if key not in entry:
        return -1
    try:
        return int(entry[key], 16)
    except ValueError:
        raise _wrong(where, text, text.find(f'"{key}"', at), f"got {key} {entry[key]!r}", "a hexadecimal PCI id such as '0x10de'") from None


def _range(entry: dict[str, Any], where: str, text: str, at: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    found = []
    for part in filter(None, (p.strip() for p in entry.get("driver", "").split(","))):
        match = re.fullmatch(r"(<=|>=|==|<|>)\s*(\d+(?:\.\d+)*)", part)
        if match is None:
            raise _wrong(where, text, text.find('"driver"', at), f"got driver {part!r}", "comparisons such as '>=535,<545'")
        found.append((match[1], tuple(int(p) for p in match[2].split("."))))
    return tuple(found)


def known_targets() -> frozenset[str]:
    """What may be disabled."""
    import ort_gpu_ep.ops  # noqa: F401  fills RECORDS

    return frozenset({*RECORDS, *FEATURES, *SHOWN_FEATURES, ADAPTER, INLINED, PACKED, WORKGROUP})


def probe_names() -> frozenset[str]:
    import ort_gpu_ep.health.probes  # noqa: F401  fills the table
    from ort_gpu_ep.health.probe import PROBES

    return frozenset(PROBES)
