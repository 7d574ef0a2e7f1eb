"""Faults that nobody plants in our code: drivers that fail when loaded, limits, full disks, broken caches. Each in a
process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep import store
from ort_gpu_ep.shim import build
from ort_gpu_ep.webgpu import loader_paths
from tests.unit.graphs import model_of

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits of processes and ICD files as Linux has them"
)

ROOT = Path(__file__).parents[2]
MAIN = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
import numpy as np, onnxruntime, ort_gpu_ep
from ort_gpu_ep.health import enumeration, helper, open_adapter
helper.START_S, enumeration.ALONE_S, open_adapter.QUICK_S = {start_s}, 10.0, 300.0
onnxruntime.set_default_logger_severity(4)
x = np.random.default_rng(3).standard_normal((4, 160)).astype("f")
want = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"]).run(None, {{"x": x}})[0]
options = json.loads(sys.argv[1])
{before}
said = {{}}
try:
    session = ort_gpu_ep.InferenceSession("model.onnx", provider_options=options)
    for _ in range({runs}):
        got = session.run(None, {{"x": x}})[0]
        said["right"] = said.get("right", True) and bool(np.allclose(got, want, rtol=1e-4, atol=1e-5))
    {after}
    said |= {{**session.stats(), "gpu": session.explain().count("gpu")}}
except Exception as error:
    said |= {{"raised": type(error).__name__, "message": str(error)}}
print(json.dumps(said))
"""


@dataclass
class Done:
    """What a process printed, and what its log said."""

    said: dict[str, Any]
    log: list[str]

    def lines(self, part: str) -> list[str]:
        return [line for line in self.log if part in line]


Process = Callable[..., Done]


def starter(folder: Path) -> Process:
    """Runs a session in a new process; its cache is in the folder unless told otherwise."""
    rng = np.random.default_rng(1)
    weights = {"v": rng.standard_normal((160, 160)).astype("f") / 8, "b": rng.standard_normal(160).astype("f")}
    # w is in no file
    text = "(float[N, 160] x) => (float[N, 160] y) { w = Transpose(v) h = MatMul(x, w) a = Add(h, b) y = Softmax(a) }"
    (folder / "model.onnx").write_bytes(model_of(text, weights).SerializeToString())

    def run(
        before: str = "",
        after: str = "",
        runs: int = 2,
        start_s: float = 90.0,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> Done:
        options = {"placement": "gpu", "cache_dir": str(folder / "cache"), **options}
        code = MAIN.format(before=before, after=after, runs=runs, start_s=start_s)
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(options)],
            cwd=folder,
            text=True,
            capture_output=True,
            timeout=400,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        )
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-3000:]}"
        return Done(json.loads(done.stdout.splitlines()[-1]), done.stderr.splitlines())

    return run


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder as a session leaves it that has used the adapter for the first time."""
    folder = tmp_path_factory.mktemp("probed")
    assert starter(folder)().said["gpu"] > 0
    assert len(list((folder / "cache" / "health").glob("*.json"))) == 2
    return folder / "cache"


@pytest.fixture
def process(probed: Path, tmp_path: Path) -> Process:
    """In a folder of the test's own, whose cache knows the adapter."""
    shutil.copytree(probed, tmp_path / "cache")
    return starter(tmp_path)


# ---- drivers

BAD = {
    "aborts": ("abort();", "ends the process (signal SIGABRT)"),
    "crashes": ("*(volatile int *)0 = 1;", "ends the process (signal SIGSEGV)"),
    "exits": ("_exit(0);", "ends the process (exit code 0)"),
    "sleeps": ("for (;;) sleep(1);", "hangs: no answer after 3 s"),
    "exits in order": ("exit(0);", "looking for GPU adapters "),
}
"""exit() in a library that is being loaded may never come to its end: the lock on loading is held."""


STRICT = """
    try:
        ort_gpu_ep.InferenceSession("model.onnx", provider_options={**options, "strict": 1})
        said["strict"] = ["", ""]
    except Exception as error:
        said["strict"] = [type(error).__name__, str(error)]
""".strip()
"""After a session without `strict`, another one with it."""


def library(folder: Path, name: str, statement: str) -> Path:
    """A shared library that does something when it is loaded."""
    source, made = folder / f"{name}.c", folder / f"lib{name}.so"
    source.write_text(
        "#include <stdlib.h>\n#include <unistd.h>\n"
        f"__attribute__((constructor)) static void at_load(void) {{ {statement} }}\n"
    )
    for command in build._compilers(None):
        done = subprocess.run([*command, "-shared", "-o", str(made), str(source)], capture_output=True, text=True)
        if done.returncode == 0:
            return made
    raise AssertionError(f"no C compiler works: {done.stderr}")


def manifest(folder: Path, name: str, library_path: object) -> Path:
    path = folder / f"{name}.json"
    path.write_text(
        json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": str(library_path), "api_version": "1.3.0"}})
    )
    return path


def only(*manifests: Path) -> dict[str, str]:
    text = os.pathsep.join(map(str, manifests))
    return {"VK_DRIVER_FILES": text, "VK_ICD_FILENAMES": text}


@pytest.mark.parametrize("name", BAD)
def test_a_driver_that_fails_when_loaded(name: str, process: Process, tmp_path: Path) -> None:
    statement, how = BAD[name]
    env = only(manifest(tmp_path, name, library(tmp_path, name.replace(" ", "_"), statement)))
    start_s = 3.0 if name in ("sleeps", "exits in order") else 90.0  # a busy machine takes seconds to start Python
    first, second = (process(env=env, start_s=start_s, after=after) for after in ("", STRICT))
    kind, message = second.said.pop("strict")
    for done in (first, second):
        assert done.said == {"right": True, "gpu": 0, "fallbacks": 0, "renewals": 0}
        (line,) = done.lines("running on the CPU")
        assert how in line
        assert f"{name}.json" in line
        assert "ort-gpu-ep doctor" in line
    assert kind == "AdapterError"
    assert how in message


@pytest.mark.parametrize("content", ["nothing", "garbage", "empty"])
def test_a_driver_that_is_none(content: str, process: Process, tmp_path: Path) -> None:
    target = tmp_path / "libdriver.so"
    if content != "nothing":
        target.write_bytes(np.random.default_rng(1).bytes(5000) if content == "garbage" else b"")
    env = only(manifest(tmp_path, "icd", target))
    done = process(env=env)
    assert done.said == {"right": True, "gpu": 0, "fallbacks": 0, "renewals": 0}
    assert len(done.lines("running on the CPU: no GPU adapter")) == 1
    assert process(env=env, strict=1).said["raised"] == "AdapterError"


def test_the_bad_driver_of_two_is_named_and_can_be_left_out(process: Process, tmp_path: Path) -> None:
    good = loader_paths.manifests(os.environ)
    assert good
    bad = manifest(tmp_path, "bad", library(tmp_path, "bad", "abort();"))
    done = process(env=only(bad, *good))
    assert done.said["right"]
    (line,) = done.lines("running on the CPU")
    assert f"It is {bad}" in line
    advised = line.split("VK_DRIVER_FILES=")[1].split(" does without it")[0]
    assert process(env={"VK_DRIVER_FILES": advised, "VK_ICD_FILENAMES": advised}).said["gpu"] > 0


def test_the_way_back_is_a_changed_file(process: Process, tmp_path: Path) -> None:
    """The other drivers of this machine are there all the time: not each of them finds an adapter."""
    installed = loader_paths.manifests(os.environ)
    icd = manifest(tmp_path, "icd", library(tmp_path, "driver", "abort();"))
    assert process(env=only(icd, *installed)).said["gpu"] == 0
    icd.write_bytes(installed[0].read_bytes())
    assert process(env=only(icd, *installed)).said["gpu"] > 0


def test_doctor_is_a_way_back(process: Process, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (file,) = (cache / "health").glob("drivers-*.json")
    file.write_text(
        json.dumps(
            {
                "format": store.FORMAT,
                "adapters": [],
                "failures": 12,
                "until_s": time.time() + 80_000,
                "trouble": "looking for GPU adapters ends the process (on purpose).",
            }
        )
    )
    assert len(process().lines("running on the CPU: looking for GPU adapters ends the process (on purpose)")) == 1
    subprocess.run(
        [sys.executable, "-m", "ort_gpu_ep.cli", "doctor", "--quick", "--option", f"cache_dir={cache}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        timeout=400,
    )
    assert process().said["gpu"] > 0


def test_health_off_loads_the_drivers_here(process: Process) -> None:
    done = process(health="off", after="said['looked'] = enumeration._seen is not None")
    assert done.said["gpu"] > 0
    assert not done.said["looked"]


def test_placement_auto_on_a_software_adapter_loads_no_driver(process: Process) -> None:
    done = process(
        placement="auto", after="from ort_gpu_ep.device import adapter; said['loaded'] = adapter._found is not None"
    )
    assert done.said["right"]
    assert done.said["loaded"] is False


# ---- limits


def test_no_address_space_for_tensors(process: Process) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))"
    done = process(limit)
    assert done.said["right"]
    assert done.said["gpu"] == 0
    assert len([line for line in done.log if "ulimit -v" in line]) == 1, done.log
    strict = process(limit, strict=1)
    assert "ulimit -v" in strict.said["message"]


def test_no_address_space_for_buffers(process: Process) -> None:
    tight = """
    import psutil, resource
    x = np.random.default_rng(3).standard_normal((20_000, 160)).astype("f")
    want = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    room = psutil.Process().memory_info().vms + (96 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
    try:
        got = session.run(None, {"x": x})[0]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    said["right"] = bool(np.allclose(got, want, rtol=1e-4, atol=1e-5))
    """.strip()
    done = process(after=tight)
    assert done.said["right"]
    assert done.said["fallbacks"] >= 1
    assert done.lines("OutOfDeviceMemoryError")
    assert process(after=tight, strict=1).said["raised"] == "OutOfDeviceMemoryError"


def test_two_processes_on_one_adapter(process: Process) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(process, runs=300) for _ in range(2)]
        for job in jobs:
            assert job.result().said["right"]
            assert job.result().said["fallbacks"] == 0


# ---- caches

NO_ROOM = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))"
"""Every write to a file fails, as on a full disk."""


def test_a_full_disk(process: Process, tmp_path: Path) -> None:
    cache = tmp_path / "full"
    done = process(NO_ROOM, cache_dir=str(cache))
    assert done.said["right"]
    assert done.said["gpu"] > 0
    assert done.said["fallbacks"] == 0
    # said once of what drivers and the adapter are like, plans, and composed shaders
    assert len(done.lines("can't be written")) == 1
    assert len(done.lines("which takes seconds; ORT_GPU_EP_CACHE_DIR names another folder")) == 1
    assert len(done.lines("no marker in")) == 1
    assert len(done.lines("weights for the CPU fallback stay in memory")) == 1
    assert [p.name for p in cache.rglob("*") if p.is_file()] == ["verdicts.lock"]  # which is empty on any disk


@pytest.mark.parametrize("place", ["a file", "/proc/nowhere"])
def test_no_cache_folder(place: str, process: Process, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("x")
    done = process(cache_dir=str(tmp_path / place / "cache"))
    assert done.said["right"]
    assert done.said["gpu"] > 0
    assert len(done.lines("can't be written")) == 1
    assert len(done.lines("stay in memory")) == 1


@pytest.mark.parametrize("home", ["/proc", "/proc/nowhere", ""])
def test_no_home(home: str, process: Process) -> None:
    env = {
        "HOME": home,
        "XDG_CACHE_HOME": f"{home}/.cache" if home else "",
        "ORT_GPU_EP_CACHE_DIR": "",
        # else it compiles all anew
        "MESA_SHADER_CACHE_DIR": os.environ.get("MESA_SHADER_CACHE_DIR") or str(Path.home() / ".cache"),
    }
    done = process(cache_dir="", env=env)
    assert done.said["right"]
    assert done.said["gpu"] > 0


@pytest.fixture
def nobody(tmp_path: Path) -> dict[str, str]:
    """The environment of a process whose user has no home and no entry in the list of users, as with `docker run --user
    54321`."""
    (tmp_path / "nobody").mkdir()
    (tmp_path / "nobody" / "sitecustomize.py").write_text(
        "import os, pwd\ndef unknown(uid):\n    raise KeyError('uid not found')\npwd.getpwuid = "
        "unknown\nos.environ.pop('HOME', None)\n"
    )
    shaders = os.environ.get("MESA_SHADER_CACHE_DIR") or str(Path.home() / ".cache")  # else Mesa compiles all anew
    return {
        "PYTHONPATH": f"{tmp_path / 'nobody'}{os.pathsep}{ROOT}",
        "XDG_CACHE_HOME": "",
        "ORT_GPU_EP_CACHE_DIR": "",
        "MESA_SHADER_CACHE_DIR": shaders,
    }


def test_a_user_that_nobody_knows(nobody: dict[str, str], process: Process) -> None:
    done = process(cache_dir="", env=nobody)
    assert done.said["right"]
    assert done.said["gpu"] > 0
    assert len(done.lines("there is no cache folder")) == 1
    assert len(done.lines("stay in memory")) == 1


def test_commands_without_a_home(nobody: dict[str, str], tmp_path: Path) -> None:
    starter(tmp_path)
    for command in (["doctor", "--quick"], ["run", "model.onnx"], ["explain", "model.onnx"], ["tune", "--forget"]):
        done = subprocess.run(
            [sys.executable, "-m", "ort_gpu_ep", *command],
            cwd=tmp_path,
            text=True,
            capture_output=True,
            timeout=400,
            env={**os.environ, **nobody},
        )
        assert done.returncode == 0 or "degraded" in done.stdout, (
            f"{command}: {done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        )
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "~").exists()


def test_broken_cache_files_are_made_anew(process: Process, tmp_path: Path) -> None:
    """Other ways to be broken: tests/health."""
    files = sorted((tmp_path / "cache" / "health").glob("*.json"))
    assert len(files) == 2
    for file in files:
        file.write_bytes(file.read_bytes()[:-20])
    done = process()
    assert done.said["right"]
    assert done.said["gpu"] > 0
    assert len(done.lines("is ignored and made anew")) == 2
    assert not process().lines("is ignored and made anew")


def test_folders_where_cache_files_should_be(process: Process, tmp_path: Path) -> None:
    for file in (tmp_path / "cache" / "health").glob("*.json"):
        file.unlink()
        file.mkdir()
    done = process()
    assert done.said["gpu"] > 0
    assert len(done.lines("is ignored and made anew")) == 2
    assert len(done.lines("can't be written")) == 1


def test_broken_markers_count_as_an_unclean_exit(process: Process, tmp_path: Path) -> None:
    (verdict,) = (f for f in (tmp_path / "cache" / "health").glob("*.json") if not f.name.startswith("drivers-"))
    (verdict.parent / f"{verdict.stem}.1-abcd.open").write_bytes(b"\xff\0")
    done = process()
    assert done.said["right"]
    assert len(done.lines("did not end cleanly")) == 1
    assert not process().lines("did not end cleanly")


def test_strangers_in_the_weights_folder(process: Process, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "weights"
    (folder / "1-dead").mkdir(parents=True)
    (folder / "1-dead" / "left.bin").write_bytes(b"x" * 100)
    (folder / "1-dead.lock").write_text("")
    (folder / "2-odd.lock").mkdir()
    done = process()
    assert done.said["right"]
    assert not (folder / "1-dead").exists()
