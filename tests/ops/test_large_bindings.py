"""Tensors larger than one binding may be are bound in parts; results don't change."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import UnsupportedNodeError
from ort_gpu_ep.health import conformance
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.kernels import registry
from ort_gpu_ep.kernels.registry import part_count
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from tests.direct import PACKED, opened, run_direct, run_program

SMALL = 1024
TINY = 64
"""A multiple of what this adapter aligns bindings to: most tensors of ONNX's cases are larger, and few need more
bindings than there are."""

DAILY, LEAST = 60, 10
"""Of ONNX's cases, how many run on a day, and how many of them, at least, have a tensor in parts."""


@pytest.fixture
def small_bindings() -> object:
    """An adapter that binds at most 1 KiB, so that small tensors are split."""
    gpu = Gpu.open(Config())
    limits = gpu.limits
    gpu.limits = replace(limits, max_binding_nbytes=SMALL)
    yield gpu
    gpu.limits = limits


def _model(nodes: list[onnx.NodeProto], shapes: dict[str, tuple[int, ...]], out: tuple[int, ...]) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    graph = helper.make_graph(nodes, "large", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_elementwise_over_parts(small_bindings: object) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((7, 113)).astype(np.float32), rng.standard_normal((7, 113)).astype(np.float32)
    (got,) = run_direct(
        _model([helper.make_node("Add", ["a", "b"], ["y"])], {"a": a.shape, "b": b.shape}, a.shape), {"a": a, "b": b}
    )
    np.testing.assert_array_equal(got, a + b)


@pytest.mark.parametrize("rows", [1, 5, 37])
def test_matrix_product_with_weights_in_parts(small_bindings: object, rows: int) -> None:
    rng = np.random.default_rng(rows)
    a, b = rng.standard_normal((rows, 67)).astype(np.float32), rng.standard_normal((67, 29)).astype(np.float32)
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    (got,) = run_direct(_model([node], {"a": a.shape, "b": b.shape}, (rows, 29)), {"a": a, "b": b})
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-5)


def test_gather_from_a_table_in_parts(small_bindings: object) -> None:
    rng = np.random.default_rng(3)
    table = rng.standard_normal((50, 31)).astype(np.float32)
    rows = np.array([0, 49, 8, 33, -1], np.int64)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "rows"], ["y"])],
        "large",
        [
            helper.make_tensor_value_info("table", TensorProto.FLOAT, table.shape),
            helper.make_tensor_value_info("rows", TensorProto.INT64, rows.shape),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (5, 31))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (got,) = run_direct(model, {"table": table, "rows": rows})
    np.testing.assert_array_equal(got, table[rows])


@pytest.mark.parametrize("every_size_open", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_each_piece_begins_where_the_one_before_it_ends(
    small_bindings: object, count: int, every_size_open: bool
) -> None:
    """Buffers are no larger than their tensors are, but for a few bytes: the last piece ends with its buffer."""
    x = np.random.default_rng(count).standard_normal((count, 263)).astype(np.float32)
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("ReduceMax", ["r"], ["y"], axes=[1], keepdims=0)]
    model = _model(nodes, {"x": x.shape}, (count,))
    (got,) = run_direct(model, {"x": x}, every_size_open=every_size_open)
    np.testing.assert_array_equal(got, np.maximum(x, 0).max(1))


def _answer(case: Any, every_size_open: bool) -> tuple[list[Any] | str, bool]:
    """What a case gives (a decline as text), and whether a dispatch binds a tensor in parts."""
    graph, gpu = from_onnx(case.model), Gpu.open(Config())
    feeds = dict(
        zip((i.name for i in case.model.graph.input), map(conformance._array, case.data_sets[0][0]), strict=False)
    )
    try:
        program = Program(opened(graph) if every_size_open else graph, PACKED, gpu, rewrite)
    except UnsupportedNodeError as error:
        return str(error), False
    try:
        got = run_program(program, feeds)
        steps = [step for plan in program.plans for step in plan.steps if isinstance(step, Dispatch)]
        return got, any(part_count(t.bound, gpu.limits.max_binding_nbytes) > 1 for step in steps for t in step.tensors)
    except UnsupportedNodeError as error:
        return str(error), False
    finally:
        program.close()


@pytest.mark.parametrize("every_size_open", [False, True])
@pytest.mark.parametrize("daily", [True, pytest.param(False, marks=[pytest.mark.nightly, pytest.mark.timeout(7200)])])
def test_each_operator_in_parts(daily: bool, every_size_open: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX's cases with bindings of 64 B: each answer is that of whole tensors, or it is declined for what the claim
    says of parts."""
    gpu, known = Gpu.open(Config()), [case for case in conformance.cases() if case.name not in conformance.INEXACT]
    kinds = [{i.type.tensor_type.elem_type for i in case.model.graph.input} for case in known]
    tensors = [
        case
        for case, types in zip(known, kinds, strict=True)
        if not types & {TensorProto.UNDEFINED, TensorProto.STRING}
    ]
    if daily:
        chosen = np.random.default_rng(11 + every_size_open).choice(len(tensors), DAILY, replace=False)
        tensors = [tensors[i] for i in sorted(chosen)]
    limits, in_parts = gpu.limits, 0
    assert TINY % limits.offset_alignment == 0
    for case in tensors:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole, _ = _answer(case, every_size_open)
            with monkeypatch.context() as patch:
                patch.setattr(gpu, "limits", replace(limits, max_binding_nbytes=TINY))
                patch.setattr(registry, "OFFSET_ALIGNMENT", TINY)
                got, split = _answer(case, every_size_open)
        if isinstance(whole, str):
            continue
        if isinstance(got, str):
            assert " B of packed elements" in got or (" binds " in got and "buffers of at most" in got), (
                f"{case.name}: {got}"
            )
            continue
        in_parts += split
        for ours, theirs in zip(got, whole, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), case.name
            numbers = ours.dtype.kind == "f"
            np.testing.assert_allclose(
                ours, theirs, rtol=1e-5 if numbers else 0, atol=1e-6 if numbers else 0, err_msg=case.name
            )
    assert in_parts >= LEAST if daily else in_parts > 300
