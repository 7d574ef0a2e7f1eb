"""Checks the SPIR-V that naga makes of the composed shaders: by spirv-val, and by spirv-cross, which writes them in MSL
and HLSL.

    python scripts/spirv.py [--select REGEX] [--share N] [LIMITS...]

The texts are those of benchmarks/replay.py, with bounds checks and without. wgpu-native makes their pipelines on any
Vulkan driver, but a layer between the two (vulkan_layer.c) keeps the SPIR-V and no driver compiles it. spirv-val says
whether drivers may rely on it; MSL is what MoltenVK would make of it. The tools are Debian's packages spirv-tools and
spirv-cross, taken from PATH or unpacked into .spirv/; a C compiler is needed, too. spirv_expected.txt lists what they
may refuse, with a reason for each. Exit code 1 if they refuse another text, or none of a line. share: one in so many
cases.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import layer  # noqa: E402
from benchmarks.replay import LIMITS, parser_of, replayed  # noqa: E402

EXPECTED = Path(__file__).with_name("spirv_expected.txt")
FOLDER = ROOT / ".spirv"
TOOLS = {
    "spirv-val": ("spirv-val", "--target-env", "vulkan1.3"),
    "MSL": ("spirv-cross", "--msl", "--msl-version", "20300"),
    "HLSL": ("spirv-cross", "--hlsl", "--shader-model", "62"),
}


def main() -> None:
    parser = parser_of(__doc__.partition("\n\n")[0])
    # the process with the layer: of the texts in this folder
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("limits", nargs="*", default=("h200", "minimum"))
    asked = parser.parse_args()
    if asked.write:
        write(asked.write)
        return
    environment = set_up()
    with tempfile.TemporaryDirectory() as folder:
        cases = compose_all(Path(folder), asked.limits, asked.select, asked.share)
        subprocess.run(
            [sys.executable, __file__, "--write", folder],
            check=True,
            env={**os.environ, **environment, "SPIRV_LAYER_FILE": str(Path(folder, "made"))},
        )
        refused = [
            f"{tool}/{cases[file.stem.split('.')[0]]}: {why}"
            for tool in TOOLS
            for file, why in checked(tool, Path(folder))
        ]
    sys.exit(compared(refused))


def set_up() -> dict[str, str]:
    """The tools on PATH and the layer in .spirv/; the variables of a process behind it."""
    FOLDER.mkdir(exist_ok=True)
    if not all(shutil.which(command[0]) for command in TOOLS.values()):
        unpack = ROOT / "scripts" / "unpack_debs.sh"
        subprocess.run(["sh", str(unpack), "--alone", str(FOLDER / "root"), "spirv-tools", "spirv-cross"], check=True)
        os.environ["PATH"] += os.pathsep + str(FOLDER / "root" / "usr" / "bin")
    return layer.build(FOLDER)


def compose_all(folder: Path, names: list[str], select: str, share: int) -> dict[str, str]:
    """Writes each text to a file that is called by its hash. Hash -> the first case that has it."""
    kernels, texts = replayed(select, share, {name: LIMITS[name] for name in names})
    for digest, text in texts.items():
        (folder / f"{digest}.wgsl").write_text(text, "utf-8")
    cases: dict[str, str] = {}
    for case, found in kernels.items():
        for hashes in found.values():
            for digest in hashes:
                cases.setdefault(digest, case)
    return cases


def write(folder: Path) -> None:
    """The SPIR-V of each text, checked and trusted, behind the layer."""
    from ort_gpu_ep.device import adapter

    info, raw = adapter.choose("")
    device, made = adapter.request_device(info, raw), folder / "made"
    start, count = time.perf_counter(), 0
    for file in sorted(folder.glob("*.wgsl")):
        for form in ("checked", "trusted"):
            layer.make_pipeline(device, file.read_text("utf-8"), form == "trusted")
            made.rename(file.with_suffix(f".{form}.spv"))  # raises where no module was made
            count += 1
    print(f"{count} modules of {count // 2} texts, {time.perf_counter() - start:.1f} s")


def checked(tool: str, folder: Path) -> list[tuple[Path, str]]:
    """What a tool refuses, with the first line that it says."""
    files, start = sorted(folder.glob("*.spv")), time.perf_counter()

    def one(file: Path) -> str:
        done = subprocess.run([*TOOLS[tool], str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        return "" if not done.returncode else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        told = list(pool.map(one, files))
    refused = [(file, why) for file, why in zip(files, told, strict=True) if why]
    print(f"{tool}: {len(files) - len(refused)} of {len(files)} modules pass, {time.perf_counter() - start:.1f} s")
    return refused


def compared(refused: list[str]) -> int:
    """Prints what differs from the list; the exit code. A line of it is the beginning of what is refused, `  # ` and the reason."""
    lines = [line for line in EXPECTED.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    patterns = [line.split("  # ")[0] for line in lines]
    other = [each for each in refused if not any(re.match(pattern, each) for pattern in patterns)]
    unmet = [pattern for pattern in patterns if not any(re.match(pattern, each) for each in refused)]
    print(*other, *(f"expected, but nothing is refused so: {pattern}" for pattern in unmet), sep="\n")
    return 1 if other or unmet else 0


if __name__ == "__main__":
    main()
