"""The drop-in session class, how sessions open, and how they take onnxruntime's place. Its name loads on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ort_gpu_ep.session.session import InferenceSession

__all__ = ["InferenceSession"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ort_gpu_ep.session' has no attribute {name!r}")
    from ort_gpu_ep.session.session import InferenceSession

    return InferenceSession
