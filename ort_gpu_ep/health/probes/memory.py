"""Probe of device memory: many buffers keep what was written, all at the same time."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.health.probe import Trial, probe
from ort_gpu_ep.health.probes.adapter import FLIPPED_BIT

BLOCK_NBYTES = 32 << 20
BUDGET_NBYTES = 256 << 20
"""More would tell little (a driver pages), and take what other processes use."""
SAMPLE_NBYTES = 64 << 10


@probe("memory", "memory", fault=FLIPPED_BIT, timeout_s=60.0)
def memory(trial: Trial) -> str:
    """Blocks held together, each with its own random samples at the start, in the middle and at the end."""
    gpu, limit = trial.gpu, trial.gpu.memory_limit_nbytes
    block = min(BLOCK_NBYTES, gpu.limits.max_buffer_nbytes)
    count = max(1, min(BUDGET_NBYTES, limit or BUDGET_NBYTES) // 2 // block * 2)
    blocks = [gpu.allocate(block) for _ in range(count)]
    offsets = (0, block // 2, block - SAMPLE_NBYTES)
    samples = [[trial.integers(0, 256, SAMPLE_NBYTES, dtype="uint8") for _ in offsets] for _ in blocks]
    for buffer, numbers in zip(blocks, samples, strict=True):
        for offset, sample in zip(offsets, numbers, strict=True):
            gpu.upload(buffer, offset, sample.ctypes.data, sample.nbytes)
    back = np.empty(SAMPLE_NBYTES, np.uint8)
    for k, (buffer, numbers) in enumerate(zip(blocks, samples, strict=True)):
        for offset, sample in zip(offsets, numbers, strict=True):
            gpu.download(buffer, offset, back.ctypes.data, back.nbytes)
            if trial.planted == FLIPPED_BIT:
                back[0] ^= 1
            if not np.array_equal(back, sample):
                wrong = int((back != sample).sum())
                raise WrongResultError(
                    f"block {k} of {count}: {wrong} bytes at offset {offset} are not what was written"
                )
    for buffer in blocks:
        gpu.free(buffer)
    gpu.trim()
    return f"{count * block >> 20} MiB in {count} blocks"
