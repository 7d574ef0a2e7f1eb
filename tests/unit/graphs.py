"""Small graphs, written in ONNX's textual form, and random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from ort_gpu_ep.ir.graph import Graph, from_onnx
from ort_gpu_ep.ir.types import BY_NAME, FLOAT32, TensorType
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner import fuse, rewrite
from ort_gpu_ep.scheduler import Plan, make_plan

Array = np.ndarray[Any, Any]


def model_of(text: str, constants: Mapping[str, Array] | None = None, opset: int = 21) -> onnx.ModelProto:
    """`(float[N, 4] x) => (y) { y = Relu(x) }`, with initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> model {text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items())
    return model


def graph_of(text: str, constants: Mapping[str, Array] | None = None, opset: int = 21) -> Graph:
    return from_onnx(model_of(text, constants, opset))


def static_types(graph: Graph) -> dict[str, TensorType]:
    """The types of the inputs of a graph whose shapes are all known."""
    found = {}
    for name in graph.inputs:
        value = graph.values[name]
        assert value.dtype is not None
        assert value.shape is not None
        found[name] = TensorType(value.dtype, tuple(int(d) for d in value.shape if not isinstance(d, str | None)))
    return found


def tensor(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(BY_NAME[dtype], shape)


def ops_of(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def fused(graph: Graph, limits: Limits | None = None, **inputs: TensorType) -> Graph:
    return fuse(graph, inputs or static_types(graph), limits or Limits())


def plan_of(graph: Graph, with_fusion: bool = True, limits: Limits | None = None, **inputs: TensorType) -> Plan:
    return make_plan(graph, inputs or static_types(graph), limits or Limits(), rewrite if with_fusion else None)


@st.composite
def random_models(draw: st.DrawFn, max_nodes: int = 14, size: int = 5) -> onnx.ModelProto:
    """A model over [size, size] matrices: each node reads earlier values, each value that nobody reads is an output,
    and some more."""
    inputs = [f"x{i}" for i in range(draw(st.integers(1, 3)))]
    values, nodes = [*inputs, "w"], []
    arities = {"Relu": 1, "Softsign": 1, "Softmax": 1, "Transpose": 1, "Add": 2, "Mul": 2, "MatMul": 2}
    for i in range(draw(st.integers(1, max_nodes))):
        op = draw(st.sampled_from(list(arities)))
        reads = [values[draw(st.integers(0, len(values) - 1))] for _ in range(arities[op])]
        nodes.append(helper.make_node(op, reads, [f"v{i}"], f"n{i}"))
        values.append(f"v{i}")
    read = {n for node in nodes for n in node.input}
    made = [n.output[0] for n in nodes]
    outputs = [m for m in made if m not in read or draw(st.integers(0, 9)) == 0]

    def info(names: Sequence[str]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [size, size]) for n in names]

    weight = np.random.default_rng(5).standard_normal((size, size)).astype(FLOAT32.numpy)
    graph = helper.make_graph(nodes, "random", info(inputs), info(outputs), [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
