"""TEMPORARY stand-in, replaced by the real module."""
from __future__ import annotations

from dataclasses import dataclass

from ort_gpu_ep.registry import Lowering


@dataclass(frozen=True)
class Profile:
    adapter: str = "guessed"
    run_s: float = 110e-6
    dispatch_s: float = 5e-6
    def upload_s(self, nbytes: int) -> float:
        return nbytes / 5e9
    def download_s(self, nbytes: int) -> float:
        return nbytes / 5e9
    def node_s(self, lowering: Lowering, flops: float, nbytes: int) -> float:
        return self.dispatch_s * len(lowering.kernels) + flops / 4e12
GUESSED = Profile()
