"""A small model, what it gives, and its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from onnx import TensorProto, helper, numpy_helper

ROWS = 10_000


@dataclass(frozen=True)
class Data:
    """model: x [n, 8] -> y [n, 3]. file: Parquet with x and id. answer: what y is to be."""

    model: Path
    file: Path
    x: Any
    answer: Any


def write_mlp(path: Path, batch: int | str = "n") -> Callable[[Any], Any]:
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((8, 16)).astype("f"), rng.standard_normal((16, 3)).astype("f")
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "second"], ["y"]),
    ]
    write_model(path, nodes, [("x", [batch, 8])], [("y", [batch, 3])], {"first": first, "second": second})
    return lambda x: np.maximum(x @ first, 0) @ second


def write_model(
    path: Path,
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    weights: dict[str, Any],
    kind: int = TensorProto.FLOAT,
) -> None:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kind, s) for n, s in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def lists(values: Any) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("scoring")
    answer = write_mlp(folder / "mlp.onnx")
    x = np.random.default_rng(1).standard_normal((ROWS, 8)).astype("f")
    parquet.write_table(pa.table({"id": np.arange(ROWS), "x": lists(x)}), folder / "x.parquet", row_group_size=3000)
    return Data(folder / "mlp.onnx", folder / "x.parquet", x, answer(x))


def check_rows(out: Path, data: Data, refused: int = 0) -> Any:
    """Every row is there once, in order, and right; the table."""
    table = parquet.read_table(out)
    assert table.column("id").to_pylist() == list(range(len(data.x)))
    assert table.column("error").null_count == len(data.x) - refused
    if not refused:
        np.testing.assert_allclose(
            table.column("y").combine_chunks().flatten().to_numpy().reshape(-1, 3), data.answer, atol=1e-4
        )
    return table
