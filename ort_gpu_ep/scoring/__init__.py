"""Scores a data set on every adapter of this machine, or batches that others bring:
[docs/scoring.md](../../docs/scoring.md).

Importing it loads neither pyarrow nor Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ort_gpu_ep.scoring.predictor import Predictor
    from ort_gpu_ep.scoring.report import Report
    from ort_gpu_ep.scoring.scorer import score

_LAZY = {"Predictor": "predictor", "Report": "report", "score": "scorer"}

__all__ = ["Predictor", "Report", "score"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ort_gpu_ep.scoring' has no attribute {name!r}")
    return getattr(import_module(f"ort_gpu_ep.scoring.{_LAZY[name]}"), name)
