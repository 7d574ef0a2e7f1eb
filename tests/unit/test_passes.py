"""The list of passes: its order, and the rules that hold after each of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from models import BUILDERS, build
from ort_gpu_ep.ir.graph import Graph, from_onnx
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner.layouts import is_conversion
from ort_gpu_ep.partitioner.passes import FUSION, PASSES, Pass, Work
from ort_gpu_ep.partitioner.sizes import Guess, input_types
from tests.ops.test_float16 import half
from tests.unit.graphs import random_models
from tests.unit.invariants import PROPERTIES, violations
from tests.unit.layouts import gaining

STATIC = [n for n in BUILDERS if n not in ("decoder", "table_rows")]


def work_of(graph: Graph) -> Work:
    return Work(graph, input_types(graph, Guess(64)), Limits(max_invocations=1024, max_workgroup_nbytes=48 << 10))


def checked(work: Work) -> Graph:
    """Runs all passes, with all rules between them."""
    ensured: set[str] = set()
    for step in PASSES:
        for known in step.requires:
            assert known in ensured, f"{step.name} requires what no pass before it ensures: {known}"
            if known != "every row has been asked, and the types of values are known":
                assert list(PROPERTIES[known](work)) == [], f"before {step.name}: {known}"
        work.graph = step.run(work)
        ensured |= step.ensures
        assert violations(work) == [], f"after {step.name}"
        for made in step.ensures:
            assert list(PROPERTIES[made](work)) == [], f"after {step.name}: {made}"
    return work.graph


def test_each_pass_finds_what_it_requires() -> None:
    ensured: set[str] = set()
    for step in PASSES:
        assert step.requires <= ensured, step.name
        ensured |= step.ensures
    assert ensured == set(PROPERTIES)
    assert PASSES[: len(FUSION)] == FUSION
    assert len({step.name for step in PASSES}) == len(PASSES)


@pytest.mark.parametrize("name", STATIC)
def test_every_builder_keeps_the_rules(name: str) -> None:
    checked(work_of(from_onnx(build(name))))


@pytest.mark.parametrize("name", ["encoder", "unet", "squeezenet1_1"])
def test_float16_keeps_the_rules(name: str) -> None:
    checked(work_of(from_onnx(half(build(name)))))


@settings(max_examples=40, deadline=None)
@given(random_models())
def test_random_graphs_keep_the_rules(model: Any) -> None:
    checked(work_of(from_onnx(model)))


@pytest.mark.parametrize("name", ["squeezenet1_1", "resnet50", "googlenet", "mobilenet_v2", "unet", "shufflenet"])
def test_builders_keep_the_rules_where_pools_gain(name: str) -> None:
    """Whatever the kernels are: a gain somewhere, and the rest follows or is converted."""
    with gaining("MaxPool", "AveragePool", "GlobalAveragePool", "Resize"):
        graph = checked(work_of(from_onnx(build(name))))
    assert any(n.channels_last for n in graph.nodes)
    assert any(is_conversion(n) for n in graph.nodes) or all(n.channels_last for n in graph.nodes if "Conv" in n.op)


def test_a_wrong_pass_is_found() -> None:
    """The rules can fail: a pass that forgets a node, and one that turns a value round without saying so."""
    graph = from_onnx(build("lenet5"))
    forgetful = Pass("forgetful", lambda work: work.graph.with_nodes(work.graph.nodes[1:]))
    work = work_of(graph)
    work.graph = forgetful.run(work)
    assert any("which nothing has written" in v for v in violations(work))
