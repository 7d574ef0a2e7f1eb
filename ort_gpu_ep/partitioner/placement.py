"""First placement: what is too small to be worth a transfer goes to the CPU.

The constants are orders of magnitude of today's machines, each with its source; a measured profile will replace them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ort_gpu_ep.lowering import Answer
from ort_gpu_ep.registry import BoundNode, Lowering

CPU_FLOPS = 2e11
"""Floating-point operations a second of ONNX Runtime's CPU kernels in dense layers, on 8-16 cores."""

CPU_BYTES = 2e10
"""Bytes a second that its elementwise kernels move."""

CPU_NODE_S = 2e-6
"""What ONNX Runtime's executor spends on one node."""

GPU_DISPATCH_S = 5e-6
"""GPU time of a small dependent dispatch and its share of the host's recording (2.3-2.4 us and 1-3 us measured on an H200)."""

GPU_FLOPS = 4e12
"""What untuned kernels reach in small batches."""

GPU_RUN_S = 110e-6
"""Submit, wait and map of an empty run (0.11 ms measured on an H200)."""

TRANSFER_BYTES = 5e9
"""Bytes a second between host and device, in the megabyte range (4 MB: 0.41 ms up, 0.55 ms down on an H200)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted seconds of a group on each side; transfers count on the GPU's."""

    cpu_s: float
    gpu_s: float

    @property
    def gpu_wins(self) -> bool:
        return self.gpu_s < self.cpu_s

    def __str__(self) -> str:
        return f"{self.gpu_s * 1e3:.2f} ms on the GPU with transfers, {self.cpu_s * 1e3:.2f} ms on the CPU"


def work(bound: BoundNode) -> float:
    """Floating-point operations of a node in dense layers, else 0."""
    if bound.op in ("Conv", "ConvTranspose") and bound.has(1):
        weights = bound.input(1)
        return 2.0 * weights.size * bound.input(0).shape[0]
    if bound.op in ("Gemm", "MatMul"):
        return 2.0 * bound.input(0).size * bound.input(1).shape[-1]
    if bound.op in ("LSTM", "GRU", "RNN"):
        return 2.0 * (bound.input(1).size + bound.input(2).size) * math.prod(bound.input(0).shape[:2])
    return 0.0


def estimate(answers: list[tuple[BoundNode | None, Answer]], crossing_nbytes: int) -> Estimate:
    """Predicted time of a group."""
    cpu = gpu = 0.0
    for bound, answer in answers:
        if bound is None or not isinstance(answer, Lowering):
            continue
        moved = sum(i.type.nbytes for i in bound.given()) + sum(t.nbytes for t in answer.outputs if t is not None)
        flops = work(bound)
        if bound.op in ("Conv", "ConvTranspose") and answer.outputs[0] is not None:
            pixels = math.prod((answer.outputs[0] if bound.op == "Conv" else bound.input(0).type).shape[2:])
            flops *= pixels
        cpu += CPU_NODE_S + max(flops / CPU_FLOPS, moved / CPU_BYTES)
        gpu += GPU_DISPATCH_S * len(answer.kernels) + flops / GPU_FLOPS
    return Estimate(cpu, GPU_RUN_S + crossing_nbytes / TRANSFER_BYTES + gpu)
