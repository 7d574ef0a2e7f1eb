"""Inputs of a model from the command line, in every command that takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.cli.test_cli import call, call_alone, parsed, rejected
from tests.unit.graphs import model_of

GPU = ("-o", "placement=gpu")


def written(folder: Path, text: str, constants: Any = None) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model_of(text, constants).SerializeToString())
    return path


@pytest.mark.parametrize(
    "command", ["run", "bench --runs 1", "compare", "bisect", "profile --runs 1", "tune --budget 0"]
)
def test_every_command_guesses_the_same(command: str, tmp_path: Path) -> None:
    model = written(
        tmp_path,
        "(float[N, L] x) => (y) { r = Reshape(x, s) m = MatMul(r, w) y = Relu(m) }",
        {"s": np.array([-1, 9, 37]), "w": np.zeros((37, 4), "f")},
    )
    name, *options = command.split()
    done = call(name, model, *options, "-o", f"cache_dir={tmp_path}", *(() if name in ("tune", "compare") else GPU))
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert (
        "random inputs, seed 0: x float32[1, 333]. Guessed sizes: N=1, L=333. To change: --dim N=N, --input "
        "x=FILE or NUMBER." in said
    )


def test_a_model_that_refuses_says_so_in_our_words(tmp_path: Path) -> None:
    """Without red lines of onnxruntime's above it."""
    model = written(tmp_path, "(float[a, b] x, float[7, m] y) => (z) { z = Concat<axis=1>(x, y) }")
    done = call_alone("run", model)
    assert done.returncode == 1
    assert "does not run on guessed inputs" in " ".join(done.stderr.split())
    assert "[E:onnxruntime" not in done.stderr
    assert "--input NAME=FILE" in " ".join(done.stderr.split())


def test_a_number_fills_the_sizes_that_are_given(tmp_path: Path) -> None:
    """--dim was dropped in silence beside --input."""
    model = tmp_path / "m.onnx"
    model.write_bytes(model_of("(float[N, 4] x) => (float[N, 4] y) { y = Neg(x) }").SerializeToString())
    (output,) = parsed("run", model, "--input", "x=5", "--dim", "N=3", "--json")["outputs"]
    assert (output["shape"], output["min"]) == ([3, 4], -5)
    assert "give one of them" in " ".join(rejected("run", model, "--input", "x=5", "--shape", "x=3x4").split())


def test_a_missing_model_is_named_in_our_words(tmp_path: Path) -> None:
    for command in ("run", "explain", "bench", "profile"):
        said = " ".join(rejected(command, tmp_path / "none.onnx").split())
        assert "there is no such file" in said
        assert "ONNXRuntimeError" not in said


def test_numbers(tmp_path: Path) -> None:
    model = written(
        tmp_path, "(int64 sr, float[3] x, float[N] y) => (a, b, c) { a = Identity(sr) b = Neg(x) c = Neg(y) }"
    )
    found = parsed("run", model, "--input", "sr=8000", "--input", "x=2", "--input", "y=1,2,4", "--json")["outputs"]
    assert [(o["shape"], o["min"], o["max"]) for o in found] == [([], 8000, 8000), ([3], -2, -2), ([3], -4, -1)]
    assert "expected whole numbers" in " ".join(rejected("run", model, "--input", "sr=1.5").split())


def test_an_image(tmp_path: Path) -> None:
    model = written(tmp_path, "(float[N, 3, H, W] x) => (y) { y = GlobalAveragePool(x) }")
    Image.new("RGB", (20, 10), (255, 0, 51)).save(tmp_path / "a.png")
    done = call("run", model, "--input", f"x={tmp_path / 'a.png'}", "--json")
    assert done.returncode == 0, done.stderr
    assert "x: a.png, resized to 224 x 224, RGB, pixels times 1/255" in " ".join(done.stderr.split())
    assert '"max": 1.0' in done.stdout
    assert "is no image that can be read" in " ".join(
        rejected("run", model, "--input", f"x={tmp_path / 'b.png'}").split()
    )


def test_a_text(tmp_path: Path) -> None:
    model = written(tmp_path, "(string[N] x) => (y) { y = Identity(x) }")
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    assert parsed("run", model, "--input", f"x={tmp_path / 'a.txt'}", "--json")["outputs"][0]["shape"] == [3]


def test_explain_takes_sizes(tmp_path: Path) -> None:
    model = written(tmp_path, "(float[N, S] x) => (y) { y = Relu(x) }")
    found = parsed("explain", model, *GPU, "--dim", "N=3", "--dim", "S=50", "--json")
    assert found["graphs"][0]["partitions"][0]["input_nbytes"] == 3 * 50 * 4
    assert found["graphs"][0]["partitions"][0]["exact"]
    assert "--dim M: the model has no such named size; it has N, S" in rejected("explain", model, "--dim", "M=3")


OPEN = {
    "named": (
        "(float[N, S] x, int64[N, S] i) => (float[N, S, 4] y) { e = Gather(w, i) a = Unsqueeze(x, last) y "
        "= Add(e, a) }",
        ["--dim", "S=9"],
    ),
    "unnamed": ("(float[?, 3, ?, ?] x) => (y) { r = Relu(x) y = GlobalAveragePool(r) }", ["--shape", "x=2x3x20x30"]),
    "both": (
        "(float[N, ?] x, float[N, 3] z) => (y) { y = Concat<axis = 1>(x, z) }",
        ["--dim", "N=3", "--shape", "x=3x5"],
    ),
    "of a file": ("(float[N, S] x) => (y) { y = Relu(x) }", ["--input"]),
    "fixed": ("(float[2, 5] x) => (y) { y = Relu(x) }", ["--seed", "3"]),
}


@pytest.mark.parametrize("external", [False, True], ids=["whole", "weights beside it"])
@pytest.mark.parametrize("case", OPEN)
def test_explain_shows_the_sizes_that_run_runs_with(case: str, external: bool, tmp_path: Path) -> None:
    """And prints the same line, with the same options and without any."""
    text, more = OPEN[case]
    model, held = (
        tmp_path / "m.onnx",
        {"w": np.random.default_rng(1).standard_normal((50, 4)).astype("f"), "last": np.array([2])},
    )
    onnx.save(
        model_of(text, {name: array for name, array in held.items() if f"{name}," in text or f" {name})" in text}),
        model,
        save_as_external_data=external,
        location="w.bin",
        size_threshold=64,
    )
    np.save(tmp_path / "x.npy", np.ones((6, 7), "f"))
    for options in ([], [*more, *([f"x={tmp_path / 'x.npy'}"] if case == "of a file" else [])]):
        ran, explained = call("run", model, *GPU, *options, "--json"), call("explain", model, *GPU, *options, "--json")
        assert (ran.returncode, explained.returncode) == (0, 0), ran.stderr + explained.stderr
        assert ran.stderr == explained.stderr
        of_run, found = json.loads(ran.stdout)["explanation"], json.loads(explained.stdout)
        assert [m["shapes"] for m in found["memory"]] == [m["shapes"] for m in of_run["memory"]]
        assert all(part["exact"] for graph in found["graphs"] for part in graph["partitions"])


@pytest.mark.parametrize(
    "text",
    [
        "(float[a, b] x, float[7, m] y) => (z) { z = Concat<axis = 1>(x, y) }",
        "(seq(float[N]) x) => (float[M] y) { y = ConcatFromSequence<axis = 0>(x) }",
    ],
)
def test_explain_needs_no_inputs(text: str, tmp_path: Path) -> None:
    """Where nothing can be guessed that the model runs on, its sizes stay open, and that is said."""
    model = written(tmp_path, text)
    done = call("explain", model, *GPU, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("sizes stay open: ")
    assert json.loads(done.stdout)["graphs"]
    assert "Give inputs or sizes" in " ".join(rejected("run", model).split()) or "no random values" in " ".join(
        rejected("run", model).split()
    )
