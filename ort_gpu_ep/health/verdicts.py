"""What is put out of use on an adapter, and the cache that remembers it.

A verdict belongs to an adapter, its driver, the wgpu version and the text of all shaders. One file for each in
<cache>/health/; a file of another version, a truncated or an unreadable one is ignored with a line in the log and made anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from ort_gpu_ep.device import AdapterInfo
from ort_gpu_ep.health.examination import Outcome
from ort_gpu_ep.registry import ADAPTER

log = logging.getLogger("ort_gpu_ep")

FORMAT = 1
HEALTHY, DEGRADED, UNUSABLE = "healthy", "degraded", "unusable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What probes found. disabled: (what, why), as registry.Limits has it. depth: `quick` or `full`.

    strikes: processes that had the adapter open and ended without closing it, since the last full examination.
    probed: whether it holds findings at all.
    """

    disabled: tuple[tuple[str, str], ...] = ()
    depth: str = "quick"
    strikes: int = 0
    probed: bool = True

    @property
    def health(self) -> str:
        return UNUSABLE if any(what == ADAPTER for what, _ in self.disabled) else DEGRADED if self.disabled else HEALTHY


def verdict_of(outcomes: Iterable[Outcome], depth: str) -> Verdict:
    """What failed outcomes put out of use; the first probe that says so is the reason. NOT_RUN condemns nothing."""
    disabled: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.passed or outcome.status == "NOT_RUN":
            continue
        for what in outcome.disables:
            disabled.setdefault(what, f"probe {outcome.name!r}: {outcome.status} ({outcome.seen})")
    return Verdict(tuple(disabled.items()), depth)


@cache
def shader_hash() -> str:
    """Of the text of all shader files and of the module that writes around them."""
    digest = hashlib.sha256()
    for file in sorted(files("ort_gpu_ep.shaders").iterdir(), key=lambda f: f.name):
        if file.name.endswith((".wgsl", ".py")):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def key_of(info: AdapterInfo) -> str:
    """Names the cache file: adapter, driver, wgpu, shaders."""
    parts = (info.name, info.backend, info.driver, f"{info.vendor_id:x}:{info.device_id:x}", version("wgpu"), shader_hash())
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def folder_of(cache_path: str) -> Path:
    return Path(cache_path) / "health"


def read(cache_path: str, key: str) -> Verdict | None:
    """The verdict in the cache, None where there is none that can be used."""
    path = folder_of(cache_path) / f"{key}.json"
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, expected {FORMAT}")
        disabled = tuple((str(what), str(why)) for what, why in data["disabled"])
        return Verdict(disabled, str(data["depth"]), int(data["strikes"]), bool(data["probed"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.info("health cache %s is ignored and made anew: %s: %s", path, type(error).__name__, error)
        return None


def write(cache_path: str, key: str, verdict: Verdict) -> None:
    """Stores a verdict, whole or not at all. Where the cache can't be written, that is said and nothing else happens."""
    folder = folder_of(cache_path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"format": FORMAT, **asdict(verdict)}, file)
            os.replace(name, folder / f"{key}.json")
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        log.info("health cache %s can't be written: %s; the adapter is probed again in the next process", folder, error)


def with_quirks(verdict: Verdict, reasons: Sequence[tuple[str, str]]) -> Verdict:
    """The verdict and what quirks add to it."""
    known = dict(reasons) | dict(verdict.disabled)
    return replace(verdict, disabled=tuple(known.items()))
