"""Which weights of a layer become zero, and what the others become.

Without data: the smallest do. With samples of what the layer reads: ADMM between a least-squares fit of the layer's own
outputs and a projection onto matrices with so many entries, then a fit of those that are left. Source: Zhang et al., "A
Systematic DNN Weight Pruning Framework using Alternating Direction Method of Multipliers" (2018), with the layer's
outputs in place of the network's loss.
"""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.compression.layers import Array

STAGES = (0.1, 0.3, 1.0)
"""How much the projection counts, by the mean of the inputs' squares: little while the weights find out which of them
are needed."""
ROUNDS = 15
"""Of a stage."""
REFITS = 60
RIDGE = 0.01
"""Part of the mean of the inputs' squares: keeps the fit near the weights that there are where samples say nothing."""


def by_magnitude(rows: Array, percent: int) -> Array:
    """The rows with the `percent` smallest weights 0."""
    keep = rows.size - rows.size * percent // 100
    mask = np.zeros(rows.size, bool)
    mask[np.argpartition(-np.abs(rows.reshape(-1)), min(keep, rows.size - 1))[:keep]] = True
    return np.where(mask.reshape(rows.shape), rows, np.float32(0))


def by_samples(rows: Array, percent: int, samples: Array, wanted: Array | None = None) -> Array:
    """The rows [n, k] with `percent` of the weights 0, so that their products with samples [s, k] stay close to those
    of `rows`.

    wanted: what `rows` read where samples come from a model that is compressed already up to here; then its error is
    made up for.
    """
    before = samples if wanted is None else wanted
    gram, cross = (np.asarray(a.T @ samples, np.float64) / len(samples) for a in (samples, before))
    mean = max(float(np.trace(gram)) / len(gram), 1e-12)
    for matrix in (gram, cross):
        matrix[np.diag_indices_from(matrix)] += RIDGE * mean
    target = rows.astype(np.float64) @ cross
    sparse = np.where(by_magnitude(rows * np.sqrt(np.diag(gram)).astype(np.float32), percent) != 0, rows, 0.0)
    for stage in STAGES:
        rho = stage * mean
        inverse = np.linalg.inv(gram + rho * np.eye(len(gram)))
        dual = np.zeros(rows.shape)
        for _ in range(ROUNDS):
            fitted = (target + rho * (sparse - dual)) @ inverse
            sparse = by_magnitude(fitted + dual, percent)
            dual += fitted - sparse
    return _refitted(target, sparse, gram).astype(np.float32)


def _refitted(target: Array, sparse: Array, gram: Array) -> Array:
    """The entries that are left, by conjugate gradients on the squared error of each row's outputs."""
    mask = sparse != 0
    scale = 1.0 / np.diag(gram)  # the preconditioner
    now = sparse
    rest = mask * (target - now @ gram)
    step = along = rest * scale
    size = (rest * along).sum(1, keepdims=True)
    for _ in range(REFITS):
        change = mask * (along @ gram)
        length = size / np.maximum((along * change).sum(1, keepdims=True), 1e-300)
        now, rest = now + length * along, rest - length * change
        step = rest * scale
        before, size = size, (rest * step).sum(1, keepdims=True)
        along = step + size / np.maximum(before, 1e-300) * along
    weights: Array = now
    return weights
