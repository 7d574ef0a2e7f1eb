"""Checks a user's arrays and turns them into the inputs of a step; pads short batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.ir.graph import Array

Inputs: TypeAlias = "Array | Mapping[str, Array]"


def as_inputs(x: Any, names: list[str]) -> dict[str, Array]:
    """The model's inputs by name: a mapping, or one array for a model of one input. Raises TrainingError."""
    if isinstance(x, Mapping):
        if set(x) != set(names):
            raise TrainingError(f"inputs: got {', '.join(map(repr, x))}, expected {', '.join(map(repr, names))}")
        return {name: np.asarray(x[name]) for name in names}
    if len(names) != 1:
        raise TrainingError(
            f"inputs: got one array, but the model has {len(names)}: give a mapping of {', '.join(map(repr, names))}"
        )
    return {names[0]: np.asarray(x)}


def samples(inputs: Mapping[str, Array], label: Array) -> int:
    """How many samples there are. Raises TrainingError, where inputs and labels differ in that, and for none."""
    counts = {name: len(a) if a.ndim else 0 for name, a in {**inputs, "labels": label}.items()}
    if len(set(counts.values())) > 1:
        raise TrainingError(
            "numbers of samples differ: " + ", ".join(f"{name} {count}" for name, count in counts.items())
        )
    count = next(iter(counts.values()))
    if not count:
        raise TrainingError("got no samples: inputs and labels need a first dimension of at least 1")
    return count


def checked(name: str, array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """An array in a feed's element type, with as many samples as it has. Raises TrainingError for another shape or
    kind."""
    if array.shape[1:] != shape[1:]:
        raise TrainingError(f"{name}: got the shape {list(array.shape)}, expected {_shape(shape)}")
    if dtype.kind in "iu" and array.dtype.kind not in "iub":
        raise TrainingError(f"{name}: got {array.dtype}, expected integers ({dtype})")
    if dtype.kind == "f" and array.dtype.kind not in "fiub":
        raise TrainingError(f"{name}: got {array.dtype}, expected numbers ({dtype})")
    return array.astype(dtype, copy=False)


def check_classes(label: Array, classes: int) -> None:
    """Raises TrainingError for a class that the output does not have."""
    wrong = np.flatnonzero((label < 0) | (label >= classes))
    if wrong.size:
        place = [int(i) for i in np.unravel_index(wrong[0], label.shape)]
        raise TrainingError(
            f"labels: got {label.reshape(-1)[wrong[0]]} at {place}, expected 0 to {classes - 1}: the output has "
            f"{classes} classes"
        )


def padded(array: Array, count: int) -> Array:
    """A batch of `count` samples: those given, then the first ones again, which weigh nothing."""
    return array if len(array) == count else array[np.arange(count) % len(array)]


def weights(weight: Any, given: int) -> Array:
    """Sample weights [given], float64. Raises TrainingError for those that are none."""
    numbers = np.asarray(weight, np.float64)
    if numbers.shape != (given,) or not np.isfinite(numbers).all() or (numbers < 0).any() or not numbers.sum() > 0:
        raise TrainingError(
            f"sample weights: got the shape {list(numbers.shape)}, expected {given} finite numbers of at least "
            f"0, not all "
            "of them 0"
        )
    return numbers


def normalized(weight: Any, given: int, count: int) -> Array:
    """Sample weights [count] that sum to 1, zeros for the padding. None: all equal. Raises TrainingError."""
    if weight is None:
        return equal_weights(given, count)
    numbers = weights(weight, given)
    return np.concatenate([numbers / numbers.sum(), np.zeros(count - given)]).astype(np.float32)


@lru_cache(16)
def equal_weights(given: int, count: int) -> Array:
    """`normalized` of equal weights, one array for each pair of numbers: what is on the device need not go there
    again."""
    return np.concatenate([np.full(given, 1 / given), np.zeros(count - given)]).astype(np.float32)


def batches(count: int, size: int, order: Array) -> Iterator[Array]:
    """The samples' numbers in this order, `size` at a time; the last batch may be shorter."""
    for start in range(0, count, size):
        yield order[start : start + size]


def _shape(shape: tuple[int, ...]) -> str:
    return f"[N, {', '.join(map(str, shape[1:]))}]" if len(shape) > 1 else "[N]"


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples that batches are taken from, by feed: [count, ...] in the step's element types. They are the trainer's
    own: a user may change theirs, and a step may be repeated later.
    """

    arrays: dict[str, Array]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())

    def holds(self, arrays: Mapping[str, Array]) -> bool:
        """Whether these are the same samples."""
        return set(arrays) == set(self.arrays) and all(np.array_equal(a, self.arrays[n]) for n, a in arrays.items())


@dataclass(frozen=True, eq=False)
class Rows:
    """The samples that a step takes of a data set: those numbered batches[at], int32 [B]. Those behind it are most
    likely the next."""

    source: DataSet
    batches: Sequence[Array]
    at: int


@dataclass(frozen=True, eq=False)
class Batch:
    """What a step is fed: arrays by name, and rows of a data set."""

    feeds: dict[str, Array]
    rows: Rows | None = None

    def whole(self) -> dict[str, Array]:
        """All of it as arrays."""
        if self.rows is None:
            return self.feeds
        numbers = self.rows.batches[self.rows.at]
        return {**{n: a[numbers] for n, a in self.rows.source.arrays.items()}, **self.feeds}
