"""Products by a vector: each form of the kernel against numpy, around the edges of its workgroups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.ops.matvec import ROWS, SIDES
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import run_direct
from tests.ops.single_node import assert_agree, node_model, normal

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


@pytest.mark.parametrize("limits", [SUBGROUPS, Limits()], ids=["subgroups", "workgroup memory"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("count", "k"), [(1, 4), (9, 508), (77, 516), (1000, 1024), (4, 40_000)])
def test_rows(rows: int, limits: Limits, count: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not limits.features:
        monkeypatch.setattr(Limits, "allow", lambda self, shader, *features: not features)
    x, w, c = normal(1, k), normal(count, k, seed=1), normal(count, seed=2)
    with forced(f"rows {rows}"):
        (got,) = run_direct(*node_model("Gemm", [x, w, c], 13, (1,), transB=1, alpha=0.5, beta=2.0))
        assert_agree(got, (0.5 * x.astype(np.float64) @ w.T + 2 * c).astype("f"), 2e-6)
        a, b = normal(3, count, k, seed=3), normal(3, k, 1, seed=4)
        assert_agree(run_direct(*node_model("MatMul", [a, b], 13))[0], (a.astype(np.float64) @ b).astype("f"), 2e-6)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("count", "k"), [(4, 1), (36, 257), (1000, 1030), (1004, 129), (8, 20_001)])
def test_columns(count: int, k: int, side: int) -> None:
    x, w, c = normal(1, k), normal(k, count, seed=1), normal(count, seed=2)
    with forced(f"columns {side}"):
        (got,) = run_direct(*node_model("Gemm", [x, w, c], 13, (1,), alpha=0.5, beta=2.0))
        assert_agree(got, (0.5 * x.astype(np.float64) @ w + 2 * c).astype("f"), 2e-6)
        a, b = normal(3, 1, k, seed=3), normal(3, k, count, seed=4)
        assert_agree(run_direct(*node_model("MatMul", [a, b], 13))[0], (a.astype(np.float64) @ b).astype("f"), 2e-6)


def test_halves_take_the_kernel_for_any() -> None:
    x, w = normal(1, 64).astype(np.float16), normal(64, 32, seed=1).astype(np.float16)
    (got,) = run_direct(*node_model("MatMul", [x, w], 13))
    np.testing.assert_allclose(got, x.astype(np.float64) @ w.astype(np.float64), rtol=2e-3, atol=2e-3)
