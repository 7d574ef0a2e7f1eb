"""Cases with shapes and attributes drawn at random, seeded: forms that nobody thought of when the tables of cases.py
were written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.training.cases import apart, between, ints, normal
from tests.training.numeric import Case

Draw = Callable[[np.random.Generator], Case]
DRAWS: dict[str, Draw] = {}

SEEDS = range(3)


def draw(function: Draw) -> Draw:
    DRAWS[function.__name__] = function
    return function


def shape(rng: np.random.Generator, low: int = 1, high: int = 4, largest: int = 4) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, largest + 1, rng.integers(low, high + 1)))


def one(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def broadcast(rng: np.random.Generator, full: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to this one: some sizes 1, some leading ones left out."""
    return tuple(1 if rng.random() < 0.4 else n for n in full)[rng.integers(0, len(full) + 1) :]


@draw
def binary(rng: np.random.Generator) -> Case:
    full = shape(rng)
    sides = [full, broadcast(rng, full)]
    rng.shuffle(sides)
    op = one(rng, "Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")
    a = between(0.5, 2, *sides[0]) if op == "Pow" else normal(*sides[0])
    return Case(op, {"a": a, "b": between(0.5, 2, *sides[1])})


@draw
def where(rng: np.random.Generator) -> Case:
    full = shape(rng)
    return Case(
        "Where", {"c": rng.random(broadcast(rng, full)) < 0.5, "a": normal(*full), "b": normal(*broadcast(rng, full))}
    )


@draw
def reduction(rng: np.random.Generator) -> Case:
    full = shape(rng, 2)
    axes = rng.permutation(len(full))[: rng.integers(1, len(full) + 1)] - one(rng, 0, len(full))
    op = one(
        rng,
        "ReduceSum",
        "ReduceMean",
        "ReduceSumSquare",
        "ReduceL2",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMin",
        "ReduceL1",
    )
    return Case(op, {"x": apart(*full), "axes": ints(*axes)}, {"keepdims": int(one(rng, 0, 1))}, opset=18)


@draw
def softmax(rng: np.random.Generator) -> Case:
    full = shape(rng, 2)
    return Case(
        one(rng, "Softmax", "LogSoftmax"), {"x": normal(*full)}, {"axis": int(rng.integers(-len(full), len(full)))}
    )


@draw
def transpose(rng: np.random.Generator) -> Case:
    full = shape(rng, 2)
    return Case("Transpose", {"x": normal(*full)}, {"perm": [int(i) for i in rng.permutation(len(full))]})


@draw
def slices(rng: np.random.Generator) -> Case:
    full = tuple(int(n) for n in rng.integers(3, 7, 3))
    axes = rng.permutation(3)[: rng.integers(1, 4)]
    steps = [int(one(rng, 1, 2, -1, -2)) for _ in axes]
    ends = [(0, full[a]) if s > 0 else (full[a] - 1, -full[a] - 1) for a, s in zip(axes, steps, strict=True)]
    return Case(
        "Slice",
        {
            "x": normal(*full),
            "starts": ints(*(e[0] for e in ends)),
            "ends": ints(*(e[1] for e in ends)),
            "axes": ints(*axes),
            "steps": ints(*steps),
        },
    )


@draw
def joined(rng: np.random.Generator) -> Case:
    full = list(shape(rng, 2))
    axis = int(rng.integers(len(full)))
    parts = {n: normal(*full[:axis], int(rng.integers(1, 4)), *full[axis + 1 :]) for n in "abc"[: rng.integers(1, 4)]}
    return Case("Concat", parts, {"axis": axis - int(one(rng, 0, len(full)))})


@draw
def padded(rng: np.random.Generator) -> Case:
    full = tuple(int(n) for n in rng.integers(3, 6, rng.integers(1, 4)))
    return Case(
        "Pad",
        {"x": normal(*full), "pads": ints(*rng.integers(0, 3, 2 * len(full)))},
        {"mode": one(rng, "constant", "reflect", "edge")},
    )


@draw
def gather(rng: np.random.Generator) -> Case:
    full = shape(rng, 1, 3)
    axis = int(rng.integers(len(full)))
    return Case(
        "Gather", {"x": normal(*full), "i": rng.integers(-full[axis], full[axis], shape(rng, 0, 2))}, {"axis": axis}
    )


@draw
def expand(rng: np.random.Generator) -> Case:
    full = shape(rng)
    return Case("Expand", {"x": normal(*broadcast(rng, full)), "shape": ints(*full)})


@draw
def matmul(rng: np.random.Generator) -> Case:
    batch, (m, k, n) = shape(rng, 0, 2, 3), rng.integers(1, 5, 3)
    left, right = (batch, broadcast(rng, batch)) if one(rng, True, False) else (broadcast(rng, batch), batch)
    return Case("MatMul", {"a": normal(*left, m, k), "b": normal(*right, k, n)})


@draw
def gemm(rng: np.random.Generator) -> Case:
    (m, k, n), ta, tb = rng.integers(1, 6, 3), int(one(rng, 0, 1)), int(one(rng, 0, 1))
    c = one(rng, (n,), (1, n), (m, 1), (m, n), (1,), ())
    return Case(
        "Gemm",
        {"a": normal(*((k, m) if ta else (m, k))), "b": normal(*((n, k) if tb else (k, n))), "c": normal(*c)},
        {"transA": ta, "transB": tb, "alpha": float(rng.uniform(0.5, 2)), "beta": float(rng.uniform(0.5, 2))},
    )


def _windows(
    rng: np.random.Generator, axes: int, dilated: bool = True
) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """(attributes, kernel, image): windows that fit."""
    kernel, strides = (tuple(int(n) for n in rng.integers(1, 4, axes)) for _ in range(2))
    dilations = tuple(int(n) for n in rng.integers(1, 3, axes)) if dilated else (1,) * axes
    before, after = (tuple(int(rng.integers(0, k)) for k in kernel) for _ in range(2))
    image = tuple((k - 1) * d + 1 + int(rng.integers(0, 4)) for k, d in zip(kernel, dilations, strict=True))
    return {"strides": strides, "dilations": dilations, "pads": (*before, *after)}, kernel, image


@draw
def convolution(rng: np.random.Generator) -> Case:
    attributes, kernel, image = _windows(rng, int(one(rng, 1, 2, 2)))
    group, c, m, n = (int(k) for k in rng.integers(1, 4, 4))
    inputs = {"x": normal(n, group * c, *image), "w": normal(group * m, c, *kernel)}
    return Case(
        "Conv",
        {**inputs, **({"b": normal(group * m)} if one(rng, True, False) else {})},
        {**attributes, "group": group},
    )


@draw
def depthwise(rng: np.random.Generator) -> Case:
    attributes, kernel, image = _windows(rng, 2)
    n, c = (int(k) for k in rng.integers(2, 4, 2))
    return Case("Conv", {"x": normal(n, c, *image), "w": normal(c, 1, *kernel)}, {**attributes, "group": c})


@draw
def max_pool(rng: np.random.Generator) -> Case:
    attributes, kernel, image = _windows(rng, 2)
    return Case("MaxPool", {"x": apart(2, 2, *image)}, {**attributes, "kernel_shape": kernel})


@draw
def average_pool(rng: np.random.Generator) -> Case:
    attributes, kernel, image = _windows(rng, 2, dilated=False)
    del attributes["dilations"]
    return Case(
        "AveragePool",
        {"x": normal(2, 2, *image)},
        {**attributes, "kernel_shape": kernel, "count_include_pad": int(one(rng, 0, 1))},
    )


@draw
def layer_normalization(rng: np.random.Generator) -> Case:
    full = (*shape(rng, 1, 2), int(rng.integers(3, 6)))
    axis = int(rng.integers(len(full)))
    inputs = {"x": normal(*full), "scale": normal(*full[axis:])}
    return Case(
        "LayerNormalization",
        {**inputs, **({"bias": normal(*full[axis:])} if one(rng, True, False) else {})},
        {"axis": axis - int(one(rng, 0, len(full)))},
    )


@draw
def instance_normalization(rng: np.random.Generator) -> Case:
    n, c = (int(k) for k in rng.integers(1, 4, 2))
    return Case(
        "InstanceNormalization",
        {"x": normal(n, c, *rng.integers(2, 5, rng.integers(1, 3))), "scale": normal(c), "bias": normal(c)},
    )


@draw
def recurrent(rng: np.random.Generator) -> Case:
    op, gates = one(rng, ("LSTM", 4), ("GRU", 3), ("RNN", 1))
    steps, batch, size, hidden = (int(n) for n in rng.integers(1, 5, 4))
    inputs = {
        "x": normal(steps, batch, size),
        "w": normal(1, gates * hidden, size) * 0.5,
        "r": normal(1, gates * hidden, hidden) * 0.5,
    }
    inputs["b"] = normal(1, 2 * gates * hidden) * 0.5
    attributes = {"hidden_size": hidden, **({"linear_before_reset": int(one(rng, 0, 1))} if op == "GRU" else {})}
    return Case(op, inputs, attributes, outputs=2, used=one(rng, (0,), (1,), (0, 1)))


def drawn(name: str, seed: int) -> Case:
    found = DRAWS[name](np.random.default_rng([seed, *name.encode()]))
    return replace(found, name=f"{name} {seed}")


RANDOM = [drawn(name, seed) for name in DRAWS for seed in SEEDS]
"""Drawn at once, so that the values are the same whichever tests run."""
