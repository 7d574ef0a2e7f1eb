"""Decides which nodes go to the GPU, how they are fused and grouped, and why.

Its names load on first use: a session of a known model reads what was decided (plugin/partitioning.py), and loads no
rows.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ort_gpu_ep.partitioner.bodies import is_ours
    from ort_gpu_ep.partitioner.costs import Costs
    from ort_gpu_ep.partitioner.decide import nothing, partition
    from ort_gpu_ep.partitioner.passes import fuse, rewrite
    from ort_gpu_ep.partitioner.report import NodeReport, Partitioning, Prediction, Report

_LAZY = {
    "Costs": "costs",
    "NodeReport": "report",
    "Partitioning": "report",
    "Prediction": "report",
    "Report": "report",
    "fuse": "passes",
    "is_ours": "bodies",
    "nothing": "decide",
    "partition": "decide",
    "rewrite": "passes",
}

__all__ = [
    "Costs",
    "NodeReport",
    "Partitioning",
    "Prediction",
    "Report",
    "fuse",
    "is_ours",
    "nothing",
    "partition",
    "rewrite",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ort_gpu_ep.partitioner' has no attribute {name!r}")
    attribute = globals()[name] = getattr(import_module(f"ort_gpu_ep.partitioner.{_LAZY[name]}"), name)
    return attribute
