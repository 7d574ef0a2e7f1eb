"""The wheel's software bill of materials (PEP 770) against what is in the wheel; its commands make the same files
again, to the bit."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ort_gpu_ep.shim import build
from scripts import build_wheel

ROOT = Path(__file__).resolve().parents[2]
NATIVE = (".so", ".dylib", ".dll")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of all platforms, built by the backend from a copy of the sources."""
    copy, made, folder = (tmp_path_factory.mktemp(name) for name in ("copy", "made", "unpacked"))
    for name in ("ort_gpu_ep", "build_backend"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "shim-*"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "THIRD_PARTY_NOTICES.md"):
        shutil.copy(ROOT / name, copy)
    code = f"import shim_backend; print(shim_backend.build_wheel({str(made)!r}, {{'shims': 'all'}}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYTHONPATH": str(copy / "build_backend")},
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = made.glob("*.whl")
    build_wheel.check(wheel)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def bill(unpacked: Path) -> dict[str, Any]:
    (path,) = unpacked.glob("*.dist-info/sboms/*.json")
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded


def properties(component: dict[str, Any]) -> dict[str, str]:
    return {p["name"].partition(":")[2]: p["value"] for p in component.get("properties", [])}


def test_it_is_of_this_release(bill: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    about = bill["metadata"]["component"]
    assert about["purl"] == f"pkg:pypi/{project['name']}@{project['version']}"
    assert about["licenses"] == [{"expression": project["license"]}]


def test_its_hashes_are_those_of_the_files(bill: dict[str, Any], unpacked: Path) -> None:
    for component in bill["components"]:
        assert component["hashes"] == [
            {"alg": "SHA-256", "content": hashlib.sha256((unpacked / component["name"]).read_bytes()).hexdigest()}
        ]


def test_it_lists_every_native_file_and_its_source(bill: dict[str, Any], unpacked: Path) -> None:
    native = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.suffix in NATIVE}
    made = {c["name"] for c in bill["components"] if "command" in properties(c)}
    assert made == native
    assert len(native) == len(build.ZIG_TARGETS)
    graph = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert graph == {
        bill["metadata"]["component"]["bom-ref"]: [c["name"] for c in bill["components"] if c["name"] in made],
        **{name: ["ort_gpu_ep/shim/shim.c"] for name in made},
    }
    assert {c["bom-ref"] for c in bill["components"]} == made | {"ort_gpu_ep/shim/shim.c"}


@pytest.mark.parametrize("target", build.ZIG_TARGETS)
def test_its_commands_make_the_same_file_again(
    target: str, bill: dict[str, Any], unpacked: Path, tmp_path: Path
) -> None:
    """From what the wheel holds, in another folder, and without what the compiler keeps of the first time."""
    (component,) = (c for c in bill["components"] if c["name"].endswith(build.file_name(target)))
    told = properties(component)
    assert told["compiler"].startswith("ziglang ")
    python, *command = shlex.split(told["command"])
    assert python == "python"
    folder = tmp_path / "elsewhere"
    shutil.copytree(unpacked, folder)
    (folder / component["name"]).unlink()
    caches = {f"ZIG_{which}_CACHE_DIR": str(tmp_path / which) for which in ("LOCAL", "GLOBAL")}
    subprocess.run([sys.executable, *command], cwd=folder, env={**os.environ, **caches}, check=True, timeout=500)
    assert (folder / Path(component["name"]).name).read_bytes() == (unpacked / component["name"]).read_bytes()
