"""Chooses the source of an adapter's load, and creates its sampler."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.load import amdgpu, kgsl, macos, mali, nvml
from ort_gpu_ep.load.drm import INTEL
from ort_gpu_ep.load.fdinfo import open_fdinfo
from ort_gpu_ep.load.file import FileSource
from ort_gpu_ep.load.probe import DispatchProbe
from ort_gpu_ep.load.sampler import Sampler
from ort_gpu_ep.load.source import Source, SourceError

if TYPE_CHECKING:
    from ort_gpu_ep.device.info import AdapterInfo

FILE = "file:"

EXPERIMENTAL = frozenset({"IOKit", "kgsl", "mali", "xe", "i915", "amdgpu", "fdinfo"})
"""Sources that are written by the documents of kernels and vendors, and that no hardware has confirmed."""

Opener = Callable[[], Source]
"""Opens a source. Raises SourceError, where it is absent or unreadable."""

_lock = threading.Lock()
_samplers: dict[tuple[int, str], Sampler] = {}


def open_sampler(
    info: AdapterInfo, wanted: str = "auto", probe: Callable[[], float] | None = None, order: int = 0
) -> Sampler | None:
    """The sampler of an adapter, shared by all sessions; None for `off`. Nothing runs before someone looks at `latest`.

    wanted: the option `load`. probe: one tiny dispatch's seconds, the last resort; called only where nothing else
    answers. order: which of several adapters with equal PCI ids this is. Raises: ConfigError for any other value, or a
    file that can't be read.
    """
    if wanted == "off":
        return None
    with _lock:
        key = (info.index, wanted)
        if key not in _samplers:
            _samplers[key] = _make(info, wanted, probe, order)
        return _samplers[key]


def _make(info: AdapterInfo, wanted: str, probe: Callable[[], float] | None, order: int) -> Sampler:
    if wanted.startswith(FILE):
        try:
            return Sampler(FileSource(Path(wanted.removeprefix(FILE)), info.is_software))
        except SourceError as error:
            raise ConfigError(f"option load={wanted!r}: {error}") from error
    if wanted != "auto":
        raise ConfigError(f"option load: got {wanted!r}, expected auto, off or {FILE}PATH.")
    if info.is_software:
        return Sampler(None, software=True)
    return Sampler(None, find=lambda: find_source(openers(info, order), probe))


def find_source(
    sources: list[tuple[str, Opener]], probe: Callable[[], float] | None = None
) -> tuple[Source | None, tuple[str, ...]]:
    """The first source that answers; a sentence for each before it that does not, and one if it is experimental."""
    notes: list[str] = []
    if probe is not None:
        sources = [*sources, (DispatchProbe.name, lambda: DispatchProbe(probe))]
    for name, opener in sources:
        try:
            source = opener()
            own = (
                (f"{name}: experimental: read as its documents say, and not seen on such a GPU yet",)
                if name in EXPERIMENTAL
                else ()
            )
            return source, (*notes, *own)
        except SourceError as error:
            notes.append(f"{name}: {error}")
        except Exception as error:  # whatever a driver's library raises: the next one may do better
            notes.append(f"{name}: {error!r}")
    return None, (*notes, "no source is left: the load is unknown, and no run is moved for it")


def openers(
    info: AdapterInfo, order: int = 0, root: Path = Path("/"), platform: str = sys.platform
) -> list[tuple[str, Opener]]:
    """(name, opener) of the sources to try for an adapter, best first; none on Windows but for NVIDIA, whose counters
    need its PDH."""
    linux = platform in ("linux", "android")
    if info.vendor_id == nvml.VENDOR:
        return [("NVML", lambda: nvml.NvmlLoad(info, order))]
    if platform == "darwin":
        return [("IOKit", lambda: macos.IoregLoad(info))]
    if not linux:
        return [("system counters", lambda: _nothing(platform))]
    if info.vendor_id == kgsl.VENDOR:
        return [("kgsl", lambda: kgsl.open_kgsl(root)), ("fdinfo", lambda: open_fdinfo(info, root, order))]
    if info.vendor_id == mali.VENDOR:
        return [("mali", lambda: mali.open_mali(root)), ("fdinfo", lambda: open_fdinfo(info, root, order))]
    if info.vendor_id == INTEL:
        return [
            ("xe", lambda: open_fdinfo(info, root, order, ("xe",))),
            ("i915", lambda: open_fdinfo(info, root, order, ("i915",))),
        ]
    if info.vendor_id == amdgpu.VENDOR:
        return [
            ("amdgpu", lambda: amdgpu.AmdgpuLoad(info, root, order)),
            ("fdinfo", lambda: open_fdinfo(info, root, order)),
        ]
    return [("fdinfo", lambda: open_fdinfo(info, root, order))]


def _nothing(platform: str) -> Source:
    raise SourceError(f"{platform}: no counters of this system are read")
