"""Probes of special values: NaN, infinity, denormals, arguments far beyond a period."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, probe
from ort_gpu_ep.health.probes.arithmetic import _each

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5, 3e38, -3e38, 1e-30], np.float32)


@probe(
    "NaN and infinity in min and max",
    "special values",
    disables=("elementwise.wgsl", "reduce.wgsl", "softmax.wgsl"),
    fault=(r"is_nan_f32\(x: f32\) -> bool \{ return .*?; \}", "is_nan_f32(x: f32) -> bool { return false; }"),
)
def not_a_number(trial: Trial) -> str:
    """Max, Min, comparisons and tests of every pair of special values, as numpy has them."""
    x, y = (np.ascontiguousarray(a.reshape(-1)) for a in np.meshgrid(SPECIAL, SPECIAL))
    for op, want in (("Max", np.maximum), ("Min", np.minimum)):
        agree(op, trial.node(op, 13, [x, y])[0], want(x, y))
    for op, version, test in (("Less", 13, np.less), ("Equal", 13, np.equal)):
        agree(op, trial.node(op, version, [x, y])[0], test(x, y))
    agree("IsNaN", trial.node("IsNaN", 20, [x])[0], np.isnan(x))
    agree("IsInf", trial.node("IsInf", 20, [x])[0], np.isinf(x))
    return f"{x.size} pairs"


@probe("denormals", "special values", fault=(r"x \* y", "x * y + 1.0"))
def denormals(trial: Trial) -> str:
    """Products below 1.2e-38 are either right or flushed to zero (WGSL allows both), and denormals that are only moved
    stay."""
    x, y = (np.abs(trial.normal(512)) + np.float32(0.5)) * np.float32(1e-30), np.full(512, 1e-10, np.float32)
    got = _each(trial, "denormals", ("f32", "f32"), "x * y", (x, y), "float32")
    want = x.astype(np.float64) * 1e-10
    flushed = got == 0
    agree("x * y", np.where(flushed, 0, got), np.where(flushed, 0.0, want), 1e-4)
    moved = trial.node("Transpose", 13, [want.astype(np.float32).reshape(2, 256)], perm=(1, 0))[0]
    agree("bits of Transpose", moved.view(np.uint32), want.astype(np.float32).reshape(2, 256).T.copy().view(np.uint32))
    return f"{int(flushed.sum())} of 512 flushed to zero"


@probe("functions of huge arguments", "special values", disables=("elementwise.wgsl",))
def huge(trial: Trial) -> str:
    """sin, cos, exp, log and tanh from tiny to 1e30, against numpy in 64 bits."""
    with np.errstate(over="ignore"):
        x = np.concatenate([trial.normal(1001) * s for s in (1e-20, 1.0, 1e3, 1e8, 1e30)]).astype(np.float32)
        wide = x.astype(np.float64)
        for op, function in (("Sin", np.sin), ("Cos", np.cos), ("Tanh", np.tanh)):
            agree(op, trial.node(op, 22 if op != "Tanh" else 13, [x])[0], function(wide), 1e-5)
        agree("Exp", trial.node("Exp", 13, [x[1001:2002]])[0], np.exp(wide[1001:2002]), 1e-5)
        agree("Log", trial.node("Log", 13, [abs(x)])[0], np.log(abs(wide)), 1e-5)
    return f"5 functions of {x.size} arguments"
