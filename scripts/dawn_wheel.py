"""Packs Dawn's library into a wheel of its own, ort-gpu-ep-dawn, for the option webgpu=dawn: one pinned build, with its licences.

usage: python scripts/dawn_wheel.py [OUTPUT_FOLDER] [SYSTEM]      (default: dist, linux-x86_64)

The build is that of PyPI's package rillfacet 0.1.3, which pip fetches here and nothing at run time. What comes is held to the checksums
below and in ort_gpu_ep/webgpu/dawn_builds.json. That package's build for Windows has no Vulkan, and with Direct3D Dawn reaches no matrix
units, so it would gain nothing; it has none for Linux on ARM. The one for macOS is of the same source, and was never run by this project.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
KNOWN = ROOT / "ort_gpu_ep" / "webgpu" / "dawn_builds.json"
SOURCE = "rillfacet==0.1.3"


class Build(NamedTuple):
    """tag: of the wheel, and with a version of Python of the one that is fetched, whose digest is sha256. library: its place there."""

    tag: str
    python: str
    sha256: str
    library: str


BUILDS: Mapping[str, Build] = {
    "linux-x86_64": Build(
        "manylinux_2_28_x86_64", "3.11", "b333f2c4c84df2f1105e4d0146e3c7aae8dd2200a0b6c7ded74c38e8ca0a5f93", "rillfacet/libwebgpu_dawn.so"),
    "macos-arm64": Build(
        "macosx_12_0_arm64", "3.12", "c3935306543a71af559784055c1ef199d55d0b157328e3599a67a3eebe2f48fe", "rillfacet/libwebgpu_dawn.dylib")}
LICENCES = "rillfacet-0.1.3.dist-info/licenses/"
VERSION = "0.1.0"
INIT = '"""Dawn\'s library for ort_gpu_ep, option webgpu=dawn."""\n'
METADATA = f"""Metadata-Version: 2.4
Name: ort-gpu-ep-dawn
Version: {VERSION}
Summary: Dawn, a WebGPU implementation, as a shared library for ort_gpu_ep
License-Expression: BSD-3-Clause AND Apache-2.0 AND MIT
License-File: LICENSE
License-File: THIRD_PARTY_LICENSES.txt
Requires-Python: >=3.10
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: dawn_wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n"


def main(folder: Path, build: Build) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        wanted = ["--python-version", build.python, "--platform", build.tag, "--dest", scratch, SOURCE]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *wanted], check=True)
        fetched, = Path(scratch).glob("*.whl")
        digest = hashlib.sha256(fetched.read_bytes()).hexdigest()
        if digest != build.sha256:
            sys.exit(f"dawn_wheel.py: {fetched.name} has sha256 {digest}, expected {build.sha256}: another build; nothing was packed")
        made = pack(fetched, folder, build)
    print(f"{made}: {made.stat().st_size / 2 ** 20:.1f} MiB")


def pack(fetched: Path, folder: Path, build: Build) -> Path:
    """The wheel with the library and the licences of another wheel. Exits where the library is no build that ort_gpu_ep knows."""
    with zipfile.ZipFile(fetched) as archive:
        library = archive.read(build.library)
        names = [name for name in archive.namelist() if name.startswith(LICENCES) and not name.endswith("/")]
        licences = {Path(name).name: archive.read(name) for name in names}
    digest = hashlib.sha256(library).hexdigest()
    if digest not in json.loads(KNOWN.read_text("utf-8")):
        sys.exit(f"dawn_wheel.py: {build.library} has sha256 {digest}, which {KNOWN.name} does not list; nothing was packed")
    about, tag = f"ort_gpu_ep_dawn-{VERSION}.dist-info", f"py3-none-{build.tag}"
    files = {"ort_gpu_ep_dawn/__init__.py": INIT.encode(), f"ort_gpu_ep_dawn/{Path(build.library).name}": library,
             f"{about}/METADATA": METADATA.encode(), f"{about}/WHEEL": WHEEL.format(tag=tag).encode(),
             **{f"{about}/licenses/{name}": text for name, text in licences.items()}}
    record = f"{about}/RECORD"
    rows = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
            for name, data in files.items()]
    made = folder / f"ort_gpu_ep_dawn-{VERSION}-{tag}.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**files, record: "\n".join([*rows, f"{record},,\n"]).encode()}.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return made


if __name__ == "__main__":
    system = sys.argv[2] if len(sys.argv) > 2 else "linux-x86_64"
    if system not in BUILDS:
        sys.exit(f"dawn_wheel.py: got system {system!r}, expected one of {', '.join(BUILDS)}")
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist", BUILDS[system])
