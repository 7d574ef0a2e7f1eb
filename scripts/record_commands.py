"""Writes docs/commands.md: what each command prints at 80 columns, on Mesa's software driver.

usage: python scripts/record_commands.py [COMMAND ...]       (without COMMAND: all of them)
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx.parser

from ort_gpu_ep.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "commands.md"
HEAD = """# What the commands print

Recorded at 80 columns by `python scripts/record_commands.py`, on a software adapter; times are those of that machine.
`ort-gpu-ep COMMAND -h` lists the options of each.
"""
MODEL = """<ir_version: 10, opset_import: ["": 20]>
perceptron (float[N, 16] x) => (float[N, 4] y)
{ h = Gemm(x, w, b) r = Relu(h) y = Gemm(r, v, c) }"""

RECORDED = {
    "run": "run model.onnx --dim N=3 -o placement=gpu",
    "explain": "explain model.onnx -o placement=gpu",
    "inspect": "inspect model.onnx",
    "bench": "bench model.onnx --dim N=3 --runs 20 -o placement=gpu",
    "tune": "tune model.onnx --dim N=3",
    "calibrate": "calibrate",
    "conformance": "conformance --select ^test_relu$",
    "compare": "compare model.onnx --dim N=3 -o placement=gpu",
    "bisect": "bisect model.onnx --dim N=3 -o placement=gpu",
    "doctor": "doctor --quick",
    "train": "train model.onnx --data data.npz --epochs 2 --out tuned.onnx",
    "score": "score model.onnx rows.npz --adapters 0 --batch 16 --out y.parquet",
    "compress": "compress wide.onnx --method int8 --out small.onnx",
    "exec": "exec -o placement=gpu -- python app.py",
    "profile": "profile model.onnx --dim N=3 --runs 5",
    "options": "options",
}
"""Subcommand -> its arguments in a folder with model.onnx, wide.onnx, data.npz, rows.npz and app.py."""

APP = """import numpy as np, onnxruntime
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
print(session.get_providers()[0], session.run(None, {"x": np.ones((1, 16), "f")})[0].shape)
"""


def make_files(folder: Path) -> None:
    """What the commands work on."""
    rng = np.random.default_rng(1)
    for file, width in (("model.onnx", 8), ("wide.onnx", 512)):
        model = onnx.parser.parse_model(MODEL)
        for name, shape in (("w", (16, width)), ("b", (width,)), ("v", (width, 4)), ("c", (4,))):
            model.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype("f"), name))
        onnx.save(model, folder / file)
    np.savez(folder / "data.npz", x=rng.standard_normal((64, 16)).astype("f"), y=rng.integers(0, 4, 64))
    np.savez(folder / "rows.npz", x=rng.standard_normal((64, 16)).astype("f"))
    (folder / "app.py").write_text(APP, "utf-8")


def record(name: str, folder: Path) -> str:
    """A command and what it prints. Raises RuntimeError for one that fails."""
    environment = {
        **os.environ,
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "ORT_GPU_EP_CACHE_DIR": str(folder / "cache"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "ort_gpu_ep", *RECORDED[name].split()],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=500,
    )
    if done.returncode:
        raise RuntimeError(f"ort-gpu-ep {RECORDED[name]}: exit code {done.returncode}\n{done.stdout}")
    printed = "\n".join(line.rstrip() for line in done.stdout.replace(str(folder), ".").splitlines())
    return f"## {name}\n\n{COMMANDS[name]}\n\n```console\n$ ort-gpu-ep {RECORDED[name]}\n{printed}\n```\n"


def sections(text: str) -> dict[str, str]:
    """Each command's part of the document, by its name."""
    parts = (f"## {part.strip()}\n" for part in re.split(r"^## ", text, flags=re.M)[1:])
    return {part[3:].partition("\n")[0]: part for part in parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="those to record; the others keep their text")
    wanted = parser.parse_args().commands or list(COMMANDS)
    unknown = sorted(set(wanted) - set(COMMANDS))
    if unknown:
        parser.error(f"no such command: {', '.join(unknown)}; there are {', '.join(COMMANDS)}")
    kept = sections(DOCUMENT.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder))
        # the others find its verdict, and their times are not those of a first start
        record("doctor", Path(folder))
        parts = [record(name, Path(folder)) if name in wanted or name not in kept else kept[name] for name in COMMANDS]
    DOCUMENT.write_text("\n".join([HEAD, *parts]), "utf-8")


if __name__ == "__main__":
    main()
