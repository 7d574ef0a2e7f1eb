"""Products by a vector: which kernel runs them, and what the table of problems (test_problems.py) lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.problems import Problem
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import run_direct
from tests.ops.single_node import node_model, normal
from tests.ops.test_problems import check, forms_of

SUBGROUPS = Limits(frozenset(("subgroup",)))


def shader_of(op: str, a: tuple[int, ...], b: tuple[int, ...], limits: Limits = SUBGROUPS, **attributes: Any) -> str:
    model, feeds = node_model(op, [np.empty(a, "f"), np.empty(b, "f")], 13, **attributes)
    plan = make_plan(from_onnx(model), {n: TensorType(FLOAT32, x.shape) for n, x in feeds.items()}, limits)
    return str(plan.steps[0].kernel.shader)  # type: ignore[union-attr]


def test_which_kernel() -> None:
    assert shader_of("Gemm", (1, 9216), (4096, 9216), transB=1) == "matvec_rows.wgsl"
    assert shader_of("Gemm", (1, 9216), (4096, 9216), Limits(), transB=1) == "matvec_rows.wgsl"
    assert shader_of("MatMul", (9216,), (9216, 4096)) == "matvec_columns.wgsl"
    assert shader_of("MatMul", (4096, 2048), (2048, 1)) == "matvec_rows.wgsl"
    assert shader_of("MatMul", (1, 2050), (2050, 1001)) == "matvec.wgsl"
    assert shader_of("Gemm", (1, 2050), (1001, 2050), transB=1) == "matvec.wgsl"
    assert (
        shader_of("Gemm", (1, 2048), (1000, 2048), Limits(disabled=(("matvec_rows.wgsl", "a probe failed"),)), transB=1)
        == "matvec.wgsl"
    )


@pytest.mark.parametrize(("problem", "form"), forms_of("matvec_rows.wgsl"))
def test_rows_without_subgroups(problem: Problem, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "allow", lambda self, shader, *features: not features)
    check(problem, form)


def test_halves_take_the_kernel_for_any() -> None:
    x, w = normal(1, 64).astype(np.float16), normal(64, 32, seed=1).astype(np.float16)
    (got,) = run_direct(*node_model("MatMul", [x, w], 13))
    np.testing.assert_allclose(got, x.astype(np.float64) @ w.astype(np.float64), rtol=2e-3, atol=2e-3)
