"""The process that keeps an adapter busy: python -m ort_gpu_ep.device.busy ADAPTER DUTY (started by load/generator.py).

It computes with one of our kernels for DUTY (0 to 1) of each PERIOD_S, prints `ready` when it begins, and ends when its standard
input is closed, so that it does not outlive who started it.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import numpy as np
from onnx import helper

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from ort_gpu_ep.config import Config
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.program import Program, Tensor

PERIOD_S = 0.05
"""Of the duty cycle: shorter than the sample periods of all sources, so that they see its mean."""

PIECE_S = 0.003
"""Of work that is submitted at once: the time slice of most drivers is 1 to 2 ms, and others must get in between."""

SIZE = 512
"""Of the square matrices that are multiplied."""


def main(adapter: str, duty: float) -> None:
    """Computes until standard input ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work = _Work(Gpu.open(Config(adapter=adapter)))
    work.calibrate()
    print("ready", flush=True)
    while True:
        start = time.perf_counter()
        while time.perf_counter() - start < duty * PERIOD_S:
            work.piece()
        time.sleep(max(PERIOD_S - (time.perf_counter() - start), 0.0) if duty < 1.0 else 0.0)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


class _Work:
    """Products of matrices that stay on the device."""

    def __init__(self, gpu: Gpu) -> None:
        from ort_gpu_ep.graph import from_onnx

        rng = np.random.default_rng()
        text = "<ir_version: 10, opset_import: [\"\": 21]> busy"
