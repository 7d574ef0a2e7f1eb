"""What OrtValues say of memory that is ours: onnxruntime takes any GPU's for CUDA's, whose addresses other libraries
would use."""

from __future__ import annotations

from typing import Any

import onnxruntime

from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.private import OrtValue, device_name
from ort_gpu_ep.providers import CUDA_PROVIDER

GPU = "gpu"
"""The name of our devices, as `ortvalue_from_numpy` and `bind_output` take it."""

REFUSED = (
    "a value in the memory of WgpuExecutionProvider can't be exported by DLPack: its address is no pointer that CUDA "
    "or another library "
    "could use. Take a copy in host memory: value.numpy(), or bind the output to 'cpu'"
)

_original = {name: getattr(OrtValue, name) for name in ("__dlpack__", "__dlpack_device__") if hasattr(OrtValue, name)}


def is_ours(value: Any) -> bool:
    """Whether a tensor lies in our memory. One without elements has no address: it does where there is no CUDA that
    could have it."""
    if device_name(value) != "cuda":
        return False
    address = value.data_ptr()
    return memory.owns(address) if address else CUDA_PROVIDER not in onnxruntime.get_available_providers()


def _name(self: Any) -> str:
    """As onnxruntime's; "gpu" for memory of WgpuExecutionProvider."""
    return GPU if is_ours(self) else str(device_name(self))


def _exported(self: Any, *, stream: Any = None) -> Any:
    """As onnxruntime's. Raises BufferError for memory of WgpuExecutionProvider."""
    if is_ours(self):
        raise BufferError(REFUSED)
    return _original["__dlpack__"](self, stream=stream)


def _place(self: Any) -> Any:
    """As onnxruntime's. Raises BufferError for memory of WgpuExecutionProvider."""
    if is_ours(self):
        raise BufferError(REFUSED)
    return _original["__dlpack_device__"](self)


def take_over() -> None:
    """From now on OrtValues tell where our memory is. `onnxruntime.OrtValue` stays the class that it is."""
    OrtValue.device_name = _name
    for name in _original:
        setattr(OrtValue, name, {"__dlpack__": _exported, "__dlpack_device__": _place}[name])
