"""The CPU fallback's weights stay in the model's own file where they are there as they are; the tensors of a file are
found without onnx."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ort_gpu_ep
from models import build
from ort_gpu_ep.ir.external import locations
from ort_gpu_ep.ir.model_file import stored_tensors
from ort_gpu_ep.placement.source import Source
from ort_gpu_ep.plugin.own_weights import OwnWeights
from tests.overwriting import overwrite, overwrite_like
from tests.plugin.cases import assert_close, info, make_model, node, reference

SIDE = 160
WEIGHT = np.random.default_rng(6).normal(size=(SIDE, SIDE)).astype(np.float32) / 8
FAULTS = {"placement": "gpu", "faults": "lost@2;seed=31"}


def made() -> bytes:
    return make_model(
        [node("MatMul", "x W", "h"), node("Tanh", "h", "y")], [info("x", ["N", SIDE])], ["y"], {"W": WEIGHT}
    )


@pytest.fixture(params=["in the file", "in a file of its own"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    where = tmp_path / "m.onnx"
    model = onnx.load_from_string(made())
    onnx.save(
        model,
        str(where),
        save_as_external_data=request.param == "in a file of its own",
        location="weights.bin",
        size_threshold=0,
    )
    return where


def holder(path: Path) -> Path:
    """The file that has the weights."""
    return path.with_name("weights.bin") if path.with_name("weights.bin").exists() else path


def opened(path: Path, **options: str) -> Any:
    return ort_gpu_ep.InferenceSession(
        str(path), provider_options={**FAULTS, "cache_dir": str(path.parent / "cache"), **options}
    )


def answers(session: Any) -> None:
    """The second run loses the device: the CPU answers it from the weights."""
    for _ in range(3):
        x = np.random.default_rng().normal(size=(3, SIDE)).astype(np.float32)
        assert_close(session.run(None, {"x": x}), reference(made(), x=x))
    assert session.stats()["fallbacks"] >= 1


@pytest.mark.usefixtures("long_pauses", "brief_hangs")
@pytest.mark.skipif(os.name == "nt", reason="Windows keeps open files from being deleted: the weights are copied there")
@pytest.mark.parametrize("then", ["nothing", "deleted", "replaced"])
def test_no_weight_is_written_and_the_cpu_answers(then: str, path: Path) -> None:
    session = opened(path)
    assert list((path.parent / "cache").glob("weights/*/*")) == []
    if then == "deleted":
        path.unlink()
        holder(path).unlink(missing_ok=True)
    elif then == "replaced":
        other = path.with_name("other")
        other.write_bytes(b"\0" * 200_000)
        os.replace(other, holder(path))
    answers(session)


@pytest.mark.usefixtures("long_pauses", "brief_hangs")
@pytest.mark.skipif(os.name == "nt", reason="see above")
@pytest.mark.parametrize("how", [overwrite, overwrite_like])
def test_a_file_that_is_overwritten_in_place_answers_nothing(how: Callable[[Path, bytes], None], path: Path) -> None:
    session = opened(path)
    x = np.ones((3, SIDE), np.float32)
    session.run(None, {"x": x})
    content = holder(path).read_bytes()
    how(holder(path), content[: len(content) // 2] + b"\1" * 64 + content[len(content) // 2 + 64 :])
    with pytest.raises(Exception, match="was overwritten after the session had been made"):
        session.run(None, {"x": x})


def test_weights_that_onnxruntime_changed_are_written(tmp_path: Path) -> None:
    """Those of a convolution with the BatchNormalization behind it."""
    rng = np.random.default_rng(3)
    weights = {
        "w": rng.normal(size=(64, 32, 3, 3)).astype("f"),
        **{n: rng.uniform(0.5, 1.5, 64).astype("f") for n in ("s", "b", "m", "v")},
    }
    model = make_model(
        [node("Conv", "x w", "h"), node("BatchNormalization", "h s b m v", "y")],
        [info("x", [1, 32, 8, 8])],
        ["y"],
        weights,
    )
    where = tmp_path / "m.onnx"
    where.write_bytes(model)
    session = ort_gpu_ep.InferenceSession(str(where), provider_options={**FAULTS, "cache_dir": str(tmp_path / "cache")})
    assert len([*(tmp_path / "cache" / "weights").rglob("*.bin")]) == 1
    for _ in range(2):
        x = rng.normal(size=(1, 32, 8, 8)).astype("f")
        assert_close(session.run(None, {"x": x}), reference(model, x=x))


def test_only_what_is_there_byte_for_byte_has_a_place(path: Path) -> None:
    own = OwnWeights(str(path))
    place = own.place("W", WEIGHT)
    assert place is not None
    np.testing.assert_array_equal(own.load(place), WEIGHT)
    changed = WEIGHT.copy()
    changed[-1, -1] += 1
    assert own.place("W", changed) is None
    assert own.place("W", WEIGHT[1:]) is None
    assert own.place("x", WEIGHT) is None
    assert OwnWeights("").place("W", WEIGHT) is None
    assert OwnWeights(str(path.parent / "nothing")).place("W", WEIGHT) is None


# ---- tensors in a file


def expected(model: onnx.ModelProto) -> dict[str, bytes]:
    return {i.name: i.raw_data for i in model.graph.initializer if i.HasField("raw_data")}


@pytest.mark.parametrize("name", ["lenet5", "table_rows", "encoder"])
def test_tensors_of_a_file(name: str) -> None:
    model = build(name)
    data = model.SerializeToString()
    found = [*stored_tensors(data)]
    assert {t.name: data[slice(*t.raw)] for t in found if t.initializer and t.raw} == expected(model)
    inner = [t for t in found if not t.initializer]
    bodies = [a.g for n in model.graph.node for a in n.attribute if a.HasField("g")]
    assert sum(len(body.initializer) for body in bodies) <= len(inner)
    assert locations(data) == []


def test_files_of_weights_are_found(path: Path) -> None:
    data = path.read_bytes()
    there = holder(path) != path
    assert locations(data) == (["weights.bin"] if there else [])
    before = Source(str(path)).digest()
    assert before == Source(str(path)).digest()
    os.utime(holder(path), ns=(5, 5))
    assert (Source(str(path)).digest() != before) == there, (
        "of another file the time of change counts, of the model's the content"
    )


def test_what_is_no_model_is_said_to_be_none() -> None:
    """By a ValueError, after bounded work, whatever it is."""
    data, rng = build("lenet5").SerializeToString()[:3000], random.Random(7)
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 6)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        try:
            for tensor in stored_tensors(bytes(changed[: rng.randrange(len(changed))])):
                assert tensor.raw is None or 0 <= tensor.raw[0] <= tensor.raw[1] <= len(data)
        except ValueError:
            pass
    with pytest.raises(ValueError, match="wire type"):
        [*stored_tensors(b"\x0f")]
    with pytest.raises(ValueError, match="no number ends"):
        [*stored_tensors(b"\xff" * 20)]
    nested = b""
    for _ in range(80):  # graph: node: attribute: graph
        for tag in (6 << 3 | 2, 5 << 3 | 2, 1 << 3 | 2):
            nested = (
                bytes([tag]) + len(nested).to_bytes(1, "big") + nested
                if len(nested) < 128
                else bytes([tag, len(nested) & 127 | 128, len(nested) >> 7]) + nested
            )
    with pytest.raises(ValueError, match="graphs inside each other"):
        [*stored_tensors(bytes([7 << 3 | 2, len(nested) & 127 | 128, len(nested) >> 7]) + nested)]
