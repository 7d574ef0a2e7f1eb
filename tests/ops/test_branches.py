"""Branches that share a barrier: dispatches that bind what others read, on a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler import Plan
from ort_gpu_ep.scheduler.plan import Dispatch
from tests.direct import opened, run_program
from tests.unit.graphs import model_of

BRANCHES = """(float[N, 16] x) => (float[N, 16] y) {
    a = Softmax(x) b = Softmax<axis=0>(x) c = Softmax(a) d = Softmax(b) e = Softmax<axis=0>(a) p = Softmax(c) q = Softmax(d) r = Softmax(e)
    s = MatMul(p, w) y = Sum(q, r, s) }"""


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    gpu = Gpu.open(Config())
    limits = gpu.limits
    yield gpu
    gpu.limits = limits


@pytest.fixture
def model(rng: np.random.Generator) -> onnx.ModelProto:
    return model_of(BRANCHES, {"w": rng.standard_normal((16, 16)).astype("f")})


def plan_of(program: Program, rows: int) -> Plan:
    return program.plan([TensorType(FLOAT32, (rows, 16))])


def checked(program: Program, model: onnx.ModelProto, rows: int, rng: np.random.Generator) -> None:
    """The plan shares barriers, and its results are right."""
    x = rng.standard_normal((rows, 16)).astype("f")
    (got,), (want,) = run_program(program, {"x": x}), ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    plan = plan_of(program, rows)
    assert any(isinstance(s, Dispatch) and s.awaited for s in plan.steps)
    assert len(plan.barriers) < plan.dispatches - 1


@pytest.mark.parametrize("every_size_open", [False, True])
def test_results_at_sizes_of_a_run(
    gpu: Gpu, model: onnx.ModelProto, rng: np.random.Generator, every_size_open: bool
) -> None:
    """Parameters of a run lie between what a shader names and what it only awaits; slots grow and are bound anew."""
    graph = from_onnx(model)
    program = Program(opened(graph) if every_size_open else graph, Config(), gpu)
    try:
        for rows in (5, 3, 900, 5):
            checked(program, model, rows, rng)
    finally:
        program.close()


def test_what_is_bound_in_parts_is_awaited_whole(gpu: Gpu, model: onnx.ModelProto, rng: np.random.Generator) -> None:
    gpu.limits = replace(gpu.limits, max_binding_nbytes=1024)
    program = Program(from_onnx(model), Config(), gpu)
    try:
        checked(program, model, 40, rng)
    finally:
        program.close()


def test_one_shader_with_and_without_what_it_awaits(gpu: Gpu, model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """Its pipelines differ: by how much they bind."""
    program = Program(from_onnx(model), Config(), gpu)
    try:
        checked(program, model, 7, rng)
        steps = [s for s in plan_of(program, 7).steps if isinstance(s, Dispatch)]
        kernels = {(s.kernel, len(s.awaited)) for s in steps}
        assert len({kernel for kernel, _ in kernels}) < len(kernels)
    finally:
        program.close()
