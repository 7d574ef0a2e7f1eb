"""The command line: what it prints fits a terminal, what machines read parses, and errors are messages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner

import ort_gpu_ep
from ort_gpu_ep.cli import app
from ort_gpu_ep.config import OPTIONS
from tests.patience import until
from tests.unit.graphs import model_of

ROOT = Path(__file__).parents[2]
WIDTH = 100


@dataclass(frozen=True)
class Done:
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str


def call(*arguments: object) -> Done:
    """`ort-gpu-ep ARGUMENTS` in this process, in a terminal of WIDTH columns. An exception that the command lets out is
    raised."""
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": str(WIDTH)}, catch_exceptions=False)
    return Done(done.exit_code, done.stdout, done.stderr)


def call_alone(*arguments: object, **environment: str) -> Done:
    """The same in a process of its own, with environment variables."""
    done = subprocess.run(
        [sys.executable, "-m", "ort_gpu_ep.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(WIDTH), "NO_COLOR": "1", **environment},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def printed(*arguments: object) -> str:
    """The text of a command that succeeds, which fits the terminal."""
    done = call(*arguments)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= WIDTH
    return done.stdout


def parsed(*arguments: object) -> Any:
    done = call(*arguments)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["schema"] == 1
    return data


def rejected(*arguments: object) -> str:
    """The message of a command that fails with 1."""
    done = call(*arguments)
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.strip()
    return done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    text = (
        "(float[N, 16] x, int64[3] i) => (float[N, 8] a_rather_long_name_of_an_output_as_exporters_make_them, "
        "float[3, 8] g) "
        "{ h = MatMul(x, w) "
        "a_rather_long_name_of_an_output_as_exporters_make_them = Softmax(h) g = Gather(w, i) }"
    )
    made = model_of(text, {"w": rng.standard_normal((16, 8)).astype("f")})
    made.graph.node[0].name = "/a_rather_long_name_of_a_node/as/exporters/make/them/block.0/attention/MatMul"
    path = tmp_path_factory.mktemp("cli") / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return path


@pytest.fixture
def x(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, np.random.default_rng(4).standard_normal((3, 16)).astype("f"))
    return path


# ---- run


def test_run(model: Path) -> None:
    text = printed("run", model, "-o", "placement=gpu", "--dim", "N=5")
    assert "3 on the GPU" in text
    assert "[5, 8]" in text


def test_run_with_given_inputs_saves_what_the_cpu_computes(model: Path, x: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "i.npy", np.array([3, 0, 7]))
    assert "outputs written to" in printed(
        "run",
        model,
        "-o",
        "placement=gpu",
        "--input",
        f"x={x}",
        "--input",
        f"i={tmp_path / 'i.npy'}",
        "--save",
        tmp_path / "out",
    )
    want = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(
        None, {"x": np.load(x), "i": np.array([3, 0, 7])}
    )
    names = ["a_rather_long_name_of_an_output_as_exporters_make_them", "g"]
    for name, w in zip(names, want, strict=True):
        np.testing.assert_allclose(np.load(tmp_path / "out" / f"{name}.npy"), w, rtol=1e-5)


def test_run_json(model: Path) -> None:
    data = parsed("run", model, "-o", "placement=gpu", "--dim", "N=5", "--json")
    assert [o["shape"] for o in data["outputs"]] == [[5, 8], [3, 8]]
    assert data["stats"]["fallbacks"] == 0
    assert {n["device"] for g in data["explanation"]["graphs"] for n in g["nodes"]} == {"gpu"}
    assert data["load_ms"] > 0


def test_numbers_that_json_has_none_for_are_text(tmp_path: Path) -> None:
    """Parsers of other languages refuse the bare words NaN and Infinity."""
    path = tmp_path / "m.onnx"
    path.write_bytes(
        model_of(
            "(float[4] x, float[4] z) => (float[4] a, float[4] b, float[4] c) { a = Div(x, z) b = Neg(a) c "
            "= Sub(a, a) }"
        ).SerializeToString()
    )
    done = call("run", path, "--input", "x=1", "--input", "z=0", "--json")
    assert done.returncode == 0, done.stderr

    def refuse(word: str) -> None:
        raise AssertionError(word)

    outputs = json.loads(done.stdout, parse_constant=refuse)["outputs"]
    assert [o["max"] for o in outputs] == ["Infinity", "-Infinity", "NaN"]
    assert [float(o["max"]) for o in outputs[:2]] == [np.inf, -np.inf]


def test_the_seed_decides_the_inputs(model: Path) -> None:
    first, again, other = (parsed("run", model, "--seed", s, "--json")["outputs"] for s in (1, 1, 2))
    assert first == again != other


# ---- Ctrl-C

HELD = """
import sys
from ort_gpu_ep.cli import shared
from ort_gpu_ep.processes.interrupts import uninterrupted

@shared.reports_errors
def command():
    uninterrupted(lambda: (print("begun", flush=True), sys.stdin.readline()))
    print("never", flush=True)

import typer
app = typer.Typer(add_completion=False)
app.command()(command)
app()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_is_acknowledged_while_what_holds_it_goes_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HELD],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "Ctrl-C: this ends when the kernel or run that goes on is over\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stderr.read() == "interrupted\n"
        assert process.stdout.read() == ""
        assert process.wait() == 130


SLOW = """
import sys
from ort_gpu_ep.device import pipelines
from ort_gpu_ep.__main__ import main

real = pipelines._compile

def compile_slowly(*arguments):
    sys.stderr.write("compiling\\n")  # in one piece: two threads compile
    sys.stdin.readline()
    return real(*arguments)

pipelines._compile = compile_slowly
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(
    "command",
    [["run"], ["bench"], ["compare"], ["tune"], ["profile"], ["explain", "--profile"], ["conformance"]],
    ids=" ".join,
)
def test_ctrl_c_ends_with_the_kernels_that_are_compiling(command: list[str], tmp_path: Path) -> None:
    """A session compiled all of its kernels first: minutes with a slow driver."""
    path = tmp_path / "m.onnx"
    text = " ".join(
        f"v{k + 1} = {op} <axis = 0> (v{k})" for k, op in enumerate(["Softmax", "LogSoftmax", "Hardmax", "Softmax"] * 3)
    )
    path.write_bytes(model_of(f"(float[4, 8] v0) => (float[4, 8] v12) {{ {text} }}").SerializeToString())
    arguments = [*command, *([] if command == ["conformance"] else [path, "-o", "placement=gpu"])]
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, *map(str, arguments), "-o", f"cache_dir={tmp_path}"],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdin
        assert process.stderr
        while (line := process.stderr.readline()) != "compiling\n":
            assert line, "it ended before it compiled anything"
        process.send_signal(signal.SIGINT)
        while not (line := process.stderr.readline()).startswith(("Ctrl-C: ", "interrupted")):
            assert line, "it did not say that a Ctrl-C has come"
        process.stdin.close()  # all that are compiling are done
        said = line + process.stderr.read()
        ends = "\n" * (command == ["conformance"])  # its progress ends its line
        assert (
            said.replace("Ctrl-C: this ends when the kernel or run that goes on is over\n", "")
            == f"{ends}interrupted\n"
        )
        assert process.wait() == 130


def test_the_wakeup_of_a_program_that_calls_a_command_is_given_back(model: Path) -> None:
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    before = signal.set_wakeup_fd(sink)
    try:
        assert call("inspect", model).returncode == 0
        assert signal.set_wakeup_fd(sink) == sink
    finally:
        signal.set_wakeup_fd(before)
        os.close(source)
        os.close(sink)


# ---- explain


def test_explain(model: Path) -> None:
    text = printed("explain", model, "-o", "placement=gpu")
    assert "partition 0" in text
    assert text.count("gpu") >= 3
    assert "MatMul" not in printed("explain", model, "-o", "placement=gpu", "--no-nodes")


def test_explain_says_why_not(model: Path) -> None:
    assert "COST: placement=cpu" in " ".join(printed("explain", model, "-o", "placement=cpu").split())


def test_explain_json(model: Path) -> None:
    data = parsed("explain", model, "-o", "placement=gpu", "--json")
    (graph,) = data["graphs"]
    assert sorted(n["op"] for n in graph["nodes"]) == ["Gather", "MatMul", "Softmax"]
    assert [(m["exact"], m["dispatches"]) for m in data["memory"]] == [(True, 3)]  # the sizes that a run would have


# ---- bench


def test_bench(model: Path) -> None:
    text = printed("bench", model, "-o", "placement=gpu", "--runs", 3, "--against", "cpu")
    assert re.search(r"\d x the (speed|time) of cpu", text)


def test_bench_json(model: Path) -> None:
    data = parsed("bench", model, "-o", "placement=gpu", "--runs", 3, "--against", "cpu", "--json")
    assert 0 < data["this"]["median_ms"] <= data["this"]["p95_ms"]
    assert data["speedup"] == pytest.approx(data["cpu"]["median_ms"] / data["this"]["median_ms"])
    assert data["relative_l2"] < 1e-5
    parts = [data["this"][f"{p}_ms"] for p in ("host", "upload", "gpu", "readback")]
    assert all(p >= 0 for p in parts)


# ---- doctor, options, conformance


def test_doctor() -> None:
    text = printed("doctor", "--quick")
    assert "FAIL" not in text
    assert "chosen: " in text


def test_doctor_json() -> None:
    data = parsed("doctor", "--quick", "--json")
    assert data["health"] == "healthy"
    assert data["healthy"] is True
    assert data["chosen"] == data["adapters"][0]
    assert all(p["passed"] for p in data["probes"])
    assert data["limits"]["max_buffers_per_stage"] >= 8


def test_doctor_without_an_adapter(tmp_path: Path) -> None:
    nothing = {"VK_DRIVER_FILES": str(tmp_path / "none.json"), "VK_ICD_FILENAMES": str(tmp_path / "none.json")}
    done = call_alone("doctor", **nothing)
    assert done.returncode == 2
    (line,) = done.stdout.splitlines()  # a command or a path in it can be copied
    assert len(line) > 80
    assert "Unset VK_DRIVER_FILES" in line
    done = call_alone("doctor", "--json", **nothing)
    assert done.returncode == 2
    assert json.loads(done.stdout)["healthy"] is False


def test_options() -> None:
    text = "".join(printed("options").split())
    for option in OPTIONS:
        assert option.name in text


def test_options_at_80_columns() -> None:
    done = CliRunner().invoke(app, ["options"], env={"COLUMNS": "80"})
    assert max(map(len, done.stdout.splitlines())) <= 80
    words = " ".join(done.stdout.split())
    for option in OPTIONS:
        assert " ".join(f"{option.variable} {option.doc}".split()) in words


def test_options_for_machines() -> None:
    listed = parsed("options", "--json")["options"]
    assert [o["name"] for o in listed] == [o.name for o in OPTIONS]
    assert listed[0]["choices"] == ["auto", "gpu", "cpu"]


def test_version_and_short_help() -> None:
    assert call("--version").stdout == f"ort-gpu-ep {ort_gpu_ep.__version__}\n"
    for arguments in (("-h",), ("run", "-h"), ("options", "-h")):
        assert "Usage" in call(*arguments).stdout


def test_a_shape_for_sizes_without_a_name(tmp_path: Path) -> None:
    made = model_of("(float[N, 16] x) => (float[M, 16] y) { y = Relu(x) }")
    made.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    path = tmp_path / "unnamed.onnx"
    path.write_bytes(made.SerializeToString())
    assert "[5, 16]" in printed("run", path, "--shape", "x=5x16")
    assert parsed("run", path, "--shape", "x=5x16", "--json")["outputs"][0]["shape"] == [5, 16]
    for wrong in ("5x17", "5", "5x16x1", "fivex16", "x"):
        assert f"--shape x={wrong}: expected sizes like 1x576 that fit the model's ?x16" in " ".join(
            rejected("run", path, "--shape", f"x={wrong}").split()
        )


def test_conformance(tmp_path: Path) -> None:
    text = printed(
        "conformance",
        "--select",
        "^test_(relu|softmax_axis_1|sequence_insert_at_back)$",
        "--status",
        tmp_path / "status.txt",
    )
    assert "PASS" in text
    assert (tmp_path / "status.txt").read_text().splitlines() == [
        "test_relu PASS",
        "test_sequence_insert_at_back UNSUPPORTED DYNAMIC_SHAPE",
        "test_softmax_axis_1 PASS",
    ]


def test_conformance_for_machines() -> None:
    """As --json of every other command; `--json -` wrote a file named `-`."""
    found = parsed("conformance", "--select", "^test_(relu|softmax_axis_1)$", "--json")
    assert [o["name"] for o in found["outcomes"]] == ["test_relu", "test_softmax_axis_1"]


def test_a_selection_changes_its_own_lines_only(tmp_path: Path) -> None:
    record = tmp_path / "status.txt"
    record.write_text("test_add PASS\ntest_relu UNSUPPORTED OP\ntest_softmax_axis_1 PASS\n")
    printed("conformance", "--select", "^test_relu$", "--status", record)
    assert record.read_text() == "test_add PASS\ntest_relu PASS\ntest_softmax_axis_1 PASS\n"


# ---- errors


@pytest.mark.parametrize("command", ["run", "explain", "bench"])
def test_a_model_that_is_not_there(command: str, tmp_path: Path) -> None:
    assert "nowhere.onnx" in "".join(rejected(command, tmp_path / "nowhere.onnx").split())


@pytest.mark.parametrize("command", ["run", "explain", "bench"])
def test_a_file_that_is_no_model(command: str, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no protobuf")
    assert "InvalidProtobuf" in rejected(command, tmp_path / "broken.onnx")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "placment=gpu"), "did you mean 'placement'?"),
        (("-o", "placement"), "expected NAME=VALUE"),
        (("-o", "adapter=Voodoo"), "no such adapter"),
        (("--input", "z=z.npy"), "the model has no such input; it has x, i"),
        (("--input", "x=nowhere.npy"), "nowhere.npy"),
        (("--dim", "N=many"), "many"),
        (("--dim", "M=3"), "--dim M: the model has no such named size; it has N"),
        (("--dim", "n=3"), "it has N"),
        (("--shape", "X=3x16"), "--shape X: the model has no such input; it has x, i"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], message: str, model: Path) -> None:
    assert message in " ".join(rejected("run", model, *arguments).split())


def test_inputs_of_other_files(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.npy").touch()
    np.savez(tmp_path / "several.npz", x=np.ones((3, 16), "f"))
    for name in ("empty.npy", "several.npz"):
        said = rejected("run", model, "--input", f"x={tmp_path / name}")
        assert said.startswith("ModelError: --input x: expected a .npy file")


def test_inputs_of_a_wrong_shape(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 17), "f"))
    assert "InvalidArgument" in rejected("run", model, "--input", f"x={tmp_path / 'x.npy'}")


def test_strict_without_an_adapter(model: Path, tmp_path: Path) -> None:
    nothing = {"VK_DRIVER_FILES": str(tmp_path / "none.json"), "VK_ICD_FILENAMES": str(tmp_path / "none.json")}
    done = call_alone("run", model, "-o", "strict=1", **nothing)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("AdapterError: no GPU adapter"))
    assert "Unset VK_DRIVER_FILES" in line


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_placement_gpu_without_an_adapter(isolation: str, model: Path, tmp_path: Path) -> None:
    nothing = {"VK_DRIVER_FILES": str(tmp_path / "none.json"), "VK_ICD_FILENAMES": str(tmp_path / "none.json")}
    done = call_alone("run", model, "-o", "placement=gpu", "-o", f"isolation={isolation}", **nothing)
    assert done.returncode == 1
    assert "AdapterError: placement=gpu, but: " in " ".join(done.stderr.split())
    assert "no GPU adapter" in " ".join(done.stderr.split())


def test_the_module_is_the_command() -> None:
    done = call_alone("options")
    assert (done.returncode, done.stdout) == (0, printed("options"))


def test_no_command_and_unknown_commands() -> None:
    assert "Usage" in call().stdout + call().stderr
    assert call("nonsense").returncode == 2
    for name in ("run", "explain", "bench", "conformance", "doctor", "options"):
        assert name in call("--help").stdout
        assert call(name, "--help").returncode == 0


def test_ctrl_c_is_one_line_and_its_exit_code(model: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ort_gpu_ep.cli", "bench", str(model), "-o", "placement=gpu", "--runs", "100000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ORT_GPU_EP_CACHE_DIR": str(tmp_path)},
    )
    until(lambda: list(tmp_path.glob("health/*.open")), "the marker of a process that uses the GPU")
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)
    # what shows the progress may have ended its own line before
    assert (process.returncode, err.strip().splitlines()[-1]) == (130, "interrupted")
