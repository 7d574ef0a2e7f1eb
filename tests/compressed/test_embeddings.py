"""Tables of embeddings by each method: what the file says, the same on both sides, packed on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.compression import compress
from tests.compressed.test_compress import run_plain
from tests.compressed.test_compressed_sessions import TROUBLES, device_nbytes
from tests.compressed.test_packed_products import close
from tests.plugin.cases import open_session

RNG = np.random.default_rng(41)
ROWS, WIDTH = 2001, 64


def network(width: int = WIDTH, tied: bool = False) -> onnx.ModelProto:
    """[n] ids -> rows of a table -> a product; tied: with that table, transposed in the graph."""
    held: dict[str, Any] = {"table": RNG.normal(size=(ROWS, width)).astype("f")}
    nodes = [helper.make_node("Gather", ["table", "i"], ["e"], "embedding"), helper.make_node("Tanh", ["e"], ["t"])]
    if tied:
        nodes.append(helper.make_node("Gemm", ["t", "table"], ["y"], "head", transB=1))
    else:
        held["w"] = RNG.normal(size=(width, 40)).astype("f")
        nodes.append(helper.make_node("MatMul", ["t", "w"], ["y"], "head"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("i", 7, ["n"])],
        [helper.make_tensor_value_info("y", 1, ["n", None])],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("method", "bytes_of_a_row", "shown"),
    [
        ("int8", WIDTH + 4, "int8"),
        ("int4", WIDTH // 2 + 8, "int4"),
        ("codebook5", WIDTH * 5 / 8, "codebook5"),
        ("prune80", WIDTH * 5 / 8, "codebook5"),
    ],
)
def test_tables(method: str, bytes_of_a_row: float, shown: str, tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "net.onnx")
    report = compress(tmp_path / "net.onnx", tmp_path / "out.onnx", method)
    (layer,) = [layer for layer in report.layers if layer.op == "Gather"]
    assert (layer.name, layer.asked, layer.method) == ("embedding", method, shown)
    assert layer.packed_nbytes <= ROWS * bytes_of_a_row + 200
    made = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(made)
    feeds = {"i": RNG.integers(-ROWS, ROWS, 5)}
    wanted = run_plain(made, feeds)
    error = np.linalg.norm(wanted - run_plain(onnx.load(tmp_path / "net.onnx"), feeds)) / np.linalg.norm(wanted)
    assert error < (0.02 if method == "int8" else 0.9 if method == "prune80" else 0.15), error
    opened = open_session(made.SerializeToString(), verify=1)
    close(opened.session.run(None, feeds)[0], wanted)
    assert not [e for e in opened.state.events if e.kind in TROUBLES], opened.state.events
    assert {n.device for n in opened.state.reports[0].nodes} == {"gpu"}
    assert device_nbytes(opened) <= 1.2 * ROWS * bytes_of_a_row + 4 * WIDTH * 40 + 8192


@pytest.mark.parametrize("method", ["int8", "int4", "codebook8"])
def test_a_table_that_is_a_matrix_too(method: str, tmp_path: Path) -> None:
    """One weight for both, decoded by one node."""
    onnx.save(network(tied=True), tmp_path / "net.onnx")
    report = compress(tmp_path / "net.onnx", tmp_path / "out.onnx", method)
    assert [layer.method for layer in report.layers] == ["codebook8" if method == "codebook8" else "int8"]
    made, feeds = onnx.load(tmp_path / "out.onnx"), {"i": RNG.integers(0, ROWS, 3)}
    opened = open_session(made.SerializeToString(), verify=1)
    close(opened.session.run(None, feeds)[0], run_plain(made, feeds))
    assert not [e for e in opened.state.events if e.kind in TROUBLES], opened.state.events


def test_a_row_of_odd_width_has_bytes(tmp_path: Path) -> None:
    onnx.save(network(width=33), tmp_path / "net.onnx")
    report = compress(tmp_path / "net.onnx", tmp_path / "out.onnx", "int4")
    assert [layer.method for layer in report.layers if layer.op == "Gather"] == ["int8"]
    feeds = {"i": RNG.integers(0, ROWS, 3)}
    made = onnx.load(tmp_path / "out.onnx")
    close(open_session(made.SerializeToString()).session.run(None, feeds)[0], run_plain(made, feeds))
