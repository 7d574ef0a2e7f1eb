"""k-means in one dimension over a histogram, so that its time does not grow with the number of weights."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.compression.layers import Array
from ort_gpu_ep.errors import ConfigError

BINS = 4096
SAMPLE = 1 << 10
"""Of so many weights the first are looked at: whether there are few different ones at all."""


def centroids(weights: Array, count: int) -> Array:
    """At most `count` float32 values, ascending: means of clusters. Deterministic. Raises ConfigError without scikit-learn."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise ConfigError("codebooks need scikit-learn: pip install scikit-learn") from error
    flat = weights.reshape(-1).astype(np.float64)
    if len(np.unique(flat[:SAMPLE])) <= count and len(distinct := np.unique(flat)) <= count:
        return distinct.astype(np.float32)
    counts, edges = np.histogram(flat, BINS)
    sums, _ = np.histogram(flat, edges, weights=flat)
    filled = counts > 0
    means, mass = sums[filled] / counts[filled], counts[filled]
    count = min(count, len(means))
    spread = np.cumsum(np.cbrt(mass))       # where the density is high centres are close, but less so than quantiles
    start = np.interp((np.arange(count) + 0.5) / count * spread[-1], spread, means)
    found = KMeans(count, init=start[:, None], n_init=1, max_iter=100).fit(means[:, None], sample_weight=mass)
    return np.unique(found.cluster_centers_.reshape(-1).astype(np.float32))


def nearest(weights: Array, values: Array) -> Array:
    """The index of the nearest of ascending values, for each weight."""
    borders = (values[1:].astype(np.float64) + values[:-1]) / 2
    found: Array = np.searchsorted(borders, weights.reshape(-1)).reshape(weights.shape)
    return found
