"""Inputs that all their readers round to float16 go to the device so: the results keep every bit. Matrix units are
emulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu, copying, staging
from ort_gpu_ep.device.scratch import run_wgsl
from ort_gpu_ep.health.probes.matrix_units import in_tile
from ort_gpu_ep.ir.graph import Graph, Node, Step, Value
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, DType, TensorType, dtype_of
from ort_gpu_ep.kernels.target import SUBGROUP_MATRIX
from ort_gpu_ep.plugin import local
from ort_gpu_ep.runtime import context
from ort_gpu_ep.runtime.better_plans import ForFixedSizes
from ort_gpu_ep.runtime.joined_runs import Contention, RunGroup, Together
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.kept import from_data, to_data
from ort_gpu_ep.scheduler.plan import Dispatch, Plan
from ort_gpu_ep.scheduler.verify import violations
from ort_gpu_ep.webgpu.library import ffi
from tests.device.test_rounding import assert_numpys, neighbours
from tests.ops.matrix_emulation import Emulated, emulation
from tests.ops.test_matrix_units import QUICK
from tests.patience import PATIENCE_S
from tests.session.conftest import gpu_session
from tests.session.test_coalescing import steady_of
from tests.session.test_direct import WARM
from tests.session.test_unit_plans import Compiler, compiler, drawn, on_units, opened
from tests.session.test_unit_plans import model_of as unit_model
from tests.unit.graphs import model_of

__all__ = ["compiler"]  # a fixture

Array = np.ndarray[Any, Any]

SPECIAL = np.array(
    [65503.9, 65519.9, 65520.0, -7e4, 1e30, np.inf, -np.inf, np.nan, 1e-5, 6e-8, 3e-8, -2.9e-8, 1e-40, -0.0, 0.1, 1.0],
    np.float32,
)


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    """All inputs count as large."""
    monkeypatch.setattr(staging, "large_nbytes", lambda gpu, nbytes: nbytes)
    with emulation() as made, in_tile(QUICK):
        monkeypatch.setattr(local, "composer", lambda *_: made._composed)
        yield made


def constant(array: Array) -> Any:
    return lambda: array


def graph_of(
    nodes: Sequence[Node], inputs: Mapping[str, Array], constants: Mapping[str, Array], outputs: Sequence[str] = ("y",)
) -> Graph:
    values = {n: Value(n, dtype_of(a), a.shape) for n, a in inputs.items()} | {n: Value(n, FLOAT32) for n in outputs}
    values |= {n: Value(n, dtype_of(a), a.shape, constant(a)) for n, a in constants.items()}
    return Graph("g", tuple(inputs), tuple(outputs), tuple(nodes), values)


def stem(rng: np.random.Generator) -> tuple[Graph, list[Array]]:
    """A convolution of images in planes, as networks begin."""
    x = rng.standard_normal((2, 3, 15, 13), np.float32)
    node = Node(
        "Conv", ("x", "w"), ("y",), version=11, attributes={"pads": (2, 2, 2, 2), "strides": (2, 2)}, channels_last=True
    )
    return graph_of([node], {"x": x}, {"w": rng.standard_normal((20, 3, 5, 5), np.float32)}), [x]


def products(rng: np.random.Generator, n: int) -> tuple[Graph, list[Array]]:
    """Two products of one input, read by eight or by four, and another input that stays as it is: a sum reads it."""
    x, added = rng.standard_normal((40, n), np.float32), rng.standard_normal((40, 36), np.float32)
    step = Step("Add", "x + y", ("v", "e0"), FLOAT32)
    first = Node("MatMul", ("x", "w"), ("y",), version=13, operands=("added",), epilogue=(step,))
    second = Node("MatMul", ("x", "v"), ("z",), version=13, id=1)
    weights = {"w": rng.standard_normal((n, 36), np.float32), "v": rng.standard_normal((n, 64), np.float32)}
    return graph_of([first, second], {"x": x, "added": added}, weights, ("y", "z")), [x, added]


CASES = {"stem": stem, "by eight": lambda rng: products(rng, 48), "by four": lambda rng: products(rng, 44)}


def program_of(trial: Emulated, graph: Graph, precision: str = "f16acc") -> Program:
    return Program(graph, Config(precision=precision, weights="packed"), trial.gpu, composer=trial._composed)


def types_of(arrays: Sequence[Array]) -> list[TensorType]:
    return [TensorType(dtype_of(a), a.shape) for a in arrays]


def answers(program: Program, arrays: Sequence[Array]) -> list[Array]:
    """By a run of its own memory."""
    program.prepare(types_of(arrays))
    steady = program.steady(types_of(arrays))
    assert steady is not None
    got = [np.full(t.shape, 7, t.dtype.numpy) for t in steady.filled.outputs]
    assert steady.run([ffi.from_buffer(a) for a in arrays], [ffi.from_buffer(a) for a in got])
    return got


def sent(program: Program, arrays: Sequence[Array]) -> tuple[list[Array], int]:
    """What a run gives, and the bytes that went to the device for it."""
    answers(program, arrays)
    before = program.gpu.stats.uploaded_nbytes
    return answers(program, arrays), program.gpu.stats.uploaded_nbytes - before


def both_ways(
    trial: Emulated, graph: Graph, arrays: Sequence[Array], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int]:
    """The bytes sent, rounded and not; the answers are the same, bit for bit."""
    found = []
    for fast in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(copying, "rounds_fast", lambda fast=fast: fast)
            program = program_of(trial, graph)
            try:
                found.append(sent(program, arrays))
            finally:
                program.close()
    for got, want in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    return found[0][1], found[1][1]


@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same_of_half_the_bytes(case: str, trial: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, arrays = CASES[case](np.random.default_rng())
    rest = sum(a.nbytes for a in arrays[1:])
    assert both_ways(trial, graph, arrays, monkeypatch) == (arrays[0].nbytes // 2 + rest, arrays[0].nbytes + rest)


@pytest.mark.parametrize("case", CASES)
def test_numbers_that_float16_has_not(case: str, trial: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its range, infinite, NaN, and below its normal numbers, each where it can be seen in the results."""
    graph, arrays = CASES[case](np.random.default_rng())
    flat = arrays[0].reshape(-1)
    flat[:] = 0
    spread = np.linspace(0, flat.size - 1, 3 * SPECIAL.size).astype(int)
    flat[spread] = np.tile(SPECIAL, 3)
    with np.errstate(all="ignore"):
        both_ways(trial, graph, arrays, monkeypatch)


def test_the_adapter_rounds_as_the_host_does() -> None:
    """What a kernel on matrix units does to an operand, for each float16, half way between them and beside; NaN stays
    NaN."""
    source = """@group(0) @binding(0) var<storage> x: array<vec2<f32>>;
        @group(0) @binding(1) var<storage, read_write> y: array<u32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if (id.x < arrayLength(&x)) { y[id.x] = pack2x16float(x[id.x]); }
        }"""
    x = np.resize(neighbours(), 2 * -(-neighbours().size // 2))
    got = run_wgsl(Gpu.open(Config()), "rounding", source, [x], np.zeros(x.size // 2, np.uint32), -(-x.size // 128))
    assert_numpys(got.view(np.float16), x)


def test_run_after_run_with_other_values(trial: Emulated) -> None:
    rng = np.random.default_rng()
    graph, arrays = stem(rng)
    program = program_of(trial, graph)
    try:
        for _ in range(3):
            x = rng.standard_normal(arrays[0].shape, np.float32)
            (want,) = trial._run(program, [x])  # as what is on the device already is read: in float32
            (got,) = answers(program, [x])
            np.testing.assert_array_equal(got, want)
    finally:
        program.close()


@pytest.mark.usefixtures("no_mapped_memory")
def test_without_mapped_memory_the_queue_writes_what_was_rounded(
    trial: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, arrays = stem(np.random.default_rng())
    assert both_ways(trial, graph, arrays, monkeypatch) == (arrays[0].nbytes // 2, arrays[0].nbytes)


def test_runs_of_several_threads_together(trial: Emulated) -> None:
    rng = np.random.default_rng()
    graph, arrays = products(rng, 48)
    program = program_of(trial, graph)
    try:
        wants = []
        for _ in range(2):
            arrays = [rng.standard_normal(a.shape, np.float32) for a in arrays]
            wants.append((arrays, answers(program, arrays)))
        steady = program.steady(types_of(arrays))
        assert steady is not None
        contention = Contention(steady.prepared, steady.filled, False)
        Together(contention, steady.prepared, steady.filled).make()
        together = contention.coalescer
        assert together is not None
        group: RunGroup = together.free[-1]
        runs = [together.join(), together.join()]
        for own, (given, _) in zip(runs, wants, strict=True):
            assert own is not None
            own.ends.upload([ffi.from_buffer(a) for a in given])
        with program.lock:
            group.submit()
        trial.gpu.finish()
        for own, (_, want) in zip(runs, wants, strict=True):
            assert own is not None
            for tensor, expected in zip(own.ends.outputs, want, strict=True):
                got = np.zeros_like(expected)
                trial.gpu.download(tensor.buffer, 0, got.ctypes.data, got.nbytes)
                np.testing.assert_array_equal(got, expected)
            assert own.ends.inputs[0].type.dtype is FLOAT16
        together.close()
    finally:
        program.close()


def plan_of(trial: Emulated, graph: Graph, arrays: Sequence[Array], precision: str = "f16acc") -> Plan:
    program = program_of(trial, graph, precision)
    try:
        return program.plan(types_of(arrays))
    finally:
        program.close()


def plus(node: Node, name: str) -> Node:
    """The node with the value added to its result."""
    return replace(node, operands=(name,), epilogue=(Step("Add", "x + y", ("v", "e0"), FLOAT32),))


def test_one_reader_in_float32_keeps_it_whole(trial: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of the same dispatch, a dispatch of its own, and the caller who gets it back."""
    x, w = np.random.default_rng().standard_normal((2, 48, 48), np.float32)
    product = Node("MatMul", ("x", "w"), ("y",), version=13)
    other = Node("Tanh", ("x",), ("z",), version=13, id=1)
    for nodes, outputs in (([plus(product, "x")], ("y",)), ([product, other], ("y", "z")), ([product], ("y", "x"))):
        graph = graph_of(nodes, {"x": x}, {"w": w}, outputs)
        assert not plan_of(trial, graph, [x]).halved
        assert both_ways(trial, graph, [x], monkeypatch) == (x.nbytes, x.nbytes)


@pytest.mark.parametrize(("precision", "dtype"), [("tf32", FLOAT32), ("float32", FLOAT32), ("f16acc", FLOAT16)])
def test_what_is_not_rounded_to_float16_anyway(precision: str, dtype: DType, trial: Emulated) -> None:
    """tf32 multiplies by a power of two first; what comes in float16 is copied as it is."""
    x, w = np.random.default_rng().standard_normal((2, 48, 48)).astype(dtype.numpy)
    graph = graph_of([Node("MatMul", ("x", "w"), ("y",), version=13)], {"x": x}, {"w": w})
    graph.values["y"] = Value("y", dtype)  # type: ignore[index]
    program = program_of(trial, graph, precision)
    try:
        got, nbytes = sent(program, [x])
        assert nbytes == x.nbytes
        np.testing.assert_allclose(got[0], x.astype(np.float64) @ w.astype(np.float64), rtol=0.02, atol=0.1)
    finally:
        program.close()


def test_small_inputs_are_left_as_they_are(trial: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled for what will not be used."""
    monkeypatch.setattr(staging, "large_nbytes", lambda gpu, nbytes: 0)
    graph, arrays = stem(np.random.default_rng())
    program = program_of(trial, graph)
    try:
        assert sent(program, arrays)[1] == arrays[0].nbytes
        assert program.plans[0].halved
        assert len(program.context.steps(program.plans[0])) == len(program.plans[0].steps)
    finally:
        program.close()


def test_sizes_that_only_a_run_knows(trial: Emulated) -> None:
    rng = np.random.default_rng()
    graph, arrays = products(rng, 48)
    values = dict(graph.values) | {n: Value(n, FLOAT32, (None, *graph.values[n].shape[1:])) for n in graph.inputs}  # type: ignore[misc]
    program = program_of(trial, replace(graph, values=values))
    try:
        for rows in (40, 70, 33):
            given = [np.ascontiguousarray(np.resize(a, (rows, a.shape[1]))) for a in arrays]
            want = trial._run(program, given)
            got, nbytes = sent(program, given)
            assert nbytes == given[0].nbytes // 2 + given[1].nbytes
            for a, b in zip(got, want, strict=True):
                np.testing.assert_array_equal(a, b)
        assert program.planned == 1
    finally:
        program.close()


@pytest.mark.parametrize("case", CASES)
def test_the_plan_is_legal_and_comes_back_from_a_file(case: str, trial: Emulated) -> None:
    graph, arrays = CASES[case](np.random.default_rng())
    program = program_of(trial, graph)
    try:
        template = program.context.template(tuple(types_of(arrays)))
        plan = template.plan
        assert plan.halved_inputs == {0}
        assert not violations(plan, trial.gpu.limits)
        assert from_data(to_data(template), types_of(arrays), program.context.limits, {}).plan == plan
    finally:
        program.close()


def test_what_is_no_legal_pair_of_steps(trial: Emulated) -> None:
    graph, arrays = products(np.random.default_rng(), 48)
    plan = plan_of(trial, graph, arrays)
    (k, step), other = plan.halved
    narrow = {t.name: t for t in step.tensors}
    wide = tuple(replace(t, type=TensorType(FLOAT32, t.type.shape)) if t.name == "x" else t for t in step.tensors)
    elsewhere = tuple(replace(t, type=TensorType(FLOAT16, t.type.shape)) if t.name == "w" else t for t in step.tensors)
    assert narrow["x"].type.dtype is FLOAT16
    for changed, said in (
        ((other,), "reads in float32 what other steps may read in float16"),
        (((k, replace(step, tensors=wide)), other), "reads one of them in another type"),
        (((k, replace(step, tensors=elsewhere)), other), "binds or writes something else"),
        (((k, step), (9, step)), "binds or writes something else"),
    ):
        assert any(said in problem for problem in violations(replace(plan, halved=changed))), said
    assert all(isinstance(own, Dispatch) for own in plan.steps)


def test_a_session_says_what_it_sent(trial: Emulated) -> None:
    """Whole runs through onnxruntime's class: bytes that are counted, and the same results whichever way an input
    comes."""
    rng = np.random.default_rng()
    text = "(float[64, 48] x) => (float[64, 32] y) { h = MatMul(x, w) y = Relu(h) }"
    model = model_of(text, {"w": rng.standard_normal((48, 32)).astype("f")}).SerializeToString()
    x = rng.standard_normal((64, 48)).astype("f")
    session = gpu_session(model, precision="f16acc", strict="1", unit_plans="wait")
    (want,) = session.run(None, {"x": x})
    for _ in range(WARM):
        (got,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(got, want)
    stats, counted = session.state.gpu.stats, session.stats()
    before = stats.uploaded_nbytes, counted["host_to_device_nbytes"]
    (got,) = session.run(None, {"x": x})
    assert (stats.uploaded_nbytes - before[0], session.stats()["host_to_device_nbytes"] - before[1]) == (
        x.nbytes // 2,
        x.nbytes // 2,
    )
    steps = steady_of(session).prepared.last_plan().steps
    assert {t.type.dtype for step in steps for t in step.tensors if str(t.place) == "input:0"} == {FLOAT16}, (
        "what a profile shows"
    )
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x, "gpu"))
    binding.bind_output("y", "gpu")
    for _ in range(2):
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), want)
    wide = np.asfortranarray(x)
    np.testing.assert_array_equal(session.run(None, {"x": wide})[0], want)
    assert session.stats()["fallbacks"] == 0


def test_a_plan_made_for_sizes_that_come_often(trial: Emulated) -> None:
    """It has both forms of the steps, warmed up, before a run has it."""
    graph, arrays = products(np.random.default_rng(), 48)
    values = dict(graph.values) | {n: Value(n, FLOAT32, (None, *graph.values[n].shape[1:])) for n in graph.inputs}  # type: ignore[misc]
    program = program_of(trial, replace(graph, values=values))
    try:
        want, general = answers(program, arrays), program.compiled.general[0]
        key = next(iter(program.compiled.found))
        ForFixedSizes(program.better, key).make()
        compiled = trial.gpu.compiled
        got, nbytes = sent(program, arrays)
        steady = program.steady(types_of(arrays))
        assert steady is not None
        assert steady.prepared.is_specialized
        assert steady.prepared is not general
        assert (nbytes, trial.gpu.compiled) == (arrays[0].nbytes // 2 + arrays[1].nbytes, compiled)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
    finally:
        program.close()


def test_no_run_waits_for_the_other_form(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled with the plan on matrix units, beside the first runs."""
    monkeypatch.setattr(staging, "large_nbytes", lambda gpu, nbytes: nbytes)
    feeds, beside = drawn(), set[DType]()

    def pipeline(gpu: Gpu, step: Dispatch, *arguments: Any) -> Any:
        beside.update(t.type.dtype for t in step.tensors if t.name == "x" and SUBGROUP_MATRIX in step.kernel.features)
        return compiler.pipeline(gpu, step, *arguments)

    monkeypatch.setattr(context, "pipeline", pipeline)
    session = opened(unit_model(), precision="f16acc")
    session.run(None, feeds)
    compiler.may.set()
    assert session.wait_ready(PATIENCE_S)
    assert beside == {FLOAT32, FLOAT16}
    gpu = session.state.gpu
    compiled = gpu.compiled
    for _ in range(WARM):
        session.run(None, feeds)
    before = gpu.stats.uploaded_nbytes
    session.run(None, feeds)
    assert on_units(session)
    assert (gpu.stats.uploaded_nbytes - before, gpu.compiled) == (feeds["x"].nbytes // 2, compiled)
