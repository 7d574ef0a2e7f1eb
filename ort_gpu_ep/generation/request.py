"""What a generation is asked for, checked before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_gpu_ep.errors import ConfigError, InputError
from ort_gpu_ep.generation.sampling import Draw, draw_of

_SEVERAL = "Several prompts: Generator.generate_batch."


@dataclass(frozen=True)
class Request:
    """What is asked for: a prompt [1, S], at most how many tokens behind it, how these are drawn (None: the most likely
    ones), and which of them are the last."""

    prompt: npt.NDArray[Any]
    count: int
    draw: Draw | None
    stop: frozenset[int]


def request_of(
    ids: npt.ArrayLike,
    max_new_tokens: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int | None,
    stop: Sequence[int],
    *,
    dtype: npt.DTypeLike,
    max_length: int,
) -> Request:
    """What Generator.generate is asked for; it raises what this does. dtype: numpy type of the model's tokens.
    max_length: tokens of prompt and answer."""
    try:
        prompt = np.asarray(ids)
    except ValueError as error:  # rows of unequal lengths
        raise InputError(f"generate: ids: {error}; expected integers of one prompt. {_SEVERAL}") from error
    prompt = prompt.reshape(1, -1) if prompt.ndim == 1 else prompt
    if prompt.ndim != 2 or prompt.shape[0] != 1 or not prompt.size or prompt.dtype.kind not in "iu":
        raise InputError(
            f"generate: ids: got {prompt.dtype} {list(np.shape(ids))}, expected integers [S] or [1, S], "
            f"at least one. {_SEVERAL}"
        )
    room = max_length - prompt.shape[1]
    if room < 1:
        raise InputError(
            f"generate: a prompt of {prompt.shape[1]} tokens leaves no room for another one; raise "
            f"max_length={max_length}"
        )
    draw = draw_of(temperature, top_k, top_p, seed)
    count = room if max_new_tokens is None else min(room, max_new_tokens)
    if count < 0:
        raise ConfigError(f"generate: max_new_tokens: got {max_new_tokens}, expected 0 or more")
    return Request(prompt.astype(dtype), count, draw, frozenset(stop))
