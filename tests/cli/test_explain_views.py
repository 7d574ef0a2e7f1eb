"""ort-gpu-ep explain with 2,000 nodes: summary first, groups, one device only, sorted, as a page, and for
model-explorer."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep import InferenceSession
from ort_gpu_ep.cli import page
from ort_gpu_ep.cli.page import page_of
from ort_gpu_ep.config import resolve
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.health.open_adapter import tuning_key
from ort_gpu_ep.kernels import tuned
from ort_gpu_ep.plugin.explain import GROUPS, Explanation
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
        nodes, "g", [helper.make_tensor_value_info("v0", 1, [4])], [helper.make_tensor_value_info(f"v{length}", 1, [4])]
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    ).SerializeToString()
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
    assert (
        groups[0]["name"] in " ".join(printed("explain", model, *GPU, "--group", by).split())[:100_000]
        or by == "reason"
    )


def test_the_forms_of_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its estimate, the chosen one marked; what `tune` has measured is there, and taken."""
    weights = np.random.default_rng(0).standard_normal((64, 48), np.float32)
    file, cache = tmp_path / "product.onnx", ("-o", f"cache_dir={tmp_path / 'cache'}")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["v"], name="product"),
            helper.make_node("Relu", ["v"], ["y"], name="behind"),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, [8, 64])],
        [helper.make_tensor_value_info("y", 1, [8, 48])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    (kernel,) = parsed("explain", file, *GPU, *cache, "--kernel", "behind", "--json")["kernels"]
    forms = [row["form"] for row in kernel["forms"]]
    assert (kernel["because"], kernel["form"]) == ("estimated", forms[0])
    assert [row["estimated_us"] for row in kernel["forms"]] == sorted(row["estimated_us"] for row in kernel["forms"])
    assert all(row["measured_us"] is None for row in kernel["forms"])
    config = resolve(dict(pair.split("=") for pair in (GPU[1], cache[1])))
    gpu = Gpu.open(config)
    table = tuned.Table({kernel["choice"]: tuned.Measured(forms[1], {forms[0]: 9000.0, forms[1]: 7000.0})})
    assert tuned.write(config.cache_path, tuning_key(gpu.info), table)
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, tuned=table.tuned))  # as a new process has them
    (kernel,) = parsed("explain", file, *GPU, *cache, "--kernel", "product", "--json")["kernels"]
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
    table = text[text.index("━") :]
    assert "Neg" not in table
    assert "Sin" in table
    assert "Cast" not in table
    text = printed("explain", model, *GPU, "--sort", "op")
    table = text[text.index("━") :]
    ops = re.findall(r"│ (Cast|Neg|Sin) +│ [a-z]+ +│", table)
    assert (len(ops), ops) == (16, sorted(ops))


def data_of(page: str) -> dict[str, Any]:
    """What the page draws."""
    data: dict[str, Any] = json.loads(
        re.search(r'<script id="data" type="application/json">(.*?)</script>', page).group(1)
    )  # type: ignore[union-attr]
    return data


def boxes_in(item: Any) -> list[int]:
    return [item] if isinstance(item, int) else [box for inner in item[1:] for box in boxes_in(inner)]


def drawn(model: bytes, placement: str = "gpu") -> tuple[Explanation, dict[str, Any]]:
    """An explanation, and its page's data, in which each node is in one box, each box at one place, and each dispatch
    there."""
    explained = InferenceSession(model, provider_options={"placement": placement}).explain()
    data = data_of(page_of("a model", explained))
    assert sorted(node for box in data["boxes"] for node in box.get("nodes", [])) == list(
        range(sum(len(r.nodes) for r in explained.reports))
    )
    assert sorted(box for tree in data["trees"] for item in tree for box in boxes_in(item)) == list(
        range(len(data["boxes"]))
    )
    assert sum(len(box.get("kernels", [])) for box in data["boxes"]) == sum(plan.dispatches for plan in explained.plans)
    return explained, data


class Tags(HTMLParser):
    """The tags of a page, each with its attributes, and its scripts' texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.is_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.is_script = tag == "script"
        self.scripts += [""] * self.is_script

    def handle_endtag(self, tag: str) -> None:
        self.is_script = False

    def handle_data(self, data: str) -> None:
        if self.is_script:
            self.scripts[-1] += data


HOSTILE = ("</script><img src=x onerror=alert(1)>", "@SCRIPT@", "a\u202eb", "<!--<script>", "'; alert(1); //")


def test_names_are_no_markup(tmp_path: Path) -> None:
    """The page of a hostile model has the tags of that of a harmless one, and runs one script: that of the package."""
    pages = []
    for names in (HOSTILE, ("a", "b", "c", "d", "e")):
        values = ["x", *names]
        nodes = [
            helper.make_node("Neg" if k % 2 else "Exp", [values[k]], [name], name=f"{name}/{name}")
            for k, name in enumerate(names)
        ]
        graph = helper.make_graph(
            nodes,
            names[0],
            [helper.make_tensor_value_info("x", 1, [4])],
            [helper.make_tensor_value_info(names[-1], 1, [4])],
        )
        file = tmp_path / f"{len(pages)}.onnx"
        file.write_bytes(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
        )
        explained = InferenceSession(str(file), provider_options={"placement": "gpu"}).explain()
        pages.append(page_of(names[0], explained))
    hostile, harmless = map(Tags, pages)
    assert hostile.tags == harmless.tags
    assert hostile.scripts[1] == harmless.scripts[1] == (Path(page.__file__).with_suffix(".js")).read_text("utf-8")
    assert len(hostile.scripts) == 2
    policy = next(
        attrs["content"] for tag, attrs in hostile.tags if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    digest = base64.b64encode(hashlib.sha256(hostile.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in (policy or "")
    assert "default-src 'none'" in (policy or "")
    assert not re.search(
        "innerHTML|outerHTML|insertAdjacentHTML|document.write|eval|Function|https?:(?!//www.w3.org/2000/svg)",
        hostile.scripts[1],
    )
    assert "\u202e" not in pages[0]
    assert {n["op"] for n in data_of(pages[0])["nodes"]} == {"Exp", "Neg"}


def test_a_box_a_kernel_with_its_nodes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    model = model_of(
        "(float[4, 64] x) => (float[4, 32] y) { h = MatMul(x, w) a = Add(h, b) r = Relu(a) y = Softmax "
        "<axis = 1> (r) }",
        {"w": rng.normal(size=(64, 32)).astype("f"), "b": rng.normal(size=32).astype("f")},
    )
    for node, name in zip(
        model.graph.node, ("/net/dense/MatMul", "/net/dense/Add", "/net/act/Relu", "/net/Softmax"), strict=True
    ):
        node.name = name
    _, data = drawn(model.SerializeToString())
    first, second = (box for box in data["boxes"] if box["side"] == "gpu")
    assert [[data["nodes"][n]["op"] for n in box["nodes"]] for box in (first, second)] == [
        ["Gemm", "Relu"],
        ["Softmax"],
    ]
    assert [len(box["kernels"]) for box in (first, second)] == [1, 1]
    assert ["w", "float32[64, 32]"] in data["nodes"][first["nodes"][0]]["constants"]
    assert data["nodes"][second["nodes"][0]]["attributes"] == [["axis", "1"]]
    (written,) = first["writes"][-1:]
    assert (data["values"][written]["name"], data["values"][written]["type"], data["values"][written]["nbytes"]) == (
        "r",
        "float32[4, 32]",
        512,
    )
    assert written in second["reads"]
    assert data["boxes"][data["values"][written]["writer"]] == first
    (tree,) = data["trees"]
    # the input and the output beside
    assert [item if isinstance(item, int) else (item[0], item[1:]) for item in tree] == [0, ("net", [1, 2]), 3]


def test_bytes_that_cross(model: Path) -> None:
    """Two of four nodes are on the CPU, eight values go there and as many come back; both sums are the partitions'
    own."""
    explained, data = drawn(model.read_bytes())
    parts = explained.reports[0].partitions
    for way, of in (("up", "input_nbytes"), ("down", "output_nbytes")):
        crossing = [value for value in data["values"] if value.get(way)]
        assert sum(value["nbytes"] for value in crossing) == sum(getattr(part, of) for part in parts) > 0
    up = {value["name"] for value in data["values"] if value.get("up")}
    assert up == {name for part in parts for name in part.inputs}
    reasons = data["reasons"]
    assert [(r["code"], len(r["nodes"])) for r in reasons] == [
        ("DTYPE", sum(n["device"] == "cpu" for n in data["nodes"]))
    ]


def test_bodies_are_in_the_box_of_their_node() -> None:
    _, data = drawn(loops(12))
    held = [graph for box in data["boxes"] for graph in box.get("bodies", [])]
    assert (data["roots"], sorted(held)) == ([0], list(range(1, 25)))
    for box in data["boxes"]:
        if "bodies" in box:
            assert [data["nodes"][n]["op"] for n in box["nodes"]] == ["If"]
            inner = [data["boxes"][b] for g in box["bodies"] for item in data["trees"][g] for b in boxes_in(item)]
            assert sorted(data["nodes"][n]["op"] for b in inner for n in b["nodes"]) == ["Cos", "Sin"]
            outer = [data["boxes"][data["values"][v]["writer"]]["name"] for b in inner for v in b["reads"]]
            assert len(set(outer)) == 1  # both branches read the value of before


def test_the_page_of_a_thousand_nodes_is_small() -> None:
    """Also of one whose names have no parts: its boxes are in blocks of a screen."""
    network = onnx.load_from_string(chain(1000))
    for node in network.graph.node:
        node.name = node.name.replace("/", ".")
    for made in (network.SerializeToString(), chain(1000)):
        explained, data = drawn(made, "cpu")
        assert len(page_of("m", explained).encode()) < 1_000_000
        assert (
            max(len(item) for tree in data["trees"] for item in [tree, *(i for i in tree if isinstance(i, list))])
            <= 260
        )
    assert len(data["trees"][0]) == 2 + 1  # input, the block "model", output


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_the_page_in_a_browser(model: Path, tmp_path: Path) -> None:
    """A search of the address leaves one box, in the block it is in, and its script runs under the page's own
    policy."""
    printed("explain", model, *GPU, "--html", tmp_path / "page.html")
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-sync",
        "--no-first-run",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=2000",
        "--dump-dom",
    ]
    done = subprocess.run(
        [*command, f"file://{tmp_path / 'page.html'}#Sin_2"], capture_output=True, text=True, timeout=500, check=True
    )
    assert done.stdout.count('class="box ') == 1
    assert "1 of 16 nodes" in done.stdout
    whole = subprocess.run(
        [*command, f"file://{tmp_path / 'page.html'}"], capture_output=True, text=True, timeout=500, check=True
    ).stdout
    assert "16 of 16 nodes" in whole
    assert whole.count('class="box ') == len(data_of((tmp_path / "page.html").read_text("utf-8"))["boxes"])


def test_node_data_of_model_explorer(tmp_path: Path) -> None:
    """A value a node: by its name, or where it has none by what it writes; of a profiled run numbers, which make a
    gradient."""
    network = model_of("(float[4] x) => (double[4] y) { a = Exp(x) b = Cast <to = 11> (a) y = Sin(b) }")
    for node, name in zip(network.graph.node, ("/part/Exp", "", "/part/Sin"), strict=True):
        node.name = name
    file, out = tmp_path / "m.onnx", tmp_path / "m.json"
    file.write_bytes(network.SerializeToString())
    assert "written: " in printed("explain", file, *GPU, "--node-data", out)
    data = json.loads(out.read_text("utf-8"))
    assert {key: result["value"] for key, result in data["results"].items()} == {
        "/part/Exp": "GPU",
        "b": "GPU",
        "/part/Sin": "CPU",
    }
    assert all(
        re.fullmatch("#[0-9a-f]{6}", result[colour])
        for result in data["results"].values()
        for colour in ("bgColor", "textColor")
    )
    assert "written: " in printed("explain", file, "--profile", "--node-data", out, "--html", tmp_path / "p.html")
    data = json.loads(out.read_text("utf-8"))
    assert data["results"]["/part/Exp"]["value"] > 0
    assert [item["stop"] for item in data["gradient"]] == [0, 1]
    boxes = data_of((tmp_path / "p.html").read_text("utf-8"))["boxes"]
    assert next(box for box in boxes if box["name"] == "/part/Exp")["us"] == data["results"]["/part/Exp"]["value"]


def test_sizes_that_a_branch_forbids_stay_open(tmp_path: Path) -> None:
    """onnxruntime rejects a model with fixed sizes for the branch that they do not take."""
    weights = {f"w{k}": np.random.default_rng(k).standard_normal((k, 3)).astype("f") for k in (8, 4)}
    network = model_of(
        """(float[?, ?] x, bool c) => (float[?, 3] y) { y = If (c) <then_branch = t () => (float[?, 3] p) { p = MatMul(x, w8) },
        else_branch = e () => (float[?, 3] q) { q = MatMul(x, w4) }> }""",
        weights,
    )
    (tmp_path / "m.onnx").write_bytes(network.SerializeToString())
    done = call("explain", tmp_path / "m.onnx", *GPU, "--shape", "x=2x8", "--input", "c=1")
    assert done.returncode == 0, done.stderr
    assert "sizes stay open: with these onnxruntime rejects the model" in done.stderr
    assert "graphs inside" in done.stdout or "(body)" in done.stdout


def loops(count: int) -> bytes:
    """A graph with `count` Ifs, each with two bodies of float64 nodes."""
    text = "".join(
        f"""v{k + 1} = If (c) <then_branch = t{k} () => (double[4] p{k}) {{ p{k} = Sin(v{k}) }},
        else_branch = e{k} () => (double[4] q{k}) {{ q{k} = Cos(v{k}) }}> """
        for k in range(count)
    )
    return model_of(f"(double[4] v0, bool c) => (double[4] v{count}) {{ {text} }}").SerializeToString()


def test_many_bodies_are_told_together(tmp_path: Path) -> None:
    """A network of 224 nodes with 50 bodies had 479 lines."""
    (tmp_path / "m.onnx").write_bytes(loops(16))
    lines = printed("explain", tmp_path / "m.onnx", *GPU).splitlines()
    assert [line for line in lines if line.startswith("32 graphs inside")]
    assert len([line for line in lines if line.startswith("graph ")]) == 1
    assert "16 Sin" in " ".join(lines)
    assert len(lines) < 30


def test_one_line_a_reason_and_one_number_of_dispatches(tmp_path: Path) -> None:
    """A sentence stood there for each op type, two numbers of dispatches, 0 B of weights, names of 20 digits, nodes
    fused into themselves."""
    rng = np.random.default_rng(0)
    model = model_of(
        "(float[N, 64] x) => (float[N, 32] y) { h = MatMul(x, w) a = Add(h, b) y = Relu(a) }",
        {"w": rng.normal(size=(64, 32)).astype("f"), "b": rng.normal(size=32).astype("f")},
    )
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
    # a sentence is there once
    table = " ".join(re.sub("[│┃]", "", printed("explain", tmp_path / "m.onnx").split("━")[-1]).split())
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
    session = InferenceSession(
        model_of("""(float[4] x, bool c) => (float[4] y) {
        a = Neg(x) y = If (c) <then_branch = t () => (float[4] p) { q = Neg(a) p = Exp(q) }, else_branch = e () => (float[4] r) { r = Neg(a) }> }
        """).SerializeToString(),
        provider_options={"placement": "gpu"},
    )
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
    (tmp_path / "m.onnx").write_bytes(
        model_of("(float[4, 256] x) => (float[4, 256] y) { y = MatMul(x, w) }", {"w": weights}).SerializeToString()
    )
    command = ("explain", str(tmp_path / "m.onnx"), "-o", "placement=gpu", "-o", "memory_limit_mb=7")
    found = parsed(*command, "--json")["device_memory"]
    assert found["limit_nbytes"] == 7 << 20
    assert found["session_nbytes"] == sum(found["session"].values())
    text = " ".join(printed(*command).split())
    held = "none yet" if not found["session_nbytes"] else f"{found['session_nbytes'] / 1024:.1f} KiB"
    assert f"device memory of this session: {held}; memory_limit_mb allows 7.0 MiB" in text
