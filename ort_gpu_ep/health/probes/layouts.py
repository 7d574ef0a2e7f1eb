"""Probes of pools on channel-last images, and of convolutions as matrix products over planes (channel-last:
tiles.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, compare, graph_of, probe, reference
from ort_gpu_ep.ir.graph import Array, Node
from ort_gpu_ep.ir.types import Shape


def _channels_last(trial: Trial, op: str, version: int, image: Array, **attributes: Any) -> None:
    """One node of one input against the reference over planes."""
    stored = np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    node = Node(op, ("x",), ("y",), "", "", version, attributes, channels_last=True)
    (got,) = trial.graph(graph_of({"x": stored}, {}, node), [stored])
    (want,) = reference(op, version, [image], **attributes)
    agree(f"{op} {list(image.shape)} {attributes}, channels last", got, want.transpose(0, 2, 3, 1))


@probe("pool, channels last", "kernels", disables=("pool_last.wgsl",))
def pool(trial: Trial) -> str:
    """Maximum and mean, with strides, padding that counts and that does not, a batch."""
    for _ in range(trial.rounds):
        _channels_last(
            trial, "MaxPool", 12, trial.normal(2, 12, 9, 11), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1)
        )
        _channels_last(trial, "AveragePool", 11, trial.normal(1, 36, 17, 8), kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        _channels_last(
            trial,
            "AveragePool",
            11,
            trial.normal(1, 4, 7, 9),
            kernel_shape=(3, 3),
            pads=(1, 1, 1, 1),
            count_include_pad=1,
        )
    return "3 windows"


@probe("pool of bytes, channels last", "kernels", disables=("pool_last_bytes.wgsl",))
def pool_of_bytes(trial: Trial) -> str:
    """Maximum, signed and unsigned."""
    for _ in range(trial.rounds):
        for kind in (np.uint8, np.int8):
            image = trial.integers(np.iinfo(kind).min, np.iinfo(kind).max, 2, 12, 9, 11).astype(kind)
            _channels_last(trial, "MaxPool", 12, image, kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1))
    return "uint8 and int8"


WINDOWS: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((2, 3, 7, 9), (15, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 17, 7, 9), (64, 17, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 9, 7, 9), (65, 9, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 33, 5, 13), (31, 33, 1, 1), {}),
    ((1, 5, 31), (9, 5, 3), {"dilations": [2], "strides": [3]}),
    ((1, 2, 5, 6, 7), (8, 2, 2, 3, 2), {}),
)


@probe("convolution as a product", "kernels", disables=("gemm.wgsl",))
def as_product(trial: Trial) -> str:
    """Windows read in place: pointwise, padded, strided, dilated, one and three dimensions, channels around the
    tiles."""
    for ((image, filters, attributes),) in trial.repeated(WINDOWS, of=4):
        bias = [trial.normal(filters[0])] if "pads" in attributes else []
        compare(trial, "Conv", 11, [trial.normal(*image), trial.normal(*filters), *bias], **attributes)
    return f"{len(WINDOWS)} windows"
