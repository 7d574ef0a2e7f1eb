"""ort-gpu-ep explain with 2,000 nodes: summary first, groups, one device only, sorted, as a page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep import InferenceSession
from ort_gpu_ep.config import resolve
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.health.open_adapter import tuning_key
from ort_gpu_ep.kernels import tuned
from ort_gpu_ep.plugin.explain import GROUPS
from tests.cli.test_cli import call, parsed, printed, rejected
from tests.unit.graphs import model_of


def chain(length: int) -> bytes:
    """Blocks of four nodes: two that the GPU takes, two that only the CPU has (float64)."""
    nodes, ops = [], ("Neg", "Cast", "Sin", "Cast")
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


def test_the_forms_of_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its estimate, the chosen one marked; what `tune` has measured is there, and taken."""
    weights = np.random.default_rng(0).standard_normal((64, 48), np.float32)
    file, cache = tmp_path / "product.onnx", ("-o", f"cache_dir={tmp_path / 'cache'}")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["v"], name="product"), helper.make_node("Relu", ["v"], ["y"], name="behind")], "g",
        [helper.make_tensor_value_info("x", 1, [8, 64])], [helper.make_tensor_value_info("y", 1, [8, 48])],
        [onnx.numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    kernel, = parsed("explain", file, *GPU, *cache, "--kernel", "behind", "--json")["kernels"]
    forms = [row["form"] for row in kernel["forms"]]
    assert (kernel["because"], kernel["form"]) == ("estimated", forms[0])
    assert [row["estimated_us"] for row in kernel["forms"]] == sorted(row["estimated_us"] for row in kernel["forms"])
    assert all(row["measured_us"] is None for row in kernel["forms"])
    config = resolve(dict(pair.split("=") for pair in (GPU[1], cache[1])))
    gpu = Gpu.open(config)
    table = tuned.Table({kernel["choice"]: tuned.Measured(forms[1], {forms[0]: 9000.0, forms[1]: 7000.0})})
    assert tuned.write(config.cache_path, tuning_key(gpu.info), table)
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, tuned=table.tuned))      # as a new process has them
    kernel, = parsed("explain", file, *GPU, *cache, "--kernel", "product", "--json")["kernels"]
    assert (kernel["because"], kernel["form"]) == ("measured", forms[1])
    assert [row["measured_us"] for row in kernel["forms"]][:3] == [9.0, 7.0, None]
    text = printed("explain", file, *GPU, *cache, "--kernel", "product")
    assert forms[1] in text
    assert "7.0" in text
    assert "no kernel is planned" in rejected("explain", file, *GPU, *cache, "--kernel", "other")


def test_blocks_are_the_beginnings_of_names(model: Path) -> None:
    groups = parsed("explain", model, *GPU, "--group", "block", "--json")["groups"]
    assert {g["name"] for g in groups} == {f"model/layer.{k}" for k in range(4)}


def test_one_device_only_and_sorted(model: Path) -> None:
    text = printed("explain", model, *GPU, "--only", "cpu", "--sort", "op")
    table = text[text.index("━"):]
    assert "Neg" not in table
    assert "Sin" in table
    assert "Cast" not in table
    text = printed("explain", model, *GPU, "--sort", "op")
    table = text[text.index("━"):]
    ops = re.findall(r"│ (Cast|Neg|Sin) +│ [a-z]+ +│", table)
    assert (len(ops), ops) == (16, sorted(ops))


def test_the_page_escapes_names(model: Path, tmp_path: Path) -> None:
    assert "written: " in printed("explain", model, *GPU, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "&lt;part&gt;" in page
    assert "<part>" not in page
    assert page.count("<details>") == len(GROUPS) + 1
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page).group(1))["nodes"]  # type: ignore[union-attr]
    assert len(data) == 16
    assert data[1]["from"] == [0]
    assert data[0]["kernel"]
    assert (data[2]["side"], data[2]["why"][:5], data[2]["nbytes"]) == ("cpu", "DTYPE", 32)
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_the_page_in_a_browser(model: Path, tmp_path: Path) -> None:
    """It draws every node, and a search of the address dims all others."""
    printed("explain", model, *GPU, "--html", tmp_path / "page.html")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run",
               f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--dump-dom"]
    done = subprocess.run([*command, f"file://{tmp_path / 'page.html'}#Sin_2"], capture_output=True, text=True, timeout=500, check=True)
    assert done.stdout.count('class="n ') == 16
    assert "1 of 16 nodes" in done.stdout
    assert len(re.findall(r'class="n \w+ off', done.stdout)) == 15


def loops(count: int) -> bytes:
    """A graph with `count` Ifs, each with two bodies of float64 nodes."""
    text = "".join(f"""v{k + 1} = If (c) <then_branch = t{k} () => (double[4] p{k}) {{ p{k} = Sin(v{k}) }},
        else_branch = e{k} () => (double[4] q{k}) {{ q{k} = Cos(v{k}) }}> """ for k in range(count))
    return model_of(f"(double[4] v0, bool c) => (double[4] v{count}) {{ {text} }}").SerializeToString()


def test_many_bodies_are_told_together(tmp_path: Path) -> None:
    """A network of 224 nodes with 50 bodies had 479 lines."""
    (tmp_path / "m.onnx").write_bytes(loops(16))
    lines = printed("explain", tmp_path / "m.onnx", *GPU).splitlines()
    assert [line for line in lines if line.startswith("32 graphs inside")]
    assert len([line for line in lines if line.startswith("graph ")]) == 1
    assert "16 Sin" in " ".join(lines)
    assert len(lines) < 30


def test_the_page_begins_with_the_models_own_graph(tmp_path: Path) -> None:
    """The bodies of all Ifs lay in one line with the model's first nodes: 32 side by side, too small to read."""
    (tmp_path / "m.onnx").write_bytes(loops(12))
    printed("explain", tmp_path / "m.onnx", *GPU, "--html", tmp_path / "page.html")
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>',  # type: ignore[union-attr]
                                (tmp_path / "page.html").read_text("utf-8")).group(1))
    nodes = data["nodes"]
    assert [n["graph"] for n in nodes[:12]] == [""] * 12
    assert len({t["text"] for t in data["titles"]}) == len(data["titles"]) == 24
    lowest = max(n["y"] for n in nodes[:12])
    assert all(n["y"] > lowest for n in nodes[12:])
    places = [(n["x"], n["y"]) for n in nodes]
    assert len(set(places)) == len(places)
    assert max(n["x"] for n in nodes) - min(n["x"] for n in nodes) < 6 * (data["width"] + 24)


def test_one_line_a_reason_and_one_number_of_dispatches(tmp_path: Path) -> None:
    """A sentence stood there for each op type, two numbers of dispatches, 0 B of weights, names of 20 digits, nodes fused into themselves."""
    rng = np.random.default_rng(0)
    model = model_of("(float[N, 64] x) => (float[N, 32] y) { h = MatMul(x, w) a = Add(h, b) y = Relu(a) }", {
        "w": rng.normal(size=(64, 32)).astype("f"), "b": rng.normal(size=32).astype("f")})
    for k, node in enumerate(model.graph.node):
        node.name = f"node{k}"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    text = " ".join(printed("explain", tmp_path / "m.onnx", *GPU).split())
    assert "memory of partition 0 for float32[1, 64]" in text
    assert "8.2 KiB of weights" in text
    assert len(set(re.findall(r"(\d+) dispatch", text))) == 1
    assert "WgpuExecutionProvider_" not in text
    for name, into in re.findall(r"(node\d) .*fused into (node\d)", text):
        assert name != into
    session = InferenceSession(str(tmp_path / "m.onnx"), provider_options={"placement": "gpu"})
    before = str(session.explain())
    session.run(None, {"x": np.zeros((1, 64), "f")})
    assert re.findall(r"(\d+) dispatch", before)[0] in re.findall(r"(\d+) dispatch", str(session.explain()))
    text = printed("explain", tmp_path / "m.onnx", "-o", "placement=cpu")
    assert text.count("COST: placement=cpu") + text.count("COST:  placement") >= 1
    assert text.split("━")[0].count("on the CPU:") == 1
    table = " ".join(re.sub("[│┃]", "", printed("explain", tmp_path / "m.onnx").split("━")[-1]).split())     # a sentence is there once
    assert (table.count("COST: placement=auto"), table.count("COST, see node0")) == (1, 1)
    assert "no node is on the GPU" in printed("explain", tmp_path / "m.onnx", "-o", "placement=cpu", "--only", "gpu")


def test_a_long_model_is_listed_by_its_ops(tmp_path: Path) -> None:
    path = tmp_path / "long.onnx"
    path.write_bytes(chain(200))
    text = printed("explain", path, *GPU)
    assert len(text.splitlines()) < 30
    assert "--nodes lists all 200 nodes" in text
    assert len(printed("explain", path, *GPU, "--nodes").splitlines()) > 200


def test_partitions_are_not_declined_as_nodes_of_the_model() -> None:
    """ONNX Runtime asks about what it has fused once more."""
    session = InferenceSession(model_of("""(float[4] x, bool c) => (float[4] y) {
        a = Neg(x) y = If (c) <then_branch = t () => (float[4] p) { q = Neg(a) p = Exp(q) }, else_branch = e () => (float[4] r) { r = Neg(a) }> }
        """).SerializeToString(), provider_options={"placement": "gpu"})
    shown = session.explain()
    assert not [n for r in shown.reports for n in r.nodes if n.op.startswith("Wgpu")]


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


def test_device_memory_is_shown(tmp_path: Path) -> None:
    weights = np.ones((256, 256), "f")
    (tmp_path / "m.onnx").write_bytes(model_of("(float[4, 256] x) => (float[4, 256] y) { y = MatMul(x, w) }", {"w": weights}).SerializeToString())
    command = ("explain", str(tmp_path / "m.onnx"), "-o", "placement=gpu", "-o", "memory_limit_mb=7")
    found = parsed(*command, "--json")["device_memory"]
    assert found["limit_nbytes"] == 7 << 20
    assert found["session_nbytes"] == sum(found["session"].values())
    text = " ".join(printed(*command).split())
    held = "none yet" if not found["session_nbytes"] else f"{found['session_nbytes'] / 1024:.1f} KiB"
    assert f"device memory of this session: {held}; memory_limit_mb allows 7.0 MiB" in text
