"""The shim's loops: what a run does many times over, in C, without the interpreter lock."""

from __future__ import annotations

import threading
from typing import Any

from ort_gpu_ep.shim.build import find_or_build
from ort_gpu_ep.shim.declarations import ffi

_lock = threading.Lock()
_loaded: list[Any] = []


def loops(*functions: Any) -> Any:
    """The shim as a cffi library. functions: wgpu-native's that it calls, in the order of `ort_gpu_ep_use`; the first call binds them.

    Raises: BuildError, where the shim is not there and can't be compiled.
    """
    with _lock:
        if not _loaded:
            library = ffi.dlopen(str(find_or_build()))
            library.ort_gpu_ep_use(*functions)
            _loaded.append(library)
        return _loaded[0]
