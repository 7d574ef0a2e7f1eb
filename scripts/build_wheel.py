"""Builds the wheel that is published: pure Python, with the native shims of every platform in it.

usage: python scripts/build_wheel.py [OUTPUT_FOLDER]      (needs the extra `wheel`; default folder: dist)
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHIMS = 5
MAX_NBYTES = 2 << 20


def main(folder: Path) -> None:
    if importlib.util.find_spec("build") is None:
        sys.exit(f"build_wheel.py: {sys.executable} has no package `build`; install it: python -m pip install build")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--outdir",
            scratch,
            "--config-setting",
            "shims=all",
            str(ROOT),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"{done.stdout}\n`{' '.join(command)}` ended with exit code {done.returncode}; see above")
        (built,) = Path(scratch).glob("*.whl")
        check(built)
        wheel = folder / built.name
        wheel.write_bytes(built.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if "/shim/shim-" in entry.filename:
                print(f"{entry.file_size:>8} {entry.filename}")
    print(f"{wheel}: {wheel.stat().st_size / 1024:.0f} KiB")


def check(wheel: Path) -> None:
    """Exits with a message where the wheel lacks something, or holds what it should not."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    shims = [n for n in names if n.startswith("ort_gpu_ep/shim/shim-")]
    shaders = {n for n in names if n.endswith(".wgsl")}
    missing = {p.relative_to(ROOT).as_posix() for p in (ROOT / "ort_gpu_ep" / "shaders").rglob("*.wgsl")} - shaders
    strangers = [n for n in names if not n.startswith(("ort_gpu_ep/", "ort_gpu_ep-"))]
    problems = [
        *([f"{len(shims)} shims, expected {SHIMS}: {shims}"] if len(shims) != SHIMS else []),
        *([f"shaders are missing: {sorted(missing)}"] if missing else []),
        *([f"files that do not belong to the package: {strangers}"] if strangers else []),
        *(["no bill of materials"] if not any("/sboms/" in n for n in names) else []),
        *(["the name does not end in -py3-none-any.whl"] if not wheel.name.endswith("-py3-none-any.whl") else []),
        *(
            [f"{wheel.stat().st_size} bytes, expected less than {MAX_NBYTES}"]
            if wheel.stat().st_size >= MAX_NBYTES
            else []
        ),
    ]
    if problems:
        sys.exit(f"{wheel.name}: " + "; ".join(problems))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
