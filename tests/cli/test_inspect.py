"""ort-gpu-ep inspect: what is in a model file, without a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.cli.test_cli import call, parsed, printed, rejected
from tests.cli.test_help import modules_after
from tests.unit.graphs import model_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Weights beside it, a body inside of a body, a function, and ops without kernels: of another library, and of
    strings."""
    text = """<ir_version: 10, opset_import: ["": 20, "mine": 2]> net (float[N, 16] x, string[?] s, bool go) => (float[N, 8] y, string[?] t)
    { m = MatMul(x, w) z = Shape(x) t = StringNormalizer(s) p = mine.Twice(m) q = other.Op(p)
      y = If(go) <then_branch = a () => (float[N, 8] o) { o = If(go) <then_branch = c () => (float[N, 8] u) { u = Relu(q) },
                  else_branch = d () => (float[N, 8] v) { v = Relu(q) }> }, else_branch = b () => (float[N, 8] r) { r = Neg(q) }> }
    <domain: "mine", opset_import: ["": 20]> Twice (f) => (g) { g = Add(f, f) }"""
    net = onnx.parser.parse_model(text)
    net.opset_import.append(helper.make_opsetid("other", 1))
    net.producer_name = "an exporter"
    net.graph.initializer.append(
        onnx.numpy_helper.from_array(np.random.default_rng(2).standard_normal((16, 8)).astype("f"), "w")
    )
    onnx.save(net, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    return tmp_path / "m.onnx"


def test_it_shows_what_is_in_the_file(model: Path) -> None:
    found = parsed("inspect", model, "--json")
    assert found["inputs"] == [
        {"name": "x", "type": "tensor(float)", "shape": ["N", 16]},
        {"name": "s", "type": "tensor(string)", "shape": [None]},
        {"name": "go", "type": "tensor(bool)", "shape": []},
    ]
    assert [value["name"] for value in found["outputs"]] == ["y", "t"]
    assert found["opsets"] == {"ai.onnx": 20, "mine": 2, "other": 1}
    assert (found["nbytes"], found["external"]) == (
        model.stat().st_size,
        [{"location": "weights.bin", "nbytes": 16 * 8 * 4}],
    )
    assert (found["parameters"], found["parameters_by_type"], found["producer"]) == (128, {"float": 128}, "an exporter")
    assert {row["op"]: (row["nodes"], row["kernel"]) for row in found["ops"]} == {
        "If": (2, "its bodies' nodes, each"),
        "Relu": (2, "yes"),
        "Add": (1, "yes"),
        "MatMul": (1, "yes"),
        "Neg": (1, "yes"),
        "Shape": (1, "computed on the host"),
        "StringNormalizer": (1, "none"),
        "other:Op": (1, "none"),
        "mine:Twice": (1, "inlined: a function of the model"),
    }
    text = printed("inspect", model)
    assert "9 of 11 nodes have an op with a kernel" in text
    assert "external file weights.bin: 512 B" in text


def test_it_needs_no_gpu(model: Path) -> None:
    assert not modules_after("inspect", str(model)) & {"wgpu", "cffi", "_cffi_backend"}


def test_forms_of_an_op_that_have_no_kernel(tmp_path: Path) -> None:
    old = model_of("(float[4] x) => (float[4] y) { y = BatchNormalization(x, x, x, x, x) }")
    old.opset_import[0].version = 5
    onnx.save(old, tmp_path / "m.onnx")
    (row,) = parsed("inspect", tmp_path / "m.onnx", "--json")["ops"]
    assert row["kernel"].startswith("none for opset 5, but from ")
    assert "0 of 1 nodes" in printed("inspect", tmp_path / "m.onnx")


def test_files_that_are_not_there_or_refused_are_told(model: Path) -> None:
    (model.parent / "weights.bin").unlink()
    (file,) = parsed("inspect", model, "--json")["external"]
    assert file["nbytes"] is None
    assert "No such file" in file["why"]
    net = onnx.load(model, load_external_data=False)
    net.graph.initializer[0].external_data[0].value = "../../etc/passwd"
    onnx.save(net, model)
    assert "'../../etc/passwd'" in " ".join(printed("inspect", model).split())


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x10\0\0\0ORTM" + bytes(50))
    assert "it is a model in ORT format: give the .onnx file" in " ".join(
        rejected("inspect", tmp_path / "m.onnx").split()
    )
    assert "there is no such file" in " ".join(rejected("inspect", tmp_path / "none.onnx").split())
    assert call("inspect").returncode == 2
