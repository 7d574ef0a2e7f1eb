"""Kernels that reduce rows with teams of invocations: reductions, softmax, normalisations."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, probe, solve, solves
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.problems import normal, problem
from ort_gpu_ep.kernels.records import RECORDS

ROWS = ((5, 1), (3, 31), (7, 257), (300, 9), (2, 1025), (1, 40_001))
"""(rows, length): teams of 1 to 256 invocations, and a row long enough to be cut into pieces."""


@probe("reductions", "kernels", disables=("reduce.wgsl",))
def reductions(trial: Trial) -> str:
    """Sum, mean, max, product over rows, columns and several axes."""
    for _ in range(trial.rounds):
        for (shape,) in trial.some(ROWS, of=6, turn=2):
            x = trial.normal(*shape)
            agree(
                f"ReduceSum of {shape}",
                trial.node("ReduceSum", 11, [abs(x)], axes=(1,))[0],
                abs(x).sum(1, np.float64, keepdims=True),
            )
            agree(
                f"ReduceMax over columns of {shape}",
                trial.node("ReduceMax", 11, [x], axes=(0,))[0],
                x.max(0, keepdims=True),
            )
        x = trial.normal(3, 7, 11)
        wide = x.astype(np.float64)
        agree(
            "ReduceMean over axes 0 and 2",
            trial.node("ReduceMean", 11, [x], axes=(0, 2))[0],
            wide.mean((0, 2), keepdims=True),
        )
        agree("ReduceL2", trial.node("ReduceL2", 11, [x], axes=(1,))[0], np.sqrt((wide**2).sum(1, keepdims=True)))
        agree("ReduceProd", trial.node("ReduceProd", 11, [x], axes=(2,))[0], wide.prod(2, keepdims=True))
        agree("ReduceMin", trial.node("ReduceMin", 11, [x], axes=(0,))[0], wide.min(0, keepdims=True))
    return f"{len(ROWS)} shapes"


@probe("reductions of nothing", "kernels", disables=("reduce_empty.wgsl",))
def empty(trial: Trial) -> str:
    """The sum of no elements is 0, their product 1, their maximum minus infinity."""
    x = trial.normal(3, 0)
    for op, want in (("ReduceSum", 0.0), ("ReduceProd", 1.0), ("ReduceMax", -np.inf)):
        agree(op, trial.node(op, 11, [x], axes=(1,))[0], np.full((3, 1), want))
    return "3 reductions"


@probe("softmax", "kernels", disables=("softmax.wgsl",), quick=True)
def softmax(trial: Trial) -> str:
    """Softmax, LogSoftmax and ReduceLogSumExp over rows of all lengths, with values that overflow exp."""
    for _ in range(trial.rounds):
        for shape in ROWS if trial.rounds > 1 else ROWS[3:4]:  # others are softmax_rows.wgsl's
            x = trial.normal(*shape) * np.float32(50)
            wide = x.astype(np.float64)
            power = np.exp(wide - wide.max(1, keepdims=True))
            agree(f"Softmax of {shape}", trial.node("Softmax", 13, [x], axis=1)[0], power / power.sum(1, keepdims=True))
    if trial.rounds > 1:
        solve(trial, problem("LogSoftmax", 13, normal(37, 211), axis=0))
        solve(trial, problem("ReduceLogSumExp", 13, normal(5, 77), axes=[1], keepdims=1))
    return f"{2 + len(ROWS)} shapes" if trial.rounds > 1 else "1 shape"


solves(
    "normalisations",
    *RECORDS["normalize.wgsl"].problems,
    of=2,
    about="LayerNormalization over rows of all lengths, InstanceNormalization, LpNormalization.",
    disables=("normalize.wgsl",),
)


@probe("rows in pieces", "kernels", disables=("moments_of_pieces.wgsl", "normalize_pieces.wgsl"))
def pieces(trial: Trial) -> str:
    """Rows that several workgroups share, the last with less of them than the others."""
    scale, bias = trial.normal(3), trial.normal(3)
    for ((form, height),) in trial.some((("2 pieces", 78), ("4 pieces", 156)), of=2):
        x = trial.normal(2, 3, height, 61 * 4) + np.float32(3)
        wide = x.astype(np.float64)
        want = (wide - wide.mean((2, 3), keepdims=True)) / np.sqrt(wide.var((2, 3), keepdims=True) + 1e-5)
        with forced(form):
            got = trial.node("InstanceNormalization", 6, [x, scale, bias])[0]
        agree(f"InstanceNormalization in {form}", got, want * scale.reshape(3, 1, 1) + bias.reshape(3, 1, 1))
    return "2 numbers of pieces"


@probe("moments of rows", "kernels", disables=("row_moments.wgsl",))
def moments(trial: Trial) -> str:
    """The mean and inverse deviation that LayerNormalization gives on request."""
    for (n,) in trial.some((31, 1025), of=2, turn=1):
        x = trial.normal(9, n)
        wide = x.astype(np.float64)
        got = trial.node("LayerNormalization", 17, [x, trial.normal(n)], outputs=3)
        agree("mean", got[1], wide.mean(1, keepdims=True))
        agree("inverse deviation", got[2], 1 / np.sqrt(wide.var(1, keepdims=True) + 1e-5))
    return "2 lengths"


@probe("normalisation by neighbours", "kernels", disables=("lrn.wgsl",))
def neighbours(trial: Trial) -> str:
    """LRN by numpy: ONNX's reference is wrong for all but the first channels."""
    for _ in range(trial.rounds):
        x = trial.normal(2, 7, 5, 3)
        squares = np.pad(x.astype(np.float64) ** 2, ((0, 0), (1, 1), (0, 0), (0, 0)))
        sums = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
        agree(
            "LRN",
            trial.node("LRN", 13, [x], size=3, alpha=0.1, beta=0.75, bias=1.0)[0],
            x / (1 + 0.1 / 3 * sums) ** 0.75,
        )
    return "1 window"


solves(
    "attention",
    *RECORDS["attention.wgsl"].problems,
    of=2,
    about="Queries that fill a workgroup and one alone, keys in slices and in one, fewer heads of keys, causal, with a mask.",
    disables=("attention.wgsl",),
    fault=(r"return j < SK;", "return j + 1u < SK;"),
)
