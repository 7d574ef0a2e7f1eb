"""Names in a model that hold control characters, line ends or markup: a terminal shows them, and does not follow
them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep import InferenceSession
from tests.cli.test_cli import call

HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\nhealthy\n[red]\u202egnp[/x]\u2028\x9b31m"
"""Clears the screen, sets the window's title, ends the line, is no markup of rich's, turns the writing direction, and
C1's CSI."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One part for the GPU and one that only the CPU has; every name is hostile."""
    names = {name: f"{name}{HOSTILE}" for name in ("x", "w", "h", "d", "s", "y", "z", "g", "N")}
    nodes = [
        helper.make_node("MatMul", [names["x"], names["w"]], [names["h"]], name=f"one{HOSTILE}"),
        helper.make_node("Softmax", [names["h"]], [names["y"]], name=f"two{HOSTILE}"),
        helper.make_node("Cast", [names["h"]], [names["d"]], name=f"three{HOSTILE}", to=TensorProto.DOUBLE),
        helper.make_node("Exp", [names["d"]], [names["s"]], name=f"four{HOSTILE}"),
        helper.make_node("Cast", [names["s"]], [names["z"]], name=f"five{HOSTILE}", to=TensorProto.FLOAT),
    ]
    weight = numpy_helper.from_array(np.random.default_rng(3).standard_normal((6, 4)).astype("f"), names["w"])
    graph = helper.make_graph(
        nodes,
        names["g"],
        [helper.make_tensor_value_info(names["x"], 1, [names["N"], 6])],
        [helper.make_tensor_value_info(names["y"], 1, None), helper.make_tensor_value_info(names["z"], 1, None)],
        [weight],
    )
    path = tmp_path_factory.mktemp("hostile") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def check(text: str) -> None:
    """No character that is not shown, and no line that a name has made."""
    for line in text.split("\n"):
        assert line.isprintable(), repr(line)
        assert not line.startswith(("healthy", "│ healthy")), text


SIZE = ("--dim", f"N{HOSTILE}=4")

COMMANDS = {
    "explain": ("-o", "placement=gpu"),
    "inspect": (),
    "run": SIZE,
    "compare": SIZE,
    "bisect": (*SIZE, "--tolerance", "1e-12"),
    "profile": (*SIZE, "--runs", "3"),
    "bench": (*SIZE, "--runs", "3"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_shows_names_as_text(command: str, model: Path, tmp_path: Path) -> None:
    more = ("--save", tmp_path / "out") if command == "bisect" else ()
    done = call(command, model, *COMMANDS[command], *more)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert "\\x1b" in done.stdout or command == "bench"
    check(done.stdout)
    check(done.stderr)


def test_groups_of_nodes_too(model: Path) -> None:
    done = call("explain", model, "-o", "placement=gpu", "--group", "block")
    assert "\\x1b" in done.stdout
    check(done.stdout)


def test_an_error_shows_names_as_text(model: Path) -> None:
    done = call("run", model, *SIZE, "--input", f"q{HOSTILE}=no.npy")
    assert done.returncode == 1
    assert "no such input" in done.stderr.replace("\n", " ")
    check(done.stderr)


def test_the_texts_of_a_session_too(model: Path) -> None:
    session = InferenceSession(model, provider_options={"placement": "gpu"})
    x = np.ones((4, 6), "f")
    check(str(session.explain()))
    check(str(session.profile({session.get_inputs()[0].name: x}, 3)))
    # as data it is itself
    assert any(node.name == f"one{HOSTILE}" for report in session.explain().reports for node in report.nodes)
