"""Checkpoints: a trainer's parameters and state in one file of the safetensors format, which other programs read too.

Format: 8 bytes of length, little-endian; a JSON object of that length, with element type, shape and place of each
tensor and texts under __metadata__; the tensors' bytes. Source: the format's description in huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.files import new_file
from ort_gpu_ep.ir.graph import Array

_TYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4"}
_MOST_DIMENSIONS = 64
"""Of numpy's arrays."""

_NAMES = {np.dtype(v).str: k for k, v in _TYPES.items()}


def write(path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Writes a file beside its place and then moves it there: what was there before stays whole until then. Raises
    TrainingError where there is no folder for it.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise TrainingError(
            f"checkpoint {os.fspath(path)}: there is no folder {os.fspath(target.parent)!r}; make it first"
        )
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    place = 0
    for name, array in tensors.items():
        kind = _NAMES[array.dtype.newbyteorder("<").str]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [place, place + array.nbytes]}
        place += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    beside = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with new_file(beside) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in tensors.values():
                file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """(tensors, metadata). Raises TrainingError for a file that is none, or not whole."""
    try:
        return _parsed(Path(path).read_bytes())
    except FileNotFoundError as error:
        raise TrainingError(f"checkpoint {os.fspath(path)}: no such file") from error
    except IsADirectoryError as error:
        raise TrainingError(f"checkpoint {os.fspath(path)}: it is a folder, expected a file") from error
    except RecursionError:
        raise TrainingError(
            f"checkpoint {os.fspath(path)}: not a whole safetensors file (its header is nested too deeply)"
        ) from None
    except ValueError as error:
        raise TrainingError(f"checkpoint {os.fspath(path)}: not a whole safetensors file ({error})") from error


def number(
    path: str | os.PathLike[str], metadata: Mapping[str, str], key: str, least: int = 0, most: int = 2**63 - 1
) -> int:
    """A whole number that the metadata has; 0 where it has none. Raises TrainingError for a text that is no such
    number."""
    text = metadata.get(key, "0")
    if len(text) > len(str(most)) + 1 or not text.removeprefix("-").isdecimal() or not least <= int(text) <= most:
        raise TrainingError(
            f"checkpoint {os.fspath(path)}: its {key} is {text[:40]!r}, expected a whole number from {least} to {most}"
        )
    return int(text)


def _parsed(data: bytes) -> tuple[dict[str, Array], dict[str, str]]:
    """Tensors and metadata. Raises ValueError for what is no such file, with what it is; RecursionError for JSON that
    is nested deeply.

    As the format asks, each byte behind the header is one of exactly one tensor.
    """
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 + size:
        raise ValueError(f"it has {len(data)} bytes, expected 8 and a header of {size}")
    header = json.loads(data[8 : 8 + size])
    if not isinstance(header, dict):
        raise ValueError(f"its header is {str(header)[:40]}, expected an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError(f"its metadata is {str(metadata)[:40]}, expected texts by name")
    places = {name: _place(name, entry) for name, entry in header.items()}
    end = 8 + size
    for name, (_, _, begin, stop) in sorted(places.items(), key=lambda item: item[1][2:]):
        if 8 + size + begin != end:
            raise ValueError(
                f"tensor {name!r} begins at byte {begin}, expected {end - 8 - size}: behind the tensor before it"
            )
        end = 8 + size + stop
    if end != len(data):
        raise ValueError(f"it has {len(data)} bytes, expected {end}: to the end of its last tensor")
    return {
        name: np.frombuffer(data, dtype, math.prod(shape), 8 + size + begin).reshape(shape).copy()
        for name, (dtype, shape, begin, _) in places.items()
    }, metadata


def _place(name: str, entry: Any) -> tuple[np.dtype[Any], list[int], int, int]:
    """Element type, shape, and the first byte and the one behind the last. Raises ValueError."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name!r} is {str(entry)[:60]}, expected dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ValueError(f"tensor {name!r} has the type {str(kind)[:40]}, expected one of {', '.join(_TYPES)}")
    for what in (shape, offsets):
        if not isinstance(what, list) or not all(type(n) is int and 0 <= n < 2**63 for n in what):
            raise ValueError(f"tensor {name!r} has {str(what)[:60]}, expected whole numbers from 0 on")
    dtype = np.dtype(_TYPES[kind])
    if (
        len(shape) > _MOST_DIMENSIONS
        or len(offsets) != 2
        or offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize
    ):
        raise ValueError(
            f"tensor {name!r} of type {kind} and shape {str(shape)[:60]} is at {offsets}, expected as many "
            f"bytes as it has"
        )
    return dtype, shape, offsets[0], offsets[1]
