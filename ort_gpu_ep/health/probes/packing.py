"""Elements that share a word: bool and 8-bit integers, float16."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, probe
from ort_gpu_ep.kernels.registry import PACKED

SIZES = (1, 2, 3, 4, 5, 255, 257, 4099)


@probe("pack and unpack bool", "packed elements", disables=(PACKED,))
def booleans(trial: Trial) -> str:
    """Comparisons write four to a word, logic reads them; sizes that end inside a word."""
    for _ in range(trial.rounds):
        for n, in trial.some(SIZES, of=4, turn=2):
            x, y, mask = trial.normal(n), trial.normal(n), trial.rng.random(n) < 0.5
            agree(f"Less of {n}", trial.node("Less", 13, [x, y])[0], x < y)
            agree(f"Not of {n}", trial.node("Not", 1, [mask])[0], ~mask)
            agree(f"Where of {n}", trial.node("Where", 16, [mask, x, y])[0], np.where(mask, x, y))
    return f"{len(SIZES)} sizes"


@probe("pack and unpack int8 and uint8", "packed elements", disables=(PACKED,))
def bytes_(trial: Trial) -> str:
    """Sums that wrap in 8 bits, conversions from and to 32, and bytes that are only moved."""
    for _ in range(trial.rounds):
        for n, in trial.some(SIZES, of=4, turn=2):
            for dtype, low, high in (("int8", -128, 128), ("uint8", 0, 256)):
                x, y = (trial.integers(low, high, n, dtype=dtype) for _ in range(2))
                agree(f"{dtype} x + y of {n}", trial.node("Add", 14, [x, y])[0], x + y)
            agree(f"Cast of {n}", trial.node("Cast", 13, [x], to=1)[0], x.astype(np.float32))
            agree(f"Transpose of {n}", trial.node("Transpose", 13, [np.outer(x, np.ones(3, np.uint8))], perm=(1, 0))[0],
                  np.outer(np.ones(3, np.uint8), x))
    return f"{len(SIZES)} sizes"
