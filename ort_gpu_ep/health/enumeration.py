"""The first look at the adapters, in a process of its own: a driver may crash, exit or hang when it is merely loaded.

What came of it is cached for exactly these drivers (drivers.py): a set that was well is loaded without asking again, one that
was not is not loaded, until one of its files changes or `ort-gpu-ep doctor` has looked again.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_gpu_ep import store
from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.device import AdapterInfo
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.health import drivers
from ort_gpu_ep.health.examination import list_adapters

log = logging.getLogger("ort_gpu_ep")

FORMAT = 1

_lock = threading.Lock()
_seen: Sight | None = None
"""Of this process: its drivers are loaded once."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look found: adapters, or what went wrong."""

    adapters: tuple[AdapterInfo, ...] = ()
    trouble: str = ""


def adapters() -> tuple[AdapterInfo, ...]:
    """Every adapter that sessions may use, in the order of preference. Raises as `look` does."""
    return look(resolve())


def look(config: Config) -> tuple[AdapterInfo, ...]:
    """The adapters; drivers are loaded into this process only with health=off or where no other process can be started.

    Raises: AdapterError, if these drivers end or hang a process that loads them.
    """
    global _seen
    if config.health == "off":
        return _adapters_here()
    with _lock:
        if _seen is None:
            _seen = _cached(config.cache_path) or look_again(config.cache_path)
    if _seen.trouble:
        raise AdapterError(_seen.trouble)
    return _seen.adapters


def _adapters_here() -> tuple[AdapterInfo, ...]:
    """Looks in this process, which loads the drivers."""
    from ort_gpu_ep.device.adapter import adapters as here

    return here()


def look_again(cache_path: str) -> Sight:
    """Looks in another process, whatever the cache says, and remembers it."""
    key = drivers.fingerprint(os.environ)
    try:
        sight = Sight(tuple(AdapterInfo(**a) for a in list_adapters()))
    except AdapterError as error:
        sight = Sight(trouble=f"{error}{_culprits()} `ort-gpu-ep doctor` looks again.")
    except OSError as error:
        log.info("no process can be started (%s): the GPU drivers are loaded into this one unseen", error)
        return Sight(_adapters_here())
    if sight.adapters or sight.trouble:     # nothing found may be a matter of permissions: not kept
        data = {"adapters": [a.as_dict() for a in sight.adapters], "trouble": sight.trouble}
        store.write(_path(cache_path, key), FORMAT, data)
    return sight


def _culprits() -> str:
    """Which driver it is: each alone in a process. Empty where only one is known, or all are well alone."""
    known = drivers.manifests(os.environ)
    if len(known) < 2:
        return f" The driver: {known[0]}." if known else ""
    bad = []
    for manifest in known:
        try:
            list_adapters({"VK_DRIVER_FILES": str(manifest), "VK_ICD_FILENAMES": str(manifest)}, ALONE_S)
        except AdapterError:
            bad.append(manifest)
    good = os.pathsep.join(str(m) for m in known if m not in bad)
    return f" It is {', '.join(map(str, bad))}; VK_DRIVER_FILES={good} does without it." if bad and good else ""


ALONE_S = 10.0
"""One driver alone, on a machine that has just loaded all of them: 0.3 s here, some seconds where a card must wake up."""


def _cached(cache_path: str) -> Sight | None:
    return store.read(_path(cache_path, drivers.fingerprint(os.environ)), FORMAT, _parsed)


def _parsed(data: dict[str, Any]) -> Sight:
    return Sight(tuple(AdapterInfo(**a) for a in data["adapters"]), str(data["trouble"]))


def _path(cache_path: str, key: str) -> Path:
    return Path(cache_path) / "health" / f"drivers-{key}.json"
