"""Tells ONNX Runtime about our provider, and makes sure that nothing calls Python after the interpreter has begun to
exit."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import onnxruntime

from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.plugin import state, tables, weight_file
from ort_gpu_ep.plugin.abi import NULL, check_version, ffi, release_of
from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.processes.interrupts import load, uninterrupted
from ort_gpu_ep.providers import EP_NAME
from ort_gpu_ep.shim.build import find_or_build

BY_NAME = (1, 26)
"""The first onnxruntime that finds a plugin's provider by its name."""

_lock = threading.RLock()
_shim: Any = None
_registered_as = ""


def register(name: str = "ort_gpu_ep") -> None:
    """Registers the provider library with ONNX Runtime; does nothing if it is registered already, under whatever name.

    onnxruntime.get_ep_devices() has a device for each adapter then, its metadata says which; `ensure_registered` looks
    for none. Raises: ConfigError, where ONNX Runtime is too old; BuildError, where the native shim is missing and can't
    be compiled.
    """
    ensure_registered(name, get_library_path)


def ensure_registered(name: str = "ort_gpu_ep", library: Callable[[], str] | None = None) -> None:
    """As `register`, for sessions, which choose an adapter by themselves: it looks for none before they do."""
    global _registered_as
    with _lock:
        check_version(onnxruntime.__version__)
        if _registered_as or any(device.ep_name == EP_NAME for device in onnxruntime.get_ep_devices()):
            return
        onnxruntime.register_execution_provider_library(name, (library or _library_path)())
        _registered_as = name


def too_old() -> str:
    """Why this onnxruntime does not find the provider by its name; empty where it does."""
    if release_of(onnxruntime.__version__) >= BY_NAME:
        return ""
    return (
        f"onnxruntime {onnxruntime.__version__} finds no provider of a plugin by its name: install "
        f"{'.'.join(map(str, BY_NAME))} or "
        "newer (pip install -U onnxruntime)"
    )


def get_library_path() -> str:
    """The library, for onnxruntime.register_execution_provider_library; it works in processes that have called this.

    Raises: as `register`.
    """
    load("ort_gpu_ep.plugin.factory")
    with _lock:
        from ort_gpu_ep.plugin import factory
        from ort_gpu_ep.plugin.offers import known_adapters

        path = _library_path()
        factory.adapters = known_adapters()
        return path


def _library_path() -> str:
    global _shim
    load("ort_gpu_ep.plugin.factory")
    # all that makes partitions: not where the CPU answers
    from ort_gpu_ep.plugin.factory import create_factories, release_factory

    with _lock:
        check_version(onnxruntime.__version__)
        path = str(find_or_build())
        if _shim is None:
            _shim = ffi.dlopen(path)  # first, so that ONNX Runtime finds it loaded, with our callbacks in it
            atexit.register(_exit)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_after_fork)
        _shim.ort_gpu_ep_bind(ffi.cast("void*", create_factories), ffi.cast("void*", release_factory))
        return path


def get_ep_name() -> str:
    """The provider's name."""
    return EP_NAME


def get_ep_names() -> list[str]:
    """The names of all providers in the library: the one."""
    return [EP_NAME]


def get_available_providers() -> list[str]:
    """As onnxruntime's, in the order in which a session asks them: ours first. There it is behind the CPU's, and only
    once registered."""
    return [EP_NAME, *(name for name in onnxruntime.get_available_providers() if name != EP_NAME)]


def unregister() -> None:
    """Takes the provider away again; does nothing if `register` has not registered it.

    Raises: ConfigError, while sessions that use it are alive.
    """
    global _registered_as
    with _lock:
        if not _registered_as:
            return
        sessions = tables.live_tables()["Provider"]
        if sessions:
            raise ConfigError(f"{sessions} session(s) still use the provider: delete them before unregister()")
        onnxruntime.unregister_execution_provider_library(_registered_as)
        _registered_as = ""


def is_registered() -> bool:
    return bool(_registered_as)


def _exit() -> None:
    null, empty, gone = (ffi.cast("void*", ffi.addressof(_shim, f"ort_gpu_ep_{n}")) for n in ("null", "empty", "gone"))
    _shim.ort_gpu_ep_bind(NULL, NULL)
    uninterrupted(tables.shut_down, null, empty, gone)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for part in (memory, state, tables, weight_file, sys.modules.get("ort_gpu_ep.isolation.remote")):
        if part is not None:
            part.after_fork()
