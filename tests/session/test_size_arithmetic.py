"""Calculations with sizes of the run, in each element type: what the CPU gives, from one plan where no shape depends on
an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_gpu_ep
from ort_gpu_ep.kernels import shape_arithmetic
from tests.session.random_graphs import Array, quiet
from tests.session.size_graphs import size_model
from tests.unit.graphs import model_of

rng = np.random.default_rng(5)

SHAPE = "s = Shape(x) n = Gather(s, zero) "
"""n: the first size of x, an int64 scalar."""


def checked(text: str, constants: Mapping[str, Any], runs: list[dict[str, Array]], opset: int = 21) -> Any:
    """A strict session that has given in each run what the CPU gives."""
    model = model_of(text, {"zero": np.array(0), **constants}, opset).SerializeToString()
    session = ort_gpu_ep.InferenceSession(model, quiet(), provider_options={"placement": "gpu", "strict": "1"})
    cpu = onnxruntime.InferenceSession(model, quiet(), providers=["CPUExecutionProvider"])
    assert session.explain().count("cpu") == 0
    for feeds in runs:
        for got, want in zip(session.run(None, feeds), cpu.run(None, feeds), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=1e-6, atol=1e-6)
    assert session.stats()["fallbacks"] == 0
    return session


def planned(session: Any) -> int:
    return sum(partition.program.planned for partition in session.state.partitions)


def of_sizes(*sizes: int) -> list[dict[str, Array]]:
    return [{"x": rng.standard_normal((n, 4)).astype("f")} for n in sizes]


@pytest.mark.parametrize("kind", ["FLOAT", "FLOAT16", "DOUBLE", "INT32", "UINT8"])
@pytest.mark.parametrize("op", ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
def test_a_cast_size_is_compared(op: str, kind: str) -> None:
    number = {"FLOAT": "f4", "FLOAT16": "f2", "DOUBLE": "f8", "INT32": "i4", "UINT8": "u1"}[kind]
    code = {"FLOAT": 1, "FLOAT16": 10, "DOUBLE": 11, "INT32": 6, "UINT8": 2}[kind]
    text = (
        f"(float[N, 4] x) => (y) {{ {SHAPE} f = Cast<to = {code}>(n) c = {op}(f, three) w = Where(c, a, b) y = "
        f"Add(x, w) }}"
    )
    session = checked(
        text, {"three": np.array(3, number), "a": np.float32(10), "b": np.float32(20)}, of_sizes(3, 5, 2, 3, 6)
    )
    assert planned(session) == 2, "one for each answer"


@pytest.mark.parametrize(
    "expression",
    [
        "Max(f, half)",
        "Min(f, half)",
        "Sub(f, half)",
        "Div(f, half)",
        "Pow(f, half)",
        "Mod<fmod = 1>(f, half)",
        "Sqrt(f)",
        "Neg(f)",
        "Floor(d)",
        "Ceil(d)",
        "Round(d)",
        "Reciprocal(f)",
        "Abs(e)",
        "Sign(e)",
        "Clip(f, half, most)",
    ],
)
def test_floats_of_sizes_need_one_plan(expression: str) -> None:
    text = (
        f"(float[N, 4] x) => (y) {{ {SHAPE} f = Cast<to = 1>(n) d = Div(f, half) e = Sub(f, most) w = "
        f"{expression} y = Add(x, w) }}"
    )
    session = checked(text, {"half": np.float32(2.5), "most": np.float32(6)}, of_sizes(3, 5, 2, 17, 3))
    assert planned(session) == 1


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceMean"])
@pytest.mark.parametrize("code", [1, 7])
def test_sizes_are_reduced(op: str, code: int) -> None:
    text = (
        f"(float[N, 4] x) => (y) {{ {SHAPE} f = Cast<to = {code}>(s) r = {op}<keepdims = 0>(f) w = Cast<to = "
        f"1>(r) y = Add(x, w) }}"
    )
    assert planned(checked(text, {}, of_sizes(3, 5, 17))) == 1


@pytest.mark.parametrize(("code", "kind"), [(1, "float"), (6, "int32"), (7, "int64"), (10, "float16"), (2, "uint8")])
def test_a_size_is_what_a_pad_writes(code: int, kind: str) -> None:
    text = f"({kind}[N, 4] x) => (y) {{ {SHAPE} v = Cast<to = {code}>(n) y = Pad(x, pads, v) }}"
    types = {"float": "f4", "float16": "f2", "uint8": "u1"}.get(kind, kind)
    session = checked(text, {"pads": np.array([1, 0, 0, 2])}, [{"x": np.ones((n, 4), types)} for n in (3, 5, 9, 3)])
    assert planned(session) == 1


@pytest.mark.parametrize(
    "text",
    [
        "f = Cast<to = 1>(n) y = Clip(x, none, f)",
        "f = Cast<to = 1>(n) y = Pow(p, f)",
        "t = Shape(x) y = Reshape(x, t)",
        "f = Cast<to = 1>(n) y = Range(zerof, f, half)",
        "t = Transpose<perm = [1, 0]>(m) i = Concat<axis = 0>(t, t) y = Add(i, zero)",
        "u = Unsqueeze(n, axis) l = Less(places, u) f = Cast<to = 1>(l) y = Mul(f, table)",
        "u = Unsqueeze(n, axis) l = Less(places, u) k = Not(l) o = Or(k, l) a = And(l, o) y = Where(a, ones, more)",
        "f = Cast<to = 1>(n) c = Max(f, half) d = Div(c, f) u = Unsqueeze(d, axis) q = Concat<axis = 0>(onef, u) y = "
        'Resize<mode = "linear">(x, , q)',
    ],
)
def test_builders_get_sizes_or_none(text: str) -> None:
    """Nothing that a kernel is made of follows from a size without the plan's knowing: 20 sizes, one plan."""
    constants = {
        "zerof": np.float32(0),
        "half": np.float32(0.5),
        "axis": np.array([0]),
        "places": np.arange(40),
        "ones": np.ones((40, 1), "f"),
        "more": np.full((40, 1), 7, "f"),
        "table": rng.random((40, 40)).astype("f"),
        "none": np.float32(-1),
        "onef": np.ones(1, "f"),
        "p": np.array([1.0, 1.01, 0.9], "f"),
    }
    head = SHAPE + ("m = Unsqueeze(s, axis) " if "(m)" in text else "")
    declared = "float[N, 4]" if "Reshape" not in text else "float[N, 5]"
    runs = [{"x": rng.standard_normal((n, 4 if declared == "float[N, 4]" else 5)).astype("f")} for n in range(3, 23)]
    model = f"({declared} x) => (y, z) {{ {head} {text} z = Relu(x) }}"
    session = checked(model, constants, runs)
    assert planned(session) <= 2


@pytest.mark.parametrize(
    ("kind", "value"), [("int32", 2**31 - 1), ("int64", 2**63 - 1), ("int32", -(2**31)), ("int32", 5)]
)
def test_integers_of_a_run_wrap_around(kind: str, value: int) -> None:
    """Of their type, as on the CPU; that they steer a shape makes the host read them."""
    text = (
        f"({kind} k, float[N, 4] x) => (y, z) {{ a = Add(k, one) b = Mul(a, a) c = Sub(b, k) l = Less(k, a) d = "
        f"Div(c, three) "
        "w = Cast<to = 7>(l) u = Unsqueeze(w, axis) p = Expand(x, u) y = Relu(p) m = Cast<to = 1>(d) z = Add(x, m) }"
    )
    runs = [{"k": np.array(k, kind), "x": rng.standard_normal((2, 4)).astype("f")} for k in (value, 7, value, 8)]
    checked(
        text.replace("Expand(x, u)", "Slice(x, axis, u)"),
        {"one": np.array(1, kind), "three": np.array(3, kind), "axis": np.array([0])},
        runs,
    )


def test_a_step_back_starts_at_the_first_element_at_the_latest() -> None:
    text = (
        "(float[N, 4] x) => (y) { s = Shape<start = 0, end = 1>(x) r = Slice(s, from, to, axis, back) f = Cast<to = "
        "1>(r) y = Add(x, f) }"
    )
    constants = {"from": np.array([-2]), "to": np.array([-(2**31)]), "axis": np.array([0]), "back": np.array([-1])}
    checked(text, constants, of_sizes(3, 5))
    text = "(float[N, 4] x) => (y) { r = Slice(c, from, to, axis, back) y = Add(x, r) }"
    checked(text, {**constants, "c": np.array([2], "f")}, of_sizes(3, 5))


def test_scales_of_sizes_compile_once() -> None:
    text = (
        "(float[1, 2, H, W] x, int64[2] size) => (y) { s = Shape<start = 2>(x) h = Cast<to = 1>(s) w = Cast<to = "
        "1>(size) q = Div(w, h) "
        'r = Concat<axis = 0>(one, q) y = Resize<mode = "linear">(x, , r) }'
    )
    runs = [
        {"x": rng.standard_normal((1, 2, h, w)).astype("f"), "size": np.array(size)}
        for h, w, size in ((5, 7, [9, 11]), (6, 9, [20, 8]), (7, 4, [30, 31]), (3, 3, [8, 7]))
    ]
    assert planned(checked(text, {"one": np.ones(2, "f")}, runs)) == 1


def test_a_rule_that_raises_is_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rule did not foresee: the node is computed otherwise."""

    def raises(node: Any) -> Any:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(shape_arithmetic, "_RULES", {**shape_arithmetic._RULES, "Mul": raises, "Cast": raises})
    text = f"(float[N, 4] x) => (y) {{ {SHAPE} t = Mul(n, n) f = Cast<to = 1>(t) y = Add(x, f) }}"
    checked(text, {}, of_sizes(3, 5))


def test_size_models_are_not_all_alike() -> None:
    """What the comparison in test_fuzz.py can see depends on what is generated."""
    models = [size_model(seed) for seed in range(12)]
    ops = {op for m in models for op in m.nodes}
    assert len(ops) > 30
    assert {"Cast", "Where", "Div"} <= ops
    assert all(len({a.shape for f in m.runs for a in f.values()}) > 2 for m in models)
