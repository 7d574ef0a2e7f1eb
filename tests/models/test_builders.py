"""Every builder gives a valid, deterministic model of the published size whose outputs tell inputs apart."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from typer.testing import CliRunner

from models import BUILDERS, build, mobile, parameter_count
from models.__main__ import app
from models.builder import Net
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep.errors import ModelError

# Trainable parameters: published figures of the nets' own or torchvision's releases; from tcn on, sums done by hand.
PARAMETERS = {
    "lenet5": 61_706,
    "alexnet": 61_100_840,
    "squeezenet1_0": 1_248_424,
    "squeezenet1_1": 1_235_496,
    "googlenet": 6_998_552,
    "inception_v3": 23_834_568,  # without the auxiliary classifier's 3,326,696
    "resnet50": 25_557_032,
    "mobilenet_v1": 4_231_976,
    "mobilenet_v2": 3_504_872,
    "shufflenet": 1_865_728,
    "unet": 1_940_834,  # test_unet_of_the_papers_width_has_its_size has the published figure
    "tcn": (1 * 7 + 1 + 15 * (25 * 7 + 1) + 1 + 1) * 25 + 26 * 10,
    "har_lstm": 4 * 32 * (9 + 32 + 2) + 4 * 32 * (32 + 32 + 2) + 32 * 6 + 6,
    "mlp_16": 17 * 16,
    "mlp_16x3": 3 * 17 * 16,
    "mlp_256": 257 * 256,
    "mlp_784": 785 * 256 + 257 * 128 + 129 * 16,
    "encoder": 6 * (4 * 385 * 384 + 385 * 1536 + 1537 * 384 + 4 * 384),
    "detector": 27 * 16
    + 144 * 32
    + 288 * 64
    + 576 * 64
    + 2 * (16 + 32 + 64 + 64)
    + 577 * 64
    + 65 * (3 + 12)
    + 3137 * 128
    + 129 * (21 + 4),
    "decoder": (512 + 1024) * 256 + 4 * (4 * 257 * 256 + 257 * 1024 + 1025 * 256 + 4 * 256) + 2 * 256 + 257 * 512,
    "table_rows": 3 * 129 * 128 + 2 * 128 + 129 * 30,
}
GROWING = ("decoder", "table_rows")
"""They compute for one input, with a state that grows."""

CLASSIFIERS = [
    n for n in BUILDERS if not n.startswith("mlp") and n not in ("unet", "tcn", "encoder", "detector", *GROWING)
]


@dataclass(frozen=True)
class Built:
    """A built model and its serialized form."""

    name: str
    model: onnx.ModelProto
    data: bytes


def serialize(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString(deterministic=True))


def run(model: onnx.ModelProto, data: bytes | None = None, seed: int = 0, **dims: int) -> dict[str, npt.NDArray[Any]]:
    """Outputs by name on ORT CPU for random inputs."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(data or serialize(model), options, providers=["CPUExecutionProvider"])
    values = session.run(None, make_inputs(model_inputs(model, **dims), seed))
    return {output.name: value for output, value in zip(session.get_outputs(), values, strict=True)}


def assert_tells_classes_apart(probabilities: npt.NDArray[Any]) -> None:
    """Neither saturated, which would hide errors of the layers before, nor uniform."""
    assert probabilities.sum() == pytest.approx(1, abs=1e-5)
    assert 1.1 / probabilities.size < probabilities.max() < 0.8
    assert probabilities.min() > 1e-9


@pytest.fixture(scope="module", params=BUILDERS)
def built(request: pytest.FixtureRequest) -> Built:
    model = build(request.param)
    return Built(request.param, model, serialize(model))


def test_is_valid(built: Built) -> None:
    onnx.checker.check_model(built.data, full_check=True)
    assert built.model.ir_version <= 10
    assert [(o.domain, o.version) for o in built.model.opset_import] == [("", 17)]
    names = [node.name for node in built.model.graph.node]
    assert len(set(names)) == len(names)
    assert all(names)


def test_has_the_published_number_of_parameters(built: Built) -> None:
    assert parameter_count(built.model) == PARAMETERS[built.name]


def test_equal_parameters_give_equal_bytes(built: Built) -> None:
    assert serialize(build(built.name)) == built.data


def test_outputs_are_finite_and_depend_on_the_input(built: Built) -> None:
    outputs, others = (run(built.model, built.data, seed) for seed in (0, 1))
    if built.name in CLASSIFIERS:
        assert_tells_classes_apart(outputs["probabilities"])
    for declared in built.model.graph.output:
        value = outputs[declared.name]
        for dim, size in zip(declared.type.tensor_type.shape.dim, value.shape, strict=True):
            assert not dim.dim_value or dim.dim_value == size
        assert np.isfinite(value).all()
        if declared.name != "image_index":
            other = others[declared.name]
            assert value.std() > 1e-3 * np.abs(value).max(), f"{declared.name} is constant"
            assert value.shape != other.shape or not np.allclose(value, other, rtol=1e-3), (
                f"{declared.name} ignores its input"
            )


@pytest.mark.parametrize("name", [name for name in BUILDERS if name not in ("detector", *GROWING)])
def test_symbolic_batch_computes_each_row_alone(name: str) -> None:
    model = build(name, batch="N")
    feeds = make_inputs(model_inputs(model, N=2))
    session = ort.InferenceSession(serialize(model), providers=["CPUExecutionProvider"])
    (both,) = session.run(None, feeds)
    (last,) = session.run(None, {key: value[1:] for key, value in feeds.items()})
    assert both.shape[0] == 2
    np.testing.assert_allclose(both[1:], last, rtol=1e-3, atol=1e-5)


def test_seed_changes_the_weights() -> None:
    assert serialize(build("mlp_16", seed=1)) != serialize(build("mlp_16"))


def test_unet_of_the_papers_width_has_its_size() -> None:
    assert parameter_count(build("unet", width=64, classes=1)) == 31_030_593


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 8])
def test_shufflenet_groups(groups: int) -> None:
    published = {1: 1_531_936, 2: 1_733_848, 3: 1_865_728, 4: 1_968_344, 8: 2_434_768}
    model = build("shufflenet", groups=groups, size=64)
    assert parameter_count(model) == published[groups]
    assert np.isfinite(run(model)["probabilities"]).all()


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("hidden", [32, 256])
def test_lstm_sizes(hidden: int, layers: int) -> None:
    model = build("har_lstm", hidden=hidden, layers=layers)
    onnx.checker.check_model(model, full_check=True)
    recurrent = 4 * hidden * (9 + hidden + 2) + (layers - 1) * 4 * hidden * (2 * hidden + 2)
    assert parameter_count(model) == recurrent + (hidden + 1) * 6
    assert [node.op_type for node in model.graph.node].count("LSTM") == layers
    assert_tells_classes_apart(run(model)["probabilities"])


def test_tcn_sees_as_far_as_its_dilations_reach() -> None:
    """Two convolutions a level: 1 + 2 · (kernel - 1) · (2^levels - 1) steps."""
    model = build("tcn", levels=3, kernel=3, steps=64)
    session = ort.InferenceSession(serialize(model), providers=["CPUExecutionProvider"])
    feeds = make_inputs(model_inputs(model))
    (reference,) = session.run(None, feeds)
    field = 1 + 2 * 2 * 7
    for step, is_seen in ((63 - field, False), (64 - field, True), (63, True)):
        moved = {"sequence": feeds["sequence"].copy()}
        moved["sequence"][..., step] += 100
        assert np.array_equal(session.run(None, moved)[0], reference) is not is_seen


def test_detector_finds_another_number_of_boxes_in_each_image() -> None:
    model = build("detector", batch="N")
    outputs = run(model, N=3)
    counts = np.bincount(outputs["image_index"], minlength=3)
    assert len(set(counts.tolist())) > 1
    assert counts.min() > 0
    assert counts.max() < 200  # the score and overlap limits decide, not max_boxes
    assert outputs["boxes"].shape == (counts.sum(), 4)
    assert outputs["boxes"].min() >= 0
    assert outputs["boxes"].max() <= 160
    assert (outputs["boxes"][:, :2] <= outputs["boxes"][:, 2:]).all()
    assert outputs["objectness"].min() >= 0.5
    np.testing.assert_allclose(outputs["scores"].sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_detector_keeps_its_boxes_under_rounding(seed: int) -> None:
    """No score or overlap is so near its limit that another order of additions would change the number of boxes."""
    model = build("detector")
    session = ort.InferenceSession(serialize(model), providers=["CPUExecutionProvider"])
    (image,) = make_inputs(model_inputs(model), seed).values()
    exact, moved = (session.run(None, {"image": value}) for value in (image, image * np.float32(1 + 3e-6)))
    for a, b in zip(exact, moved, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-2)


def test_channel_shuffle_interleaves_the_groups() -> None:
    net = Net("shuffle")
    net.output("y", mobile._shuffle(net, net.input("x", [1, 6, 2, 2]), groups=3, side=2), [1, 6, 2, 2])
    session = ort.InferenceSession(serialize(net.model()), providers=["CPUExecutionProvider"])
    x = np.arange(24, dtype=np.float32).reshape(1, 6, 2, 2)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x[:, [0, 2, 4, 1, 3, 5]])


def test_decoder_step_by_step_is_the_decoder_with_all_before_it() -> None:
    """What a step attends to is its whole cache: another first token changes the last logits."""
    session = ort.InferenceSession(serialize(build("decoder")), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    last = []
    for first in (3, 4):
        given = {i.name: np.zeros((1, 8, 0, 32), np.float32) for i in session.get_inputs()}
        for token in (first, 7, 9, 11):
            out = dict(zip(names, session.run(None, {**given, "token": np.array([[token]])}), strict=True))
            given = {n.replace("present", "past"): v for n, v in out.items() if n != "logits"}
        last.append(out["logits"])
        assert out["present.3.key"].shape == (1, 8, 4, 32)
    assert np.abs(last[0] - last[1]).max() > 0.01


def test_table_rows_differ_from_turn_to_turn() -> None:
    rows = run(build("table_rows"))["rows"][0]
    assert np.abs(np.diff(rows, axis=0)).max(axis=1).min() > 1e-3


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("alexnt", {}, r"model 'alexnt': no such builder, expected one of lenet5, .*; try alexnet"),
        ("alexnet", {"size": 128}, r"model 'alexnet': got the parameter 'size', expected one of batch, classes, seed"),
        ("unet", {"size": 100}, r"unet: size: got 100, expected a positive multiple of 16; try 96"),
        ("encoder", {"heads": 7}, r"encoder: width: got 384, expected a positive multiple of 7"),
        ("detector", {"size": 8}, r"detector: size: got 8, expected a positive multiple of 16; try 16"),
        ("decoder", {"width": 100}, r"decoder: width: got 100, expected a positive multiple of 8; try 96"),
        ("shufflenet", {"groups": 5}, r"shufflenet: groups: got 5, expected one of \[1, 2, 3, 4, 8\]"),
    ],
)
def test_errors_say_what_to_try(name: str, parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build(name, **parameters)


def test_command_line_lists_and_builds(tmp_path: Path) -> None:
    listing = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    assert [row["name"] for row in listing["builders"]] == list(BUILDERS)
    assert all(row["what"].endswith(".") for row in listing["builders"])
    target = tmp_path / "lstm.onnx"
    result = CliRunner().invoke(app, ["build", "har_lstm", "--out", str(target), "-p", "hidden=64", "-p", "batch=N"])
    assert result.exit_code == 0, result.output
    assert serialize(onnx.load(target)) == serialize(build("har_lstm", hidden=64, batch="N"))
