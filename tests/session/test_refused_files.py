"""Files that are no models, and models that this onnxruntime can't read: each way to open one says what it is, and what
to do."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_gpu_ep import InferenceSession
from ort_gpu_ep.cli.shared import quiet
from ort_gpu_ep.compression.model import compress
from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.generation import Generator
from ort_gpu_ep.ir.refused import kind_of
from ort_gpu_ep.private import OrtSession
from ort_gpu_ep.scoring import Predictor
from ort_gpu_ep.scoring.model import read_model
from ort_gpu_ep.training import Adam, Trainer
from tests.cli.test_cli import rejected
from tests.unit.graphs import model_of

QUIET = quiet()

MODEL = model_of(
    "(float[N, 16] x) => (float[N, 8] y) { y = MatMul(x, w) }",
    {"w": np.random.default_rng(5).standard_normal((16, 8)).astype("f")},
)


def archive(name: str) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as file:
        file.writestr(name, b"content")
    return held.getvalue()


def later(field: str) -> bytes:
    """The model with a version that nothing has yet."""
    made = onnx.ModelProto()
    made.CopyFrom(MODEL)
    if field == "ir":
        made.ir_version = 99
    else:
        made.opset_import[0].version = 99
    return made.SerializeToString()


WHOLE = MODEL.SerializeToString()
HEADER = b'{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
FILES: dict[str, tuple[bytes, str]] = {
    "page": (b"\n <!DOCTYPE html><html><head>", "it is a web page, not a model: download the file itself"),
    "page.xml": (b'<?xml version="1.0"?><Error>AccessDenied</Error>', "it is a web page"),
    "pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0a1b\nsize 95\n",
        "it is a Git LFS pointer, not the model: run `git lfs pull`",
    ),
    "checkpoint.pt": (
        archive("archive/data.pkl"),
        r"it is a checkpoint of PyTorch: write the model with torch\.onnx\.export",
    ),
    "old.pt": (pickle.dumps({"w": [1.0]}, 2), r"it is a Python pickle.*torch\.onnx\.export"),
    "archive.zip": (archive("model.onnx"), "it is a zip archive: unpack it"),
    "weights.safetensors": (
        struct.pack("<Q", len(HEADER)) + HEADER + bytes(8),
        r"it is a \.safetensors file: weights without a graph",
    ),
    "model.gguf": (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), r"it is a GGUF file of llama\.cpp"),
    "model.tflite": (
        b"\x1c\0\0\0TFL3" + bytes(64),
        r"it is a TensorFlow Lite model: convert it with `python -m tf2onnx",
    ),
    "model.h5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "it is a Keras or HDF5 file: convert the model with tf2onnx"),
    "model.gz": (gzip.compress(WHOLE), r"it is compressed with gzip: unpack it first \(gunzip\)"),
    "config.json": (b'{\n "hidden_size": 64\n}\n', "it is a JSON or text file, not a model"),
    "empty": (b"", "it is empty: what wrote or downloaded it did not end"),
    "cut": (
        WHOLE[:-40],
        rf"it is no ONNX model, or only the beginning of one \({len(WHOLE) - 40} B\): download or write it again",
    ),
    "noise": (np.random.default_rng(7).bytes(3000), r"it is no ONNX model, or only the beginning of one \(3000 B\)"),
}
"""What stands in the place of a model, and what is said of it."""

TOO_NEW = {
    "ir": r"IR version is newer than this onnxruntime, which reads up to \d+: update it .* or set model\.ir_version = \d+",
    "opset": r"opset is newer than this onnxruntime: update it .*convert_version",
}


def note_of(opens: Callable[[], object]) -> str:
    """What was added to onnxruntime's exception, whose text stays what it is."""
    with pytest.raises(Exception, match="ONNXRuntimeError") as caught:
        opens()
    assert type(caught.value).__module__.startswith("onnxruntime")
    (note,) = caught.value.__notes__
    assert "\n" not in note
    return note


@pytest.mark.parametrize("kind", FILES)
def test_a_file_says_what_it_is(kind: str, tmp_path: Path) -> None:
    data, said = FILES[kind]
    (tmp_path / kind).write_bytes(data)
    assert re.search(f"^{kind}: {said}", note_of(lambda: InferenceSession(str(tmp_path / kind), QUIET)), re.S)
    assert re.search(f"^the model: {said}", note_of(lambda: InferenceSession(data, QUIET)), re.S)


@pytest.mark.parametrize(
    "options", [{"placement": "gpu"}, {"placement": "cpu"}, {"placement": "gpu", "isolation": "process"}], ids=str
)
@pytest.mark.parametrize("kind", ["pointer", "cut", "empty"])
def test_each_placement_says_it(kind: str, options: dict[str, str], tmp_path: Path) -> None:
    data, said = FILES[kind]
    (tmp_path / "m.onnx").write_bytes(data)
    assert re.search(
        f"^m.onnx: {said}",
        note_of(lambda: InferenceSession(tmp_path / "m.onnx", QUIET, provider_options=options)),
        re.S,
    )


@pytest.mark.parametrize("field", TOO_NEW)
def test_a_model_from_the_future_says_what_to_update(field: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(later(field))
    for model in (tmp_path / "m.onnx", later(field)):
        assert re.search(TOO_NEW[field], note_of(lambda model=model: InferenceSession(model, QUIET)))  # type: ignore[misc]


def test_the_ir_version_that_is_told_is_one_that_opens() -> None:
    found = re.search(r"set model\.ir_version = (\d+)", note_of(lambda: InferenceSession(later("ir"), QUIET)))
    assert found
    model = onnx.load_model_from_string(later("ir"))
    model.ir_version = int(found[1])
    assert InferenceSession(model.SerializeToString(), QUIET).get_inputs()[0].name == "x"


def test_models_and_what_is_not_there_get_no_remedy(tmp_path: Path) -> None:
    """A model that onnxruntime refuses for what is in it, and a path to nothing: its own words are enough."""
    assert kind_of(WHOLE) == kind_of(tmp_path / "none.onnx") == kind_of(tmp_path) == kind_of(None) == ""
    wrong = model_of("(float[4] x) => (float[4] y) { y = Relu(x) }")
    wrong.graph.node[0].op_type = "NoSuchOp"
    for model in (tmp_path / "none.onnx", wrong.SerializeToString()):
        with pytest.raises(Exception, match="ONNXRuntimeError") as caught:
            InferenceSession(model, QUIET)
        assert not hasattr(caught.value, "__notes__")


OTHERS: dict[str, Callable[[Any, Path], object]] = {
    "compress": lambda model, folder: compress(model, folder / "out.onnx", "int8"),
    "Generator": lambda model, folder: Generator(model),
    "Trainer": lambda model, folder: Trainer(model, loss="mse", optimizer=Adam(0.1)),
    "score": lambda model, folder: read_model(model),
    "Predictor": lambda model, folder: Predictor(model, adapter="cpu"),
}


@pytest.mark.parametrize("kind", ["page", "pointer", "empty", "cut", "checkpoint.pt"])
@pytest.mark.parametrize("opens", OTHERS)
def test_what_reads_models_itself_says_it_too(opens: str, kind: str, tmp_path: Path) -> None:
    data, said = FILES[kind]
    (tmp_path / "m.onnx").write_bytes(data)
    for model in (tmp_path / "m.onnx", *([data] if opens != "compress" else [])):
        with pytest.raises(ModelError, match=f"(?s){said}"):
            OTHERS[opens](str(model) if isinstance(model, Path) else model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("command", ["run", "explain", "bench", "compare", "profile"])
def test_commands_print_it(command: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(FILES["pointer"][0])
    assert "m.onnx: it is a Git LFS pointer, not the model: run `git lfs pull`" in " ".join(
        rejected(command, tmp_path / "m.onnx").split()
    )


# ---- float64, numpy's default


def test_float64_says_the_conversion_to_write(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 16))
    for options in ({}, {"placement": "cpu"}, {"placement": "gpu"}):
        session = InferenceSession(WHOLE, QUIET, provider_options=options)
        note = note_of(lambda session=session: session.run(None, {"x": x}))  # type: ignore[misc]
        assert (
            note == "numpy makes float64 by default, and the model takes float32: for its input 'x' give "
            "array.astype(numpy.float32)."
        )
        want = onnxruntime.InferenceSession(WHOLE, providers=["CPUExecutionProvider"]).run(None, {"x": x.astype("f")})[
            0
        ]
        np.testing.assert_allclose(session.run(None, {"x": x.astype("f")})[0], want, rtol=1e-4, atol=1e-5)


def test_the_conversion_names_the_input_and_its_type(rng: np.random.Generator) -> None:
    halves = model_of(
        "(float16[2, 4] a, float16[2, 4] pixels) => (float16[2, 4] y) { y = Add(a, pixels) }"
    ).SerializeToString()
    session, a = InferenceSession(halves, QUIET, provider_options={"placement": "gpu"}), rng.standard_normal((2, 4))
    found = note_of(lambda: session.run(None, {"a": a.astype("float16"), "pixels": a}))
    assert "the model takes float16: for its input 'pixels' give array.astype(numpy.float16)" in found


def test_a_session_on_the_cpu_has_nothing_of_ours_in_the_way_of_its_second_run() -> None:
    session = InferenceSession(WHOLE, QUIET, provider_options={"placement": "cpu"})
    session.run(None, {"x": np.ones((1, 16), "f")})
    assert type(session).run is OrtSession.run


def test_other_types_get_no_conversion(rng: np.random.Generator) -> None:
    session = InferenceSession(WHOLE, QUIET, provider_options={"placement": "gpu"})
    with pytest.raises(Exception, match="ONNXRuntimeError") as caught:
        session.run(None, {"x": rng.integers(0, 5, (3, 16))})
    assert not hasattr(caught.value, "__notes__")
