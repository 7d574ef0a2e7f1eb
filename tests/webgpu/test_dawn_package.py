"""Dawn by the package wgpudawn: which versions are taken, what a process decides, and that whatever goes wrong ends as
a reason."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.health import libraries
from ort_gpu_ep.health.helper import Worker
from ort_gpu_ep.processes import child
from ort_gpu_ep.webgpu import choice
from ort_gpu_ep.webgpu.choice import DAWN, WGPU, Choice
from ort_gpu_ep.webgpu.implementation import own
from ort_gpu_ep.webgpu.library import KIND, NAME
from ort_gpu_ep.webgpu.wgpu_native import WgpuNative

ROOT = Path(__file__).resolve().parents[2]
MODEL = '<ir_version: 10, opset_import: ["": 18]> g (float[4] x) => (float[4] y) { y = Relu (x) }'
PROGRAM = f"""
import numpy as np, onnx, onnx.parser, ort_gpu_ep
model = onnx.parser.parse_model('{MODEL}')
session = ort_gpu_ep.InferenceSession(model.SerializeToString(), provider_options={{"strict": "1", "placement": "gpu"}})
print(session.run(None, {{"x": np.array([-1.0, 2.0, -3.0, 4.0], np.float32)}})[0].tolist())
print(session.explain())
"""
FIRST = ".".join(map(str, choice.TESTED[0]))


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has decided nothing and loaded no library."""
    monkeypatch.setattr(choice, "_settled", None)
    monkeypatch.setattr(choice, "_loaded", False)
    monkeypatch.setattr(child, "handed_on", {})
    monkeypatch.delenv("ORT_GPU_EP_WEBGPU", raising=False)
    choice.dawn_package.cache_clear()
    yield
    choice.dawn_package.cache_clear()


def a_package(folder: Path, version: str, extension: bytes | None = b"no library") -> Path:
    """A folder for sys.path with a package of that name, and what stands for its library."""
    library = folder / choice.PACKAGE / "_lib"
    library.mkdir(parents=True)
    (library.parent / "__init__.py").write_text("raise SystemExit('its own code is not to be loaded')")
    (library.parent / "_static_version.py").write_text(f"version = '{version}'\n")
    (library / "__init__.py").write_text('dawn_version = "v20300101.1"\n')
    if extension is not None:
        (library / f"_wgpu_dawn{EXTENSION_SUFFIXES[-1]}").write_bytes(extension)
    return folder


def ran(path: Path, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """PROGRAM in a process that finds packages there, too."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ORT_GPU_EP_WEBGPU")}
    environment |= {
        "PYTHONPATH": os.pathsep.join((str(path), environment.get("PYTHONPATH", ""))),
        "ORT_GPU_EP_CACHE_DIR": str(cache),
    }
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environment | variables, capture_output=True, text=True)


def test_without_the_package_it_is_wgpu_native(undecided: None) -> None:
    assert (KIND, NAME, type(own)) == ("wgpu", "wgpu-native", WgpuNative)
    decided = libraries.settle(Config())
    assert decided == Choice(WGPU, "the package wgpudawn, which brings Dawn, is not installed")
    assert choice.version() == ""
    assert child.environment()["ORT_GPU_EP_WEBGPU"] == WGPU


def test_the_extra_asks_for_the_versions_that_are_taken() -> None:
    first, end = (".".join(map(str, numbers)) for numbers in choice.TESTED)
    assert f'dawn = ["{choice.PACKAGE}>={first},<{end}"]' in (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize(
    ("version", "why"),
    [
        (FIRST, ""),
        (f"{FIRST}.post1", ""),
        ("0.32.0.3", r"tested with 0\.32\.0\.4 and newer ones before 0\.32\.1"),
        ("0.32.1", "tested with"),
        ("1.0", "tested with"),
        ("", "of an unknown version is installed"),
    ],
)
def test_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undecided: None, version: str, why: str) -> None:
    monkeypatch.syspath_prepend(a_package(tmp_path, version))
    if why:
        with pytest.raises(ConfigError, match=why):
            choice.dawn_package()
        decided = libraries.settle(Config(cache_dir=str(tmp_path)))
        assert decided is not None
        assert decided.kind == WGPU
        assert re.search(why.partition(r"\.")[0], decided.why)
    else:
        assert choice.dawn_package().name == f"Dawn 20300101.1 (wgpudawn {version})"


def test_a_package_without_a_module_for_this_python_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undecided: None
) -> None:
    monkeypatch.syspath_prepend(a_package(tmp_path, FIRST, None))
    with pytest.raises(ConfigError, match="has no compiled module for this Python"):
        choice.dawn_package()


def test_what_cannot_be_loaded_leaves_wgpu_native(tmp_path: Path) -> None:
    """A package whose library is none: the process that tries it says so, and the session runs by wgpu-native."""
    done = ran(a_package(tmp_path / "packages", FIRST), tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert "[0.0, 2.0, 0.0, 4.0]" in done.stdout
    assert re.search(r"library: wgpu-native: Dawn could not be tried .*can't be loaded", done.stdout)


def test_asked_for_it_is_an_error_where_it_cannot_be_had(tmp_path: Path) -> None:
    done = ran(a_package(tmp_path / "packages", "9.0"), tmp_path / "cache", ORT_GPU_EP_WEBGPU="dawn")
    assert done.returncode == 1
    assert "ConfigError: wgpudawn 9.0 is installed; this version of ort_gpu_ep was tested with" in done.stderr


def test_a_library_that_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undecided: None
) -> None:
    monkeypatch.syspath_prepend(a_package(tmp_path, FIRST))
    with pytest.raises(ConfigError, match="can't be read"):
        choice.check_dawn(str(tmp_path / "missing.so"))
    choice.check_dawn(__file__)


def test_a_command_is_refused_with_the_reason(tmp_path: Path) -> None:
    environment = {**os.environ, "ORT_GPU_EP_WEBGPU": "dawn"}
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    for arguments, code in ((["doctor"], 2), (["run", "m.onnx"], 1)):
        done = subprocess.run(
            [sys.executable, "-m", "ort_gpu_ep", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code
        assert " ".join(done.stderr.split()).startswith(
            "ConfigError: the package wgpudawn, which brings Dawn, is not installed"
        )
        assert "Traceback" not in done.stderr


# ---- the trial

ADAPTER = {
    "index": 0,
    "name": "a card",
    "type": "discrete",
    "backend": "Vulkan",
    "driver": "one",
    "vendor_id": 1,
    "device_id": 2,
}
BEGUN: list[dict[str, Any]] = [{"touches": "drivers"}, {"features": [], "limits": {}}, {"start": "matrix units"}]
SEEN = {"name": "matrix units", "units": True, "seen": "fragments of 8x8x8"}


class Told:
    """In place of a Worker: what its process prints, and how it ends."""

    job: dict[str, Any] = {}  # noqa: RUF012  of the last one
    variables: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, lines: list[dict[str, Any]], code: int, hangs: bool) -> None:
        self._lines, self._code, self._hangs = iter(lines), code, hangs

    def __call__(self, job: dict[str, Any], variables: dict[str, str]) -> Told:
        Told.job, Told.variables = job, variables
        return self

    def answer(self, limit_s: float) -> dict[str, Any] | None:
        line = next(self._lines, None)
        if line is None and self._hangs:
            raise TimeoutError
        return line

    def end(self, kill: bool = False) -> int:
        return self._code


def settled(
    monkeypatch: pytest.MonkeyPatch, folder: Path, lines: list[dict[str, Any]], code: int = 120, hangs: bool = False
) -> Choice:
    monkeypatch.setattr(libraries, "list_adapters", lambda variables: [ADAPTER])
    monkeypatch.setattr(libraries, "Worker", Told(lines, code, hangs))
    decided = libraries.settle(Config(cache_dir=str(folder / "cache")))
    assert decided is not None
    return decided


@pytest.mark.parametrize(
    ("lines", "code", "hangs", "kind", "why"),
    [
        (
            [*BEGUN, {**SEEN, "status": "PASS"}],
            120,
            False,
            DAWN,
            r"the matrix units of a card passed their probe \(fragments of 8x8x8\)",
        ),
        (
            [*BEGUN, {**SEEN, "status": "FAIL", "seen": "3 of 9 are wrong"}],
            120,
            False,
            WGPU,
            "fails the probe 'matrix units': 3 of 9 are wrong",
        ),
        (
            [*BEGUN, {**SEEN, "status": "UNSUPPORTED", "seen": "none are there"}],
            120,
            False,
            WGPU,
            "has no matrix units .*: none are there",
        ),
        (
            [
                *BEGUN,
                {"name": "memory", "units": False, "status": "UNSUPPORTED", "seen": ""},
                {**SEEN, "status": "PASS"},
            ],
            120,
            False,
            DAWN,
            "",
        ),
        (BEGUN, -6, False, WGPU, r"ends the process at 'matrix units' \(signal SIGABRT\)"),
        (BEGUN[:1], 1, False, WGPU, r"ends the process at 'opening the device' \(exit code 1\)"),
        (BEGUN, -9, True, WGPU, "does not answer: more than 60 s, at 'matrix units'"),
        (
            [{"failed": "ImportError: it"}],
            120,
            False,
            WGPU,
            r"could not be tried \(the process that tries it failed \(ImportError: it\)\)",
        ),
        ([*BEGUN, {**SEEN, "status": "PASS"}], -11, False, WGPU, "ends the process"),
    ],
)
def test_what_the_trial_tells_decides(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undecided: None,
    lines: list[dict[str, Any]],
    code: int,
    hangs: bool,
    kind: str,
    why: str,
) -> None:
    """And is kept, where it is about Dawn; another process of the same machine asks nobody."""
    monkeypatch.syspath_prepend(a_package(tmp_path, FIRST))
    decided = settled(monkeypatch, tmp_path, lines, code, hangs)
    assert decided.kind == kind
    assert re.search(why, decided.why)
    assert Told.variables == {"ORT_GPU_EP_WEBGPU": DAWN}
    assert (Told.job["adapter"], Told.job["probes"]) == (0, None)
    assert child.environment()["ORT_GPU_EP_WEBGPU"] == kind

    monkeypatch.setattr(choice, "_settled", None)
    monkeypatch.setattr(libraries, "list_adapters", None)
    again = libraries.settle(Config(cache_dir=str(tmp_path / "cache")), only_known=True)
    assert again == (None if "failed" in lines[-1] else decided)


def test_without_a_trial_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undecided: None) -> None:
    monkeypatch.syspath_prepend(a_package(tmp_path, FIRST))
    assert libraries.settle(Config(cache_dir=str(tmp_path)), only_known=True) is None
    assert libraries.settle(Config(health="off")) == Choice(WGPU, "with health=off nobody tries Dawn before it is used")


def test_a_library_that_is_loaded_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undecided: None) -> None:
    monkeypatch.syspath_prepend(a_package(tmp_path, FIRST))
    assert choice.for_good().kind == WGPU
    choice.settle(Choice(DAWN, "it passed"))
    assert choice.for_good().kind == WGPU
    assert (
        choice.for_good().why
        == "it was loaded before Dawn had been tried; the next process uses the other one: it passed"
    )


def test_a_decision_of_another_package_or_driver_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undecided: None
) -> None:
    monkeypatch.syspath_prepend(a_package(tmp_path / "one", FIRST))
    settled(monkeypatch, tmp_path, [*BEGUN, {**SEEN, "status": "PASS"}])
    (kept,) = (tmp_path / "cache" / "health").glob("library-*.json")
    for change in (
        lambda: monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path)),
        lambda: (tmp_path / "one" / choice.PACKAGE / "_static_version.py").write_text("version = '0.32.0.5'"),
    ):
        change()
        choice.dawn_package.cache_clear()
        monkeypatch.setattr(choice, "_settled", None)
        assert libraries.settle(Config(cache_dir=str(tmp_path / "cache")), only_known=True) is None
    assert json.loads(kept.read_text("utf-8"))


def test_the_process_that_tries_it_runs_the_probes_of_units(tmp_path: Path) -> None:
    """Of this adapter by wgpu-native, which has no units: it says why."""
    worker = Worker({"task": "probe", "adapter": 0, "probes": None, "rounds": 1, "seed": 1})
    lines = []
    while (line := worker.answer(60.0)) is not None:
        lines.append(line)
    assert worker.end() == 120
    results = {line["name"]: line for line in lines if "status" in line}
    assert [name for name, line in results.items() if line["units"]] == ["matrix units"]
    assert results["matrix units"]["status"] == "UNSUPPORTED"
    assert results["upload and readback"]["status"] == "PASS"
