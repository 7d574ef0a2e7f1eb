"""Each form of a recurrent layer, and stacks of layers in one dispatch, against ONNX Runtime's CPU kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.ops import recurrent_held, recurrent_steps
from ort_gpu_ep.ops.recurrent_held import GENERAL, PRODUCT, WHOLE
from ort_gpu_ep.ops.recurrent_steps import STEPWISE
from ort_gpu_ep.partitioner.passes import fuse
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import PACKED, run_direct, run_program
from tests.ops import test_recurrent as layers
from tests.ops.single_node import node_model
from tests.ops.test_recurrent import CASES, GATES, assert_close, feeds_of, model_of, on_cpu

SUBGROUPS = Limits(frozenset(("subgroup",)), max_invocations=1024, max_buffers_per_stage=16)
ATTRIBUTES = {"LSTM": {}, "GRU": {"linear_before_reset": 1}}


def shaders_of(
    op: str, limits: Limits, steps: int = 16, inputs: int = 9, hidden: int = 32, **attributes: Any
) -> list[str]:
    shapes = {"x": (steps, 1, inputs), "w": (1, GATES[op] * hidden, inputs), "r": (1, GATES[op] * hidden, hidden)}
    graph = from_onnx(model_of(op, {k: np.empty(s, np.float32) for k, s in shapes.items()}, ["y"], 14, attributes))
    plan = make_plan(graph, {k: TensorType(FLOAT32, s) for k, s in shapes.items()}, limits)
    return [step.kernel.shader for step in plan.steps]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("shader", "op", "sizes"),
    [
        ("recurrent_held.wgsl", "LSTM", {}),
        ("recurrent_held.wgsl", "GRU", {"linear_before_reset": 1}),
        ("recurrent.wgsl", "GRU", {}),
        ("recurrent.wgsl", "RNN", {}),
        ("recurrent.wgsl", "LSTM", {"hidden": 64, "clip": 1.0}),
        ("recurrent_steps.wgsl", "LSTM", {"hidden": 512}),
        ("recurrent_steps.wgsl", "GRU", {"hidden": 512}),
        ("recurrent_steps.wgsl", "RNN", {"hidden": 1024}),
        ("recurrent.wgsl", "LSTM", {"clip": 1.0}),
        ("recurrent.wgsl", "LSTM", {"activations": ["Sigmoid", "Relu", "Tanh"]}),
        ("recurrent_held.wgsl", "LSTM", {"hidden": 64, "inputs": 700}),
        ("recurrent_held.wgsl", "LSTM", {"activations": ["Sigmoid", "Tanh", "Tanh"]}),
    ],
)
def test_which_form(shader: str, op: str, sizes: dict[str, Any]) -> None:
    assert shaders_of(op, SUBGROUPS, **sizes)[-1] == shader


def test_what_is_out_of_use_is_not_chosen() -> None:
    assert (
        shaders_of("LSTM", Limits(disabled=(("recurrent_held.wgsl", "a probe failed"),), max_invocations=1024))[-1]
        == "recurrent.wgsl"
    )


@pytest.mark.parametrize("quads", [True, False])
@pytest.mark.parametrize("form", [WHOLE, PRODUCT, GENERAL])
@pytest.mark.parametrize("op", ATTRIBUTES)
@pytest.mark.parametrize(
    ("sizes", "direction", "lengths"),
    [
        ((5, 2, 3, 7), "bidirectional", [5, 2]),
        ((9, 3, 17, 10), "reverse", [0, 9, 4]),
        ((40, 1, 8, 32), "forward", None),
        ((3, 2, 65, 33), "forward", None),
    ],
)
def test_every_form(
    op: str,
    form: str,
    quads: bool,
    sizes: Any,
    direction: str,
    lengths: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not quads:
        monkeypatch.setattr(recurrent_held, "_quads", lambda target: False)
    named = dict(zip(("steps", "batch", "inputs", "hidden"), sizes, strict=True))
    given = ["b", "h0", *(["c0"] if op == "LSTM" else []), *(["seq"] if lengths else [])]
    feeds = feeds_of(op, named, given, lengths, 1.0, 2 if direction == "bidirectional" else 1)
    want = ["y", "yh", "yc"] if op == "LSTM" else ["y", "yh"]
    model = model_of(op, feeds, want, 14, {"direction": direction, **ATTRIBUTES[op]})
    with forced(form):
        assert_close(run_direct(model, feeds), on_cpu(model, feeds))


ONE, TWO, FOUR = STEPWISE


@pytest.mark.parametrize(
    ("case", "form"),
    [
        ("LSTM-defaults", ONE),
        ("GRU-states", TWO),
        ("RNN-bidirectional", FOUR),
        ("LSTM-bidirectional", FOUR),
        ("GRU-bidirectional", TWO),
        ("RNN-lengths-bidirectional", ONE),
        ("GRU-lengths-reverse", ONE),
        ("LSTM-lengths-bidirectional", TWO),
        ("LSTM-all-inputs", TWO),
        ("LSTM-c0-only", ONE),
        ("GRU-linear-before-reset", TWO),
        ("GRU-linear-no-bias", ONE),
        ("LSTM-peepholes", ONE),
        ("LSTM-input-forget", ONE),
        ("GRU-prime-hidden", FOUR),
        ("LSTM-prime-hidden", TWO),
        ("RNN-over-256", TWO),
        ("LSTM-wants-yc", ONE),
        ("GRU-wants-yh", ONE),
        ("LSTM-clip", TWO),
        ("GRU-clip", ONE),
        ("RNN-clip", ONE),
        ("GRU-clip-linear", TWO),
        ("LSTM-one-everything", ONE),
        ("LSTM-activations", TWO),
        ("GRU-activations", ONE),
        ("RNN-activations-bidirectional", TWO),
    ],
)
def test_a_dispatch_a_step(case: str, form: str) -> None:
    op, sizes, given, want, lengths, scale, opset, attributes = next(c for c in CASES if c.id == case).values
    feeds = feeds_of(op, sizes, given, lengths, scale, 2 if attributes.get("direction") == "bidirectional" else 1)
    model = model_of(op, feeds, want, opset, attributes)
    with forced(form) as choices:
        assert_close(run_direct(model, feeds), on_cpu(model, feeds))
    assert form in {choice.form for choice in choices.values()}


@pytest.mark.parametrize("op", GATES)
def test_a_dispatch_a_step_in_other_layouts_and_types(op: str) -> None:
    with forced(TWO):
        layers.test_layout_1_is_layout_0_transposed(op)
        layers.test_float16_is_stored_only(op)


@pytest.mark.parametrize("subgroup_size", [0, 32])
@pytest.mark.parametrize("op", GATES)
def test_a_dispatch_a_step_by_subgroups_or_not(op: str, subgroup_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the batch in several turns, units that fill no team, twice in one program: each run leaves the counts of
    steps at 0."""
    if not subgroup_size:
        monkeypatch.setattr(recurrent_steps, "_teams_are_subgroups", lambda target: False)
    feeds = feeds_of(
        op, {"steps": 3, "batch": 9, "inputs": 4, "hidden": 20}, ["b", "h0", "seq"], [3, 0, 1, 2, 3, 3, 2, 1, 3], 1.0, 1
    )
    model = model_of(op, feeds, ["y", "yh"], 14, {})
    monkeypatch.setattr(recurrent_steps, "MAX_ROWS", 2)
    with forced(FOUR):
        program = Program(from_onnx(model), PACKED, Gpu.open(Config()))
        try:
            for turn in range(3):
                feeds["x"] = np.random.default_rng(turn).normal(size=feeds["x"].shape).astype("f")
                assert_close(run_program(program, feeds), on_cpu(model, feeds))
        finally:
            program.close()


def test_a_dispatch_a_step_of_as_many_steps_as_a_run_brings() -> None:
    given = feeds_of("GRU", {"steps": 5, "batch": 2, "inputs": 4, "hidden": 8}, ["b"], None, 1.0, 1)
    model = model_of("GRU", given, ["y", "yh"], 14, {})
    del model.graph.input[1:]
    model.graph.input[0].type.tensor_type.CopyFrom(
        helper.make_tensor_type_proto(TensorProto.FLOAT, ("T", "B", 4)).tensor_type
    )
    model.graph.initializer.extend(numpy_helper.from_array(given[name], name) for name in "wrb")
    with forced(ONE):
        program = Program(from_onnx(model), PACKED, Gpu.open(Config()))
        try:
            for steps, batch in ((5, 2), (9, 3), (33, 5), (5, 2)):
                feeds = {"x": np.random.default_rng(steps).normal(size=(steps, batch, 4)).astype("f")}
                assert_close(run_program(program, feeds), on_cpu(model, feeds))
            assert program.planned == 1
        finally:
            program.close()


def stack_of(
    op: str, depth: int, states: bool, want: list[str], hidden: int = 6, **changes: Any
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Layers on top of each other over x [steps, 2, 5]; changes: attributes of the last layer."""
    rng = np.random.default_rng(5)
    nodes, constants, value = [], {"axes": np.array([1])}, "x"
    feeds = {"x": rng.normal(size=(11, 2, 5)).astype("f")}
    for k in range(depth):
        inputs = 5 if k == 0 else hidden
        shapes = {
            "w": (1, GATES[op] * hidden, inputs),
            "r": (1, GATES[op] * hidden, hidden),
            "b": (1, 2 * GATES[op] * hidden),
        }
        constants |= {f"{n}{k}": (rng.normal(size=s) / 2).astype("f") for n, s in shapes.items()}
        initial = ["h", "c"] if op == "LSTM" else ["h"]
        if states:
            feeds |= {f"{n}{k}": rng.normal(size=(1, 2, hidden)).astype("f") for n in initial}
        is_last = k == depth - 1
        names = [f"{n}{k}" for n in "wrb"] + (["", *(f"{n}{k}" for n in initial)] if states else [])
        attributes = {"hidden_size": hidden, **ATTRIBUTES[op], **(changes if is_last else {})}
        nodes.append(helper.make_node(op, [value, *names], want if is_last else [f"s{k}"], **attributes))
        if not is_last:
            nodes.append(helper.make_node("Squeeze", [f"s{k}", "axes"], [value := f"v{k}"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()],
        [helper.make_empty_tensor_value_info(n) for n in want],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), feeds


def fused_ops(model: onnx.ModelProto, feeds: dict[str, Any], limits: Limits = SUBGROUPS) -> list[str]:
    graph = from_onnx(model)
    return [n.op for n in fuse(graph, {n: TensorType(FLOAT32, a.shape) for n, a in feeds.items()}, limits).nodes]


@pytest.mark.parametrize("form", [WHOLE, PRODUCT])
@pytest.mark.parametrize("quads", [True, False])
@pytest.mark.parametrize(
    ("op", "depth", "states", "hidden"),
    [("LSTM", 2, False, 6), ("LSTM", 2, True, 8), ("LSTM", 4, False, 3), ("GRU", 2, True, 6), ("GRU", 3, False, 5)],
)
def test_stacks(
    op: str, depth: int, states: bool, hidden: int, quads: bool, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not quads:
        monkeypatch.setattr(recurrent_held, "_quads", lambda target: False)
    model, feeds = stack_of(op, depth, states, ["y", "yh", "yc"] if op == "LSTM" else ["y", "yh"], hidden)
    assert fused_ops(model, feeds) == ["RecurrentStack"]
    with forced(form):
        assert_close(run_direct(model, feeds, fuse), on_cpu(model, feeds))


def test_layers_that_do_not_fit_together_stay_apart() -> None:
    model, feeds = stack_of("LSTM", 2, False, ["y"], 64)
    assert fused_ops(model, feeds) == ["LSTM", "Squeeze", "LSTM"]
    with apart():
        assert fused_ops(model, feeds, Limits(max_invocations=256)) == ["LSTM", "Squeeze", "LSTM"]


def test_a_stack_of_three_where_two_fit() -> None:
    model, feeds = stack_of("LSTM", 3, False, ["y"], 32)
    assert fused_ops(model, feeds, Limits(max_invocations=256)) == ["RecurrentStack", "Squeeze", "LSTM"]


@pytest.mark.parametrize(
    "changes",
    [{"direction": "reverse"}, {"clip": 0.5}, {"activations": ["Sigmoid", "Tanh", "Relu"]}, {"input_forget": 1}],
    ids=str,
)
def test_layers_that_differ_stay_apart(changes: dict[str, Any]) -> None:
    assert "RecurrentStack" not in fused_ops(*stack_of("LSTM", 2, False, ["y"], **changes))


@pytest.mark.parametrize("what", ["read elsewhere", "other axis", "lengths"])
def test_what_is_no_stack(what: str) -> None:
    model, feeds = stack_of("LSTM", 2, False, ["y"])
    if what == "read elsewhere":
        model.graph.output.append(helper.make_empty_tensor_value_info("v0"))
    if what == "other axis":
        feeds["x"] = feeds["x"][:, :1]
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
        next(i for i in model.graph.initializer if i.name == "axes").CopyFrom(
            numpy_helper.from_array(np.array([2]), "axes")
        )
    if what == "lengths":
        model.graph.node[2].input.append("lengths")
        model.graph.initializer.append(numpy_helper.from_array(np.array([3, 4], np.int32), "lengths"))
    assert "RecurrentStack" not in fused_ops(model, feeds)
    assert_close(run_direct(model, feeds, fuse), on_cpu(model, feeds))


def test_what_workgroup_memory_held_before_does_not_matter() -> None:
    """Vectors of 6 and 5 elements have a rest that nobody writes: after runs that leave NaN in the memory of all
    workgroups."""
    model, feeds = stack_of("LSTM", 2, False, ["y"])
    nothing, wanted = node_model("Softmax", [np.full((64, 300), np.nan, "f")], 13), on_cpu(model, feeds)
    for _ in range(20):
        run_direct(*nothing)
        assert_close(run_direct(model, feeds, fuse), wanted)
