"""The minimum cut against every assignment of small graphs, and what it does inside the partitioner."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import Code
from ort_gpu_ep.ir.graph import Graph, from_onnx
from ort_gpu_ep.kernels.lowering import facts_of, walk
from ort_gpu_ep.kernels.profile import GUESSED
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner import partition
from ort_gpu_ep.partitioner.costs import HOST_S, Costs, Prices, predict, price
from ort_gpu_ep.partitioner.cut import Crossing, NodeCost, cheapest_on_gpu
from ort_gpu_ep.partitioner.report import Prediction
from tests.unit.graphs import graph_of, random_models, static_types

AUTO = Config(placement="auto")


def total_s(nodes: dict[Any, NodeCost], crossings: list[Crossing], on_gpu: set[Any]) -> float:
    seconds = 0.0
    for key, cost in nodes.items():
        gpu_s = float("inf") if cost.gpu_s is None else cost.gpu_s
        seconds += gpu_s if key in on_gpu else cost.cpu_s
    for crossing in crossings:
        sides = {reader in on_gpu for reader in crossing.readers}
        if crossing.producer in on_gpu:
            seconds += crossing.download_s if False in sides else 0.0
        else:
            seconds += crossing.upload_s if True in sides else 0.0
    return seconds


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[Any, NodeCost], list[Crossing]]:
    micros = st.integers(0, 9).map(lambda n: n * 1e-6)
    count = draw(st.integers(2, 8))
    nodes = {k: NodeCost(draw(micros), draw(st.none() | micros)) for k in range(count)}
    crossings = []
    for producer in (None, *range(count)):
        later: list[int | None] = [None, *range(0 if producer is None else producer + 1, count)]
        readers = draw(st.lists(st.sampled_from(later), min_size=1, max_size=4, unique=True))
        crossings.append(Crossing(producer, tuple(readers), draw(micros), draw(micros)))
    return nodes, crossings


@settings(max_examples=150)
@given(cases())
def test_the_cut_is_the_cheapest_of_all_assignments(case: tuple[dict[Any, NodeCost], list[Crossing]]) -> None:
    nodes, crossings = case
    subsets = (set(s) for n in range(len(nodes) + 1) for s in itertools.combinations(nodes, n))
    cheapest = min(total_s(nodes, crossings, s) for s in subsets)
    assert total_s(nodes, crossings, cheapest_on_gpu(nodes, crossings)) == pytest.approx(cheapest, abs=1e-11)


def test_a_value_with_many_readers_is_paid_once() -> None:
    nodes = {k: NodeCost(2e-6, 0.0) for k in range(3)}
    assert cheapest_on_gpu(nodes, [Crossing(None, (0, 1, 2), 5e-6, 5e-6)]) == {0, 1, 2}


def prices_of(graph: Graph, costs: Costs | None = None) -> Prices:
    facts = facts_of(graph, static_types(graph))
    answers = {id(node): (node, answer, bound) for node, answer, bound in walk(graph, facts, Limits())}
    return price(graph, {n.id: n for n in graph.nodes}, answers, facts, costs or Costs())


@settings(max_examples=60)
@given(random_models(max_nodes=10, size=7), st.data())
def test_a_prediction_is_what_the_cut_minimises(model: Any, data: st.DataObject) -> None:
    """Apart from the run's last wait, and what a run of a partition takes on the host, which every assignment with a
    GPU node has."""
    graph = from_onnx(model)
    prices = prices_of(graph)
    group = [node for node in graph.nodes if data.draw(st.booleans())]
    got = predict("cut", prices, [group])
    want = total_s(dict(prices.nodes), list(prices.crossings), {id(n) for n in group})
    assert got.total_s == pytest.approx(want + (GUESSED.run_s if got.download_nbytes else 0.0) + HOST_S)
    assert got.total_s == pytest.approx(got.cpu_s + got.gpu_s + got.transfer_s)


def predictions(text: str, costs: Costs | None = None, **constants: np.ndarray) -> dict[str, Prediction]:
    report = partition(graph_of(text, constants), AUTO, Limits(), software=False, costs=costs).report
    assert [p.total_s for p in report.predictions] == sorted(p.total_s for p in report.predictions)
    return {p.candidate: p for p in report.predictions}


def test_a_small_product_is_faster_on_the_cpu() -> None:
    found = predictions("(float[4, 16] x, float[16, 16] w) => (y) { y = MatMul(x, w) }")
    assert found["cpu"].total_s < GUESSED.run_s < found["gpu"].total_s


def test_a_large_product_is_faster_on_the_gpu() -> None:
    found = predictions("(float[2048, 2048] x, float[2048, 2048] w) => (y) { y = MatMul(x, w) }")
    assert 1e-3 < found["gpu"].total_s < found["cpu"].total_s < 1
    assert (found["gpu"].upload_nbytes, found["gpu"].download_nbytes) == (2 << 24, 1 << 24)


def test_a_large_copy_is_faster_on_the_cpu() -> None:
    """Moving it costs more than doing it."""
    found = predictions(f"(float[{1 << 24}] x) => (y) {{ y = Neg(x) }}")
    assert found["cpu"].total_s < found["gpu"].transfer_s


def test_a_convolution_counts_its_pixels() -> None:
    """2 * 64 * 64 * 9 * 54 * 54 operations an image."""
    found = predictions("(float[8, 64, 56, 56] x, float[64, 64, 3, 3] w) => (y) { y = Conv(x, w) }")
    assert found["cpu"].total_s == pytest.approx(8 * 2 * 64 * 64 * 9 * 54 * 54 / 2e11, rel=0.05)


def test_what_was_measured_counts_more_than_what_is_assumed() -> None:
    text = "(float[4, 16] x, float[16, 16] w) => (y) { [a] h = MatMul(x, w) [b] y = Softmax(h) }"
    slow = predictions(text, Costs(cpu_s={(0, "MatMul"): 0.5, (1, "Softmax"): 1e-6}))
    assert slow["cpu"].total_s == pytest.approx(0.500001)
    assert slow["gpu"].total_s < 0.01


def test_a_cheap_node_beside_a_large_one_stays_on_the_cpu() -> None:
    """Both would be in one group, which wins as a whole: only the cut tells them apart."""
    graph = graph_of(
        f"(float[2048, 2048] x, float[2048, 2048] w, float[{1 << 22}] z) => (y, e) {{ y = MatMul(x, w) e = Neg(z) }}"
    )
    report = partition(graph, AUTO, Limits(), software=False).report
    assert [(n.device, n.code) for n in report.nodes] == [("gpu", ""), ("cpu", Code.COST)]
    assert "cut" in report.nodes[1].reason
    assert report.predictions[0].candidate == "cut"
    assert {p.candidate for p in report.predictions} == {"cpu", "gpu", "cut"}


def test_the_shapes_of_a_run_replace_stand_ins() -> None:
    text = "(float[N, 2048] x, float[2048, 2048] w) => (y) { y = MatMul(x, w) }"
    large, small = (predictions(text, Costs(shapes={"x": (n, 2048)})) for n in (4096, 1))
    assert large["gpu"].upload_nbytes - small["gpu"].upload_nbytes == 4095 * 2048 * 4
    assert large["gpu"].total_s < large["cpu"].total_s


def test_the_shapes_that_a_run_s_nodes_wrote_replace_stand_ins() -> None:
    """Of what a node on the CPU writes: its rank and its sizes; of a node that does not write tensors alone nothing is
    known."""
    graph = graph_of("(float[N, 8] x, float z) => (y) <float i> { i = com.microsoft.Inverse(x) y = Relu(i) }")
    values = {**graph.values, "i": replace(graph.values["i"], shape=None)}
    graph = replace(graph, values=values)
    for shapes, nbytes in ((((5, 7, 3),), 4 * 5 * 7 * 3), (((5, 7), (3,)), 4 * 1 * 64)):
        costs = Costs(node_shapes={(graph.nodes[0].id, "Inverse"): shapes})
        report = partition(graph, Config(placement="gpu"), Limits(), software=False, costs=costs).report
        assert [(n.device, n.nbytes) for n in report.nodes] == [("cpu", nbytes), ("gpu", nbytes)]
