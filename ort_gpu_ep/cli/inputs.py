"""Inputs of a model from the command line: files, numbers, images and texts. Missing ones are random, and printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from ort_gpu_ep.cli import shared
from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.inputs.feeds import array_in, dtype_of
from ort_gpu_ep.scoring.images import SUFFIXES, prepared, preprocessing
from ort_gpu_ep.scoring.model import Value
from ort_gpu_ep.session.random_inputs import random_inputs


def feeds(
    values: Sequence[Any],
    model: Path,
    inputs: shared.Texts,
    dims: shared.Texts,
    shape_texts: shared.Texts,
    seed: int,
) -> dict[str, Any]:
    """An array for each input, by the options --input, --dim and --shape; what they leave open is guessed, and printed
    on stderr.

    values: the model's inputs, as `session.get_inputs()` gives them. Raises ModelError for a text without `=`, a name
    that the model does not have, a shape that does not fit, another file, and where the model refuses all guesses.
    """
    texts, sizes, shapes = (
        shared.pairs(inputs, "--input"),
        shared.pairs(dims, "--dim"),
        shared.pairs(shape_texts, "--shape"),
    )
    there = {value.name: value for value in values}
    symbols = list(dict.fromkeys(d for value in there.values() for d in value.shape if isinstance(d, str)))
    _known(texts, list(there), "--input", "input")
    _known(shapes, list(there), "--shape", "input")
    _known(sizes, symbols, "--dim", "named size")
    fixed = sizes_of(dims)
    both = next((name for name in texts if name in shapes), None)
    if both is not None:
        raise ModelError(f"--input {both} and --shape {both}: the input has a shape already; give one of them")
    arrays = {name: _given(there[name], text, fixed) for name, text in texts.items()}
    with shared.waiting("looking for sizes that the model takes"):
        guessed = random_inputs(
            list(there.values()),
            model,
            arrays,
            fixed,
            {name: _shape(there[name], text) for name, text in shapes.items()},
            seed,
        )
    if guessed.guessed:
        shared.err.print(guessed.line(seed))
    return dict(guessed.feeds)


def _given(value: Any, text: str, sizes: Mapping[str, int]) -> Any:
    """An input from a number (or several, 1,2,3), an image, a text or a .npy file. Raises ModelError."""
    path, flag = Path(text), f"--input {value.name}"
    numbers = _numbers(text)
    if numbers is not None and not path.exists():
        return _from_numbers(value, numbers, flag, sizes)
    if path.suffix.lower() in SUFFIXES:
        return _from_image(value, path, flag)
    if value.type == "tensor(string)" and path.suffix.lower() in (".txt", ".text"):
        try:
            lines = np.array(path.read_text("utf-8").splitlines(), object)
        except (OSError, ValueError) as error:
            raise ModelError(f"{flag}: {path} can't be read as text ({error})") from error
        return (
            lines.reshape(len(lines), *[1] * (len(value.shape) - 1))
            if value.shape
            else lines.reshape(-1)[:1].reshape(())
        )
    return array_in(text, flag)


def _numbers(text: str) -> list[float] | None:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        return None


def _from_numbers(value: Any, numbers: Sequence[float], flag: str, sizes: Mapping[str, int]) -> Any:
    dtype = dtype_of(value)
    if dtype is None:
        raise ModelError(f"{flag}: the input is a {value.type}, which numbers can't be given for")
    if dtype.kind in "iub" and any(n != int(n) for n in numbers):
        raise ModelError(
            f"{flag}: the input is {dtype}, got {', '.join(f'{n:g}' for n in numbers)}; expected whole numbers"
        )
    array = np.array(numbers).astype(dtype)
    if len(numbers) == 1:  # for every element: as many as the model or --dim says
        return np.full([d if isinstance(d, int) and d > 0 else sizes.get(d, 1) for d in value.shape], array[0], dtype)
    return array.reshape([1] * (len(value.shape) - 1) + [len(numbers)])


def _from_image(value: Any, path: Path, flag: str) -> Any:
    """As `score` makes images into inputs; how is printed."""
    shape = [d if isinstance(d, int) and d > 0 else None for d in value.shape]
    dtype = dtype_of(value)
    if len(shape) != 4 or dtype is None:
        raise ModelError(
            f"{flag}: an image needs an input [batch, channels, height, width], or the channels last; this one is "
            f"{value.type} {list(value.shape)}"
        )
    how = preprocessing(
        {} if None not in shape[2:] or (shape[3] in (1, 3) and None not in shape[1:3]) else {"resize": [224, 224]},
        Value(value.name, dtype.name, tuple(shape[1:])),
    )
    try:
        from PIL import Image
    except ImportError as error:
        raise ModelError(f"{flag}: images need the package pillow: pip install pillow") from error
    try:
        with Image.open(path) as image:
            batch = prepared(image, how)[None]
    except OSError as error:
        raise ModelError(f"{flag}: {path} is no image that can be read ({error})") from error
    shared.err.print(f"{value.name}: {path.name}, {how}. For another preparation give a .npy file.")
    return np.repeat(batch, shape[0] or 1, 0)


def _known(given: Iterable[str], there: Sequence[str], what: str, kind: str) -> None:
    """Raises ModelError for a name that is not there."""
    for name in given:
        if name not in there:
            near = get_close_matches(name, there, 1)
            raise ModelError(
                f"{what} {name}: the model has no such {kind}; it has {', '.join(there) or 'none'}"
                + (f". Did you mean {near[0]!r}?" if near else "")
            )


def sizes_of(dims: shared.Texts) -> dict[str, int]:
    """Symbol -> size, by --dim. Raises ModelError."""
    return {name: _size(name, text) for name, text in shared.pairs(dims, "--dim").items()}


def _size(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ModelError(f"--dim {name}={text}: expected a whole number")
    return int(text)


def _shape(value: Any, text: str) -> list[int]:
    """Raises ModelError, for text that is no shape or another one than the model's."""
    parts = text.split("x")
    fits = len(parts) == len(value.shape) and all(p.isdecimal() for p in parts)
    if not fits or any(isinstance(d, int) and d > 0 and d != int(p) for d, p in zip(value.shape, parts, strict=True)):
        expected = "x".join(str(d or "?") for d in value.shape)
        raise ModelError(f"--shape {value.name}={text}: expected sizes like 1x576 that fit the model's {expected}")
    return [int(p) for p in parts]
