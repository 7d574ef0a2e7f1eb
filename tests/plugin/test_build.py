"""The native shim: found, built, built by many processes at once, or a clear error."""

from __future__ import annotations

import ctypes
import importlib
import struct
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.plugin.abi import check_version
from ort_gpu_ep.shim import build

ROOT = Path(__file__).resolve().parents[2]
EXPORTS = [
    "CreateEpFactories",
    "ReleaseEpFactory",
    "ort_gpu_ep_bind",
    "ort_gpu_ep_null",
    "ort_gpu_ep_empty",
    "ort_gpu_ep_gone",
]


def test_the_shim_exports_what_both_sides_look_up(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(build.build(tmp_path / build.file_name(build.current_platform()))))
    assert all(hasattr(library, name) for name in EXPORTS)
    library.ort_gpu_ep_null.restype = ctypes.c_void_p
    assert library.ort_gpu_ep_null() is None


def test_an_unbound_shim_says_what_to_do(python: Callable[..., Any]) -> None:
    done = python("""
        from ort_gpu_ep.shim.build import find_or_build
        try: onnxruntime.register_execution_provider_library("x", str(find_or_build()))
        except Exception as error: print(error)
    """)
    assert "call ort_gpu_ep.register()" in done.stdout, (done.stdout, done.stderr)


def test_the_name_follows_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.file_name("linux-x86_64")
    assert before.startswith("shim-")
    assert before.endswith("-linux-x86_64.so")
    changed = tmp_path / "shim.c"
    changed.write_text(build.SOURCE.read_text() + "\n")
    monkeypatch.setattr(build, "SOURCE", changed)
    assert build.file_name("linux-x86_64") != before
    assert build.file_name("windows-arm64").endswith(".dll")
    assert build.file_name("macos-arm64").endswith(".dylib")


def test_a_folder_that_is_not_writable_leaves_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr(build, "FOLDER", package)
    monkeypatch.setattr(
        build, "_writable", lambda folder: folder != package and (folder.mkdir(parents=True, exist_ok=True) or True)
    )
    monkeypatch.setattr("ort_gpu_ep.store.cache_folder", lambda: str(tmp_path / "cache"))
    built = build.find_or_build()
    assert built.parent == tmp_path / "cache" / "shim"
    assert build.find_or_build() == built
    assert [p.name for p in built.parent.iterdir()] == [built.name]


def test_no_compiler_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_compilers", lambda target: [])
    with pytest.raises(build.BuildError, match=r"Install a C compiler, or `pip install ziglang`"):
        build.build(tmp_path / "shim.so")


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        build, "_compilers", lambda target: [[sys.executable, "-c", "import sys; sys.exit('no luck')"], ["/no/such/cc"]]
    )
    with pytest.raises(build.BuildError, match=r"no luck(.|\n)*No such file"):
        build.build(tmp_path / "shim.so")
    assert not list(tmp_path.iterdir())


def test_processes_that_build_at_once_share_one_file(tmp_path: Path, python: Callable[..., Any]) -> None:
    done = python("""
        import multiprocessing
        from pathlib import Path
        from ort_gpu_ep.shim import build
        def work(folder):
            path = build.build(Path(folder) / "shim.so")
            return path.stat().st_ino
        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(6) as pool:
                assert len(set(pool.map(work, [sys.argv[1] if len(sys.argv) > 1 else os.getcwd()] * 6))) == 1
            assert not [f for f in os.listdir() if f.startswith(".shim-")]
    """)
    assert done.returncode == 0, done.stderr


def test_an_installation_needs_nothing_that_it_installs() -> None:
    """The build backend loads build.py where only the build requirements are."""
    code = (
        "import sys\nfor name in ('onnxruntime', 'onnx', 'numpy', 'wgpu', 'cffi'): sys.modules[name] = None\n"
        "sys.path.insert(0, 'build_backend')\nimport shim_backend\nassert shim_backend._shim().FOLDER.is_dir()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_a_wheel_has_the_shim_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a setuptools that packs nothing."""
    backend, made = types.ModuleType("setuptools.build_meta"), tmp_path / "made"
    made.mkdir()

    def build_wheel(folder: str, *_: Any) -> str:
        with zipfile.ZipFile(Path(folder, "p-1-py3-none-any.whl"), "w") as wheel:
            wheel.writestr("p-1.dist-info/WHEEL", "Root-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(
                "p-1.dist-info/METADATA", "Metadata-Version: 2.4\nName: p\nVersion: 1\nLicense-Expression: MIT\n"
            )
            wheel.writestr("p-1.dist-info/RECORD", "p-1.dist-info/WHEEL,,\np-1.dist-info/METADATA,,\n")
        return "p-1-py3-none-any.whl"

    vars(backend).update(
        dict.fromkeys(
            (
                "build_sdist",
                "get_requires_for_build_sdist",
                "prepare_metadata_for_build_editable",
                "prepare_metadata_for_build_wheel",
            )
        )
    )
    vars(backend)["build_wheel"] = build_wheel
    setuptools = types.ModuleType("setuptools")
    vars(setuptools)["build_meta"] = backend
    monkeypatch.setitem(sys.modules, "setuptools", setuptools)
    monkeypatch.setitem(sys.modules, "setuptools.build_meta", backend)
    monkeypatch.syspath_prepend(ROOT / "build_backend")
    shim_backend = importlib.import_module("shim_backend")
    monkeypatch.delitem(sys.modules, "shim_backend")
    with zipfile.ZipFile(made / shim_backend.build_wheel(str(made))) as wheel:
        names = wheel.namelist()
        assert f"{build.FOLDER.relative_to(ROOT).as_posix()}/{build.file_name(build.current_platform())}" in names
        assert all(name in wheel.read("p-1.dist-info/RECORD").decode() for name in names)


def test_all_platforms(tmp_path: Path) -> None:
    magic = {"so": b"\x7fELF", "dylib": b"\xcf\xfa\xed\xfe", "dll": b"MZ"}
    built = build.build_all(tmp_path)
    assert len(built) == 5
    for path in built:
        data = path.read_bytes()
        assert data.startswith(magic[path.suffix[1:]])
        assert all(name.encode() in data for name in EXPORTS)
        assert str(tmp_path).encode() not in data
    (macos,) = (path.read_bytes() for path in built if path.suffix == ".dylib")
    assert load_commands(macos) == {
        "name": f"@rpath/{build.file_name('macos-arm64')}".encode(),
        "system": (1, 14 << 16),
    }


def load_commands(data: bytes) -> dict[str, Any]:
    """What a library of macOS says of itself: LC_ID_DYLIB's name; LC_BUILD_VERSION's platform (1: macOS) and least
    version."""
    found, at = dict[str, Any](), 32
    for _ in range(struct.unpack_from("<I", data, 16)[0]):
        kind, size = struct.unpack_from("<II", data, at)
        if kind == 0x0D:
            found["name"] = data[at + struct.unpack_from("<I", data, at + 8)[0] : at + size].rstrip(b"\0")
        elif kind == 0x32:
            found["system"] = struct.unpack_from("<II", data, at + 8)
        at += size
    return found


def test_a_shim_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    texts = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        texts.append([path.read_bytes() for path in build.build_all(tmp_path / name)])
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("version", "api"), [("1.24.4", 24), ("1.26.0", 26), ("1.31.1", 31), ("2.0.0", 32)])
def test_versions_that_work(version: str, api: int) -> None:
    assert check_version(version) == api


@pytest.mark.parametrize("version", ["1.23.2", "1.9.0", "0.5", "nonsense"])
def test_versions_that_do_not(version: str) -> None:
    with pytest.raises(ConfigError, match=r"needs 1\.24|expected major"):
        check_version(version)
