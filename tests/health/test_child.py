"""Helper processes import what their parent has imported, and nothing from the current folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ort_gpu_ep.processes import child

ROOT = Path(__file__).parents[2]
SITE = Path(json.__file__).parent, *(Path(p) for p in sys.path if p.endswith("site-packages"))

HOSTILE = (
    *child.PACKAGES,
    "google",
    "typing_extensions",
    "sitecustomize",
    "usercustomize",
    "ziglang",
    "json",
    "random",
    "runpy",
    "signal",
    "socket",
    "threading",
    "typing",
)
"""Modules that lie in the current folder: ours, those of others, and of the standard library."""

KINDS = """
import json, os, subprocess, sys
import numpy, onnx, onnxruntime, platformdirs, psutil, ml_dtypes, cffi
from ort_gpu_ep.config import Config
from ort_gpu_ep.health import examination, helper
import ort_gpu_ep.health.probes
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.isolation import remote
from ort_gpu_ep.drills.generator import LoadGenerator
from ort_gpu_ep.shim import build
os.chdir({hostile!r})
(info,) = [AdapterInfo(**a) for a in helper.list_adapters()][:1]
said = {{"list": info.name}}
said["probe"] = [o.status for o in examination.examine(info.index, ["atomics"], 1)]
with LoadGenerator(info, 0.1) as load:
    said["load"] = load.pid > 0
gpu = remote.open_remote(Config(isolation="process", health="off"))
said["worker"] = gpu.info.name
gpu.end()
zig = [c for c in build._compilers(None) if "ziglang" in c]
said["zig"] = [subprocess.run([*c[:c.index("cc")], "version"], capture_output=True).returncode for c in zig]
print(json.dumps(said))
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder of modules that leave a file when they are executed."""
    folder = tmp_path / "downloads"
    for name in HOSTILE:
        as_file = name not in ("ort_gpu_ep", "wgpu", "ziglang")
        path = folder / f"{name}.py" if as_file else folder / name / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r} + chr(10))\nraise SystemExit('hostile')\n"
        )
    for name in ("health/worker", "isolation/worker", "device/busy"):
        path = folder / "ort_gpu_ep" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "ort_gpu_ep" / "__init__.py", path)
    return folder


def executed(hostile: Path) -> str:
    path = hostile.with_name("executed")
    return path.read_text() if path.exists() else ""


STARTS = {
    "-c": (["-c", "{code}"], ""),
    "-c, with the folder in PYTHONPATH": (
        ["-I", "-c", "import sys; sys.path.insert(0, {root!r})\n{code}"],
        "{hostile}",
    ),
    "a script": (["-P", "{script}"], "{root}"),
    "-S": (["-I", "-S", "-c", "import sys; sys.path += [{root!r}, *{site!r}]\n{code}"], ""),
}
"""How a parent is started: arguments, PYTHONPATH."""


@pytest.mark.parametrize("start", STARTS)
def test_nothing_in_the_current_folder_is_executed(start: str, hostile: Path, tmp_path: Path) -> None:
    code = KINDS.format(hostile=str(hostile))
    script = tmp_path / "app" / "main.py"
    script.parent.mkdir()
    script.write_text(code)
    facts = {
        "code": code,
        "root": str(ROOT),
        "hostile": str(hostile),
        "script": str(script),
        "site": [str(s) for s in SITE[1:]],
    }
    arguments, path = STARTS[start]
    done = subprocess.run(
        [sys.executable, *(a.format(**facts) for a in arguments)],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path.format(**facts)},
    )
    assert executed(hostile) == "", done.stderr[-2000:]
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["list"] == said["worker"]
    assert (said["probe"], said["load"]) == (["PASS"], True)
    assert set(said["zig"]) <= {0}


def test_the_doctor_in_a_folder_of_downloads(hostile: Path, tmp_path: Path) -> None:
    tool = Path(sys.executable).with_name("ort-gpu-ep")
    done = subprocess.run(
        [tool, "doctor", "--quick", "--json", "--option", f"cache_dir={tmp_path / 'cache'}"],
        cwd=hostile,
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert executed(hostile) == ""
    assert json.loads(done.stdout)["probes"], done.stderr


def test_a_package_that_only_the_parent_finds(tmp_path: Path) -> None:
    """It is found by `sys.path.insert` alone, beside another one that is installed; and the module that runs is the
    parent's."""
    vendored = tmp_path / "vendored"
    shutil.copytree(ROOT / "ort_gpu_ep", vendored / "ort_gpu_ep", ignore=shutil.ignore_patterns("__pycache__"))
    (vendored / "ort_gpu_ep" / "told.py").write_text(
        "import ort_gpu_ep, numpy, json, sys\nprint(json.dumps([ort_gpu_ep.__file__, sys.argv[1:]]))\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(vendored)!r}); import subprocess, ort_gpu_ep; from "
        f"ort_gpu_ep.processes import child\n"
        "sys.path.pop(0)\n"
        "print(subprocess.run(child.command('ort_gpu_ep.told', 'ä b'), env=child.environment(), capture_output=True, "
        "text=True).stdout)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True, timeout=300, check=True
    )
    assert json.loads(done.stdout) == [str(vendored / "ort_gpu_ep" / "__init__.py"), ["ä b"]]


def test_a_current_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.syspath_prepend("")
    done = subprocess.run(
        child.command("platform"), env=child.environment(), text=True, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_what_helpers_import_is_pinned() -> None:
    """Each third-party package that a helper imports by name is one of PACKAGES, or comes with one of them."""
    code = (
        "import json, sys\nimport ort_gpu_ep.isolation.worker, ort_gpu_ep.health.worker, ort_gpu_ep.drills.busy, "
        "wgpu.backends.wgpu_native\n"
        "found = {n for n, m in sys.modules.copy().items() if '.' not in n and not n.startswith('_') and "
        "'site-packages' in (getattr(m, '__file__', None) or '')}\n"
        "print(json.dumps(sorted(found)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, timeout=300, check=True
    )
    beside = {"pycparser", "rendercanvas", "sniffio", "typing_extensions"}
    assert set(json.loads(done.stdout)) <= {*child.PACKAGES, *beside}
