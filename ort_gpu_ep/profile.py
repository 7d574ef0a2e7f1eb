"""What an adapter takes: for a run at all, a dispatch, a transfer, and the work of each family of kernels. Plain data.

`calibration/` measures it; the partitioner reads it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ort_gpu_ep.registry import Kernel, Lowering

_SHADERS = {
    "product": "gemm",                                       # tiles in workgroup memory; most convolutions, too
    "matvec": "matvec",                                      # bound by reading the weights
    "direct": "conv_direct conv_transpose einsum matmul_integer",    # a sum of products by each invocation, nothing shared
    "recurrent": "recurrent",                                # one step after the other
    "reduction": "softmax normalize reduce reduce_empty row_moments arg_reduce hardmax cumsum quantize_range",
    "pool": "pool max_pool_indices lrn resize",              # a window around each element
    "sorting": "topk_keys topk_sort topk_merge topk_indices",
    "gather": "gather one_hot scatter_owner scatter_places scatter_reduce scatter_replace reverse_sequence",
    "movement": "strided strided_write concat_pair pad trilu eye_like recurrent_weights",
    "elementwise": "elementwise batch_norm quantize dequantize quantize_parameter sum_parts",
}

FAMILY_OF: Mapping[str, str] = {f"{shader}.wgsl": family for family, shaders in _SHADERS.items() for shader in shaders.split()}
"""Shader file -> family: kernels whose time grows alike."""

BY_FLOPS = frozenset({"product", "matvec", "direct", "recurrent"})
"""Families whose work is counted in floating-point operations, those of a recurrent layer step by step: a step waits for the one before it,
however wide the adapter is. The work of the others is the bytes they read and write."""

SIBLING: Mapping[str, str] = {
    "matvec": "product", "direct": "product", "recurrent": "matvec",
    "movement": "elementwise", "gather": "movement", "reduction": "elementwise", "pool": "reduction", "sorting": "reduction",
}
"""Family -> the one that stands in for it where it was not measured: the nearest that is counted in the same unit."""


@dataclass(frozen=True)
class Curve:
    """Seconds over an amount, as measured.

    points: (amount, seconds), both positive, amounts ascending, seconds not descending. Raises ValueError where they are not.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        flat = [number for point in self.points for number in point]
        if not flat or not all(math.isfinite(n) and n > 0 for n in flat):
            raise ValueError(f"curve {self.points}: expected one point or more of positive numbers")
        for (amount, seconds), (more, longer) in zip(self.points, self.points[1:], strict=False):
            if amount >= more or seconds > longer:
                raise ValueError(f"curve: after {amount:g} in {seconds:g} s, got {more:g} in {longer:g} s; expected more, in no less time")

    @classmethod
    def through(cls, measured: Iterable[tuple[float, float]], least_s: float = 1e-8) -> Curve:
        """The curve of noisy measurements: a larger amount takes at least as long as a smaller one, and nothing less than least_s."""
        points: dict[float, float] = {}
        floor_s = least_s
        for amount, seconds in sorted(measured):
            points[amount] = floor_s = max(seconds, floor_s)
        return cls(tuple(points.items()))

    def at(self, amount: float) -> float:
        """Seconds for an amount: straight in logarithms between two points, the first's below them, in proportion to the last above."""
        first, last = self.points[0], self.points[-1]
        if amount <= first[0]:
            return first[1]
        if amount >= last[0]:
            return last[1] * amount / last[0]
        right = bisect.bisect_right(self.points, amount, key=lambda point: point[0])
        (x0, y0), (x1, y1) = self.points[right - 1], self.points[right]
        return float(y0 * (y1 / y0) ** (math.log(amount / x0) / math.log(x1 / x0)))


@dataclass(frozen=True)
class Profile:
    """Times of one adapter.

    run_s: an (almost) empty run with its readback: submit, wait, 256 bytes. dispatch_s: one more small kernel in a run.
    upload, download: seconds that bytes take in addition to an empty run. families: seconds of work (without its dispatch) over
    floating-point operations or bytes, see BY_FLOPS; those not there are answered by SIBLING.
    """

    adapter: str
    run_s: float
    dispatch_s: float
    upload: Curve
    download: Curve
    families: Mapping[str, Curve] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(math.isfinite(s) and s > 0 for s in (self.run_s, self.dispatch_s)):
            raise ValueError(f"profile of {self.adapter}: run_s {self.run_s}, dispatch_s {self.dispatch_s}: expected positive numbers")
        unknown = set(self.families) - set(_SHADERS)
        if unknown:
            raise ValueError(f"profile of {self.adapter}: unknown families {sorted(unknown)}; there are {sorted(_SHADERS)}")
        object.__setattr__(self, "families", MappingProxyType(dict(self.families)))

    def upload_s(self, nbytes: int) -> float:
        return self.upload.at(nbytes)

    def download_s(self, nbytes: int) -> float:
        return self.download.at(nbytes)

    def node_s(self, lowering: Lowering, flops: float, nbytes: int, steps: int = 1) -> float:
        """Predicted seconds on the GPU of a node. flops: of its products, 0 if it has none. nbytes: what it reads and writes.

        steps: how many parts of a recurrent layer wait for each other.

        A dispatch for each kernel, and its work: the operations by the kernel that multiplies (of a recurrent layer: by the one that goes
        through the steps), the bytes by the last kernel (those before it move what they write).
        """
        total_s = self.dispatch_s * len(lowering.kernels)
        candidates = [k for k in lowering.kernels if flops and FAMILY_OF[k.shader] in BY_FLOPS]
        multiplies = next((k for k in candidates if FAMILY_OF[k.shader] == "recurrent"), candidates[0] if candidates else None)
        for kernel in lowering.kernels:
            family = FAMILY_OF[kernel.shader]
            if kernel is multiplies:
                total_s += steps * self.curve(family).at(flops / steps)
            elif multiplies is None or family not in BY_FLOPS:
                alone = kernel is lowering.kernels[-1] and multiplies is None
                moved = nbytes if alone else 2 * _written_nbytes(kernel)
                total_s += self.curve("elementwise" if family in BY_FLOPS else family).at(moved)
        return total_s

    def curve(self, family: str) -> Curve:
        """The curve of a family, or that of the nearest sibling that was measured."""
        while family not in self.families and family in SIBLING:
            family = SIBLING[family]
        return self.families.get(family) or _GUESSED_FAMILIES[family]

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; `from_dict` reads it."""
        return {
            "adapter": self.adapter, "run_s": self.run_s, "dispatch_s": self.dispatch_s, "upload": [list(p) for p in self.upload.points],
            "download": [list(p) for p in self.download.points],
            "families": {name: [list(p) for p in curve.points] for name, curve in self.families.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """Raises: KeyError, TypeError, ValueError, AttributeError for what `as_dict` did not write."""
        return cls(
            str(data["adapter"]), float(data["run_s"]), float(data["dispatch_s"]), _curve(data["upload"]), _curve(data["download"]),
            {str(name): _curve(points) for name, points in data["families"].items()})


def _curve(points: Any) -> Curve:
    return Curve(tuple((float(amount), float(seconds)) for amount, seconds in points))


def _written_nbytes(kernel: Kernel) -> int:
    return sum(t.nbytes for t in kernel.outputs)


def _rate(per_s: float) -> Curve:
    """In proportion from the first unit on."""
    return Curve(((1.0, 1.0 / per_s),))


_GUESSED_FAMILIES = {
    "product": _rate(4e12),       # what the kernels reach in small batches on an H200, without tuning
    "elementwise": _rate(1e12),   # an assumption: a fifth of the 4.8 TB/s of an H200's memory
}

GUESSED = Profile(
    adapter="guessed",
    run_s=110e-6,                 # submit, wait and map of an empty run: 0.11 ms on an H200
    dispatch_s=5e-6,              # GPU time of a small dependent dispatch and its recording: 2.3-2.4 us and 1-3 us on an H200
    upload=_rate(5e9),            # the megabyte range of an H200 (4 MB up: 0.41 ms, an empty run included)
    download=_rate(5e9),          # likewise (4 MB down: 0.55 ms)
    families=_GUESSED_FAMILIES)
"""What is assumed where nothing was measured."""
