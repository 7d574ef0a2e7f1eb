"""Convolutions as matrix products."""

from __future__ import annotations

from typing import Any

from ort_gpu_ep.health.probe import Trial, compare, probe
from ort_gpu_ep.ir.types import Shape

WINDOWS: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((2, 3, 7, 9), (15, 3, 3, 3), {"pads": [1, 1, 1, 1]}), ((2, 17, 7, 9), (64, 17, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 9, 7, 9), (65, 9, 3, 3), {"pads": [1, 1, 1, 1]}), ((1, 33, 5, 13), (31, 33, 1, 1), {}),
    ((1, 5, 31), (9, 5, 3), {"dilations": [2], "strides": [3]}), ((1, 2, 5, 6, 7), (8, 2, 2, 3, 2), {}))


@probe("convolution as a product", "kernels", disables=("gemm.wgsl",))
def as_product(trial: Trial) -> str:
    """Windows read in place: pointwise, padded, strided, dilated, one and three dimensions, channels around the tiles."""
    for _ in range(trial.rounds):
        for (image, filters, attributes), in trial.some(WINDOWS, of=4):
            bias = [trial.normal(filters[0])] if "pads" in attributes else []
            compare(trial, "Conv", 11, [trial.normal(*image), trial.normal(*filters), *bias], **attributes)
    return f"{len(WINDOWS)} windows"
