"""The word in which a plan's kernels note that data brought an index out of range; it is read with what they computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ort_gpu_ep.device import native
from ort_gpu_ep.errors import IndexOutOfRangeError

NBYTES = 4
_ZERO = bytes(NBYTES)


@dataclass(frozen=True, eq=False, slots=True)
class Word:
    """0 in its buffer as long as no index was out of range. upload: as a Gpu's. nodes: labels of those that look at indices."""

    buffer: Any
    upload: Callable[[Any, int, int, int], object]
    graph: str
    nodes: tuple[str, ...]

    def clear(self) -> None:
        """For the runs that follow. Those under way may be taken for bad ones: they are then done again on the CPU, and right."""
        self.upload(self.buffer, 0, native.address_of(_ZERO), NBYTES)


def check(words: Iterable[Word], values: Iterable[int]) -> None:
    """Raises IndexOutOfRangeError where one of the words, as they were read, is set; it is cleared."""
    found = [word for word, value in zip(words, values, strict=True) if value]
    for word in found:
        word.clear()
    if found:
        raise IndexOutOfRangeError("; ".join(
            f"{word.graph}: an index is out of range in {' or '.join(word.nodes)}. Expected -size to size - 1 of the dimension that it "
            "selects from: look at the inputs that these nodes take their indices from" for word in found))
