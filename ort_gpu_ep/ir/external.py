"""External data: the files that hold the content of a model's tensors, told and opened as onnxruntime 1.32 does.

Whoever wrote a model chose these names, so everything that reads such a file asks here. The file lies in the model's
folder, after all links are followed; or, where the model's own file is a link, in the folder that this leads to (the
cache of Hugging Face's hub). It is a regular file. onnxruntime refuses all others, and looks only at tensors whose
data_location is EXTERNAL.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.files import open_regular
from ort_gpu_ep.ir.model_file import stored_tensors
from ort_gpu_ep.ir.refused import kind_of
from ort_gpu_ep.ir.types import BY_ONNX, TensorType

if TYPE_CHECKING:
    import onnx

MAX_NBYTES = 1 << 31
"""Of a protobuf message."""


def locations(data: bytes | mmap.mmap) -> list[str]:
    """What the tensors of a model call the files of their content, each once. None for what is no ONNX model."""
    if data.find(b"location") < 0:
        return []
    try:
        return sorted({tensor.external["location"] for tensor in stored_tensors(data) if "location" in tensor.external})
    except ValueError:
        return []


def path_of(location: str, folder: str, model: str = "") -> str:
    """The file that a model in `folder` means by a location: absolute, without links.

    model: its own file; empty for one that is in memory. Raises ModelError where onnxruntime refuses the location, or
    there is no file.
    """

    def refused(why: str) -> ModelError:
        return ModelError(
            f"{model or 'the model'}: external data in {location!r}: {why}; expected a file in the model's "
            f"folder, {folder}"
        )

    if not location or "\0" in location:
        raise refused("this is no name of a file")
    if os.path.splitdrive(location)[0] or location.startswith(("/", os.sep)):
        raise refused("this is an absolute path")
    try:
        # the system bounds how many links may follow each other; realpath does not
        os.stat(os.path.join(folder, location))
        path = os.path.realpath(os.path.join(folder, location), strict=True)
        allowed = {
            os.path.realpath(folder),
            os.path.dirname(os.path.realpath(model)) if model else os.path.realpath(folder),
        }
    except (OSError, ValueError) as error:
        raise refused(str(getattr(error, "strerror", None) or error)) from error
    if not any(path.startswith(os.path.join(parent, "")) for parent in allowed):
        raise refused("this leads out of it")
    return path


def open_location(location: str, folder: str, model: str = "") -> BinaryIO:
    """The file of a location, see `path_of`, open to be read. Raises ModelError, also for a folder, a device or a FIFO;
    OSError."""
    path = path_of(location, folder, model)
    try:
        return open_regular(Path(path))
    except OSError as error:
        raise ModelError(
            f"{model or 'the model'}: external data in {location!r}: {error.strerror or error}; expected a file "
            f"that can be "
            "read"
        ) from error


def external_tensors(message: Any) -> Iterator[onnx.TensorProto]:
    """The tensors below a protobuf message, of bodies, functions, attributes and sparse tensors too, whose content lies
    in files."""
    import onnx

    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in (value,) if hasattr(value, "ListFields") else value:
            if not isinstance(inner, onnx.TensorProto):
                yield from external_tensors(inner)
            elif inner.data_location == onnx.TensorProto.EXTERNAL:
                yield inner


def locations_in(model: onnx.ModelProto) -> list[str]:
    """As `locations`, of a model that is parsed."""
    return sorted(
        {
            _text(entry.value)
            for tensor in external_tensors(model)
            for entry in tensor.external_data
            if entry.key == "location"
        }
    )


def _text(value: str | bytes) -> str:
    """As names of files, which need not be UTF-8: what is not, protobuf gives as bytes."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def load(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> onnx.ModelProto:
    """A model with the content of all its tensors in memory. Of bytes, and of a message, files lie in the current
    folder.

    Raises ModelError, also for what is no ONNX model.
    """
    import onnx

    name, path, folder = "the model", "", os.getcwd()
    try:
        if isinstance(model, onnx.ModelProto):
            if next(external_tensors(model), None) is None:
                return model
            model_read = onnx.ModelProto()
            model_read.CopyFrom(model)
        elif isinstance(model, bytes):
            name, model_read = "the bytes given", onnx.load_model_from_string(model)
        else:
            name = path = os.fspath(model)
            folder, model_read = os.path.dirname(os.path.abspath(path)), onnx.load(path, load_external_data=False)
        if not model_read.HasField("graph"):
            raise ValueError("it has no graph")
    except OSError as error:
        raise ModelError(
            f"{name}: {'no such file' if isinstance(error, FileNotFoundError) else error.strerror or error}"
        ) from error
    except Exception as error:  # most are protobuf's own, of which onnx makes no other
        raise ModelError(f"{name}: not an ONNX model that can be read ({kind_of(model) or error})") from error
    for tensor in external_tensors(model_read):
        tensor.raw_data = _content(tensor, folder, path)
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")
    return model_read


def _content(tensor: onnx.TensorProto, folder: str, model: str) -> bytes:
    """What a file holds for a tensor. Nothing is read, and no memory taken, before its size is known to fit. Raises
    ModelError."""
    told = {_text(entry.key): _text(entry.value) for entry in tensor.external_data}
    location, offset, length = told.get("location", ""), told.get("offset", "0"), told.get("length", "0")
    what = f"{model or 'the model'}: tensor {tensor.name!r}: external data in {location!r}"
    dtype = BY_ONNX.get(tensor.data_type)
    if dtype is None or min(tensor.dims, default=0) < 0:
        raise ModelError(
            f"{what}: type {tensor.data_type} and sizes {list(tensor.dims)}; expected numbers, and sizes of 0 or more"
        )
    nbytes = TensorType(dtype, tuple(tensor.dims)).nbytes
    if nbytes >= MAX_NBYTES:
        raise ModelError(f"{what}: {nbytes} bytes; a model in memory has less than {MAX_NBYTES} in a tensor")
    if not all(text.isascii() and text.isdecimal() for text in (offset, length)) or int(length) not in (0, nbytes):
        raise ModelError(f"{what}: offset {offset!r} and length {length!r}; expected whole numbers, and {nbytes} bytes")
    with open_location(location, folder, model) as file:
        there = os.fstat(file.fileno()).st_size
        if int(offset) + nbytes > there:
            raise ModelError(f"{what}: {nbytes} bytes at {offset}; the file has {there}")
        file.seek(int(offset))
        return file.read(nbytes)


def relocated(data: bytes, names: Mapping[str, str]) -> bytes:
    """A model with other locations, where `names` has one. It is an ONNX model, as `locations` has found."""
    import onnx

    model = onnx.load_model_from_string(data)
    relocate(model, names)
    return bytes(model.SerializeToString())


def relocate(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Changes the locations that `names` has."""
    for tensor in external_tensors(model):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names.get(_text(entry.value), entry.value)
