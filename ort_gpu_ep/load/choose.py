"""Chooses the source of an adapter's load, and creates its sampler."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ort_gpu_ep.device.info import INTEL, NVIDIA
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.load import macos, nvml
from ort_gpu_ep.load.busy_files import COUNTERS, open_busy_file
from ort_gpu_ep.load.fdinfo import open_fdinfo
from ort_gpu_ep.load.file import FileSource
from ort_gpu_ep.load.probe import DispatchProbe
from ort_gpu_ep.load.sampler import Sampler
from ort_gpu_ep.load.source import Source, SourceError

if TYPE_CHECKING:
    from ort_gpu_ep.device.info import AdapterInfo

FILE = "file:"

DRIVERS: Mapping[int, Mapping[str, tuple[str, ...]]] = {INTEL: {"xe": ("xe",), "i915": ("i915",)}}
"""Sources by fdinfo of a vendor's GPUs, and the drivers of each; of others one for whatever driver there is."""

EXPERIMENTAL = frozenset({"IOKit", "xe", "i915", "fdinfo", *(counter.name for counter in COUNTERS)})
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
    if info.vendor_id == NVIDIA:
        return [("NVML", lambda: nvml.NvmlLoad(info, order))]
    if platform == "darwin":
        return [("IOKit", lambda: macos.IoregLoad(info))]
    if not linux:
        return [("system counters", lambda: _nothing(platform))]
    files = [(c.name, partial(open_busy_file, c, info, root, order)) for c in COUNTERS if c.vendor_id == info.vendor_id]
    drivers = DRIVERS.get(info.vendor_id, {"fdinfo": ()})
    return [*files, *((name, partial(open_fdinfo, info, root, order, own)) for name, own in drivers.items())]


def _nothing(platform: str) -> Source:
    raise SourceError(f"{platform}: no counters of this system are read")
