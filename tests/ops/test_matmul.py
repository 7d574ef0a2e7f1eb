"""MatMul and Gemm against ONNX Runtime's CPU kernels (float16: float64): what ONNX's own node cases lack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Graph, Step, from_onnx
from ort_gpu_ep.ir.types import FLOAT32, Shape, TensorType
from ort_gpu_ep.kernels.forms import forced, taken
from ort_gpu_ep.kernels.registry import Limits, Strided
from ort_gpu_ep.ops.contraction import SPLITS, TILES, Matrix, Product, Tile, form_of, forms
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import run_direct

TOLERANCE = 1e-6
"""Relative L2 error."""


def model_of(op: str, inputs: Sequence[np.ndarray[Any, Any]], opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    """A model of one node; the inputs after the first are constants in every second case, by the parity of their
    size."""
    infos = [
        helper.make_tensor_value_info(f"i{i}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for i, a in enumerate(inputs)
    ]
    constants = [onnx.numpy_helper.from_array(a, f"i{i}") for i, a in enumerate(inputs) if i and a.size % 2]
    kept = [i for i in infos if i.name not in {c.name for c in constants}]
    result = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(inputs[0].dtype), None)
    node = helper.make_node(op, [i.name for i in infos], ["y"], **attributes)
    graph = helper.make_graph([node], op, kept, [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def random_inputs(shapes: Sequence[Shape], dtype: Any = np.float32) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(sum(map(sum, shapes)))
    return [random.standard_normal(s).astype(dtype) for s in shapes]


def by_ort(model: onnx.ModelProto, feeds: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    return np.asarray(session.run(None, {n: a for n, a in feeds.items() if n in names})[0])


def check_against_ort(
    op: str, shapes: Sequence[Shape], opset: int = 17, rewrite: Any = None, then: Any = None, **attributes: Any
) -> None:
    """Compares a node with ORT. rewrite: of the graph before planning; then: what it does to the result."""
    inputs = random_inputs(shapes)
    model = model_of(op, inputs, opset, **attributes)
    feeds = {f"i{i}": a for i, a in enumerate(inputs)}
    wanted = by_ort(model, feeds)
    (got,) = run_direct(model, feeds, rewrite)
    assert_close(got, then(wanted) if then else wanted)


def assert_close(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], tolerance: float = TOLERANCE) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if wanted.size:
        assert np.isfinite(got).all()
        error = np.linalg.norm((got - wanted).astype(np.float64)) / max(
            np.linalg.norm(wanted.astype(np.float64)), 1e-30
        )
        assert error <= tolerance, f"relative L2 error {error:.2e}"
        assert wanted.any() or not got.any()


def declined(
    op: str, shapes: Sequence[Shape], code: Code, opset: int = 17, dtype: Any = np.float32, **attributes: Any
) -> None:
    inputs = random_inputs(shapes, dtype)
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(model_of(op, inputs, opset, **attributes), {f"i{i}": a for i, a in enumerate(inputs)})
    assert caught.value.code is code


MATMULS = [
    ((67, 131), (131, 71)),
    ((1, 1), (1, 1)),
    ((64, 64), (64, 64)),
    ((65, 17), (17, 63)),
    ((5, 1531), (1531, 7)),
    ((131, 2), (2, 257)),
    ((16, 8), (8, 300)),
    ((300, 8), (8, 16)),
    ((3, 33, 17), (17, 37)),
    ((3, 33, 17), (3, 17, 37)),
    ((33, 17), (3, 17, 37)),
    ((2, 1, 19, 5), (3, 5, 23)),
    ((1, 3, 19, 5), (2, 1, 5, 23)),
    ((2, 3, 4, 5, 6), (4, 6, 7)),
    ((7,), (7,)),
    ((1009,), (1009, 67)),
    ((67, 1009), (1009,)),
    ((3, 1, 13, 5), (5,)),
    ((5,), (3, 2, 5, 13)),
    ((2, 3, 4), (2, 4, 1)),
    ((1, 2048), (2048, 37)),
    ((1, 3), (3, 1)),
    ((4, 1, 65), (4, 65, 70001)),
    ((0, 5), (5, 3)),
    ((2, 0), (0, 3)),
    ((0, 2, 3), (3, 4)),
    ((1, 0), (0, 9)),
]


@pytest.mark.parametrize(("a", "b"), MATMULS, ids=str)
def test_matmul(a: Shape, b: Shape) -> None:
    check_against_ort("MatMul", [a, b])


@pytest.mark.parametrize("opset", [1, 9, 13])
def test_matmul_of_older_opsets(opset: int) -> None:
    check_against_ort("MatMul", [(5, 7), (7, 3)], opset=opset if opset > 6 else 7)


def test_matmul_with_more_than_65535_workgroups() -> None:
    check_against_ort("MatMul", [(65537, 2, 3), (3, 2)])
    check_against_ort("MatMul", [(65537, 2, 3), (65537, 3, 2)])


GEMMS = [
    ((67, 131), (131, 71), (71,), {}),
    ((67, 131), (71, 131), (67, 1), {"transB": 1}),
    ((131, 67), (131, 71), (1, 71), {"transA": 1}),
    ((131, 67), (71, 131), (67, 71), {"transA": 1, "transB": 1}),
    ((131, 67), (71, 131), (), {"transA": 1, "transB": 1, "alpha": -0.5, "beta": 2.5}),
    ((5, 7), (7, 3), None, {"alpha": 3.0}),
    ((5, 7), (7, 3), (1,), {"beta": 0.0}),
    ((1, 1531), (67, 1531), (67,), {"transB": 1}),
    ((1531, 1), (67, 1531), (67,), {"transA": 1, "transB": 1}),
    ((1, 1531), (1531, 67), (1, 67), {"alpha": 0.25}),
    ((67, 1531), (1, 1531), (67, 1), {"transB": 1}),
    ((1531, 67), (1531, 1), (), {"transA": 1, "beta": -1.0}),
    ((8, 2048), (101, 2048), (101,), {"transB": 1, "beta": 0.5}),
    ((2, 0), (0, 3), (3,), {}),
    ((0, 3), (3, 2), (2,), {}),
]


@pytest.mark.parametrize(("a", "b", "c", "attributes"), GEMMS, ids=str)
def test_gemm(a: Shape, b: Shape, c: Shape | None, attributes: dict[str, Any]) -> None:
    check_against_ort("Gemm", [a, b] if c is None else [a, b, c], **attributes)


@pytest.mark.parametrize("opset", [7, 9, 11])
def test_gemm_of_older_opsets(opset: int) -> None:
    check_against_ort("Gemm", [(5, 7), (7, 3), (3,)], opset=opset)


@pytest.mark.parametrize("shapes", [[(64, 4608), (4608, 49)], [(1, 4608), (4608, 501)]], ids=str)
def test_error_of_long_sums_stays_small(shapes: list[Shape]) -> None:
    check_error(shapes, 4e-7)


def test_error_of_long_sums_stays_small_in_one_part() -> None:
    with forced(form_of(TILES[0], 1)):
        check_error([(64, 4608), (4608, 49)], 6e-7)


def check_error(shapes: list[Shape], bound: float) -> None:
    a, b = random_inputs(shapes)
    (got,) = run_direct(model_of("MatMul", [a, b]), {"i0": a, "i1": b})
    assert_close(got.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64), bound)


def test_float16_is_summed_in_float32() -> None:
    a, b, c = random_inputs([(67, 300), (300, 71), (71,)], np.float16)
    (got,) = run_direct(model_of("Gemm", [a, b, c]), {"i0": a, "i1": b, "i2": c})
    assert_close(got, (a.astype(np.float64) @ b.astype(np.float64) + c).astype(np.float16), 3e-4)


@pytest.mark.parametrize("shapes", [[(5, 7), (7, 3)], [(70, 70), (70, 70)], [(1, 70), (70, 3)]])
def test_nan_and_infinity_reach_only_their_row_and_column(shapes: list[Shape]) -> None:
    a, b = random_inputs(shapes)
    a[-1, 2], b[3, 0] = np.nan, np.inf
    (got,) = run_direct(model_of("MatMul", [a, b]), {"i0": a, "i1": b})
    np.testing.assert_array_equal(np.isnan(got), np.isnan(a @ b))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(a @ b))


def with_steps(graph: Graph, *_: Any, **__: Any) -> Graph:
    """Fuses y = max(v * 2 + y-shaped constant, 0) into the first node."""
    steps = (
        Step("Mul", "x * 2.0", ("v",), FLOAT32),
        Step("Add", "x + y", ("s0", "e0"), FLOAT32),
        Step("Relu", "max(x, 0.0)", ("s1",), FLOAT32),
    )
    node = replace(graph.nodes[0], epilogue=steps, operands=("i0",))
    return graph.with_nodes((node,))


@pytest.mark.parametrize(
    "shapes",
    [[(70, 70), (70, 70)], [(16, 2048), (2048, 2048)], [(1, 70), (70, 70)], [(1, 2048), (2048, 2048)]],
    ids=str,
)
def test_fused_steps_run_once_in_every_kernel_form(shapes: list[Shape]) -> None:
    (residual,) = random_inputs(shapes)[:1]
    check_against_ort("MatMul", shapes, rewrite=with_steps, then=lambda y: np.maximum(2 * y + residual, np.float32(0)))


def test_a_tile_that_is_asked_for_is_what_a_plan_has() -> None:
    """Also for a product that was planned before with another one."""
    shapes = {"i0": (131, 67), "i1": (67, 71)}
    graph = from_onnx(model_of("MatMul", [np.empty(s, np.float32) for s in shapes.values()]))
    plans = []
    for tile in TILES:
        with forced(form_of(tile, 1)):
            plans.append(make_plan(graph, {n: TensorType(FLOAT32, s) for n, s in shapes.items()}, Limits()))
    found = [dict(step.kernel.consts) for plan in plans for step in plan.steps if isinstance(step, Dispatch)]
    assert [(c["TM"], c["TN"], c["TK"]) for c in found] == [(t.m, t.n, t.k) for t in TILES]


def test_the_choice_fills_a_large_gpu() -> None:
    def product(m: int, n: int, k: int) -> Product:
        whole = Strided((1,), (0,))
        return Product(1, m, n, k, Matrix(0, whole, k, 1), Matrix(1, whole, 1, n))

    def chosen(product: Product) -> tuple[Tile, int]:
        form = taken(product.target, product.key, forms(product)).form
        return next((tile, split) for tile in TILES for split in SPLITS if form_of(tile, split) == form)

    assert chosen(product(4096, 4096, 4096)) == (TILES[0], 1)
    tile, split = chosen(product(512, 49, 4608))
    assert split in SPLITS[4:]
    assert 100 <= split * -(-512 // tile.m) * -(-49 // tile.n) <= 400
    assert all(t.nbytes <= 16384 and t.workgroup_size <= 256 for t in TILES)


DECLINES = [
    ("Gemm", [(5, 7), (7, 3), (5, 3)], Code.OPSET, 6, np.float32),
    ("MatMul", [(5, 7), (7, 3)], Code.DTYPE, 13, np.int32),
    ("MatMul", [(5, 7), (7, 3)], Code.DTYPE, 13, np.int32),
    ("Gemm", [(5, 7), (7, 3), (3,)], Code.DTYPE, 13, np.int64),
]


@pytest.mark.parametrize(("op", "shapes", "code", "opset", "dtype"), DECLINES)
def test_declines(op: str, shapes: list[Shape], code: Code, opset: int, dtype: Any) -> None:
    declined(op, shapes, code, opset, dtype)
