"""Fusion: what becomes one dispatch, and what must not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

from ort_gpu_ep.ir.graph import Graph, from_onnx
from ort_gpu_ep.kernels.lowering import facts_of, walk
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner.fusion import MAX_STEPS
from ort_gpu_ep.partitioner.fusions import RULES, Rule, apply_rules
from ort_gpu_ep.partitioner.patterns import match, trace
from tests.unit.graphs import fused, graph_of, ops_of, plan_of, random_models, static_types
from tests.unit.rule_models import EXAMPLES, RULE_IDS, model_of_rule

Weights = dict[str, np.ndarray]


@pytest.fixture
def weights() -> Weights:
    rng = np.random.default_rng(7)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype("f")

    return {
        "w": normal(8, 3, 3, 3),
        "w2": normal(8, 8, 1, 1),
        "b": normal(8),
        "m": normal(16, 8),
        "v": normal(8),
        "one": np.array(1.0, "f"),
        "half": np.array(0.5, "f"),
        "root2": np.array(2**0.5, "f"),
        "three": np.array(3.0, "f"),
        "six": np.array(6.0, "f"),
        "zero": np.array(0.0, "f"),
        "scale": rng.uniform(0.5, 2, 8).astype("f"),
        "mean": normal(8),
        "var": rng.uniform(0.5, 2, 8).astype("f"),
    }


IMAGE = "(float[2, 3, 9, 9] x) => (y)"
MATRIX = "(float[5, 16] x) => (y)"

ONE_DISPATCH = {
    "conv, relu": (IMAGE, "a = Conv(x, w, b) y = Relu(a)"),
    "conv, batch normalization, relu": (
        IMAGE,
        "a = Conv(x, w) n = BatchNormalization(a, scale, b, mean, var) y = Relu(n)",
    ),
    "conv, batch normalization, silu": (
        IMAGE,
        "a = Conv(x, w) n = BatchNormalization(a, scale, b, mean, var) s = Sigmoid(n) y = Mul(n, s)",
    ),
    "product, bias, relu": (MATRIX, "a = MatMul(x, m) h = Add(a, v) y = Relu(h)"),
    "product, bias on the left": (MATRIX, "a = MatMul(x, m) y = Add(v, a)"),
    "gemm, tanh": (MATRIX, "a = Gemm(x, m, v) y = Tanh(a)"),
    "silu": (MATRIX, "s = Sigmoid(x) y = Mul(x, s)"),
    "gelu": (MATRIX, "d = Div(x, root2) e = Erf(d) a = Add(e, one) p = Mul(x, a) y = Mul(p, half)"),
    "gelu after a product": (
        MATRIX,
        "h = MatMul(x, m) d = Div(h, root2) e = Erf(d) a = Add(e, one) p = Mul(h, a) y = Mul(p, half)",
    ),
    "hard swish": (MATRIX, "a = Add(x, three) c = Clip(a, zero, six) d = Div(c, six) y = Mul(x, d)"),
    "hard swish after a convolution": (
        IMAGE,
        "h = Conv(x, w) a = Add(h, three) c = Clip(a, zero, six) p = Mul(h, c) y = Div(p, six)",
    ),
    "a chain that starts nowhere": (MATRIX, "a = Exp(x) c = Neg(a) d = Add(c, one) y = Sqrt(d)"),
    "softmax, scaled": (MATRIX, "a = Softmax(x) y = Mul(a, half)"),
    "normalized, shifted": ("(float[5, 8] x) => (y)", "a = LayerNormalization(x, scale, v) y = Add(a, x)"),
}


@pytest.mark.parametrize("name", ONE_DISPATCH)
def test_one_dispatch(name: str, weights: Weights) -> None:
    header, body = ONE_DISPATCH[name]
    graph = graph_of(f"{header} {{ {body} }}", weights, opset=17)
    after = fused(graph)
    assert len(after.nodes) == 1, ops_of(after)
    assert after.nodes[0].members == tuple(sorted(n.id for n in graph.nodes))
    assert after.nodes[0].outputs == ("y",)
    assert plan_of(graph).dispatches == 1
    assert plan_of(graph, with_fusion=False).dispatches == len(graph.nodes)


def test_steps_behind_a_product_of_rows_go_into_it(weights: Weights) -> None:
    """As ONNX Runtime leaves MatMul and Add over three dimensions behind."""
    body = "a = Gemm(x, m, v) r = Reshape(a, s) t = Tanh(r) y = Mul(t, half)"
    after = fused(graph_of(f"{MATRIX} {{ {body} }}", {**weights, "s": np.array([1, 5, 8])}))
    assert ops_of(after) == ["Gemm"]
    assert [s.op for s in after.nodes[0].epilogue] == ["Tanh", "Mul"]
    other = graph_of(f"{MATRIX} {{ {body} }}", {**weights, "s": np.array([4, 10])})
    assert ops_of(fused(other))[0] == "Gemm"
    assert len(fused(other).nodes) > 1


def test_a_residual_goes_into_the_second_branch(weights: Weights) -> None:
    graph = graph_of(f"{IMAGE} {{ a = Conv(x, w) r = Relu(a) c = Conv(r, w2) s = Add(c, r) y = Relu(s) }}", weights)
    after = fused(graph)
    assert ops_of(after) == ["Conv", "Conv"]
    assert [s.op for s in after.nodes[1].epilogue] == ["Add", "Relu"]
    assert after.nodes[1].operands == ("r",)


def test_two_branches_one_is_absorbed(weights: Weights) -> None:
    graph = graph_of(f"{IMAGE} {{ a = Conv(x, w) c = Conv(x, w, b) y = Add(a, c) }}", weights)
    after = fused(graph)
    assert ops_of(after) == ["Conv", "Conv"]
    assert sorted(len(n.epilogue) for n in after.nodes) == [0, 1]


def test_batch_normalization_is_folded_into_numbers(weights: Weights) -> None:
    graph = graph_of(
        f"{IMAGE} {{ a = Conv(x, w) y = BatchNormalization<epsilon=0.01>(a, scale, b, mean, var) }}", weights
    )
    (node,) = fused(graph).nodes
    after = fused(graph)
    factor, shift = (after.constant(n) for n in node.operands)
    want = weights["scale"] / np.sqrt(weights["var"] + 0.01)
    assert factor is not None
    assert shift is not None
    np.testing.assert_allclose(factor.reshape(-1), want, rtol=1e-6)
    np.testing.assert_allclose(shift.reshape(-1), weights["b"] - weights["mean"] * want, rtol=1e-5, atol=1e-6)
    assert factor.shape == shift.shape == (8, 1, 1)


def test_batch_normalization_with_parameters_of_the_run_stays() -> None:
    graph = graph_of(
        "(float[2, 8, 3] x, float[8] s, float[8] b, float[8] m, float[8] v) => (y) { y = BatchNormalization(x, "
        "s, b, m, v) }"
    )
    assert ops_of(fused(graph)) == ["BatchNormalization"]


def test_a_shared_intermediate_is_not_fused(weights: Weights) -> None:
    graph = graph_of(f"{IMAGE.replace('(y)', '(y, z)')} {{ a = Conv(x, w) y = Relu(a) z = Sigmoid(a) }}", weights)
    assert ops_of(fused(graph)) == ["Conv", "Relu", "Sigmoid"]


def test_an_output_of_the_graph_is_not_swallowed(weights: Weights) -> None:
    graph = graph_of(f"{IMAGE.replace('(y)', '(a, y)')} {{ a = Conv(x, w) y = Relu(a) }}", weights)
    assert ops_of(fused(graph)) == ["Conv", "Relu"]


def test_what_a_body_reads_is_not_swallowed(weights: Weights) -> None:
    graph = graph_of(
        "(float[5, 16] x, bool c) => (y, z) { a = Exp(x) y = Neg(a) "
        "z = If(c) < then_branch = t () => (r) { r = Relu(a) }, else_branch = e () => (q) { q = Relu(x) } > }"
    )
    assert ops_of(fused(graph)) == ["Exp", "Neg", "If"]


def test_a_value_read_twice_by_the_same_node_is_one_reader(weights: Weights) -> None:
    graph = graph_of(f"{MATRIX} {{ a = MatMul(x, m) y = Mul(a, a) }}", weights)
    (node,) = fused(graph).nodes
    assert node.epilogue[0].arguments == ("v", "v")


@pytest.mark.parametrize(
    "body",
    [
        "a = Exp(x) y = Sub(a, a)",
        "a = Exp(x) b = Sub(a, z) y = Sub(b, a)",
        "a = Exp(x) b = Neg(a) y = Add(a, b)",
        "a = Add(x, z) y = Sub(a, z)",
        "a = Exp(x) y = Div(a, a)",
        "a = Exp(x) b = Reciprocal(a) y = Mul(a, b)",
        "a = Mul(x, z) b = Neg(z) y = Div(a, b)",
        "a = Exp(x) b = Sum(a, z) c = Neg(b) y = Sum(x, c, z)",
    ],
)
def test_what_compilers_would_cancel_is_not_one_kernel(body: str) -> None:
    graph = graph_of(f"(float[5] x, float[5] z) => (y) {{ {body} }}")
    assert len(fused(graph).nodes) > 1


@pytest.mark.parametrize(
    "body",
    [
        "a = Exp(x) y = Mul(a, a)",
        "a = Exp(x) y = Add(a, a)",
        "a = Sigmoid(x) y = Mul(a, x)",
        "a = Sub(z, x) b = Mul(a, z) y = Add(b, x)",
        "a = Exp(x) b = Neg(a) y = Sub(z, b)",
        "a = Mul(x, z) y = Sub(x, a)",
    ],
)
def test_what_they_would_not_cancel_is(body: str) -> None:
    assert len(fused(graph_of(f"(float[5] x, float[5] z) => (y) {{ {body} }}")).nodes) == 1


def test_a_producer_that_must_be_broadcast_is_not_fused() -> None:
    graph = graph_of("(float[1, 16] x, float[5, 16] z) => (y) { a = Relu(x) y = Add(a, z) }")
    assert ops_of(fused(graph)) == ["Relu", "Add"]


def test_an_operand_may_be_broadcast() -> None:
    graph = graph_of("(float[1, 16] x, float[5, 16] z) => (y) { a = Relu(z) y = Add(a, x) }")
    (node,) = fused(graph).nodes
    assert set(node.operands) == {"x", "z"}


def test_views_and_nodes_of_the_cpu_break_a_chain() -> None:
    graph = graph_of("(float[4, 4] x) => (y) { a = Exp(x) i = com.microsoft.Inverse(a) y = Neg(i) }")
    assert ops_of(fused(graph)) == ["Exp", "Inverse", "Neg"]


def test_gelu_is_one_step_and_what_is_almost_one_a_chain(weights: Weights) -> None:
    body = "h = MatMul(x, m) d = Div(h, {root}) e = Erf(d) a = Add(e, one) p = Mul(h, a) y = Mul(p, half)"
    for root, steps in (
        ("root2", ["Gelu"]),
        ("three", ["Div", "Erf", "Add", "Mul", "Mul"]),
        ("v", ["Div", "Erf", "Add", "Mul", "Mul"]),
    ):
        (node,) = fused(graph_of(f"{MATRIX} {{ {body.format(root=root)} }}", weights)).nodes
        assert [step.op for step in node.epilogue] == steps


@pytest.mark.parametrize("name", ["half", "one"])
def test_a_number_of_more_axes_stays_in_the_result(weights: Weights, name: str) -> None:
    """By 0.5 as [1, 1, 1] a vector becomes a tensor of three axes; Gelu gave the vector."""
    body = "d = Div(x, root2) e = Erf(d) a = Add(e, one) p = Mul(x, a) y = Mul(p, half)"
    graph = graph_of(f"(float[16] x) => (y) {{ {body} }}", {**weights, name: weights[name].reshape(1, 1, 1)})
    assert "Gelu" not in ops_of(fused(graph))


def test_steps_are_limited() -> None:
    count = MAX_STEPS + 5
    names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
    ops = ["Neg", "Abs", "Exp"]
    graph = graph_of(
        f"{MATRIX} {{ " + " ".join(f"{names[i + 1]} = {ops[i % 3]}({names[i]})" for i in range(count)) + " }"
    )
    after = fused(graph)
    assert [len(n.epilogue) for n in after.nodes] == [MAX_STEPS, 5]
    assert plan_of(graph).dispatches == 2


def test_bindings_are_limited() -> None:
    """Eight buffers a kernel: a sum of more values takes more kernels."""
    names = [f"x{i}" for i in range(12)]
    body = " ".join(f"s{i} = Add({f's{i - 1}' if i > 1 else 'x0'}, x{i})" for i in range(1, 12))
    graph = graph_of(f"({', '.join(f'float[3, 3] {n}' for n in names)}) => (s11) {{ {body} }}")
    after = fused(graph, Limits(max_buffers_per_stage=8))
    assert all(len(n.operands) + 1 <= 8 for n in after.nodes)
    assert len(after.nodes) == 2
    assert len(fused(graph, Limits(max_buffers_per_stage=16)).nodes) == 1


def test_the_order_stays_topological(weights: Weights) -> None:
    """A producer moves down to its consumer, which needs a value that is made in between."""
    graph = graph_of(f"{MATRIX} {{ a = MatMul(x, m) s = Softmax(x) q = MatMul(s, m) y = Add(a, q) }}", weights)
    after = fused(graph)
    seen = {"x", "m"}
    for node in after.nodes:
        assert set(node.reads) <= seen
        seen.update(node.writes)


@settings(max_examples=80)
@given(random_models(max_nodes=18))
def test_fusion_keeps_what_matters(model: onnx.ModelProto) -> None:
    """Every original node is in exactly one node; values are made once and before they are read; the outputs are still
    made."""
    graph = from_onnx(model)
    after = fused(graph)
    assert sorted(i for n in after.nodes for i in n.members) == [n.id for n in graph.nodes]
    made = [name for n in after.nodes for name in n.writes]
    assert len(set(made)) == len(made)
    seen = {*graph.inputs, *(n for n, v in after.values.items() if v.is_constant)}
    for node in after.nodes:
        assert set(node.reads) <= seen
        seen.update(node.writes)
    assert set(graph.outputs) <= seen


def test_every_rule_has_an_example() -> None:
    assert {r.name for r in RULES} == set(EXAMPLES)


@pytest.mark.parametrize("rule", RULES, ids=RULE_IDS)
def test_a_rule_matches_itself_and_becomes_one_node(rule: Rule, rng: np.random.Generator) -> None:
    model = model_of_rule(rule, rng)
    graph = from_onnx(model)
    assert found_nodes(rule, graph) == sum(not n.outputs[0].endswith(".turned") for n in graph.nodes)
    facts = facts_of(graph, static_types(graph))
    # which fills the facts in, as before the pass
    assert len(list(walk(graph, facts, Limits()))) == len(graph.nodes)
    after = apply_rules(graph, facts, Limits(), [rule])
    assert len(after.nodes) == 1
    assert after.nodes[0].members == tuple(range(len(graph.nodes)))
    assert plan_of(graph).dispatches == 1


def found_nodes(rule: Rule, graph: Graph) -> int:
    """Nodes that the rule's pattern matches from the last node on."""
    found = match(trace(rule.pattern)[0], graph.nodes[-1], graph, graph.producers())
    return len({id(n) for n in found.nodes}) if found else 0


LAYER_NORM = """(float[2, 5, 8] x) => (OUTPUTS) {
    m = ReduceMean<keepdims=1>(x, axes)
    c = Sub(x, m)
    p = Pow(c, two)
    q = ReduceMean<keepdims=1>(p, AXES)
    e = Add(eps, q)
    r = Sqrt(e)
    d = Div(c, r)
    s = Mul(scale, d)
    y = Add(s, bias)
    MORE
}"""


def layer_norm(outputs: str = "y", more: str = "", axes: str = "axes", **changes: np.ndarray) -> Graph:
    constants: Weights = {
        "axes": np.array([-1]),
        "first": np.array([0]),
        "two": np.array(2.0, "f"),
        "eps": np.array(1e-5, "f"),
        "scale": np.linspace(0.5, 2, 8, dtype="f"),
        "bias": np.linspace(-1, 1, 8, dtype="f"),
        **changes,
    }
    text = LAYER_NORM.replace("OUTPUTS", outputs).replace("MORE", more).replace("AXES", axes)
    return graph_of(text, constants, opset=21)


def test_layer_norm_as_exporters_write_it() -> None:
    """Axes as an input, operands in the other order."""
    (node,) = fused(layer_norm()).nodes
    assert node.op == "LayerNormalization"
    assert node.inputs == ("x", "scale", "bias")
    assert node.attributes["epsilon"] == pytest.approx(1e-5)


RMS_NORM = """(float[2, 5, 8] x) => (y) {
    p = Pow(x, two) m = ReduceMean<keepdims=1>(p, axes) a = Add(m, eps) r = Sqrt(a) ROOT y = Mul(scale, n)
}"""


def rms_norm(root: str = "i = Reciprocal(r) n = Mul(x, i)", **changes: np.ndarray) -> Graph:
    constants: Weights = {
        "axes": np.array([-1]),
        "two": np.array(2.0, "f"),
        "one": np.array(1.0, "f"),
        "eps": np.array(1e-5, "f"),
        "scale": np.linspace(0.5, 2, 8, dtype="f"),
        **changes,
    }
    return graph_of(RMS_NORM.replace("ROOT", root), constants, opset=18)


@pytest.mark.parametrize("root", ["i = Reciprocal(r) n = Mul(x, i)", "i = Div(one, r) n = Mul(x, i)", "n = Div(x, r)"])
def test_rms_norm_as_exporters_write_it(root: str) -> None:
    """torchscript divides 1 by the root, dynamo takes the reciprocal, and onnxruntime divides x by the root."""
    (node,) = fused(rms_norm(root)).nodes
    assert (node.op, node.inputs) == ("RMSNormalization", ("x", "scale"))
    assert node.attributes["epsilon"] == pytest.approx(1e-5)


@pytest.mark.parametrize(
    "graph",
    [
        rms_norm(two=np.array(3.0, "f")),
        rms_norm(axes=np.array([0])),
        rms_norm("i = Div(one, r) n = Mul(x, i)", one=np.array(2.0, "f")),
        rms_norm(scale=np.ones((5, 8), "f")),
        rms_norm(eps=np.array([1e-5] * 8, "f")),
        rms_norm("n = Div(r, x)"),
    ],
    ids=["cube", "other axes", "2 over the root", "scale is a matrix", "epsilon is a vector", "the root over x"],
)
def test_what_is_not_an_rms_norm(graph: Graph) -> None:
    assert "RMSNormalization" not in ops_of(fused(graph))


@pytest.mark.parametrize(
    "graph",
    [
        layer_norm("y, d"),
        layer_norm("y, z", "z = Relu(r)"),
        layer_norm(two=np.array(3.0, "f")),
        layer_norm(axes="first"),
        layer_norm(bias=np.ones((5, 8), "f")),
        layer_norm(eps=np.array([1e-5] * 8, "f")),
    ],
    ids=[
        "an inner value is an output",
        "an inner value is read elsewhere",
        "cube",
        "other axes",
        "bias is a matrix",
        "epsilon is a vector",
    ],
)
def test_what_is_not_a_layer_norm(graph: Graph) -> None:
    assert "LayerNormalization" not in ops_of(fused(graph))
