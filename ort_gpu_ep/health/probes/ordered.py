"""TopK: keys, sorted runs, merges."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, probe

FILES = ("topk_keys.wgsl", "topk_sort.wgsl", "topk_merge.wgsl", "topk_indices.wgsl", "gather.wgsl")


@probe("top k", "kernels", disables=FILES)
def topk(trial: Trial) -> str:
    """Runs around a power of two, several runs to merge, both directions."""
    shapes = ((3, 7, 7), (2, 257, 31), (1, 5003, 1500))
    for _ in range(trial.rounds):
        for (rows, n, k), largest in trial.some(shapes, (0, 1), of=3):
            x = trial.normal(rows, n)
            order = np.argsort(-x if largest else x, 1, kind="stable")[:, :k]
            values, indices = trial.node("TopK", 11, [x, None], {1: np.array([k], np.int64)}, 2, largest=largest)
            agree(f"TopK {k} of {n}: indices", indices, order)
            agree(f"TopK {k} of {n}: values", values, np.take_along_axis(x, order, 1))
    return f"{2 * len(shapes)} shapes"
