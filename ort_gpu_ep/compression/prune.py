"""Which weights of a layer become zero, and what the others become.

Without data: the smallest do. With samples of what the layer reads: ADMM between a least-squares fit of the layer's own outputs and a
projection onto matrices with so many entries, then a fit of those that are left. Source: Zhang et al., "A Systematic DNN Weight Pruning
Framework using Alternating Direction Method of Multipliers" (2018), with the layer's outputs in place of the network's loss.
"""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.compression.layers import Array

ROUNDS = 30
REFITS = 60
RIDGE = 0.01
"""Part of the mean of the inputs' squares: keeps the fit near the weights that there are where samples say nothing."""


def by_magnitude(rows: Array, percent: int) -> Array:
    """The rows with the `percent` smallest weights 0."""
    keep = rows.size - rows.size * percent // 100
    mask = np.zeros(rows.size, bool)
    mask[np.argpartition(-np.abs(rows.reshape(-1)), min(keep, rows.size - 1))[:keep]] = True
    return np.where(mask.reshape(rows.shape), rows, np.float32(0))


def by_samples(rows: Array, percent: int, samples: Array) -> Array:
    """The rows [n, k] with `percent` of the weights 0, so that products with samples [s, k] stay close."""
    gram = (samples.T @ samples / np.float32(len(samples))).astype(np.float64)
    gram[np.diag_indices_from(gram)] += RIDGE * np.trace(gram) / len(gram) + 1e-12
    wide = rows.astype(np.float64)
    rho = np.trace(gram) / len(gram)
    inverse = np.linalg.inv(gram + rho * np.eye(len(gram)))
    target, dual = wide @ gram, np.zeros_like(wide)
    kept = by_magnitude(rows * np.sqrt(np.diag(gram)).astype(np.float32), percent) != 0
    sparse = np.where(kept, wide, 0.0)
    for _ in range(ROUNDS):
        fitted = (target + rho * (sparse - dual)) @ inverse
        sparse = by_magnitude(fitted + dual, percent)
        dual += fitted - sparse
    return _refitted(wide, sparse, gram).astype(np.float32)


def _refitted(rows: Array, sparse: Array, gram: Array) -> Array:
    """The entries that are left, by accelerated gradient steps on the squared error of the outputs."""
    mask = sparse != 0
    step = 1.0 / np.linalg.norm(gram, 2)
    now = before = sparse
    for k in range(REFITS):
        ahead = now + k / (k + 3.0) * (now - before)
        before, now = now, mask * (ahead - step * (ahead - rows) @ gram)
    found: Array = now
    return found
