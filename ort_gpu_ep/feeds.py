"""Inputs for a model: from numpy's files, or, where nobody gives any, random, of sizes that are given or 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ort_gpu_ep.errors import ModelError

_NUMPY = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64", "tensor(bool)": "bool",
          **{f"tensor({t})": t for t in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")}}


def random_feeds(session: Any, sizes: Mapping[str, int] | None = None, seed: int = 0, default: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    """An array for each input of a session: normal floats, integers 0 and 1. sizes: of named dimensions; any other open one is `default`.

    Raises ModelError.
    """
    rng = np.random.default_rng(seed)
    return {value.name: random_value(value, own_shape(value, sizes or {}, default), rng) for value in session.get_inputs()}


def own_shape(value: Any, sizes: Mapping[str, int], default: int = 1) -> list[int]:
    """The shape of an input: what the model fixes, then what is given for its dimensions by name; else `default`."""
    return [sizes.get(d, default) if isinstance(d, str) else d if d is not None and d >= 0 else default for d in value.shape]


def dtype_of(value: Any) -> np.dtype[Any] | None:
    """numpy's type of an input; None where it has none."""
    return np.dtype(_NUMPY[value.type]) if value.type in _NUMPY else None


def random_value(value: Any, shape: list[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Raises ModelError for a type that numpy has no array of."""
    dtype = dtype_of(value)
    if dtype is None:
        raise ModelError(f"input {value.name!r} is a {value.type}: no random values for that; give --input {value.name}=FILE.npy")
    return rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else rng.integers(0, 2, shape).astype(dtype)


def array_in(path: Path | str, what: str) -> np.ndarray[Any, Any]:
    """The array of a .npy file. what: who names the file, for messages. Raises ModelError for no such file or another one."""
    expected = f"{what}: expected a .npy file, as numpy.save(FILE, array) writes it"
    with _opened(path, expected) as found:
        if isinstance(found, np.ndarray):
            return found
        raise ModelError(f"{expected}; got a .npz file of {', '.join(found.files) or 'nothing'}")


def arrays_in(path: Path | str, what: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a .npz file, by their names. Raises ModelError like `array_in`."""
    expected = f"{what}: expected a .npz file, as numpy.savez(FILE, NAME=array) writes it"
    with _opened(path, expected) as found:
        if isinstance(found, np.ndarray):
            raise ModelError(f"{expected}; got a .npy file of one array without a name")
        return {name: found[name] for name in found.files}


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
