"""Arithmetic of each element type, against numpy in 64 bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, probe
from ort_gpu_ep.ir.graph import Array

COUNT = 4099
"""Elements: a prime, not a multiple of any workgroup."""


def _each(
    trial: Trial,
    name: str,
    kinds: tuple[str, str],
    expression: str,
    inputs: Sequence[Array],
    out: str,
    enable: str = "",
) -> Array:
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
    """x y + x, x / y and sqrt within WGSL's error bounds (2.5 ULP for a division), and remainders."""
    worst = 0.0
    for _ in range(trial.rounds):
        x, y = trial.normal(COUNT), trial.normal(COUNT)
        y += np.copysign(np.float32(0.5), y)
        wide = x.astype(np.float64), y.astype(np.float64)
        expected = {
            "x * y + x": wide[0] * wide[1] + wide[0],
            "x / y": wide[0] / wide[1],
            "sqrt(abs(x))": np.sqrt(abs(wide[0])),
        }
        for text, want in expected.items():
            worst = max(worst, agree(text, _each(trial, "f32", ("f32", "f32"), text, (x, y), "float32"), want, 1e-6))
        # far from where the quotient's rounding makes it another one
        quotients, part = trial.integers(0, 16, COUNT), 0.25 + 0.5 * trial.rng.random(COUNT)
        z = ((quotients + part) * y).astype(np.float32)
        want = np.fmod(z.astype(np.float64), wide[1])
        worst = max(worst, agree("x % y", _each(trial, "f32", ("f32", "f32"), "x % y", (z, y), "float32"), want, 1e-5))
    return f"largest error {worst:.1e}"


@probe("i32 and u32 arithmetic", "arithmetic", fault=(r"x \* y", "x * y + 1"))
def integers(trial: Trial) -> str:
    """Products that wrap, division towards zero, shifts."""
    for _ in range(trial.rounds):
        x, y = trial.integers(-(2**31), 2**31, COUNT, dtype="int32"), trial.integers(1, 2**31, COUNT, dtype="int32")
        wide = x.astype(np.int64)
        agree("i32 x * y", _each(trial, "i32", ("i32", "i32"), "x * y", (x, y), "int32"), (wide * y).astype(np.int32))
        agree(
            "i32 x / y",
            _each(trial, "i32", ("i32", "i32"), "x / y", (x, y), "int32"),
            np.trunc(wide / y).astype(np.int32),
        )
        u, s = x.view(np.uint32), trial.integers(0, 32, COUNT, dtype="uint32")
        agree(
            "u32 x << y",
            _each(trial, "u32", ("u32", "u32"), "(x << y) ^ (x >> y)", (u, s), "uint32"),
            (u << s) ^ (u >> s),
        )
    return f"{trial.rounds * 3 * COUNT} elements equal"


@probe("i64 arithmetic", "arithmetic", disables=("shader-int64",), fault=(r"x \* y", "x * y + 1"))
def int64(trial: Trial) -> str:
    """Sums, products and comparisons beyond 32 bits."""
    trial.need("shader-int64")
    for _ in range(trial.rounds):
        x, y = (trial.integers(-(2**40), 2**40, COUNT) for _ in range(2))
        small = y >> 20
        agree("i64 x * y", _each(trial, "i64", ("i64", "i64"), "x * y", (x, small), "int64"), x * small)
        agree("i64 x + y", _each(trial, "i64", ("i64", "i64"), "x + y", (x, y), "int64"), x + y)
        agree(
            "i64 x < y",
            _each(trial, "i64", ("i64", "u32"), "select(0u, 1u, x < y)", (x, y), "uint32"),
            (x < y).astype(np.uint32),
        )
    return f"{trial.rounds * 3 * COUNT} elements equal"


_HALVES = """enable f16;
@group(0) @binding(0) var<storage, read> xs: array<f16>;
@group(0) @binding(1) var<storage, read> ys: array<f16>;
@group(0) @binding(2) var<storage, read_write> out: array<f16>;
var<private> held: array<f16, 8>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let i = id.x;
    if (i >= {count}u) {{ return; }}
    let x = xs[i];
    let y = ys[i];
    for (var k = 0u; k < 8u; k++) {{ held[(i + k) % 8u] = select(y, x, k < 4u); }}
    out[6u * i] = x + y;
    out[6u * i + 1u] = x / y;
    out[6u * i + 2u] = x % y;
    out[6u * i + 3u] = f16(i32(x)) - f16(u32(abs(y)));
    out[6u * i + 4u] = f16(f32(x) * 0.3);
    out[6u * i + 5u] = held[(i + 1u) % 8u] - held[(i + 6u) % 8u];
}}
"""


@probe("f16 arithmetic", "arithmetic", disables=("shader-f16",), fault=(r"x \* y", "x * y + 1.0h"))
def f16(trial: Trial) -> str:
    """Products, sums, quotients and remainders in 16 bits, the conversions that the kernels use, and values in private
    variables. Sources: crbug.com/422215216 and 519984285."""
    trial.need("shader-f16")
    count = COUNT - 1
    for _ in range(trial.rounds):
        x, y = (trial.normal(count).astype(np.float16) for _ in range(2))
        want = x.astype(np.float64) * y.astype(np.float64)
        agree("f16 x * y", _each(trial, "f16", ("f16", "f16"), "x * y", (x, y), "float16", "enable f16;"), want, 1e-3)
        wide = _each(trial, "f16", ("f16", "f32"), "f32(x) * f32(y)", (x, y), "float32", "enable f16;")
        agree("f32(x) * f32(y)", wide, want, 1e-6)
        # as in f32: away from zero, and from where a rounding makes it another remainder or another integer
        y = (y + np.copysign(np.float16(0.5), y)).astype(np.float16)
        x = ((trial.integers(0, 8, count) + 0.25 + 0.5 * trial.rng.random(count)) * y).astype(np.float16)
        a, b = x.astype(np.float64), y.astype(np.float64)
        got = trial.wgsl("f16", _HALVES.format(count=count), [x, y], ("float16", 6 * count), -(-count // 64))
        whole = np.trunc(a) - np.trunc(abs(b))
        expected = {
            "x + y": a + b,
            "x / y": a / b,
            "x % y": np.fmod(a, b),
            "integers": whole,
            "f32(x)": a * 0.3,
            "private": a - b,
        }
        for k, (text, right) in enumerate(expected.items()):
            agree(f"f16 {text}", got.reshape(count, 6)[:, k], right, 1e-2 if text == "x % y" else 3e-3)
    return f"{trial.rounds * 8 * count} elements within 16 bits"


_WORDS = """
@group(0) @binding(0) var<storage, read> xs: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let i = id.x;
    if (i >= {count}u) {{ return; }}
    let x = xs[i];
    let next = xs[(i + 1u) % {count}u];
    {text}
}}
"""


def _words(trial: Trial, what: str, text: str, x: Array, want: Sequence[Array]) -> None:
    """Compares what an invocation writes, some words each, of its own number `x` and the next one's. Raises
    WrongResultError."""
    got = trial.wgsl(
        "words", _WORDS.format(count=x.size, text=text), [x], ("uint32", len(want) * x.size), -(-x.size // 64)
    )
    agree(what, got.reshape(x.size, -1), np.stack(want, 1))


_WRAPPED = """
    out[3u * i] = ((x * x) >> 16u) % 3u;
    out[3u * i + 1u] = ((x * 2654435761u) >> 8u) / 7u;
    out[3u * i + 2u] = (x + 0x9e3779b9u) % (next | 1u);
"""


@probe("u32 quotients of what wraps", "arithmetic", fault=("% 3u", "% 5u"), cure="opaque_divisors")
def wrapped(trial: Trial) -> str:
    """/ and % of sums and products beyond 32 bits, which Metal's compiler took for smaller ones. Source:
    crbug.com/517225032."""
    for _ in range(trial.rounds):
        x = trial.integers(0, 2**32, COUNT, dtype="uint32")
        _words(
            trial,
            "quotients",
            _WRAPPED,
            x,
            [
                ((x * x) >> 16) % 3,
                ((x * np.uint32(2654435761)) >> 8) // 7,
                (x + np.uint32(0x9E3779B9)) % (np.roll(x, -1) | 1),
            ],
        )
    return f"{trial.rounds * 3 * COUNT} elements equal"


_SELECTED = """
    let byte = (x >> 24u) & 0xffu;
    let low = byte & 0xfu;
    out[2u * i] = select(select(0u, 1u, low == 0u), 2u, low == 8u);
    out[2u * i + 1u] = select(select(7u, 5u, (byte >> 4u) != 0u), 3u, (byte >> 4u) == 15u);
"""


@probe("selects by masked bits", "arithmetic", fault=("low == 0u", "low != 0u"), cure="compared_below_one")
def selected(trial: Trial) -> str:
    """Comparisons with zero of a few bits of a word, one select inside another. Source: crbug.com/543420711."""
    for _ in range(trial.rounds):
        x = trial.integers(0, 2**32, COUNT, dtype="uint32")
        low, high = x >> 24 & 15, x >> 28
        chosen = np.where(low == 8, 2, np.where(low == 0, 1, 0)), np.where(high == 15, 3, np.where(high != 0, 5, 7))
        _words(trial, "selects", _SELECTED, x, [c.astype(np.uint32) for c in chosen])
    return f"{trial.rounds * 2 * COUNT} elements equal"


_SIGNS = """
    let f = bitcast<f32>(x);
    out[4u * i] = bitcast<u32>(-f);
    out[4u * i + 1u] = bitcast<u32>(abs(f));
    out[4u * i + 2u] = bitcast<u32>(-abs(-f));
    out[4u * i + 3u] = bitcast<u32>(select(-f, f, f < bitcast<f32>(next)));
"""


@probe("minus and abs", "arithmetic", fault=(r"-abs\(-f\)", "abs(-f)"), cure="sign_bits")
def signs(trial: Trial) -> str:
    """Alone, nested, and inside a select. Source: crbug.com/448294721."""
    for _ in range(trial.rounds):
        f = trial.normal(COUNT)
        _words(
            trial,
            "signs",
            _SIGNS,
            f.view(np.uint32),
            [a.view(np.uint32) for a in (-f, abs(f), -abs(f), np.where(f < np.roll(f, -1), f, -f))],
        )
    return f"{trial.rounds * 4 * COUNT} elements equal"


_BOUNDS = """
    if (i % 4u != 0u) { return; }
    let v = bitcast<vec4<f32>>(vec4<u32>(x, next, xs[i + 2u], xs[i + 3u]));
    let clamped = bitcast<vec4<u32>>(clamp(v, vec4<f32>(-0.5), vec4<f32>(0.5)));
    let between = bitcast<vec4<u32>>(max(min(v, vec4<f32>(0.25)), vec4<f32>(-0.25)));
    for (var k = 1u; k < 4u; k++) {
        out[i * 2u + k] = clamped[k];
        out[i * 2u + 4u + k] = between[k];
    }
    out[i * 2u] = 0u;
    out[i * 2u + 4u] = 0u;
"""


@probe("bounds beside a NaN", "arithmetic", fault=(r"\bclamp\(v,", "clamp(v.wzyx,"), cure="scalar_bounds")
def bounds(trial: Trial) -> str:
    """min, max and clamp of vectors whose first element is NaN leave the others alone. Source: crbug.com/407109052."""
    for _ in range(trial.rounds):
        f = trial.normal(COUNT // 4, 4)
        f[:, 0] = np.nan
        want = np.stack([np.clip(f, -0.5, 0.5), np.clip(f, -0.25, 0.25)], 1)
        want[:, :, 0] = 0.0
        source = _WORDS.format(count=f.size, text=_BOUNDS)
        got = trial.wgsl("bounds", source, [f.reshape(-1).view(np.uint32)], ("uint32", want.size), -(-f.size // 64))
        agree("bounds", got.view(np.float32).reshape(want.shape), want, 0.0)
    return f"{trial.rounds * (COUNT // 4)} vectors"
