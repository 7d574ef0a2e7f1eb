"""Attention on matrix units, which are emulated (matrix_emulation.py): each mode within its error bound, against
float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ort_gpu_ep.health.probes  # noqa: F401  fills the table
from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.health.probe import PROBES
from ort_gpu_ep.health.probes.matrix_units import in_tile
from ort_gpu_ep.ir.graph import Graph, Node, Value
from ort_gpu_ep.ir.types import BY_NAME, FLOAT32, TensorType
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.target import ATTENTION_UNIT_SHADERS, MATRIX_ATTENTION, Target, no_attention_units
from ort_gpu_ep.ops import attention_units
from ort_gpu_ep.ops.attention import Problem, estimates
from ort_gpu_ep.ops.attention_units import FORMS, UnitForm
from ort_gpu_ep.plugin.explain import Explanation
from ort_gpu_ep.scheduler import make_plan, planner
from ort_gpu_ep.scheduler.plan import Dispatch
from tests.ops.matrix_emulation import Emulated, emulation
from tests.ops.test_matrix_units import QUICK as ONE_FRAGMENT

Array = np.ndarray[Any, Any]
QUICK = UnitForm(2, 32)
"""Software compiles it ten times as fast as the larger ones."""
WIDE = UnitForm(2, 32, 4)


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    monkeypatch.setattr(attention_units, "FORMS", (QUICK,))
    with emulation() as made, forced(QUICK.name):
        yield made


def graph_of(
    op: str, arrays: dict[str, Array], domain: str = "", version: int = 23, outputs: int = 1, **attributes: Any
) -> Graph:
    """One node; arrays by name, an input that is left out has a name that begins with `_`; `total` is known before a
    run."""
    values = {}
    for name, array in arrays.items():
        if not name.startswith("_"):
            load = (lambda a=array: a) if name == "total" else None
            values[name] = Value(name, BY_NAME[array.dtype.name], array.shape, load)
    names = tuple("" if name.startswith("_") else name for name in arrays)
    given = tuple(name for name in names if name and name != "total")
    outs = ("y", "pk", "pv")[:outputs]
    return Graph("g", given, outs, (Node(op, names, outs, "attention", domain, version, attributes),), values)


def run(trial: Emulated, graph: Graph, arrays: dict[str, Array], precision: str) -> Array:
    got = trial.graph(graph, [arrays[name] for name in graph.inputs], precision)[0]
    assert "attention_units.wgsl" in trial.shaders
    return np.asarray(got, np.float64)


def heads_of(kind: str, shape: tuple[int, ...], values: int) -> tuple[Array, Array, Array]:
    """q, k, v [B, heads, tokens, D] whose scores stay moderate. shape: batch, heads, queries, keys, D; values: elements
    of a value."""
    rng = np.random.default_rng()
    batch, heads, queries, keys, width = shape
    draw = rng.random if kind == "positive" else rng.standard_normal
    q, k, v = (draw((batch, heads, n, w), np.float32) for n, w in ((queries, width), (keys, width), (keys, values)))
    powers: Any = {"large": (55, -55, 70), "small": (-60, 60, -70)}.get(kind, (0, 0, 0))
    if kind == "mixed":
        powers = rng.integers(-20, 1, (queries, 1)), 0, rng.integers(-20, 21, (1, values))
    return tuple(np.asarray(a * np.exp2(p), np.float32) for a, p in zip((q, k, v), powers, strict=True))  # type: ignore[return-value]


def wanted(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    precision: str,
    seen: Array | None = None,
    added: Array | float = 0.0,
    cap: float = 0.0,
) -> tuple[Array, Array]:
    """The result in float64, and how far one may be off: docs/precision.md. seen: which keys a query sees."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    seen = np.ones((q.shape[2], k.shape[2]), bool) if seen is None else seen
    width, keys = q.shape[3], k.shape[2]
    rounded = 0.0 if precision == "float16" else 2.0**-10
    turned = k.swapaxes(-1, -2)
    sizes = scale * (np.abs(q) @ np.abs(turned))
    rest = {
        "tf32": 2.0**-38
        * (np.abs(q).max() * np.abs(k).sum(-1)[..., None, :] + np.abs(q).sum(-1)[..., None] * np.abs(k).max()),
        "f16acc": 2.0**-25 * (np.abs(k).sum(-1)[..., None, :] + np.abs(q).sum(-1)[..., None]),
    }.get(precision, np.zeros(1))
    scores = scale * (q @ turned)
    off = (rounded + width * 2.0**-24) * sizes + scale * rest
    scores = cap * np.tanh(scores / cap) if cap else scores
    scores = np.where(seen, scores + added, -np.inf)
    off = np.where(seen, off + 2.0**-21 * (1 + np.abs(np.where(seen, scores, 0.0))), 0.0).max(-1, keepdims=True)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    allowed = (weights @ np.abs(v)) * (np.expm1(2 * off) + 2.0**-10 + keys * 2.0**-23)
    allowed = allowed + 2.0**-25 * seen.astype(float) @ np.abs(v)
    allowed = allowed + {"tf32": 2.0**-38 * np.abs(v).max(), "f16acc": 2.0**-25}.get(
        precision, 2.0**-11 * np.abs(weights @ v) + 2.0**-24
    )
    return weights @ v, allowed


SHAPE = (1, 2, 37, 71, 32)


@pytest.mark.parametrize("kind", ["normal", "positive", "large", "small", "mixed"])
def test_tf32_is_within_its_bound(trial: Emulated, kind: str) -> None:
    q, k, v = heads_of(kind, SHAPE, 16)
    arrays = {"q": q, "k": k, "v": v}
    got = run(trial, graph_of("Attention", arrays, scale=0.2), arrays, "tf32")
    want, allowed = wanted(q, k, v, 0.2, "tf32")
    assert (np.abs(got - want) <= allowed).all()
    assert np.median(allowed / np.abs(v).mean((-1, -2), keepdims=True)) < 0.02 or kind == "mixed"


@pytest.mark.parametrize("precision", ["f16acc", "float16"])
@pytest.mark.parametrize("kind", ["normal", "positive"])
def test_float16_is_within_its_bound(trial: Emulated, kind: str, precision: str) -> None:
    q, k, v = heads_of(kind, SHAPE, 16)
    if precision == "float16":
        q, k, v = (a.astype(np.float16) for a in (q, k, v))
    arrays = {"q": q, "k": k, "v": v}
    got = run(
        trial, graph_of("Attention", arrays, scale=0.2), arrays, "float32" if precision == "float16" else precision
    )
    want, allowed = wanted(q, k, v, 0.2, precision)
    assert (np.abs(got - want) <= allowed).all()


@pytest.mark.parametrize("what", ["added", "bool", "by head", "cap", "causal"])
def test_masks(trial: Emulated, what: str) -> None:
    q, k, v = heads_of("normal", SHAPE, 32)
    rng, (queries, keys) = np.random.default_rng(), SHAPE[2:4]
    arrays, attributes, seen, added = {"q": q, "k": k, "v": v}, {"scale": 0.3}, None, 0.0
    if what == "bool":
        seen = rng.random((queries, keys)) < 0.5
        seen[:, 3] = True
        arrays["mask"] = seen
    elif what in ("added", "by head"):
        added = rng.standard_normal((1, 2, queries, keys) if what == "by head" else (1, 1, 1, keys)).astype(np.float32)
        added[..., 5:9] = -1e4
        arrays["mask"] = added
    elif what == "causal":
        attributes["is_causal"], seen = 1, np.tril(np.ones((queries, keys), bool))
    else:
        attributes["softcap"] = 2.0
    got = run(trial, graph_of("Attention", arrays, **attributes), arrays, "tf32")
    want, allowed = wanted(q, k, v, 0.3, "tf32", seen, added, attributes.get("softcap", 0.0))
    assert (np.abs(got - want) <= allowed).all()


@pytest.mark.parametrize(("width", "values"), [(16, 80), (48, 128), (80, 32), (40, 72), (20, 36)])
def test_sizes_of_heads(trial: Emulated, width: int, values: int) -> None:
    """Values that go through workgroup memory in several parts, and keys of other sizes: of some a part is zeros."""
    q, k, v = heads_of("normal", (2, 1, 33, 65, width), values)
    arrays = {"q": q, "k": k, "v": v}
    got = run(trial, graph_of("Attention", arrays, scale=0.2), arrays, "tf32")
    want, allowed = wanted(q, k, v, 0.2, "tf32")
    assert (np.abs(got - want) <= allowed).all()


@pytest.mark.parametrize(
    ("width", "values", "precision"), [(160, 16, "float16"), (32, 144, "tf32"), (132, 20, "f16acc")]
)
def test_wide_heads(trial: Emulated, monkeypatch: pytest.MonkeyPatch, width: int, values: int, precision: str) -> None:
    """With four invocations of a query, whose sums no two hold."""
    monkeypatch.setattr(attention_units, "FORMS", (WIDE,))
    q, k, v = heads_of("normal", (1, 2, 19, 37, width), values)
    if precision == "float16":
        q, k, v = (a.astype(np.float16) for a in (q, k, v))
    arrays, seen = {"q": q, "k": k, "v": v}, np.tril(np.ones((19, 37), bool))
    with forced(WIDE.name):
        got = run(
            trial,
            graph_of("Attention", arrays, scale=0.1, is_causal=1),
            arrays,
            "float32" if precision == "float16" else precision,
        )
    want, allowed = wanted(q, k, v, 0.1, precision, seen)
    assert (np.abs(got - want) <= allowed).all()


def test_the_form_for_an_h200(trial: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_units, "FORMS", FORMS)
    q, k, v = heads_of("normal", (1, 1, 70, 100, 32), 64)
    arrays = {"q": q, "k": k, "v": v}
    with forced(FORMS[0].name):
        got = run(trial, graph_of("Attention", arrays, scale=0.2), arrays, "f16acc")
    want, allowed = wanted(q, k, v, 0.2, "f16acc")
    assert (np.abs(got - want) <= allowed).all()


@pytest.mark.parametrize("window", [-1, 20])
@pytest.mark.parametrize(
    ("dtype", "precision", "size"),
    [("float32", "tf32", 16), ("float32", "f16acc", 16), ("float16", "float32", 16), ("float16", "float32", 40)],
)
def test_a_prompt_behind_a_cache(trial: Emulated, dtype: str, precision: str, size: int, window: int) -> None:
    """GroupQueryAttention: causal, heads that share keys, a cache with room behind it whose content is no number."""
    rng = np.random.default_rng()
    heads, groups, tokens, before, rows = 4, 2, 35, 14, 96
    total = before + tokens
    q = rng.standard_normal((1, tokens, (heads + 2 * groups) * size)).astype(dtype)
    past = [np.full((1, groups, rows, size), np.nan, dtype) for _ in range(2)]
    for cache in past:
        cache[:, :, :before] = rng.standard_normal((groups, before, size))
    arrays = {
        "q": q,
        "_k": q,
        "_v": q,
        "past_key": past[0],
        "past_value": past[1],
        "lengths": np.array([total - 1], np.int32),
        "total": np.array([total], np.int32),
    }
    graph = graph_of(
        "GroupQueryAttention",
        arrays,
        "com.microsoft",
        1,
        3,
        num_heads=heads,
        kv_num_heads=groups,
        local_window_size=window,
    )
    got = run(trial, graph, arrays, precision)
    split = q.reshape(tokens, heads + 2 * groups, size).transpose(1, 0, 2)[None]
    keys, values = (
        np.concatenate([past[n][:, :, :before], split[:, heads + n * groups : heads + (n + 1) * groups]], 2)
        for n in range(2)
    )
    near = np.arange(total)[None] - (before + np.arange(tokens))[:, None]
    seen = (near <= 0) & (near > -window if window > 0 else True)
    name = "float16" if dtype == "float16" else precision
    want, allowed = wanted(
        split[:, :heads],
        np.repeat(keys, heads // groups, 1),
        np.repeat(values, heads // groups, 1),
        size**-0.5,
        name,
        seen,
    )
    flat = (a.transpose(0, 2, 1, 3).reshape(1, tokens, heads * size) for a in (want, allowed))
    want, allowed = flat
    assert (np.abs(got - want) <= allowed).all()


def test_an_infinite_query_stays_in_its_row(trial: Emulated) -> None:
    """No number becomes infinite that float32 holds: the largest queries, and values whose sums are almost beyond
    it."""
    q, k, v = heads_of("normal", SHAPE, 16)
    q[0, 0, 3, 2], q[0, 0, 4] = np.inf, 3e38 * np.sign(q[0, 0, 4])
    v[0, 1] *= np.float32(2.0**118)
    arrays = {"q": q, "k": k * np.float32(2.0**-100), "v": v}
    got = run(trial, graph_of("Attention", arrays, scale=0.2), arrays, "tf32")
    assert np.isfinite(got[0, 1]).all()
    assert np.isnan(got[0, 0, 3]).all()
    assert np.isfinite(np.delete(got[0, 0], 3, 0)).all()


def test_what_it_reads_is_stored_in_float16(trial: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """With f16acc between a product and attention, and behind it: the results are the same, bit for bit."""
    rng = np.random.default_rng()
    x, weights = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 40, 48), (48, 48)))
    values = {"x": Value("x", FLOAT32, x.shape), "w": Value("w", FLOAT32, weights.shape, lambda: weights)}
    nodes = (
        Node("MatMul", ("x", "w"), ("q",), "first", version=13, id=0),
        Node(
            "Attention",
            ("q", "q", "q"),
            ("m",),
            "mixing",
            version=23,
            attributes={"q_num_heads": 3, "kv_num_heads": 3},
            id=1,
        ),
        Node("MatMul", ("m", "w"), ("y",), "last", version=13, id=2),
    )
    graph = Graph("g", ("x",), ("y",), nodes, values)
    with in_tile(ONE_FRAGMENT), forced(ONE_FRAGMENT.name, QUICK.name):
        plan = make_plan(graph, {"x": TensorType(FLOAT32, x.shape)}, trial.gpu.limits.of(Config(precision="f16acc")))
        (got,) = trial.graph(graph, [x], "f16acc")
        monkeypatch.setattr(planner, "_store_rounded", lambda draft: None)
        with apart():
            (wide,) = trial.graph(graph, [x], "f16acc")
    found = {
        f"{step.label} {tensor.name}": tensor.type.dtype.name
        for step in plan.steps
        if isinstance(step, Dispatch)
        for tensor in step.tensors
    }
    assert {found[f"mixing/attention_units {name}"] for name in "qkvy"} == {"float16"}
    assert found["last/matrix_product x"] == "float16"
    assert found["last/matrix_product y"] == "float32"
    assert np.array_equal(got, wide)


def test_float32_and_few_queries_stay_off(trial: Emulated) -> None:
    for count, precision in ((37, "float32"), (5, "tf32")):
        q, k, v = heads_of("normal", (1, 1, count, 40, 32), 32)
        trial.shaders.clear()
        trial.graph(graph_of("Attention", {"q": q, "k": k, "v": v}), [q, k, v], precision)
        assert trial.shaders == {"attention.wgsl"}


def test_an_encoder_takes_them_by_estimate() -> None:
    """With the figures of an H200: heads of 64, 128 tokens, batches of 32."""
    with emulation() as made:
        limits = replace(made.gpu.limits, figures=DEFAULT_FIGURES, precision="tf32", max_workgroup_nbytes=49152)
    for problem in (Problem(32, 12, 128, 128, 16, 16), Problem(1, 32, 512, 512, 16, 16)):
        fastest, _ = min(estimates(problem, Target(limits), FLOAT32).values(), key=lambda form: form[1])
        assert fastest in FORMS


def test_without_a_probe_there_is_a_reason(trial: Emulated) -> None:
    limits = trial.gpu.limits
    assert no_attention_units(limits) == ""
    assert "no probe" in no_attention_units(replace(limits, features=limits.features - {MATRIX_ATTENTION}))
    assert "it failed" in no_attention_units(replace(limits, disabled=(("attention_units.wgsl", "it failed"),)))
    assert "32" in no_attention_units(replace(limits, subgroup_size=64))


def test_explain_names_it_and_its_bound(trial: Emulated) -> None:
    values = {name: Value(name, FLOAT32, (1, 1, 40, 32)) for name in "qkv"}
    graph = Graph("g", tuple("qkv"), ("y",), (Node("Attention", tuple("qkv"), ("y",), "mixing", version=23),), values)
    plan = make_plan(
        graph, dict.fromkeys("qkv", TensorType(FLOAT32, (1, 1, 40, 32))), trial.gpu.limits.of(Config(precision="tf32"))
    )
    lines = str(Explanation("adapter", (), (), (), (plan,))).splitlines()
    assert "on matrix units: 1 product" in lines
    assert any(
        "mixing" in line and "scores within (2^-10 + 32 * 2^-24) of scale * sum of |q k|" in line for line in lines
    )


@pytest.mark.parametrize("shader", ["", *ATTENTION_UNIT_SHADERS])
def test_the_probe_passes_and_sees_its_fault(shader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = PROBES["matrix units of attention"]
    with emulation(shown=False) as trial, apart():
        trial.only, trial.planted = shader, found.fault if shader else ""
        monkeypatch.setattr(attention_units, "FORMS", (UnitForm(1, 16),))
        monkeypatch.setattr(
            "ort_gpu_ep.health.probes.matrix_units.ATTENTION_HEADS", (("tf32", 16, 32), ("f16acc", 16, 16))
        )
        monkeypatch.setattr(attention_units, "MOST_CHUNK", 16)
        if shader:
            with pytest.raises(WrongResultError):
                found.check(trial)
        else:
            assert found.check(trial)
