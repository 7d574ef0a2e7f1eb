"""Random models of many operators, element types and shapes. `python -m tests.session.random_graphs --count 500` runs
them for long.

A value is exact where every way to compute it gives the same bits: rounding, comparing and indexing only read such
ones, so that a difference in the last place of something else can't turn into another number.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import ort_gpu_ep

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

FLOATS, INTS = ("float32", "float16"), ("int64", "int32")
OPSET = 21


@dataclass(frozen=True)
class Value:
    """A tensor of the graph that is being made. bound: what no element's magnitude exceeds, some thousands at most."""

    name: str
    dtype: str
    shape: Shape
    exact: bool
    bound: float

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Maker:
    """Makes one model. values: what nodes may read."""

    def __init__(self, seed: int, dynamic: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.dynamic, self.made = dynamic, 0
        self.nodes: list[onnx.NodeProto] = []
        self.values: list[Value] = []
        self.constants: dict[str, Array] = {}
        self.feeds: dict[str, Array] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        for _ in range(self.int(1, 3)):
            self.input()

    # ---- chance

    def int(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, items: Sequence[Any]) -> Any:
        return items[self.int(0, len(items) - 1)]

    def maybe(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def dims(self, rank: int) -> Shape:
        """Small sizes, and some at the edges of tiles and workgroups."""
        edges = (31, 64, 65, 127, 128, 130) if rank <= 2 and self.maybe(0.3) else (16, 33)
        return tuple(self.pick((1, 2, 3, 4, 5, 7, 8, *edges)) for _ in range(rank))

    def array(self, shape: Shape, dtype: str, bound: float = 4.0) -> Array:
        """Floats are multiples of 1/8, so that sums and products of a few are exact."""
        if dtype == "bool":
            return self.rng.random(shape) < 0.5
        if dtype == "uint8":
            return self.rng.integers(0, 200, shape).astype(dtype)
        if dtype in FLOATS:
            return (self.rng.integers(-8 * int(bound), 8 * int(bound) + 1, shape) / 8).astype(dtype)
        return self.rng.integers(-int(bound), int(bound) + 1, shape).astype(dtype)

    # ---- the graph

    def input(self) -> None:
        name, dtype = (
            f"x{len(self.inputs)}",
            self.pick(("float32",) * 6 + ("float16", "int64", "int32", "bool", "uint8", "int8")),
        )
        shape = self.dims(self.int(1, 4))
        while math.prod(shape) > 20_000:
            shape = shape[1:]
        self.feeds[name] = self.array(shape, dtype)
        shown: list[int | str] = [f"{name}_{i}" if self.dynamic and self.maybe(0.4) else d for i, d in enumerate(shape)]
        self.inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shown))
        self.values.append(Value(name, dtype, shape, True, 200.0 if dtype == "uint8" else 4.0))

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def add(self, op: str, reads: Sequence[str], made: Sequence[Value], **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op, reads, [v.name for v in made], f"n{len(self.nodes)}", **attributes))
        self.values += [v for v in made if v.size]

    def new(self, dtype: str, shape: Sequence[int], exact: bool, bound: float) -> Value:
        self.made += 1
        return Value(f"v{self.made}", dtype, tuple(map(int, shape)), exact, bound)

    def one(self, fits: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A value that fits, recent ones more often; None where there is none."""
        found = [v for v in self.values if fits(v)]
        if not found:
            return None
        return found[-1] if self.maybe(0.5) else self.pick(found)

    def partner(self, value: Value) -> Value | None:
        """A value of that type whose shape broadcasts with that value's; a new constant half the time."""
        fitting = [v for v in self.values if v.dtype == value.dtype and _broadcast(v.shape, value.shape) is not None]
        if fitting and self.maybe(0.6):
            return self.pick(fitting)  # type: ignore[no-any-return]
        shape = tuple(d if self.maybe(0.6) else 1 for d in value.shape)[self.int(0, value.rank) :]
        if self.maybe(0.15):
            shape = (self.int(2, 3), *(1,) * (value.rank - len(shape)), *shape) if value.rank < 5 else shape
        return Value(
            self.constant(self.array(shape, value.dtype)),
            value.dtype,
            shape,
            True,
            200.0 if value.dtype == "uint8" else 4.0,
        )


def _broadcast(*shapes: Shape) -> Shape | None:
    try:
        made = np.broadcast_shapes(*shapes)
    except ValueError:
        return None
    return made if math.prod(made) <= 200_000 else None


# ---- steps: each adds a node or does nothing; False where nothing fitted

Step = Callable[[Maker], bool]


def unary(m: Maker) -> bool:
    op = m.pick(
        (
            "Relu",
            "Sigmoid",
            "Tanh",
            "Neg",
            "Abs",
            "Softsign",
            "Softplus",
            "Erf",
            "Sin",
            "Cos",
            "Atan",
            "HardSigmoid",
            "HardSwish",
            "Elu",
            "LeakyRelu",
            "Selu",
            "Gelu",
            "Mish",
            "Identity",
            "ThresholdedRelu",
            "Celu",
        )
    )
    x = m.one(lambda v: v.is_float and v.bound < 1e3 and not (v.dtype == "float16" and op == "Celu"))
    if x is None:
        return False
    exact = x.exact and op in ("Relu", "Neg", "Abs", "Identity", "ThresholdedRelu")
    m.add(op, [x.name], [m.new(x.dtype, x.shape, exact, max(x.bound * 1.8, 4.0))])
    return True


def positive(m: Maker) -> bool:
    """Operators that want small or positive numbers."""
    x = m.one(lambda v: v.dtype == "float32" and v.bound < 1e3)
    if x is None:
        return False
    op = m.pick(("Sqrt", "Log", "Exp", "Reciprocal"))
    if op == "Exp":
        t = m.new(x.dtype, x.shape, x.exact, 3.0)
        m.add("Clip", [x.name, m.constant(np.float32(-3)), m.constant(np.float32(3))], [t])
        m.add(op, [t.name], [m.new(x.dtype, x.shape, False, 21.0)])
        return True
    a, b = m.new(x.dtype, x.shape, x.exact, x.bound), m.new(x.dtype, x.shape, False, x.bound + 0.5)
    m.add("Abs", [x.name], [a])
    m.add("Add", [a.name, m.constant(np.float32(0.5))], [b])
    m.add(op, [b.name], [m.new(x.dtype, x.shape, False, max(math.sqrt(b.bound), 2.0))])
    return True


def rounding(m: Maker) -> bool:
    x = m.one(lambda v: v.is_float and v.exact)
    if x is None:
        return False
    m.add(m.pick(("Floor", "Ceil", "Round", "Sign")), [x.name], [m.new(x.dtype, x.shape, True, x.bound + 1)])
    return True


def binary(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype in (*FLOATS, *INTS) and v.bound < 60)
    y = m.partner(x) if x is not None else None
    if x is None or y is None or y.bound > 60:
        return False
    op = m.pick(("Add", "Sub", "Mul", "Min", "Max", "Sum", "Mean", "PRelu", "Div"))
    if op in ("Sum", "Mean", "PRelu") and not x.is_float:
        op = "Add"
    if op == "Div":
        if not x.is_float:
            return False
        divisor = Value(
            m.constant((m.rng.integers(1, 9, y.shape[-1:] if y.shape else ()) * m.pick((-1, 1)) / 2).astype(x.dtype)),
            x.dtype,
            y.shape[-1:],
            True,
            4.0,
        )
        y = divisor
    shape = _broadcast(x.shape, y.shape)
    if shape is None or (op == "PRelu" and shape != x.shape):
        return False
    first, second = (x, y) if m.maybe() or op in ("PRelu", "Div") else (y, x)
    bound = {"Mul": x.bound * y.bound, "PRelu": x.bound * max(y.bound, 1), "Div": 2 * x.bound}.get(
        op, x.bound + y.bound
    )
    # the sum of exact values is a multiple of 1/8 below 2^11: exact in float16 too; not so products of products
    exact = (
        x.exact
        and y.exact
        and (not x.is_float or op in ("Min", "Max") or (op in ("Add", "Sub") and x.bound + y.bound < 100))
    )
    m.add(op, [first.name, second.name], [m.new(x.dtype, shape, exact, bound)])
    return True


def compare(m: Maker) -> bool:
    x = m.one(lambda v: v.exact and v.dtype in ("float32", *INTS))
    y = m.partner(x) if x is not None else None
    if x is None or y is None or not y.exact:
        return False
    shape = _broadcast(x.shape, y.shape)
    if shape is None:
        return False
    m.add(
        m.pick(("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual")),
        [x.name, y.name],
        [m.new("bool", shape, True, 1)],
    )
    return True


def logic(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype == "bool")
    if x is None:
        return False
    if m.maybe(0.3):
        m.add("Not", [x.name], [m.new("bool", x.shape, True, 1)])
        return True
    y = m.partner(x)
    shape = _broadcast(x.shape, y.shape) if y is not None else None
    if y is None or shape is None:
        return False
    m.add(m.pick(("And", "Or", "Xor")), [x.name, y.name], [m.new("bool", shape, True, 1)])
    return True


def where(m: Maker) -> bool:
    c = m.one(lambda v: v.dtype == "bool")
    x = m.one(
        lambda v: v.dtype in (*FLOATS, *INTS, "uint8") and c is not None and _broadcast(v.shape, c.shape) is not None
    )
    if c is None or x is None:
        return False
    y = m.partner(x)
    shape = _broadcast(c.shape, x.shape, y.shape) if y is not None else None
    if y is None or shape is None:
        return False
    m.add(
        "Where",
        [c.name, *((x.name, y.name) if m.maybe() else (y.name, x.name))],
        [m.new(x.dtype, shape, x.exact and y.exact, max(x.bound, y.bound))],
    )
    return True


def cast(m: Maker) -> bool:
    x = m.one(lambda v: v.exact)
    if x is None:
        return False
    to = m.pick(("float32", "float16", "int32", "int64", "bool", "float32"))
    exact = x.bound < 200
    m.add(
        "Cast", [x.name], [m.new(to, x.shape, exact, max(x.bound, 1))], to=helper.np_dtype_to_tensor_dtype(np.dtype(to))
    )
    return True


def matmul(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype == "float32" and v.rank >= 1 and v.bound < 1e3)
    if x is None:
        return False
    k, n = x.shape[-1], m.pick((1, 3, 4, 8, 17, 32))
    batch = (
        tuple(d if m.maybe() else 1 for d in x.shape[:-2])[m.int(0, max(x.rank - 2, 0)) :]
        if x.rank > 2 and m.maybe()
        else ()
    )
    scale = 1 / max(x.bound * math.sqrt(k), 1)
    w = m.constant((m.array((*batch, k, n), "float32") * np.float32(scale)).astype("f"))
    m.add("MatMul", [x.name, w], [m.new("float32", (*x.shape[:-1], n), False, 4 * k)])
    return True


def gemm(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype == "float32" and v.rank == 2 and v.bound < 1e3)
    if x is None:
        return False
    ta, tb, n = m.int(0, 1), m.int(0, 1), m.pick((1, 3, 8, 20))
    k, rows = (x.shape[0], x.shape[1]) if ta else (x.shape[1], x.shape[0])
    w = m.constant((m.array((n, k) if tb else (k, n), "float32") / np.float32(max(x.bound, 1))).astype("f"))
    extra = [m.constant(m.array(m.pick(((n,), (1, n), (rows, 1), (), (rows, n))), "float32"))] if m.maybe(0.7) else []
    m.add(
        "Gemm",
        [x.name, w, *extra],
        [m.new("float32", (rows, n), False, 16 * k + 8)],
        transA=ta,
        transB=tb,
        alpha=m.pick((1.0, 0.5)),
        beta=m.pick((1.0, -2.0)),
    )
    return True


def conv(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype == "float32" and v.rank in (3, 4) and v.bound < 1e3)
    if x is None:
        return False
    groups = m.pick([g for g in (1, 1, x.shape[1]) if x.shape[1] % g == 0])
    out = groups * m.int(1, 4)
    kernel = [m.int(1, min(3, d)) for d in x.shape[2:]]
    strides, dilations = [m.int(1, 2) for _ in kernel], [1 if m.maybe(0.7) else 2 for _ in kernel]
    dilations = [d if d * (k - 1) + 1 <= s else 1 for d, k, s in zip(dilations, kernel, x.shape[2:], strict=True)]
    pads = [m.int(0, k - 1) for k in (*kernel, *kernel)]
    w = m.constant((m.array((out, x.shape[1] // groups, *kernel), "float32") / np.float32(max(x.bound, 1))).astype("f"))
    bias = [m.constant(m.array((out,), "float32"))] if m.maybe() else []
    half = len(kernel)
    spatial = [
        (s + pads[i] + pads[half + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i, s in enumerate(x.shape[2:])
    ]
    m.add(
        "Conv",
        [x.name, w, *bias],
        [m.new("float32", (x.shape[0], out, *spatial), False, 16.0 * x.shape[1] * math.prod(kernel) + 4)],
        group=groups,
        strides=strides,
        pads=pads,
        dilations=dilations,
    )
    return True


def pool(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype == "float32" and v.rank in (3, 4))
    if x is None:
        return False
    if m.maybe(0.2):
        m.add(
            m.pick(("GlobalAveragePool", "GlobalMaxPool")),
            [x.name],
            [m.new(x.dtype, (*x.shape[:2], *(1,) * (x.rank - 2)), False, x.bound)],
        )
        return True
    kernel = [m.int(1, min(3, d)) for d in x.shape[2:]]
    strides, pads = [m.int(1, 2) for _ in kernel], [m.int(0, k - 1) for k in (*kernel, *kernel)]
    half = len(kernel)
    spatial = [(s + pads[i] + pads[half + i] - kernel[i]) // strides[i] + 1 for i, s in enumerate(x.shape[2:])]
    op = m.pick(("MaxPool", "AveragePool"))
    more = {"count_include_pad": m.int(0, 1)} if op == "AveragePool" else {}
    m.add(
        op,
        [x.name],
        [m.new(x.dtype, (*x.shape[:2], *spatial), x.exact and op == "MaxPool", x.bound)],
        kernel_shape=kernel,
        strides=strides,
        pads=pads,
        **more,
    )
    return True


def softmax(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype == "float32" and v.rank >= 1)
    if x is None:
        return False
    op = m.pick(("Softmax", "Softmax", "LogSoftmax"))
    m.add(
        op,
        [x.name],
        [m.new(x.dtype, x.shape, False, 1.0 if op == "Softmax" else 2 * x.bound + 8)],
        axis=m.int(-x.rank, x.rank - 1),
    )
    return True


def reduce(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype in ("float32", *INTS) and v.rank >= 1 and v.bound < 1e3)
    if x is None:
        return False
    ops = (
        ("ReduceSum", "ReduceMax", "ReduceMin")
        if not x.is_float
        else (
            "ReduceSum",
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceL1",
            "ReduceL2",
            "ReduceSumSquare",
            "ReduceLogSumExp",
        )
    )
    op, keep = m.pick(ops), m.int(0, 1)
    axes = sorted(m.rng.choice(x.rank, m.int(1, x.rank), replace=False).tolist())
    shape = [1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes]
    count = math.prod(x.shape[a] for a in axes)
    bound = {
        "ReduceSum": x.bound * count,
        "ReduceL1": x.bound * count,
        "ReduceSumSquare": x.bound**2 * count,
        "ReduceL2": x.bound * count,
    }.get(op, x.bound + 12)
    m.add(
        op,
        [x.name, m.ints(*(a - x.rank if m.maybe(0.3) else a for a in axes))],
        [m.new(x.dtype, shape, x.exact and (not x.is_float or op in ("ReduceMax", "ReduceMin")), bound)],
        keepdims=keep,
    )
    return True


def arg(m: Maker) -> bool:
    x = m.one(lambda v: v.exact and v.dtype in ("float32", "int32") and v.rank >= 1)
    if x is None:
        return False
    axis, keep = m.int(0, x.rank - 1), m.int(0, 1)
    shape = [1 if i == axis else d for i, d in enumerate(x.shape) if keep or i != axis]
    m.add(
        m.pick(("ArgMax", "ArgMin")),
        [x.name],
        [m.new("int64", shape, True, x.shape[axis])],
        axis=axis,
        keepdims=keep,
        select_last_index=m.int(0, 1),
    )
    return True


def movement(m: Maker) -> bool:
    x = m.one(lambda v: v.rank >= 1)
    if x is None:
        return False
    kind = m.pick(
        (
            "Transpose",
            "Reshape",
            "Flatten",
            "Squeeze",
            "Unsqueeze",
            "Expand",
            "Tile",
            "Slice",
            "Pad",
            "Split",
            "Concat",
            "Gather",
        )
    )
    like = lambda shape: m.new(x.dtype, shape, x.exact, x.bound)  # noqa: E731
    axis = m.int(0, x.rank - 1)
    size = x.shape[axis]
    if kind == "Transpose":
        perm = m.rng.permutation(x.rank).tolist()
        m.add(kind, [x.name], [like([x.shape[p] for p in perm])], perm=perm)
    elif kind == "Reshape":
        shape = m.pick(((-1,), (x.shape[0], -1), (-1, x.shape[-1]), (0, -1), (1, -1, 1)))
        if shape == (0, -1) and x.rank < 2:
            shape = (-1,)
        known = [x.shape[i] if d == 0 else d for i, d in enumerate(shape)]
        m.add(kind, [x.name, m.ints(*shape)], [like([x.size // -math.prod(known) if d == -1 else d for d in known])])
    elif kind == "Flatten":
        m.add(kind, [x.name], [like((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))], axis=axis)
    elif kind == "Squeeze":
        ones = [i for i, d in enumerate(x.shape) if d == 1]
        if not ones:
            return False
        gone = m.pick(ones)
        m.add(kind, [x.name, m.ints(gone)], [like([d for i, d in enumerate(x.shape) if i != gone])])
    elif kind == "Unsqueeze":
        if x.rank > 4:
            return False
        m.add(kind, [x.name, m.ints(axis)], [like([*x.shape[:axis], 1, *x.shape[axis:]])])
    elif kind == "Expand":
        shape = tuple(d if d > 1 or m.maybe() else m.int(2, 3) for d in x.shape)
        if math.prod(shape) > 50_000:
            return False
        m.add(kind, [x.name, m.ints(*shape)], [like(shape)])
    elif kind == "Tile":
        repeats = [m.int(1, 2) for _ in x.shape]
        if x.size * math.prod(repeats) > 50_000:
            return False
        m.add(kind, [x.name, m.ints(*repeats)], [like([d * r for d, r in zip(x.shape, repeats, strict=True)])])
    elif kind == "Slice":
        step = m.pick((1, 1, 2, -1))
        start, end = (m.int(0, size - 1), size) if step > 0 else (size - 1, -size - 1)
        m.add(
            kind,
            [x.name, m.ints(start), m.ints(end), m.ints(axis), m.ints(step)],
            [like([*x.shape[:axis], len(range(size)[start::step] if step > 0 else range(size)), *x.shape[axis + 1 :]])],
        )
    elif kind == "Pad":
        mode = m.pick(("constant", "reflect", "edge"))
        pads = [m.int(0, 2) if mode != "reflect" else m.int(0, min(2, d - 1)) for d in (*x.shape, *x.shape)]
        if (
            x.dtype not in ("float32", *INTS)
            or math.prod(d + pads[i] + pads[i + x.rank] for i, d in enumerate(x.shape)) > 50_000
        ):
            return False
        extra = [m.constant(np.array(m.int(-2, 2), x.dtype))] if mode == "constant" and m.maybe() else []
        m.add(
            kind,
            [x.name, m.ints(*pads), *extra],
            [like([d + pads[i] + pads[i + x.rank] for i, d in enumerate(x.shape)])],
            mode=mode,
        )
    elif kind == "Split":
        if size < 2:
            return False
        at = m.int(1, size - 1)
        m.add(
            kind,
            [x.name, m.ints(at, size - at)],
            [like([*x.shape[:axis], n, *x.shape[axis + 1 :]]) for n in (at, size - at)],
            axis=axis,
        )
    elif kind == "Concat":
        fitting = [
            v
            for v in m.values
            if v.dtype == x.dtype
            and v.rank == x.rank
            and all(a == b for i, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)) if i != axis)
        ]
        parts = [m.pick(fitting) for _ in range(m.int(1, 3))]
        m.add(
            kind,
            [p.name for p in parts],
            [
                m.new(
                    x.dtype,
                    [*x.shape[:axis], sum(p.shape[axis] for p in parts), *x.shape[axis + 1 :]],
                    all(p.exact for p in parts),
                    max(p.bound for p in parts),
                )
            ],
            axis=axis,
        )
    else:
        where = m.rng.integers(-size, size, m.dims(m.int(0, 2)))
        if x.size // size * where.size > 50_000:
            return False
        m.add(
            kind,
            [x.name, m.constant(where.astype(m.pick(INTS)))],
            [like([*x.shape[:axis], *where.shape, *x.shape[axis + 1 :]])],
            axis=axis,
        )
    return True


def norm(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype == "float32" and v.rank >= 2)
    if x is None:
        return False
    op = m.pick(("LayerNormalization", "BatchNormalization", "InstanceNormalization", "LpNormalization"))
    positive_array = lambda n: (m.rng.integers(4, 17, n) / 8).astype("f")  # noqa: E731
    if op == "LayerNormalization":
        axis = m.int(1, x.rank - 1)
        shape = x.shape[axis:]
        reads = [
            x.name,
            m.constant(positive_array(shape)),
            *([m.constant(m.array(shape, "float32"))] if m.maybe() else []),
        ]
        if math.prod(shape) < 3:
            return False  # two numbers that are all but equal: their difference is all noise
        m.add(
            op, reads, [m.new("float32", x.shape, False, 2 * math.sqrt(math.prod(shape)) + 4)], axis=axis, epsilon=0.1
        )
    elif op == "LpNormalization":
        if not x.exact:
            return False  # a vector of numbers near zero: noise by noise
        m.add(op, [x.name], [m.new("float32", x.shape, False, 1.0)], axis=m.int(0, x.rank - 1), p=m.int(1, 2))
    elif op == "InstanceNormalization":
        if x.rank < 3 or math.prod(x.shape[2:]) < 3:
            return False
        c = x.shape[1]
        m.add(
            op,
            [x.name, m.constant(positive_array(c)), m.constant(m.array((c,), "float32"))],
            [m.new("float32", x.shape, False, 2 * math.sqrt(math.prod(x.shape[2:])) + 4)],
            epsilon=0.1,
        )
    else:
        c = x.shape[1]
        m.add(
            op,
            [
                x.name,
                *(
                    m.constant(a)
                    for a in (positive_array(c), m.array((c,), "float32"), m.array((c,), "float32"), positive_array(c))
                ),
            ],
            [m.new("float32", x.shape, False, 4 * x.bound + 20)],
        )
    return True


def indexing(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype in ("float32", *INTS) and v.rank >= 1 and v.exact)
    if x is None:
        return False
    axis = m.int(0, x.rank - 1)
    size, kind = x.shape[axis], m.pick(("GatherElements", "TopK", "CumSum", "ScatterElements", "Trilu", "OneHot"))
    like = lambda shape, exact=True: m.new(x.dtype, shape, exact, x.bound)  # noqa: E731
    if kind == "GatherElements":
        shape = tuple(m.int(1, 4) if i == axis else d for i, d in enumerate(x.shape))
        m.add(kind, [x.name, m.constant(m.rng.integers(-size, size, shape))], [like(shape)], axis=axis)
    elif kind == "TopK":
        k = m.int(1, size)
        shape = tuple(k if i == axis else d for i, d in enumerate(x.shape))
        m.add(
            kind, [x.name, m.ints(k)], [like(shape), m.new("int64", shape, True, size)], axis=axis, largest=m.int(0, 1)
        )
    elif kind == "CumSum":
        if x.bound * size > 1e3:
            return False
        m.add(
            kind,
            [x.name, m.constant(np.array(axis, np.int64))],
            [m.new(x.dtype, x.shape, not x.is_float, x.bound * size)],
            exclusive=m.int(0, 1),
            reverse=m.int(0, 1),
        )
    elif kind == "ScatterElements":
        count = m.int(1, size)
        shape = tuple(count if i == axis else d for i, d in enumerate(x.shape))
        where = np.argsort(m.rng.random(x.shape), axis)[tuple(slice(0, s) for s in shape)]
        m.add(
            kind,
            [x.name, m.constant(where.astype(np.int64)), m.constant(m.array(shape, x.dtype))],
            [like(x.shape)],
            axis=axis,
        )
    elif kind == "Trilu":
        if x.rank < 2:
            return False
        m.add(kind, [x.name, m.constant(np.array(m.int(-2, 2), np.int64))], [like(x.shape)], upper=m.int(0, 1))
    else:
        if x.dtype != "int64" or x.bound > 100 or x.size > 2000:
            return False
        depth = m.int(1, 5)
        m.add(
            kind,
            [x.name, m.constant(np.array(depth, np.int64)), m.constant(np.array([0, 1], "f"))],
            [m.new("float32", (*x.shape, depth), True, 1)],
        )
    return True


def resize(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype == "float32" and v.rank == 4 and v.size < 10_000)
    if x is None:
        return False
    if m.maybe(0.3) and x.shape[1] % 4 == 0:
        m.add(
            "DepthToSpace",
            [x.name],
            [m.new(x.dtype, (x.shape[0], x.shape[1] // 4, 2 * x.shape[2], 2 * x.shape[3]), x.exact, x.bound)],
            blocksize=2,
            mode=m.pick(("DCR", "CRD")),
        )
        return True
    sizes = (*x.shape[:2], m.int(1, 2 * x.shape[2]), m.int(1, 2 * x.shape[3]))
    mode = m.pick(("nearest", "linear"))
    how = (
        {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
        if mode == "nearest"
        else {"coordinate_transformation_mode": m.pick(("half_pixel", "align_corners", "asymmetric"))}
    )
    m.add(
        "Resize",
        [x.name, "", "", m.ints(*sizes)],
        [m.new(x.dtype, sizes, x.exact and mode == "nearest", x.bound)],
        mode=mode,
        **how,
    )
    return True


def quantize(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype == "float32" and v.exact)
    if x is None:
        return False
    kind = m.pick(("uint8", "int8"))
    reads = [m.constant(np.float32(m.pick((0.25, 0.5, 1.0)))), m.constant(np.array(m.int(0, 5), kind))]
    q = m.new(kind, x.shape, True, 255)
    m.add("QuantizeLinear", [x.name, *reads], [q])
    if m.maybe(0.7):
        m.add("DequantizeLinear", [q.name, *reads], [m.new("float32", x.shape, True, 255)])
    return True


def clip(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype in ("float32", "int32", "int64"))
    if x is None:
        return False
    bounds = [m.constant(np.array(b, x.dtype)) if m.maybe(0.8) else "" for b in (m.int(-3, 0), m.int(1, 3))]
    m.add("Clip", [x.name, *bounds], [m.new(x.dtype, x.shape, x.exact, x.bound)])
    return True


def product(m: Maker) -> bool:
    """MatMul of two values."""
    x = m.one(lambda v: v.dtype == "float32" and v.rank >= 2 and v.bound < 40)
    y = m.one(
        lambda v: x is not None and v.dtype == "float32" and v.rank >= 2 and v.bound < 40 and v.shape[-2] == x.shape[-1]
    )
    if x is None:
        return False
    if y is None:
        perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        y = m.new("float32", [x.shape[p] for p in perm], x.exact, x.bound)
        m.add("Transpose", [x.name], [y], perm=perm)
    batch = _broadcast(x.shape[:-2], y.shape[:-2])
    if batch is None or math.prod(batch) * x.shape[-2] * y.shape[-1] > 100_000:
        return False
    m.add(
        "MatMul",
        [x.name, y.name],
        [m.new("float32", (*batch, x.shape[-2], y.shape[-1]), False, x.bound * y.bound * x.shape[-1])],
    )
    return True


def transposed(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype == "float32" and v.rank in (3, 4) and v.bound < 1e3)
    if x is None:
        return False
    groups = m.pick([g for g in (1, 1, 2, x.shape[1]) if x.shape[1] % g == 0])
    each = m.int(1, 3)
    kernel, half = [m.int(1, 3) for _ in x.shape[2:]], x.rank - 2
    strides = [m.int(1, 3) for _ in kernel]
    pads = [m.int(0, (k - 1) // 2) for k in (*kernel, *kernel)]
    extra = [m.int(0, s - 1) for s in strides]
    w = m.constant((m.array((x.shape[1], each, *kernel), "float32") / np.float32(max(x.bound, 1))).astype("f"))
    bias = [m.constant(m.array((each * groups,), "float32"))] if m.maybe() else []
    spatial = [
        (d - 1) * strides[i] + extra[i] + kernel[i] - pads[i] - pads[half + i] for i, d in enumerate(x.shape[2:])
    ]
    m.add(
        "ConvTranspose",
        [x.name, w, *bias],
        [m.new("float32", (x.shape[0], each * groups, *spatial), False, 16.0 * x.shape[1] * math.prod(kernel) + 4)],
        group=groups,
        strides=strides,
        pads=pads,
        output_padding=extra,
    )
    return True


def recurrent(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype == "float32" and v.rank == 3 and v.bound < 100)
    if x is None:
        return False
    op, hidden, direction = (
        m.pick(("LSTM", "GRU", "RNN")),
        m.pick((1, 3, 8, 20)),
        m.pick(("forward", "reverse", "bidirectional")),
    )
    gates, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if direction == "bidirectional" else 1
    steps, batch, features = x.shape
    scale = np.float32(1 / (8 * max(x.bound, 1) * features))
    reads = [
        x.name,
        m.constant(m.array((ways, gates * hidden, features), "float32") * scale),
        m.constant(m.array((ways, gates * hidden, hidden), "float32") / np.float32(16 * hidden)),
    ]
    if m.maybe():
        reads.append(m.constant(m.array((ways, 2 * gates * hidden), "float32")))
        if m.maybe(0.3):
            reads.append(m.constant(m.rng.integers(1, steps + 1, batch).astype(np.int32)))
    more = {"linear_before_reset": m.int(0, 1)} if op == "GRU" else {}
    made = [
        m.new("float32", (steps, ways, batch, hidden), False, 1.0),
        *(m.new("float32", (ways, batch, hidden), False, b) for b in (1.0, steps)[: 2 if op == "LSTM" else 1]),
    ]
    m.add(op, reads, made, hidden_size=hidden, direction=direction, **more)
    return True


def einsum(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype == "float32" and v.rank in (2, 3) and v.bound < 100)
    if x is None:
        return False
    letters = "abc"[: x.rank]
    kept = "".join(m.rng.permutation(list(letters))[: m.int(0, x.rank)])
    size = dict(zip(letters, x.shape, strict=True))
    k = m.pick((1, 3, 9))
    w = m.constant((m.array((size[letters[-1]], k), "float32") / np.float32(max(x.bound, 1))).astype("f"))
    shape = (*(size[c] for c in kept), k)
    m.add(
        "Einsum",
        [x.name, w],
        [m.new("float32", shape, False, 4.0 * x.size)],
        equation=f"{letters},{letters[-1]}z->{kept}z",
    )
    return True


def scatter(m: Maker) -> bool:
    x = m.one(lambda v: v.dtype in ("float32", *INTS) and v.rank >= 1)
    if x is None:
        return False
    depth = m.int(1, x.rank)
    if m.maybe():
        where = np.stack([m.rng.integers(-d, d, (2, 3)) for d in x.shape[:depth]], -1)
        if 6 * math.prod(x.shape[depth:]) > 50_000:
            return False
        m.add("GatherND", [x.name, m.constant(where)], [m.new(x.dtype, (2, 3, *x.shape[depth:]), x.exact, x.bound)])
        return True
    flat = m.rng.choice(math.prod(x.shape[:depth]), min(3, math.prod(x.shape[:depth])), replace=False)
    where = np.stack(np.unravel_index(flat, x.shape[:depth]), -1)
    update = m.constant(m.array((len(flat), *x.shape[depth:]), x.dtype))
    m.add(
        "ScatterND",
        [x.name, m.constant(where.astype(np.int64)), update],
        [m.new(x.dtype, x.shape, x.exact, max(x.bound, 4.0))],
    )
    return True


def quantized(m: Maker) -> bool:
    """Integer products, as quantized models have them."""
    x = m.one(lambda v: v.dtype in ("uint8", "int8") and v.rank == 2)
    if x is None:
        return False
    n = m.pick((1, 4, 9, 33))
    kind = m.pick(("uint8", "int8"))
    w = m.constant(m.rng.integers(0, 100, (x.shape[1], n)).astype(kind))
    zeros = [m.constant(np.array(m.int(0, 9), x.dtype)), m.constant(np.array(m.int(0, 9), kind))] if m.maybe() else []
    m.add("MatMulInteger", [x.name, w, *zeros], [m.new("int32", (x.shape[0], n), True, 1e6)])
    return True


def island(m: Maker) -> bool:
    """A node that only the CPU has."""
    x = m.one(lambda v: v.dtype == "float32" and v.bound < 1e3)
    if x is None:
        return False
    m.add("QuickGelu", [x.name], [m.new("float32", x.shape, False, max(x.bound, 4.0))], domain="com.microsoft")
    return True


STEPS: dict[Step, int] = {
    unary: 4,
    positive: 2,
    rounding: 1,
    binary: 6,
    compare: 1,
    logic: 1,
    where: 1,
    cast: 1,
    matmul: 3,
    gemm: 2,
    conv: 4,
    pool: 2,
    softmax: 2,
    reduce: 3,
    arg: 1,
    movement: 6,
    norm: 2,
    indexing: 2,
    resize: 1,
    quantize: 1,
    clip: 1,
    product: 2,
    transposed: 1,
    recurrent: 2,
    einsum: 1,
    scatter: 1,
    quantized: 2,
    island: 2,
}


def random_model(
    seed: int, dynamic: bool = False, nodes: int | None = None
) -> tuple[bytes, dict[str, Array], dict[str, Value]]:
    """A model, inputs for it, and its outputs. dynamic: some sizes of the inputs are names. nodes: some more come of
    the last step."""
    m = Maker(seed, dynamic)
    steps, weights = list(STEPS), np.array(list(STEPS.values()), float)
    wanted = m.int(2, 14) if nodes is None else nodes
    while len(m.nodes) < wanted:
        steps[int(m.rng.choice(len(steps), p=weights / weights.sum()))](m)
    read = {name for n in m.nodes for name in n.input}
    made = {v.name: v for v in m.values if not v.name.startswith("x")}
    outputs = {name: v for name, v in made.items() if name not in read or m.maybe(0.1)}
    outputs = outputs or {m.values[-1].name: m.values[-1]}
    graph = helper.make_graph(
        m.nodes,
        f"random_{seed}",
        m.inputs,
        [
            helper.make_tensor_value_info(v.name, helper.np_dtype_to_tensor_dtype(np.dtype(v.dtype)), None)
            for v in outputs.values()
        ],
        [numpy_helper.from_array(a, n) for n, a in m.constants.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)], ir_version=10
    )
    return bytes(model.SerializeToString()), m.feeds, outputs


def wrong(got: Array, want: Array, value: Value) -> str:
    """What is wrong with an output; empty where nothing is."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    if value.exact:
        return (
            ""
            if np.array_equal(got, want, equal_nan=value.is_float)
            else f"{np.count_nonzero(got != want)} of {got.size} differ, expected equal"
        )
    if not np.array_equal(np.isfinite(got), np.isfinite(want)):
        return "NaN or infinity in other places"
    finite = np.isfinite(want)
    unit = max(float(np.abs(want[finite]).max(initial=0.0)), 0.1)
    error = float(np.abs(got[finite].astype("f8") - want[finite].astype("f8")).max(initial=0.0)) / unit
    return "" if error <= (2e-2 if value.dtype == "float16" else 2e-4) else f"off by {error:.1e} of the largest element"


def quiet() -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return settings


def differences(
    model: bytes, feeds: dict[str, Array], outputs: dict[str, Value], **options: object
) -> tuple[list[str], Any]:
    """What our session answers otherwise than onnxruntime's CPU, and the session."""
    cpu = onnxruntime.InferenceSession(model, quiet(), providers=["CPUExecutionProvider"])
    want = cpu.run(None, feeds)
    session = ort_gpu_ep.InferenceSession(model, quiet(), provider_options={"placement": "gpu", **options})
    found: list[str] = []
    for number in range(2):  # the second run was recorded ahead
        for name, g, w in zip(outputs, session.run(None, feeds), want, strict=True):
            what = wrong(g, w, outputs[name])
            if what:
                found.append(f"run {number}, {name}: {what}")
    if session.stats()["fallbacks"]:
        found.append(f"fallbacks: {session.explain().events}")
    return found, session


@dataclass
class _Tally:
    """What a number of models showed."""

    wrong: int = 0
    direct: int = 0
    ops: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def add(self, seed: int, model: bytes, found: Sequence[str], declined: Sequence[str], session: Any) -> None:
        self.refused.update(re.sub(r"\d+", "#", message[:160]) for message in declined)
        nodes = onnx.load_from_string(model).graph.node
        self.direct += session is None
        self.ops.update(
            ((n.op_type, "direct") for n in nodes)
            if session is None
            else ((n.op, n.device) for r in session.explain().reports for n in r.nodes)
        )
        if found:
            self.wrong += 1
            print(f"{seed}: {[n.op_type for n in nodes]}: {found}", flush=True)


def _compare(seed: int, is_open: bool, options: dict[str, object], tally: _Tally) -> None:
    """One model."""
    if is_open:
        from tests.session.open_graphs import direct_differences, open_differences, open_model

        made = open_model(seed)
        direct = direct_differences(made) if seed % 4 and not options else None
        tally.add(seed, made.model, *((*direct, None) if direct is not None else open_differences(made, **options)))
        return
    model, feeds, outputs = random_model(seed, dynamic=bool(seed % 2))
    found, session = differences(model, feeds, outputs, **options)
    tally.add(seed, model, found, (), session)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--option", action="append", default=[], help="a provider option, as isolation=process")
    parser.add_argument(
        "--open", action="store_true", help="with sizes and steering inputs that differ from run to run: open_graphs.py"
    )
    asked = parser.parse_args()
    start, tally = time.time(), _Tally()
    for seed in range(asked.first, asked.first + asked.count):
        try:
            _compare(seed, asked.open, dict(o.split("=", 1) for o in asked.option), tally)
        except Exception as error:
            tally.refused[f"{type(error).__name__}: {str(error)[:160]}"] += 1
            print(f"{seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(
        f"{asked.count} models ({tally.direct} as one program), {tally.wrong} wrong, {sum(tally.refused.values())} "
        f"refused, {time.time() - start:.0f} s"
    )
    print(sorted(tally.ops.items()))
    print(*tally.refused.most_common(), sep="\n")
    sys.exit(bool(tally.wrong))


if __name__ == "__main__":
    main()
