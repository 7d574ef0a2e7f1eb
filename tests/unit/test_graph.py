"""Reading ONNX models into a Graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.ir.graph import Node, from_onnx
from ort_gpu_ep.ir.types import FLOAT32, INT64
from tests.unit.graphs import graph_of


def test_inputs_outputs_and_types(rng: np.random.Generator) -> None:
    w = rng.standard_normal((4, 8)).astype("f")
    graph = graph_of("(float[N, 4] x, int64[2] n) => (y) { y = MatMul(x, w) }", {"w": w})
    assert (graph.name, graph.inputs, graph.outputs) == ("model", ("x", "n"), ("y",))
    assert graph.values["x"].dtype is FLOAT32
    assert graph.values["x"].shape == ("N", 4)
    assert graph.values["n"].dtype is INT64
    assert graph.values["y"].shape == ("N", 8)
    assert graph.values["w"].is_constant
    np.testing.assert_array_equal(graph.constant("w"), w)
    assert graph.constant("x") is None
    assert graph.constant("nowhere") is None


def test_an_initializer_that_is_also_an_input_is_a_constant() -> None:
    graph = graph_of("(float[2] x, float[2] w) => (y) { y = Add(x, w) }", {"w": np.array([1.5, 2.5], "f")})
    assert graph.inputs == ("x",)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("value = float[2] {1.5, -2.0}", np.array([1.5, -2.0], "f")),
        ("value_float: float = 2.5", np.array(2.5, "f")),
        ("value_floats: floats = [0.5, 1.5]", np.array([0.5, 1.5], "f")),
        ("value_int: int = 7", np.array(7)),
        ("value_ints: ints = [3, -1]", np.array([3, -1])),
    ],
)
def test_constant_nodes_become_constants(text: str, want: np.ndarray) -> None:
    graph = graph_of(f"(float[2] x) => (y) {{ c = Constant<{text}>() y = Identity(c) }}")
    assert [n.op for n in graph.nodes] == ["Identity"]
    got = graph.constant("c")
    assert got is not None
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    assert graph.values["c"].shape == want.shape


def test_optional_inputs_and_outputs_that_are_left_out() -> None:
    graph = graph_of("(float[2, 3] x, float max) => (y) { y, = Clip(x, , max) }".replace("y, =", "y ="))
    (node,) = graph.nodes
    assert node.inputs == ("x", "", "max")
    assert node.reads == ("x", "max")
    graph = from_onnx(
        helper.make_model(
            helper.make_graph(
                [helper.make_node("LayerNormalization", ["x", "s"], ["y", "", "d"])],
                "g",
                [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "xs"],
                [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            )
        )
    )
    assert graph.nodes[0].outputs == ("y", "", "d")
    assert graph.nodes[0].writes == ("y", "d")


def test_attributes_and_versions() -> None:
    graph = graph_of("(float[2, 3] x) => (y) { a = LeakyRelu<alpha=0.25>(x) y = Transpose<perm=[1, 0]>(a) }")
    leaky, transpose = graph.nodes
    assert leaky.attributes == {"alpha": 0.25}
    assert transpose.attributes == {"perm": (1, 0)}
    assert (leaky.version, transpose.version) == (16, 21)
    old = graph_of("(float[2, 3] x) => (y) { y = LeakyRelu<alpha=0.25>(x) }", opset=7)
    assert old.nodes[0].version == 6


def test_other_domains() -> None:
    graph = graph_of("(float[2, 2] x) => (y) { a = com.microsoft.Inverse(x) y = Relu(a) }")
    assert [(n.domain, n.op) for n in graph.nodes] == [("com.microsoft", "Inverse"), ("", "Relu")]


def test_an_op_that_its_opset_does_not_have() -> None:
    with pytest.raises(ModelError, match="'Gelu' is not in opset"):
        graph_of("(float[2] x) => (y) { y = Gelu(x) }", opset=13)


CAPTURING = """(float[N, 4] x, bool c) => (y) {
    o = Relu(x)
    w = Softsign(x)
    m = Tanh(x)
    y = If(c) <
        then_branch = t () => (r) { k = Add(o, own) r = Mul(k, b) },
        else_branch = e () => (s) { s = If(c) < then_branch = t2 () => (p) { p = Add(w, w) }, else_branch = e2 () => (m) { } > } >
}"""


def test_names_that_bodies_read_from_outside() -> None:
    """Also through two levels, and a body's output that is an outer value; not what a body makes itself."""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g ' + CAPTURING)
    then = next(a.g for a in model.graph.node[3].attribute if a.name == "then_branch")
    then.initializer.append(onnx.numpy_helper.from_array(np.array([1.0], "f"), "own"))
    node = from_onnx(model).nodes[3]
    assert node.has_subgraph
    assert set(node.implicit) == {"o", "b", "w", "m", "c"}
    assert set(node.reads) == {"o", "b", "w", "m", "c"}


def test_producers_and_consumers() -> None:
    graph = graph_of("(float[2] x) => (y) { a = Relu(x) y = Add(a, a) }")
    assert graph.producers()["a"] is graph.nodes[0]
    assert graph.consumers() == {"x": [graph.nodes[0]], "a": [graph.nodes[1]]}


def test_labels_and_members() -> None:
    assert Node("Relu", ("x",), ("y",)).label == "Relu->y"
    assert Node("Relu", ("x",), ("y",), "named").label == "named"
    assert Node("Relu", ("x",), ("y",), id=3).members == (3,)
    assert Node("Relu", ("x",), ("y",), id=3, sources=(1, 3)).members == (1, 3)
