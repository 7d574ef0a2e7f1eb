"""Runs other people's packages below `ort-gpu-ep exec`, compares their answers, and writes docs/works-with.md.

Each package gets an environment of its own in build/works-with, unless --python names one that has it.

usage: python scripts/works_with.py [PACKAGE ...] [--python INTERPRETER] | --table
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = "tests/clients/programs.py"
RECORD = ROOT / "docs" / "works-with.json"
PAGE = ROOT / "docs" / "works-with.md"
TABLE = "| package | what ran | nodes on the GPU | answers | with onnxruntime | tried |\n|---|---|---|---|---|---|\n"
TIMEOUT_S = 1500

PINS: Mapping[str, tuple[str, ...]] = {
    "chromadb": ("chromadb==1.5.9",),
    "ddddocr": ("ddddocr==1.6.1",),
    "fast_plate_ocr": ("fast-plate-ocr==1.1.0", "onnxruntime"),
    "fastembed": ("fastembed==0.9.1",),
    "faster_whisper": ("faster-whisper==1.2.1",),
    "flashrank": ("flashrank==0.2.10",),
    "insightface": ("insightface==2.1", "onnxruntime"),
    "keras": ("keras==3.15.1", "torch", "onnxscript"),
    "kokoro_onnx": ("kokoro-onnx==0.6.1",),
    "livekit_silero": ("livekit-plugins-silero==1.8.9",),
    "magika": ("magika==1.0.3",),
    "mlflow": ("mlflow-skinny==3.17.2", "pandas", "onnx"),
    "nudenet": ("nudenet==3.4.2",),
    "onnx_asr": ("onnx-asr==0.12.0",),
    "optimum": ("optimum-onnx[onnxruntime]==0.1.0",),
    "piper": ("piper-tts==1.8.0",),
    "rapidocr": ("rapidocr-onnxruntime==1.4.4",),
    "rapidocr3": ("rapidocr==3.10.0", "onnxruntime"),
    "rembg": ("rembg==2.0.86",),
    "scikit_learn": ("skl2onnx==1.20.0", "scikit-learn"),
    "sentence_transformers": ("sentence-transformers[onnx]==5.7.0",),
    "silero_vad": ("silero-vad==6.2.3",),
    "swift_f0": ("swift-f0==0.3.0",),
}
"""Of tests/clients/programs.py -> what it installs; the first is the package."""

LARGEST_DIFFERENCE = 1e-3


def interpreter(name: str) -> Path:
    """Of an environment with this checkout and the package."""
    folder = ROOT / "build" / "works-with" / name
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.is_file():
        venv.create(folder, with_pip=True)
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", f"{ROOT}[onnxruntime,cli]", "pillow", *PINS[name]], check=True
    )
    return python


def answers(python: Path, name: str, *before: str) -> dict[str, Any]:
    """What a package's program says of its answers and of its sessions. Raises RuntimeError, with the last line that it
    printed, or the time that it took."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answers.json"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "ORT_GPU_EP_CACHE_DIR": str(Path(folder) / "cache")}
        try:
            done = subprocess.run(
                [python, *before, ROOT / PROGRAM, name, path],
                cwd=folder,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:  # the other packages are still tried
            raise RuntimeError(f"no answer after {TIMEOUT_S} s") from error
        if done.returncode:
            raise RuntimeError((done.stdout.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
        told: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return told


def difference(got: Any, want: Any) -> float:
    """The largest difference of two numbers, beside 1 or the number; infinite where anything else differs."""
    if isinstance(want, float) and isinstance(got, int | float):
        return abs(got - want) / max(1.0, abs(want))
    if isinstance(want, dict) and isinstance(got, dict) and got.keys() == want.keys():
        return max((difference(got[key], want[key]) for key in want), default=0.0)
    if isinstance(want, list) and isinstance(got, list) and len(got) == len(want):
        return max((difference(g, w) for g, w in zip(got, want, strict=True)), default=0.0)
    return 0.0 if got == want else float("inf")


def tried(python: Path, name: str) -> dict[str, Any]:
    """One line of the record."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps([m.version(p) for p in sys.argv[1:]]))"
    package = re.split(r"[=<>\[]", PINS[name][0])[0]
    versions = json.loads(
        subprocess.run([python, "-c", code, package, "onnxruntime"], capture_output=True, text=True, check=True).stdout
    )
    entry = {
        "program": name,
        "package": package,
        "version": versions[0],
        "onnxruntime": versions[1],
        "command": f"ort-gpu-ep exec -o placement=gpu -- python {PROGRAM} {name}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    try:
        plain = answers(python, name)
    except RuntimeError as error:
        return {**entry, "nodes": [], "result": f"fails without this package, too: {error}"}
    try:
        ours = answers(python, name, "-m", "ort_gpu_ep", "exec", "-o", "placement=gpu", "--", str(python))
    except RuntimeError as error:
        return {**entry, "nodes": [], "result": f"fails: {error}"}
    return {
        **entry,
        "nodes": [[s["gpu"], s["gpu"] + s["cpu"]] for s in ours["sessions"]],
        "result": result_of(ours, plain),
    }


def result_of(ours: Mapping[str, Any], plain: Mapping[str, Any]) -> str:
    apart = difference(ours["answers"], plain["answers"])
    if not ours["sessions"]:
        return "no session of it was reached"
    if any(s["stats"]["fallbacks"] for s in ours["sessions"]):
        return "runs fell back to the CPU"
    return "the same" if apart <= LARGEST_DIFFERENCE else f"differ by {apart:.0e}" if apart < float("inf") else "differ"


def rows(entries: Sequence[Mapping[str, Any]], what: Mapping[str, str]) -> str:
    """The table of the page. what: program -> the first line of its docstring."""
    cells = (
        (
            f"{e['package']} {e['version']}",
            what[e["program"]],
            ", ".join(f"{gpu} of {nodes}" for gpu, nodes in e["nodes"]) or "–",
            e["result"],
            e["onnxruntime"],
            e["date"],
        )
        for e in entries
    )
    return TABLE + "".join(f"| {' | '.join(row)} |\n" for row in cells)


def programs() -> dict[str, str]:
    """Name -> the first line of its docstring. The files are read and not imported: they need what packages need."""
    found = {}
    for path in (ROOT / PROGRAM, (ROOT / PROGRAM).with_name("more_programs.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = (ast.get_docstring(node) or "").partition("\n")[0].rstrip(".")
    return found


def page(text: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """The document with its table made anew."""
    before, _, rest = text.partition(TABLE)
    return before + rows(entries, programs()) + re.sub(r"\A(\|.*\n)*", "", rest)


def recorded() -> dict[str, dict[str, Any]]:
    """By program. Read again for each entry: other packages may be tried at the same time."""
    return {entry["program"]: entry for entry in json.loads(RECORD.read_text("utf-8"))}


def write(record: Mapping[str, Mapping[str, Any]]) -> None:
    """The record, and the page from it."""
    entries = [record[name] for name in sorted(record)]
    RECORD.write_text(json.dumps(entries, indent=1) + "\n", "utf-8")
    PAGE.write_text(page(PAGE.read_text("utf-8"), entries), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(PINS)}; without any: all")
    parser.add_argument("--python", type=Path, help="an interpreter that has the packages and what this one needs")
    parser.add_argument("--table", action="store_true", help="only write the page from the record")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.packages) - set(PINS))
    if unknown:
        parser.error(f"no such package: {', '.join(unknown)}")
    failed = []
    for name in [] if arguments.table else arguments.packages or PINS:
        entry = tried(arguments.python or interpreter(name), name)
        print(f"{name}: {entry['result']}, {entry['nodes']}", flush=True)
        if entry["result"] != "the same":
            failed.append(name)
        write({**recorded(), name: entry})
    write(recorded())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
