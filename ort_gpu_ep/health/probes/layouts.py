"""Probes of kernels on channel-last images, other than convolutions (tiles.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, probe, reference
from ort_gpu_ep.ir.graph import Array, Graph, Node, Value
from ort_gpu_ep.ir.types import dtype_of


def _channels_last(trial: Trial, op: str, version: int, image: Array, **attributes: Any) -> None:
    """One node of one input against the reference over planes."""
    stored = np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    node = Node(op, ("x",), ("y",), "", "", version, attributes, channels_last=True)
    got, = trial.graph(Graph("probe", ("x",), ("y",), (node,), {"x": Value("x", dtype_of(image), stored.shape)}), [stored])
    want, = reference(op, version, [image], **attributes)
    agree(f"{op} {list(image.shape)} {attributes}, channels last", got, want.transpose(0, 2, 3, 1))


@probe("pool, channels last", "kernels", disables=("pool_last.wgsl",))
def pool(trial: Trial) -> str:
    """Maximum and mean, with strides, padding that counts and that does not, a batch."""
    for _ in range(trial.rounds):
        _channels_last(trial, "MaxPool", 12, trial.normal(2, 12, 9, 11), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1))
        _channels_last(trial, "AveragePool", 11, trial.normal(1, 36, 17, 8), kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        _channels_last(trial, "AveragePool", 11, trial.normal(1, 4, 7, 9), kernel_shape=(3, 3), pads=(1, 1, 1, 1), count_include_pad=1)
    return "3 windows"


@probe("pool of bytes, channels last", "kernels", disables=("pool_last_bytes.wgsl",))
def pool_of_bytes(trial: Trial) -> str:
    """Maximum, signed and unsigned."""
    for _ in range(trial.rounds):
        for kind in (np.uint8, np.int8):
            image = trial.integers(np.iinfo(kind).min, np.iinfo(kind).max, 2, 12, 9, 11).astype(kind)
            _channels_last(trial, "MaxPool", 12, image, kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1))
    return "uint8 and int8"
