"""Recurrent weights that the model holds are put in order once for a program; those that a run brings in every run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.ir.graph import Node, from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.records import completed
from ort_gpu_ep.kernels.registry import OPS, BoundNode, Limits, Lowering, Operand, kernel
from ort_gpu_ep.kernels.target import DEFAULT_LIMITS, Target
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Copy, Dispatch, Kind, Place, Plan
from ort_gpu_ep.scheduler.planner import make_plan
from ort_gpu_ep.scheduler.verify import check, violations
from tests.direct import opened, run_program
from tests.ops.test_recurrent import GATES, assert_close, feeds_of, model_of, on_cpu

SIZES = {"steps": 5, "batch": 2, "inputs": 3, "hidden": 7}
HELD = ("w", "r", "b", "p")


def layer(
    op: str, held: tuple[str, ...] = HELD, sizes: dict[str, int] = SIZES, given: tuple[str, ...] = ("b",)
) -> tuple[onnx.ModelProto, Any]:
    """A layer whose model holds the inputs `held`, and the feeds."""
    feeds = feeds_of(op, sizes, list(given), None, 1.0, 1)
    model = model_of(op, feeds, ["y", "yh"], 14, {})
    kept = [i for i in model.graph.input if i.name not in held]
    model.graph.initializer.extend(numpy_helper.from_array(feeds.pop(n), n) for n in held if n in feeds)
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model, feeds


def plan_of(model: onnx.ModelProto, feeds: Any) -> Plan:
    return make_plan(from_onnx(model), {n: TensorType(FLOAT32, a.shape) for n, a in feeds.items()}, Limits())


def shaders(steps: tuple[Dispatch | Copy, ...]) -> list[str]:
    return [s.kernel.shader for s in steps if isinstance(s, Dispatch)]


@pytest.fixture
def programs() -> Iterator[Any]:
    made: list[Program] = []

    def opened_program(model: onnx.ModelProto, every_size_open: bool = False) -> Program:
        graph = from_onnx(model)
        made.append(Program(opened(graph) if every_size_open else graph, Config(), Gpu.open(Config())))
        return made[-1]

    yield opened_program
    for program in made:
        program.close()


@pytest.mark.parametrize("op", GATES)
def test_weights_that_the_model_holds_are_packed_once(op: str, programs: Any) -> None:
    model, feeds = layer(op)
    plan = plan_of(model, feeds)
    check(plan)
    form = "recurrent_held" if op == "LSTM" else "recurrent"
    assert shaders(plan.prologue) == [f"{form}_weights.wgsl"]
    assert shaders(plan.steps)[-1] == f"{form}.wgsl"
    assert f"{form}_weights.wgsl" not in shaders(plan.steps)
    assert plan.weights == ("b", "r", "w")
    every_run, brought = layer(op, held=("w",))
    other = plan_of(every_run, brought)
    assert (plan.dispatches, len(other.prologue)) == (other.dispatches - 1, 0)
    program = programs(model)
    for _ in range(3):
        assert_close(run_program(program, feeds), on_cpu(model, feeds))
    assert_close(run_program(programs(every_run), brought), on_cpu(every_run, brought))


@pytest.mark.parametrize("held", [("w", "r"), ("r", "b"), ("w", "r", "b"), ("r", "b", "p")], ids=" ".join)
def test_one_that_a_run_brings_is_enough_to_pack_in_every_run(held: tuple[str, ...], programs: Any) -> None:
    """With other weights the second time."""
    model, feeds = layer("LSTM", held, given=("b", "p"))
    assert bool(plan_of(model, feeds).prologue) == (set("rbp") <= set(held))
    program = programs(model)
    for scale in (1, 2):
        feeds = {n: a * np.float32(scale) for n, a in feeds.items()}
        assert_close(run_program(program, feeds), on_cpu(model, feeds))


def test_weights_too_large_for_the_host_to_know(programs: Any) -> None:
    """The recurrent weights have 256 KiB; nobody but the device has them."""
    model, feeds = layer("LSTM", sizes=SIZES | {"hidden": 128})
    assert shaders(plan_of(model, feeds).prologue) == ["recurrent_weights.wgsl"]
    assert_close(run_program(programs(model), feeds), on_cpu(model, feeds))


def test_all_plans_of_a_program_share_what_was_packed_and_it_is_counted(programs: Any) -> None:
    model, _ = layer("GRU")
    program = programs(model, every_size_open=True)
    assert program.weight_nbytes == 0
    seen = []
    for steps, batch in ((5, 2), (4, 3), (1, 1), (9, 1), (5, 2)):
        x = np.random.default_rng(steps).standard_normal((steps, batch, 3)).astype("f")
        assert_close(run_program(program, {"x": x}), on_cpu(reshaped(model, x.shape), {"x": x}))
        seen.append((program.planned, program.weight_nbytes))
    assert seen[-1][0] > 1, "this test wants more than one plan"
    assert len({nbytes for _, nbytes in seen}) == 1
    packed = program.context.prologue.buffers(program.plans[-1])
    assert [p.kind for p in packed] == [Kind.PREPARED]
    assert program.weight_nbytes == program.context.prologue.nbytes + sum(
        program.weight(n).nbytes for n in ("w", "r", "b")
    )


def reshaped(model: onnx.ModelProto, shape: tuple[int, ...]) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for dim, size in zip(changed.graph.input[0].type.tensor_type.shape.dim, shape, strict=True):
        dim.dim_value = size
    return changed


def test_what_no_plan_reads_any_more_is_freed(programs: Any) -> None:
    model, feeds = layer("LSTM")
    program = programs(model)
    run_program(program, feeds)
    assert program.context.prologue.nbytes > 0
    program.context.prologue.keep(())
    assert program.context.prologue.nbytes == 0
    assert_close(run_program(programs(model), feeds), on_cpu(model, feeds))


def completed_with(bound: BoundNode, reports: bool = False, **facts: Any) -> Lowering:
    """A row that packs input 1, copies input 0 and the packed one, and adds something to `sums` after a first kernel
    has written it, as `completed` leaves it. reports: of the kernel that makes `copy`. facts: of its Lowering."""
    x, w = bound.input(0).type, bound.input(1).type
    consts = {"M": w.shape[1], "PADDED": w.shape[0], "CHANNELS": w.shape[0], "TAPS": 1, "FILTERS": w.shape[1]}
    strides = {"W_M": 1, "W_CHANNEL": w.shape[1], "W_TAP": 0}
    kernels = (
        kernel("pack_rows.wgsl", [w], consts=consts | strides, reads={"w": 1}, writes={"y": "packed"}),
        kernel("strided.wgsl", [w], reads={"x": "packed"}, writes={"y": "sums"}),
        kernel("strided.wgsl", [w], reads={"x": "packed"}, writes={"y": "copy"}, reports=reports),
        kernel("strided.wgsl", [w], reads={"x": 0}, writes={"y": "sums"}),
        kernel("strided.wgsl", [x], reads={"x": "sums"}, writes={"y": 0}),
    )
    built = Lowering((x,), kernels, tuple((name, w) for name in ("packed", "sums", "copy")), **facts)
    return completed(replace(OPS["", "MatMul"], build=lambda node: built), bound)


def matrices(constant: bool = True, keeps_dense: bool = False) -> BoundNode:
    operands = Operand("x", TensorType(FLOAT32, (4, 8))), Operand("w", TensorType(FLOAT32, (4, 8)), constant=constant)
    limits = replace(DEFAULT_LIMITS, keeps_dense=keeps_dense)
    return BoundNode(Node("MatMul", ("x", "w"), ("y",)), operands, target=Target(limits))


def test_what_follows_from_constants_alone_is_made_once() -> None:
    """But not what another kernel writes in every run, too, nor what tells of an index out of range."""
    assert completed_with(matrices()).once == ("packed", "copy")
    assert completed_with(matrices(), reports=True).once == ("packed",)
    assert completed_with(matrices(constant=False)).once == ()
    assert completed_with(matrices(), kept=("packed",)).once == ()
    assert completed_with(matrices(), stored=(("packed", 0),)).once == ()


def test_a_dense_copy_is_made_once_where_it_may_stay() -> None:
    assert completed_with(matrices(), dense=("copy",)).once == ("packed",)
    assert completed_with(matrices(keeps_dense=True), dense=("copy",)).once == ("packed", "copy")


def test_what_packs_a_weight_says_how_it_is_restored() -> None:
    ((at, inverse),) = completed_with(matrices()).inverses
    assert (at, inverse.shader, inverse.reads) == (1, "unpack_rows.wgsl", (("packed", "packed"),))
    assert inverse.outputs == (TensorType(FLOAT32, (4, 8)),)
    assert completed_with(matrices(constant=False)).inverses == ()


def broken(plan: Plan, **changes: Any) -> str:
    return "\n".join(violations(replace(plan, **changes)))


def test_a_prologue_is_checked_by_rules() -> None:
    plan = plan_of(*layer("LSTM"))
    (once,) = plan.prologue
    assert violations(plan) == []
    assert "reads prepared:" in broken(plan, prologue=())
    assert "before anything wrote it" in broken(plan, prologue=())
    assert "not among the weights" in broken(plan, weights=("w",))
    assert "once more" in broken(plan, prologue=(once, once))

    def with_place(written: bool, place: Place) -> tuple[Dispatch, ...]:
        return (
            replace(once, tensors=tuple(replace(t, place=place) if t.written == written else t for t in once.tensors)),
        )

    assert "reads input:0" in broken(plan, prologue=with_place(False, Place(Kind.INPUT, 0)))
    assert "writes slot:0" in broken(plan, prologue=with_place(True, Place(Kind.SLOT, 0)))
    last = plan.steps[-1]
    assert isinstance(last, Dispatch)
    prepared = once.tensors[-1].place
    stolen = replace(last, tensors=tuple(replace(t, place=prepared) if t.written else t for t in last.tensors))
    assert "writes prepared:" in broken(plan, steps=(*plan.steps[:-1], stolen))
    with pytest.raises(InternalError, match="illegal plan"):
        check(replace(plan, prologue=()))
