"""What a command is to write is looked at before it does anything else: after minutes of work there would be nowhere to
put the result."""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from typer.testing import CliRunner

from ort_gpu_ep import cli
from tests.unit.graphs import model_of

READ = {"bench --before", "compress --calibrate", "compress --labels", "score --preprocess", "train --data"}
FOLDERS = {"bisect --save", "run --save", "score --out"}
NEEDED: dict[str, list[str]] = {
    "compress": ["--method", "int8"],
    "train": ["--data", "none.npz"],
    "score": ["rows.npy"],
}
"""What a command asks for besides a model and what it writes."""


def options() -> dict[str, Any]:
    """`command --option` of all that name a path -> what typer knows of it."""
    found = {}
    for command in cli.COMMANDS:
        function = getattr(import_module(f"ort_gpu_ep.cli.{command}"), command)
        for hint in get_type_hints(function, include_extras=True).values():
            kind, *known = get_args(hint) or (hint,)
            # its flag: it stands first
            if known and Path in (kind, *get_args(kind)) and isinstance(known[0].default, str):
                found[f"{command} {known[0].default}"] = known[0]
    return found


OPTIONS = options()
WRITTEN = sorted(set(OPTIONS) - READ)


def kind_of(known: Any) -> str:
    """`file` or `folder`, of an option that names something to write."""
    return "" if known.callback is None else str(known.callback.__name__)


def suffixes_of(option: str) -> tuple[str, ...]:
    """That the option takes; none if it takes any."""
    return tuple(inspect.getclosurevars(OPTIONS[option].callback).nonlocals["suffixes"])


def suffix_of(option: str) -> str:
    """One that the option takes."""
    return next(iter(suffixes_of(option)), "")


def refused(option: str, path: Path) -> str:
    """What the command says of that path; it has not come to the model, which does not exist."""
    command, flag = option.split()
    model = (
        ["none.onnx"]
        if "model" in inspect.signature(getattr(import_module(f"ort_gpu_ep.cli.{command}"), command)).parameters
        else []
    )
    done = CliRunner().invoke(
        cli.app,
        [command, *model, *NEEDED.get(command, []), flag, str(path)],
        env={"COLUMNS": "400"},
        catch_exceptions=False,
    )
    assert done.exit_code == 2, done.output
    assert flag in done.stderr
    return done.stderr


def test_all_that_write_are_looked_at() -> None:
    assert {option for option, known in OPTIONS.items() if kind_of(known) == "folder"} == FOLDERS
    assert {option for option, known in OPTIONS.items() if kind_of(known) == "file"} == set(WRITTEN) - FOLDERS
    assert len(WRITTEN) > 10


@pytest.mark.parametrize("option", sorted(set(WRITTEN) - FOLDERS))
def test_a_file_needs_a_folder(option: str, tmp_path: Path) -> None:
    assert f"the folder {tmp_path / 'none'} does not exist: make it first" in refused(
        option, tmp_path / "none" / f"file{suffix_of(option)}"
    )


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "report.zip"
    folder.mkdir()
    assert f"{folder} is a folder; expected a file" in refused("doctor --report", folder)


@pytest.mark.parametrize("option", sorted(FOLDERS))
def test_a_folder_can_be_made(option: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} is no folder" in refused(option, tmp_path / "file" / "folder" / "results")


@pytest.mark.parametrize("option", ["explain --html", "run --save"])
def test_what_may_not_be_written_to(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told, since nothing is forbidden to root."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    assert f"{tmp_path} may not be written to: choose another place" in refused(
        option, tmp_path / f"results{suffix_of(option)}"
    )


@pytest.mark.parametrize("option", WRITTEN)
def test_an_option_in_the_place_of_a_file_is_refused(option: str) -> None:
    """`--out placement=gpu` wrote a file of that name."""
    assert "placement=gpu: names of output files may not contain '='" in refused(option, Path("placement=gpu"))
    assert not Path("placement=gpu").exists()


@pytest.mark.parametrize("option", [o for o in WRITTEN if suffixes_of(o)])
def test_a_file_has_the_suffix_of_what_is_written(option: str, tmp_path: Path) -> None:
    assert f"ends in {' or '.join(suffixes_of(option))}" in refused(option, tmp_path / "file.xyz")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_o_is_option_in_every_command(command: str) -> None:
    hints = get_type_hints(getattr(import_module(f"ort_gpu_ep.cli.{command}"), command), include_extras=True)
    short = {
        name
        for name, hint in hints.items()
        for known in get_args(hint)[1:]
        if "-o" in (getattr(known, "param_decls", None) or ())
    }
    assert short <= {"option"}
    assert ("option" in hints) == bool(short)


@pytest.mark.parametrize("given", ["small.onnx", "placement=gpu"])
def test_compress_says_what_to_use_in_place_of_o(given: str) -> None:
    """In the other commands -o sets an option of the provider, and in many programs it names the file to write."""
    done = CliRunner().invoke(
        cli.app,
        ["compress", "none.onnx", "--method", "int8", "-o", given],
        env={"COLUMNS": "400"},
        catch_exceptions=False,
    )
    assert done.exit_code == 2
    assert "--out FILE.onnx" in done.stderr
    assert "-o NAME=VALUE" in done.stderr


WRITES = {  # command -> arguments, and what it writes
    "run": (["--save", "out"], "out/y.npy"),
    "explain": (["--html", "page.html"], "page.html"),
    "profile": (["--trace", "t.json", "--runs", "1"], "t.json"),
    "profile html": (["--html", "p.html", "--runs", "1"], "p.html"),
    "bench": (["--plot", "b.svg", "--runs", "2"], "b.svg"),
    "calibrate": (["--plot", "c.svg"], "c.svg"),
}


@pytest.mark.parametrize("case", WRITES)
def test_a_file_that_is_cut_off_is_not_left(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there before stays, and the message has the name, how far it came, and the reason."""
    resource = pytest.importorskip("resource")
    arguments, name = WRITES[case]
    command, file = case.split()[0], tmp_path / name
    monkeypatch.chdir(tmp_path)
    model = model_of("(float[2, 300] x) => (float[2, 300] y) { y = Relu(x) }").SerializeToString()
    Path("m.onnx").write_bytes(model)
    words = [
        command,
        *(["m.onnx"] if command != "calibrate" else []),
        *arguments,
        *(["-o", "placement=gpu"] if command != "calibrate" else []),
    ]
    done = CliRunner().invoke(cli.app, words, catch_exceptions=False)  # caches are written here
    assert done.exit_code == 0, done.output
    before = file.read_bytes()
    assert len(before) > 1000
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        done = CliRunner().invoke(cli.app, words, env={"COLUMNS": "400"}, catch_exceptions=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert done.exit_code == 1, done.output
    assert f"{name} can't be written" in done.stderr
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir() if ".part" in path.name] == []


@pytest.mark.parametrize(
    ("asked", "lacks", "said"),
    [
        (["--plot", "p.png"], "matplotlib", "pip install matplotlib"),
        (["--against", "webgpu"], "onnxruntime_ep_webgpu", "pip install onnxruntime-ep-webgpu"),
        (["--against", "cuda"], "", "install onnxruntime-gpu"),
    ],
)
def test_bench_finds_what_is_missing_before_it_opens_the_model(
    asked: list[str],
    lacks: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if lacks:
        monkeypatch.setitem(sys.modules, lacks, None)
    done = CliRunner().invoke(cli.app, ["bench", "none.onnx", *asked], env={"COLUMNS": "400"}, catch_exceptions=False)
    assert done.exit_code == 1
    assert said in done.stderr
    assert "there is no such file" not in done.stderr
