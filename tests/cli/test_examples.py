"""The examples are programs that run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
from PIL import Image, ImageChops

ROOT = Path(__file__).resolve().parents[2]
PRINTED = {
    "classify_image": "nodes on the GPU",
    "io_binding": "farthest from numpy",
    "sequence": "31 steps: class",
    "own_quirk": "Softmax  cpu",
    "transcribe": "24 tokens, ",
    "train_and_compress": "right predictions: ",
    "serve_with_ray": "32 requests in batches of",
}
WITH_CLIENTS = {
    "read_text": "Graphics 2026",
    "find_speech": "speech from 0.80 to 2.24 s",
    "find_faces": "face 1: 100%, from (170, 106) to (353, 331)",
    "classify_text": "a shell script: shell",
    "search_sentences": "weather like?\n  0.23  Heavy rain",
    "compress_network": "codebook5: 3,163,737 -> ",
}
WITH_GENAI = {"chat": "[24 tokens]"}
"""These need packages of the extras `clients` and `genai`, or fetch pretrained networks: tests/clients runs them, each
night."""


def test_every_example_is_listed() -> None:
    listing = (ROOT / "examples" / "README.md").read_text("utf-8")
    assert {p.stem for p in (ROOT / "examples").glob("*.py")} == {*PRINTED, *WITH_CLIENTS, *WITH_GENAI}
    assert all(f"[{name}.py]({name}.py)" in listing for name in (*PRINTED, *WITH_CLIENTS, *WITH_GENAI))


def check(name: str, folder: Path, prints: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert prints in done.stdout


def test_the_quick_starts_face_is_found(tmp_path: Path) -> None:
    """On the copy of its photo that matplotlib installs."""
    photo = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    check("find_faces", tmp_path, WITH_CLIENTS["find_faces"], str(photo), "result.png")
    with Image.open(tmp_path / "result.png") as result, Image.open(photo) as before:
        changed = ImageChops.difference(result.convert("RGB"), before.convert("RGB")).getbbox()
    assert changed is not None
    assert changed[:2] >= (165, 90)
    assert changed[2:] <= (360, 336)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.ray] if name.endswith("_ray") else []) for name in PRINTED]
)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, PRINTED[name])
