"""Attention: ONNX's op against ONNX Runtime's CPU kernel, each form of the kernel, and the nodes that exporters
write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, TensorType
from ort_gpu_ep.kernels.cost_parameters import figures_for
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.kernels.target import Target
from ort_gpu_ep.ops import attention
from ort_gpu_ep.ops.attention import Problem, Share, forms_of, registers_of
from ort_gpu_ep.partitioner.passes import fuse
from tests.direct import run_direct
from tests.ops.single_node import Array, assert_agree, check_decline, node_model, normal, on_cpu

TOLERANCE = 2e-6


def exact(q: Array, k: Array, v: Array, mask: Array | float = 0.0, scale: float | None = None) -> Array:
    """By numpy in 64 bits. q, k, v: [B, heads, S, D]."""
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], 1) for a in (k, v))
    scores = (
        q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
        + mask
    )
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(powers / powers.sum(-1, keepdims=True) @ v, np.float32)


def random(*shapes: tuple[int, ...]) -> list[Array]:
    return [normal(*shape, seed=k) for k, shape in enumerate(shapes)]


def check(
    q: Array, k: Array, v: Array, mask: Array | None = None, wanted: Array | None = None, **attributes: Any
) -> None:
    model, feeds = node_model("Attention", [q, k, v, *([] if mask is None else [mask])], 23, **attributes)
    (got,), want = run_direct(model, feeds), wanted if wanted is not None else on_cpu(model, feeds)[0]
    assert_agree(got, want, TOLERANCE)


@pytest.mark.parametrize(
    ("batch", "heads", "kv", "queries", "keys", "width", "values"),
    [
        (1, 12, 12, 128, 128, 32, 32),
        (2, 3, 3, 5, 7, 8, 8),
        (1, 4, 2, 33, 65, 64, 64),
        (1, 2, 1, 1, 257, 128, 128),
        (1, 8, 8, 1, 1000, 32, 32),
        (3, 2, 2, 67, 31, 16, 4),
        (1, 1, 1, 1, 1, 4, 4),
        (1, 2, 2, 100, 3, 20, 36),
        (1, 2, 2, 40, 40, 96, 96),
    ],
)
def test_sizes(batch: int, heads: int, kv: int, queries: int, keys: int, width: int, values: int) -> None:
    q, k, v = random((batch, heads, queries, width), (batch, kv, keys, width), (batch, kv, keys, values))
    check(q, k, v, wanted=exact(q, k, v))


def some_forms() -> list[Share]:
    target = Target(Limits(frozenset(("subgroup",))))
    problems = (Problem(1, 2, 40, 70, 8, 8), Problem(1, 2, 1, 70, 8, 8), Problem(1, 2, 5, 70, 8, 8))
    usual = list(dict.fromkeys(form for problem in problems for form in forms_of(problem, target)))[::4]
    return [
        *usual,
        Share(8, 2, 2, 4, keys=2),
        Share(16, 1, 1, 4, keys=1),
        Share(8, 1, 4, 2, keys=1),
        Share(8, 2, 8, 2, keys=1),
        Share(4, 1, 8, 1),
    ]


@pytest.mark.parametrize("compiler", ["amd", "apple", "intel", "nvk", "qualcomm"])
@pytest.mark.parametrize(
    "problem", [Problem(1, 32, 1, 2048, 32, 32), Problem(1, 32, 128, 128, 32, 32), Problem(1, 12, 256, 256, 16, 16)]
)
def test_forms_fit_into_the_registers_that_a_compiler_has(compiler: str, problem: Problem) -> None:
    figures = figures_for("discrete", None, compiler)
    target = Target(Limits(frozenset(("subgroup",)), max_invocations=1024, figures=figures))
    forms = forms_of(problem, target)
    assert forms
    assert all(registers_of(problem, form) <= figures.lane_registers for form in forms)
    own = forms_of(problem, Target(replace(target.limits, figures=figures_for("discrete", None, "nvidia"))))
    assert {(form.keys, form.parts) for form in own} <= {(4, 1), (4, 2), (4, 4)}


def test_where_no_form_fits_the_smallest_is_taken() -> None:
    problem = Problem(1, 2, 9, 70, 64, 64)
    # without subgroups an invocation has a head alone
    target = Target(Limits(figures=figures_for("integrated", None, "intel")))
    assert {(form.keys, form.per_lane, form.parts) for form in forms_of(problem, target)} == {(1, 1, 1)}


@pytest.mark.parametrize("form", some_forms(), ids=lambda f: f.name)
def test_forms(form: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "forms_of", lambda *_: [form])
    q, k, v = random((1, 2, 41, 32), (1, 1, 70, 32), (1, 1, 70, 32))
    mask = np.where(np.arange(70) % 3 == 0, -np.inf, 0.5).astype("f") * np.ones((41, 1), "f")
    with apart():
        check(q, k, v, mask, exact(q, k, v, mask))
        check(
            q, k, v, is_causal=1, wanted=exact(q, k, v, np.where(np.arange(70) <= np.arange(41)[:, None], 0.0, -np.inf))
        )


@pytest.mark.parametrize(
    "shape", [(37,), (9, 37), (1, 37), (3, 9, 37), (3, 1, 37), (2, 3, 9, 37), (2, 1, 1, 37), (2, 3, 9, 1)], ids=str
)
@pytest.mark.parametrize("kind", ["added", "bool"])
def test_masks(shape: tuple[int, ...], kind: str) -> None:
    q, k, v = random((2, 3, 9, 16), (2, 3, 37, 16), (2, 3, 37, 16))
    mask = normal(*shape, seed=9)
    if kind == "bool":
        seen = mask > -0.5
        seen[..., 0] = True
        check(q, k, v, seen, exact(q, k, v, np.where(seen, 0.0, -np.inf)))
    else:
        check(q, k, v, mask, exact(q, k, v, mask))


@pytest.mark.parametrize(
    ("hidden", "kind"),
    [(None, "float32"), (-np.inf, "float32"), (np.finfo("f4").min, "float32"), (np.finfo("f2").min, "float16")],
    ids=str,
)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("causal", [0, 1])
def test_a_query_that_sees_nothing_gets_zeros_by_onnx(hidden: float | None, kind: str, batch: int, causal: int) -> None:
    """Exporters write the lowest number of the type for what is not seen: it hides a key as False and minus infinity
    do."""
    q, k, v = (a.astype(kind) for a in random((batch, 2, 9, 16), (batch, 2, 37, 16), (batch, 2, 37, 16)))
    seen = np.ones((9, 37), bool)
    seen[4] = False
    seen[5, :6] = False
    mask = seen if hidden is None else np.where(seen, 0.5, hidden).astype(kind)
    seen = seen & (not causal or np.tril(seen))
    want = exact(*(a.astype("f") for a in (q, k, v)), np.where(seen, 0.0, -np.inf))
    want[:, :, ~seen.any(-1)] = 0
    model, feeds = node_model("Attention", [q, k, v, mask], 23, is_causal=causal)
    (got,) = run_direct(model, feeds)
    assert_agree(got, want.astype(kind), TOLERANCE if kind == "float32" else 2e-3)


def test_a_mask_of_numbers_above_the_lowest_leaves_the_mean_of_all() -> None:
    """No NaN may come of it."""
    q, k, v = random((1, 2, 9, 16), (1, 2, 37, 16), (1, 2, 37, 16))
    mask = np.full((9, 37), np.nextafter(np.finfo(np.float32).min, np.float32(0)))
    check(q / 8, k / 8, v, mask, np.broadcast_to(v.mean(2, keepdims=True), q.shape).astype("f"))


def test_scores_far_beyond_exp() -> None:
    q, k, v = random((1, 2, 9, 16), (1, 2, 300, 16), (1, 2, 300, 16))
    check(q * 40, k * 40, v, wanted=exact(q * 40, k * 40, v))


def test_nan_and_infinity_stay_in_their_rows() -> None:
    q, k, v = random((1, 2, 9, 16), (1, 2, 37, 16), (1, 2, 37, 16))
    q[0, 1, 3, 2] = np.nan
    (got,) = run_direct(*node_model("Attention", [q, k, v], 23))
    wanted = np.zeros(got.shape, bool)
    wanted[0, 1, 3] = True
    np.testing.assert_array_equal(np.isnan(got), wanted)


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({"q_num_heads": 6, "kv_num_heads": 3}, (2, 9, 48)),
        ({"scale": 0.3}, (2, 6, 9, 8)),
        ({"softcap": 2.0}, (2, 6, 9, 8)),
        ({"is_causal": 1}, (2, 6, 9, 8)),
    ],
)
def test_attributes(attributes: dict[str, Any], shape: tuple[int, ...]) -> None:
    other = shape if len(shape) == 4 else (*shape[:2], shape[2] // 2)
    check(*random(shape, other, other), **attributes)


@pytest.mark.parametrize(
    ("code", "shapes"),
    [(Code.LIMIT, ((1, 1, 5, 260), (1, 1, 5, 260), (1, 1, 5, 260))), (Code.RANK, ((1, 5, 6), (1, 5, 6), (1, 5, 6)))],
    ids=str,
)
def test_declines(code: Code, shapes: Any) -> None:
    check_decline(code, "Attention", random(*shapes), 23)


@pytest.mark.parametrize("shape", [(1, 2, 3, 0), (1, 0, 3, 4), (1, 2, 0, 4)], ids=str)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_heads_of_nothing_are_declined(shape: tuple[int, ...], scale: float | None) -> None:
    """onnxruntime's CPU refuses them."""
    model, feeds = node_model("Attention", random(*[shape] * 3), 23, **({"scale": scale} if scale else {}))
    for every_size_open in (False, True):
        with pytest.raises(UnsupportedNodeError):
            run_direct(model, feeds, every_size_open=every_size_open)


def exported(heads: int, scaled: str, masked: bool, folded: bool) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """x [2, 9, 24] through three products, heads split, scores, softmax, mixed, joined. folded: the keys transposed
    once, not twice."""
    nodes, constants = [], {"split": np.array([0, 0, heads, 24 // heads]), "joined": np.array([0, 0, 24])}

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], **attributes))
        return f"v{len(nodes) - 1}"

    for k, name in enumerate("qkv"):
        constants[f"w{name}"] = normal(24, 24, seed=k) / 3
    q, k, v = (add("Reshape", add("MatMul", "x", f"w{name}"), "split") for name in "qkv")
    q, v = (add("Transpose", a, perm=[0, 2, 1, 3]) for a in (q, v))
    k = (
        add("Transpose", k, perm=[0, 2, 3, 1])
        if folded
        else add("Transpose", add("Transpose", k, perm=[0, 2, 1, 3]), perm=[0, 1, 3, 2])
    )
    scores = add("MatMul", q, k)
    if scaled:
        constants["scale"] = np.array(2.5 if scaled == "Div" else 0.4, "f")
        scores = add(scaled, scores, "scale")
    if masked:
        constants["mask"] = normal(2, 1, 9, 9, seed=5)
        scores = add("Add", "mask", scores)
    mixed = add("MatMul", add("Softmax", scores, axis=-1), v)
    add("Reshape", add("Transpose", mixed, perm=[0, 2, 1, 3]), "joined")
    x = normal(2, 9, 24, seed=8)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_empty_tensor_value_info(nodes[-1].output[0])],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), {"x": x}


def ops_of(model: onnx.ModelProto) -> list[str]:
    graph = from_onnx(model)
    return [n.op for n in fuse(graph, {"x": TensorType(FLOAT32, (2, 9, 24))}, Limits()).nodes]


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("scaled", ["Mul", "Div", ""])
def test_as_exporters_write_it(scaled: str, masked: bool, folded: bool) -> None:
    model, feeds = exported(3, scaled, masked, folded)
    ops = ops_of(model)
    assert ops.count("Attention") == 1
    assert not {"Transpose", "Softmax", "Div", "Mul"} & set(ops)
    assert_agree(run_direct(model, feeds, fuse)[0], on_cpu(model, feeds)[0], TOLERANCE)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("scaled", ["Mul", "Div", ""])
def test_in_float16_too(scaled: str, masked: bool) -> None:
    """One node with what the network of float32 gives: six dispatches in place of one made optimised networks slower in
    float16."""
    plain, feeds = exported(3, scaled, masked, False)
    model = convert_float_to_float16(plain, keep_io_types=False)
    graph = from_onnx(model)
    ops = [
        n.op
        for n in fuse(graph, {"x": TensorType(FLOAT16, (2, 9, 24))}, Limits(features=frozenset({"shader-f16"}))).nodes
    ]
    assert ops.count("Attention") == 1
    assert not {"Transpose", "Softmax", "Div", "Mul"} & set(ops)
    (got,), (wanted,) = run_direct(model, {"x": feeds["x"].astype(np.float16)}, fuse), on_cpu(plain, feeds)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype("d"), wanted, rtol=4e-3, atol=4e-3 * np.abs(wanted).max())


def test_a_transposition_that_is_read_elsewhere_stays() -> None:
    model, feeds = exported(3, "Div", False, False)
    transposed = next(n for n in model.graph.node if n.op_type == "Transpose")
    model.graph.output.append(helper.make_empty_tensor_value_info(transposed.output[0]))
    ops = ops_of(model)
    assert (ops.count("Attention"), ops.count("Transpose")) == (1, 1)
    for got, want in zip(run_direct(model, feeds, fuse), on_cpu(model, feeds), strict=True):
        assert_agree(got, want, TOLERANCE)


@pytest.mark.parametrize("what", ["probabilities are an output", "other axis", "scale of a vector", "width of 6"])
def test_what_is_not_fused(what: str) -> None:
    model, feeds = exported(4 if what == "width of 6" else 3, "Div", False, True)
    softmax = next(n for n in model.graph.node if n.op_type == "Softmax")
    if what == "probabilities are an output":
        model.graph.output.append(helper.make_empty_tensor_value_info(softmax.output[0]))
    if what == "other axis":
        softmax.attribute[0].i = 2
    if what == "scale of a vector":
        next(i for i in model.graph.initializer if i.name == "scale").CopyFrom(
            numpy_helper.from_array(np.full(9, 2.5, "f"), "scale")
        )
    assert "Attention" not in ops_of(model)
    for got, want in zip(run_direct(model, feeds, fuse), on_cpu(model, feeds), strict=True):
        assert_agree(got, want, TOLERANCE)


HEADS = "(float[B, S, C] x, float[B, 1, S, S] mask) => (y)"
SPLIT = """h = Reshape(x, split) q = Transpose <perm = [0, 2, 1, 3]> (h) v = Transpose <perm = [0, 2, 1, 3]> (h)"""
SCALES = """float root = {0.6}, int64[1] last = {-1}, int64[1] end = {9223372036854775807}, float zero = {0}, float one = {1}"""
JOINED = "t = Transpose <perm = [0, 2, 1, 3]> (a) y = Reshape(t, joined)"
GUARDED = "p = Softmax <axis = -1> (m) bad = IsNaN(p) w = Where(bad, zero, p) a = MatMul(w, v)"

BY_EXPORTERS = {
    "torchscript": (
        17,
        HEADS,
        f"""{SPLIT} k = Transpose <perm = [0, 2, 3, 1]> (h) shape = Shape(q) size = Slice(shape, last, end) wide = Cast <to = 1> (size)
        root_size = Sqrt(wide) part = Div(one, root_size) factor = Sqrt(part) qs = Mul(q, factor) ks = Mul(factor, k) s = MatMul(qs, ks) m = Add(s, mask)
        p = Softmax <axis = -1> (m) a = MatMul(p, v) {JOINED}""",
    ),
    "torchscript, guarded": (
        17,
        HEADS,
        f"""{SPLIT} k = Transpose <perm = [0, 2, 3, 1]> (h) qs = Mul(q, root) ks = Mul(k, root) s = MatMul(qs, ks) m = Add(s, mask)
        {GUARDED} {JOINED}""",
    ),
    "dynamo, keys as images": (
        18,
        HEADS,
        f"""{SPLIT} k = Transpose <perm = [0, 2, 1, 3]> (h) flat = Reshape(k, images) swapped = Transpose <perm = [0, 2, 1]> (flat)
        kt = Reshape(swapped, back) qs = Mul(q, root) ks = Mul(kt, root) s = MatMul(qs, ks) m = Add(s, mask) {GUARDED} {JOINED}""",
    ),
    "dynamo, divided": (
        18,
        HEADS,
        f"""{SPLIT} k = Transpose <perm = [0, 2, 3, 1]> (h) qs = Div(q, root) s = MatMul(qs, k) p = Softmax <axis = -1> (s)
        a = MatMul(p, v) {JOINED}""",
    ),
    "Attention": (23, HEADS, f"{SPLIT} k = Transpose <perm = [0, 2, 1, 3]> (h) a = Attention(q, k, v, mask) {JOINED}"),
    "Attention, causal": (
        23,
        HEADS,
        f"{SPLIT} k = Transpose <perm = [0, 2, 1, 3]> (h) a = Attention <is_causal = 1, scale = 0.4> (q, k, "
        f"v) {JOINED}",
    ),
}


def by_exporter(name: str, queries: int = 9, width: int = 8) -> tuple[onnx.ModelProto, dict[str, Array]]:
    opset, header, body = BY_EXPORTERS[name]
    text = f'<ir_version: 10, opset_import: ["": {opset}]> g {header} <{SCALES}> {{ {body} }}'
    model = onnx.parser.parse_model(text)
    sizes = {
        "split": [0, 0, 3, width],
        "joined": [0, 0, 3 * width],
        "images": [-1, queries, width],
        "back": [2, 3, width, queries],
    }
    model.graph.initializer.extend(numpy_helper.from_array(np.array(value), n) for n, value in sizes.items())
    used = {i for n in model.graph.node for i in n.input}
    if "mask" not in used:
        del model.graph.input[1]
    feeds = {"x": normal(2, queries, 3 * width), "mask": normal(2, 1, queries, queries, seed=5)}
    return model, {n: a for n, a in feeds.items() if n in used}


@pytest.mark.parametrize("name", BY_EXPORTERS)
def test_as_new_exporters_write_it(name: str) -> None:
    """Queries and keys multiplied apart, keys transposed as images, NaN of the softmax taken for 0, ONNX's op between
    transpositions."""
    model, feeds = by_exporter(name)
    types = {n: TensorType(FLOAT32, a.shape) for n, a in feeds.items()}
    ops = [(n.op, n.domain) for n in fuse(from_onnx(model), types, Limits()).nodes]
    assert ops.count(("Attention", "ort_gpu_ep")) == 1
    assert not {"Softmax", "MatMul", "Where"} & {op for op, _ in ops}
    for every_size_open in (False, True):
        assert_agree(run_direct(model, feeds, fuse, every_size_open)[0], on_cpu(model, feeds)[0], TOLERANCE)


def test_the_lowest_number_hides_a_key_of_onnxs_op_between_transpositions() -> None:
    (name,) = (n for n, (_, _, text) in BY_EXPORTERS.items() if "a = Attention" in text and "mask" in text)
    model, feeds = by_exporter(name)
    feeds["mask"][1, 0, 3] = np.finfo("f4").min
    (wanted,) = on_cpu(model, feeds)
    assert not wanted[1, 3].any()
    assert_agree(run_direct(model, feeds, fuse)[0], wanted, TOLERANCE)


@pytest.mark.parametrize("form", some_forms(), ids=lambda f: f.name)
def test_not_a_number_is_taken_for_nothing(form: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    """In rows that see no key, and in those whose scores are NaN."""
    monkeypatch.setattr(attention, "forms_of", lambda *_: [form])
    model, feeds = by_exporter("torchscript, guarded", 41, 32)
    feeds["mask"][1, 0, 3], feeds["mask"][0, 0, 40, 7] = -np.inf, np.nan
    (wanted,) = on_cpu(model, feeds)
    assert not wanted[1, 3].any()
    assert not wanted[0, 40].any()
    with apart():
        assert_agree(run_direct(model, feeds, fuse)[0], wanted, TOLERANCE)


REPEATED = """<ir_version: 10, opset_import: ["": 18]> g (float[B, 4, S, 8] x, float[B, 2, T, 8] keys, float[B, KV, T, 8] values) => (y)
<int64[1] two = {2}> {
    k1 = Unsqueeze(keys, two) k2 = Expand(k1, wide) k3 = Reshape(k2, heads) k = Transpose <perm = [0, 1, 3, 2]> (k3)
    v1 = Unsqueeze(values, two) v2 = Expand(v1, WIDE) v = Reshape(v2, heads) s = MatMul(x, k) p = Softmax(s) y = MatMul(p, v)
}"""


def test_heads_of_queries_that_are_repeated_are_all_there() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18]> g (float[2, 2, 5, 8] x, float[2, 1, 11, 8] keys) => (y)
    <int64[1] two = {2}, int64[5] wide = {2, 2, 2, 5, 8}, int64[4] heads = {2, 4, 5, 8}> {
        x1 = Unsqueeze(x, two) x2 = Expand(x1, wide) x3 = Reshape(x2, heads) k = Transpose <perm = [0, 1, 3, 2]> (keys)
        s = MatMul(x3, k) p = Softmax(s) y = MatMul(p, keys)
    }""")
    feeds = {"x": normal(2, 2, 5, 8), "keys": normal(2, 1, 11, 8)}
    assert_agree(run_direct(model, feeds, fuse)[0], on_cpu(model, feeds)[0], TOLERANCE)


@pytest.mark.parametrize("kv", [2, 4])
def test_repeated_heads_are_read_once(kv: int) -> None:
    """Keys and values of which each head stands for two; where the values have all of their own, the keys' copies
    stay."""
    model = onnx.parser.parse_model(REPEATED.replace("KV", str(kv)).replace("WIDE", "wide" if kv == 2 else "same"))
    sizes = {"wide": [2, 2, 2, 11, 8], "same": [2, 4, 1, 11, 8], "heads": [2, 4, 11, 8]}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(v), n) for n, v in sizes.items())
    feeds = {"x": normal(2, 4, 5, 8), "keys": normal(2, 2, 11, 8), "values": normal(2, kv, 11, 8, seed=3)}
    nodes = fuse(from_onnx(model), {n: TensorType(FLOAT32, a.shape) for n, a in feeds.items()}, Limits()).nodes
    assert [n.op for n in nodes if n.op != "Unsqueeze"] == (
        ["Attention"] if kv == 2 else ["Expand", "Reshape", "Attention"]
    )
    for every_size_open in (False, True):
        assert_agree(run_direct(model, feeds, fuse, every_size_open)[0], on_cpu(model, feeds)[0], TOLERANCE)


@pytest.mark.parametrize("axis", [1, -4])
def test_heads_in_turn_are_not_repeated_heads(axis: int) -> None:
    """All heads behind one another, as torch's Tensor.repeat gives: as many copies as heads, so sizes alone don't
    tell."""
    model = onnx.parser.parse_model(
        REPEATED.replace("KV", "2").replace("WIDE", "wide").replace("two = {2}", f"two = {{{axis}}}")
    )
    sizes = {"wide": [2, 2, 2, 11, 8], "heads": [2, 4, 11, 8]}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(v), n) for n, v in sizes.items())
    feeds = {"x": normal(2, 4, 5, 8), "keys": normal(2, 2, 11, 8), "values": normal(2, 2, 11, 8, seed=3)}
    for every_size_open in (False, True):
        assert_agree(run_direct(model, feeds, fuse, every_size_open)[0], on_cpu(model, feeds)[0], TOLERANCE)


@pytest.mark.parametrize("drawn", ["x", "keys", "values"])
def test_what_a_node_without_inputs_gives(drawn: str) -> None:
    """Its producers end there: to look for its first input raised, and the whole model stayed on the CPU."""
    given = ", ".join(f"float[2, 3, 8, 8] {name}" for name in ("x", "keys", "values") if name != drawn)
    body = f"{drawn} = RandomNormal <shape = [2, 3, 8, 8]> () s = MatMul(x, keys) p = Softmax(s) y = MatMul(p, values)"
    graph = from_onnx(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> g ({given}) => (y) {{ {body} }}')
    )
    types = {n: TensorType(FLOAT32, (2, 3, 8, 8)) for n in graph.inputs}
    fused = fuse(graph, types, Limits(), lambda _: TensorType(FLOAT32, (2, 3, 8, 8)))
    assert "RandomNormal" in [n.op for n in fused.nodes]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("a = Attention <softcap = 2.0> (q, k, v, mask)", "a cap"),
        ("a, keys, values = Attention(q, k, v, mask, k, v)", "a cache"),
    ],
)
def test_what_stays_the_op_of_onnx(body: str, why: str) -> None:
    text = f"{SPLIT} k = Transpose <perm = [0, 2, 1, 3]> (h) {body} {JOINED}"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 23]> g {HEADS.replace("S, S", "S, T")} {{ {text} }}'
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(v), n) for n, v in {"split": [0, 0, 3, 8], "joined": [0, 0, 24]}.items()
    )
    feeds = {"x": normal(2, 9, 24), "mask": normal(2, 1, 9, 18 if why == "a cache" else 9, seed=5)}
    nodes = fuse(from_onnx(model), {n: TensorType(FLOAT32, a.shape) for n, a in feeds.items()}, Limits()).nodes
    assert [n.domain for n in nodes if n.op == "Attention"] == [""]
    assert_agree(run_direct(model, feeds, fuse)[0], on_cpu(model, feeds)[0], TOLERANCE)


def test_without_heads() -> None:
    text = (
        "(float[2, 9, 24] x) => (y) { t = Transpose<perm=[0, 2, 1]>(x) s = MatMul(x, t) p = Softmax(s) y = "
        "MatMul(p, x) }"
    )
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    assert ops_of(model) == ["Attention"]
    x = normal(2, 9, 24)
    assert_agree(run_direct(model, {"x": x}, fuse)[0], on_cpu(model, {"x": x})[0], TOLERANCE)


def test_without_subgroups_an_invocation_has_whole_heads() -> None:
    assert {form.parts for form in forms_of(Problem(1, 2, 40, 70, 8, 8), Target(Limits()))} == {1}
    assert {form.parts for form in forms_of(Problem(1, 2, 40, 70, 8, 8), Target(Limits(frozenset(("subgroup",)))))} == {
        1,
        2,
        4,
    }
