"""Comparison of a partition's results with the CPU's (the option `verify`), and who is wrong where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnxruntime

from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.plugin.ort_sessions import ort_session
from ort_gpu_ep.providers import CPU_PROVIDER

if TYPE_CHECKING:
    import onnx

    from ort_gpu_ep.ir.graph import Array

JUDGED_NBYTES = 256 << 20
"""Larger models are not evaluated in float64: that takes twice their memory, and up to ten times as long as a run."""

TOLERANCE = {2: 2e-2, 4: 1e-3, 8: 1e-3}
"""Largest allowed error of a float, as a part of the tensor's largest magnitude, by bytes an element.

Sums in another order differ by some 1e-6 a layer in f32, and by 1e-3 in f16; a corrupt exponent by far more.
"""

IN_HALVES = TOLERANCE[2]
"""The same of any float, where weights or products are in float16 (the option `precision`)."""


def compare(name: str, got: Array, want: Array, precision: str = "float32") -> None:
    """Integers and booleans are equal; 8-bit integers differ by 1 at most (rounding); floats agree within what
    `precision` allows.

    NaN and infinities stand where the CPU has them. Raises WrongResultError, with the first and the number of bad
    elements.
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
            f"{name}: {int(bad.sum())} of {bad.size} elements differ from the CPU's; at {tuple(map(int, at))} got "
            f"{got[at]}, expected "
            f"{want[at]}."
        )


_ADVICE = "Run `ort-gpu-ep doctor`, try fusion=0 or checked_shaders=1, or use placement=cpu."


class Opinion(NamedTuple):
    """cpu_is_wrong: float64 agrees with the GPU, and so not with the CPU. said: sentences about it, and what to try."""

    cpu_is_wrong: bool
    said: str


def third_opinion(
    model: Callable[[], onnx.ModelProto],
    feeds: Mapping[str, Any],
    got: Sequence[Any],
    want: Sequence[Any],
    check: Callable[[Sequence[Any], Sequence[Any]], object],
) -> Opinion:
    """Who is wrong where the GPU's outputs differ from the CPU's, by the model evaluated in float64.

    model: all outputs of it are meant; it raises where it can't be read, or is too large. check: raises
    WrongResultError for outputs that differ.
    """
    from ort_gpu_ep.comparison.float64 import Float64  # it loads onnx's reference implementation

    evaluator = Float64(cpu_run)
    try:
        exact = evaluator.run(model(), feeds)
    except Exception as error:  # custom ops, a file that was overwritten: whatever keeps it from an opinion
        return Opinion(False, f"Float64 can't decide ({type(error).__name__}: {str(error).splitlines()[0]}). {_ADVICE}")
    if evaluator.in_float32:
        return Opinion(False, f"Float64 can't decide ({evaluator.in_float32[0]} has no such form). {_ADVICE}")
    gpu_is_right, cpu_is_right = _agree(check, got, exact), _agree(check, want, exact)
    if gpu_is_right and not cpu_is_right:
        return Opinion(True, "Float64 agrees with the GPU: onnxruntime's CPU is wrong here.")
    return Opinion(False, f"Float64 agrees with {'the CPU' if cpu_is_right else 'neither'}. {_ADVICE}")


def _agree(check: Callable[[Sequence[Any], Sequence[Any]], object], one: Sequence[Any], other: Sequence[Any]) -> bool:
    try:
        check(one, other)
    except WrongResultError:
        return False
    return True


def cpu_run(model: onnx.ModelProto, values: Mapping[str, Any]) -> list[Any]:
    """A model in memory on onnxruntime's CPU provider. Raises what that raises."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return list(ort_session(model.SerializeToString(), options, providers=[CPU_PROVIDER]).run(None, values))
