"""Kernels that move elements: transposed and sliced."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, probe


@probe("strided reads", "kernels", disables=("strided.wgsl",), quick=True)
def strided(trial: Trial) -> str:
    """Transposes and slices at odd sizes, of 4 and of 8 bytes."""
    for _ in range(trial.rounds):
        x = trial.normal(3, 17, 5)
        agree("Transpose", trial.node("Transpose", 13, [x], perm=(2, 0, 1))[0], x.transpose(2, 0, 1))
        y = trial.integers(-2**60, 2**60, 31, 33)
        agree("Transpose of int64", trial.node("Transpose", 13, [y], perm=(1, 0))[0], y.T)
        bounds = {k: np.array(v, np.int64) for k, v in enumerate(((29, 2), (1, 31), (0, 1), (-3, 4)), 1)}
        agree("Slice", trial.node("Slice", 13, [y, *[None] * 4], bounds)[0], y[29:1:-3, 2:31:4])
    return "3 forms"
