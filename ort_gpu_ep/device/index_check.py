"""Checks of the data on the device: an index or length out of range, or an integer divisor of 0, sets an error flag."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ort_gpu_ep.errors import IndexOutOfRangeError, InputError, IntegerDivisionError
from ort_gpu_ep.kernels.registry import COUNT, DIVISOR, INDEX, LENGTH

NBYTES = 4

_WHAT: dict[int, tuple[type[InputError], str]] = {
    INDEX: (
        IndexOutOfRangeError,
        "an index is out of range in {}. Expected -size to size - 1 of the dimension that it selects from: "
        "look at the inputs that these nodes take their indices from",
    ),
    LENGTH: (
        IndexOutOfRangeError,
        "a sequence's length is out of range in {}. Expected 0 to the number of steps: "
        "look at the inputs that these nodes take their lengths from",
    ),
    COUNT: (
        InputError,
        "a size that the data decide is not what {} needs: Split's parts have to be as much as there is",
    ),
    DIVISOR: (
        IntegerDivisionError,
        "an integer is divided by 0 in {}: look at the inputs that these nodes take their divisors from",
    ),
}
"""Bit of a word -> the exception, and its text with the nodes left open."""


@dataclass(eq=False, slots=True)
class Word:
    """0 in its buffer as long as all was in range. nodes: labels of those that look at indices, lengths or divisors.
    clean: read as 0."""

    buffer: Any
    offset_bytes: int
    graph: str
    nodes: tuple[str, ...]
    clean: bool = False

    @property
    def piece(self) -> tuple[Any, int, int]:
        """What is read of its buffer."""
        return self.buffer, self.offset_bytes, NBYTES


def check(words: Iterable[Word], values: Iterable[int]) -> None:
    """Raises IndexOutOfRangeError or IntegerDivisionError where one of the words, as they were read, is set."""
    faults = [(word, value) for word, value in zip(words, values, strict=True) if value]
    for bit, (kind, what) in _WHAT.items():
        nodes = [f"{word.graph}: {what.format(' or '.join(word.nodes))}" for word, value in faults if value & bit]
        if nodes:
            raise kind("; ".join(nodes))
