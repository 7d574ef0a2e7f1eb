"""The partitioner's decisions, and the sizes and estimates that they rest on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.ir.graph import Graph, Value
from ort_gpu_ep.ir.types import FLOAT32
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner import partition, sizes
from tests.unit.graphs import graph_of, tensor

GPU = Config(placement="gpu")
ISLAND = "(float[2, 4, 4] x) => (y) <float[2, 4, 4] i> { a = Relu(x) i = com.microsoft.Inverse(a) y = Exp(i) }"


def devices(graph: Graph, config: Config = GPU, software: bool = False) -> dict[str, str]:
    report = partition(graph, config, Limits(), software).report
    return {n.name.split("->")[-1]: n.device for n in report.nodes}


# ---- sizes


def test_stand_ins() -> None:
    assert sizes.stand_in(Value("x", FLOAT32, ("N", 3, None, 7)), sizes.Assumption(64)) == tensor(sizes._BATCH, 3, 64, 7)
    assert sizes.stand_in(Value("x", FLOAT32, ("N",)), sizes.Assumption(64)) == tensor(64)
    assert sizes.stand_in(Value("x", FLOAT32, ()), sizes.Assumption(64)) == tensor()
    assert sizes.stand_in(Value("x", FLOAT32, None), sizes.Assumption(64)) is None
    assert sizes.stand_in(Value("x", None, (1,)), sizes.Assumption(64)) is None
    assert sizes.stand_in(Value("x", FLOAT32, (-1, 5)), sizes.Assumption(64)) == tensor(sizes._BATCH, 5)


def test_static() -> None:
    graph = graph_of("(float[2, 3] x, float[N] z) => (y) { y = Relu(x) }")
    assert sizes.is_static(graph, ["x"])
    assert not sizes.is_static(graph, ["x", "z"])
    assert not sizes.is_static(Graph("g", ("x",), (), (), {"x": Value("x", FLOAT32, None)}), ["x"])


def test_inputs_of_unknown_rank_have_no_stand_in() -> None:
    values = {"x": Value("x", FLOAT32, None), "z": Value("z", FLOAT32, ("N", 4))}
    assert sizes.input_types(Graph("g", ("x", "z"), (), (), values), sizes.Assumption(224)) == {"z": tensor(sizes._BATCH, 4)}


def test_a_name_stands_for_one_size_where_nothing_else_fits() -> None:
    graph = graph_of("(float[M, K] a, float[K, N] b) => (y) { y = MatMul(a, b) }")
    assert devices(graph) == {"y": "gpu"}
    assert [a.wide for a in sizes.assumptions(graph)] == [*[set()] * len(sizes.CANDIDATES), {"K"}]
    assert len(sizes.assumptions(graph_of("(float[N, L] a) => (y) { y = Relu(a) }"))) == len(sizes.CANDIDATES)


def test_a_name_may_stand_for_a_sum() -> None:
    graph = graph_of("(float[N, total] a, float[N, past] b) => (y) { y = Concat<axis=1>(a, b) }")
    *_, last = sizes.assumptions(graph)
    assert last.sums
    assert [sizes.input_types(graph, last)[n].shape for n in "ab"] == [(1, 128), (1, 64)]
    value = replace(graph.values["b"], shape=("N", "past_length + 1"))
    assert sizes.stand_in(value, last) == tensor(1, 65)


# ---- partition


def test_placement_gpu_takes_what_has_a_kernel() -> None:
    found = partition(graph_of(ISLAND), GPU, Limits(), software=False)
    assert found.groups == ((0,), (2,))
    assert devices(graph_of(ISLAND)) == {"a": "gpu", "i": "cpu", "y": "gpu"}
    declined = found.report.nodes[1]
    assert (declined.code, declined.reason) == ("OP", "no kernel for com.microsoft:Inverse")
    assert [p.index for p in found.report.partitions] == [0, 1]
    assert [n.partition for n in found.report.nodes] == [0, -1, 1]


@pytest.mark.parametrize(("placement", "software", "reason"), [
    ("cpu", False, "placement=cpu"), ("auto", True, "the adapter is software"), ("auto", False, "the whole is predicted to take")])
def test_what_stays_on_the_cpu_says_why(placement: str, software: bool, reason: str) -> None:
    found = partition(graph_of("(float[4] x) => (y) { a = Exp(x) y = Softmax(a) }"), Config(placement=placement), Limits(), software)
    assert found.groups == ()
    assert [(n.device, n.code) for n in found.report.nodes] == [("cpu", "COST")] * 2
    assert all(reason in n.reason for n in found.report.nodes)


def test_placement_auto_takes_a_large_model() -> None:
    graph = graph_of("(float[8, 64, 56, 56] x, float[64, 64, 3, 3] w) => (y) { a = Conv<pads=[1, 1, 1, 1]>(x, w) y = Relu(a) }")
    assert devices(graph, Config(placement="auto")) == {"a": "gpu", "y": "gpu"}


def test_an_adapter_asked_for_by_name_is_judged_by_its_costs_even_if_it_is_software() -> None:
    graph = graph_of("(float[8, 64, 56, 56] x, float[64, 64, 3, 3] w) => (y) { a = Conv<pads=[1, 1, 1, 1]>(x, w) y = Relu(a) }")
    assert devices(graph, Config(placement="auto", adapter="software"), software=True) == {"a": "gpu", "y": "gpu"}


def test_placement_auto_decides_by_group() -> None:
    graph = graph_of("(float[8, 64, 56, 56] x, float[64, 64, 3, 3] w, float[2, 2] z) => (y, q) "
                     "{ a = Conv(x, w) y = Relu(a) i = com.microsoft.Inverse(z) q = Exp(i) }")
    assert devices(graph, Config(placement="auto")) == {"a": "gpu", "y": "gpu", "i": "cpu", "q": "cpu"}


def test_a_group_with_nothing_to_dispatch_stays_on_the_cpu() -> None:
    graph = graph_of("(float[N, 4] x, float[2, 2] z) => (y, s) { y = com.microsoft.Inverse(z) s = Shape(x) }")
    assert devices(graph) == {"y": "cpu", "s": "cpu"}


SHAPES = """(float[N, 3, H, W] x) => (y) {
    s = Shape(x)
    i = Constant<value_ints: ints = [0]>()
    r = Constant<value_ints: ints = [-1]>()
    n = Gather(s, i)
    t = Concat<axis=0>(n, r)
    a = Exp(x)
    y = Reshape(a, t)
}"""


def test_a_shape_chain_stays_in_the_partition() -> None:
    found = partition(graph_of(SHAPES), GPU, Limits(), software=False)
    assert len(found.groups) == 1
    assert devices(graph_of(SHAPES)) == {"s": "host", "n": "host", "t": "host", "a": "gpu", "y": "gpu"}
    (part,) = found.report.partitions
    assert (part.nodes, part.dispatches, part.exact) == (5, 1, False)
    assert (part.inputs, part.outputs) == (("x",), ("y",))


def test_a_group_must_stand_on_its_own() -> None:
    """`t` is the host's only while its shape arithmetic is in the same group; behind an island it is not."""
    graph = graph_of("""(float[4, 4] x) => (y, z) <float[4, 4] i> {
        a = Exp(x)
        i = com.microsoft.Inverse(a)
        s = Shape(i)
        y = Reshape(a, s)
        z = Neg(i)
    }""")
    assert partition(graph, GPU, Limits(), software=False).groups == ((0,), (2, 3, 4))


def test_a_small_value_of_another_group_is_known_when_a_run_begins() -> None:
    """The shape is computed before the island, where it is the host's; the group of the Reshape behind it is given it, and reads it."""
    graph = graph_of("""(float[4, 4] x, float[2, 8] z) => (y, r) <float[4, 4] i> {
        s = Shape(z)
        r = Exp(z)
        b = Tanh(x)
        i = com.microsoft.Inverse(b)
        a = Neg(i)
        e = CastLike(s, s)
        y = Reshape(a, e)
    }""")
    found = partition(graph, GPU, Limits(), software=False)
    assert devices(graph) == {"s": "host", "r": "gpu", "b": "gpu", "i": "cpu", "a": "gpu", "e": "host", "y": "gpu"}
    assert "e" in found.report.partitions[-1].inputs


def test_fused_nodes_report_where_they_went() -> None:
    graph = graph_of("(float[5, 16] x, float[16, 8] w) => (y) { [product] a = MatMul(x, w) [act] y = Tanh(a) }")
    found = partition(graph, GPU, Limits(), software=False)
    assert found.groups == ((0, 1),)
    assert [(n.name, n.fused_into) for n in found.report.nodes] == [("product", ""), ("act", "product")]
    assert found.report.partitions[0].dispatches == 1
    unfused = partition(graph, Config(placement="gpu", fusion=False), Limits(), software=False)
    assert [n.fused_into for n in unfused.report.nodes] == ["", ""]
    assert unfused.report.partitions[0].dispatches == 2


def test_bytes_that_cross() -> None:
    graph = graph_of("(float[5, 16] x) => (y) { a = MatMul(x, w) y = Tanh(a) }", {"w": np.linspace(-1, 1, 128, dtype="f").reshape(16, 8)})
    (part,) = partition(graph, GPU, Limits(), software=False).report.partitions
    assert (part.input_nbytes, part.output_nbytes, part.weight_nbytes, part.exact) == (5 * 16 * 4, 5 * 8 * 4, 16 * 8 * 4, True)


def test_a_size_at_which_the_model_makes_sense_is_found() -> None:
    """A window of 100 does not fit into the first stand-in."""
    graph = graph_of("(float[N, 3, H, W] x, float[8, 3, 100, 100] w) => (y) { a = Conv(x, w) y = Relu(a) }")
    assert devices(graph)["a"] == "gpu"


def test_an_unknown_element_type_is_declined() -> None:
    graph = graph_of("(string[4] x) => (y) { y = Identity(x) }")
    report = partition(graph, GPU, Limits(), software=False).report
    assert [(n.device, n.code) for n in report.nodes] == [("cpu", "DYNAMIC_SHAPE")]


def test_the_report_is_plain_data() -> None:
    data = partition(graph_of(ISLAND), GPU, Limits(), software=False).report.as_dict()
    assert data["placement"] == "gpu"
    assert [n["device"] for n in data["nodes"]] == ["gpu", "cpu", "gpu"]  # type: ignore[attr-defined]
