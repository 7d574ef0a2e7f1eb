"""PEP 517 build backend: setuptools, and the native shim compiled into what it builds.

A wheel gets the shim of the platform it is built on, and that platform's tag; with `-C shims=all` it gets the shims of
every platform, cross-compiled, and stays `py3-none-any`. An editable install compiles the shim into the checkout.
A wheel lists the shims in a bill of materials (PEP 770): what each was made from, and the command that makes it again.
`ziglang` is asked for as a compiler only where it is needed: for cross-compiling, or where there is no C compiler.
"""

from __future__ import annotations

import base64
import email
import hashlib
import importlib.util
import json
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from setuptools import build_meta  # type: ignore[import-untyped]
from setuptools.build_meta import (  # type: ignore[import-untyped]
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings: TypeAlias = Mapping[str, Any] | None

ROOT = Path(__file__).resolve().parents[1]
BILL = "ort-gpu-ep.cyclonedx.json"
COMPILER = "ziglang>=0.17"
"""Earlier ones look for another entry point in a Windows DLL than the one that shim.c has."""


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_compiler(_wants_all(config_settings))]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *_compiler(False)]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """setuptools' wheel with the shims added, so that neither old shims nor an old build folder of the checkout get
    into it."""
    everything = _wants_all(config_settings)
    settings = {k: v for k, v in (config_settings or {}).items() if k != "shims"}
    with tempfile.TemporaryDirectory() as scratch:
        settings["--global-option"] = ["build", f"--build-base={scratch}/build"]
        plain: Path = Path(scratch) / build_meta.build_wheel(scratch, settings, metadata_directory)
        shim = _shim()
        compilers = list[Sequence[str]]()
        shims = (
            [shim.build(Path(scratch) / shim.file_name(t), t, compilers.append) for t in shim.ZIG_TARGETS]
            if everything
            else [shim.build(Path(scratch) / shim.file_name(shim.current_platform()), None, compilers.append)]
        )
        tag = "any" if everything else sysconfig.get_platform().replace("-", "_").replace(".", "_")
        name = plain.name.removesuffix("any.whl") + f"{tag}.whl"
        folder = shim.FOLDER.relative_to(ROOT).as_posix()
        files = {f"{folder}/{s.name}": s.read_bytes() for s in shims}
        source = f"{folder}/{shim.SOURCE.name}"
        commands = [
            shim.command_line(_portable(c), s.name, s.name, source) for c, s in zip(compilers, shims, strict=True)
        ]
        materials = {source: shim.SOURCE.read_bytes()}
        _add(
            plain,
            Path(wheel_directory) / name,
            files,
            tag,
            lambda text: bill(text, materials, files, commands, _versions(compilers)),
        )
    return name


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    _shim().find_or_build()
    return str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))


def _wants_all(settings: Settings) -> bool:
    return (settings or {}).get("shims") == "all"


def _compiler(everything: bool) -> list[str]:
    return [COMPILER] if everything or not _shim()._compilers(None) else []


def _shim() -> ModuleType:
    """ort_gpu_ep/shim/build.py on its own: the package around it needs what is not installed yet."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    spec = importlib.util.spec_from_file_location("_ort_gpu_ep_shim", ROOT / "ort_gpu_ep" / "shim" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _portable(compiler: Sequence[str]) -> list[str]:
    """A compiler's command without this machine's folders."""
    if "ziglang" in compiler:
        return ["python", "-m", *compiler[compiler.index("ziglang") :]]
    return [Path(compiler[0]).name, *compiler[1:]]


def _versions(compilers: Sequence[Sequence[str]]) -> list[str]:
    """What each compiler calls itself."""
    return [
        f"ziglang {metadata.version('ziglang')}"
        if "ziglang" in c
        else subprocess.run([c[0], "--version"], capture_output=True, text=True, check=True).stdout.partition("\n")[0]
        for c in compilers
    ]


def bill(
    text: str,
    materials: Mapping[str, bytes],
    files: Mapping[str, bytes],
    commands: Sequence[Sequence[str]],
    compilers: Sequence[str],
) -> bytes:
    """The wheel's software bill of materials, CycloneDX 1.6 in JSON.

    text: the wheel's METADATA. materials: sources in the wheel -> their content. files: what was compiled from all of
    them. commands: of each file, to be run in the root of the unpacked wheel, with its compiler's version.
    """
    package = email.message_from_string(text)
    name, version = package["Name"], package["Version"]
    url = f"pkg:pypi/{name}@{version}"
    about: dict[str, Any] = {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
    if package["License-Expression"]:
        about["licenses"] = [{"expression": package["License-Expression"]}]

    def component(path: str, data: bytes, **told: str) -> dict[str, Any]:
        hashes = [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]
        properties = [{"name": f"{name}:{key}", "value": value} for key, value in told.items()]
        return {
            "type": "file",
            "bom-ref": path,
            "name": path,
            "hashes": hashes,
            **({"properties": properties} if properties else {}),
        }

    made = [
        component(path, data, command=shlex.join(command), compiler=compiler)
        for (path, data), command, compiler in zip(files.items(), commands, compilers, strict=True)
    ]
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": about},
        "components": [*(component(path, data) for path, data in materials.items()), *made],
        "dependencies": [
            {"ref": url, "dependsOn": list(files)},
            *({"ref": path, "dependsOn": list(materials)} for path in files),
        ],
    }
    return json.dumps(content, indent=1).encode()


def _add(source: Path, target: Path, files: Mapping[str, bytes], tag: str, bill_of: Callable[[str], bytes]) -> None:
    """A copy of a wheel with more files, a bill of materials and another platform tag; its RECORD says so."""
    added = dict(files)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        record = next(n for n in old.namelist() if n.endswith(".dist-info/RECORD"))
        about = record.removesuffix("/RECORD")
        added[f"{about}/sboms/{BILL}"] = bill_of(old.read(f"{about}/METADATA").decode())
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith(".dist-info/WHEEL") and tag != "any":
                text = (
                    data.decode()
                    .replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
                    .replace("py3-none-any", f"py3-none-{tag}")
                )
                added[entry.filename] = text.encode()
            elif entry.filename != record:
                new.writestr(entry, data, zipfile.ZIP_DEFLATED)
        lines = [line for line in old.read(record).decode().splitlines() if line.split(",")[0] not in (*added, record)]
        for name, data in added.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o100755 << 16 if name in files else 0o100644 << 16
            new.writestr(info, data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}")
        new.writestr(record, "\n".join([*lines, f"{record},,"]) + "\n", zipfile.ZIP_DEFLATED)
