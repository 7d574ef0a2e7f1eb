"""Random inputs for any model: sizes that it leaves open are tried on onnxruntime's CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from ort_gpu_ep.inputs.guess import Guess, NoGuessError, guess, structure_of
from ort_gpu_ep.plugin import ort_session
from ort_gpu_ep.providers import CPU_PROVIDER

Array = np.ndarray[Any, Any]

MOST_NBYTES = 200 << 20
"""Of a model file that guessed sizes are tried on: a larger one takes longer to load than a wrong guess is worth."""


WAYS = (
    "--input NAME=FILE, --dim SYMBOL=SIZE, --shape NAME=AxB; in Python random_inputs(given={NAME: ARRAY}, "
    "sizes={SYMBOL: SIZE})"
)
"""How a user says what can't be guessed."""


def random_inputs(
    values: Sequence[Any],
    model: Any,
    given: Mapping[str, Array],
    sizes: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    seed: int,
) -> Guess:
    """See `guess`. values: a session's inputs. model: its path or bytes, on which sizes are tried. Raises NoGuessError
    if it takes none."""
    guessed = guess(
        values, structure_of(model), given, sizes, shapes, seed, _tries(values, model, given, sizes, shapes)
    )
    if guessed.refused:
        name = (
            f"{os.path.basename(os.fspath(model))}: the model" if isinstance(model, (str, os.PathLike)) else "the model"
        )
        raise NoGuessError(
            f"{name} does not run on guessed inputs. Give inputs or sizes: {WAYS}. onnxruntime says of the first "
            f"guess: {guessed.refused}"
        )
    return guessed


def _tries(
    values: Sequence[Any],
    model: Any,
    given: Mapping[str, Array],
    sizes: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
) -> Callable[[Mapping[str, Array]], object] | None:
    """What runs the model on the CPU with a guess; None where no size is guessed, or the model is large."""
    left = [
        d
        for v in values
        if v.name not in given and v.name not in shapes
        for d in v.shape
        if not (isinstance(d, int) and d >= 0)
    ]
    nbytes = len(model) if isinstance(model, bytes) else os.stat(model).st_size
    if all(isinstance(d, str) and d in sizes for d in left) or nbytes > MOST_NBYTES:
        return None
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # what it refuses is raised as well
    try:
        plain = ort_session(model if isinstance(model, bytes) else os.fspath(model), settings, providers=[CPU_PROVIDER])
    except (
        Exception
    ):  # nodes that the CPU has no kernel for; of what is wrong with a model, who opens it to run it is told
        return None
    return lambda feeds: plain.run(None, dict(feeds))
