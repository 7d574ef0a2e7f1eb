"""Comparison of a partition's results with the CPU's (the option `verify`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ort_gpu_ep.errors import WrongResultError

if TYPE_CHECKING:
    from ort_gpu_ep.ir.graph import Array

TOLERANCE = {2: 2e-2, 4: 1e-3, 8: 1e-3}
"""Largest allowed error of a float, as a part of the tensor's largest magnitude, by bytes an element.

Sums in another order differ by some 1e-6 a layer in f32, and by 1e-3 in f16; a corrupt exponent by far more.
"""

IN_HALVES = TOLERANCE[2]
"""The same of any float, where weights or products are in float16 (the option `precision`)."""


def compare(name: str, got: Array, want: Array, precision: str = "float32") -> None:
    """Integers and booleans are equal; 8-bit integers differ by 1 at most (rounding); floats agree within what `precision` allows.

    NaN and infinities stand where the CPU has them. Raises WrongResultError, with the first and the number of bad elements.
    """
    if got.dtype.kind in "biu":
        allowed = 1 if got.dtype.kind in "iu" and got.dtype.itemsize == 1 else 0
        bad = got != want if not allowed else np.abs(got.astype(np.int16) - want) > allowed
    else:
        ours, theirs = got.astype(np.float64), want.astype(np.float64)
        finite = np.isfinite(theirs)
        scale = np.abs(theirs[finite]).max(initial=0.0)
        part = TOLERANCE[got.dtype.itemsize] if precision == "float32" else IN_HALVES
        with np.errstate(invalid="ignore"):
            near = np.abs(ours - theirs) <= part * scale + 1e-6
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        bad = ~np.where(finite, near, same)
    if bad.any():
        at = np.unravel_index(int(np.argmax(bad)), bad.shape)
        raise WrongResultError(
            f"{name}: {int(bad.sum())} of {bad.size} elements differ from the CPU's; at {tuple(map(int, at))} got {got[at]}, expected "
            f"{want[at]}. Run `ort-gpu-ep doctor`, try fusion=0 or checked_shaders=1, or use placement=cpu.")
