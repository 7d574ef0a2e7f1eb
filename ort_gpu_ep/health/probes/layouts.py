"""Probes of pools on channel-last images, and of convolutions as matrix products over planes (channel-last:
tiles.py)."""

from __future__ import annotations

from ort_gpu_ep.health.probe import solves
from ort_gpu_ep.kernels.records import RECORDS
from ort_gpu_ep.ops.contraction import WINDOWS

solves("pool, channels last", *RECORDS["pool_last.wgsl"].problems, disables=("pool_last.wgsl",))
solves("pool of bytes, channels last", *RECORDS["pool_last_bytes.wgsl"].problems, disables=("pool_last_bytes.wgsl",))
solves(
    "convolution as a product",
    *WINDOWS,
    of=4,
    about="Windows read in place: pointwise, padded, strided, dilated, one and three dimensions, channels around the tiles.",
    disables=("gemm.wgsl",),
)
