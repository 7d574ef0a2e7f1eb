"""What the reader makes of an OrtGraph equals what `graph.from_onnx` makes of the ONNX file."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.ir.graph import Graph, from_onnx
from ort_gpu_ep.plugin import provider
from ort_gpu_ep.plugin.reader import Reader
from tests.plugin.cases import info, make_model, node, open_session


def seen_graphs(model: bytes, monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs offered to the partitioner, with ONNX Runtime's optimisations off. Constants are replaced by
    copies."""
    graphs: list[Graph] = []

    def partition(known: object, graph: Graph, *arguments: Any) -> Any:
        for name, value in graph.values.items():
            constant = graph.constant(name)
            if constant is not None:
                assert not constant.flags.writeable
                constants[graph.name, name] = np.array(constant), value.dtype
        graphs.append(graph)
        raise InternalError("that was all")

    constants.clear()
    monkeypatch.setattr(provider, "partition", partition)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    opened = open_session(model, options)
    assert [str(e) for e in opened.state.errors] == ["that was all"] * len(graphs)
    return graphs


constants: dict[tuple[str, str], Any] = {}


@pytest.fixture
def varied(rng: np.random.Generator) -> bytes:
    """A model with every kind of attribute, optional inputs and outputs, and dimensions of every kind."""
    nodes = [
        helper.make_node(
            "LSTM",
            ["s", "W", "R", "", "", "h0"],
            ["", "h"],
            "lstm",
            hidden_size=4,
            activations=["Sigmoid", "Tanh", "HardSigmoid"],
            activation_alpha=[0.5],
            activation_beta=[0.25],
            direction="reverse",
        ),
        node("Conv", "x w", "c", name="conv", auto_pad="SAME_UPPER", strides=[2, 1], dilations=[1, 1]),
        node("LeakyRelu", "c", "l", alpha=0.3),
        node("ConstantOfShape", "shape", "f", value=numpy_helper.from_array(np.array([2.5], "f"))),
        node("Cast", "f", "g", to=TensorProto.FLOAT16),
        node("Clip", "l lo", "k"),
        node("ArgMax", "k", "m", axis=-1, keepdims=0),
    ]
    unused = info("unused", None, TensorProto.INT64)
    return make_model(
        nodes,
        [info("s", ["time", 1, 3]), info("h0", [1, 1, 4]), info("x", ["batch", 3, 8, None]), unused],
        [info("h", [1, 1, 4]), info("g", [2, 2], TensorProto.FLOAT16), info("m", None, TensorProto.INT64)],
        {
            "W": rng.normal(size=(1, 16, 3)).astype("f"),
            "R": rng.normal(size=(1, 16, 4)).astype("f"),
            "w": rng.normal(size=(4, 3, 3, 3)).astype("f"),
            "lo": np.float32(-1),
            "shape": np.array([2, 2]),
        },
    )


def test_nodes_values_and_constants(varied: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    (actual,), expected = seen_graphs(varied, monkeypatch), from_onnx(onnx.load_from_string(varied))
    assert (actual.name, actual.inputs, actual.outputs, actual.nested) == (
        "model",
        expected.inputs,
        expected.outputs,
        False,
    )
    by_outputs = {n.outputs: n for n in actual.nodes}
    assert len(by_outputs) == len(expected.nodes)
    for wanted in expected.nodes:
        found = by_outputs[wanted.outputs]
        for field in ("op", "domain", "version", "inputs", "outputs", "name", "implicit", "has_subgraph"):
            assert getattr(found, field) == getattr(wanted, field), field
        for name, value in wanted.attributes.items():
            np.testing.assert_equal(found.attributes[name], value)
            assert type(found.attributes[name]) is type(value)
    for name, value in actual.values.items():
        assert value.dtype == expected.values[name].dtype
        if name in expected.inputs:
            assert value.shape == expected.values[name].shape
        assert value.is_constant == expected.values[name].is_constant
        if value.is_constant:
            np.testing.assert_array_equal(constants["model", name][0], expected.constant(name))
    assert actual.values["x"].shape == ("batch", 3, 8, None)
    assert actual.values["s"].shape == ("time", 1, 3)
    assert len({n.id for n in actual.nodes}) == len(actual.nodes)


def test_constants_can_not_be_read_later(varied: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    (graph,) = seen_graphs(varied, monkeypatch)
    with pytest.raises(InternalError, match="after ONNX Runtime's callback had ended"):
        graph.constant("W")


def test_bodies_see_outer_values_as_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    body = helper.make_graph(
        [node("Mul", "o K", "t"), node("Add", "t outer", "u")],
        "body",
        [],
        [info("u", None)],
        [numpy_helper.from_array(np.array([3.0], "f"), "K")],
    )
    other = helper.make_graph([node("Relu", "o", "v")], "other", [], [info("v", None)])
    model = make_model(
        [node("Relu", "x", "o"), node("If", "c", "y", then_branch=body, else_branch=other)],
        [info("x", ["N", 4]), info("c", [], TensorProto.BOOL)],
        ["y"],
        {"outer": np.ones(4, "f")},
    )
    graphs = {g.name: g for g in seen_graphs(model, monkeypatch)}
    assert graphs["body"].nested
    assert graphs["body"].inputs == ("o",)
    np.testing.assert_array_equal(constants["body", "K"][0], [3])
    np.testing.assert_array_equal(constants["body", "outer"][0], np.ones(4))
    (branch,) = [n for n in graphs["model"].nodes if n.op == "If"]
    assert branch.has_subgraph
    assert set(branch.implicit) == {"o", "outer"}
    assert set(branch.attributes.values()) <= {None}
    assert not graphs["model"].nested


def test_opsets_and_what_is_not_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    opsets: list[dict[str, int]] = []
    plain = Reader.graph

    def graph(self: Reader, *arguments: Any) -> Graph:
        opsets.append(self.opsets())
        return plain(self, *arguments)

    monkeypatch.setattr(Reader, "graph", graph)
    sequence = helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, None)
    model = make_model([node("SequenceLength", "q", "n"), node("SequenceAt", "q n", "y")], [sequence], ["y"], opset=18)
    graphs = seen_graphs(model, monkeypatch)
    assert opsets[0][""] == 18
    assert graphs[0].values["q"].dtype is None
    assert graphs[0].values["q"].shape is None
    assert graphs[0].values["n"].shape == ()
