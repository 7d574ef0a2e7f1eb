"""ort-gpu-ep bench --decode: tokens of a language model, ours beside ONNX Runtime's CPU."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from models.language import language_model
from ort_gpu_ep.cli import app
from tests.cli.test_cli import call


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("language") / "m.onnx"
    onnx.save(language_model(layers=1), found)
    return found


def test_both_sides_and_a_picture(path: Path, tmp_path: Path) -> None:
    plot = tmp_path / "times.png"
    done = CliRunner().invoke(
        app, ["bench", str(path), "--decode", "8", "--context", "16", "--against", "cpu", "--json", "--plot", str(plot)]
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [row["side"] for row in rows] == ["this", "cpu"]
    for row in rows:
        assert len(row["token_ms"]) == 6
        assert min(row["token_per_s"], row["prompt_per_s"], row["first_prompt_s"], row["opening_s"]) > 0
    assert plot.stat().st_size > 1000


def test_markdown_to_share(path: Path) -> None:
    done = call("bench", path, "--decode", 4, "--context", 8, "--share")
    assert done.returncode == 0, done.stderr
    assert "|  | prompt tokens/s | tokens/s | ms a token |" in done.stdout
    assert "| ort-gpu-ep | " in done.stdout
    assert f"`ort-gpu-ep bench {path.name} --decode 4 --context 8`" in done.stdout


def test_a_table_that_fits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner().invoke(app, ["bench", str(path), "--decode", "4", "--context", "5"])
    assert done.exit_code == 0, done.output
    assert "ms a token" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("more", [["--batch", "1,2"], ["--against", "cuda"], ["--load", "all"]])
def test_what_does_not_go_together(path: Path, more: list[str]) -> None:
    done = CliRunner().invoke(app, ["bench", str(path), "--decode", "4", *more])
    assert done.exit_code != 0
    assert "--decode" in done.output


def test_another_kind_of_model(tmp_path: Path) -> None:
    other = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("Neg", ["x"], ["y"])],
            "g",
            [onnx.helper.make_tensor_value_info("x", 1, [2])],
            [onnx.helper.make_tensor_value_info("y", 1, [2])],
        ),
        ir_version=10,
    )
    onnx.save(other, tmp_path / "m.onnx")
    done = CliRunner().invoke(app, ["bench", str(tmp_path / "m.onnx"), "--decode", "4"])
    assert done.exit_code != 0
    assert "no input 'input_ids'" in " ".join(done.output.split())
