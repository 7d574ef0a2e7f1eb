"""Reads numpy files as inputs, and knows the element types of a session's inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ort_gpu_ep.errors import ModelError

_NUMPY = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    **{f"tensor({t})": t for t in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
}


def dtype_of(value: Any) -> np.dtype[Any] | None:
    """numpy's type of an input; None where it has none."""
    return np.dtype(_NUMPY[value.type]) if value.type in _NUMPY else None


def array_in(path: Path | str, what: str) -> np.ndarray[Any, Any]:
    """The array of a .npy file. what: who names the file, for messages. Raises ModelError for no such file or another
    one."""
    expected = f"{what}: expected a .npy file, as numpy.save(FILE, array) writes it"
    with _opened(path, expected) as content:
        if isinstance(content, np.ndarray):
            return content
        raise ModelError(f"{expected}; got a .npz file of {', '.join(content.files) or 'nothing'}")


def arrays_in(path: Path | str, what: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a .npz file, by their names. Raises ModelError like `array_in`."""
    expected = f"{what}: expected a .npz file, as numpy.savez(FILE, NAME=array) writes it"
    with _opened(path, expected) as content:
        if isinstance(content, np.ndarray):
            raise ModelError(f"{expected}; got a .npy file of one array without a name")
        return {name: content[name] for name in content.files}


@contextmanager
def _opened(path: Path | str, expected: str) -> Iterator[Any]:
    """What numpy makes of a file. Its own messages advise to trust files that hold objects."""
    try:
        with open(path, "rb") as file:
            yield np.load(file, allow_pickle=False)
    except ModelError:
        raise
    except OSError as error:
        raise ModelError(f"{expected}; {error.strerror or error}: {path}") from error
    except (ValueError, EOFError, BadZipFile) as error:
        raise ModelError(f"{expected}; {path} holds something else, or not all of it") from error
