"""The partitioner's decisions, and the sizes and estimates that they rest on."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.ir.graph import Graph, Value
from ort_gpu_ep.ir.types import FLOAT32
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner import partition, sizes
from ort_gpu_ep.partitioner.solving import Solution, Solver
from tests.unit.graphs import graph_of, tensor

GPU = Config(placement="gpu")
ISLAND = "(float[2, 4, 4] x) => (y) <float[2, 4, 4] i> { a = Relu(x) i = com.microsoft.Inverse(a) y = Exp(i) }"


def devices(graph: Graph, config: Config = GPU, software: bool = False) -> dict[str, str]:
    report = partition(graph, config, Limits(), software).report
    return {n.name.split("->")[-1]: n.device for n in report.nodes}


# ---- sizes


def test_stand_ins() -> None:
    assert sizes.stand_in(Value("x", FLOAT32, ("N", 3, None, 7)), sizes.Guess(64)) == tensor(sizes._BATCH, 3, 64, 7)
    assert sizes.stand_in(Value("x", FLOAT32, ("N",)), sizes.Guess(64)) == tensor(64)
    assert sizes.stand_in(Value("x", FLOAT32, ()), sizes.Guess(64)) == tensor()
    assert sizes.stand_in(Value("x", FLOAT32, None), sizes.Guess(64)) is None
    assert sizes.stand_in(Value("x", None, (1,)), sizes.Guess(64)) is None
    assert sizes.stand_in(Value("x", FLOAT32, (-1, 5)), sizes.Guess(64)) == tensor(sizes._BATCH, 5)


def test_static() -> None:
    graph = graph_of("(float[2, 3] x, float[N] z) => (y) { y = Relu(x) }")
    assert sizes.is_static(graph, ["x"])
    assert not sizes.is_static(graph, ["x", "z"])
    assert not sizes.is_static(Graph("g", ("x",), (), (), {"x": Value("x", FLOAT32, None)}), ["x"])


def test_inputs_of_unknown_rank_have_no_stand_in() -> None:
    values = {"x": Value("x", FLOAT32, None), "z": Value("z", FLOAT32, ("N", 4))}
    assert sizes.input_types(Graph("g", ("x", "z"), (), (), values), sizes.Guess(224)) == {"z": tensor(sizes._BATCH, 4)}


FITTING = {
    "channels": "(float[N, C, H, W] x, float[4, 3, 3, 3] w) => (y) { y = Conv(x, w) }",
    "columns": "(float[N, F] x, float[20, 5] w) => (y) { y = Gemm(x, w) }",
    "more columns than any candidate has": "(float[N, F] x, float[150528, 5] w) => (y) { y = MatMul(x, w) }",
    "features": "(float[T, N, F] x, float[1, 32, 5] w, float[1, 32, 8] r) => (y) { y = LSTM<hidden_size=8>(x, w, r) }",
    "positions": "(float[N, S, 8] x, float[1, 512, 8] p) => (y) { y = Add(x, p) }",
    "a mask": "(float[N, 2, S, T] x, bool[6, 6] m, float z) => (y) { y = Where(m, x, z) }",
    "a window": "(float[N, 1, S] x, float[6, 1, 1024] w) => (y) { y = Conv<strides=[16]>(x, w) }",
    "windows behind one another": "(float[N, 1, S] x, float[6, 1, 1024] w, float[4, 6, 16] v) => (y) { a = "
    "Conv<strides=[16]>(x, w) y = Conv(a, v) }",
    "boxes": "(float[1, N, M] b, float[1, 1, N] s) => (y) { k = Constant<value_ints=[5]>() y = "
    "NonMaxSuppression(b, s, k) }",
    "parts": "(float[N, 16] x) => (y) { a, b = Split<axis=0, num_outputs=2>(x) y = Mul(a, b) }",
    "rows of a Reshape": "(float[N, 16] x) => (y) { s = Constant<value_ints=[-1, 4, 16]>() a = Reshape(x, s) "
    "y = Relu(a) }",
    "all of a Reshape": "(float[1, 4, N] x) => (y) { s = Constant<value_ints=[1, 40]>() a = Reshape(x, s) "
    "y = Relu(a) }",
    "a name in two places": "(float[M, K] a, float[K, N] b) => (y) { y = MatMul(a, b) }",
    "two resolutions": "(float[1, 4, H, W] a, float[1, 8, h, w] b, float[8, 4, 2, 2] k) => (y) "
    "{ u = ConvTranspose<strides=[2, 2]>(b, k) y = Concat<axis=1>(u, a) }",
    "positions of patches": """(float[N, C, H, W] x, float[16, 3, 8, 8] w, float[1, 17, 16] p) => (y) {
        c = Conv<strides=[8, 8]>(x, w)
        s = Constant<value_ints=[0, 16, -1]>()
        f = Reshape(c, s)
        t = Transpose<perm=[0, 2, 1]>(f)
        k = Constant<value = float[1, 1, 16] {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}>()
        j = Concat<axis=1>(k, t)
        y = Add(j, p)
    }""",
    "a mask over the cache and what is new": """(float[1, S, 8] x, float[1, P, 8] c, float[1, 1, L] m) => (y) {
        k = Concat<axis=1>(c, x)
        t = Transpose<perm=[0, 2, 1]>(k)
        a = MatMul(x, t)
        b = Add(a, m)
        y = MatMul(b, k)
    }""",
    "what two constants say": "(float[1, A] x, float[1, B] z, float[1, 40] c) => (y) "
    "{ k = Concat<axis=1>(z, z) a = Add(x, k) y = Add(a, c) }",
}


@pytest.mark.parametrize("text", FITTING.values(), ids=FITTING)
def test_sizes_are_found_that_the_graph_needs(text: str) -> None:
    graph = graph_of(text)
    assert [n.reason for n in partition(graph, GPU, Limits(), software=False).report.nodes if n.device == "cpu"] == []


def test_sizes_that_follow_from_one_another_stay_right() -> None:
    """The first pair has the same size, then a constant says which: both change."""
    graph = graph_of(
        "(float[1, A] x, float[1, B] z, float[1, 40] c) => (y) { k = Concat<axis=1>(z, z) a = Add(x, k) y = Add(a, c) }"
    )
    solver, nodes = Solver(graph, Limits(), sizes.Guess(64), {}), [node.id for node in graph.nodes]
    assert sizes.input_types(graph, solver.solve(nodes[:2]).guess)["x"] == tensor(1, 128)
    found = sizes.input_types(graph, solver.solve(nodes).guess)
    assert (found["x"], found["z"]) == (tensor(1, 40), tensor(1, 20))


def test_sizes_are_searched_once_where_no_guess_declines_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search walks the graph some ten times. It finds sizes whatever it begins with."""
    solve, begun = Solver.solve, list[Solver]()

    def counted(self: Solver, declined: Collection[int]) -> Solution:
        begun.extend([] if self in begun else [self])
        return solve(self, declined)

    monkeypatch.setattr(Solver, "solve", counted)
    for text, searches in (
        ("(float[1, K] x, float[3, 4] w, float[5, 4] v) => (y, z) { y = MatMul(x, w) z = MatMul(x, v) }", 1),
        ("(float[1, K] x, float[64, 4] w, float[5, 4] v) => (y, z) { y = MatMul(x, w) z = MatMul(x, v) }", 2),
    ):
        begun.clear()
        partition(graph_of(text), GPU, Limits(), software=False)
        assert len(begun) == searches


def test_a_reason_that_follows_from_a_guess_says_so() -> None:
    """No size is both: the second product's reason names the dimension, and the option that would give it."""
    graph = graph_of("(float[1, K] x, float[3, 4] w, float[5, 4] v) => (y, z) { y = MatMul(x, w) z = MatMul(x, v) }")
    report = partition(graph, GPU, Limits(), software=False).report
    assert [n.device for n in report.nodes] == ["gpu", "cpu"]
    assert report.nodes[1].reason.endswith(
        "this follows from a guessed size (K of 'x' = 3): give it with --dim K=SIZE "
        "(add_free_dimension_override_by_name)"
    )
    assert (
        "guess"
        not in partition(graph_of("(string[N] x) => (y) { y = Identity(x) }"), GPU, Limits(), software=False)
        .report.nodes[0]
        .reason
    )


# ---- partition


def test_placement_gpu_takes_what_has_a_kernel() -> None:
    found = partition(graph_of(ISLAND), GPU, Limits(), software=False)
    assert found.groups == ((0,), (2,))
    assert devices(graph_of(ISLAND)) == {"a": "gpu", "i": "cpu", "y": "gpu"}
    declined = found.report.nodes[1]
    assert (declined.code, declined.reason) == ("OP", "no kernel for com.microsoft:Inverse")
    assert [p.index for p in found.report.partitions] == [0, 1]
    assert [n.partition for n in found.report.nodes] == [0, -1, 1]


@pytest.mark.parametrize(
    ("placement", "software", "reason"),
    [
        ("cpu", False, "placement=cpu"),
        ("auto", True, "the adapter is software"),
        ("auto", False, "the whole is predicted to take"),
    ],
)
def test_what_stays_on_the_cpu_says_why(placement: str, software: bool, reason: str) -> None:
    found = partition(
        graph_of("(float[4] x) => (y) { a = Exp(x) y = Softmax(a) }"), Config(placement=placement), Limits(), software
    )
    assert found.groups == ()
    assert [(n.device, n.code) for n in found.report.nodes] == [("cpu", "COST")] * 2
    assert all(reason in n.reason for n in found.report.nodes)


def test_placement_auto_takes_a_large_model() -> None:
    graph = graph_of(
        "(float[8, 64, 56, 56] x, float[64, 64, 3, 3] w) => (y) { a = Conv<pads=[1, 1, 1, 1]>(x, w) y = Relu(a) }"
    )
    assert devices(graph, Config(placement="auto")) == {"a": "gpu", "y": "gpu"}


def test_an_adapter_asked_for_by_name_is_judged_by_its_costs_even_if_it_is_software() -> None:
    graph = graph_of(
        "(float[8, 64, 56, 56] x, float[64, 64, 3, 3] w) => (y) { a = Conv<pads=[1, 1, 1, 1]>(x, w) y = Relu(a) }"
    )
    assert devices(graph, Config(placement="auto", adapter="software"), software=True) == {"a": "gpu", "y": "gpu"}


def test_placement_auto_decides_by_group() -> None:
    graph = graph_of(
        "(float[8, 64, 56, 56] x, float[64, 64, 3, 3] w, float[2, 2] z) => (y, q) "
        "{ a = Conv(x, w) y = Relu(a) i = com.microsoft.Inverse(z) q = Exp(i) }"
    )
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
    """The shape is computed before the island, where it is the host's; the group of the Reshape behind it is given it,
    and reads it."""
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
    graph = graph_of(
        "(float[5, 16] x) => (y) { a = MatMul(x, w) y = Tanh(a) }",
        {"w": np.linspace(-1, 1, 128, dtype="f").reshape(16, 8)},
    )
    (part,) = partition(graph, GPU, Limits(), software=False).report.partitions
    assert (part.input_nbytes, part.output_nbytes, part.weight_nbytes, part.exact) == (
        5 * 16 * 4,
        5 * 8 * 4,
        16 * 8 * 4,
        True,
    )


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
