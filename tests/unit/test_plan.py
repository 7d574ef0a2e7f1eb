"""Plans: legal, plain data, and every dispatch reads what its node meant."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

from ort_gpu_ep.errors import Code, InternalError, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Node, from_onnx
from ort_gpu_ep.ir.types import DTYPES, DType
from ort_gpu_ep.kernels.lowering import walk
from ort_gpu_ep.kernels.registry import BoundNode, Limits, Lowering
from ort_gpu_ep.scheduler import planner
from ort_gpu_ep.scheduler.plan import Copy, Dispatch, Kind, Place, Plan
from ort_gpu_ep.scheduler.verify import check, violations
from tests.unit.graphs import graph_of, plan_of, random_models, tensor

MLP = "(float[3, 16] x) => (float[3, 8] y) { h = MatMul(x, w)  s = Softmax(h)  y = MatMul(s, v) }"


@pytest.fixture
def plan(rng: np.random.Generator) -> Plan:
    return plan_of(
        graph_of(MLP, {"w": rng.standard_normal((16, 8)).astype("f"), "v": rng.standard_normal((8, 8)).astype("f")})
    )


@settings(max_examples=60)
@given(random_models())
def test_plans_are_legal(model: onnx.ModelProto) -> None:
    graph = from_onnx(model)
    for with_fusion in (False, True):
        assert violations(plan_of(graph, with_fusion), Limits()) == []


@settings(max_examples=60)
@given(random_models())
def test_each_dispatch_reads_the_values_of_its_node(model: onnx.ModelProto) -> None:
    """Replays a plan with names instead of numbers: a slot holds the value that was written to it last."""
    graph = from_onnx(model)
    nodes = {n.name: n for n in graph.nodes}
    plan = plan_of(graph, with_fusion=False)
    holds = {Place(Kind.INPUT, i): name for i, name in enumerate(graph.inputs)} | {Place(Kind.WEIGHT, name="w"): "w"}
    holds |= {Place(Kind.CONSTANT, name=c.name): c.name for c in plan.constants}
    for step in plan.steps:
        if isinstance(step, Copy):
            holds[step.target] = holds[step.source]
            continue
        node = nodes[step.label.split("/")[0]]
        sources = [node.inputs[s] if isinstance(s, int) else f"{node.name}.{s}" for _, s in step.kernel.reads or ()]
        targets = [node.outputs[t] if isinstance(t, int) else f"{node.name}.{t}" for _, t in step.kernel.writes or ()]
        assert [holds.get(t.place) for t in step.tensors if not t.written] == sources, step.label
        holds.update(zip([t.place for t in step.tensors if t.written], targets, strict=True))
    assert [holds[Place(Kind.OUTPUT, i)] for i in range(len(graph.outputs))] == list(graph.outputs)


def test_it_is_plain_data(plan: Plan, rng: np.random.Generator) -> None:
    weights = {"w": rng.standard_normal((16, 8)).astype("f"), "v": rng.standard_normal((8, 8)).astype("f")}
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert plan_of(graph_of(MLP, weights)) == plan
    assert plan_of(graph_of(MLP.replace("3,", "4,"), weights)) != plan
    assert hash(plan) == hash(pickle.loads(pickle.dumps(plan)))
    with pytest.raises(FrozenInstanceError):
        plan.slots = ()  # type: ignore[misc]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_element_types_stay_themselves(dtype: DType) -> None:
    """They are compared by `is`, also in a worker, which gets its graphs by pickle."""
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy(dtype) is dtype


def test_it_prints(plan: Plan) -> None:
    lines = str(plan).splitlines()
    assert lines[:3] == ["inputs  float32[3, 16]", "outputs float32[3, 8]", "slots   256, 256 (bytes)"]
    assert len(lines) == 3 + len(plan.prologue) + len(plan.steps) + 1
    assert lines[-1] == "3 dispatches, 2 barriers (|)"
    assert any("weight:w:float32[16, 8]" in line for line in lines[3:])


def test_sizes(plan: Plan) -> None:
    assert plan.dispatches == 3
    assert plan.slot_nbytes == 512
    assert plan.intermediate_nbytes == 2 * 3 * 8 * 4
    assert plan.weights == ("v", "w")


def test_levels() -> None:
    plan = plan_of(
        graph_of("(float[4, 4] x) => (y) { a = Softmax(x) b = Softmax<axis=0>(x) c = Softmax(b) y = MatMul(a, c) }")
    )
    assert {s.tensors[-1].place.kind for s in plan.steps[:3] if isinstance(s, Dispatch)} == {Kind.SLOT}
    assert [s.level for s in plan.steps if isinstance(s, Dispatch)] == [0, 0, 1, 2]


def test_what_nothing_reads_is_not_computed() -> None:
    """A value, and what only it was computed from; a dispatch goes on for one of its outputs that is read."""
    text = "(float[3, 6] x) => (y) { a, b = Split<axis = 1>(x, s) y = Softmax(a) c = Softmax(b) d = MatMul(c, c) }"
    plan = plan_of(graph_of(text, {"s": np.array([3, 3])}), with_fusion=False)
    assert [s.label.split("/")[1] for s in plan.steps if isinstance(s, Dispatch)] == ["split", "softmax"]


def test_a_view_costs_nothing_and_keeps_its_source_alive() -> None:
    graph = graph_of(
        "(float[2, 6] x) => (float[4, 3] y) "
        "{ a = Softmax(x) r = Reshape(a, s) b = Softmax(a) t = Reshape(b, s) y = Add(r, t) }",
        {"s": np.array([4, 3])},
    )
    plan = plan_of(graph, with_fusion=False)
    assert [s.label.split("/")[1] for s in plan.steps if isinstance(s, Dispatch)] == [
        "softmax",
        "softmax",
        "elementwise",
    ]
    first, second, add = (s for s in plan.steps if isinstance(s, Dispatch))
    assert [t.place for t in add.tensors[:2]] == [first.tensors[-1].place, second.tensors[-1].place]
    assert first.tensors[-1].place != second.tensors[-1].place


def test_an_output_that_is_an_input_a_constant_or_another_output_is_copied() -> None:
    graph = graph_of(
        "(float[2, 6] x) => (float[3, 4] a, float[2, 6] b, float[12] c, int64[2] d) "
        "{ a = Reshape(x, s) b = Relu(x) c = Reshape(b, t) d = Shape(x) }",
        {"s": np.array([3, 4]), "t": np.array([12])},
    )
    plan = plan_of(graph)
    copies = {s.label: (s.source, s.target) for s in plan.steps if isinstance(s, Copy)}
    assert copies == {
        "a": (Place(Kind.INPUT, 0), Place(Kind.OUTPUT, 0)),
        "c": (Place(Kind.OUTPUT, 1), Place(Kind.OUTPUT, 2)),
        "d": (Place(Kind.CONSTANT, name="d"), Place(Kind.OUTPUT, 3)),
    }
    assert np.frombuffer(plan.constants[0].data, np.int64).tolist() == [2, 6]
    check(plan)


def test_an_output_that_shows_a_weight(rng: np.random.Generator) -> None:
    """The weight stays where it is; the output gets a copy."""
    weight = rng.standard_normal((200, 200)).astype("f")
    plan = plan_of(
        graph_of(
            "(float[3, 200] x) => (y, v) { y = MatMul(x, w) v = Reshape(w, s) }",
            {"w": weight, "s": np.array([100, -1])},
        )
    )
    check(plan)
    assert plan.outputs[1] == tensor(100, 400)
    assert [(s.source, s.target) for s in plan.steps if isinstance(s, Copy)] == [
        (Place(Kind.WEIGHT, name="w"), Place(Kind.OUTPUT, 1))
    ]


def test_tensors_without_elements_need_no_producer() -> None:
    """An empty part is written by nobody and may be read, and given out, all the same."""
    graph = graph_of(
        "(float[4, 3] x, float[0, 3] z) => (float[4, 3] y, float[0, 3] e) "
        "{ e = Softmax(z) r = Softsign(e) y = Concat<axis=0>(x, r) }"
    )
    plan = plan_of(graph, with_fusion=False)
    check(plan)
    assert plan.outputs == (tensor(4, 3), tensor(0, 3))
    assert all(t.type.size for s in plan.steps if isinstance(s, Dispatch) for t in s.tensors if t.written)


def test_what_a_row_declines_raises_with_its_node() -> None:
    with pytest.raises(UnsupportedNodeError, match=r"product: .*inner dimensions differ") as caught:
        plan_of(
            graph_of("(float[2, N] x, float[3, 2] z) => (y) { [product] y = MatMul(x, z) }"),
            x=tensor(2, 4),
            z=tensor(3, 2),
        )
    assert caught.value.code is Code.RANK


@pytest.mark.parametrize(("op", "per_element"), [("Softsign", True), ("Softmax<axis=0>", False)])
def test_a_kernel_for_each_element_writes_all_of_its_value(
    op: str, per_element: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a row says wrongly is found before it runs. Groups write as much as their body says."""

    def halved(node: Node, answer: Lowering, bound: BoundNode) -> tuple[Node, Lowering, BoundNode]:
        (only,) = answer.kernels
        assert (only.groups == 0) == per_element
        return node, replace(answer, kernels=(replace(only, outputs=(tensor(2, 3),)),)), bound

    monkeypatch.setattr(planner, "walk", lambda *given, **named: (halved(*found) for found in walk(*given, **named)))
    graph = graph_of(f"(float[4, 3] x) => (float[4, 3] y) {{ [softly] y = {op}(x) }}")
    if not per_element:
        assert plan_of(graph, with_fusion=False).dispatches == 1
        return
    with pytest.raises(
        InternalError, match=r"softly: kernel .*wgsl writes float32\[2, 3\], its value is float32\[4, 3\]"
    ):
        plan_of(graph, with_fusion=False)


def found(plan: Plan, **changes: object) -> list[str]:
    return violations(replace(plan, **changes))  # type: ignore[arg-type]


def with_tensor(plan: Plan, step: int, index: int, place: Place) -> tuple[Dispatch | Copy, ...]:
    """The plan's steps with one tensor in another place."""
    steps = list(plan.steps)
    chosen = steps[step]
    assert isinstance(chosen, Dispatch)
    tensors = list(chosen.tensors)
    tensors[index] = replace(tensors[index], place=place)
    steps[step] = replace(chosen, tensors=tuple(tensors))
    return tuple(steps)


def test_verify_accepts_a_legal_plan(plan: Plan) -> None:
    assert violations(plan) == []
    check(plan)


CACHED = """(float[1, 1, 48] q, float[1, 2, 16, 8] pk, float[1, 2, 16, 8] pv, int32[1] lengths)
         => (float[1, 1, 16] y, float[1, 2, 16, 8] nk, float[1, 2, 16, 8] nv)
         { y, nk, nv = com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=2>(q, , , pk, pv, lengths, total) }"""


def test_verify_knows_what_may_stay_in_place() -> None:
    """Rows are added to a cache whose copy a run leaves out: nothing else may read it, and the copies come first."""
    plan = plan_of(graph_of(CACHED, {"total": np.array([16], np.int32)}))
    assert plan.in_place == ((1, 1), (2, 2))
    assert violations(plan) == []
    assert "another step reads the input" in "".join(found(plan, steps=(*plan.steps, plan.steps[0])))
    assert "do not copy one" in "".join(found(plan, steps=(*plan.steps[2:], *plan.steps[:2])))
    assert "do not copy one" in "".join(found(plan, steps=plan.steps[1:]))
    assert "is not" in "".join(found(plan, inputs=(*plan.inputs[:1], tensor(1, 2, 15, 8), *plan.inputs[2:])))
    assert "in two pairs" in "".join(found(plan, in_place=((1, 1), (1, 1))))


def test_verify_finds_a_wrong_order(plan: Plan) -> None:
    assert any("before anything wrote it" in v for v in found(plan, steps=plan.steps[::-1]))


def test_verify_finds_a_slot_that_nobody_wrote(plan: Plan) -> None:
    problems = found(plan, steps=with_tensor(plan, 1, 0, Place(Kind.SLOT, 1)))
    assert any("reads slot:1 before anything wrote it" in v for v in problems)


@pytest.mark.parametrize("place", [Place(Kind.INPUT, 0), Place(Kind.WEIGHT, name="w"), Place(Kind.CONSTANT, name="c")])
def test_verify_finds_a_write_to_what_is_read_only(plan: Plan, place: Place) -> None:
    assert any(f"writes {place}" in v for v in found(plan, steps=with_tensor(plan, 0, -1, place)))


def test_verify_finds_a_place_that_is_read_and_written(plan: Plan) -> None:
    source = plan.steps[1].tensors[0].place  # type: ignore[union-attr]
    assert any("reads and writes slot" in v for v in found(plan, steps=with_tensor(plan, 1, -1, source)))


def test_verify_finds_a_place_that_is_written_twice_by_a_dispatch(plan: Plan) -> None:
    last = plan.steps[0]
    assert isinstance(last, Dispatch)
    twice = replace(last, tensors=(*last.tensors, replace(last.tensors[-1], name="again")))
    assert any("writes one place twice" in v for v in found(plan, steps=(twice, *plan.steps[1:])))


def test_verify_finds_a_slot_that_is_too_small(plan: Plan) -> None:
    assert any("96 B in slot:0 of 32 B" in v for v in found(plan, slots=(32, 256)))


def test_verify_finds_a_missing_output(plan: Plan) -> None:
    assert any("output 0 float32[3, 8] is never written" in v for v in found(plan, steps=plan.steps[:-1]))


def test_check_raises_all_of_them(plan: Plan) -> None:
    with pytest.raises(InternalError, match=r"(?s)illegal plan:.*before anything.*never written.*inputs  float32"):
        check(replace(plan, steps=plan.steps[1:2]))
