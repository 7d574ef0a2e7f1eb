"""The word in which a plan's kernels note an index out of range or an integer divisor of 0; it is read with what they computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ort_gpu_ep.device import native
from ort_gpu_ep.errors import IndexOutOfRangeError, InputError, IntegerDivisionError
from ort_gpu_ep.registry import DIVISOR, INDEX

NBYTES = 4
_ZERO = bytes(NBYTES)

_WHAT: dict[int, tuple[type[InputError], str]] = {
    INDEX: (IndexOutOfRangeError, "an index is out of range in {}. Expected -size to size - 1 of the dimension that it selects from: "
            "look at the inputs that these nodes take their indices from"),
    DIVISOR: (IntegerDivisionError, "an integer is divided by 0 in {}: look at the inputs that these nodes take their divisors from"),
}
"""Bit of a word -> the exception, and its text with the nodes left open."""


@dataclass(frozen=True, eq=False, slots=True)
class Word:
    """0 in its buffer as long as all was in range. upload: as a Gpu's. nodes: labels of those that look at indices or divisors."""

    buffer: Any
    upload: Callable[[Any, int, int, int], object]
    graph: str
    nodes: tuple[str, ...]

    def clear(self) -> None:
        """For the runs that follow. Those under way may be taken for bad ones: they are then done again, and right."""
        self.upload(self.buffer, 0, native.address_of(_ZERO), NBYTES)


def check(words: Iterable[Word], values: Iterable[int]) -> None:
    """Raises IndexOutOfRangeError or IntegerDivisionError where one of the words, as they were read, is set; it is cleared."""
    found = [(word, value) for word, value in zip(words, values, strict=True) if value]
    for word, _ in found:
        word.clear()
    for bit, (kind, what) in _WHAT.items():
        nodes = [f"{word.graph}: {what.format(' or '.join(word.nodes))}" for word, value in found if value & bit]
        if nodes:
            raise kind("; ".join(nodes))
