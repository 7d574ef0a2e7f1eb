"""Finds and loads the library that implements WebGPU, and raises its errors: wgpu-native, which wgpu-py contains, or
Dawn.

wgpu-py itself stays unloaded. Through cffi's parser it reads each C type anew with all names of its header: 24 ms for
each of about a hundred, at every start. Here the types come from declarations.py, where they are parsed already. A
header that is not the one they were made from, as an update of wgpu-py brings it, is parsed as wgpu-py does it. Dawn
has the same C interface, so far as this package uses it, and declarations of its own (choice.py); where the two differ,
implementation.py chooses.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ort_gpu_ep.config import resolve
from ort_gpu_ep.processes import interrupts
from ort_gpu_ep.webgpu import choice

log = logging.getLogger("ort_gpu_ep")

HEADER = "combined_header.h"
_LIBRARIES = {"win32": "wgpu_native-release.dll", "darwin": "libwgpu_native-release.dylib"}


class GPUError(Exception):
    """What the library refuses or fails at."""


class GPUValidationError(GPUError):
    """Of the caller's making; wgpu-native 29 reports some refusals of drivers so, too."""


class GPUOutOfMemoryError(GPUError):
    """The device has no memory left."""


class GPUInternalError(GPUError):
    """The driver refuses what is valid."""


def resources() -> Path:
    """Where wgpu-py keeps its header and its library. wgpu-py is not loaded for it."""
    spec = find_spec("wgpu")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("no module named 'wgpu': it brings the library wgpu-native. Install it: pip install wgpu")
    return Path(next(iter(spec.submodule_search_locations))) / "resources"


def digest(header: str) -> str:
    return hashlib.sha256(header.encode()).hexdigest()


def _declared(header: str) -> Any:
    """cffi with the header's declarations: ready-made where they are of this header, else parsed."""
    from ort_gpu_ep.webgpu import declarations

    if digest(header) == declarations.HEADER_SHA256:
        return declarations.ffi
    from cffi import FFI

    log.info(
        "declarations.py was made from another header than wgpu-py's: parsing that takes a second or two at each start"
    )
    parsed = FFI()
    parsed.cdef(header)
    return parsed


def _path() -> str:
    """Of wgpu-native. WGPU_LIB_PATH names another one, as for wgpu-py."""
    path = resources() / _LIBRARIES.get(sys.platform, "libwgpu_native-release.so")
    if (
        os.environ.get("WGPU_LIB_PATH", "").strip()
        or os.environ.get("WGPU_DEBUG", "").strip() == "1"
        or not path.exists()
    ):
        from wgpu.backends.wgpu_native import lib_path

        return str(lib_path)
    return str(path)


def _loaded() -> tuple[Any, Any, str]:
    """cffi's ffi, its lib, the library's name. Raises ConfigError, ImportError."""
    if KIND == choice.DAWN:
        return choice.load_dawn(resolve().webgpu_library)
    declared = _declared((resources() / HEADER).read_text("utf-8"))
    return declared, declared.dlopen(_path()), "wgpu-native"


KIND = choice.for_good().kind
"""Which implementation this process uses, for all its sessions."""
ffi, lib, NAME = _loaded()
# for ever: at its end the interpreter drops this module before others, whose objects call the library once more
ctypes.pythonapi.Py_IncRef(ctypes.py_object(lib))


def address(name: str) -> Any:
    """A function's, as a `void *`."""
    function = getattr(lib, name)
    return ffi.cast("void *", function if isinstance(function, ffi.CData) else ffi.addressof(lib, name))


_ERRORS = {
    lib.WGPUErrorType_Validation: GPUValidationError,
    lib.WGPUErrorType_OutOfMemory: GPUOutOfMemoryError,
    lib.WGPUErrorType_Internal: GPUInternalError,
}


class _Call(threading.local):
    """The checked call that a thread is in, and what went wrong in it."""

    checked = False
    error: GPUError | None = None


_call = _Call()


def text_of(view: Any) -> str:
    """The text of a WGPUStringView."""
    if not view.data or not view.length:
        return ""
    data = ffi.string(view.data) if view.length == lib.WGPU_STRLEN else ffi.buffer(view.data, view.length)[:]
    return str(data.decode("utf-8", "replace"))


@ffi.callback("WGPUUncapturedErrorCallback", onerror=interrupts.late)  # type: ignore[untyped-decorator]  # cffi has none
@interrupts.callback
def on_error(device: Any, kind: int, message: Any, unused: Any, unused_too: Any) -> None:
    """Called within the call that fails, on the same thread."""
    error = _ERRORS.get(kind, GPUError)("\n".join(line.rstrip() for line in text_of(message).splitlines()))
    if not _call.checked:
        log.error("%s: %s", NAME, error)
    elif _call.error is not None:
        log.error("%s: %s", NAME, _call.error)
    _call.error = error


def _release(refused: Any) -> None:
    """Gives back what a call that failed has made nevertheless: an object good for nothing."""
    kind = ffi.typeof(refused).cname if isinstance(refused, ffi.CData) else ""
    if refused and kind.endswith("Impl *"):
        getattr(lib, f"wgpu{kind.removeprefix('struct WGPU').removesuffix('Impl *')}Release")(refused)


class _Checked:
    """The library's functions by name, each raising the GPUError that is reported during the call."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(lib, name)

        def call(*arguments: Any) -> Any:
            _call.checked, _call.error = True, None
            try:
                result = function(*arguments)
            finally:
                _call.checked, error, _call.error = False, _call.error, None
            if error is not None:
                _release(result)
                raise error
            return result

        setattr(self, name, call)
        return call


checked = _Checked()
