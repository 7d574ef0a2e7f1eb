"""A thread that opens the device and compiles the pipelines of a known model, while the session's thread does the rest
of the opening.

The driver works without Python's lock, so modules load and onnxruntime reads the model meanwhile. The thread begins
only where an earlier process has found the adapter in order; otherwise the session tests the adapter first.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.config import Config
from ort_gpu_ep.device.info import pick
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.files import fingerprint
from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.processes.interrupts import load

if TYPE_CHECKING:
    from ort_gpu_ep.health.open_adapter import Uses
    from ort_gpu_ep.health.verdicts import Verdict
    from ort_gpu_ep.placement.source import Source
    from ort_gpu_ep.runtime.artefact import Artefact

log = logging.getLogger("ort_gpu_ep")

OF_THE_THREAD = ("ort_gpu_ep.runtime.artefact", "ort_gpu_ep.device.pipelines", "ort_gpu_ep.shaders.rewriting")
"""What it does is in these modules, loaded before it goes to the driver: the session's thread needs them, too."""

FORKS = "ort_gpu_ep.processes.forks"
"""Loaded before the first thread of this package begins; not with the package, because it loads modules of its own."""


class Early:
    """A thread that opens the device. model: path or bytes. uses: of open_gpu."""

    def __init__(self, config: Config, model: str | bytes, device: str, uses: Uses) -> None:
        self._config, self._model, self._device, self._uses = config, model, device, uses
        self._artefact: Artefact | None = None
        self._read = threading.Event()
        threading.Thread(target=self._work, name="ort_gpu_ep-early").start()

    def _work(self) -> None:
        try:
            load(*OF_THE_THREAD)
            from ort_gpu_ep.health.open_adapter import open_gpu
            from ort_gpu_ep.health.workarounds import with_workarounds

            # first, since `uses` asks for it
            artefact = self._artefact = _opened(self._config, self._model, self._device)
            gpu = open_gpu(self._config, self._uses)
            self._read.set()
            if artefact is not None:
                artefact.compile(gpu, with_workarounds(self._config, gpu.workarounds).checked_shaders)
        except Exception as error:  # the session meets it, too, and says it
            log.info("nothing is compiled ahead: %s: %s", type(error).__name__, str(error)[:200])
        finally:
            self._read.set()

    def known(self) -> AbstractContextManager[Artefact | None]:
        """What is known of the model, which stays in memory for the time in which sessions of it are made. Waits for
        the device."""
        self._read.wait()
        return nullcontext(self._artefact)


def begin(config: Config, model: Any, uses: Uses | None = None) -> Early | None:
    """Begins it; None where the adapter is not known to be in order, or something else has it. uses: of open_gpu,
    everything by default."""
    if config.isolation == "process" or config.health == "off" or config.faults or config.quirks or memory.forked:
        return None
    if not isinstance(model, (str, bytes, os.PathLike)):
        return None
    load("ort_gpu_ep.health.enumeration", "ort_gpu_ep.health.verdicts")
    device = in_order(config)
    if device is None:
        return None
    load("ort_gpu_ep.health.open_adapter")  # and with it a library, which is decided by now
    load(FORKS)
    from ort_gpu_ep.health.open_adapter import everything

    return Early(config, model if isinstance(model, bytes) else os.fsdecode(model), device, uses or everything)


def _opened(config: Config, model: str | bytes, device: str) -> Artefact | None:
    """What is known of a model; None where there is none to be read."""
    load("ort_gpu_ep.runtime.artefact")
    from ort_gpu_ep.runtime.artefact import key_of, opened

    name = fingerprint(model)
    return opened(config.cache_path, key_of(name, device, config)) if name else None


def uses_of(config: Config, model: Source) -> Uses:
    """What open_gpu asks about a model: its op types, and the shader files of the pipelines that sessions of it have
    had on an adapter.

    Nothing with isolation=process: the worker opens the adapter for any model, and this process loads no library of the
    GPU.
    """

    @cache
    def used(device: str) -> frozenset[str] | None:
        if config.isolation == "process":
            return None
        try:
            artefact = _opened(config, model.path_or_bytes, device)
            return model.op_types() | {p.shader for p in (artefact.pipelines if artefact is not None else ())}
        except (OSError, ValueError):  # deleted, or no ONNX file: onnxruntime may have read it all the same
            return None

    return used


def in_order(config: Config) -> str | None:
    """Names the adapter that `known_verdict` is about. Loads no driver."""
    last = known_verdict(config)
    return last[0] if last is not None else None


def known_verdict(config: Config) -> tuple[str, Verdict] | None:
    """The name of the adapter that the options mean, with its driver and this code, and its verdict, if an earlier
    process has found it in order and a session with these options uses it. Loads no driver."""
    last = _last_verdict(config)
    return last if last is not None and not last[1].unfit else None


def unfit(config: Config) -> str:
    """Why no session uses the adapter that the options mean, if an earlier process has found that out; else empty.
    Loads no driver."""
    last = _last_verdict(config)
    return last[1].unfit if last is not None else ""


def _last_verdict(config: Config) -> tuple[str, Verdict] | None:
    from ort_gpu_ep.health import markers, verdicts
    from ort_gpu_ep.health.enumeration import known

    try:
        adapters = known(config)
        info = pick(adapters, config.adapter) if adapters else None
    except AdapterError:
        return None
    if info is None or (info.is_software and config.placement == "auto" and not config.adapter):
        return None
    device = verdicts.key_of(info)
    verdict = verdicts.read(config.cache_path, device)
    if verdict is None or not verdict.probed or markers.any_stale(config.cache_path, device):
        return None
    return device, verdict
