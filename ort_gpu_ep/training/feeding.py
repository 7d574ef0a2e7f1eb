"""Places a step's inputs on the device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.plugin import download_later, fill

MAX_NBYTES = 16 << 20
"""What the places of a feed take at most, if there are more than two."""


class Feed:
    """A feed's places. Steps take turns over them, so that a batch is brought while the steps before it have not begun.

    first: what is in them at first. make: makes a value on the device.
    """

    def __init__(self, first: Array, places: int, make: Callable[[Array], Any], on_gpu: bool) -> None:
        count = places if places * first.nbytes <= MAX_NBYTES else 2
        self._values = [make(first) for _ in range(count)]
        self._filled: list[Array | None] = [first] * count
        self._on_gpu = on_gpu

    def value(self, place: int) -> Any:
        return self._values[place % len(self._values)]

    def fill(self, place: int, array: Array, waiting: int) -> None:
        """Brings an array there, unless it is there. waiting: how many steps before this one the GPU has not been given
        yet."""
        place %= len(self._values)
        if self._filled[place] is array:  # sample weights of full batches are always the same array
            return
        self._filled[place] = None
        if self._on_gpu:
            fill(self._values[place], np.ascontiguousarray(array), waits=waiting >= len(self._values))
        else:
            self._values[place].update_inplace(array)
        self._filled[place] = array


class Coming:
    """A number that is on its way to the host. all_of: gives the content of the values that came together."""

    def __init__(self, all_of: Callable[[], list[bytes]], at: int) -> None:
        self._all_of, self._at = all_of, at

    def __float__(self) -> float:
        return float(np.frombuffer(self._all_of()[self._at], np.float32)[0])


def coming(values: Sequence[Any]) -> list[Any]:
    """float32 values as they are now, those on a GPU of this process on their way to the host, without a wait. Raises
    DeviceError."""
    numbers = [v for v in values if not isinstance(v, Coming)]
    wait = download_later(numbers) if numbers else None
    if wait is None:
        return list(values)
    once, at = cache(wait), itertools.count()
    return [v if isinstance(v, Coming) else Coming(once, next(at)) for v in values]
