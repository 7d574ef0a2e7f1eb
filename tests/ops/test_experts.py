"""Mixtures of experts: MoE and QMoE against numpy in 64 bits, and against ONNX Runtime's CPU where that has the
form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.ir.symbolic import Trace
from ort_gpu_ep.ir.types import FLOAT32, UINT8, TensorType
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.registry import OPS, BoundNode, Operand
from ort_gpu_ep.kernels.target import SUBNORMAL_HALVES, Choice
from ort_gpu_ep.ops.experts import MOST_FEW
from tests.direct import run_direct
from tests.ops.single_node import Array, model_of, on_cpu

ORT = "com.microsoft"
TOKENS, HIDDEN, INNER, EXPERTS = 7, 32, 48, 5


def normal(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("f")


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


ACTS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
    "identity": lambda x: x,
    "gelu": lambda x: 0.5 * x * (1 + np.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3))),
}


def mixed(
    x: Array,
    scores: Array,
    layers: list[tuple[Array, Array | None]],
    given: dict[str, Any],
    weights: Array | None = None,
) -> Array:
    """In 64 bits. layers: weights and biases of the first, the second, and a third one."""
    rows, y = x.reshape(-1, x.shape[-1]).astype("d"), np.zeros((x.size // x.shape[-1], layers[1][0].shape[1]))
    powers = np.exp(scores.astype("d") - scores.max(-1, keepdims=True))
    parts = powers / powers.sum(-1, keepdims=True) if weights is None else weights.astype("d")
    for t, row in enumerate(rows):
        chosen = np.argsort(-scores[t], kind="stable")[: given.get("k", 1)]
        share = parts[t, chosen]
        share = share / share.sum() if given.get("normalize_routing_weights") else share
        for e, part in zip(chosen, share, strict=True):
            inner, *gate = (w[e] @ row + (0 if b is None else b[e]) for w, b in (layers[0], *layers[2:]))
            y[t] += part * (
                layers[1][0][e] @ activated(inner, gate, given) + (0 if layers[1][1] is None else layers[1][1][e])
            )
    return y.reshape(*x.shape[:-1], -1).astype("f")


def activated(inner: Array, gate: list[Array], given: dict[str, Any]) -> Array:
    name, fusion, limit = (
        given.get("activation_type", "relu"),
        given.get("swiglu_fusion"),
        given.get("swiglu_limit", np.inf),
    )
    if name != "swiglu":
        return np.asarray(ACTS[name](inner) * (gate[0] if gate else 1))
    g, u = (inner, gate[0]) if gate else (inner[::2], inner[1::2]) if fusion == 1 else np.split(inner, 2)
    g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
    return np.asarray(g * sigmoid(given.get("activation_alpha", 1.0) * g) * (u + given.get("activation_beta", 0.0)))


def agree(got: Array, wanted: Array, tolerance: float = 4e-6) -> None:
    assert got.shape == wanted.shape
    np.testing.assert_allclose(
        got.astype("d"), wanted.astype("d"), rtol=tolerance, atol=tolerance * np.abs(wanted).max()
    )


def by_each_form(model: Any, feeds: dict[str, Array], *forms: str) -> Iterator[Array]:
    """What each of these forms of the node gives, with open sizes where these leave it to choose from. None: of all."""
    many = len(feeds["x1"]) > MOST_FEW  # an open number of tokens is one of the prompts then
    for form in forms or ("by token", "by expert 4", "by expert 16", "by expert 32", "by expert 64"):
        with forced(form) as choices:
            (got,) = run_direct(model, feeds, every_size_open=not many or form != "by token")
        assert [choice.form for choice in choices.values()] == [form]
        yield got


def layer(rows: int, columns: int, bias: bool, seed: int) -> tuple[Array, Array | None]:
    return normal(EXPERTS, rows, columns, seed=seed) / columns**0.5, normal(EXPERTS, rows, seed=seed) if bias else None


FORMS: list[dict[str, Any]] = [
    {"k": 1},
    {"k": 2, "activation_type": "gelu"},
    {"k": 3, "normalize_routing_weights": 1, "activation_type": "silu"},
    {"k": 5, "activation_type": "identity"},
    {
        "k": 2,
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "activation_alpha": 1.702,
        "activation_beta": 1.0,
        "swiglu_limit": 0.5,
        "normalize_routing_weights": 1,
    },
    {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1},
]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("given", FORMS, ids=str)
def test_moe(given: dict[str, Any], bias: bool) -> None:
    x, scores = normal(TOKENS, HIDDEN), normal(TOKENS, EXPERTS)
    first, second = (
        layer(INNER * (2 if "swiglu_fusion" in given else 1), HIDDEN, bias, 2),
        layer(HIDDEN, INNER, bias, 3),
    )
    model, feeds = model_of("MoE", (x, scores, *first, *second), domain=ORT, **given)
    wanted = mixed(x, scores, [first, second], given)
    for got in by_each_form(model, feeds, *(() if bias else ("by token", "by expert 4", "by expert 32"))):
        agree(got, wanted)
    agree(run_direct(model, feeds)[0], on_cpu(model, feeds)[0])


@pytest.mark.parametrize(
    "given",
    [
        {"k": 2, "activation_type": "silu", "normalize_routing_weights": 1},
        {"k": 2, "activation_type": "swiglu"},
        {"k": 2, "activation_type": "swiglu", "swiglu_limit": 0.5, "activation_beta": 1.0},
    ],
    ids=str,
)
def test_a_third_layer(given: dict[str, Any]) -> None:
    x, scores = normal(2, 3, HIDDEN), normal(6, EXPERTS)
    layers = [layer(INNER, HIDDEN, True, 2), layer(HIDDEN, INNER, True, 3), layer(INNER, HIDDEN, True, 4)]
    model, feeds = model_of("MoE", (x, scores, *layers[0], *layers[1], *layers[2]), domain=ORT, **given)
    for got in by_each_form(model, feeds):
        agree(got, mixed(x, scores, layers, given))


def test_halves_of_gates_and_ups() -> None:
    given = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 2}
    x, scores, first, second = (
        normal(TOKENS, HIDDEN),
        normal(TOKENS, EXPERTS),
        layer(2 * INNER, HIDDEN, True, 2),
        layer(HIDDEN, INNER, True, 3),
    )
    model, feeds = model_of("MoE", (x, scores, *first, *second), domain=ORT, **given)
    for got in by_each_form(model, feeds):
        agree(got, mixed(x, scores, [first, second], given))


ONE = np.eye(EXPERTS, dtype="f")
ROUTES: dict[str, Array] = {
    "equal scores: the first": np.zeros((TOKENS, EXPERTS), "f"),
    "zeros of both signs are equal": np.tile(np.array([-0.0, 0.0, -1, -0.0, 0.0], "f"), (TOKENS, 1)),
    "all to one": 9 * np.tile(ONE[3], (TOKENS, 1)) + normal(TOKENS, EXPERTS),
    "none to the first and the last": normal(TOKENS, EXPERTS) - 9 * (ONE[0] + ONE[-1]),
    "one token": normal(1, EXPERTS),
    "no token": normal(0, EXPERTS),
    "more than a scan has": normal(300, EXPERTS),
    "a lonely one among many": np.concatenate(
        [np.tile(9 * ONE[4], (260, 1)), 9 * ONE[2:3], np.tile(9 * ONE[4], (9, 1))]
    ),
    "infinities": np.where(normal(TOKENS, EXPERTS) > 0.8, -np.inf, normal(TOKENS, EXPERTS, seed=3)),
}


@pytest.mark.parametrize(
    ("route", "k"),
    [*((route, 2) for route in ROUTES), *((route, k) for route in ("all to one", "infinities") for k in (1, EXPERTS))],
)
def test_any_route(route: str, k: int) -> None:
    scores, given = ROUTES[route], {"k": k, "normalize_routing_weights": 1}
    x, first, second = normal(len(scores), HIDDEN), layer(INNER, HIDDEN, True, 2), layer(HIDDEN, INNER, True, 3)
    model, feeds = model_of("MoE", (x, scores, *first, *second), domain=ORT, **given)
    for got in by_each_form(model, feeds, "by token", "by expert 4", "by expert 16"):
        if len(scores):
            agree(got, mixed(x, scores, [first, second], given))
        else:
            assert got.shape == x.shape


def test_a_token_whose_scores_are_nan_leaves_the_others_alone() -> None:
    x, scores = normal(TOKENS, HIDDEN), normal(TOKENS, EXPERTS)
    scores[2], scores[5, 1] = np.nan, np.nan
    first, second = layer(INNER, HIDDEN, True, 2), layer(HIDDEN, INNER, True, 3)
    model, feeds = model_of("MoE", (x, scores, *first, *second), domain=ORT, k=2)
    others = [t for t in range(TOKENS) if t not in (2, 5)]
    wanted = mixed(x[others], scores[others], [first, second], {"k": 2})
    for got in by_each_form(model, feeds):
        agree(got[others], wanted)
        assert np.isnan(got[2]).all()


@pytest.mark.parametrize("hidden", [3, 33, 100])
def test_rows_of_any_length(hidden: int) -> None:
    given: dict[str, Any] = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1}
    x, scores = normal(TOKENS, hidden), normal(TOKENS, EXPERTS)
    first, second = layer(2 * 67, hidden, True, 2), layer(hidden, 67, True, 3)
    model, feeds = model_of("MoE", (x, scores, *first, *second), domain=ORT, **given)
    for got in by_each_form(model, feeds):
        agree(got, mixed(x, scores, [first, second], given))


def quantized(
    rows: int, columns: int, bits: int, block: int, zeros: bool, seed: int
) -> tuple[Array, Array, Array | None, Array]:
    """Codes, scales and zero points as QMoE has them, and what they stand for."""
    rng, per, most = np.random.default_rng([seed, rows]), 8 // bits, 1 << bits
    codes = rng.integers(0, most, (EXPERTS, rows, columns))
    blocks = columns // block if block else 1
    scales = (rng.random((EXPERTS, rows, blocks)) / most / 2 + 0.01).astype("f")
    points = rng.integers(0, most, (EXPERTS, rows, blocks)) if zeros else np.full((EXPERTS, rows, blocks), most // 2)
    values = (codes - np.repeat(points, columns // blocks, 2)) * np.repeat(scales, columns // blocks, 2)

    def packed(array: Array) -> Array:
        padded = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % per)]).reshape(
            *array.shape[:-1], -1, per
        )
        return np.asarray((padded << (np.arange(per) * bits)).sum(-1), "uint8")

    given = packed(points if block else points[..., 0]) if zeros else None
    return packed(codes), scales if block else scales[..., 0], given, values.astype("f")


@pytest.mark.parametrize(
    ("bits", "hidden", "inner", "block", "zeros"),
    [
        (4, 32, 48, 0, False),
        (4, 32, 48, 16, True),
        (4, 64, 96, 32, False),
        (4, 28, 52, 0, True),
        (4, 30, 50, 0, True),
        (8, 32, 48, 0, True),
        (8, 32, 48, 16, False),
        (2, 32, 48, 0, True),
        (2, 64, 64, 16, True),
        (2, 64, 128, 64, False),
        (4, 96, 64, 32, True),
    ],
)
def test_qmoe(bits: int, hidden: int, inner: int, block: int, zeros: bool) -> None:
    given: dict[str, Any] = {
        "k": 2,
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "activation_alpha": 1.702,
        "activation_beta": 1.0,
        "swiglu_limit": 7.0,
        "normalize_routing_weights": 1,
    }
    first, second = quantized(2 * inner, hidden, bits, block, zeros, 2), quantized(hidden, inner, bits, block, zeros, 3)
    biases = normal(EXPERTS, 2 * inner), normal(EXPERTS, hidden)
    x, scores = normal(TOKENS, hidden), normal(TOKENS, EXPERTS)
    inputs = [x, scores, *first[:2], biases[0], *second[:2], biases[1], *[None] * 3, first[2], second[2]]
    while inputs[-1] is None:
        inputs.pop()
    sizes = {"block_size": block} if block else {}
    model, feeds = model_of("QMoE", tuple(inputs), domain=ORT, expert_weight_bits=bits, **sizes, **given)
    wanted = mixed(x, scores, [(first[3], biases[0]), (second[3], biases[1])], given)
    for got in by_each_form(model, feeds, "by token", "by expert 4", "by expert 64"):
        agree(got, wanted)
    if bits == 4:  # of others onnxruntime's CPU rounds the activations, too
        agree(run_direct(model, feeds)[0], on_cpu(model, feeds)[0], 2e-5)


@pytest.fixture
def in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's figures, and float16 numbers below 2^-14, which a probe would have shown."""
    gpu = Gpu.open(Config())
    features = gpu.limits.features | {SUBNORMAL_HALVES}
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, features=features, figures=DEFAULT_FIGURES))


@pytest.fixture
def without_subgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, features=gpu.limits.features - {"subgroup"}))


def packed_mixture(bits: int, hidden: int, inner: int, block: int, zeros: bool, **given: Any) -> tuple[Any, ...]:
    """Inputs of QMoE behind x and scores, and its layers as numbers."""
    rows = 2 * inner if given.get("swiglu_fusion") else inner
    first, second = quantized(rows, hidden, bits, block, zeros, 2), quantized(hidden, inner, bits, block, zeros, 3)
    biases = normal(EXPERTS, rows), normal(EXPERTS, hidden)
    inputs = [*first[:2], biases[0], *second[:2], biases[1], *[None] * 3, first[2], second[2]]
    return inputs if zeros else inputs[:6], [(first[3], biases[0]), (second[3], biases[1])]


PACKED_SHAPES = [
    (4, 96, 64, 32, False),
    (4, 320, 288, 32, True),
    (4, 64, 96, 0, True),
    (8, 32, 48, 16, True),
    (2, 128, 192, 64, True),
    (4, 96, 1056, 32, True),
]
"""Bits, hidden, inner, block, zero points: codes that are read by vectors, each with one scale."""


@pytest.mark.parametrize(
    "given", [FORMS[2], FORMS[4], {"k": 5, "activation_type": "swiglu", "swiglu_fusion": 2}], ids=str
)
@pytest.mark.parametrize(("bits", "hidden", "inner", "block", "zeros"), PACKED_SHAPES)
def test_codes_read_as_halves(
    bits: int, hidden: int, inner: int, block: int, zeros: bool, given: dict[str, Any], in_halves: None
) -> None:
    """Whatever a token is: some of its elements large, some not finite or such that they become so."""
    inputs, layers = packed_mixture(bits, hidden, inner, block, zeros, **given)
    x, scores = normal(TOKENS, hidden), normal(TOKENS, EXPERTS)
    x[1] *= np.float32(10.0) ** np.random.default_rng(5).uniform(-30, 2, hidden)
    x[2] *= np.float32(1e-30)
    sizes = {"block_size": block} if block else {}
    model, feeds = model_of("QMoE", (x, scores, *inputs), domain=ORT, expert_weight_bits=bits, **sizes, **given)
    for got in by_each_form(model, feeds, "by token", "by token in halves"):
        agree(got, mixed(x, scores, layers, given))
    x[0] = 0
    x[0, hidden // 2] = 1e33  # which is more than float32 has, once lifted
    given = {**given, "swiglu_limit": 7.0}
    model, feeds = model_of("QMoE", (x, scores, *inputs), domain=ORT, expert_weight_bits=bits, **sizes, **given)
    for got in by_each_form(model, feeds, "by token in halves"):
        agree(got, mixed(x, scores, layers, given))
    x[0, 3], x[3, 5] = np.inf, np.nan
    model, feeds = model_of("QMoE", (x, scores, *inputs), domain=ORT, expert_weight_bits=bits, **sizes, **given)
    plain, halves = by_each_form(model, feeds, "by expert 4", "by token in halves")
    np.testing.assert_array_equal(np.isnan(plain), np.isnan(halves))
    assert np.isfinite(halves[[1, 2, 4, 5, 6]]).all()


def test_codes_without_subgroups(without_subgroups: None) -> None:
    given = FORMS[4]
    inputs, layers = packed_mixture(4, 320, 288, 32, True, **given)
    x, scores = normal(TOKENS, 320), normal(TOKENS, EXPERTS)
    model, feeds = model_of("QMoE", (x, scores, *inputs), domain=ORT, expert_weight_bits=4, block_size=32, **given)
    for got in by_each_form(model, feeds, "by token"):
        agree(got, mixed(x, scores, layers, given))


@pytest.mark.parametrize("normalized", [0, 1])
def test_weights_apart_from_scores(normalized: int) -> None:
    given = {"k": 3, "activation_type": "silu", "normalize_routing_weights": normalized}
    first, second = quantized(INNER, HIDDEN, 4, 0, False, 2), quantized(HIDDEN, INNER, 4, 0, False, 3)
    x, scores, weights = normal(TOKENS, HIDDEN), normal(TOKENS, EXPERTS), np.abs(normal(TOKENS, EXPERTS, seed=9))
    inputs = (x, scores, *first[:2], None, *second[:2], *[None] * 7, weights)
    model, feeds = model_of("QMoE", inputs, domain=ORT, expert_weight_bits=4, **given)
    wanted = mixed(x, scores, [(first[3], None), (second[3], None)], given, weights)
    for got in by_each_form(model, feeds):
        agree(got, wanted)
    agree(run_direct(model, feeds)[0], on_cpu(model, feeds)[0], 2e-5)


def test_float16() -> None:
    x, scores, first, second = (
        normal(TOKENS, HIDDEN),
        normal(TOKENS, EXPERTS),
        layer(INNER, HIDDEN, True, 2),
        layer(HIDDEN, INNER, True, 3),
    )
    halves = tuple(np.asarray(a, "float16") for a in (x, scores, *first, *second))
    model, feeds = model_of("MoE", halves, domain=ORT, k=2)
    for got in by_each_form(model, feeds):
        assert got.dtype == np.float16
        agree(got, mixed(x, scores, [first, second], {"k": 2}), 4e-3)


@pytest.mark.parametrize("bits", [4, 8])
def test_float16_with_codes(bits: int) -> None:
    given = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1}
    first, second = quantized(2 * INNER, HIDDEN, bits, 16, True, 2), quantized(HIDDEN, INNER, bits, 16, True, 3)
    x, scores = normal(TOKENS, HIDDEN), normal(TOKENS, EXPERTS)
    h = tuple(np.asarray(a, "float16") for a in (x, scores, first[1], second[1]))
    inputs = (h[0], h[1], first[0], h[2], None, second[0], h[3], *[None] * 4, first[2], second[2])
    model, feeds = model_of("QMoE", inputs, domain=ORT, expert_weight_bits=bits, block_size=16, **given)
    for got in by_each_form(model, feeds):
        assert got.dtype == np.float16
        agree(got, mixed(x, scores, [(first[3], None), (second[3], None)], given), 8e-3)


@pytest.mark.parametrize(
    "given",
    [
        {"k": 6},
        {"use_sparse_mixer": 1, "k": 2},
        {"activation_type": "geglu", "swiglu_fusion": 1},
        {"activation_type": "relu2"},
    ],
    ids=str,
)
def test_declines(given: dict[str, Any]) -> None:
    model, feeds = model_of(
        "MoE",
        (
            normal(TOKENS, HIDDEN),
            normal(TOKENS, EXPERTS),
            *layer(INNER, HIDDEN, True, 2),
            *layer(HIDDEN, INNER, True, 3),
        ),
        domain=ORT,
        **given,
    )
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(model, feeds)
    assert caught.value.code is Code.ATTRIBUTE


def chosen(tokens: int, trace: Trace | None = None) -> Choice:
    """What an H200 takes for a layer of gpt-oss-20b's sizes. trace: the number of tokens is an open one."""
    count, width, inner, experts = (trace.symbol(0, tokens) if trace else tokens), 2880, 5760, 32
    shapes: dict[str, Any] = {
        "x": (FLOAT32, (count, width)),
        "scores": (FLOAT32, (count, experts)),
        "w1": (UINT8, (experts, inner, width // 2)),
        "s1": (FLOAT32, (experts, inner, width // 32)),
        "": (FLOAT32, ()),
        "w2": (UINT8, (experts, width, width // 2)),
        "s2": (FLOAT32, (experts, width, width // 32)),
    }
    given = {"k": 4, "activation_type": "swiglu", "swiglu_fusion": 1, "expert_weight_bits": 4, "block_size": 32}
    operands = tuple(
        Operand(n, TensorType(*of), constant=n not in ("x", "scores")) if n else None for n, of in shapes.items()
    )
    with forced() as choices:
        OPS[ORT, "QMoE"].build(BoundNode(Node("QMoE", tuple(shapes), ("y",), "", ORT, 1, given), operands))
    (choice,) = choices.values()
    return choice


def test_a_prompt_is_put_in_order_and_a_token_is_not() -> None:
    """By estimates; with an open number of tokens one answer holds for all prompts."""
    assert chosen(1).form == chosen(4).form == "by token"
    assert chosen(128).form.startswith("by expert")
    assert chosen(2048).form == "by expert 64"
    traces = [Trace() for _ in range(4)]
    forms = [chosen(n, trace).form for n, trace in zip((300, 4000, 1, 2), traces, strict=True)]
    assert [form.split()[1] for form in forms] == ["expert", "expert", "token", "token"]
    assert traces[0].guards == traces[1].guards != traces[2].guards == traces[3].guards
