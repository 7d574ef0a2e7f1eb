"""Tensors larger than one binding may be are bound in parts; results don't change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from tests.direct import run_direct

SMALL = 1024


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
    (got,) = run_direct(_model([helper.make_node("Add", ["a", "b"], ["y"])], {"a": a.shape, "b": b.shape}, a.shape), {"a": a, "b": b})
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
        [helper.make_node("Gather", ["table", "rows"], ["y"])], "large",
        [helper.make_tensor_value_info("table", TensorProto.FLOAT, table.shape),
         helper.make_tensor_value_info("rows", TensorProto.INT64, rows.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (5, 31))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (got,) = run_direct(model, {"table": table, "rows": rows})
    np.testing.assert_array_equal(got, table[rows])
