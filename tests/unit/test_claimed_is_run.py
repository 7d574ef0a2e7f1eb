"""What is claimed is what a run can do: sizes that the model leaves open are asked about as a run brings them, not as
one stand-in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.ir.graph import Graph
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner import partition
from ort_gpu_ep.partitioner.grouping import boundary
from ort_gpu_ep.scheduler.template import make_template
from tests.unit.graphs import graph_of

ARANGE = """(float[B, N] x) => (y) <int64 zero = {0}, int64 one = {1}, int64[1] end = {-1}> {
    shape = Shape <start = 1> (x)
    n = Squeeze (shape)
    places = Range (zero, n, one)
    %s
    scale = Cast <to = 1> (chosen)
    a = Mul (x, scale)
    y = Softmax (a) }"""
"""The host knows `places` for one size, so that what comes of it asks for no kernel then; of a size that a run brings
it is one."""

CASES = {
    "a kernel that needs int64": ("chosen = Pow (places, places)", "Pow"),
    "a type without arithmetic": ("wide = Cast <to = 16> (places)  chosen = Add (wide, wide)", "Cast"),
}


def on_cpu(graph: Graph, limits: Limits) -> set[str]:
    return {
        n.op
        for n in partition(graph, Config(placement="gpu"), limits, software=False).report.nodes
        if n.device == "cpu"
    }


def plans(graph: Graph, sizes: dict[str, int], limits: Limits) -> int:
    """Plans each group as its first run does. Raises UnsupportedNodeError, where that can't be done."""
    groups = partition(graph, Config(placement="gpu"), limits, software=False).groups
    for group in groups:
        nodes = tuple(n for n in graph.nodes if n.id in group)
        names, outputs = boundary(nodes, graph.nodes, graph.outputs)
        inputs = tuple(n for n in names if not graph.values[n].is_constant)
        alone = Graph("g", inputs, tuple(outputs), nodes, graph.values)
        types = [
            TensorType(v.dtype, tuple(d if isinstance(d, int) else sizes.get(d, 5) for d in v.shape))
            for v in (graph.values[n] for n in inputs)
        ]
        make_template(alone, types, limits)
    return len(groups)


@pytest.mark.parametrize("name", CASES)
def test_one_node_goes_to_the_cpu_and_not_the_partition(name: str) -> None:
    text, op = CASES[name]
    graph, limits = graph_of(ARANGE % text), Limits()
    declined = on_cpu(graph, limits)
    assert op in declined
    assert not declined & {"Mul", "Softmax"}
    assert plans(graph, {"B": 3, "N": 5}, limits)


def test_integers_without_the_feature_are_pairs_of_words() -> None:
    graph = graph_of(ARANGE % "chosen = Max (places, one)")
    assert on_cpu(graph, Limits()) == set()
    assert plans(graph, {"B": 3, "N": 5}, Limits()) == 1


@pytest.mark.parametrize("attribute", ["extrapolation_value = inf", "cubic_coeff_a = nan"])
def test_an_attribute_is_asked_before_what_only_a_run_tells(attribute: str) -> None:
    """Regions and sizes come with the run; that no kernel takes the attribute is known before."""
    graph = graph_of(
        "(float[1, 1, 4, 4] x, float[8] region, int64[4] sizes) => (y) { y = Resize <coordinate_transformation_mode = "
        '"tf_crop_and_resize", mode = "cubic"> (x, region, , sizes) }'
    )
    name, number = attribute.split(" = ")
    odd = replace(graph.nodes[0], attributes={**graph.nodes[0].attributes, name: float(number)})
    assert on_cpu(graph, Limits()) == set()
    assert on_cpu(graph.with_nodes((odd,)), Limits()) == {"Resize"}
