"""Calls into ONNX Runtime's C tables by slot number, through cffi without a compiler.

`api.Name(arguments)` calls a function of OrtApi or OrtEpApi; one that returns an OrtStatus raises InternalError
instead.
"""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from ort_gpu_ep.errors import ConfigError, IndexOutOfRangeError, InternalError
from ort_gpu_ep.plugin.declarations import ffi as ffi
from ort_gpu_ep.plugin.slots import EP_API, NEWEST_API, OLDEST_API, ORT_API, Slot

NULL: Any = ffi.NULL

_TYPES = {
    "v": "void",
    "p": "void*",
    "o": "void**",
    "c": "const char*",
    "z": "size_t",
    "n": "size_t*",
    "i": "int",
    "u": "uint32_t",
    "q": "int64_t",
    "b": "bool",
    "a": "uintptr_t",
    "h": "uintptr_t*",
    "s": "void*",
}
_FAIL, _INVALID_ARGUMENT = 1, 2
_MESSAGE_NBYTES = 6000


def c_signature(letters: str) -> str:
    """The C type that a slot's signature letters stand for, e.g. `void*(*)(void*, size_t)`."""
    return f"{_TYPES[letters[0]]}(*)({', '.join(_TYPES[letter] for letter in letters[1:]) or 'void'})"


def release_of(version: str) -> tuple[int, int]:
    """(major, minor). Raises ConfigError."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ConfigError(f"onnxruntime says its version is {version!r}; expected major.minor")
    return int(match[1]), int(match[2])


def check_version(version: str) -> int:
    """The API version to use with a release of ONNX Runtime.

    Raises: ConfigError, where the release is too old for plugin execution providers with device memory.
    """
    major, minor = release_of(version)
    if (major, minor) < (1, OLDEST_API):
        raise ConfigError(
            f"onnxruntime {version} is too old: ort_gpu_ep needs 1.{OLDEST_API} or newer "
            "(1.26 or newer to select the provider by name). Try `pip install -U onnxruntime`."
        )
    return min(NEWEST_API, minor) if major == 1 else NEWEST_API


class Api:
    """The C functions of the ONNX Runtime that has loaded us, as attributes."""

    version = 0

    def load(self, base: Any) -> None:
        """Binds every known function that the running ONNX Runtime has.

        Raises: ConfigError, where it is too old.
        """
        release = ffi.string(base.get_version()).decode()
        version = check_version(release)
        table = base.get_api(version)
        if table == NULL:
            raise ConfigError(
                f"onnxruntime {release} does not offer API version {version}; try another release of onnxruntime"
            )
        self.version = version
        self._bind(ORT_API, ffi.cast("void**", table))
        self._bind(EP_API, ffi.cast("void**", self.GetEpApi()))

    def has(self, slot: Slot) -> bool:
        """Whether the running ONNX Runtime knows a slot."""
        return slot.since <= self.version

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise InternalError(
            f"onnxruntime function {name} is not bound: the API is not loaded, or too old ({self.version})"
        )

    def _bind(self, slots: dict[str, Slot], table: Any) -> None:
        for name, slot in slots.items():
            if self.has(slot):
                function = ffi.cast(c_signature(slot.signature), table[slot.number])
                setattr(self, name, self._checked(name, function) if slot.signature[0] == "s" else function)

    def _checked(self, name: str, function: Any) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            status = function(*arguments)
            if status:
                message = text_of(self.GetErrorMessage(status))
                self.ReleaseStatus(status)
                raise InternalError(f"onnxruntime: {name} failed: {message}")

        return call

    def status_of(self, error: BaseException) -> Any:
        """An OrtStatus that says what was raised and where; an exception of onnxruntime's keeps its code and its words.
        Never raises."""
        try:
            match = re.match(r"\[ONNXRuntimeError\] : (\d+) : ", str(error))
            lines = traceback.format_exception(type(error), error, error.__traceback__)
            notes = " ".join(getattr(error, "__notes__", ()))
            message = f"{error} {notes}" if match else f"{type(error).__name__}: {error} {notes}\n{''.join(lines)}"
            text = ffi.from_buffer(message.encode("utf-8", "replace")[:_MESSAGE_NBYTES] + b"\0")
            own = _INVALID_ARGUMENT if isinstance(error, IndexOutOfRangeError) else _FAIL  # as of the CPU's kernels
            return self.CreateStatus(int(match[1]) if match else own, text)
        except BaseException:
            return self.CreateStatus(_FAIL, ffi.from_buffer(b"ort_gpu_ep: a Python callback failed\0"))


api: Any = Api()


def address_of(pointer: Any) -> int:
    """A pointer as a number."""
    return int(ffi.cast("uintptr_t", pointer))


def pointer_to(address: int) -> Any:
    """A number as a `void*`."""
    return ffi.cast("void*", address)


def text_of(pointer: Any) -> str:
    """A C string, "" for NULL."""
    return ffi.string(pointer).decode("utf-8", "replace") if pointer else ""


def c_text(text: str) -> Any:
    """A C string that lives as long as the result."""
    return ffi.new("char[]", text.encode())


def key_value_pairs(content: Mapping[str, str]) -> Any:
    """An OrtKeyValuePairs, to be released."""
    pairs = ffi.new("void**")
    api.CreateKeyValuePairs(pairs)
    for key, value in content.items():
        api.AddKeyValuePair(pairs[0], c_text(key), c_text(value))
    return pairs[0]


def get(function: Callable[..., None], handle: Any, kind: str = "void**") -> Any:
    """Calls `function(handle, &out)` and returns `out`. kind: the C type of `&out`."""
    out = ffi.new(kind)
    function(handle, out)
    return out[0]


def get_text(function: Callable[..., None], handle: Any) -> str:
    """`get`, of a C string."""
    out = ffi.new("char**")
    function(handle, out)
    return ffi.string(out[0]).decode("utf-8", "replace") if out[0] else ""


def get_list(count: Callable[..., None], fill: Callable[..., None], handle: Any) -> list[Any]:
    """Calls the pair `count(handle, &n)`, `fill(handle, array, n)`."""
    out = ffi.new("size_t*")
    count(handle, out)
    n = out[0]
    if not n:
        return []
    array = ffi.new("void*[]", n)
    fill(handle, array, n)
    return list(array)


class _Out(threading.local):
    """Where functions that every run calls put their results: made once a thread."""

    def __init__(self) -> None:
        self.kind, self.dims, self.rank = ffi.new("int*"), ffi.new("int64_t**"), ffi.new("size_t*")
        self.number = ffi.new("uintptr_t*")


_out = _Out()


def tensor_of(value: int) -> tuple[int, tuple[int, ...], int]:
    """(address, shape, ONNX element type) of a tensor OrtValue."""
    out = _out
    kind, dims, rank, number = out.kind, out.dims, out.rank, out.number
    api.GetTensorElementTypeAndShapeDataReference(value, kind, dims, rank)
    api.GetTensorMutableData(value, number)
    return number[0], tuple(ffi.unpack(dims[0], rank[0])) if rank[0] else (), kind[0]


def data_of(value: int) -> int:
    """The address of a tensor OrtValue's content."""
    number = _out.number
    api.GetTensorMutableData(value, number)
    return int(number[0])


def input_of(context: int, index: int) -> int:
    """The OrtValue of an input of an OrtKernelContext."""
    out = _out.number
    api.KernelContext_GetInput(context, index, out)
    return int(out[0])


@lru_cache(256)
def _dims(shape: tuple[int, ...]) -> Any:
    """A shape in C, which onnxruntime reads."""
    return ffi.new("int64_t[]", [*shape, 0])


def output_of(context: int, index: int, shape: tuple[int, ...]) -> int:
    """The OrtValue of an output of an OrtKernelContext, which ONNX Runtime allocates now."""
    out = ffi.new("uintptr_t*")  # its own: ONNX Runtime calls Alloc meanwhile
    api.KernelContext_GetOutput(context, index, _dims(shape), len(shape), out)
    return int(out[0])
