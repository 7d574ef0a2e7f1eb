"""Which source tells the load of an adapter, and the one sampler that reads it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.load.file import FileSource
from ort_gpu_ep.load.sampler import Sampler
from ort_gpu_ep.load.source import Source, SourceError

if TYPE_CHECKING:
    from ort_gpu_ep.device.info import AdapterInfo

log = logging.getLogger("ort_gpu_ep")

FILE = "file:"

Opener = Callable[["AdapterInfo", Path], Source]
"""Opens a source for an adapter below a root folder. Raises SourceError, where it is absent or unreadable."""

_lock = threading.Lock()
_samplers: dict[tuple[int, str], Sampler] = {}


def open_sampler(info: AdapterInfo, wanted: str = "auto", probe: Callable[[], Source] | None = None) -> Sampler | None:
    """The sampler of an adapter, shared by all sessions; None for `off`. Nothing runs before someone looks at `latest`.

    wanted: the option `load`. probe: makes the last resort, a timed dispatch (load/probe.py); it is called where nothing else works.
    Raises: ConfigError for any other value, or a file that can't be read.
    """
    if wanted == "off":
        return None
    with _lock:
        key = (info.index, wanted)
        if key not in _samplers:
            _samplers[key] = _make(info, wanted, probe)
        return _samplers[key]


def _make(info: AdapterInfo, wanted: str, probe: Callable[[], Source] | None) -> Sampler:
    if wanted.startswith(FILE):
        try:
            return Sampler(FileSource(Path(wanted.removeprefix(FILE)), info.is_software))
        except SourceError as error:
            raise ConfigError(f"option load={wanted!r}: {error}") from error
    if wanted != "auto":
        raise ConfigError(f"option load: got {wanted!r}, expected auto, off or {FILE}PATH.")
    if info.is_software:
        return Sampler(None, software=True)
    source, notes = find_source(info, probe=probe)
    for note in notes:
        log.info("load of %s: %s", info.name, note)
    return Sampler(source, notes=notes)


def find_source(
    info: AdapterInfo, root: Path = Path("/"), probe: Callable[[], Source] | None = None
) -> tuple[Source | None, tuple[str, ...]]:
    """The first source that answers for this adapter, and a sentence for each that does not."""
    notes: list[str] = []
    for name, opener in openers(info):
        try:
            return opener(info, root), tuple(notes)
        except SourceError as error:
            notes.append(f"{name}: {error}")
    if probe is not None:
        try:
            return probe(), (*notes, "so a tiny dispatch is timed now and then")
        except Exception as error:    # whatever a driver raises: there is no probe then
            notes.append(f"probe: {error!r}")
    return None, (*notes, "no source is left: the load is unknown, and no run is moved for it")


def openers(info: AdapterInfo, platform: str = sys.platform) -> list[tuple[str, Opener]]:
    """(name, opener) of the sources to try for an adapter, best first: those that know our own share, then the others."""
    return []
