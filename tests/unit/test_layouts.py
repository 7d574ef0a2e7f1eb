"""The choice of layouts against every other choice, and where it places conversions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ort_gpu_ep.ir.graph import Graph
from ort_gpu_ep.kernels.cost_parameters import Figures
from ort_gpu_ep.kernels.lowering import Facts
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner import layouts
from ort_gpu_ep.partitioner.layouts import CHANNELS_LAST, choose_layouts, conversion_ns, is_conversion
from ort_gpu_ep.partitioner.passes import FUSION, Work, run
from tests.unit.graphs import graph_of, ops_of, static_types
from tests.unit.layouts import gaining

IMAGE = "(float[1, 8, 16, 16] x)"
SAME = "kernel_shape=[3,3], pads=[1,1,1,1]"
FORMS = {
    "MaxPool": f"MaxPool<{SAME}>({{0}})",
    "AveragePool": f"AveragePool<{SAME}>({{0}})",
    "Softmax": "Softmax<axis=1>({0})",
    "LpNormalization": "LpNormalization<axis=1>({0})",
    "Add": "Add({0}, {1})",
}
"""LpNormalization is plain in any case."""


def work_of(graph: Graph) -> Work:
    work = Work(graph, static_types(graph), Limits())
    run(FUSION, work)
    return work


def conversions(graph: Graph) -> list[str]:
    return [n.writes[0] for n in graph.nodes if is_conversion(n)]


def cost_ns(graph: Graph, facts: Facts, gains: dict[str, float]) -> float:
    """What the nodes of a labelled graph do not gain, and its conversions."""
    lost = sum(
        max(gains.get(n.op, 0.0), 0.0) if not n.channels_last else max(-gains.get(n.op, 0.0), 0.0) for n in graph.nodes
    )
    return lost + sum(conversion_ns(facts.types[n.removesuffix(CHANNELS_LAST)], Figures()) for n in conversions(graph))


def random_graph(seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    values, lines = ["x"], []
    for k in range(int(rng.integers(3, 9))):
        form = FORMS[str(rng.choice(list(FORMS)))]
        lines.append(
            f"v{k} = "
            f"{form.format(*(values[-1 if rng.random() < 0.5 else int(rng.integers(len(values)))] for _ in range(2)))}"
        )
        values.append(f"v{k}")
    read = " ".join(line.split("= ")[1] for line in lines)
    outputs = [v for v in values[1:] if f"({v}" not in read and f" {v})" not in read]
    return graph_of(f"{IMAGE} => ({', '.join(outputs)}) {{ {' '.join(lines)} }}", opset=13)


@pytest.mark.parametrize("seed", range(60))
def test_no_other_labelling_is_cheaper(seed: int) -> None:
    rng = np.random.default_rng([seed, 1])
    gains = {
        "MaxPool": float(rng.integers(0, 6)) * 1000,
        "AveragePool": float(rng.integers(-3, 5)) * 1000,
        "Softmax": float(rng.integers(-2, 3)) * 1000,
    }
    work = work_of(random_graph(seed))
    with gaining(**gains):
        chosen, facts = choose_layouts(work.graph, work.facts, work.limits)
        options = {id(n): o for n in work.graph.nodes if (o := layouts._option(n, work.facts, work.limits))}
        best = min(
            cost_ns(
                layouts._Rewriter(work.graph, work.facts, work.limits, {k: options[k] for k in some}).run(),
                facts,
                gains,
            )
            for count in range(len(options) + 1)
            for some in itertools.combinations(options, count)
        )
    assert cost_ns(chosen, facts, gains) == pytest.approx(best)


def test_a_value_is_converted_once_for_all_its_readers() -> None:
    text = (
        f"{IMAGE} => (y, z, w) {{ y = MaxPool<{SAME}>(x) z = MaxPool<kernel_shape=[2,2]>(x) w = "
        f"LpNormalization<axis=1>(x) }}"
    )
    work = work_of(graph_of(text, opset=13))
    with gaining("MaxPool"):
        graph, _ = choose_layouts(work.graph, work.facts, work.limits)
    assert conversions(graph).count(f"x{CHANNELS_LAST}") == 1
    assert ops_of(graph).count("Transpose") == 3


def test_nothing_is_touched_where_nothing_gains() -> None:
    work = work_of(graph_of(f"{IMAGE} => (y) {{ a = MaxPool<{SAME}>(x) y = Relu(a) }}"))
    with gaining(AveragePool=1e6, MaxPool=-1.0):
        graph, facts = choose_layouts(work.graph, work.facts, work.limits)
    assert graph is work.graph
    assert facts is work.facts


def test_a_gain_below_its_conversions_is_left() -> None:
    """In and out again: twice a dispatch, and twice the bytes."""
    work = work_of(graph_of(f"{IMAGE} => (y) {{ y = MaxPool<{SAME}>(x) }}"))
    both = 2 * conversion_ns(work.facts.types["x"], Figures())
    for gain, count in ((0.99 * both, 0), (1.01 * both, 2)):
        with gaining(MaxPool=gain):
            assert len(conversions(choose_layouts(work.graph, work.facts, work.limits)[0])) == count


def test_what_a_row_declines_channel_last_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shader that is out of use on an adapter: its node is plain, the others are not."""
    text = f"{IMAGE} => (y) {{ a = MaxPool<{SAME}>(x) b = Softmax<axis=1>(a) y = AveragePool<{SAME}>(b) }}"
    graph = graph_of(text)
    work = Work(graph, static_types(graph), Limits(disabled=(("pool_last.wgsl", "a probe failed"),)))
    run(FUSION, work)
    with gaining("MaxPool", "Softmax"):
        chosen, _ = choose_layouts(work.graph, work.facts, work.limits)
    assert [n.op for n in chosen.nodes if n.channels_last] == ["Softmax"]


def test_a_conversion_of_one_pixel_or_one_channel_costs_nothing() -> None:
    work = work_of(
        graph_of(
            "(float[2, 8, 1, 1] x, float[2, 1, 5, 5] z, float[2, 8, 5, 5] w) => (y) { a = Add(w, x) y = Mul(a, z) }"
        )
    )
    costs = {n: conversion_ns(work.facts.types[n], Figures()) for n in "xzw"}
    assert max(costs["x"], costs["z"]) < 0.01 * costs["w"]
