"""Kernels that move elements: transposed, sliced, concatenated, gathered, padded."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, compare, probe


@probe("strided reads", "kernels", disables=("strided.wgsl",), quick=True)
def strided(trial: Trial) -> str:
    """Transposes and slices at odd sizes, of 4 and of 8 bytes."""
    for _ in range(trial.rounds):
        x = trial.normal(3, 17, 5)
        agree("Transpose", trial.node("Transpose", 13, [x], perm=(2, 0, 1))[0], x.transpose(2, 0, 1))
        y = trial.integers(-2**60, 2**60, 31, 33)
        agree("Transpose of int64", trial.node("Transpose", 13, [y], perm=(1, 0))[0], y.T)
        bounds = {k: np.array(v, np.int64) for k, v in enumerate(((29, 2), (1, 31), (0, 1), (-3, 4)), 1)}
        agree("Slice", trial.node("Slice", 13, [y, *[None] * 4], bounds)[0], y[29:1:-3, 2:31:4])
    return "3 forms"


@probe("concatenation", "kernels", disables=("concat_pair.wgsl", "strided_write.wgsl"))
def concatenation(trial: Trial) -> str:
    """Two inputs, and many, along each axis."""
    for axis in (0, 1):
        for count in (2, 5):
            parts = [trial.normal(*((k + 3, 7) if axis == 0 else (7, k + 3))) for k in range(count)]
            agree(f"Concat of {count}", trial.node("Concat", 13, parts, axis=axis)[0], np.concatenate(parts, axis))
    return "2 axes of 2 and 5 parts"


@probe("gather", "kernels", disables=("gather.wgsl",))
def gather(trial: Trial) -> str:
    """Gather, GatherElements and GatherND, with negative indices."""
    for _ in range(trial.rounds):
        x = trial.normal(13, 7, 5)
        compare(trial, "Gather", 13, [x, trial.integers(-7, 7, 3, 2)], axis=1)
        compare(trial, "GatherElements", 13, [x, trial.integers(0, 13, 4, 7, 5, dtype="int32")], axis=0)
        compare(trial, "GatherND", 13, [x, trial.integers(0, 7, 6, 2)])
    return "3 ops"


@probe("padding", "kernels", disables=("pad.wgsl",))
def padding(trial: Trial) -> str:
    """Constant, reflected, repeated; and cropped."""
    x = trial.normal(5, 7, 9)
    for mode in ("constant", "reflect", "edge"):
        pads = np.array([1, 2, 0, 0, 3, 1], np.int64)
        compare(trial, "Pad", 13, [x, None], {1: pads}, mode=mode)
    return "3 modes"


@probe("triangles, ones and diagonals", "kernels", disables=("trilu.wgsl", "one_hot.wgsl", "eye_like.wgsl", "reverse_sequence.wgsl"))
def patterns(trial: Trial) -> str:
    """Trilu, OneHot, EyeLike, ReverseSequence."""
    compare(trial, "Trilu", 14, [trial.normal(3, 9, 11)], upper=0)
    depth, values = np.array(11, np.int64), np.array([2.0, 5.0], np.float32)
    compare(trial, "OneHot", 11, [trial.integers(0, 11, 7, 3), None, values], {1: depth})
    compare(trial, "EyeLike", 9, [trial.integers(0, 9, 13, 17, dtype="int32")], k=2)
    compare(trial, "ReverseSequence", 10, [trial.normal(7, 5, 3), np.array([7, 1, 4, 0, 6])[:5] % 7 + 1], time_axis=0, batch_axis=1)
    return "4 ops"


@probe("scatter", "kernels", disables=("scatter_places.wgsl", "scatter_owner.wgsl", "scatter_replace.wgsl", "scatter_reduce.wgsl"))
def scatter(trial: Trial) -> str:
    """Updates of distinct places, beyond a workgroup's tile of 4,096; and sums of several updates of one place."""
    for _ in range(trial.rounds):
        x = trial.normal(5003)
        places = trial.rng.permutation(5003)[:1000].astype(np.int64)
        compare(trial, "ScatterND", 18, [x, places[:, None], trial.normal(1000)])
        updates = [trial.normal(7, 33), trial.integers(0, 7, 5, 33), trial.normal(5, 33)]
        compare(trial, "ScatterElements", 18, updates, axis=0, reduction="add")
    return "2 forms"
