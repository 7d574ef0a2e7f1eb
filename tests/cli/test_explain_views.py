"""ort-gpu-ep explain with 2,000 nodes: summary first, groups, one device only, sorted, as a page."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep import InferenceSession
from ort_gpu_ep.explain import GROUPS
from tests.cli.test_cli import call, parsed, printed


def chain(length: int) -> bytes:
    """Blocks of four nodes: two that the GPU takes, two that only the CPU has (float64)."""
    nodes, ops = [], ("Neg", "Cast", "Exp", "Cast")
    for i in range(length):
        attributes = {"to": TensorProto.DOUBLE if i % 4 == 1 else TensorProto.FLOAT} if ops[i % 4] == "Cast" else {}
        name = f"/model/layer.{i // 4}/<part>/{ops[i % 4]}_{i}"
        nodes.append(helper.make_node(ops[i % 4], [f"v{i}"], [f"v{i + 1}"], name=name, **attributes))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("v0", 1, [4])], [helper.make_tensor_value_info(f"v{length}", 1, [4])])
    made: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "chain.onnx"
    path.write_bytes(chain(16))
    return path


GPU = ("-o", "placement=gpu")


def test_the_summary_comes_first(model: Path) -> None:
    text = printed("explain", model, *GPU)
    assert text.startswith("adapter: ")
    assert text.index("nodes: ") < text.index("━")


@pytest.mark.parametrize("by", GROUPS)
def test_groups_count_every_node(by: str, model: Path) -> None:
    groups = parsed("explain", model, *GPU, "--group", by, "--json")["groups"]
    assert sum(g["gpu"] + g["host"] + g["cpu"] for g in groups) == 16
    assert [g["cpu"] for g in groups] == sorted((g["cpu"] for g in groups), reverse=True)
    assert groups[0]["name"] in " ".join(printed("explain", model, *GPU, "--group", by).split())[:100_000] or by == "reason"


def test_blocks_are_the_beginnings_of_names(model: Path) -> None:
    groups = parsed("explain", model, *GPU, "--group", "block", "--json")["groups"]
    assert {g["name"] for g in groups} == {f"model/layer.{k}" for k in range(4)}


def test_one_device_only_and_sorted(model: Path) -> None:
    text = printed("explain", model, *GPU, "--only", "cpu", "--sort", "op")
    table = text[text.index("━"):]
    assert "Neg" not in table
    assert "Exp" in table
    assert table.rindex("Cast") < table.index("Exp")


def test_the_page_escapes_names(model: Path, tmp_path: Path) -> None:
    assert "written: " in printed("explain", model, *GPU, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "&lt;part&gt;" in page
    assert "<part>" not in page
    assert page.count("<details>") == len(GROUPS) + 1


def test_a_notebook_shows_it(model: Path) -> None:
    shown = InferenceSession(str(model), provider_options={"placement": "gpu"}).explain()._repr_html_()
    assert "<table>" in shown
    assert "layer.3" in shown


def test_two_thousand_nodes_fit_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "long.onnx"
    path.write_bytes(chain(2000))
    assert onnx.load(path).graph.node
    done = call("explain", path, "-o", "placement=cpu", "--group", "reason")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) < 30
