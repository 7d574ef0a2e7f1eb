"""Arithmetic of each element type, against numpy in 64 bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, probe
from ort_gpu_ep.ir.graph import Array

COUNT = 4099
"""Elements: a prime, not a multiple of any workgroup."""


def _each(trial: Trial, name: str, kinds: tuple[str, str], expression: str, inputs: Sequence[Array], out: str, enable: str = "") -> Array:
    """`expression` over x, y of each element; kinds: WGSL types of the inputs and the output."""
    count = len(inputs[0])
    source = f"""{enable}
@group(0) @binding(0) var<storage, read> xs: array<{kinds[0]}>;
@group(0) @binding(1) var<storage, read> ys: array<{kinds[0]}>;
@group(0) @binding(2) var<storage, read_write> out: array<{kinds[1]}>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let i = id.x;
    if (i >= {count}u) {{ return; }}
    let x = xs[i];
    let y = ys[i];
    out[i] = {expression};
}}
"""
    return trial.wgsl(name, source, inputs, (out, count), -(-count // 64))


@probe("f32 arithmetic", "arithmetic", fault=(r"x \* y \+ x", "x * y - x"))
def f32(trial: Trial) -> str:
    """x y + x, x / y and sqrt within WGSL's error bounds (2.5 ULP for a division)."""
    worst = 0.0
    for _ in range(trial.rounds):
        x, y = trial.normal(COUNT), trial.normal(COUNT)
        y += np.copysign(np.float32(0.5), y)
        wide = x.astype(np.float64), y.astype(np.float64)
        wanted = {"x * y + x": wide[0] * wide[1] + wide[0], "x / y": wide[0] / wide[1], "sqrt(abs(x))": np.sqrt(abs(wide[0]))}
        for text, want in wanted.items():
            worst = max(worst, agree(text, _each(trial, "f32", ("f32", "f32"), text, (x, y), "float32"), want, 1e-6))
    return f"largest error {worst:.1e}"


@probe("i32 and u32 arithmetic", "arithmetic", fault=(r"x \* y", "x * y + 1"))
def integers(trial: Trial) -> str:
    """Products that wrap, division towards zero, shifts."""
    for _ in range(trial.rounds):
        x, y = trial.integers(-2**31, 2**31, COUNT, dtype="int32"), trial.integers(1, 2**31, COUNT, dtype="int32")
        wide = x.astype(np.int64)
        agree("i32 x * y", _each(trial, "i32", ("i32", "i32"), "x * y", (x, y), "int32"), (wide * y).astype(np.int32))
        agree("i32 x / y", _each(trial, "i32", ("i32", "i32"), "x / y", (x, y), "int32"), np.trunc(wide / y).astype(np.int32))
        u, s = x.view(np.uint32), trial.integers(0, 32, COUNT, dtype="uint32")
        agree("u32 x << y", _each(trial, "u32", ("u32", "u32"), "(x << y) ^ (x >> y)", (u, s), "uint32"), (u << s) ^ (u >> s))
    return f"{trial.rounds * 3 * COUNT} elements equal"


@probe("i64 arithmetic", "arithmetic", disables=("shader-int64",), fault=(r"x \* y", "x * y + 1"))
def int64(trial: Trial) -> str:
    """Sums, products and comparisons beyond 32 bits."""
    trial.need("shader-int64")
    for _ in range(trial.rounds):
        x, y = (trial.integers(-2**40, 2**40, COUNT) for _ in range(2))
        small = y >> 20
        agree("i64 x * y", _each(trial, "i64", ("i64", "i64"), "x * y", (x, small), "int64"), x * small)
        agree("i64 x + y", _each(trial, "i64", ("i64", "i64"), "x + y", (x, y), "int64"), x + y)
        agree("i64 x < y", _each(trial, "i64", ("i64", "u32"), "select(0u, 1u, x < y)", (x, y), "uint32"), (x < y).astype(np.uint32))
    return f"{trial.rounds * 3 * COUNT} elements equal"


@probe("f16 arithmetic", "arithmetic", disables=("shader-f16",), fault=(r"x \* y", "x * y + 1.0h"))
def f16(trial: Trial) -> str:
    """Products in 16 bits, and the conversions that the kernels use."""
    trial.need("shader-f16")
    for _ in range(trial.rounds):
        x, y = (trial.normal(COUNT - 1).astype(np.float16) for _ in range(2))
        want = x.astype(np.float64) * y.astype(np.float64)
        agree("f16 x * y", _each(trial, "f16", ("f16", "f16"), "x * y", (x, y), "float16", "enable f16;"), want, 1e-3)
        wide = _each(trial, "f16", ("f16", "f32"), "f32(x) * f32(y)", (x, y), "float32", "enable f16;")
        agree("f32(x) * f32(y)", wide, want, 1e-6)
    return f"{trial.rounds * 2 * (COUNT - 1)} elements within 16 bits"
