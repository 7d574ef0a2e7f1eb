"""Convolutions: as products, directly, transposed."""

from __future__ import annotations

from ort_gpu_ep.health.probe import Trial, compare, probe


@probe("convolution as a product", "kernels", disables=("gemm.wgsl",))
def as_product(trial: Trial) -> str:
    """Windows read in place: pointwise, padded, strided, dilated, one and three dimensions, channels around the tiles."""
    for _ in range(trial.rounds):
        for filters, channels in ((15, 3), (64, 17), (65, 9)):
            compare(trial, "Conv", 11, [trial.normal(2, channels, 7, 9), trial.normal(filters, channels, 3, 3), trial.normal(filters)],
                    pads=[1, 1, 1, 1])
        compare(trial, "Conv", 11, [trial.normal(1, 33, 5, 13), trial.normal(31, 33, 1, 1)])
        compare(trial, "Conv", 11, [trial.normal(1, 5, 31), trial.normal(9, 5, 3)], dilations=[2], strides=[3])
        compare(trial, "Conv", 11, [trial.normal(1, 2, 5, 6, 7), trial.normal(8, 2, 2, 3, 2)])
    return "6 windows"


@probe("direct convolution", "kernels", disables=("conv_direct.wgsl",))
def direct(trial: Trial) -> str:
    """Depthwise and grouped, with one and with four outputs an invocation."""
    for _ in range(trial.rounds):
        compare(trial, "Conv", 11, [trial.normal(2, 13, 7, 5), trial.normal(13, 1, 3, 3), trial.normal(13)], group=13, pads=[1, 1, 1, 1])
        compare(trial, "Conv", 11, [trial.normal(1, 6, 17, 19), trial.normal(6, 2, 3, 3)], group=3, strides=[1, 1])
        compare(trial, "Conv", 11, [trial.normal(1, 4, 129), trial.normal(4, 1, 5)], group=4, strides=[2])
    return "3 windows"


@probe("transposed convolution", "kernels", disables=("conv_transpose.wgsl",))
def transposed(trial: Trial) -> str:
    """By gathering, and over the columns of a product."""
    for _ in range(trial.rounds):
        compare(trial, "ConvTranspose", 11, [trial.normal(1, 3, 5, 7), trial.normal(3, 4, 3, 3), trial.normal(4)], strides=[2, 2])
        compare(trial, "ConvTranspose", 11, [trial.normal(1, 17, 5, 4), trial.normal(17, 3, 2, 2)], strides=[2, 2])
    return "2 forms"
