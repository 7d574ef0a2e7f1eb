"""Elementwise ops against numpy in float64 and ONNX Runtime's CPU kernels: what ONNX's own node cases lack."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.webgpu.objects import Device
from tests.direct import run_direct
from tests.ops.single_node import Array, Host, data, model_of, on_cpu
from tests.unit.graphs import model_of as model_of_text

Function = Callable[..., Any]

ULPS = 4
"""Allowed error of a function of one number, in units of the last place of float32."""

SPECIAL = np.float32(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-30, -1e-30, 1e30, -1e30, 87.5, -87.5, 104.5, -104.5]
)

erf = np.vectorize(math.erf, otypes=[float])


def softplus(x: Any) -> Any:
    return np.logaddexp(0, x)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def run(op: str, *inputs: Array | Host | None, opset: int = 22, **attributes: Any) -> Array:
    return run_direct(*model_of(op, inputs, opset=opset, **attributes))[0]


def uniform(low: float, high: float, *shape: int) -> Array:
    return np.random.default_rng(7).uniform(low, high, shape).astype(np.float32)


def assert_close(got: Array, wanted: Any, slack: Any = 0.0) -> None:
    """Within ULPS of a float64 result (plus `slack`), with NaN and infinity in the same places."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(wanted).astype(np.float32)
    assert got.shape == rounded.shape
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    room = ULPS * np.spacing(np.maximum(np.abs(rounded), np.finfo(np.float32).tiny)).astype(np.float64) + slack
    error = np.where(finite, np.abs(got.astype(np.float64) - np.where(finite, wanted, 0)), 0)
    worst = int(np.argmax(error / room)) if error.size else 0
    assert (error <= np.where(finite, room, 1)).all(), (
        f"element {worst}: {got.flat[worst]} is not {np.asarray(wanted).flat[worst]}"
    )


UNARY: list[tuple[str, Function, float, float, dict[str, Any]]] = [
    ("Abs", np.abs, -5, 5, {}),
    ("Neg", np.negative, -5, 5, {}),
    ("Relu", lambda x: np.maximum(x, 0), -5, 5, {}),
    ("Sigmoid", sigmoid, -87, 20, {}),
    ("Tanh", np.tanh, -10, 10, {}),
    ("Exp", np.exp, -87, 88.7, {}),
    ("Log", np.log, 0, 3, {}),
    ("Log", np.log, 0, 3e38, {}),
    ("Sqrt", np.sqrt, 0, 100, {}),
    ("Reciprocal", np.reciprocal, -3, 3, {}),
    ("Floor", np.floor, -9, 9, {}),
    ("Ceil", np.ceil, -9, 9, {}),
    ("Round", np.rint, -9, 9, {}),
    ("Sign", np.sign, -1, 1, {}),
    ("Erf", erf, -5, 5, {}),
    ("Softplus", softplus, -87, 20, {}),
    ("Softsign", lambda x: x / (1 + np.abs(x)), -9, 9, {}),
    ("Elu", lambda x: np.where(x < 0, np.float32(0.7) * np.expm1(x), x), -9, 9, {"alpha": 0.7}),
    ("Elu", lambda x: np.where(x < 0, np.expm1(x), x), -0.01, 0.01, {}),
    (
        "Selu",
        lambda x: np.float32(1.5) * np.where(x > 0, x, np.float32(0.7) * np.expm1(x)),
        -9,
        9,
        {"alpha": 0.7, "gamma": 1.5},
    ),
    ("Celu", lambda x: np.where(x > 0, x, np.float32(0.7) * np.expm1(x / np.float32(0.7))), -6, 6, {"alpha": 0.7}),
    ("LeakyRelu", lambda x: np.where(x < 0, np.float32(0.3) * x, x), -9, 9, {"alpha": 0.3}),
    ("ThresholdedRelu", lambda x: np.where(x > np.float32(0.7), x, 0), -9, 9, {"alpha": 0.7}),
    ("HardSigmoid", lambda x: np.clip(np.float32(0.3) * x + np.float32(0.6), 0, 1), -9, 9, {"alpha": 0.3, "beta": 0.6}),
    ("HardSwish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1), -2.5, 9, {}),
    ("Mish", lambda x: x * np.tanh(softplus(x)), -20, 25, {}),
    ("Gelu", lambda x: x / 2 * (1 + erf(x / math.sqrt(2))), -5, 5, {}),
    ("Gelu", lambda x: x * sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)), -5, 5, {"approximate": "tanh"}),
    ("Shrink", lambda x: np.where(np.abs(x) > 1.5, x - np.sign(x) * 0.25, 0), -4, 4, {"lambd": 1.5, "bias": 0.25}),
    ("Sin", np.sin, -30, 30, {}),
    ("Cos", np.cos, -30, 30, {}),
    ("Tan", np.tan, -30, 30, {}),
    ("Sin", np.sin, -1e6, 1e6, {}),
    ("Cos", np.cos, -1e6, 1e6, {}),
    ("Asin", np.arcsin, -1, 1, {}),
    ("Acos", np.arccos, -1, 1, {}),
    ("Atan", np.arctan, -9, 9, {}),
    ("Sinh", np.sinh, -89, 89, {}),
    ("Sinh", np.sinh, -2, 2, {}),
    ("Cosh", np.cosh, -89, 89, {}),
    ("Asinh", np.arcsinh, -20, 20, {}),
    ("Acosh", np.arccosh, 1, 20, {}),
    ("Atanh", np.arctanh, -1, 1, {}),
]
CANCELS = ("Gelu", "HardSwish", "HardSigmoid", "Tan", "Acos", "Sin", "Cos")
"""Near a root their error is relative to what cancels there."""


@pytest.mark.parametrize(
    ("op", "reference", "low", "high", "attributes"), UNARY, ids=lambda v: v if isinstance(v, str) else ""
)
def test_unary_is_accurate(op: str, reference: Function, low: float, high: float, attributes: dict[str, Any]) -> None:
    x = uniform(low, high, 4099)
    with np.errstate(all="ignore"):
        wanted = reference(x.astype(np.float64))
    assert_close(run(op, x, **attributes), wanted, 1e-7 * np.minimum(np.abs(x), 4) if op in CANCELS else 0.0)


@pytest.mark.parametrize(
    ("op", "reference", "attributes"), [(r[0], r[1], r[4]) for r in UNARY if r[0] not in ("Mish", "Gelu", "HardSwish")]
)
def test_unary_special_values(op: str, reference: Function, attributes: dict[str, Any]) -> None:
    with np.errstate(all="ignore"):
        wanted = np.where(np.isnan(SPECIAL), np.nan, reference(SPECIAL.astype(np.float64)))
    if op in ("ThresholdedRelu", "Shrink"):
        wanted[np.isnan(SPECIAL)] = 0  # no comparison with NaN holds
    if op in ("Sin", "Cos", "Tan"):
        keep = np.abs(SPECIAL) != np.float32(1e30)  # numpy's own reduction is out of its depth there
        assert_close(run(op, SPECIAL, **attributes)[keep], wanted[keep], 1e-7)
    else:
        assert_close(run(op, SPECIAL, **attributes), wanted, 1e-30)


DRIVERS = {
    "exact": lambda text: f"({text})",
    "low": lambda text: f"bitcast<f32>(bitcast<i32>({text}) - 2)",
    "high": lambda text: f"bitcast<f32>(bitcast<i32>({text}) + 2)",
}
"""What WGSL lets a driver make of a root or a division: an error of 2.5 ULP."""


QUOTIENTS: dict[str, tuple[Function, dict[str, Any]]] = {
    "Sqrt": (np.sqrt, {}),
    "Reciprocal": (np.reciprocal, {}),
    "Div": (lambda x: x / np.float32(3), {}),
    "Mean": (lambda x: (x + 2 * x) / 2, {}),
    "ReduceMean": (lambda x: x.sum(1, keepdims=True) / np.float32(3), {"axes": [1]}),
    "ReduceL2": (lambda x: np.sqrt((x * x).sum(1, keepdims=True)), {"axes": [1]}),
    "Pow 0.5": (np.sqrt, {}),
    "Pow -1": (np.reciprocal, {}),
}


@pytest.mark.parametrize("what", QUOTIENTS)
@pytest.mark.parametrize("driver", DRIVERS)
def test_roots_and_quotients_are_rounded_correctly_on_every_driver(
    driver: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may compare them, round them down or count by them: 6 / 3 that is less than 2 gives another number of
    elements."""
    (op, _, exponent), (reference, attributes) = what.partition(" "), QUOTIENTS[what]
    compiled, texts = Device.create_shader_module, list[str]()

    def create(self: Device, label: str, code: str) -> Any:
        texts.append(re.sub(r"sqrt\(x\)(?=;)|(?<== )n / d(?=;)", lambda found: DRIVERS[driver](found[0]), code))
        return compiled(self, label, texts[-1])

    monkeypatch.setattr(Device, "create_shader_module", create)
    rows = 101 * {"exact": 1, "low": 3, "high": 5}[driver] + len(what)  # texts of their own: pipelines are kept
    x = np.exp(uniform(*((-30, 30) if op != "ReduceL2" else (-9, 9)), rows, 3))
    x.flat[:90:3] = np.arange(1, 31) ** 2
    if op == "ReduceMean":
        x = np.round(np.clip(x, 1, 1000))  # sums are exact
    more = {"Div": [np.full(1, 3, "f")], "Mean": [2 * x], "Pow": [Host(float(exponent or 0), "float32")]}.get(op, [])
    (got,) = run_direct(*model_of(op, (x, *more), opset=13, **attributes))
    want = reference(x)
    if op == "ReduceL2":  # whose sum is not exact
        np.testing.assert_array_max_ulp(got, want, 1)
    else:
        np.testing.assert_array_equal(got, want)
    assert any(DRIVERS[driver]("sqrt(x)") in text or DRIVERS[driver]("n / d") in text for text in texts)


def test_sine_of_huge_numbers() -> None:
    """Against a reduction by 400 bits of pi."""
    # the last is the closest to a multiple of pi/2
    x = np.float32([1100, 1e5, 1e10, 1e22, 1e30, 3e38, -1e22, 16367173 * 2.0**72])
    two_pi = 2 * pi(400)
    remainder = [Fraction(float(v)) % two_pi for v in x]
    assert_close(run("Sin", x), np.array([math.sin(r) for r in remainder]))
    assert_close(run("Cos", x), np.array([math.sin(two_pi / 4 - r) for r in remainder]))


def pi(bits: int) -> Fraction:
    """Machin's formula."""

    def arctan_of_inverse(n: int) -> int:
        total = term = (1 << bits) // n
        for k in range(3, bits, 2):
            term //= -n * n
            total += term // k
        return total

    return Fraction(4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239)), 1 << bits)


SHAPES = [
    ((3, 5), (3, 5)),
    ((5, 1, 7), (3, 1)),
    ((), (13,)),
    ((2, 1, 3, 1, 2, 1), (1, 2, 1, 3, 1, 2)),
    ((0, 3), (1, 3)),
    ((), ()),
    ((1,), (17,)),
]
FLOATING = ("float32", "float16")
SIGNED = ("int32", "int64", "int8")
UNSIGNED = ("uint32", "uint64", "uint8")


def truncated(x: Array, y: Array) -> Array:
    return (
        (np.abs(x.astype(object)) // np.abs(y.astype(object))) * np.sign(x).astype(object) * np.sign(y).astype(object)
    ).astype(x.dtype)


def quotient(x: Array, y: Array) -> Array:
    return x / y if x.dtype.kind == "f" else truncated(x, y)


BINARY: list[tuple[str, Function, tuple[str, ...], dict[str, Any]]] = [
    ("Add", np.add, FLOATING + SIGNED + UNSIGNED, {}),
    ("Sub", np.subtract, FLOATING + SIGNED + UNSIGNED, {}),
    ("Mul", np.multiply, FLOATING + SIGNED + UNSIGNED, {}),
    ("Div", quotient, FLOATING + SIGNED + UNSIGNED, {}),
    ("Max", np.maximum, FLOATING + SIGNED + UNSIGNED, {}),
    ("Min", np.minimum, FLOATING + SIGNED + UNSIGNED, {}),
    ("Equal", np.equal, (*FLOATING, *SIGNED, *UNSIGNED, "bool"), {}),
    ("Less", np.less, FLOATING + SIGNED + UNSIGNED, {}),
    ("Greater", np.greater, FLOATING + SIGNED + UNSIGNED, {}),
    ("LessOrEqual", np.less_equal, FLOATING + SIGNED + UNSIGNED, {}),
    ("GreaterOrEqual", np.greater_equal, FLOATING + SIGNED + UNSIGNED, {}),
    ("Mod", np.mod, SIGNED + UNSIGNED, {}),
    ("Mod", np.fmod, FLOATING + SIGNED + UNSIGNED, {"fmod": 1}),
    ("BitwiseAnd", np.bitwise_and, SIGNED + UNSIGNED, {}),
    ("BitwiseOr", np.bitwise_or, SIGNED + UNSIGNED, {}),
    ("BitwiseXor", np.bitwise_xor, SIGNED + UNSIGNED, {}),
    ("And", np.logical_and, ("bool",), {}),
    ("Or", np.logical_or, ("bool",), {}),
    ("Xor", np.logical_xor, ("bool",), {}),
    (
        "BitShift",
        lambda x, y: np.where(y < 8 * x.itemsize, x << (y % (8 * x.itemsize)), 0),
        UNSIGNED,
        {"direction": "LEFT"},
    ),
    (
        "BitShift",
        lambda x, y: np.where(y < 8 * x.itemsize, x >> (y % (8 * x.itemsize)), 0),
        UNSIGNED,
        {"direction": "RIGHT"},
    ),
]


def operands(op: str, dtype: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[Array, Array]:
    """Two arrays, many elements equal, of both signs, never zero (but for bool); large enough that 8 and 32 bits
    overflow."""
    made = []
    for k, shape in enumerate(shapes):
        x = data(*shape, dtype=dtype, seed=31 + k)
        if np.dtype(dtype).kind == "i":
            x = np.where(data(*shape, dtype="bool", seed=41 + k), x, -x).astype(dtype)
        if k and (op == "BitShift" or (op in ("Div", "Mod") and dtype not in FLOATING)):
            x = (np.sign(x) * (np.abs(x) % 37 + 1)).astype(dtype)
        made.append(x)
    if shapes[0] == shapes[1] and made[0].size > 1:
        made[1].reshape(-1)[::2] = made[0].reshape(-1)[::2] if op != "BitShift" else 3
    return made[0], made[1]


BINARY_CASES = [
    pytest.param(op, f, dtype, shapes, attributes, id=f"{op}-{dtype}-{shapes}{''.join(map(str, attributes.values()))}")
    for op, f, dtypes, attributes in BINARY
    for i, dtype in enumerate(dtypes)
    for shapes in (SHAPES if (op, i) in (("Add", 0), ("Less", 0)) else SHAPES[:2])
]


@pytest.mark.parametrize(("op", "reference", "dtype", "shapes", "attributes"), BINARY_CASES)
def test_binary(op: str, reference: Function, dtype: str, shapes: Any, attributes: dict[str, Any]) -> None:
    x, y = operands(op, dtype, shapes)
    with np.errstate(over="ignore"):
        wanted = np.asarray(reference(x, y))
    got = run(op, x, y, **attributes)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if dtype in FLOATING and wanted.dtype != bool:
        np.testing.assert_allclose(got, wanted, rtol=1.2e-7 if dtype == "float32" else 1e-3)
    else:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("op", ["Add", "Mul", "Max", "Min", "Less", "GreaterOrEqual", "LessOrEqual", "Equal"])
def test_binary_special_values(op: str) -> None:
    x, y = (a.reshape(-1) for a in np.meshgrid(SPECIAL, SPECIAL))
    reference = {r[0]: r[1] for r in BINARY}[op]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(op, x, y), reference(x, y))


@pytest.mark.parametrize(
    ("low", "high", "reach"), [(0.01, 100, 5), (1e-37, 1e37, 1), (0.99, 1.01, 3000), (0.5, 2, 100)]
)
def test_pow_is_accurate(low: float, high: float, reach: float) -> None:
    x, y = np.exp(uniform(math.log(low), math.log(high), 4099)), uniform(-reach, reach, 4099)[::-1].copy()
    assert_close(run("Pow", x, y), np.power(x.astype(np.float64), y.astype(np.float64)))


def test_pow_special_values() -> None:
    values = np.float32([*SPECIAL, 2, -2, 3, -3, 0.5, -0.5, 33, -33, 16777217, 1.5])
    x, y = (a.reshape(-1) for a in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(np.float64), y.astype(np.float64))
        wanted[np.abs(wanted) < 1.2e-38] *= 0  # a GPU may flush denormal numbers
    got = run("Pow", x, y)
    got[np.abs(got) < 1.2e-38] *= 0
    assert_close(got, wanted)
    np.testing.assert_array_equal(
        np.signbit(got), np.signbit(wanted) & ~np.isnan(wanted) | np.signbit(got) & np.isnan(wanted)
    )


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, 0.5, 2.5, -2, 7])
def test_pow_of_known_exponent(exponent: float) -> None:
    x = np.float32([0.0, np.inf, 0.3, 2.7, 19, 1e-5, *([-0.3, -2.7, -19, -np.inf] if exponent != 0.5 else [])])
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(np.float64), exponent)
    assert_close(run("Pow", x, Host(exponent, "float32")), wanted)


@pytest.mark.parametrize("exponent", ["int32", "int64", "uint32", "uint64", "uint8", "int8"])
@pytest.mark.parametrize("base", ["float32", "int32", "int64"])
def test_pow_of_mixed_types(base: str, exponent: str) -> None:
    x = np.array([-3, -1, 1, 2, 5, -2, 10], base)
    y = np.array([5, 7, 200 if exponent != "int8" else 100, 11, 3, 2, 6], exponent)
    if base != "float32":
        np.testing.assert_array_equal(
            run("Pow", x, y), np.array([int(a) ** int(b) for a, b in zip(x, y, strict=True)], base)
        )
    else:
        assert_close(run("Pow", x, y), x.astype(np.float64) ** y)


def test_pow_of_integers_with_negative_and_known_exponents() -> None:
    x = np.array([-3, -1, 1, 2, -1], np.int32)
    np.testing.assert_array_equal(run("Pow", x, np.array([-1, -3, -4, -2, -2], np.int64)), [0, -1, 1, 0, 1])
    np.testing.assert_array_equal(run("Pow", x, Host(3.0, "float32")), x**3)
    np.testing.assert_array_equal(run("Pow", x.astype(np.int64), Host(39)), [-(3**39), -1, 1, 2**39, -1])


@pytest.mark.parametrize(("dtype", "bits"), [("int32", 31), ("int64", 36)])
def test_pow_of_integers_with_float_exponents(dtype: str, bits: int) -> None:
    """Towards zero, as ONNX Runtime's float64 gives it: roots of powers, fractions, whole exponents in the same
    tensor."""
    rng = np.random.default_rng(5)
    x = np.exp2(rng.uniform(0, bits, 30_011)).astype(dtype)
    y = (rng.uniform(0, bits, x.shape) / np.maximum(np.log2(x), 1)).astype(np.float32) * np.float32(0.99)
    y[:9000] = np.floor(y[:9000] * 4) / 4
    roots = rng.integers(1, 1290, 3000).astype(dtype)
    x[:3000], y[:3000] = roots**2, np.where(roots % 2 == 0, 0.5, 1.5 if bits > 31 else 1)
    y[3000:4000] *= -1
    model, feeds = model_of("Pow", (x, y), opset=15)
    np.testing.assert_array_equal(run("Pow", x, y, opset=15), on_cpu(model, feeds)[0])


def test_pow_of_large_integers_with_float_exponents() -> None:
    """Beyond 2^53 a float64 has fewer digits than the result: it is right to as many."""
    rng = np.random.default_rng(6)
    x = np.exp2(rng.uniform(2, 62.9, 10_007)).astype(np.int64)
    y = (62.9 / np.log2(x)).astype(np.float32)
    wanted = np.array([float(a) ** float(b) for a, b in zip(x, y, strict=True)])
    np.testing.assert_allclose(run("Pow", x, y, opset=15).astype(np.float64), wanted, rtol=2.0**-51)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("known", [False, True])
def test_pow_of_integers_at_the_edges(dtype: str, known: bool) -> None:
    """A power that is no number, or beyond the type, is its lowest number, as ONNX Runtime's conversion gives it."""
    x = np.array([0, 1, -1, 2, -2, 5, -8, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    for y in (0.5, 1e-30, 0.015, 0.016, -0.5, -1e-3, 63.5, 64.5, math.nan):
        exponent = np.full(x.shape, y, np.float32)
        model, feeds = model_of("Pow", (x, exponent), opset=15)
        got = run("Pow", x, Host(y, "float32") if known else exponent, opset=15)
        np.testing.assert_array_equal(got, on_cpu(model, feeds)[0], err_msg=str(y))


def test_pow_of_integers_with_whole_floats() -> None:
    x = np.array([0, 1, -1, 5, -5, np.iinfo(np.int32).max], np.int32)
    for y, wanted in (
        (0.0, [1] * 6),
        (-0.0, [1] * 6),
        (1.0, x),
        (1e30, [0, 1, 1]),
        (16777217.0, [0, 1, 1]),
        (-3.0, [None, 1, -1, 0, 0, 0]),
        (math.inf, [0, 1, 1]),
        (-math.inf, [None, 1, 1, 0, 0, 0]),
    ):
        for exponent in (np.full(x.shape, y, np.float32), Host(y, "float32")):
            got = run("Pow", x, exponent, opset=15)
            assert [(g, w) for g, w in zip(got, wanted, strict=False) if w is not None and g != w] == [], (y, exponent)


@pytest.mark.parametrize("exponent", ["int64", "uint64"])
def test_pow_of_integers_with_exponents_beyond_32_bits(exponent: str) -> None:
    x = np.array([0, 1, -1, 2], np.int32)
    for y, wanted in ((1 << 32, [0, 1, 1, 0]), ((1 << 32) + 1, [0, 1, -1, 0]), ((1 << 63) - 1, [0, 1, -1, 0])):
        np.testing.assert_array_equal(run("Pow", x, np.full(4, y, exponent), opset=15), wanted)
        np.testing.assert_array_equal(run("Pow", x, Host(y, exponent), opset=15), wanted)


def test_pow_of_integers_with_half_exponents() -> None:
    x = np.array([4, 9, 100, 2, -3, 7], np.int32)
    np.testing.assert_array_equal(
        run("Pow", x, np.array([0.5, 1.5, -0.5, 9, 3, 1.25], np.float16), opset=15), [2, 27, 0, 512, -27, 11]
    )


def test_a_whole_exponent_beyond_f32_keeps_its_parity() -> None:
    np.testing.assert_array_equal(run("Pow", np.float32([-1, -1]), np.array([16777217, 16777218])), [-1, 1])


@pytest.mark.parametrize(("fmod", "reference"), [(1, np.fmod), (0, np.mod)])
def test_mod_of_floats_is_exact(fmod: int, reference: Function) -> None:
    """ONNX defines fmod=0 of floats from opset 28 on."""
    x = np.float32([7.5, -7.5, 1e30, -1e30, 3e38, 5, -5, 0.1, np.inf, np.nan, 3, 3, 0, 0, 1e-3, 6])
    y = np.float32([2, 2, 0.7, 1e-3, -1.5, np.inf, np.inf, 0.03, 2, 2, np.nan, 0, 3, -3, 1e-7, -3])
    with np.errstate(invalid="ignore"):
        wanted, got = reference(x, y), run("Mod", x, y, fmod=fmod, opset=28)
    np.testing.assert_allclose(got, wanted, rtol=0 if fmod else 1.2e-7)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(wanted)], np.signbit(wanted)[~np.isnan(wanted)])


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift_of_signed_numbers(dtype: str, direction: str) -> None:
    width = 8 * np.dtype(dtype).itemsize
    x = np.array([-77, 99, -77, 99, -77, 99, -1, 1], dtype)
    y = np.array([1, 1, width, width, -1, -1, width - 1, width - 1], dtype)
    outside = (y < 0) | (y >= width)
    wanted = np.where(outside, 0, x << (y % width)) if direction == "LEFT" else x >> np.where(outside, width - 1, y)
    np.testing.assert_array_equal(run("BitShift", x, y, direction=direction, opset=28), wanted.astype(dtype))


@pytest.mark.parametrize("dtype", [*FLOATING, *SIGNED, *UNSIGNED, "bool"])
def test_where(dtype: str) -> None:
    condition, x, y = data(3, 1, 7, dtype="bool"), data(5, 1, dtype=dtype, seed=3), data(7, dtype=dtype, seed=4)
    np.testing.assert_array_equal(run("Where", condition, x, y), np.where(condition, x, y))


INTEGER_UNARY: list[tuple[str, Function, tuple[str, ...]]] = [
    ("Abs", np.abs, SIGNED + UNSIGNED),
    ("Neg", np.negative, SIGNED),
    ("Relu", lambda x: np.maximum(x, 0), SIGNED),
    ("Sign", np.sign, SIGNED + UNSIGNED),
    ("BitwiseNot", np.invert, SIGNED + UNSIGNED),
    ("Not", np.logical_not, ("bool",)),
]


@pytest.mark.parametrize(("op", "reference", "dtype"), [(op, f, d) for op, f, dtypes in INTEGER_UNARY for d in dtypes])
def test_unary_of_integers(op: str, reference: Function, dtype: str) -> None:
    x = operands(op, dtype, ((23,), (23,)))[0]
    if dtype != "bool":
        x[:3] = np.iinfo(dtype).min, np.iinfo(dtype).max, 0
    np.testing.assert_array_equal(run(op, x), reference(x))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("IsNaN", {}),
        ("IsInf", {}),
        ("IsInf", {"detect_negative": 0}),
        ("IsInf", {"detect_positive": 0}),
        ("IsInf", {"detect_positive": 0, "detect_negative": 0}),
    ],
)
@pytest.mark.parametrize("dtype", FLOATING)
def test_classification(op: str, attributes: dict[str, Any], dtype: str) -> None:
    with np.errstate(over="ignore"):
        x = SPECIAL.astype(dtype)
    wanted = (
        np.isnan(x)
        if op == "IsNaN"
        else (
            np.isposinf(x) & bool(attributes.get("detect_positive", 1))
            | np.isneginf(x) & bool(attributes.get("detect_negative", 1))
        )
    )
    np.testing.assert_array_equal(run(op, x, **attributes), wanted)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 20])
def test_variadic(op: str, count: int) -> None:
    shapes = [(3, 1, 5), (7, 1), (5,), ()]
    inputs = tuple(data(*shapes[k % 4], seed=50 + k) for k in range(count))
    model, feeds = model_of(op, inputs, opset=13)
    np.testing.assert_allclose(run_direct(model, feeds)[0], on_cpu(model, feeds)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED, "float16"])
def test_variadic_of_other_types(dtype: str) -> None:
    inputs = tuple(data(13, dtype=dtype, seed=60 + k) for k in range(9))
    np.testing.assert_array_equal(run("Max", *inputs), np.max(inputs, axis=0))


BOUNDS = [
    pytest.param(6, (), {"min": -0.5, "max": 1.25}, id="attributes"),
    pytest.param(6, (), {}, id="attribute defaults"),
    pytest.param(11, (Host(-0.5, "float32"), Host(1.25, "float32")), {}, id="constants"),
    pytest.param(13, (np.float32(-0.5), np.float32(1.25)), {}, id="inputs"),
    pytest.param(13, (None, np.float32(1.25)), {}, id="high input"),
    pytest.param(13, (Host(-0.5, "float32"), np.float32(1.25)), {}, id="mixed"),
    pytest.param(13, (np.float32(-0.5),), {}, id="low input"),
    pytest.param(13, (None, Host(1.25, "float32")), {}, id="high constant"),
    pytest.param(12, (), {}, id="none"),
    pytest.param(13, (Host(2, "float32"), Host(1, "float32")), {}, id="crossed"),
    pytest.param(13, (Host(-np.inf, "float32"), Host(np.inf, "float32")), {}, id="infinite"),
]


@pytest.mark.parametrize(("opset", "bounds", "attributes"), BOUNDS)
def test_clip(opset: int, bounds: tuple[Any, ...], attributes: dict[str, float]) -> None:
    x = np.concatenate([data(5, 7).reshape(-1) * np.float32(0.3), np.float32([np.nan, 1, -1, 1e30])])
    given = tuple(np.asarray(b) if isinstance(b, np.float32) else b for b in bounds)
    model, feeds = model_of("Clip", (x, *given), opset=opset, **attributes)
    wanted = on_cpu(model, feeds)[0]
    wanted[-4] = np.nan  # ONNX Runtime's answer to NaN depends on its vector width
    np.testing.assert_array_equal(run_direct(model, feeds)[0], wanted)


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED)
def test_clip_of_integers(dtype: str) -> None:
    x = operands("Clip", dtype, ((29,), (1,)))[0]
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max // 2
    np.testing.assert_array_equal(run("Clip", x, Host(low, dtype), Host(high, dtype)), np.clip(x, low, high))
    np.testing.assert_array_equal(run("Clip", x, np.array(3, dtype), np.array(high, dtype)), np.clip(x, 3, high))


@pytest.mark.parametrize("slope", [(), (1,), (5, 1, 1), (7,), (2, 5, 3, 7)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_prelu(slope: tuple[int, ...], dtype: str) -> None:
    x, y = operands("PRelu", dtype, ((2, 5, 3, 7), slope))
    x, y = (x, y) if dtype == "float32" else (x % 99 - 50, np.asarray(y % 9))
    np.testing.assert_allclose(run("PRelu", x, y, opset=16), np.where(x < 0, y * x, x), rtol=1e-6)


@pytest.mark.parametrize(
    "shape", [(4194301,), (0, 7), (), (2, 1, 3, 1, 2, 1, 3)], ids=["over 65,535 groups", "empty", "scalar", "rank 7"]
)
def test_sizes(shape: tuple[int, ...]) -> None:
    x = data(*shape)
    np.testing.assert_array_equal(run("Neg", x), -x)


@pytest.mark.parametrize("op", ["Add", "Relu", "Sum", "LeakyRelu", "Less"])
def test_old_opsets(op: str) -> None:
    inputs = (data(3, 5), data(5, seed=8))[: 1 if op in ("Relu", "LeakyRelu") else 2]
    model, feeds = model_of(op, inputs, opset=8 if op != "Less" else 9)
    np.testing.assert_allclose(run_direct(model, feeds)[0], on_cpu(model, feeds)[0], rtol=1e-6)


def test_an_input_may_be_used_twice() -> None:
    x = data(11)
    model, _ = model_of("Mul", (x, x))
    model.graph.node[0].input[1] = "x0"
    del model.graph.input[1]
    np.testing.assert_array_equal(run_direct(model, {"x0": x})[0], x * x)


DECLINED: list[tuple[str, tuple[Any, ...], int, dict[str, Any], Code]] = [
    ("Sigmoid", (data(3, dtype="float64"),), 13, {}, Code.DTYPE),
    ("Add", (data(2, 3), data(2)), 6, {"broadcast": 1, "axis": 0}, Code.OPSET),
    ("Mod", (data(3), data(3)), 13, {}, Code.ATTRIBUTE),
    ("PRelu", (data(3), data(2, 3)), 16, {}, Code.RANK),
    ("Clip", (data(3), data(2, 1)), 13, {}, Code.RANK),
    ("Pow", (data(3, dtype="uint32"), data(3)), 15, {}, Code.DTYPE),
    ("Erf", (data(3, dtype="int32"),), 9, {}, Code.DTYPE),
    *(
        (op, (data(3),), opset, {name: value}, Code.ATTRIBUTE)
        for op, opset, name in (
            ("LeakyRelu", 16, "alpha"),
            ("Elu", 6, "alpha"),
            ("Selu", 6, "alpha"),
            ("Selu", 6, "gamma"),
            ("Celu", 12, "alpha"),
            ("HardSigmoid", 6, "alpha"),
        )
        for value in (0.0, -0.0, math.inf, math.nan)
    ),
]


@pytest.mark.parametrize(("op", "inputs", "opset", "attributes", "code"), DECLINED)
def test_declines(op: str, inputs: tuple[Any, ...], opset: int, attributes: dict[str, Any], code: Code) -> None:
    with pytest.raises(UnsupportedNodeError) as caught:
        run(op, *inputs, opset=opset, **attributes)
    assert caught.value.code is code


@pytest.mark.parametrize(
    "rest", ["y = Sub(a, a)", "y = Div(a, a)", "b = Sub(a, z) y = Sub(b, a)", "b = Neg(a) y = Add(a, b)"]
)
@pytest.mark.parametrize("first", ["Exp", "Neg", "Tanh"])
def test_nan_and_infinity_survive_fusion(first: str, rest: str) -> None:
    """Drivers take x - x for 0 inside a shader."""
    x = np.array([np.nan, np.inf, -np.inf, 1, 0.5, -2, 3e38], "f")
    model = model_of_text(f"(float[7] x) => (float[7] y) {{ a = {first}(x) {rest} }}", {"z": np.float32(0)})
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    want = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"]).run(
        ["y"], {"x": x}
    )[0]
    np.testing.assert_allclose(run_direct(model, {"x": x}, rewrite)[0], want, rtol=1e-5)
