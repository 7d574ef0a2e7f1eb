"""Whether Dawn drives the GPUs of a process with `webgpu=auto`: another process tries it first, since it may abort or
hang.

The trial loads Dawn and the drivers, opens the adapter that the options mean, and runs the probes without which it
would not be used, with those of matrix units: without units Dawn has nothing to give that wgpu-native has not. What
came of it is cached for exactly these drivers, this version of Dawn and this package's code; what a session wants to
know besides, its own probes find out (open_adapter.py).
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from ort_gpu_ep import store
from ort_gpu_ep.config import Config
from ort_gpu_ep.device.info import AdapterInfo, pick
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.health import drivers
from ort_gpu_ep.health.helper import START_S, HelperError, Worker, list_adapters
from ort_gpu_ep.health.worker import DONE
from ort_gpu_ep.processes.child import ending
from ort_gpu_ep.webgpu import choice
from ort_gpu_ep.webgpu.choice import DAWN, WGPU, Choice

log = logging.getLogger("ort_gpu_ep")

_lock = threading.Lock()


def settle(config: Config, only_known: bool = False, again: bool = False) -> Choice | None:
    """Decides which library this process uses, before one is loaded.

    only_known: None where a trial would be needed. again: whatever the cache says.
    """
    with _lock:
        decided = choice.settled()
        if decided is not None and not again:
            return decided
        decided = choice.without_trial(config)
        if decided is None:
            path = _path(config)
            decided = store.read(path, _parsed) if not again else None
            if decided is None:
                if only_known:
                    return None
                decided = _tried(config, path)
        choice.settle(decided)
        return decided


def _path(config: Config) -> Path:
    from ort_gpu_ep.health.verdicts import code_hash

    parts = (
        drivers.fingerprint(os.environ, choice.dawn_package().name),
        config.adapter,
        _leaves_software(config),
        code_hash(),
    )
    return Path(config.cache_path) / "health" / f"library-{sha256(json.dumps(parts).encode()).hexdigest()[:24]}.json"


def _leaves_software(config: Config) -> bool:
    """Whether such a session would leave a software adapter alone anyway."""
    return config.placement == "auto" and not config.adapter


def _parsed(data: dict[str, Any]) -> Choice:
    kind, why = data["kind"], data["why"]
    if kind not in (WGPU, DAWN) or not isinstance(why, str):
        raise TypeError(f"kind {str(kind)[:40]!r}")
    return Choice(kind, why)


def _tried(config: Config, path: Path) -> Choice:
    """By another process. What says nothing about Dawn, such as a process that does not start, is not kept: the next
    program tries it."""
    begin_s, variables = time.perf_counter(), {"ORT_GPU_EP_WEBGPU": DAWN}
    try:
        info = pick([AdapterInfo(**one) for one in list_adapters(variables)], config.adapter)
        leaves = info.is_software and _leaves_software(config)
        decided = Choice(WGPU, f"{info.name} is left to the CPU anyway") if leaves else _probed(info, variables)
    except (HelperError, OSError) as error:
        return Choice(WGPU, f"Dawn could not be tried ({error})")
    except AdapterError as error:
        decided = Choice(WGPU, f"with Dawn: {error}")
    store.write(path, {"kind": decided.kind, "why": decided.why})
    log.info("%s (tried in %.1f s)", decided, time.perf_counter() - begin_s)
    return decided


def _probed(info: AdapterInfo, variables: Mapping[str, str]) -> Choice:
    """Raises HelperError where the process failed by itself, OSError where none can be started."""
    worker = Worker(
        {"task": "probe", "adapter": info.index, "probes": None, "rounds": 1, "seed": secrets.randbits(64)}, variables
    )
    line, at = None, "opening the device"
    shown: list[str] = []
    try:
        while (line := worker.answer(2 * START_S)) is not None and "failed" not in line:
            at = line.get("start", at)
            if line.get("status") == "FAIL":
                return Choice(WGPU, f"with Dawn {info.name} fails the probe {line['name']!r}: {line['seen']}")
            if line.get("status") == "UNSUPPORTED" and line["units"]:
                return Choice(WGPU, f"{info.name} has no matrix units that Dawn can use: {line['seen']}")
            if line.get("status") == "PASS" and line["units"]:
                shown.append(line["seen"])
    except TimeoutError:
        return Choice(WGPU, f"with Dawn {info.name} does not answer: more than {2 * START_S:.0f} s, at {at!r}")
    finally:
        code = worker.end(kill=line is not None)
    if line is not None:
        raise HelperError(f"the process that tries it failed ({line['failed']})")
    if code != DONE:
        return Choice(WGPU, f"with Dawn {info.name} ends the process at {at!r} ({ending(code)})")
    return Choice(DAWN, f"the matrix units of {info.name} passed their probe ({', '.join(shown)})")
