"""Barriers: where a plan causes them, and that the branches of a level share one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

import models
from ort_gpu_ep.config import Config
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.scheduler import Plan
from ort_gpu_ep.scheduler.barriers import share_barriers, unsettled
from ort_gpu_ep.scheduler.plan import Dispatch, Kind, Place
from ort_gpu_ep.scheduler.verify import check, violations
from tests.unit.graphs import graph_of, plan_of, random_models

LARGE = Limits(
    frozenset({"subgroup", "last-arriving-workgroup"}),
    (1 << 31) - 256,
    1 << 34,
    32,
    49152,
    1024,
    max_loop_iterations=1 << 40,
)
"""As a large GPU has them."""

BRANCHES = """(float[4, 16] x) => (float[4, 16] y) {
    a = Softmax(x) b = Softmax<axis=0>(x) c = Softmax(a) d = Softmax(b) e = Softmax<axis=0>(a) p = Softmax(c) q = Softmax(d) r = Softmax(e)
    s = MatMul(p, w) y = Sum(q, r, s) }"""


def dispatches(plan: Plan) -> list[Dispatch]:
    return [s for s in plan.steps if isinstance(s, Dispatch)]


def unshared(plan: Plan) -> Plan:
    return replace(plan, steps=tuple(replace(s, awaited=()) if isinstance(s, Dispatch) else s for s in plan.steps))


@pytest.fixture
def plan(rng: np.random.Generator) -> Plan:
    return plan_of(
        graph_of(BRANCHES, {"w": rng.standard_normal((16, 16)).astype("f")}), with_fusion=False, limits=LARGE
    )


def levels(plan: Plan) -> int:
    return len({s.level for s in dispatches(plan)})


def test_a_barrier_a_level(plan: Plan) -> None:
    """By what the first dispatch of a level awaits: without that, each branch waits for what it reads."""
    check(plan, LARGE)
    assert len(plan.barriers) == levels(plan) - 1
    assert any(s.awaited for s in dispatches(plan))
    assert len(unshared(plan).barriers) == len(plan.barriers) + sum(len(s.awaited) for s in dispatches(plan))


def test_a_barrier_serves_as_much_as_can_be_bound(plan: Plan) -> None:
    """A dispatch of two bindings and room for one more."""
    few = Limits(max_buffers_per_stage=3)
    fewer = replace(plan, steps=tuple(share_barriers(unshared(plan).steps, few)))
    assert max(len(s.awaited) for s in dispatches(fewer)) == 1
    assert len(plan.barriers) < len(fewer.barriers) < len(unshared(plan).barriers)
    assert [v for v in violations(fewer, few) if "binds 4 buffers" not in v] == []


@settings(max_examples=60)
@given(random_models())
def test_what_awaits_changes_barriers_alone(model: onnx.ModelProto) -> None:
    plan = plan_of(from_onnx(model), with_fusion=False, limits=LARGE)
    assert plan.barriers <= unshared(plan).barriers
    assert violations(plan, LARGE) == []
    assert tuple(share_barriers(unshared(plan).steps, LARGE)) == plan.steps


@settings(max_examples=30)
@given(random_models())
def test_what_a_barrier_is_for_was_written_last(model: onnx.ModelProto) -> None:
    steps = plan_of(from_onnx(model), with_fusion=False, limits=LARGE).steps
    for i, (step, places) in enumerate(zip(steps, unsettled(steps), strict=True)):
        expected = set[Place]()
        for place in (
            [place for place, written in step.uses.items() if not written] if isinstance(step, Dispatch) else []
        ):
            before = next((s for s in reversed(steps[:i]) if not isinstance(s, Dispatch) or place in s.uses), None)
            expected |= {place} if isinstance(before, Dispatch) and before.uses[place] else set()
        assert set(places) == expected


def test_reads_of_what_is_read_need_none() -> None:
    plan = plan_of(
        graph_of("(float[4, 4] x) => (y, z) { a = Softmax(x) y = Softmax(a) z = Softmax<axis=0>(a) }"),
        with_fusion=False,
    )
    assert plan.barriers == {1}


def test_a_slot_that_is_written_again_needs_one(plan: Plan) -> None:
    first, second = plan.steps[:2]
    assert isinstance(first, Dispatch)
    assert isinstance(second, Dispatch)
    assert not plan.barriers & {0, 1}
    again = replace(second, tensors=(second.tensors[0], replace(second.tensors[1], place=first.tensors[1].place)))
    assert replace(plan, steps=(first, again)).barriers == {1}


def test_it_prints(plan: Plan) -> None:
    lines = str(plan).splitlines()
    assert sum(line[4:5] == "|" for line in lines) == len(plan.barriers)
    assert sum(" awaits slot:" in line for line in lines) == sum(bool(s.awaited) for s in dispatches(plan))
    assert lines[-1].endswith(f"{len(plan.barriers)} barriers (|)")


def awaiting(plan: Plan, *places: Place) -> list[str]:
    """What is wrong where the second step awaits these."""
    steps = list(dispatches(plan))
    steps[1] = replace(steps[1], awaited=places)
    return violations(replace(plan, steps=tuple(steps)), LARGE)


def test_verify_knows_what_may_be_awaited(plan: Plan) -> None:
    first, second = dispatches(plan)[:2]
    written, own, input_ = first.tensors[-1].place, second.tensors[-1].place, second.tensors[0].place
    unwritten = Place(Kind.SLOT, 1 + max(written.index, own.index))
    assert awaiting(plan, written) == []
    assert any("awaits one place twice" in v for v in awaiting(plan, written, written))
    assert any(f"awaits {own}, which it binds anyway" in v for v in awaiting(plan, own))
    assert any(f"awaits {input_}, which is no slot" in v for v in awaiting(plan, input_))
    assert any(f"awaits {unwritten} before anything wrote it" in v for v in awaiting(plan, unwritten))
    assert any("binds 3 buffers of 2" in v for v in violations(plan, replace(LARGE, max_buffers_per_stage=2)))


@pytest.mark.parametrize("name", ["inception_v3", "googlenet", "squeezenet1_1", "encoder", "resnet50"])
def test_networks_wait_once_a_level(name: str) -> None:
    """Of inception_v3 that was a barrier in front of nearly each of its dispatches."""
    graph = from_onnx(models.build(name))
    plan = plan_of(graph, limits=LARGE)
    check(plan, LARGE)
    assert len(plan.barriers) == levels(plan) - 1
    assert len(plan.barriers) <= 107
    assert plan.slot_nbytes < 0.55 * plan.intermediate_nbytes
    assert plan_of(graph, limits=LARGE.of(Config(winograd=False))).slot_nbytes < 64e6


@pytest.mark.parametrize(("name", "levels_beside", "width"), [("squeezenet1_1", 8, 2), ("encoder", 6, 3)])
def test_branches_of_networks_run_beside_each_other(name: str, levels_beside: int, width: int) -> None:
    """The two expanding convolutions of a fire module; the products that make queries, keys and values."""
    plan = plan_of(from_onnx(models.build(name)), limits=LARGE)
    by_level: dict[int, list[int]] = {}
    for k, step in enumerate(plan.steps):
        if isinstance(step, Dispatch):
            by_level.setdefault(step.level, []).append(k)
    beside = [[k for k in steps if plan.steps[k].label.endswith("/product")] for steps in by_level.values()]
    beside = [steps for steps in beside if len(steps) > 1]
    assert len(beside) == levels_beside
    assert all(len(steps) == width and not plan.barriers & set(steps[1:]) for steps in beside)
