"""scripts/tint.py writes each text once for each class of GPUs, as that class gets it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from ort_gpu_ep.device.classes import classes
from ort_gpu_ep.kernels.target import FRAGMENTS
from ort_gpu_ep.ops.matrix_units import TILES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tint() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tint", ROOT / "scripts" / "tint.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_texts_for_classes(tint: ModuleType, tmp_path: Path) -> None:
    folders = tint.written(
        tmp_path, list(tint.CLASSES), "^record/(packed_matvec|sparse_matvec_held|matvec_rows|softmax_rows)/", 1
    )
    assert [f.name for f in folders] == list(tint.CLASSES)
    texts = {f.name: [p.read_text("utf-8") for p in f.glob("*.wgsl")] for f in folders}
    assert all(len(found) > 2 for found in texts.values())
    for name, found in texts.items():
        assert all(text.startswith("// record/") for text in found)
        assert not [text for text in found if "i64" in text]
        assert any(re.search(r"\bsubgroup[A-Z]\w*\(", text) for text in found) == (
            "subgroup" in classes()[name].features
        )


def test_texts_on_matrix_units(tint: ModuleType, tmp_path: Path) -> None:
    texts = [p.read_text("utf-8") for p in tint.written_units(tmp_path).glob("*.wgsl")]
    shapes = {tuple(re.findall(r"subgroup_matrix_\w+<\w+, (\d+, \d+)>", text)) for text in texts}
    assert len(texts) == 2 * len(FRAGMENTS) * (len(TILES) + len(tint.HEADS))
    assert shapes == {(f"{f.k}, {f.n}", f"{f.m}, {f.k}", f"{f.m}, {f.n}") for f in FRAGMENTS.values()}


def test_what_tint_may_refuse_has_a_reason(tint: ModuleType) -> None:
    for line in tint.EXPECTED.read_text("utf-8").splitlines():
        assert line.startswith("#") or line.partition(": ")[2], line
