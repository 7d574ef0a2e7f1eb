"""The first look at the adapters, in a process of its own: a driver may crash, exit or hang when it is merely loaded.

What came of it is cached for exactly these drivers (drivers.py): a set that was well is loaded without asking again,
one that was not is not loaded, until one of its files changes, a pause is over that doubles each time, or `ort-gpu-ep
doctor` has looked again. Only what drivers did is kept: where the process failed by itself, the next program looks
again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_gpu_ep import store
from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.device import AdapterInfo
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.health import drivers
from ort_gpu_ep.health.helper import HelperError, list_adapters
from ort_gpu_ep.health.libraries import settle
from ort_gpu_ep.webgpu.loader_paths import manifests

log = logging.getLogger("ort_gpu_ep")


FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 86400.0
"""For how long drivers that failed are not loaded; it doubles with each failure that follows, up to the longest."""

OWN_PAUSE_S = 10.0
"""For how long a process does not look again after one that failed by itself."""

_lock = threading.Lock()
_seen: Sight | None = None
"""Of this process: its drivers are loaded once."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look found: adapters, or what went wrong. failures: in a row. until_s: when to look again (seconds since
    the epoch)."""

    adapters: tuple[AdapterInfo, ...] = ()
    trouble: str = ""
    failures: int = 0
    until_s: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether there is no need to look again. A time that is too far away is not one of ours, or the clock was
        wrong."""
        return not self.trouble or 0.0 < self.until_s - time.time() <= _pause_s(self.failures)

    @property
    def message(self) -> str:
        """What went wrong, and the way back."""
        if not self.failures:
            return f"{self.trouble} It is no fault of a driver, and not kept: the next program looks again."
        then = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.until_s))
        return (
            f"{self.trouble} These drivers failed {self.failures} times in a row; sessions after {then} look again, "
            "`ort-gpu-ep doctor` does at once."
        )


def adapters() -> tuple[AdapterInfo, ...]:
    """Every adapter that sessions may use, in the order of preference. Raises as `look` does."""
    return look(resolve())


def look(config: Config) -> tuple[AdapterInfo, ...]:
    """The adapters; drivers are loaded into this process only with health=off or where no other process can be started.

    Raises: AdapterError, if these drivers end or hang a process that loads them, or that process fails by itself.
    """
    global _seen
    settle(config)
    if config.health == "off":
        return _adapters_here()
    with _lock:
        if _seen is None or not _seen.holds:
            cached = _cached(config.cache_path)
            _seen = cached if cached is not None and cached.holds else look_again(config.cache_path)
    if _seen.trouble:
        raise AdapterError(_seen.message)
    return _seen.adapters


def known(config: Config) -> tuple[AdapterInfo, ...] | None:
    """The adapters, if an earlier look tells; None where nobody has looked. It does not look itself. Raises:
    AdapterError, as `look`."""
    if config.health == "off" or settle(config, only_known=True) is None:
        return None
    sight = _seen if _seen is not None and _seen.holds else _cached(config.cache_path)
    return look(config) if sight is not None and sight.holds else None


def _adapters_here() -> tuple[AdapterInfo, ...]:
    """Looks in this process, which loads the drivers."""
    from ort_gpu_ep.device.adapter import adapters as here

    return here()


def look_again(cache_path: str) -> Sight:
    """Looks in another process, whatever the cache says, and remembers what drivers did."""
    path = _path(cache_path, drivers.fingerprint(os.environ))
    try:
        sight = Sight(tuple(AdapterInfo(**a) for a in list_adapters()))
    except HelperError as error:
        return Sight(trouble=str(error), until_s=time.time() + OWN_PAUSE_S)
    except AdapterError as error:
        before = store.read(path, _parsed)
        failures = (before.failures if before is not None else 0) + 1
        sight = Sight((), f"{error}{_culprits()}", failures, time.time() + _pause_s(failures))
    except OSError as error:
        log.info("no process can be started (%s): the GPU drivers are loaded into this process without a check", error)
        return Sight(_adapters_here())
    if sight.adapters or sight.trouble:  # nothing found may be a matter of permissions: not kept
        data = {
            "adapters": [a.as_dict() for a in sight.adapters],
            "trouble": sight.trouble,
            "failures": sight.failures,
            "until_s": sight.until_s,
        }
        store.write(path, data)
    return sight


def _pause_s(failures: int) -> float:
    return OWN_PAUSE_S if failures == 0 else min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30), LONGEST_PAUSE_S)


def _culprits() -> str:
    """Which driver it is: each alone in a process. Empty where only one is known, or all are well alone."""
    files = manifests(os.environ)
    if len(files) < 2:
        return f" The driver: {files[0]}." if files else ""
    bad = []
    for manifest in files:
        try:
            list_adapters({"VK_DRIVER_FILES": str(manifest), "VK_ICD_FILENAMES": str(manifest)}, ALONE_S)
        except HelperError:
            continue
        except AdapterError:
            bad.append(manifest)
    good = os.pathsep.join(str(m) for m in files if m not in bad)
    return f" It is {', '.join(map(str, bad))}; VK_DRIVER_FILES={good} does without it." if bad and good else ""


ALONE_S = 10.0
"""One driver alone, on a machine that has just loaded all of them: 0.3 s here, some seconds where a card must wake
up."""


def _cached(cache_path: str) -> Sight | None:
    return store.read(_path(cache_path, drivers.fingerprint(os.environ)), _parsed)


def _parsed(data: dict[str, Any]) -> Sight:
    adapters = tuple(store.record(AdapterInfo, a) for a in data["adapters"])
    failures, until_s = data["failures"], data["until_s"]
    if (
        not isinstance(data["trouble"], str)
        or type(failures) is not int
        or bool(adapters) == bool(data["trouble"] and failures > 0)
    ):
        raise TypeError(f"{len(adapters)} adapters, trouble {str(data['trouble'])[:40]!r}, failures {failures!r}")
    return Sight(adapters, data["trouble"], failures, float(until_s))


def _path(cache_path: str, key: str) -> Path:
    return Path(cache_path) / "health" / f"drivers-{key}.json"
