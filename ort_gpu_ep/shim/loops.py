"""The shim's loops: what a run does many times over, in C, without the interpreter lock."""

from __future__ import annotations

import threading
from typing import Any

from ort_gpu_ep.shim.build import find_or_build
from ort_gpu_ep.shim.declarations import ffi

_lock = threading.Lock()
_loaded: list[Any] = []
_bound: list[Any] = []


def load() -> Any:
    """The shim as a cffi library. Raises: BuildError, where it is not there and can't be compiled."""
    with _lock:
        if not _loaded:
            _loaded.append(ffi.dlopen(str(find_or_build())))
        return _loaded[0]


def loops(*functions: Any) -> Any:
    """The same with what its loops call, in the order of `ort_gpu_ep_use`: functions of the library that drives the
    GPUs. The first call binds them. Raises: BuildError.
    """
    library = load()
    with _lock:
        if not _bound:
            library.ort_gpu_ep_use(*functions)
            _bound.append(library)
        return library
