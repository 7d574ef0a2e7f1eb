"""Kernels on matrix units that take long to compile are compiled beside the runs. The units are emulated
(matrix_emulation.py)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep.device import pipelines
from ort_gpu_ep.errors import OutOfDeviceMemoryError, ShaderError
from ort_gpu_ep.kernels.registry import Bindings, Kernel, Limits
from ort_gpu_ep.kernels.target import SUBGROUP_MATRIX
from ort_gpu_ep.ops import matrix_units
from ort_gpu_ep.ops.matrix_units import UnitTile
from ort_gpu_ep.plugin import local
from ort_gpu_ep.plugin.compute import Run
from ort_gpu_ep.runtime import better_plans, context, prepared
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.session.bound_runs import Runs
from ort_gpu_ep.shaders import compose
from tests.ops.matrix_emulation import emulated, emulation
from tests.patience import PATIENCE_S
from tests.session.conftest import gpu_session, on_the_cpu

QUICK = UnitTile("quick", 32, 32, 32, 2, 2, 1.0)
"""One fragment a subgroup: software compiles it ten times as fast."""

ROWS, K, COLUMNS = 64, 96, 64


class Compiler:
    """Of the sessions of a test. may: kernels on units compile from now on. begun: one has begun. why: they fail with
    this then."""

    def __init__(self) -> None:
        self.may, self.begun, self.why = threading.Event(), threading.Event(), ""

    def __call__(self, kernel: Kernel, bindings: Bindings, limits: Limits) -> str:
        return emulated(compose(kernel, bindings, limits))

    def pipeline(self, gpu: Any, step: Dispatch, *arguments: Any) -> Any:
        if SUBGROUP_MATRIX in step.kernel.features:
            self.begun.set()
            assert self.may.wait(PATIENCE_S)
            if self.why:
                raise ShaderError(self.why)
        return pipelines.pipeline(gpu, step, *arguments)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    made = Compiler()
    monkeypatch.setattr(local, "composer", lambda *_: made)
    monkeypatch.setattr(context, "pipeline", made.pipeline)
    monkeypatch.setattr(better_plans, "PATIENCE_S", 0.01)
    monkeypatch.setattr(matrix_units, "TILES", (QUICK,))
    monkeypatch.setattr(matrix_units, "estimate_ns", lambda *_: 1.0)
    with emulation():
        yield made
        made.may.set()


def model_of(rows: int | str = ROWS) -> bytes:
    rng = np.random.default_rng(7)
    w = numpy_helper.from_array(rng.standard_normal((K, COLUMNS)).astype("f"), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, K])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, COLUMNS])],
        [w],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def opened(model: bytes, **options: str) -> Any:
    return gpu_session(model, **{"precision": "tf32", "strict": "1", **options})


def drawn(rows: int = ROWS) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng().standard_normal((rows, K)).astype("f")}


def program_of(session: Any) -> Any:
    return session.state.partitions[0].program


def on_units(session: Any) -> bool:
    return "on matrix units: 1 product" in str(session.explain())


def off_by(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def assert_float32(got: np.ndarray, want: np.ndarray) -> None:
    assert off_by(got, want) < 1e-5


def assert_rounded(got: np.ndarray, want: np.ndarray) -> None:
    assert 5e-5 < off_by(got, want) < 1e-3


@pytest.mark.parametrize("rows", [ROWS, "N"])
def test_first_runs_go_without_and_later_ones_by_units(compiler: Compiler, rows: int | str) -> None:
    model, feeds = model_of(rows), drawn()
    session, want = opened(model), on_the_cpu(model, feeds)[0]
    for _ in range(3):
        assert_float32(session.run(None, feeds)[0], want)
    assert not session.ready()
    assert not session.wait_ready(0.01)
    assert "being compiled beside the runs" in str(session.explain())
    assert not on_units(session)
    program = program_of(session)
    (first,) = program.compiled.general
    compiler.may.set()
    assert session.wait_ready(PATIENCE_S)
    for _ in range(3):
        assert_rounded(session.run(None, feeds)[0], want)
    assert session.ready()
    assert on_units(session)
    shown = session.explain()
    assert "were compiled beside the first runs in" in str(shown)
    assert [item["pending"] for item in shown.as_dict()["unit_plans"]] == [False]
    assert not shown.events
    assert first.closed
    assert len(program.compiled.general) == 1, "the plan without is gone"


def test_nothing_of_the_first_plan_stays_on_the_device(compiler: Compiler) -> None:
    model, feeds = model_of(), drawn()
    session = opened(model)
    session.run(None, feeds)
    compiler.may.set()
    assert session.wait_ready(PATIENCE_S)
    session.run(None, feeds)
    waited = opened(model, unit_plans="wait")
    waited.run(None, feeds)
    held = [s.explain().device_memory.session for s in (session, waited)]
    assert held[0] == held[1]
    assert program_of(session).weight_nbytes == program_of(waited).weight_nbytes


def test_wait_waits(compiler: Compiler) -> None:
    compiler.may.set()
    model, feeds = model_of(), drawn()
    session = opened(model, unit_plans="wait")
    assert_rounded(session.run(None, feeds)[0], on_the_cpu(model, feeds)[0])
    assert not session.explain().unit_plans
    assert program_of(session).planned == 1


def test_a_second_session_finds_them(compiler: Compiler) -> None:
    model, feeds = model_of(), drawn()
    session = opened(model)
    compiler.may.set()
    assert session.wait_ready(PATIENCE_S)
    better_plans.PATIENCE_S = PATIENCE_S  # the fixture's monkeypatch brings it back
    again = opened(model)
    assert_rounded(again.run(None, feeds)[0], on_the_cpu(model, feeds)[0])
    assert not again.explain().unit_plans


def test_what_fails_leaves_the_plan_without(compiler: Compiler) -> None:
    compiler.why = "no units today\n  1 fn main"
    model, feeds = model_of("N"), drawn()
    session, want = opened(model), on_the_cpu(model, feeds)[0]
    session.run(None, feeds)
    compiler.may.set()
    assert session.wait_ready(PATIENCE_S)
    assert_float32(session.run(None, feeds)[0], want)
    (event,) = session.explain().events
    assert event.endswith("no matrix units are used: ShaderError: no units today")
    other = drawn(200)
    assert_float32(session.run(None, other)[0], on_the_cpu(model, other)[0])
    assert session.ready(), "not tried again"
    assert session.stats()["fallbacks"] == 0


def test_it_is_warmed_up_before_a_run_has_it(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its steps, while runs still go by the plan without."""
    model, warm = model_of("N"), list[tuple[int, bool]]()
    session = opened(model)
    session.run(None, drawn())
    (first,) = program_of(session).compiled.general
    warm_up = prepared.Prepared.warm_up

    def noted(self: Any, step: int, *arguments: Any) -> None:
        warm.append((step, first.closed))
        warm_up(self, step, *arguments)

    monkeypatch.setattr(prepared.Prepared, "warm_up", noted)
    compiler.may.set()
    assert session.wait_ready(PATIENCE_S)
    (there,) = program_of(session).compiled.general
    assert warm == [(step, False) for step in range(len(there.template.plan.steps))]
    assert first.closed
    assert there.is_warm
    feeds = drawn()
    assert_rounded(session.run(None, feeds)[0], on_the_cpu(model, feeds)[0])
    assert len(warm) == len(there.template.plan.steps), "no run warms it up again"


def test_what_has_no_room_beside_the_first_plan_takes_its_place(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, feeds = model_of(), drawn()
    session = opened(model)
    plans = program_of(session).compiled
    (first,) = plans.general
    add = plans.add

    def full(template: Any) -> Any:
        if not first.closed:
            raise OutOfDeviceMemoryError("both")
        return add(template)

    monkeypatch.setattr(plans, "add", full)
    compiler.may.set()
    assert session.wait_ready(PATIENCE_S)
    assert_rounded(session.run(None, feeds)[0], on_the_cpu(model, feeds)[0])


def test_what_has_no_room_at_all(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = model_of(), drawn()
    session = opened(model)
    plans = program_of(session).compiled

    def full(template: Any) -> Any:
        raise OutOfDeviceMemoryError("never")

    with monkeypatch.context() as short:
        short.setattr(plans, "add", full)
        compiler.may.set()
        assert session.wait_ready(PATIENCE_S)
    assert "OutOfDeviceMemoryError: never" in session.explain().events[0]
    assert_float32(session.run(None, feeds)[0], on_the_cpu(model, feeds)[0])


def test_closing_meanwhile(compiler: Compiler) -> None:
    session = opened(model_of())
    program, waiting = program_of(session), list[bool]()
    waiter = threading.Thread(target=lambda: waiting.append(program.wait_plans(PATIENCE_S)))
    waiter.start()
    program.close()
    compiler.may.set()
    waiter.join(PATIENCE_S)
    assert waiting == [True]
    assert not program.compiled.general
    assert not program.unit_plans


def test_a_device_lost_meanwhile(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(model_of())
    with monkeypatch.context() as lost:
        lost.setattr(session.state.gpu, "lost", "for a test")
        compiler.may.set()
        assert program_of(session).wait_plans(PATIENCE_S)
    assert not program_of(session).unit_plans
    assert not session.explain().events


def test_threads_that_run_meanwhile(compiler: Compiler) -> None:
    model, feeds = model_of(), drawn()
    session, want = opened(model), on_the_cpu(model, feeds)[0]
    end, errors, counts = threading.Event(), list[BaseException](), [0] * 4

    def runs(which: int) -> None:
        try:
            while not end.is_set():
                assert off_by(session.run(None, feeds)[0], want) < 1e-3
                counts[which] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=runs, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    while not all(count > 2 for count in counts) and not errors:
        end.wait(0.01)
    compiler.may.set()
    assert session.wait_ready(PATIENCE_S)
    before = list(counts)
    while not all(count > old + 2 for count, old in zip(counts, before, strict=True)) and not errors:
        end.wait(0.01)
    end.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not errors
    assert_rounded(session.run(None, feeds)[0], want)
    assert session.stats()["fallbacks"] == 0


def bound_to(session: Any, x: np.ndarray) -> tuple[Runs, Any]:
    """Runs with a value on the device as input and one as output, and that."""
    y = onnxruntime.OrtValue.ortvalue_from_shape_and_type((len(x), COLUMNS), np.float32, "gpu")
    values = {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x, "gpu")}, {"y": y}
    return Runs(session, [values, values]), y


@pytest.mark.parametrize("rows", [ROWS, "N"])
def test_runs_of_bound_values(compiler: Compiler, rows: int | str) -> None:
    model, feeds = model_of(rows), drawn()
    session, want = opened(model), on_the_cpu(model, feeds)[0]
    bound, y = bound_to(session, feeds["x"])
    for place in (0, 1, 0, 1):
        bound.run(place)
        assert_float32(y.numpy(), want)
    (first,) = program_of(session).compiled.general
    compiler.may.set()
    assert session.wait_ready(PATIENCE_S)
    assert first.closed
    for place in (0, 1, 0, 1):
        bound.run(place)
        assert_rounded(y.numpy(), want)
    assert session.stats()["fallbacks"] == 0


@pytest.mark.parametrize("holds", [True, False])
def test_the_plan_of_bound_values_goes_when_their_run_begins(
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    holds: bool,
) -> None:
    """holds: the new plan, for the sizes that are bound."""
    model, feeds = model_of("N"), drawn()
    session, want = opened(model), on_the_cpu(model, feeds)[0]
    bound, y = bound_to(session, feeds["x"])
    for place in (0, 1, 0, 1):
        bound.run(place)
    run, switched = Program.run_bound, list[bool]()

    def switch_and_run(*arguments: Any) -> Any:
        if not switched:
            switched.append(True)
            compiler.may.set()
            assert session.wait_ready(PATIENCE_S)
            if not holds:
                with program_of(session).lock:
                    program_of(session).compiled.found.clear()
        return run(*arguments)

    monkeypatch.setattr(Program, "run_bound", switch_and_run)
    for place in (0, 1, 0, 1):
        bound.run(place)
        assert_rounded(y.numpy(), want)
    assert switched
    assert session.stats()["fallbacks"] == 0


def test_an_io_binding(compiler: Compiler) -> None:
    model, feeds = model_of(), drawn()
    session, want = opened(model), on_the_cpu(model, feeds)[0]
    binding, y = (
        session.io_binding(),
        onnxruntime.OrtValue.ortvalue_from_shape_and_type((ROWS, COLUMNS), np.float32, "gpu"),
    )
    binding.bind_cpu_input("x", feeds["x"])
    binding.bind_ortvalue_output("y", y)
    for check in (assert_float32, assert_rounded):
        for _ in range(3):
            session.run_with_iobinding(binding)
            check(y.numpy(), want)
        compiler.may.set()
        assert session.wait_ready(PATIENCE_S)


def test_the_process_ends_meanwhile() -> None:
    """Not before what is being compiled, and with no more than that."""
    script = """
import time
from ort_gpu_ep.device import background, pipelines
from ort_gpu_ep.runtime import better_plans, context
from ort_gpu_ep.kernels.target import SUBGROUP_MATRIX
from ort_gpu_ep.ops import matrix_units
from ort_gpu_ep.plugin import local
from tests.ops.matrix_emulation import emulation
from tests.session import test_unit_plans as its

compiler = its.Compiler()

def pipeline(gpu, step, *arguments):
    while SUBGROUP_MATRIX in step.kernel.features and not background.ending():
        time.sleep(0.01)
    return compiler.pipeline(gpu, step, *arguments)

compiler.may.set()
local.composer, context.pipeline, better_plans.PATIENCE_S = (lambda *_: compiler), pipeline, 0.01
matrix_units.TILES, matrix_units.estimate_ns = (its.QUICK,), lambda *_: 1.0
held = emulation()
held.__enter__()
session = its.opened(its.model_of())
session.run(None, its.drawn())
print(session.ready(), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_verify_compares_the_first_run_after_it(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[int]()
    monkeypatch.setattr(Run, "_verify", lambda run: compared.append(1))
    session, feeds = gpu_session(model_of(), verify="1000", precision="tf32"), drawn()
    session.run(None, feeds)
    session.run(None, feeds)
    assert len(compared) == 1
    compiler.may.set()
    assert session.wait_ready(PATIENCE_S)
    session.run(None, feeds)
    assert len(compared) == 2


def test_profile_and_tune_wait(compiler: Compiler) -> None:
    session = opened(model_of())
    compiler.may.set()
    found = session.profile(drawn(), runs=3)
    assert any("matrix_product" in str(d) for d in found.dispatches)
