"""Convolutions as matrix products."""

from __future__ import annotations

from ort_gpu_ep.health.probe import Trial, compare, probe


@probe("convolution as a product", "kernels", disables=("gemm.wgsl",))
def as_product(trial: Trial) -> str:
    """Windows read in place: pointwise, padded, strided, dilated, one and three dimensions, channels around the tiles."""
    for _ in range(trial.rounds):
        for (filters, channels), in trial.some(((15, 3), (64, 17), (65, 9)), of=3, turn=2):
            compare(trial, "Conv", 11, [trial.normal(2, channels, 7, 9), trial.normal(filters, channels, 3, 3), trial.normal(filters)],
                    pads=[1, 1, 1, 1])
        compare(trial, "Conv", 11, [trial.normal(1, 33, 5, 13), trial.normal(31, 33, 1, 1)])
        compare(trial, "Conv", 11, [trial.normal(1, 5, 31), trial.normal(9, 5, 3)], dilations=[2], strides=[3])
        compare(trial, "Conv", 11, [trial.normal(1, 2, 5, 6, 7), trial.normal(8, 2, 2, 3, 2)])
    return "6 windows"
