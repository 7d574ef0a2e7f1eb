"""Packs Dawn's library into a wheel of its own, ort-gpu-ep-dawn, for the option webgpu=dawn: one pinned build, with its licences.

usage: python scripts/dawn_wheel.py [OUTPUT_FOLDER]      (default: dist)

The build is that of PyPI's package rillfacet 0.1.3 (Linux x86-64), which pip fetches here and nothing at run time. What comes is held to
the checksums below and in ort_gpu_ep/device/dawn_builds.json. There is no build for another system yet.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KNOWN = ROOT / "ort_gpu_ep" / "device" / "dawn_builds.json"
SOURCE, SOURCE_SHA256 = "rillfacet==0.1.3", "b333f2c4c84df2f1105e4d0146e3c7aae8dd2200a0b6c7ded74c38e8ca0a5f93"
LIBRARY = "rillfacet/libwebgpu_dawn.so"
LICENCES = "rillfacet-0.1.3.dist-info/licenses/"
VERSION, TAG = "0.1.0", "py3-none-manylinux_2_28_x86_64"
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
WHEEL = f"Wheel-Version: 1.0\nGenerator: dawn_wheel.py\nRoot-Is-Purelib: false\nTag: {TAG}\n"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.11",
                        "--platform", "manylinux_2_28_x86_64", "--dest", scratch, SOURCE], check=True)
        fetched, = Path(scratch).glob("*.whl")
        digest = hashlib.sha256(fetched.read_bytes()).hexdigest()
        if digest != SOURCE_SHA256:
            sys.exit(f"dawn_wheel.py: {fetched.name} has sha256 {digest}, expected {SOURCE_SHA256}: another build; nothing was packed")
        made = pack(fetched, folder)
    print(f"{made}: {made.stat().st_size / 2 ** 20:.1f} MiB")


def pack(fetched: Path, folder: Path) -> Path:
    """The wheel with the library and the licences of another wheel. Exits where the library is no build that ort_gpu_ep knows."""
    with zipfile.ZipFile(fetched) as archive:
        library = archive.read(LIBRARY)
        names = [name for name in archive.namelist() if name.startswith(LICENCES) and not name.endswith("/")]
        licences = {Path(name).name: archive.read(name) for name in names}
    digest = hashlib.sha256(library).hexdigest()
    if digest not in json.loads(KNOWN.read_text("utf-8")):
        sys.exit(f"dawn_wheel.py: {LIBRARY} has sha256 {digest}, which {KNOWN.name} does not list; nothing was packed")
    about = f"ort_gpu_ep_dawn-{VERSION}.dist-info"
    files = {"ort_gpu_ep_dawn/__init__.py": INIT.encode(), f"ort_gpu_ep_dawn/{Path(LIBRARY).name}": library,
             f"{about}/METADATA": METADATA.encode(), f"{about}/WHEEL": WHEEL.encode(),
             **{f"{about}/licenses/{name}": text for name, text in licences.items()}}
    record = f"{about}/RECORD"
    rows = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
            for name, data in files.items()]
    made = folder / f"ort_gpu_ep_dawn-{VERSION}-{TAG}.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**files, record: "\n".join([*rows, f"{record},,\n"]).encode()}.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
