"""Models that mean harm to files: each is opened in every way that this package opens models, in a process whose home
is a sandbox.

`python -m tests.session.hostile_files --count 200 --first 0` prints a table (`--json`: data), and ends with 1 where
anything is wrong: a file outside of the model's folder is read or changed, one in it is changed, a copy stays in the
temporary folder, something waits for ever, or an exception is none that is documented, or an answer another one than
onnxruntime's.

A model names files by paths, links, offsets and lengths of all kinds, for tensors with and without their data in the
model; a seed makes one.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import queue
import random
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

ROOT = Path(__file__).parents[2]
SIDE = 64
"""Of square weights: large enough to be compressed."""

SESSIONS = {
    "auto": {"placement": "auto"},
    "gpu": {"placement": "gpu"},
    "cpu": {"placement": "cpu"},
    "isolation": {"placement": "gpu", "isolation": "process"},
}
WAYS = (*SESSIONS, "explain", "score", "compress", "train", "generate", "exec")
SILENT_S = 300.0
"""What takes longer waits for ever: on a busy machine the slowest takes some seconds."""

GENERATED_BY = 8
"""One model in so many is a decoder, which `generate` takes."""

# ---- models


def paths(folder: Path, base: Path) -> list[str]:
    """Locations. folder: of the model; base: of the sandbox, two levels above."""
    home = base / "home"
    return [
        # what onnxruntime reads
        "w.bin",
        "./w.bin",
        "sub/w.bin",
        "sub/../w.bin",
        "in",
        "hard",
        "self/self/w.bin",
        "a b.bin",
        "out",
        "up/home/.bashrc",
        f"root{home}/id_rsa",
        "../../home/.bashrc",
        "../../home/id_rsa",
        "sub/../../../home/notes.txt",
        str(home / "id_rsa"),
        str(folder / "w.bin"),
        f"/proc/self/root{home}/notes.txt",
        f"self/../../../home/{'../' * 30}{home}/notes.txt",
        "/proc/thread-self/comm",
        "/proc/self/mem",
        "/dev/zero",
        "/dev/stdin",
        "fifo",
        "socket",
        "zero",
        "sub",
        "round",
        "gone",
        "nothing",
        "chain59",
        "huge",
        "",
        ".",
        "..",
        "/",
        "//",
        "~/.bashrc",
        "$HOME/.bashrc",
        "w.bin/",
        "w.bin/..",
        "w.bin\0x",
        "w.bin\n",
        "\x1b]0;owned\x07",
        "..\\..\\home",
        "C:\\w.bin",
        "\\\\host\\share",
        "file:///etc/passwd",
        "https://localhost/w",
        "x" * 300,
        "sub/" * 2000 + "w.bin",
        "\udcff",
        "model.onnx",
        "*",
        "?",
        "*/_ORT_MEM_ADDR_/*",
        "\u202egnp.exe",
        "-rf",
        "0",
        "1",
    ]


NAMES = [
    "w",
    "../../home/.bashrc",
    "/proc/self/mem",
    "\x1b[31mred",
    "two\nlines",
    "n" * 400,
    "%s%n",
    "{0}",
    "[red]x[/red]",
    "a/b/../c",
    "\u202ew",
    "0",
]
OFFSETS = ["0", "0", "0", "16", "00", "4096", "16384", "-1", "", "0x10", str(1 << 62), str(1 << 70), "9" * 400]
LENGTHS = ["exact", "exact", "exact", "absent", "0", "twice", "-4", "1", str(1 << 62), str(1 << 70), "x"]
SHAPES: list[list[int]] = [[SIDE, SIDE]] * 6 + [[1 << 40], [1 << 62, 4], [0, 3], [-1], [], [SIDE * SIDE]]


def sandbox(base: Path) -> None:
    """Files of a user, and folders for what may be written."""
    for name in ("home", "tmp", "cache", "out"):
        (base / name).mkdir(parents=True)
    for name, mode in (("id_rsa", 0o600), (".bashrc", 0o644), ("notes.txt", 0o644)):
        (base / "home" / name).write_bytes(np.random.default_rng(5).bytes(SIDE * SIDE * 4))
        (base / "home" / name).chmod(mode)
        # who reads it leaves a later time, where the file system keeps that
        os.utime(base / "home" / name, (0, 1))


def write_model(base: Path, seed: int) -> Path:
    """The model of a seed, in a folder with files and with what is none."""
    rng = random.Random(seed)
    folder = base / "models" / str(seed)
    (folder / "sub").mkdir(parents=True)
    for name in ("w.bin", "sub/w.bin", "a b.bin"):
        (folder / name).write_bytes(
            (np.random.default_rng(seed).normal(size=(2, SIDE, SIDE)) / 8).astype("f").tobytes()
        )
    for name, target in {
        "in": "w.bin",
        "out": "../../home/id_rsa",
        "up": "../..",
        "self": ".",
        "root": "/",
        "round": "round",
        "gone": "nowhere",
        "zero": "/dev/zero",
        "chain0": "w.bin",
    }.items():
        (folder / name).symlink_to(target)
    for number in range(1, 60):
        (folder / f"chain{number}").symlink_to(f"chain{number - 1}")
    os.mkfifo(folder / "fifo")
    os.link(folder / "w.bin", folder / "hard")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(folder / "socket"))
    with (folder / "huge").open("wb") as file:
        file.truncate(1 << 36)
    model = decoder(rng, folder, base) if seed % GENERATED_BY == GENERATED_BY - 1 else products(rng, folder, base)
    (folder / "model.onnx").write_bytes(serialized(model))
    return folder / "model.onnx"


ESCAPE = "\ue000"
"""Stands for a byte that is no UTF-8, which onnx's Python takes from no program, and onnxruntime from any file."""


def serialized(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString().replace(ESCAPE.encode(), b"\xff\xff\xff"))


def say_elsewhere(rng: random.Random, tensor: onnx.TensorProto, folder: Path, base: Path, apart: float) -> None:
    """Entries that name another place. apart: how likely the content is said to be there; else it stays in the model,
    too."""
    nbytes = len(tensor.raw_data)
    length = rng.choice(LENGTHS)
    tensor.external_data.add(
        key="location",
        value=rng.choice(paths(folder, base)[:8] if rng.random() < 0.3 else paths(folder, base)).replace(
            "\udcff", ESCAPE
        ),
    )
    if rng.random() < 0.8:
        tensor.external_data.add(key="offset", value=rng.choice(OFFSETS))
    if length != "absent":
        tensor.external_data.add(
            key="length", value={"exact": str(nbytes), "twice": str(2 * nbytes)}.get(length, length)
        )
    if rng.random() < 0.05:
        tensor.external_data.add(key="basepath", value="/")
    if rng.random() < apart:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        if rng.random() < 0.8:
            tensor.ClearField("raw_data")


def products(rng: random.Random, folder: Path, base: Path) -> onnx.ModelProto:
    """Products one after another, whose weights are initializers, constants, or in bodies and functions."""
    nodes, initializers, functions, last = (
        list[onnx.NodeProto](),
        list[onnx.TensorProto](),
        list[onnx.FunctionProto](),
        "x",
    )
    for number in range(rng.randint(1, 4)):
        name, value = (
            f"{rng.choice(NAMES)}{number}",
            (np.random.default_rng(rng.randrange(1 << 30)).normal(size=(SIDE, SIDE)) / 8).astype("f"),
        )
        tensor = numpy_helper.from_array(value, name)
        say_elsewhere(rng, tensor, folder, base, 0.15)
        where, result = (
            rng.choice(("initializer", "initializer", "constant", "body", "function")),
            f"{rng.choice(NAMES)}.y{number}",
        )
        if where == "initializer":
            initializers.append(tensor)
            nodes.append(helper.make_node("MatMul", [last, name], [result], rng.choice(NAMES)))
        elif where == "constant":
            nodes += [
                helper.make_node("Constant", [], [name], value=tensor),
                helper.make_node("MatMul", [last, name], [result]),
            ]
        elif where == "body":
            body = helper.make_graph(
                [helper.make_node("MatMul", [last, name], ["z"])],
                "b",
                [],
                [helper.make_tensor_value_info("z", 1, None)],
                [tensor],
            )
            initializers.append(numpy_helper.from_array(np.array(True), f"yes{number}"))
            nodes.append(helper.make_node("If", [f"yes{number}"], [result], then_branch=body, else_branch=body))
        else:
            functions.append(
                helper.make_function(
                    "own",
                    f"F{number}",
                    ["a"],
                    ["r"],
                    [
                        helper.make_node("Constant", [], ["c"], value=tensor),
                        helper.make_node("MatMul", ["a", "c"], ["r"]),
                    ],
                    [helper.make_opsetid("", 17)],
                )
            )
            nodes.append(helper.make_node(f"F{number}", [last], [result], domain="own"))
        last = result
    if rng.random() < 0.5:  # nobody reads it; onnxruntime does not either
        tensor = onnx.TensorProto(
            name="unused", data_type=rng.choice((1, 1, 1, 7, 8, 10, 22, 99)), dims=rng.choice(SHAPES)
        )
        say_elsewhere(rng, tensor, folder, base, 1.0)
        initializers.append(tensor)
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    graph = helper.make_graph(
        nodes,
        rng.choice(NAMES),
        [helper.make_tensor_value_info("x", 1, ["n", SIDE])],
        [helper.make_tensor_value_info("y", 1, ["n", SIDE])],
        initializers,
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
        ir_version=9,
        functions=functions,
    )


def decoder(rng: random.Random, folder: Path, base: Path) -> onnx.ModelProto:
    from models.language import language_model

    model = language_model(layers=1)
    for tensor in rng.sample(list(model.graph.initializer), 2):
        if not tensor.HasField("raw_data"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
        say_elsewhere(rng, tensor, folder, base, 0.3)
    return model


# ---- what happened to files


def listing(base: Path) -> dict[str, tuple[int, ...]]:
    """What changes when somebody writes to a file of the sandbox, or makes one; of the user's also when somebody reads
    it."""
    found = {}
    for top in ("home", "models", "tmp"):
        for parent, folders, files in os.walk(base / top):
            for name in (*folders, *files):
                path = os.path.join(parent, name)
                state = os.lstat(path)
                read = state.st_atime_ns if top == "home" else 0
                written = (state.st_mtime_ns, state.st_ctime_ns) if not stat.S_ISDIR(state.st_mode) else (0, 0)
                found[os.path.relpath(path, base)] = (state.st_mode, state.st_ino, state.st_size, *written, read)
    return found


class Watch:
    """Which files this process opens, by Python's own calls: those of the sandbox that are none of the model's, and the
    system's that a model names.
    """

    NAMED = ("/dev/zero", "/proc/self/mem", "/dev/stdin", "/proc/thread-self/comm")

    def __init__(self, base: Path) -> None:
        self._base, self.opened = str(base), list[str]()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in (
            "open",
            "os.link",
            "os.symlink",
            "os.rename",
            "os.truncate",
            "os.remove",
            "os.chmod",
        ) or not isinstance(arguments[0], str | bytes):
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        mine = path.startswith(self._base + "/") and path[len(self._base) + 1 :].split("/")[0] not in (
            "models",
            "tmp",
            "cache",
            "out",
        )
        if mine or path in self.NAMED or os.fsdecode(arguments[0]) in self.NAMED:
            self.opened.append(f"{event} {os.fsdecode(arguments[0])!r}")


# ---- the ways a model is opened


def run_session(path: str, options: dict[str, str], want: Any) -> str:
    import ort_gpu_ep

    session = ort_gpu_ep.InferenceSession(path, provider_options=options)
    for _ in range(2):
        compare(session, want)
        session.wait_ready(SILENT_S)
    return "ran"


def compare(session: Any, want: Any) -> None:
    if want is not None:
        np.testing.assert_allclose(session.run(None, FEEDS)[0], want, rtol=1e-3, atol=1e-4)


FEEDS = {"x": np.random.default_rng(8).normal(size=(3, SIDE)).astype("f")}


def explain(path: str, out: Path) -> str:
    import ort_gpu_ep

    str(ort_gpu_ep.InferenceSession(path).explain())
    from typer.testing import CliRunner

    from ort_gpu_ep.cli import app

    done = CliRunner().invoke(app, ["explain", path])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return "ran" if done.exit_code == 0 else "refused"


def score(path: str, out: Path) -> str:
    from ort_gpu_ep.scoring import score as scored

    np.save(out / "rows.npy", FEEDS["x"])
    scored(path, out / "rows.npy", out / "scored", adapters="cpu", batch=3)
    return "ran"


def compress(path: str, out: Path) -> str:
    from ort_gpu_ep.compression import compress as compressed

    compressed(path, out / "small.onnx", "int8")
    return "ran"


def train(path: str, out: Path) -> str:
    from ort_gpu_ep.training import SGD, Trainer

    trainer = Trainer(path, loss="mse", optimizer=SGD(0.01), options={"placement": "cpu"})
    trainer.step(FEEDS["x"], FEEDS["x"])
    trainer.save(out / "state.safetensors")
    trainer.load(out / "state.safetensors")
    trainer.export(out / "tuned.onnx")
    return "ran"


def generate(path: str, out: Path) -> str:
    import ort_gpu_ep

    return f"ran, {len(list(ort_gpu_ep.generate(path, [1, 2, 3], max_length=8, max_new_tokens=2, provider_options={'placement': 'cpu'})))} tokens"


def by_exec(path: str, out: Path) -> str:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert "WgpuExecutionProvider" in str(session.__class__.__mro__) or type(session).__module__.startswith(
        "ort_gpu_ep"
    ), type(session)
    session.run(None, FEEDS) if [i.name for i in session.get_inputs()] == ["x"] else None
    return "ran"


OTHERS: dict[str, Callable[[str, Path], str]] = {
    "explain": explain,
    "score": score,
    "compress": compress,
    "train": train,
    "generate": generate,
    "exec": by_exec,
}


def wanted(path: str) -> tuple[type[Exception] | None, Any]:
    """What onnxruntime alone raises for the model, if anything, and what it answers."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return None, session.run(None, FEEDS)[0] if [i.name for i in session.get_inputs()] == ["x"] else None
    except Exception as error:  # also a UnicodeDecodeError, for a message that quotes a name
        return type(error), None


def tried(way: str, path: str, out: Path, plain: tuple[type[Exception] | None, Any]) -> tuple[str, str]:
    """(what happened, what is wrong with it)."""
    import onnxruntime

    from ort_gpu_ep.errors import GpuEpError

    refusals = (
        GpuEpError,
        *(
            getattr(onnxruntime.capi.onnxruntime_pybind11_state, name)
            for name in (
                "Fail",
                "InvalidGraph",
                "InvalidArgument",
                "InvalidProtobuf",
                "NoSuchFile",
                "NotImplemented",
                "RuntimeException",
            )
        ),
    )
    raises, want = plain
    try:
        said = run_session(path, SESSIONS[way], want) if way in SESSIONS else OTHERS[way](path, out)
    except refusals as error:
        return f"refused: {type(error).__name__}: {error}"[
            :300
        ], f"onnxruntime opens it: {type(error).__name__}: {error}"[:300] if way in (
            *SESSIONS,
            "exec",
        ) and raises is None else ""
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return f"refused: {said}"[:300], "" if type(error) is raises and way in (
            *SESSIONS,
            "exec",
            "explain",
        ) else said[:300]
    return said, "" if raises is None or way not in (*SESSIONS, "exec") else "onnxruntime refuses it"


def work(base: Path, ways: Sequence[str]) -> None:
    """For each seed on standard input: opens its model in these ways, and writes a line of JSON before and after
    each."""
    import logging

    import onnxruntime

    import ort_gpu_ep  # noqa: F401

    onnxruntime.set_default_logger_severity(4)
    logging.disable(logging.CRITICAL)
    out, pipe = base / "out", os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    watch = Watch(base)
    for line in sys.stdin:
        seed = int(line)
        path = str(base / "models" / str(seed) / "model.onnx")
        plain = wanted(path)
        for way in ways:
            pipe.write(json.dumps({"seed": seed, "way": way}) + "\n")
            watch.opened.clear()
            before = listing(base)
            said, wrong = tried(way, path, out, plain)
            gc.collect()
            after = listing(base)
            changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
            pipe.write(
                json.dumps(
                    {
                        "seed": seed,
                        "way": way,
                        "said": said,
                        "wrong": [
                            *([wrong] if wrong else []),
                            *(f"changed or read: {name}" for name in changed),
                            *(f"in this process: {o}" for o in watch.opened),
                        ],
                    }
                )
                + "\n"
            )
            for entry in out.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


# ---- the process that watches


class Child:
    """A process that works in a sandbox. in_exec: below `ort-gpu-ep exec`."""

    def __init__(self, base: Path, ways: Sequence[str], in_exec: bool) -> None:
        command = [sys.executable, "-m", "tests.session.hostile_files", "--work", str(base), "--ways", ",".join(ways)]
        before = [sys.executable, "-m", "ort_gpu_ep", "exec", "--"] if in_exec else []
        environment = {
            **os.environ,
            "HOME": str(base / "home"),
            "TMPDIR": str(base / "tmp"),
            "ORT_GPU_EP_CACHE_DIR": str(base / "cache"),
            "XDG_CACHE_HOME": str(base / "cache"),
            "PYTHONPATH": str(ROOT),
            "ORT_GPU_EP_ADAPTER": "software",
        }
        environment.setdefault("MESA_SHADER_CACHE_DIR", str(base / "cache"))
        self.process = subprocess.Popen(
            [*before, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.said: queue.Queue[str] = queue.Queue()
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._read, self._listen)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.put(line)
        self.said.put("")

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors = [*self.errors[-20:], line]

    def ask(self, seed: int, ways: Sequence[str]) -> Iterator[dict[str, Any]]:
        """What happened in each way. It ends early where the process hung, or is gone."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seed}\n")
        self.process.stdin.flush()
        way = ways[0]
        for _ in range(2 * len(ways)):
            try:
                line = self.said.get(timeout=SILENT_S)
            except queue.Empty:
                yield {"seed": seed, "way": way, "said": "hung", "wrong": [f"no answer in {SILENT_S:g} s"]}
                self.end(at_once=True)
                return
            if not line:
                yield {
                    "seed": seed,
                    "way": way,
                    "said": "died",
                    "wrong": [f"exit code {self.process.wait()}: {''.join(self.errors)[-600:]}"],
                }
                return
            found = json.loads(line)
            way = found["way"]
            if "said" in found:
                yield found

    def end(self, at_once: bool = False) -> None:
        """Of itself, when it has no more to do; at once where it hangs. Its own processes end with it."""
        assert self.process.stdin is not None
        if at_once:
            self.process.kill()
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(SILENT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for thread in self._threads:
            thread.join()
        self.process.__exit__(None, None, None)


def results(first: int, count: int, ways: Sequence[str] = WAYS) -> Iterator[dict[str, Any]]:
    """Of each model and way: `said`, what it did; `wrong`, a list of what it should not have done."""
    base = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        sandbox(base)
        groups = [
            (group, in_exec)
            for group, in_exec in (([w for w in ways if w != "exec"], False), ([w for w in ways if w == "exec"], True))
            if group
        ]
        children = [Child(base, *group) for group in groups]
        for seed in range(first, first + count):
            write_model(base, seed)
            for place, (group, in_exec) in enumerate(groups):
                left = list(group)
                while left:
                    if children[place].process.poll() is not None or children[place].process.args[-1] != ",".join(left):
                        children[place].end()
                        children[place] = Child(base, left, in_exec)
                    for found in children[place].ask(seed, left):
                        yield found
                        last = found["way"]
                    left = left[left.index(last) + 1 :]
            shutil.rmtree(base / "models" / str(seed))
        for child in children:
            child.end()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first model")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--all", action="store_true", help="a line for each opening")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    ways = given.ways.split(",")
    if given.work:
        work(Path(given.work), ways)
        return 0
    start_s, counts, wrong = time.monotonic(), Counter[tuple[str, str]](), list[dict[str, Any]]()
    for found in results(given.first, given.count, ways):
        counts[found["way"], found["said"].partition(",")[0].partition(":")[0]] += 1
        wrong += [found] if found["wrong"] else []
        if found["wrong"] or given.all:
            print(json.dumps(found), file=sys.stderr, flush=True)
    if given.json:
        print(
            json.dumps(
                {
                    "counts": [[*key, n] for key, n in sorted(counts.items())],
                    "wrong": wrong,
                    "seconds": time.monotonic() - start_s,
                }
            )
        )
    else:
        for (way, said), n in sorted(counts.items()):
            print(f"{way:10} {said:10} {n:5}")
        print(
            f"{given.count} models, {sum(counts.values())} openings, {len(wrong)} wrong, "
            f"{time.monotonic() - start_s:.0f} s"
        )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
