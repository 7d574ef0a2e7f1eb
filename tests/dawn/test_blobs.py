"""Dawn's blob cache: a later process compiles nothing of a known model anew, and whatever lies in its file, or keeps
it from being written, changes no result (scripts/dawn.sh)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from models import build
from ort_gpu_ep.webgpu import choice
from tests.artefacts import only_file, read_all, seal

pytestmark = pytest.mark.dawn

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, threading
import numpy as np
import ort_gpu_ep
from ort_gpu_ep.webgpu.blobs import Blobs

counts, load, store = {"hits": 0, "misses": 0, "stores": 0}, Blobs.load, Blobs.store

def loaded(self, key):
    blob = load(self, key)
    counts["hits" if blob else "misses"] += 1
    if "raise" in sys.argv:
        raise MemoryError("no room for it")
    return blob

def stored(self, key, blob):
    counts["stores"] += 1
    if "raise" in sys.argv:
        raise MemoryError("no room for it")
    store(self, key, blob)

Blobs.load, Blobs.store = loaded, stored
session = ort_gpu_ep.InferenceSession(sys.argv[1], provider_options={"placement": "gpu", "strict": "1", "health": "off"})
x = np.random.default_rng(0).standard_normal(session.get_inputs()[0].shape, np.float32)
np.save(sys.argv[2], session.run(None, {session.get_inputs()[0].name: x})[0])
print(*counts.values())
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(build("lenet5").SerializeToString())
    return path


def process(model: Path, *arguments: str) -> tuple[int, int, int, str]:
    """Hits, misses and stores of one that opens the model and runs it, and what it logged; what it computes is what
    the first one did."""
    folder = model.parent
    environment = os.environ | {"ORT_GPU_EP_CACHE_DIR": str(folder / "cache"), "ORT_GPU_EP_WEBGPU": "dawn"}
    command = [sys.executable, "-c", PROGRAM, str(model), str(folder / "got.npy"), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    got, first = np.load(folder / "got.npy"), folder / "first.npy"
    if not first.exists():
        np.save(first, got)
    np.testing.assert_array_equal(got, np.load(first))
    hits, misses, stores = map(int, done.stdout.split())
    return hits, misses, stores, done.stderr


def test_the_layout_is_that_of_the_package() -> None:
    """Another release of Dawn may have another one: dawn.py says which it knows."""
    assert choice.dawn_package().release == "20261009.190412"


def test_a_second_process_compiles_nothing_anew(model: Path) -> None:
    _, misses, stores, _ = process(model)
    assert misses == stores > 6
    index, _, _, blobs = read_all(only_file(model.parent / "cache"))
    assert stores == len(blobs) >= 3 * len(index["pipelines"]) - 2
    before = only_file(model.parent / "cache").read_bytes()
    hits, misses, stores, _ = process(model)
    assert hits == 2 * len(blobs), "Dawn asks for the size first"
    assert (misses, stores) == (0, 0)
    assert only_file(model.parent / "cache").read_bytes() == before


@pytest.mark.parametrize("how", ["a blob that is another", "cut short", "of no bytes"])
def test_a_spoiled_file_is_made_anew(model: Path, how: str) -> None:
    """Also one that is sealed as if we had written it: Dawn checks what it is given."""
    _, _, stores, _ = process(model)
    path = only_file(model.parent / "cache")
    whole = path.read_bytes()
    if how == "a blob that is another":
        *_, blobs = read_all(path)
        content = whole.split(b"\n", 1)[1]
        seal(path, content[: -sum(map(len, blobs))] + b"".join(bytes(reversed(blob)) for blob in blobs))
    else:
        path.write_bytes(whole[:-7] if how == "cut short" else b"")
    _, _, again, _ = process(model)
    assert again == stores
    hits, misses, stores, _ = process(model)
    assert hits > 0
    assert (misses, stores) == (0, 0)


def test_a_cache_that_can_not_be_written(model: Path) -> None:
    """As an image of a container has it: what lies there is used; where nothing lies, nothing is kept."""
    cache = model.parent / "cache"
    cache.write_bytes(b"no folder")
    for _ in range(2):
        hits, misses, stores, told = process(model)
        assert hits == 0
        assert misses == stores > 0
        assert "can't be written" in told
    cache.unlink()
    process(model)
    only_file(cache).chmod(0o400)
    (cache / "models").chmod(0o500)
    try:
        hits, misses, stores, _ = process(model)
    finally:
        (cache / "models").chmod(0o700)
    assert hits > 0
    assert (misses, stores) == (0, 0)


def test_what_is_raised_within_dawn_is_told_and_costs_the_blob_alone(model: Path) -> None:
    hits, misses, stores, told = process(model, "raise")
    assert hits == 0
    assert misses == stores > 0
    assert "a pipeline is compiled anew: MemoryError: no room for it" in told
    assert "a compiled pipeline is not kept: MemoryError: no room for it" in told
