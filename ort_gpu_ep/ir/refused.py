"""What a file is that is no model, and what to do: a sentence that is added to onnxruntime's exception, or stands in
one of ours."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from ort_gpu_ep.files import open_regular
from ort_gpu_ep.ir.model_file import stored_tensors

HEAD_NBYTES = 512

_PYTORCH = "write the model with torch.onnx.export(model, example_inputs, 'model.onnx', dynamo=True)"

_KINDS: tuple[tuple[re.Pattern[bytes], str], ...] = tuple(
    (re.compile(pattern, re.S), text)
    for pattern, text in (
        (
            rb"version https://git-lfs",
            "it is a Git LFS pointer, not the model: run `git lfs pull` where it was cloned, or download "
            "the file itself",
        ),
        (
            rb"\s*<(!doctype|!DOCTYPE|html|HTML|\?xml)",
            "it is a web page, not a model: download the file itself (on a hub the link "
            "'download', or /resolve/ instead of /blob/)",
        ),
        (rb"PK\x03\x04.*(data\.pkl|/version|byteorder)", f"it is a checkpoint of PyTorch: {_PYTORCH}"),
        (rb"PK\x03\x04", "it is a zip archive: unpack it and give the .onnx file that is in it"),
        (rb"\x80[\x02-\x05].", f"it is a Python pickle, as PyTorch's old checkpoints are: {_PYTORCH}"),
        (
            rb".{8}\{\"",
            "it is a .safetensors file: weights without a graph; export the model to ONNX where its code is "
            "(optimum-cli export onnx)",
        ),
        (
            rb"GGUF",
            "it is a GGUF file of llama.cpp; get the model as ONNX (onnxruntime-genai's model builder reads GGUF)",
        ),
        (
            rb".{4}TFL3",
            "it is a TensorFlow Lite model: convert it with `python -m tf2onnx.convert --tflite FILE "
            "--output model.onnx`",
        ),
        (rb".{4}ORTM", "it is a model in ORT format: give the .onnx file that it was made from"),
        (rb"\x89HDF", "it is a Keras or HDF5 file: convert the model with tf2onnx"),
        (rb"\x1f\x8b", "it is compressed with gzip: unpack it first (gunzip)"),
        (rb"\s*[\[{]", "it is a JSON or text file, not a model"),
    )
)
"""What a file begins with, and what that says."""

_IR = re.compile(r"max supported IR version: (\d+)")
_OPSET = re.compile(r"[Oo]pset (\d+) (?:of domain \S+ )?is under development")

_DOUBLES = re.compile(r"Actual: \(tensor\(double\)\) ?, expected: \(tensor\((float|float16)\)\)")


def conversion(said: str, feeds: Mapping[str, Any]) -> str:
    """One sentence for a run whose input has another element type than the model's; empty where there is nothing to
    add.

    said: onnxruntime's message, which does not name the input. feeds: what the run was given.
    """
    match = _DOUBLES.search(said)
    if not match:
        return ""
    dtype = {"float": "float32", "float16": "float16"}[match[1]]
    doubles = [name for name, value in feeds.items() if str(getattr(value, "dtype", "")) == "float64"]
    which = f"for its input {doubles[0]!r} " if len(doubles) == 1 else ""
    return f"numpy makes float64 by default, and the model takes {dtype}: {which}give array.astype(numpy.{dtype})."


def remedy(model: Any, said: str) -> str:
    """One sentence for a model that onnxruntime refused; empty where there is nothing to add.

    model: a path or bytes. said: onnxruntime's message.
    """
    version = _IR.search(said)
    if version:
        return (
            f"The model's IR version is newer than this onnxruntime, which reads up to {version[1]}: update it "
            f"(pip install -U onnxruntime), or set model.ir_version = {version[1]} and save the model again with "
            f"the package onnx."
        )
    if _OPSET.search(said):
        return (
            "The model's opset is newer than this onnxruntime: update it (pip install -U onnxruntime), or convert "
            "the model with "
            "onnx.version_converter.convert_version."
        )
    kind = kind_of(model)
    name = os.path.basename(os.fspath(model)) if isinstance(model, (str, os.PathLike)) else "the model"
    return f"{name}: {kind}." if kind else ""


def add_remedy(error: Exception, sentence: Callable[[str], str]) -> None:
    """Adds what to do to an exception of onnxruntime's, once: its traceback shows it. sentence: `remedy` or
    `conversion`."""
    if (
        type(error).__module__.startswith("onnxruntime")
        and not hasattr(error, "__notes__")
        and (note := sentence(str(error)))
    ):
        error.add_note(note)


def kind_of(model: Any) -> str:
    """What a model's path or bytes are instead, and what to do; empty where they are a model, can't be read, or are
    neither."""
    if not isinstance(model, (bytes, str, os.PathLike)):
        return ""
    try:
        return _kind_of_bytes(model) if isinstance(model, bytes) else _kind_of_file(model)
    except (OSError, ValueError):  # it is not there, or may not be read: who opened it says so
        return ""


def _kind_of_file(path: Any) -> str:
    with open_regular(path, follow=True) as file:
        if not os.fstat(file.fileno()).st_size:
            return _EMPTY
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _kind_of_bytes(data)


_EMPTY = "it is empty: what wrote or downloaded it did not end"


def _kind_of_bytes(data: Any) -> str:
    if not len(data):
        return _EMPTY
    head = bytes(data[:HEAD_NBYTES])
    for pattern, text in _KINDS:
        if pattern.match(head):
            return text
    try:
        for _ in stored_tensors(data):
            pass
    except ValueError:
        return (
            f"it is no ONNX model, or only the beginning of one ({len(data)} B): download or write it again, and "
            f"compare its size "
            "with the original's"
        )
    return ""
