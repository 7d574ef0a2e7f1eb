"""ONNX models on any GPU: a wgpu (Vulkan, Metal, DX12) execution provider for ONNX Runtime.

    from ort_gpu_ep import InferenceSession            # a subclass of onnxruntime.InferenceSession
    session = InferenceSession("model.onnx")
    outputs = session.run(None, {"x": x}); print(session.explain())

    import onnxruntime, ort_gpu_ep; ort_gpu_ep.register()
    onnxruntime.InferenceSession("model.onnx", providers=["WgpuExecutionProvider", "CPUExecutionProvider"])

Every other public name of onnxruntime can be reached through this module too (`import ort_gpu_ep as ort`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.errors import (
    AdapterError,
    ConfigError,
    DeviceError,
    DeviceHangError,
    DeviceLostError,
    GpuEpError,
    InternalError,
    ModelError,
    OutOfDeviceMemoryError,
    ShaderError,
    TrainingError,
    UnsupportedNodeError,
    WrongResultError,
)

if TYPE_CHECKING:
    from ort_gpu_ep.explain import Explanation
    from ort_gpu_ep.health.enumeration import adapters
    from ort_gpu_ep.patching import Patch, patch
    from ort_gpu_ep.plugin import EP_NAME, get_ep_name, get_ep_names, get_library_path, register, unregister
    from ort_gpu_ep.session import InferenceSession

__version__ = "0.1.0"

_LAZY = {
    "EP_NAME": "ort_gpu_ep.plugin",
    "Explanation": "ort_gpu_ep.explain",
    "InferenceSession": "ort_gpu_ep.session",
    "Patch": "ort_gpu_ep.patching",
    "adapters": "ort_gpu_ep.health.enumeration",
    "get_ep_name": "ort_gpu_ep.plugin",
    "get_ep_names": "ort_gpu_ep.plugin",
    "get_library_path": "ort_gpu_ep.plugin",
    "patch": "ort_gpu_ep.patching",
    "register": "ort_gpu_ep.plugin",
    "unregister": "ort_gpu_ep.plugin",
}
"""Loaded on first use, so that tools which need no GPU don't load its driver."""

__all__ = [
    "EP_NAME",
    "AdapterError",
    "ConfigError",
    "DeviceError",
    "DeviceHangError",
    "DeviceLostError",
    "Explanation",
    "GpuEpError",
    "InferenceSession",
    "InternalError",
    "ModelError",
    "OutOfDeviceMemoryError",
    "Patch",
    "ShaderError",
    "TrainingError",
    "UnsupportedNodeError",
    "WrongResultError",
    "__version__",
    "adapters",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "patch",
    "register",
    "unregister",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        uninterrupted = import_module("ort_gpu_ep.interrupts").uninterrupted      # half an import is not made up for by the next
        return getattr(uninterrupted(import_module, _LAZY[name]), name)
    if not name.startswith("_"):
        onnxruntime = import_module("onnxruntime")
        if hasattr(onnxruntime, name):
            return getattr(onnxruntime, name)
    raise AttributeError(f"module 'ort_gpu_ep' has no attribute {name!r}")
