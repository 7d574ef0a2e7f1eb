"""Distances between two arrays: absolute, relative, L2 and ULP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

TOLERANCE = {2: 2e-2, 4: 1e-4, 8: 1e-4}
"""Of a float, as a part of the largest magnitude of its tensor, by bytes an element: sums in another order differ by
some 1e-6 a layer."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one value from what it is compared with.

    absolute: the largest. relative: that, as a part of the largest finite magnitude. l2: norm of the difference over
    the value's norm. ulp: the most representable numbers between two elements; 0 where these are no floats. misplaced:
    elements where only one side is NaN, or an infinity of that sign. at, got, want: the element with the largest
    difference.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    absolute: float
    relative: float
    l2: float
    ulp: int
    misplaced: int
    at: tuple[int, ...]
    got: str
    want: str

    def within(self, tolerance: float | None = None) -> bool:
        """tolerance: largest `relative` of floats, TOLERANCE by default. Integers are equal; those of 8 bits differ by
        1 at most."""
        if self.misplaced:
            return False
        kind = np.dtype(self.dtype)
        if kind.kind == "f":
            return self.relative <= (TOLERANCE[min(kind.itemsize, 8)] if tolerance is None else tolerance)
        return self.absolute <= (1 if kind.kind in "iu" and kind.itemsize == 1 else 0)

    def as_dict(self) -> dict[str, object]:
        """For JSON, which has no infinity."""
        return {key: None if value == float("inf") else value for key, value in asdict(self).items()}

    def __str__(self) -> str:
        where = f" at {list(self.at)}: got {self.got}, expected {self.want}" if self.absolute or self.misplaced else ""
        lost = f", {self.misplaced} NaN or infinite on one side only" if self.misplaced else ""
        return (
            f"{self.name} {self.dtype}{list(self.shape)}: absolute {self.absolute:.2g}, relative {self.relative:.2g}, "
            f"L2 {self.l2:.2g}, {self.ulp} ULP{lost}{where}"
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """One output of two sides. between: their difference. first, second: what each differs from float64 by, None if
    unknown."""

    between: Difference
    first: Difference | None = None
    second: Difference | None = None

    def within(self, tolerance: float | None = None) -> bool:
        """Whether the first side is right: near the second one, or near float64, or at least no farther from float64
        than the second."""
        if self.between.within(tolerance) or self.first is None or self.second is None:
            return self.between.within(tolerance)
        ours, theirs = ((d.misplaced, d.relative) for d in (self.first, self.second))
        return self.first.within(tolerance) or ours <= theirs

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        third = {"first": self.first.as_dict(), "second": self.second.as_dict()} if self.first and self.second else None
        return {**self.between.as_dict(), "float64": third}


def judged(
    names: Sequence[str], got: Sequence[Any], want: Sequence[Any], exact: Sequence[Any] | None = None
) -> list[Judgement]:
    """Of the outputs of two runs, and of a third one in float64; sequences and maps are left out."""
    if exact is None:
        return [Judgement(d) for d in differences(names, got, want)]
    sides = (differences(names, a, b) for a, b in ((got, want), (got, exact), (want, exact)))
    return [Judgement(*three) for three in zip(*sides, strict=True)]


def difference(name: str, got: Array, want: Array) -> Difference:
    """want: what is compared with. Of another shape or type, everything is infinitely far."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape or got.dtype != want.dtype:
        inf = float("inf")
        got_type, want_type = (f"{side.dtype}{list(side.shape)}" for side in (got, want))
        return Difference(
            name, str(want.dtype), want.shape, inf, inf, inf, 0, max(want.size, 1), (), got_type, want_type
        )
    if want.dtype.kind not in "biuf":  # texts
        unequal = got != want
        at, count = _index(unequal.astype(np.float64)), int(unequal.sum())
        shown = (str(got[at]), str(want[at])) if want.size else ("", "")
        return Difference(name, "str", want.shape, 0.0, 0.0, 0.0, 0, count, at, *shown)
    ours, theirs = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(ours) & np.isfinite(theirs)
    same = finite | (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        apart = np.where(finite, np.abs(ours - theirs), 0.0)
    sizes = np.abs(np.where(np.isfinite(theirs), theirs, 0.0))
    absolute, largest, norm = (
        float(apart.max(initial=0.0)),
        float(sizes.max(initial=0.0)),
        float(np.linalg.norm(sizes.ravel())),
    )
    at = _index(np.where(same, apart, np.inf))
    return Difference(
        name,
        str(want.dtype),
        want.shape,
        absolute,
        _ratio(absolute, largest),
        _ratio(float(np.linalg.norm(apart.ravel())), norm),
        _ulp(got, want, finite) if want.dtype.kind == "f" else 0,
        int((~same).sum()),
        at,
        str(got[at]) if want.size else "",
        str(want[at]) if want.size else "",
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("inf") if part else 0.0


def _index(apart: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(apart)), apart.shape)) if apart.size else ()


def _ulp(got: Array, want: Array, finite: Array) -> int:
    """Representable numbers are counted along the integers that have the same bits, negative ones backwards."""
    bits = np.dtype(f"i{want.dtype.itemsize}")
    least = np.iinfo(bits).min

    def place(values: Array) -> Array:
        places = np.ascontiguousarray(values).view(bits)
        return np.where(places < 0, least - places, places)

    a, b = place(got)[finite], place(want)[finite]
    if bits.itemsize == 8:
        return (
            max((abs(int(x) - int(y)) for x, y in zip(a, b, strict=True)), default=0)
            if a.size <= 1 << 16
            else int(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())
        )
    return int(np.abs(a.astype(np.int64) - b.astype(np.int64)).max(initial=0))


def differences(names: Sequence[str], got: Sequence[Any], want: Sequence[Any]) -> list[Difference]:
    """Of the outputs of a run; sequences and maps are left out."""
    return [difference(n, g, w) for n, g, w in zip(names, got, want, strict=True) if isinstance(w, np.ndarray)]
