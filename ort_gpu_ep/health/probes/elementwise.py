"""elementwise.wgsl: expressions over broadcast operands, of every element type, beyond 65,535 workgroups."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, compare, probe

EDGES = (1, 63, 64, 65, 4099)
"""Around a workgroup of 64."""


@probe("elementwise", "kernels", disables=("elementwise.wgsl",), quick=True)
def elementwise(trial: Trial) -> str:
    """Functions and broadcast sums at sizes around a workgroup."""
    for _ in range(trial.rounds):
        for n in EDGES if trial.rounds > 1 else EDGES[3:4]:
            x = trial.normal(n)
            agree(f"Add of {n}", trial.node("Add", 14, [x, x[::-1].copy()])[0], x.astype(np.float64) + x[::-1])
        a, b = trial.normal(101, 67), trial.normal(67)
        agree("Mul [101, 67] [67]", trial.node("Mul", 14, [a, b])[0], a.astype(np.float64) * b)
    return f"{len(EDGES) + 1 if trial.rounds > 1 else 2} shapes"


@probe("elementwise of other types", "kernels", disables=("elementwise.wgsl",))
def other_types(trial: Trial) -> str:
    """int32, and int64 and float16 where the adapter has them; several functions."""
    features = trial.gpu.limits.features
    types = ["int32", *(["int64"] if "shader-int64" in features else [])]
    for dtype in types:
        compare(trial, "Mul", 14, [trial.integers(-1000, 1000, 131, 3, dtype=dtype), trial.integers(-1000, 1000, 3, dtype=dtype)])
    for op, version in (("Erf", 13), ("Sigmoid", 13), ("Tanh", 13), ("Sqrt", 13), ("Neg", 13), ("Floor", 13), ("Exp", 13)):
        compare(trial, op, version, [abs(trial.normal(513))])
    if "shader-f16" in features:
        compare(trial, "Add", 14, [trial.normal(130).astype(np.float16), trial.normal(130).astype(np.float16)], tolerance=1e-3)
    return ", ".join(types)


@probe("more than 65,535 workgroups", "kernels", disables=("elementwise.wgsl",))
def many_workgroups(trial: Trial) -> str:
    """A grid folded into two dimensions."""
    x, y = trial.rng.random(65_537 * 67, np.float32), trial.normal(1)
    got = trial.node("Mul", 14, [x, y])[0]
    if not np.array_equal(got, x * y):      # both rounded once: else the comparison takes most of the probe's time
        agree("Mul", got, x.astype(np.float64) * y)
    return f"{x.size:,} elements"
