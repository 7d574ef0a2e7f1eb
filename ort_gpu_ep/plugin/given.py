"""Initializers that a user gives in place of the model's: `SessionOptions.add_initializer`."""

from __future__ import annotations

from typing import Any

from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.ir.types import FLOAT32
from ort_gpu_ep.plugin.abi import api, c_text, ffi, get


class GivenInitializers:
    """Which initializers the session options give.

    ONNX Runtime shows a provider the model's values all the same, and lists the given ones nowhere. But it takes none
    twice: a copy of the options is asked. host: information about host memory, as ONNX Runtime names it.
    """

    def __init__(self, session_options: Any, host: Any) -> None:
        self._options: Any = get(api.CloneSessionOptions, session_options)
        self._known: dict[str, bool] = {}
        self._data, shape, out = ffi.new("float[1]"), ffi.new("int64_t[]", [1]), ffi.new("void**")
        api.CreateTensorWithDataAsOrtValue(host, self._data, 4, shape, 1, FLOAT32.onnx, out)
        self._value: Any = out[0]

    def has(self, name: str) -> bool:
        """Whether the options give a value for an initializer. Not after `close`."""
        if name not in self._known:
            try:
                api.AddInitializer(self._options, c_text(name), self._value)
            except InternalError:
                self._known[name] = True
            else:
                self._known[name] = False
        return self._known[name]

    def close(self) -> None:
        """Gives back what ONNX Runtime has made, once."""
        options, self._options = self._options, None
        if options is not None:
            api.ReleaseSessionOptions(options)
            api.ReleaseValue(self._value)
