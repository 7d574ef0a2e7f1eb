"""Probes of enumeration, limits and transfers."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np

from ort_gpu_ep.device import adapters
from ort_gpu_ep.errors import DeviceError, WrongResultError
from ort_gpu_ep.health.probe import Trial, probe
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.kernels.registry import Limits

LOW_LIMITS, FLIPPED_BIT = "limits below WebGPU's minimum", "a bit of the readback is flipped"


@probe("enumeration", "adapter", fault=LOW_LIMITS, quick=True)
def enumeration(trial: Trial) -> str:
    """The adapter is found again, and its limits are at least those that WebGPU guarantees."""
    gpu = trial.gpu
    limits = replace(gpu.limits, max_invocations=1) if trial.planted == LOW_LIMITS else gpu.limits
    if gpu.info not in adapters():
        raise DeviceError(f"{gpu.info.name} is not among the adapters when they are listed again")
    least = Limits()
    for item in fields(Limits):
        got, guaranteed = getattr(limits, item.name), getattr(least, item.name)
        bad = got > guaranteed if item.name == "offset_alignment" else isinstance(got, int) and got < guaranteed
        if bad:
            raise DeviceError(f"{item.name} is {got}; WebGPU guarantees {guaranteed}")
    return f"{gpu.info.name}, {len(limits.features)} features"


def _back(trial: Trial, copies: int, nbytes: int, offset: int) -> None:
    """Sends random bytes through `copies` buffers, shifted by `offset`, and compares what comes back."""
    gpu, data = trial.gpu, trial.integers(0, 256, nbytes, dtype="uint8")
    buffers = [gpu.allocate(nbytes + offset + 4) for _ in range(copies + 1)]
    gpu.upload(buffers[0], offset, data.ctypes.data, nbytes)
    for source, target in pairwise(buffers):
        gpu.copy(source, offset, target, offset, nbytes)
    back: Array = np.zeros_like(data)
    gpu.download(buffers[-1], offset, back.ctypes.data, nbytes)
    for buffer in buffers:
        gpu.free(buffer)
    if trial.planted == FLIPPED_BIT:
        back[nbytes // 2] ^= 1
    wrong = np.flatnonzero(back != data)
    if wrong.size:
        raise WrongResultError(
            f"{wrong.size} of {nbytes} bytes differ, the first at {int(wrong[0])}, after {copies} copies"
        )


@probe("upload and readback", "adapter", fault=FLIPPED_BIT, quick=True)
def upload_and_readback(trial: Trial) -> str:
    """Sizes around words, pages and staging classes."""
    sizes = (1, 3, 4, 255, 4097, 65_537, 1_000_003)
    for _ in range(trial.rounds):
        for nbytes in sizes:
            _back(trial, 0, nbytes, 0)
    return f"{trial.rounds * len(sizes)} transfers of 1 B to 1 MB"


@probe("copies on the device", "adapter", fault=FLIPPED_BIT)
def copies(trial: Trial) -> str:
    """Chains of copies at offsets, in the order of the queue."""
    for _ in range(trial.rounds):
        for nbytes, offset in ((4, 0), (1021, 4), (65_536, 256), (300_007, 12)):
            _back(trial, 5, nbytes, offset)
    return f"{trial.rounds * 20} copies, each right"
