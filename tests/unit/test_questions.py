"""A row is asked a question once; what an answer follows from is part of the question."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.kernels.lowering import Answer, facts_of, walk
from ort_gpu_ep.kernels.registry import OPS, BoundNode, Built, Decline, Limits, Lowering
from ort_gpu_ep.memo import Memo
from ort_gpu_ep.partitioner import partition, rewrite
from ort_gpu_ep.scheduler.template import make_template
from tests.unit.graphs import graph_of, static_types


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each builder is called. The rows are new ones: no answer to them is known."""
    count = Counter[str]()
    for key, spec in list(OPS.items()):

        def build(node: BoundNode, spec: object = spec) -> Built:
            count[node.op] += 1
            return spec.build(node)  # type: ignore[attr-defined, no-any-return]

        monkeypatch.setitem(OPS, key, replace(spec, build=build))
    return count


def answers(text: str, limits: Limits | None = None, **constants: np.ndarray) -> list[Answer]:
    graph = graph_of(text, constants)
    return [a for _, a, _ in walk(graph, facts_of(graph, static_types(graph)), limits or Limits())]


CHAIN = """(float[1, 4, 8, 8] x) => (y) { a = Conv(x, w) b = Relu(a) c = Conv(b, v) d = Relu(c) e = Sigmoid(d) f = Mul(d, e) y = Softmax(f) }"""
WEIGHTS = {"w": np.ones((4, 4, 1, 1), "f"), "v": 2 * np.ones((4, 4, 1, 1), "f")}


def test_layers_that_are_alike_and_stages_ask_once(calls: Counter[str]) -> None:
    """The claim, the check of the group and the plan; two convolutions that differ in their weights only."""
    for _ in range(2):  # read from the model again, as ONNX Runtime gives it for the second stage
        graph = graph_of(CHAIN, WEIGHTS)
        partition(graph, Config(placement="gpu"), Limits(), software=False)
        make_template(graph, list(static_types(graph).values()), Limits(), rewrite)
    assert calls["Conv"] == 1  # it does not look at whether steps follow
    assert {op: n for op, n in calls.items() if op not in ("Conv", "Elementwise")} == {
        "Relu": 1,
        "Sigmoid": 1,
        "Mul": 1,
        "Softmax": 1,
    }


def test_content_that_a_builder_reads_counts_and_other_content_does_not(calls: Counter[str]) -> None:
    text = "(float[2, 3, 4] x) => (y) { y = Transpose<perm=[2, 0, 1]>(x) }"
    assert answers(text) == answers(text)
    assert calls["Transpose"] == 1
    one, other, again = (
        answers("(float[2, 12] x) => (y) { y = Reshape(x, s) }", s=np.array(s)) for s in ([4, 6], [6, 4], [4, 6])
    )
    assert one == again != other
    assert calls["Reshape"] == 2
    pads = [
        answers("(float[2, 3] x) => (y) { y = Pad(x, p, v) }", p=np.array([0, 1, 0, 1]), v=np.array(v, "f"))
        for v in (0.0, -0.0, 1.5)
    ]
    assert pads[0] != pads[2]
    assert calls["Pad"] == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Elu<alpha=1.0>(x)", "Elu<alpha=2.0>(x)"),
        ("Flatten<axis=0>(x)", "Flatten<axis=1>(x)"),
        ("ReduceSum<keepdims=0>(x)", "ReduceSum<keepdims=1>(x)"),
        ("Relu(x)", "Tanh(x)"),
    ],
)
def test_attributes_and_ops_count(one: str, other: str) -> None:
    first, second, third = (answers(f"(float[2, 3, 4] x) => (y) {{ y = {call} }}") for call in (one, other, one))
    assert first == third != second


def test_outputs_that_nobody_wants_count() -> None:
    one, other = (
        answers(
            f"(float[1, 2, 8, 8] x) => (v) {{ {out} = MaxPool<kernel_shape=[2, 2]>(x) }}",
            Limits(frozenset({"shader-int64"})),
        )
        for out in ("v, i", "v")
    )
    assert [isinstance(a, Lowering) for a in (*one, *other)] == [True, True]
    assert one[0].outputs[1] is not None  # type: ignore[union-attr]
    assert len(other[0].outputs) == 1  # type: ignore[union-attr]


def test_limits_count() -> None:
    (taken,), (declined,) = (
        answers("(float[64, 64] x) => (y) { y = Softmax(x) }", limits)
        for limits in (Limits(), Limits(max_buffer_nbytes=99))
    )
    assert isinstance(taken, Lowering)
    assert isinstance(declined, Decline)
    assert declined.code is Code.LIMIT


def test_a_refusal_tells_of_its_own_inputs(calls: Counter[str]) -> None:
    reasons = []
    for name in ("first", "second", "first"):
        (answer,) = answers(f"(float[2, 4] x, float[5] {name}) => (y) {{ y = LayerNormalization(x, {name}) }}")
        assert isinstance(answer, Decline)
        reasons.append(answer.reason)
    assert "'first'" in reasons[0]
    assert "'second'" in reasons[1]
    assert reasons[2] == reasons[0]
    assert calls["LayerNormalization"] == 2


def test_sizes_of_a_run_are_asked_for_each_plan(calls: Counter[str]) -> None:
    graph = graph_of("(float[N, 8] x) => (y) { y = Softmax(x) }")
    types = list(static_types(graph_of("(float[3, 8] x) => (y) { y = Softmax(x) }")).values())
    plans = [make_template(graph, types, Limits()) for _ in range(2)]
    assert calls["Softmax"] == 2
    for template in plans:
        filled = template.fill(types)
        assert filled is not None
        assert filled.outputs == (types[0],)


def test_a_builder_that_looks_further_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which inputs it reads may depend on what it reads."""

    def build(node: BoundNode) -> Built:
        if not node.input(1).require()[0]:
            raise UnsupportedNodeError(Code.ATTRIBUTE, "first")
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"second {node.input(2).require()[0]}")

    monkeypatch.setitem(OPS, ("", "Slice"), replace(OPS["", "Slice"], build=build))
    found = []
    for first, second in ((0, 5), (1, 5), (1, 6), (0, 6), (1, 5)):
        (answer,) = answers("(float[9] x) => (y) { y = Slice(x, a, b) }", a=np.array([first]), b=np.array([second]))
        assert isinstance(answer, Decline)
        found.append(answer.reason)
    assert found == ["first", "second 5", "second 6", "first", "second 5"]


def test_a_memo_keeps_the_last_used() -> None:
    memo = Memo[str](2)
    for key in ("a", "b"):
        memo.put(key, key)
    assert memo.get("a") == "a"
    memo.put("c", "c")
    assert [memo.get(key) for key in "abc"] == ["a", None, "c"]


def test_a_memo_is_for_threads() -> None:
    memo, errors = Memo[int](5), list[BaseException]()

    def use(seed: int) -> None:
        try:
            for k in np.random.default_rng(seed).integers(0, 12, 3000):
                found = memo.get(int(k))
                assert found in (None, int(k))
                memo.put(int(k), int(k))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_builder_sees_what_the_node_is_to_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[int, list[bool]]]()
    spec = OPS["", "Gemm"]

    def build(node: BoundNode) -> Built:
        seen.append((node.target.limits.max_invocations, [i.is_constant for i in node.given()]))
        return spec.build(node)

    monkeypatch.setitem(OPS, ("", "Gemm"), replace(spec, build=build))
    for limits in (Limits(), Limits(max_invocations=128)):
        answers("(float[5, 200] x, float[7] b) => (y) { y = Gemm(x, w, b) }", limits, w=np.ones((200, 7), "f"))
        answers("(float[5, 200] x, float[200, 7] w) => (y) { y = Gemm(x, w, b) }", limits, b=np.ones(7, "f"))
    assert seen == [
        (256, [False, True, False]),
        (256, [False, False, True]),
        (128, [False, True, False]),
        (128, [False, False, True]),
    ]


@pytest.mark.parametrize(
    "limits",
    [Limits(max_workgroup_nbytes=8192), Limits(max_invocations=128), Limits(max_workgroup_nbytes=10000)],
    ids=["half the memory", "half the invocations", "a number between"],
)
def test_a_product_takes_a_tile_that_the_adapter_allows(limits: Limits) -> None:
    """Also one that was asked for another adapter before."""
    text = "(float[512, 512] x, float[512, 512] w) => (y) { y = MatMul(x, w) }"
    usual, fitting = answers(text), answers(text, limits)
    assert isinstance(usual[0], Lowering)
    assert isinstance(fitting[0], Lowering)
    assert (
        usual[0].kernels[0].workgroup_nbytes > min(8192, limits.max_workgroup_nbytes)
        or usual[0].kernels[0].workgroup_size > limits.max_invocations
    )
    assert fitting[0].kernels[0].workgroup_nbytes <= limits.max_workgroup_nbytes
    assert fitting[0].kernels[0].workgroup_size <= limits.max_invocations
    (none,) = answers(text, Limits(max_workgroup_nbytes=64))
    assert isinstance(none, Decline)
    assert "workgroup memory" in none.reason


def test_builders_look_at_fused_steps_through_the_bound_node_only() -> None:
    """Else an answer made without steps would be given for a node with them."""
    import ort_gpu_ep.ops

    files = Path(ort_gpu_ep.ops.__file__).parent.glob("*.py")
    assert [p.name for p in files if ".epilogue" in p.read_text("utf-8")] == []
