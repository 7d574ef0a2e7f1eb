"""The GPU: adapters, buffers, pipelines.

Its names load on first use: a process whose sessions all have isolation=process never loads it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ort_gpu_ep.device.adapter import adapters
    from ort_gpu_ep.device.buffers import Buffer
    from ort_gpu_ep.device.gpu import Gpu
    from ort_gpu_ep.device.info import AdapterInfo
    from ort_gpu_ep.device.scratch import run_wgsl
    from ort_gpu_ep.device.tensor import Tensor

_LAZY = {
    "AdapterInfo": "info",
    "Buffer": "buffers",
    "Gpu": "gpu",
    "Tensor": "tensor",
    "adapters": "adapter",
    "run_wgsl": "scratch",
}

__all__ = ["AdapterInfo", "Buffer", "Gpu", "Tensor", "adapters", "run_wgsl"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ort_gpu_ep.device' has no attribute {name!r}")
    attribute = globals()[name] = getattr(import_module(f"ort_gpu_ep.device.{_LAZY[name]}"), name)
    return attribute
