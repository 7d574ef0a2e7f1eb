"""The command `compress` and its function: small files that ONNX Runtime's CPU and our kernels run with the same
result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from ort_gpu_ep import cli
from ort_gpu_ep.compression import compress
from ort_gpu_ep.compression.methods import Method, centroids, nearest, parse_method
from ort_gpu_ep.compression.prune import by_magnitude, by_samples
from ort_gpu_ep.errors import ConfigError, ModelError
from tests.compressed.test_compressed_sessions import TROUBLES, device_nbytes
from tests.compressed.test_packed_products import close
from tests.ops.single_node import on_cpu
from tests.plugin.cases import open_session

RNG = np.random.default_rng(6)


def normal(*shape: int) -> Any:
    return (RNG.normal(size=shape) / np.sqrt(shape[-1])).astype("f")


def network(opset: int = 17) -> onnx.ModelProto:
    """Convolution, both orientations of Gemm, MatMul, LSTM: [n, 3, 12, 12] -> [n, 10]."""
    held = {
        "wc": normal(24, 3, 5, 5),
        "bc": normal(24),
        "w1": normal(96, 600),
        "b1": normal(96),
        "w2": normal(96, 80),
        "w3": normal(80, 64),
        "wl": normal(1, 128, 8),
        "rl": normal(1, 128, 32),
        "w4": normal(32, 10),
        "b4": normal(10),
        "seq": np.array([8, -1, 8]),
        "last": np.array([-1, 32]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "wc", "bc"], ["c"], "conv", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "w1", "b1"], ["g"], "first", transB=1, alpha=0.5, beta=2.0),
        helper.make_node("Relu", ["g"], ["h"]),
        helper.make_node("Gemm", ["h", "w2"], ["i"], "second"),
        helper.make_node("MatMul", ["i", "w3"], ["j"], "third"),
        helper.make_node("Reshape", ["j", "seq"], ["k"]),
        helper.make_node("LSTM", ["k", "wl", "rl"], ["", "l"], "lstm", hidden_size=32),
        helper.make_node("Reshape", ["l", "last"], ["m"]),
        helper.make_node("Gemm", ["m", "w4", "b4"], ["y"], "head"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, ["n", 3, 12, 12])],
        [helper.make_tensor_value_info("y", 1, ["n", 10])],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(network(), path)
    return path


METHODS = ["int8", "int4", "codebook2", "codebook5", "codebook8", "prune80", "prune90+codebook4"]


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=pytest.mark.nightly if m == "codebook5" else []) for m in METHODS]
)
def test_files_run_everywhere_with_the_same_result(method: str, model: Path) -> None:
    out = model.with_name("small.onnx")
    report = compress(model, out, method)
    made = onnx.load(out)
    onnx.checker.check_model(made)
    bits = {"int8": 8, "int4": 5, "codebook2": 2, "codebook5": 5, "codebook8": 8}.get(method, 5)
    assert out.stat().st_size < model.stat().st_size * bits / 32 + 12_000
    # the head's weights are few
    assert {layer.name for layer in report.layers} == {"conv", "first", "second", "third", "lstm"}
    assert report.file_nbytes == (model.stat().st_size, out.stat().st_size)
    feeds = {"x": RNG.normal(size=(5, 3, 12, 12)).astype("f")}
    opened = open_session(str(out), verify=1)
    close(opened.session.run(None, feeds)[0], run_plain(made, feeds))
    assert not [e for e in opened.state.events if e.kind in TROUBLES], opened.state.events
    assert all(n.device != "cpu" for r in opened.state.reports for n in r.nodes)
    assert device_nbytes(opened) < model.stat().st_size


def run_plain(made: onnx.ModelProto, feeds: Any) -> Any:
    """By ONNX Runtime's CPU, which must not round activations."""
    from ort_gpu_ep.compression.samples import session_of

    return session_of(made).run(None, feeds)[0]


def test_the_report_tells_the_error_that_is_there(model: Path) -> None:
    out = model.with_name("small.onnx")
    report = compress(model, out, "codebook3", layers=[("first", "float32"), ("w3", "int8"), ("lstm", "float32")])
    held = {i.name: numpy_helper.to_array(i) for i in onnx.load(out).graph.initializer}
    assert "w1" in held
    by_name = {layer.name: layer for layer in report.layers}
    assert (by_name["first"].method, by_name["first"].weight_error) == ("float32", 0.0)
    assert by_name["third"].method == "int8"
    assert 0.1 < by_name["second"].weight_error < 0.25
    dense = held["w3.int8"].astype("d") * held["w3.scale"]
    original = numpy_helper.to_array(next(i for i in onnx.load(model).graph.initializer if i.name == "w3"))
    assert by_name["third"].weight_error == pytest.approx(
        np.linalg.norm(dense - original) / np.linalg.norm(original), rel=1e-3
    )
    assert by_name["third"].packed_nbytes == held["w3.int8"].nbytes + held["w3.scale"].nbytes


def test_max_error_takes_gentler_methods(model: Path) -> None:
    report = compress(model, model.with_name("small.onnx"), "codebook2", max_error=0.06)
    assert {layer.method for layer in report.layers} <= {"codebook5", "codebook6"}
    assert all(layer.weight_error <= 0.06 and layer.asked == "codebook2" for layer in report.layers)


def test_samples_make_up_for_pruned_weights(model: Path, tmp_path: Path) -> None:
    x = RNG.normal(size=(300, 3, 12, 12)).astype("f")
    np.savez(tmp_path / "data.npz", x=x)
    blind = compress(model, tmp_path / "blind.onnx", "prune80", layers=[("conv", "float32"), ("lstm", "float32")])
    fitted = compress(
        model,
        tmp_path / "fitted.onnx",
        "prune80",
        layers=[("conv", "float32"), ("lstm", "float32")],
        calibrate=tmp_path / "data.npz",
    )
    assert "magnitude alone" in " ".join(blind.notes)
    assert not fitted.notes
    by_name = {layer.name: layer for layer in fitted.layers}
    assert all(by_name[n].density <= 0.21 for n in ("first", "second", "third"))
    original = on_cpu(onnx.load(model), {"x": x[:64]})[0]

    def error(name: str) -> float:
        return float(
            np.linalg.norm(run_plain(onnx.load(tmp_path / name), {"x": x[:64]}) - original) / np.linalg.norm(original)
        )

    assert error("fitted.onnx") < 0.7 * error("blind.onnx")


def test_int8_with_samples_quantizes_activations_too(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np.savez(tmp_path / "data.npz", x=RNG.normal(size=(64, 3, 12, 12)).astype("f"))
    report = compress(model, tmp_path / "small.onnx", "int8", calibrate=tmp_path / "data.npz")
    assert not caplog.records, "onnxruntime's quantizer advises what was done already"
    made = onnx.load(tmp_path / "small.onnx")
    assert sum(n.op_type == "QuantizeLinear" for n in made.graph.node) >= 4
    assert report.agreement is not None
    assert report.agreement > 0.9  # of random weights: what onnxruntime's quantizer leaves of them
    opened = open_session(str(tmp_path / "small.onnx"))
    feeds = {"x": RNG.normal(size=(4, 3, 12, 12)).astype("f")}
    wanted = run_plain(made, feeds)
    assert np.linalg.norm(opened.session.run(None, feeds)[0] - wanted) < 0.05 * np.linalg.norm(wanted)
    with pytest.raises(ConfigError, match="--layers"):
        compress(model, tmp_path / "other.onnx", "int8", calibrate=tmp_path / "data.npz", layers=[("conv", "int8")])


def test_it_is_deterministic(model: Path) -> None:
    files = [model.with_name(f"{k}.onnx") for k in range(2)]
    for file in files:
        compress(model, file, "codebook4")
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_command(model: Path) -> None:
    out = model.with_name("small.onnx")
    done = CliRunner().invoke(
        cli.app,
        ["compress", str(model), "--method", "int4", "--layers", "first=codebook6", "--out", str(out), "--json"],
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {layer["method"] for layer in found["layers"]} == {"int4", "int8", "codebook6"}
    printed = CliRunner().invoke(
        cli.app,
        ["compress", str(model), "--method", "int4", "--out", str(model.with_name("other.onnx"))],
        env={"COLUMNS": "60"},
    )
    text = " ".join(printed.output.split())
    assert "on 1 random input" in text
    assert "--labels LABELS.npy" in text
    assert "prediction" not in text, "one random input says nothing of it"
    assert [line for line in printed.output.splitlines() if len(line) > 60 and not line.startswith("written: ")] == []
    again = CliRunner().invoke(cli.app, ["compress", str(model), "--method", "int4", "--out", str(out)])
    assert again.exit_code == 1
    assert "exists" in again.output


def trained(folder: Path, count: int) -> tuple[Path, Any, Any]:
    """A classifier of ten noisy patterns, samples of it and their classes. Its centres are its weights: it is right
    nearly always."""
    rng = np.random.default_rng(11)
    centres = rng.normal(size=(10, 256)).astype("f")
    classes = np.arange(count) // max(count // 10, 1) % 10  # sorted, as files of samples often are
    x = (centres[classes] + rng.normal(size=(count, 256)) * 3).astype("f")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "classes")]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, ["n", 256])],
        [helper.make_tensor_value_info("y", 1, ["n", 10])],
        [numpy_helper.from_array(centres.T.copy(), "w")],
    )
    path = folder / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path, x, classes


def test_accuracy_is_of_samples_that_nothing_was_fitted_to(tmp_path: Path) -> None:
    path, x, classes = trained(tmp_path, 800)
    report = compress(path, tmp_path / "small.onnx", "prune90", calibrate={"x": x}, labels=classes)
    assert report.compared is not None
    assert (report.on, report.compared.samples, report.compared.predictions) == ("held out", 200, 200)
    held = np.arange(800) % 4 == 3
    right = [
        (run_plain(onnx.load(p), {"x": x[held]}).argmax(-1) == classes[held]).mean()
        for p in (path, tmp_path / "small.onnx")
    ]
    assert report.accuracy == pytest.approx(right)
    assert right[0] > 0.9
    text = " ".join(report.lines())
    assert (
        f"right predictions: {round(200 * right[0])} of 200 ({right[0]:.1%}) -> {round(200 * right[1])} of 200 "
        f"({right[1]:.1%})" in text
    )


def test_few_samples_give_no_percentage(tmp_path: Path) -> None:
    path, x, classes = trained(tmp_path, 40)
    text = " ".join(compress(path, tmp_path / "a.onnx", "int8", calibrate={"x": x, "y": classes}).lines()).partition(
        "outputs differ"
    )[2]
    assert "10 samples held out" in text
    assert "of 10 ->" in text
    assert "%" not in text
    few = compress(path, tmp_path / "b.onnx", "int8", calibrate={"x": x[:5]})
    assert (few.on, few.accuracy) == ("fitted to", None)
    assert "too few samples to hold some out" in " ".join(few.notes)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(39, int), "an integer for each of the 40 samples"),
        (np.full(40, 10), "expected [10] of 0 to 9"),
        (np.zeros(40), "labels are float64"),
    ],
)
def test_labels_that_do_not_fit(labels: Any, message: str, tmp_path: Path) -> None:
    path, x, _ = trained(tmp_path, 40)
    with pytest.raises(ModelError) as caught:
        compress(path, tmp_path / "a.onnx", "int8", calibrate={"x": x}, labels=labels)
    assert message in str(caught.value)
    assert not (tmp_path / "a.onnx").exists()


def test_methods_are_drawn(tmp_path: Path) -> None:
    path, x, classes = trained(tmp_path, 400)
    np.savez(tmp_path / "data.npz", x=x)
    np.save(tmp_path / "labels.npy", classes)
    given = [
        "compress",
        str(path),
        "--method",
        "prune80",
        "--out",
        str(tmp_path / "s.onnx"),
        "--plot",
        str(tmp_path / "p.svg"),
        "--json",
    ]
    done = CliRunner().invoke(
        cli.app, [*given, "--calibrate", str(tmp_path / "data.npz"), "--labels", str(tmp_path / "labels.npy")]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert set(found["methods"]) == {"int8", "int4", "codebook5", "prune50", "prune90"}
    assert found["methods"]["prune90"]["file_nbytes"][1] < found["methods"]["int8"]["file_nbytes"][1]
    picture = (tmp_path / "p.svg").read_text("utf-8")
    for name in ("prune80", "uncompressed", "right predictions, %, 100 samples held out"):
        assert f"<!-- {name}" in picture
    done = CliRunner().invoke(cli.app, given)
    assert "--plot needs samples" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"method": "int3"}, ConfigError, "int8, int4, codebookN"),
        ({"method": "codebook7"}, ConfigError, "2, 3, 4, 5, 6, 8"),
        ({"method": "prune0"}, ConfigError, "expected one of"),
        ({"layers": [("nothing*", "int8")]}, ConfigError, "fits no layer; there are conv"),
        ({"layers": [("conv", "zip")]}, ConfigError, "'zip'"),
        ({"calibrate": {"z": np.zeros((4, 3, 12, 12), "f")}}, ModelError, r"expected one for each input: \['x'\]"),
        ({"calibrate": {"x": np.zeros((4, 3, 12, 11), "f")}}, ModelError, "expected samples of"),
        ({"calibrate": {"x": np.full((4, 3, 12, 12), np.nan, "f")}}, ModelError, "NaN"),
        ({"calibrate": {"x": np.zeros((0, 3, 12, 12), "f")}}, ModelError, "samples"),
        ({"max_error": 0.0}, ModelError, "because of --max-error"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: dict[str, Any], kind: type[Exception], message: str, model: Path
) -> None:
    out = model.with_name("small.onnx")
    with pytest.raises(kind, match=message):
        compress(model, out, **{"method": "codebook5", **arguments})
    assert [p.name for p in model.parent.iterdir()] == ["net.onnx"]  # nothing half-written


def test_models_that_cannot_be_compressed_are_named(tmp_path: Path) -> None:
    def refused(change: Callable[[onnx.ModelProto], object], message: str) -> None:
        made = network()
        change(made)
        onnx.save(made, tmp_path / "net.onnx")
        with pytest.raises(ModelError, match=message):
            compress(tmp_path / "net.onnx", tmp_path / "out.onnx", "codebook5")

    def poisoned(made: onnx.ModelProto) -> None:
        array = numpy_helper.to_array(made.graph.initializer[0]).copy()
        array[3, 1, 2, 2] = np.nan
        made.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "wc"))

    def emptied(made: onnx.ModelProto) -> None:
        del made.graph.node[:-1]
        made.graph.input[0].CopyFrom(helper.make_tensor_value_info("m", 1, ["n", 32]))

    refused(poisoned, "'wc' of conv: 1 elements are NaN")
    refused(emptied, "nothing to compress")
    (tmp_path / "net.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match="not an ONNX model"):
        compress(tmp_path / "net.onnx", tmp_path / "out.onnx", "int8")
    with pytest.raises(ModelError, match="is no file"):
        compress(tmp_path / "none.onnx", tmp_path / "out.onnx", "int8")
    onnx.save(network(), tmp_path / "net.onnx")
    compress(tmp_path / "net.onnx", tmp_path / "once.onnx", "codebook5")
    with pytest.raises(ModelError, match="compressed already"):
        compress(tmp_path / "once.onnx", tmp_path / "twice.onnx", "codebook5")


def test_older_opsets_are_brought_up(tmp_path: Path) -> None:
    onnx.save(network(opset=11), tmp_path / "net.onnx")
    compress(tmp_path / "net.onnx", tmp_path / "out.onnx", "codebook5")
    feeds = {"x": RNG.normal(size=(2, 3, 12, 12)).astype("f")}
    assert run_plain(onnx.load(tmp_path / "out.onnx"), feeds).shape == (2, 10)


def test_methods_get_gentler_until_nothing_changes() -> None:
    for text in (*METHODS, "prune99"):
        method: Method | None = parse_method(text)
        seen = []
        while method is not None:
            seen.append(str(method))
            method = method.gentler()
        assert seen[-1] == "float32"
        assert len(seen) == len(set(seen))


def test_centroids_are_those_of_the_weights() -> None:
    few = np.array([3, 1, 1, 2], "f")
    np.testing.assert_array_equal(centroids(few, 4), [1, 2, 3])
    weights = np.concatenate([RNG.normal(m, 0.01, 50_000) for m in (-2, 0, 1, 5)]).astype("f")
    np.testing.assert_allclose(centroids(weights, 4), [-2, 0, 1, 5], atol=0.01)
    values = np.array([-1, 0, 4], "f")
    np.testing.assert_array_equal(nearest(np.array([[-3, -0.6], [1.9, 2.1]]), values), [[0, 0], [1, 2]])


@pytest.mark.parametrize("percent", [50, 80, 95])
def test_pruning_keeps_what_it_is_told(percent: int) -> None:
    rows, samples = normal(40, 64), RNG.normal(size=(500, 64)).astype("f") @ normal(64, 64)
    keep = rows.size - rows.size * percent // 100
    fitted, blind = by_samples(rows, percent, samples), by_magnitude(rows, percent)
    assert np.count_nonzero(blind) == keep
    assert np.count_nonzero(fitted) <= keep

    def error(found: Any) -> float:
        return float(np.linalg.norm(samples @ (found - rows).T))

    assert error(fitted) < 0.9 * error(blind)
