"""The help comes at once: it loads no command."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ort_gpu_ep import cli

ROOT = Path(__file__).parents[2]
FOLDER = Path(cli.__file__).parent
NOT_FOR_HELP = (
    "numpy",
    "onnx",
    "onnxruntime",
    "wgpu",
    "_cffi_backend",
    "cffi",
    "psutil",
    "networkx",
    "ml_dtypes",
    "platformdirs",
)


def modules_after(*arguments: str) -> set[str]:
    """What the command has imported when it ends."""
    code = f"""
import sys
sys.argv = ["ort-gpu-ep", *{arguments!r}]
try:
    from ort_gpu_ep.cli import app
    app()
finally:
    print("modules", *sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(next(line for line in done.stdout.splitlines() if line.startswith("modules")).split()[1:])


def test_the_help_imports_only_what_prints_it() -> None:
    imported = modules_after("--help")
    assert not imported & set(NOT_FOR_HELP)
    assert {m for m in imported if m.startswith("ort_gpu_ep")} <= {"ort_gpu_ep", "ort_gpu_ep.cli", "ort_gpu_ep.errors"}


def test_the_check_of_imports_sees_a_command() -> None:
    assert {"numpy", "ort_gpu_ep.cli.explain"} <= modules_after("explain", "--help")


def test_the_smoke_test_of_an_installation() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "smoke.py"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("nodes on the GPU\n")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_command_says_in_the_list_what_its_docstring_says(name: str) -> None:
    function = getattr(import_module(f"ort_gpu_ep.cli.{name}"), name)
    assert " ".join((inspect.getdoc(function) or "").split()) == cli.COMMANDS[name]
    assert cli.command(name).name == name


def test_every_file_of_a_command_is_in_the_list() -> None:
    with_a_function = {p.stem for p in FOLDER.glob("*.py") if f"\ndef {p.stem}(" in p.read_text("utf-8")}
    assert with_a_function == set(cli.COMMANDS)


def test_a_command_that_is_not_there() -> None:
    done = CliRunner().invoke(cli.app, ["rum"], env={"COLUMNS": "100"})
    assert done.exit_code == 2
    assert "No such command 'rum'; did you mean 'run'?" in done.output
    for word, near in (("benchmark", "; did you mean 'bench'?"), ("inspct", "; did you mean 'inspect'?"), ("qqq", ".")):
        assert f"No such command {word!r}{near}" in CliRunner().invoke(cli.app, [word], env={"COLUMNS": "100"}).output


def test_without_a_command_the_list_is_printed() -> None:
    done = CliRunner().invoke(cli.app, [], env={"COLUMNS": "100"})
    assert all(name in done.output for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("ort-gpu-ep pro", {"profile"}),
        ("ort-gpu-ep profile --t", {"--top", "--trace"}),
        ("ort-gpu-ep ", set(cli.COMMANDS)),
    ],
)
def test_a_shell_completes_commands_and_their_options(words: str, wanted: set[str]) -> None:
    """As the function calls it that `--install-completion` writes."""
    asked = {"_ORT_GPU_EP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    code = "import sys; sys.argv = ['ort-gpu-ep']; from ort_gpu_ep.cli import app; app(prog_name='ort-gpu-ep')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **asked}, check=False
    )
    assert set(done.stdout.split()) == wanted, done.stderr


def test_a_misspelled_variable_is_an_error_of_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that uses the package is only warned; at the command line somebody looks."""
    monkeypatch.setenv("ORT_GPU_EP_PLACMENT", "gpu")
    done = CliRunner().invoke(cli.app, ["options"])
    assert done.exit_code == 2
    assert (
        done.stderr
        == "ConfigError: environment variable ORT_GPU_EP_PLACMENT is no option and has no effect; did you mean "
        "ORT_GPU_EP_PLACEMENT?\n"
    )
    assert not done.stdout
