"""`compress` takes weights as exporters write them, and says what it leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from ort_gpu_ep import cli
from ort_gpu_ep.compression import compress
from ort_gpu_ep.errors import ModelError
from tests.compressed.test_compress import run_plain
from tests.compressed.test_compressed_sessions import device_nbytes
from tests.compressed.test_packed_products import close
from tests.plugin.cases import open_session

RNG = np.random.default_rng(11)
node = helper.make_node


def normal(*shape: int) -> Any:
    return (RNG.normal(size=shape) / 8).astype("f")


def model_of(
    nodes: list[onnx.NodeProto],
    held: dict[str, Any],
    inputs: Any = (("x", 1, ["n", 64]),),
    outputs: tuple[str, ...] = ("y",),
    functions: Any = (),
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    opsets = [helper.make_opsetid("", opset), *[helper.make_opsetid(f.domain, 1) for f in functions]]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


def compressed(model: onnx.ModelProto, folder: Path, method: str, **more: Any) -> tuple[Any, onnx.ModelProto]:
    onnx.save(model, folder / "net.onnx")
    (folder / "small.onnx").unlink(missing_ok=True)
    report = compress(folder / "net.onnx", folder / "small.onnx", method, **more)
    return report, onnx.load(folder / "small.onnx")


PRODUCT = node("MatMul", ["x", "w"], ["y"])
LINEAR = helper.make_function(
    "mine", "Linear", ["a", "b"], ["c"], [node("MatMul", ["a", "b"], ["c"])], [helper.make_opsetid("", 17)]
)
FORMS = {
    "a Constant node": model_of(
        [node("Constant", [], ["w"], value=numpy_helper.from_array(normal(64, 48))), PRODUCT], {}
    ),
    "a list of floats": model_of(
        [
            node("Constant", [], ["f"], value_floats=normal(64 * 48).tolist()),
            node("Reshape", ["f", "s"], ["w"]),
            PRODUCT,
        ],
        {"s": np.array([64, 48])},
    ),
    "transposed": model_of([node("Transpose", ["v"], ["w"]), PRODUCT], {"v": normal(48, 64)}),
    "moved twice": model_of(
        [node("Identity", ["u"], ["v"]), node("Reshape", ["v", "s"], ["w"]), PRODUCT],
        {"u": normal(48, 64), "s": np.array([64, -1])},
    ),
    "float16, cast": model_of([node("Cast", ["v"], ["w"], to=1), PRODUCT], {"v": normal(64, 48).astype("e")}),
    "a local function": model_of(
        [node("Linear", ["x", "w"], ["y"], domain="mine")], {"w": normal(64, 48)}, functions=[LINEAR]
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_found_in_every_style(form: str, tmp_path: Path) -> None:
    feeds = {"x": RNG.normal(size=(3, 64)).astype("f")}
    report, made = compressed(FORMS[form], tmp_path, "codebook8")
    assert [layer.method for layer in report.layers] == ["codebook8"]
    assert (tmp_path / "small.onnx").stat().st_size < 64 * 48 + 256 * 4 + 1500
    wanted = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    assert np.linalg.norm(run_plain(made, feeds) - wanted) < 0.03 * np.linalg.norm(wanted)


def test_a_weight_with_other_readers_stays_for_them(tmp_path: Path) -> None:
    """int4 takes the product's place: what an output, a subgraph, or the same node reads besides must not go with the
    weight."""
    body = [
        helper.make_graph([node("MatMul", ["x", "w"], [n])], n, [], [helper.make_empty_tensor_value_info(n)])
        for n in "te"
    ]
    for nodes, outputs in (
        ([PRODUCT], ("y", "w")),
        ([node("MatMul", ["w", "w"], ["v"]), node("MatMul", ["x", "v"], ["y"])], ("y",)),
        (
            [node("MatMul", ["x", "w"], ["z"]), node("If", ["c"], ["y"], then_branch=body[0], else_branch=body[1])],
            ("z", "y"),
        ),
    ):
        inputs = (("x", 1, ["n", 64]), *([("c", 9, [])] if len(nodes[-1].attribute) else []))
        report, _ = compressed(model_of(nodes, {"w": normal(64, 64)}, inputs, outputs), tmp_path, "int4")
        assert [layer.method for layer in report.layers] == ["int8"]


@pytest.mark.parametrize("method", ["int8", "int4", "codebook4", "prune70"])
def test_names_that_the_model_has_are_left_to_it(method: str, tmp_path: Path) -> None:
    """`w.scale` is a constant of the model's, and nodes without a name get none that another has."""
    endings = ("scale", "int8", "int4", "codes", "values", "entries", "starts")
    nodes = [node("Gemm", ["x", "w", "b"], ["h"], beta=0.5), node("Gemm", ["h", "v", "b"], ["y.product"])]
    nodes += [
        node("Mul", ["y.product", "w.scale"], ["h.product"]),
        *[node("Add", ["h.product", f"w.{e}"], [f"out.{e}"]) for e in endings[1:]],
    ]
    held = {"w": normal(64, 48), "v": normal(48, 48), "b": normal(48), **{f"w.{e}": normal(48) for e in endings}}
    report, made = compressed(model_of(nodes, held, outputs=tuple(f"out.{e}" for e in endings[1:])), tmp_path, method)
    assert report.output_error < (0.9 if method == "prune70" else 0.3)
    feeds = {"x": RNG.normal(size=(2, 64)).astype("f")}
    close(open_session(str(tmp_path / "small.onnx"), verify=1).session.run(None, feeds)[0], run_plain(made, feeds))


@pytest.mark.parametrize("method", ["int8", "codebook5", "prune60"])
def test_transposed_convolutions_are_compressed(method: str, tmp_path: Path) -> None:
    model = model_of(
        [node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])],
        {"w": normal(24, 16, 3, 3)},
        (("x", 1, ["n", 24, 5, 6]),),
    )
    x = RNG.normal(size=(12, 24, 5, 6)).astype("f")
    report, made = compressed(model, tmp_path, method, calibrate={"x": x} if method == "prune60" else None)
    (layer,) = report.layers
    assert layer.op == "ConvTranspose"
    assert layer.packed_nbytes < 0.3 * layer.nbytes
    if method == "prune60":
        assert layer.output_error == pytest.approx(report.output_error, rel=0.2)
    opened = open_session(str(tmp_path / "small.onnx"), verify=1)
    close(opened.session.run(None, {"x": x})[0], run_plain(made, {"x": x}))
    assert device_nbytes(opened) < 0.5 * layer.nbytes


def test_what_is_left_is_said(tmp_path: Path) -> None:
    body = [
        helper.make_graph(
            [node("MatMul", ["x", "w"], [n])],
            n,
            [],
            [helper.make_empty_tensor_value_info(n)],
            [numpy_helper.from_array(normal(64, 64), "w")],
        )
        for n in "te"
    ]
    inputs = (("x", 1, ["n", 64]), ("c", 9, []))
    choice = node("If", ["c"], ["y"], then_branch=body[0], else_branch=body[1])
    with pytest.raises(ModelError, match=r"nothing to compress.* there are 2 float32 in the body of If \(32,768 B\)"):
        compressed(model_of([choice], {}, inputs), tmp_path, "int8")
    half = [node("Cast", ["x"], ["a"], to=10), node("MatMul", ["a", "h"], ["z"])]
    model = model_of(
        [choice, *half, node("MatMul", ["x", "v"], ["u"])],
        {"h": normal(64, 20).astype("e"), "v": normal(64, 64)},
        inputs,
        ("y", "z", "u"),
    )
    report, _ = compressed(model, tmp_path, "int8")
    assert "left as they are: 2 float32 in the body of If (32,768 B), 1 float16 of MatMul (2,560 B)" in report.notes


@pytest.mark.parametrize(
    ("nodes", "inputs", "compared"),
    [
        (
            [node("MatMul", ["x", "w"], ["h"]), node("Concat", ["h", "q"], ["y"], axis=1)],
            (("x", 1, ["n", 64]), ("q", 1, [7, "m"])),
            "outputs were not compared: the model does not run on random",
        ),
        (
            [node("AveragePool", ["i"], ["x"], kernel_shape=[4, 1]), PRODUCT],
            (("i", 1, [1, 1, "n", 64]),),
            "warning: outputs were compared on random inputs",
        ),
    ],
)
def test_inputs_that_are_not_any_numbers(nodes: Any, inputs: Any, compared: str, tmp_path: Path) -> None:
    """The model is compressed all the same: with a note, or on sizes that it runs on."""
    report, _ = compressed(model_of(nodes, {"w": normal(64, 48)}, inputs, ("y",)), tmp_path, "int8")
    assert any(compared in note for note in report.notes), report.notes
    assert (report.output_error is None) == ("not compared" in compared)
    assert sum("outputs differ" in line for line in report.lines()) == ("not compared" not in compared)


def test_outputs_that_are_no_numbers_do_not_count(tmp_path: Path) -> None:
    report, _ = compressed(
        model_of([PRODUCT, node("Sqrt", ["y"], ["z"])], {"w": normal(64, 48)}, outputs=("z",)), tmp_path, "int8"
    )
    assert 0 < report.output_error < 0.1
    # squares are infinite
    report, _ = compressed(model_of([PRODUCT], {"w": normal(64, 48) * np.float32(1e38)}), tmp_path, "int8")
    assert 0 < report.layers[0].weight_error < 0.02


def test_calibration_data_is_taken_as_people_have_it(tmp_path: Path) -> None:
    """float64, more samples than one batch, a scalar beside them, Gemm's transposed input and its bias of one row."""
    inputs = (("x", 1, ["n", 64]), ("s", 7, []))
    scalar = [PRODUCT, node("Cast", ["s"], ["f"], to=1), node("Mul", ["y", "f"], ["z"])]
    report, _ = compressed(
        model_of(scalar, {"w": normal(64, 48)}, inputs, ("z",)),
        tmp_path,
        "prune50",
        calibrate={"x": RNG.normal(size=(280, 64)), "s": np.array(2)},
    )
    assert report.compared.predictions == report.compared.samples == 70
    turned = model_of(
        [node("Gemm", ["x", "w", "b"], ["y"], transA=1)],
        {"w": normal(64, 48), "b": normal(1, 48)},
        (("x", 1, [64, "n"]),),
    )
    for method in ("int8", "prune50"):
        assert compressed(turned, tmp_path, method, calibrate={"x": RNG.normal(size=(64, 30))})[0].output_error < 0.6
    with pytest.raises(ModelError, match="'x' is <U1; the model takes float32"):
        compressed(turned, tmp_path, "int8", calibrate={"x": np.full((64, 30), "a")})


def test_what_a_quantizer_of_activations_leaves_is_int8_too(tmp_path: Path) -> None:
    model = model_of(
        [node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=32), node("Gather", ["t", "i"], ["g"])],
        {"w": normal(1, 128, 16), "r": normal(1, 128, 32), "t": normal(60, 32) + 1},
        (("x", 1, [5, "n", 16]), ("i", 7, ["m"])),
        ("h", "g"),
    )
    report, made = compressed(model, tmp_path, "int8", calibrate={"x": RNG.normal(size=(5, 7, 16)), "i": np.arange(5)})
    assert [(layer.op, layer.method) for layer in report.layers] == [
        ("Gather", "int8"),
        ("LSTM", "int8"),
        ("LSTM", "int8"),
    ]
    assert max(layer.weight_error for layer in report.layers) < 0.02
    assert sum(n.op_type == "DequantizeLinear" for n in made.graph.node) >= 3


def test_rows_of_few_elements_stay_as_they_are(tmp_path: Path) -> None:
    held = {"w": normal(1, 2048), "v": normal(2048, 32)}
    report, _ = compressed(
        model_of([PRODUCT, node("MatMul", ["y", "v"], ["z"])], held, (("x", 1, ["n", 1]),), ("z",)), tmp_path, "int4"
    )
    assert [layer.method for layer in report.layers] == ["float32", "int4"]


def test_patterns_may_be_names_as_they_are(tmp_path: Path) -> None:
    name = "/layers[0]/a=b/MatMul 1"
    onnx.save(model_of([node("MatMul", ["x", "w"], ["y"], name)], {"w": normal(64, 48)}), tmp_path / "net.onnx")
    done = CliRunner().invoke(
        cli.app,
        [
            "compress",
            str(tmp_path / "net.onnx"),
            "--method",
            "int8",
            "--layers",
            f"{name}=codebook4",
            "--out",
            str(tmp_path / "out.onnx"),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "codebook4" in done.output
    done = CliRunner().invoke(
        cli.app,
        [
            "compress",
            str(tmp_path / "net.onnx"),
            "--method",
            "int8",
            "--layers",
            "int4",
            "--out",
            str(tmp_path / "other.onnx"),
        ],
    )
    assert done.exit_code == 1
    assert "expected PATTERN=METHOD" in done.output


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(model_of([PRODUCT], {"w": normal(64, 48)}), tmp_path / "net.onnx")

    def full(self: Path, mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "chmod", full)
        with pytest.raises(ModelError, match=r"out\.onnx \([\d,]+ B\) can't be written: No space left"):
            compress(tmp_path / "net.onnx", tmp_path / "out.onnx", "int8")

    def tell(text: str, part: float) -> None:
        if part > 0.9:
            (tmp_path / "out.onnx").touch()

    with pytest.raises(ModelError, match=r"out\.onnx exists by now"):
        compress(tmp_path / "net.onnx", tmp_path / "out.onnx", "int8", tell=tell)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx", "out.onnx"]
