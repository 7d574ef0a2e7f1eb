"""Checkpoints: a trainer's parameters and state in one file of the safetensors format, which other programs read too.

Format: 8 bytes of length, little-endian; a JSON object of that length, with element type, shape and place of each tensor and texts
under __metadata__; the tensors' bytes. Source: the format's description in huggingface/safetensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.graph import Array

_TYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4"}
_NAMES = {np.dtype(v).str: k for k, v in _TYPES.items()}


def write(path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Writes a file beside its place and then moves it there: what was there before stays whole until then. Raises TrainingError where
    there is no folder for it.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise TrainingError(f"checkpoint {os.fspath(path)}: there is no folder {os.fspath(target.parent)!r}; make it first")
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
        with beside.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in tensors.values():
                file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """(tensors, metadata). Raises TrainingError for a file that is none, or not whole."""
    try:
        data = Path(path).read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        metadata = header.pop("__metadata__", {})
        return {name: _tensor(data, 8 + size, entry) for name, entry in header.items()}, metadata
    except FileNotFoundError as error:
        raise TrainingError(f"checkpoint {os.fspath(path)}: no such file") from error
    except IsADirectoryError as error:
        raise TrainingError(f"checkpoint {os.fspath(path)}: it is a folder, expected a file") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrainingError(f"checkpoint {os.fspath(path)}: not a whole safetensors file ({type(error).__name__}: {error})") from error


def number(path: str | os.PathLike[str], metadata: Mapping[str, str], key: str) -> int:
    """A count that the metadata has; 0 where it has none. Raises TrainingError for a text that is no such number."""
    text = metadata.get(key, "0")
    if not text.removeprefix("-").isdecimal():
        raise TrainingError(f"checkpoint {os.fspath(path)}: its {key} is {text!r}, expected a number")
    return int(text)


def _tensor(data: bytes, start: int, entry: Mapping[str, Any]) -> Array:
    begin, end = entry["data_offsets"]
    dtype = np.dtype(_TYPES[entry["dtype"]])
    return np.frombuffer(data[start + begin:start + end], dtype).reshape(entry["shape"]).copy()
