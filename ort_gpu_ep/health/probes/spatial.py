"""Pooling and resizing."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, compare, probe


@probe("pooling", "kernels", disables=("pool.wgsl",))
def pooling(trial: Trial) -> str:
    """Maxima and means under padded, strided windows."""
    for _ in range(trial.rounds):
        x = trial.normal(2, 3, 9, 11)
        compare(trial, "MaxPool", 12, [x], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
        compare(trial, "AveragePool", 11, [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    return "2 windows"


@probe("places of maxima", "kernels", disables=("max_pool_indices.wgsl",))
def places(trial: Trial) -> str:
    """The indices of MaxPool."""
    trial.need("shader-int64")
    compare(trial, "MaxPool", 12, [trial.normal(1, 2, 7, 9)], outputs=2, kernel_shape=[3, 2], strides=[2, 2])
    return "1 window"


@probe("resizing", "kernels", disables=("resize.wgsl",))
def resizing(trial: Trial) -> str:
    """Nearest, linear and cubic."""
    for mode in ("nearest", "linear", "cubic"):
        scales = {2: np.array([1, 1, 2, 2.5], np.float32)}
        compare(trial, "Resize", 13, [trial.normal(1, 2, 4, 6), None, None], scales, tolerance=1e-4, mode=mode)
    return "3 modes"
