"""ort-gpu-ep train: from a .npz file to a tuned model, in 80 columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner, Result

from ort_gpu_ep.cli import app, shared
from ort_gpu_ep.cli.training_run import loss_text
from ort_gpu_ep.training import Adam, Trainer
from tests.cli.test_help import modules_after
from tests.training import references


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a model and samples for it."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(60, 6)).astype("f")
    np.savez(tmp_path / "d.npz", x=x, y=(x @ rng.normal(size=(6, 3))).argmax(1))
    onnx.save(references.mlp(softmax=True), tmp_path / "m.onnx")
    return tmp_path


def call(folder: Path, *arguments: object) -> Result:
    given = ["train", folder / "m.onnx", "--data", folder / "d.npz", "-o", "placement=cpu", *arguments]
    return CliRunner().invoke(app, [str(a) for a in given], env={"COLUMNS": "80"}, catch_exceptions=False)


def test_it_trains_and_writes_the_tuned_model(files: Path) -> None:
    done = call(
        files, "--out", files / "tuned.onnx", "--epochs", 30, "--rate", 0.05, "--validate", 0.2, "--schedule", "cosine"
    )
    assert done.exit_code == 0, done.output
    assert max(len(line) for line in done.stdout.splitlines() if not line.startswith("written: ")) <= 80
    assert "validation accuracy" in " ".join(done.stdout.split())
    with np.load(files / "d.npz") as file:
        data = dict(file)
    session = onnxruntime.InferenceSession(str(files / "tuned.onnx"), providers=["CPUExecutionProvider"])
    assert (session.run(None, {"x": data["x"]})[0].argmax(1) == data["y"]).mean() > 0.9


def test_json_and_resume(files: Path) -> None:
    arguments = ("--json", "--epochs", 2, "--resume", files / "c.safetensors")
    first, second = (json.loads(call(files, *arguments).stdout) for _ in range(2))
    assert (first["steps"], second["steps"]) == (4, 8)
    assert len(first["history"]) == 2
    assert second["history"][-1]["loss"] < first["history"][0]["loss"]
    assert first["schema"] == 1


def test_a_resumed_cosine_goes_on_falling(files: Path) -> None:
    """Over the steps of both: at the end of those of one alone nothing would be learnt any more."""
    arguments = ("--json", "--epochs", 5, "--rate", 0.05, "--schedule", "cosine", "--resume", files / "c.safetensors")
    first, second = (json.loads(call(files, *arguments).stdout)["history"] for _ in range(2))
    assert second[-1]["loss"] < 0.9 * first[-1]["loss"]


def test_an_interrupted_training_goes_on(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, step = files / "c.safetensors", Trainer._stepped

    def interrupted(self: Trainer, *arguments: Any) -> Any:
        if self.steps == 3:
            raise KeyboardInterrupt
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "_stepped", interrupted)
    done = call(files, "--epochs", 3, "--resume", path)
    assert done.exit_code == shared.INTERRUPTED
    assert "after 3 steps;" in done.stderr
    assert not list(files.glob("*-trained.onnx")), "the checkpoint has the weights"
    assert "goes on from there" in " ".join(done.stderr.split())
    monkeypatch.undo()
    assert json.loads(call(files, "--epochs", 1, "--resume", path, "--json").stdout)["steps"] == 5


def test_without_out_the_weights_are_kept(files: Path) -> None:
    """They were thrown away without a word."""
    done = call(files, "--epochs", 1)
    assert done.exit_code == 0, done.output
    assert f"written: {files / 'm-trained.onnx'}" in done.stdout
    assert onnx.load(files / "m-trained.onnx").graph.initializer != onnx.load(files / "m.onnx").graph.initializer
    again = call(files, "--epochs", 1)
    assert again.exit_code == 1
    assert "give --out FILE.onnx" in " ".join(again.stderr.split())


def test_ctrl_c_writes_what_was_trained(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer._stepped

    def interrupted(self: Trainer, *arguments: Any) -> Any:
        if self.steps == 3:
            raise KeyboardInterrupt
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "_stepped", interrupted)
    assert call(files, "--epochs", 3, "--out", files / "t.onnx").exit_code == shared.INTERRUPTED
    assert (files / "t.onnx").exists()


def test_a_curve_and_a_log(files: Path) -> None:
    done = call(files, "--epochs", 3, "--validate", 0.2, "--plot", files / "c.svg", "--log", files / "l.jsonl")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (files / "l.jsonl").read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines if "results" in line] == [2, 4, 6]
    assert set(lines[-1]["results"]) == {"loss", "validation_loss", "validation_accuracy"}
    picture = (files / "c.svg").read_text("utf-8")
    for wanted in ("loss of a step", "loss of an epoch", "validation loss of an epoch", "validation accuracy, %"):
        assert f"<!-- {wanted}" in picture


def test_the_bar_shows_a_loss_or_none(files: Path) -> None:
    """ "loss nan" stood there at the start of each epoch."""
    with np.load(files / "d.npz") as file:
        x, y = file["x"], file["y"]
    seen: list[float | None] = []
    trainer = Trainer(str(files / "m.onnx"), loss="cross_entropy", optimizer=Adam(1e-2), options={"placement": "cpu"})
    trainer.fit(x, y, epochs=3, batch=30, on_step=lambda at: seen.append(at.loss))
    assert (loss_text(seen[0]), seen[0]) == ("", None)
    assert all(loss is not None and loss == loss for loss in seen[2:]), seen
    assert loss_text(seen[2]).startswith("loss ")


def test_the_help_loads_no_training() -> None:
    assert not {"numpy", "onnx", "onnxruntime", "ort_gpu_ep.training"} & modules_after("train", "--help")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer", "adagrad"], "expected one of sgd, adam, adamw"),
        (["--schedule", "linear"], "expected one of constant, cosine"),
        (["--loss", "hinge"], "expected one of cross_entropy"),
        (["--trainable", "head*"], "matches none of the model's 4"),
        (["--rate", "-1"], "expected a finite number"),
    ],
)
def test_mistakes_are_messages(files: Path, arguments: list[str], message: str) -> None:
    done = call(files, *arguments)
    assert done.exit_code == 1
    assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"text", "not a .npz file"),
        ({"x": np.ones(3)}, "expected inputs and labels"),
        ({"a": np.ones((3, 6)), "b": np.ones((3, 6)), "y": np.zeros(3, int)}, "got 'a', 'b', expected 'x'"),
    ],
)
def test_data_that_is_none(files: Path, content: object, message: str) -> None:
    (files / "d.npz").unlink()
    if isinstance(content, bytes):
        (files / "d.npz").write_bytes(content)
    elif isinstance(content, dict):
        np.savez(files / "d.npz", **content)
    done = call(files)
    assert done.exit_code == 1
    assert message in " ".join(done.stderr.split())
