"""Dense constants that are mostly zeros: packed at load without loss, where the estimate says that it is faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import Nonzeros, count_nonzeros, from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES, Figures
from ort_gpu_ep.kernels.forms import best_ns, elsewhere, taken
from ort_gpu_ep.kernels.registry import Limits, Strided
from ort_gpu_ep.kernels.target import Target, Tuned
from ort_gpu_ep.ops import pruned
from ort_gpu_ep.ops.contraction import Matrix, Product, forms
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.plugin.explain import explanation
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from tests.compressed.test_compressed_sessions import TROUBLES, device_nbytes
from tests.compressed.test_packed_products import close
from tests.direct import PACKED, run_program
from tests.ops.single_node import on_cpu
from tests.plugin.cases import open_session

RNG = np.random.default_rng(21)
SLOW_MEMORY = replace(
    DEFAULT_FIGURES, rows_bytes_per_ns=1.0, columns_bytes_per_ns=1.0, matvec_bytes_per_ns=1.0, step_ns=1e6
)
"""Of an adapter where bytes are all that counts."""


def sparse_matrix(rows: int, columns: int, density: float) -> Any:
    found = RNG.standard_normal((rows, columns), np.float32)
    found[RNG.random((rows, columns), np.float32) >= density] = 0
    return found


def product(op: str, x: tuple[Any, ...], weight: Any, bias: bool = False, **attributes: Any) -> onnx.ModelProto:
    held = {
        "w": weight,
        **({"c": RNG.normal(size=weight.shape[0 if attributes.get("transB") else 1]).astype("f")} if bias else {}),
    }
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *held], ["p"], **attributes), helper.make_node("Relu", ["p"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, x)],
        [helper.make_tensor_value_info("y", 1, [None] * len(x))],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def steps_of(model: onnx.ModelProto, shape: tuple[int, ...], figures: Figures, tuned: Tuned | None = None) -> list[str]:
    plan = make_plan(
        from_onnx(model), {"x": TensorType(FLOAT32, shape)}, Limits(figures=figures, tuned=tuned or Tuned()), rewrite
    )
    return [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)]


@pytest.fixture
def bytes_count(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The adapter, whose figures say so."""
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, figures=replace(SLOW_MEMORY, sparse_halving_clocks=100.0)))
    return gpu


@pytest.mark.parametrize("density", [0.0, 0.01, 0.1, 0.2])
@pytest.mark.parametrize(
    ("op", "x", "shape", "bias", "attributes"),
    [
        ("MatMul", (1, 515), (515, 260), False, {}),
        ("MatMul", (3, 515), (515, 257), False, {}),
        ("MatMul", (600,), (600, 131), False, {}),
        ("Gemm", (2, 401), (300, 401), True, {"transB": 1, "alpha": 0.5, "beta": 2.0}),
        ("Gemm", (401, 4), (401, 300), False, {"transA": 1}),
        ("Gemm", (1, 1024), (256, 1024), True, {"transB": 1}),
    ],
)
def test_products_without_their_zeros(
    op: str,
    x: tuple[int, ...],
    shape: tuple[int, int],
    bias: bool,
    attributes: Any,
    density: float,
    bytes_count: Gpu,
) -> None:
    weight = sparse_matrix(*shape, density)
    model, feeds = product(op, x, weight, bias, **attributes), {"x": RNG.normal(size=x).astype("f")}
    program = Program(from_onnx(model), PACKED, bytes_count, rewrite)
    try:
        (got,) = run_program(program, feeds)
        close(got, on_cpu(model, feeds)[0])
        assert pruned.SHADER in [step.kernel.shader for step in program.plans[0].steps if isinstance(step, Dispatch)]
        width, rows = width_of(weight, bool(attributes.get("transB"))), shape[0 if attributes.get("transB") else 1]
        assert "w" in program.context.replaced  # no dense copy stays
        assert program.weight_nbytes <= 1.1 * 6 * width * rows + 4096  # buffers are a little larger
        restored = np.empty_like(weight)
        bytes_count.download(program.weight("w"), 0, restored.ctypes.data, restored.nbytes)
        np.testing.assert_array_equal(restored, weight)
    finally:
        program.close()


def test_what_is_no_number_is_kept(bytes_count: Gpu) -> None:
    weight = sparse_matrix(300, 400, 0.05)
    weight[7, 11], weight[9, 13], weight[11] = np.nan, np.inf, 0
    weight[11, 17] = 1e-41  # denormal
    program = Program(from_onnx(product("Gemm", (1, 400), weight, transB=1)), PACKED, bytes_count, rewrite)
    try:
        (got,) = run_program(program, {"x": np.ones((1, 400), "f")})
        assert got[0, 9] == np.inf
        restored = np.empty_like(weight)
        bytes_count.download(program.weight("w"), 0, restored.ctypes.data, restored.nbytes)
        np.testing.assert_array_equal(restored, weight)
    finally:
        program.close()


def chosen(vectors: int, n: int, k: int, width: int, dense_ns: float) -> str:
    given = pruned.PrunedProduct(vectors, n, k, width, (k, 1), (k, 1), None, 1.0, 1.0, Target())
    return taken(Target(), given.key, pruned.forms(given) | {"dense": elsewhere(dense_ns, "")}).form


def test_the_estimate_decides() -> None:
    """By an H200's figures; 44 us are what the dense matrix takes there."""
    assert chosen(1, 4096, 9216, 1000, 44e3) == "team 32"
    assert chosen(1, 4096, 9216, 2400, 44e3) == "dense"
    assert chosen(1, 256, 256, 30, best_ns(forms(matrix(1, 256, 256)))) == "dense"
    assert chosen(1, 1024, 8192, 900, best_ns(forms(matrix(1, 1024, 8192)))) == "team 32"
    assert chosen(4, 4096, 9216, 4, 44e3).startswith("team ")


def matrix(vectors: int, n: int, k: int) -> Product:
    start = Strided((1,), (0,))
    return Product(1, vectors, n, k, Matrix(0, start, k, 1), Matrix(1, start, k, 1), fours=True)


def test_what_is_packed_and_what_is_not() -> None:
    """Where bytes count: matrices with 75 % zeros or more, for few vectors, unless one row is full or something else
    was measured."""
    weight = sparse_matrix(300, 400, 0.24)
    model = product("Gemm", (1, 400), weight, transB=1)
    assert steps_of(model, (1, 400), SLOW_MEMORY) == [pruned.SHADER]
    assert pruned.SHADER not in steps_of(product("Gemm", (5, 400), weight, transB=1), (5, 400), SLOW_MEMORY)
    assert pruned.SHADER not in steps_of(
        product("Gemm", (1, 400), sparse_matrix(300, 400, 0.3), transB=1), (1, 400), SLOW_MEMORY
    )
    key = pruned.PrunedProduct(1, 300, 400, width_of(weight, True), (400, 1), (400, 1), None, 1.0, 1.0, Target()).key
    assert pruned.SHADER not in steps_of(model, (1, 400), SLOW_MEMORY, Tuned({key: "any"}))
    weight[5] = 1  # the fullest row gives all rows their places
    assert pruned.SHADER not in steps_of(product("Gemm", (1, 400), weight, transB=1), (1, 400), SLOW_MEMORY)


def width_of(weight: Any, transposed: bool) -> int:
    found = count_nonzeros(weight)
    return max(4, 4 * -(-(found.row if transposed else found.column) // 4))


def test_counting() -> None:
    assert count_nonzeros(np.ones((300, 400), "f")) == Nonzeros(120000, 400, 300)
    weight = np.zeros((300, 400), "f")
    weight[3, :7] = 1
    weight[:5, 9] = np.nan
    assert count_nonzeros(weight) == Nonzeros(12, 8, 5)


def runs_packed(
    model: onnx.ModelProto, feeds: dict[str, Any], weight: Any, isolation: str, packed: float, held: float
) -> None:
    """Claimed, verified against the CPU, said so; with these parts of the weight's bytes, at most, packed and on the
    device."""
    opened = open_session(model.SerializeToString(), isolation=isolation, verify=1)
    close(opened.session.run(None, feeds)[0], on_cpu(model, feeds)[0])
    assert not [e for e in opened.state.events if e.kind in TROUBLES], opened.state.events
    (part,) = opened.state.reports[0].partitions
    assert part.dense_nbytes == weight.nbytes
    assert part.packed_nbytes < packed * weight.nbytes
    assert "weights read packed" in str(explanation(opened.state))
    assert device_nbytes(opened) < held * weight.nbytes


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_through_onnxruntime(isolation: str) -> None:
    weight = sparse_matrix(512, 8192, 0.02)
    model = product("Gemm", (1, 8192), weight, transB=1)
    runs_packed(model, {"x": RNG.normal(size=(1, 8192)).astype("f")}, weight, isolation, 0.1, 0.15)
