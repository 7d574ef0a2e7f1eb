"""elementwise.wgsl: elements that share a word, expressions over broadcast operands, of every element type, beyond
65,535 workgroups."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, probe, solve
from ort_gpu_ep.kernels.problems import Random, integers, normal, problem
from ort_gpu_ep.kernels.registry import PACKED

SIZES = (1, 2, 3, 4, 5, 255, 257, 4099)


@probe("pack and unpack bool", "packed elements", disables=(PACKED,))
def booleans(trial: Trial) -> str:
    """Comparisons write four to a word, logic reads them; sizes that end inside a word."""
    for (n,) in trial.repeated(SIZES, of=4, turn=2):
        x, y, mask = trial.normal(n), trial.normal(n), trial.rng.random(n) < 0.5
        agree(f"Less of {n}", trial.node("Less", 13, [x, y])[0], x < y)
        agree(f"Not of {n}", trial.node("Not", 1, [mask])[0], ~mask)
        agree(f"Where of {n}", trial.node("Where", 16, [mask, x, y])[0], np.where(mask, x, y))
    return f"{len(SIZES)} sizes"


@probe("pack and unpack int8 and uint8", "packed elements", disables=(PACKED,))
def bytes_(trial: Trial) -> str:
    """Sums that wrap in 8 bits, conversions from and to 32, and bytes that are only moved."""
    for (n,) in trial.repeated(SIZES, of=4, turn=2):
        for dtype, low, high in (("int8", -128, 128), ("uint8", 0, 256)):
            x, y = (trial.integers(low, high, n, dtype=dtype) for _ in range(2))
            agree(f"{dtype} x + y of {n}", trial.node("Add", 14, [x, y])[0], x + y)
        agree(f"Cast of {n}", trial.node("Cast", 13, [x], to=1)[0], x.astype(np.float32))
        agree(
            f"Transpose of {n}",
            trial.node("Transpose", 13, [np.outer(x, np.ones(3, np.uint8))], perm=(1, 0))[0],
            np.outer(np.ones(3, np.uint8), x),
        )
    return f"{len(SIZES)} sizes"


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
        factors = (integers(-1000, 1000, *shape, dtype=dtype) for shape in ((131, 3), (3,)))
        solve(trial, problem("Mul", 14, *factors))
    for op in ("Erf", "Sigmoid", "Tanh", "Sqrt", "Neg", "Floor", "Exp"):
        solve(trial, problem(op, 13, normal(513)), [abs(trial.normal(513))])
    if "shader-f16" in features:
        solve(trial, problem("Add", 14, *[Random((130,), "float16")] * 2, tolerance=1e-3))
    return ", ".join(types)


@probe("more than 65,535 workgroups", "kernels", disables=("elementwise.wgsl",))
def many_workgroups(trial: Trial) -> str:
    """A grid folded into two dimensions."""
    x, y = trial.rng.random(65_537 * 67, np.float32), trial.normal(1)
    got = trial.node("Mul", 14, [x, y])[0]
    if not np.array_equal(got, x * y):  # both rounded once: else the comparison takes most of the probe's time
        agree("Mul", got, x.astype(np.float64) * y)
    return f"{x.size:,} elements"
