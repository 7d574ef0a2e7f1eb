"""The profile of an adapter: the time of a run, a dispatch and a transfer, and the rate of each family of kernels.
Plain data.

`calibration/` measures it; the partitioner reads it, and an adapter that is opened gets its figures of it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ort_gpu_ep import store
from ort_gpu_ep.kernels.cost_parameters import INTEGRATED_DISPATCH_S, INTEGRATED_ROOFS, Figures, Roofs, figures_of
from ort_gpu_ep.kernels.records import BY_FLOPS, FAMILIES, Work, work_of
from ort_gpu_ep.kernels.registry import BoundNode, Lowering, tensors_of

SIBLING: Mapping[str, str] = {
    "matvec": "product",
    "direct": "product",
    "recurrent": "matvec",
    "recurrent_held": "recurrent",
    "recurrent_steps": "matvec",
    "movement": "elementwise",
    "gather": "movement",
    "reduction": "elementwise",
    "reduction_held": "reduction",
    "pool": "reduction",
    "sorting": "reduction",
}
"""Family -> the one that stands in for it where it was not measured: the nearest that is counted in the same unit."""


@dataclass(frozen=True)
class Curve:
    """Seconds over an amount, as measured.

    points: (amount, seconds), both positive, amounts ascending, seconds not descending. Raises ValueError where they
    are not.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        flat = [number for point in self.points for number in point]
        if not flat or not all(math.isfinite(n) and n > 0 for n in flat):
            raise ValueError(f"curve {self.points}: expected one point or more of positive numbers")
        for (amount, seconds), (more, longer) in zip(self.points, self.points[1:], strict=False):
            if amount >= more or seconds > longer:
                raise ValueError(
                    f"curve: after {amount:g} in {seconds:g} s, got {more:g} in {longer:g} s; expected more, in "
                    f"no less time"
                )

    @classmethod
    def through(cls, measured: Iterable[tuple[float, float]], least_s: float = 1e-8) -> Curve:
        """The curve of noisy measurements: a larger amount takes at least as long as a smaller one, and nothing less
        than least_s."""
        points: dict[float, float] = {}
        floor_s = least_s
        for amount, seconds in sorted(measured):
            points[amount] = floor_s = max(seconds, floor_s)
        return cls(tuple(points.items()))

    def at(self, amount: float) -> float:
        """Seconds for an amount: straight in logarithms between two points, the first's below them, in proportion to
        the last above."""
        first, last = self.points[0], self.points[-1]
        if amount <= first[0]:
            return first[1]
        if amount >= last[0]:
            return last[1] * amount / last[0]
        right = bisect.bisect_right(self.points, amount, key=lambda point: point[0])
        (x0, y0), (x1, y1) = self.points[right - 1], self.points[right]
        return float(y0 * (y1 / y0) ** (math.log(amount / x0) / math.log(x1 / x0)))

    def at_best(self, amount: float) -> float:
        """Seconds for an amount at the best rate measured, however small it is."""
        return amount * min(seconds / much for much, seconds in self.points)


@dataclass(frozen=True)
class Profile:
    """Times of one adapter.

    run_s: an (almost) empty run with its readback: submit, wait, 256 bytes. dispatch_s: one more small kernel in a run.
    upload, download: seconds that bytes take in addition to an empty run. families: seconds of work (without its
    dispatch) over floating-point operations or bytes, see kernels.BY_FLOPS; those not there are answered by SIBLING,
    and where there is none yet, what is assumed. roofs: the most that a kernel can do.
    """

    adapter: str
    run_s: float
    dispatch_s: float
    upload: Curve
    download: Curve
    families: Mapping[str, Curve] = field(default_factory=dict)
    roofs: Roofs = field(default_factory=Roofs)

    def __post_init__(self) -> None:
        if not all(math.isfinite(s) and s > 0 for s in (self.run_s, self.dispatch_s)):
            raise ValueError(
                f"profile of {self.adapter}: run_s {self.run_s}, dispatch_s {self.dispatch_s}: expected "
                f"positive numbers"
            )
        if not all(math.isfinite(r) and r >= 0 for r in astuple(self.roofs)):
            raise ValueError(f"profile of {self.adapter}: {self.roofs}: expected numbers of at least 0")
        unknown = set(self.families) - set(FAMILIES)
        if unknown:
            raise ValueError(
                f"profile of {self.adapter}: unknown families {sorted(unknown)}; there are {sorted(FAMILIES)}"
            )
        object.__setattr__(self, "families", MappingProxyType(dict(self.families)))

    def upload_s(self, nbytes: int) -> float:
        return self.upload.at(nbytes)

    def download_s(self, nbytes: int) -> float:
        return self.download.at(nbytes)

    def node_s(self, lowering: Lowering, bound: BoundNode) -> float:
        """Predicted seconds of a node on the GPU: for each kernel that a run dispatches, that and its work. Raises
        UnsupportedNodeError."""
        works = [work_of(k, tensors_of(k, lowering, bound)) for k in lowering.per_run]
        return math.fsum(work.dispatches * self.dispatch_s + self.work_s(work) for work in works)

    def work_s(self, work: Work) -> float:
        """Predicted seconds of a kernel without its dispatch: its operations or its bytes, whichever take longer.

        What its family is not measured over goes at the best rate of a plain one that is: `direct` for operations,
        `elementwise` for bytes. Recurrent layers are measured step by step; a step of another family takes as long as a
        small dispatch at least.
        """
        own = self.curve(work.family)
        if work.family in BY_FLOPS:
            return max(work.steps * own.at(work.flops / work.steps), self.curve("elementwise").at_best(work.nbytes))
        return max(own.at(work.nbytes), self.curve("direct").at_best(work.flops), (work.steps - 1) * self.dispatch_s)

    def curve(self, family: str) -> Curve:
        """The curve of a family, or that of the nearest sibling that was measured."""
        while family not in self.families and family in SIBLING:
            family = SIBLING[family]
        return self.families.get(family) or self.assumed[family]

    @property
    def assumed(self) -> Mapping[str, Curve]:
        """Families where they were not measured: as on an H200, but at most REACHED of the roofs, where those are
        known."""
        roofs = {"product": self.roofs.flops_per_s, "elementwise": self.roofs.nbytes_per_s}
        return {family: _rate(min(per_s, REACHED * roofs[family] or per_s)) for family, per_s in _GUESSED_PER_S.items()}

    @property
    def is_whole(self) -> bool:
        """Whether families of kernels were measured, too."""
        return bool(self.families)

    @property
    def has_roofs(self) -> bool:
        """Whether all of them were measured."""
        return all(astuple(self.roofs))

    @property
    def figures(self) -> Figures | None:
        """What kernels are chosen by; None without roofs."""
        roofs = self.roofs
        if not roofs.flops_per_s or not roofs.nbytes_per_s:
            return None
        return figures_of(roofs, self.dispatch_s)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; `from_dict` reads it."""
        return {
            "adapter": self.adapter,
            "run_s": self.run_s,
            "dispatch_s": self.dispatch_s,
            "upload": [list(p) for p in self.upload.points],
            "download": [list(p) for p in self.download.points],
            "families": {name: [list(p) for p in curve.points] for name, curve in self.families.items()},
            "roofs": asdict(self.roofs),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """Raises: KeyError, TypeError, ValueError, AttributeError for what `as_dict` did not write."""
        return cls(
            str(data["adapter"]),
            float(data["run_s"]),
            float(data["dispatch_s"]),
            _curve(data["upload"]),
            _curve(data["download"]),
            {str(name): _curve(points) for name, points in data["families"].items()},
            Roofs(**{name: float(value) for name, value in data["roofs"].items()}),
        )


def path_of(cache_path: str, key: str) -> Path:
    """Where the profile of an adapter is kept. key: of the adapter and its driver, health.verdicts.key_of."""
    return Path(cache_path) / "profiles" / f"{key}.json"


def read(cache_path: str, key: str) -> Profile | None:
    """The profile of an adapter as it was last measured; None where it was not."""
    return store.read(path_of(cache_path, key), lambda data: Profile.from_dict(data["profile"]))


def write(cache_path: str, key: str, profile: Profile) -> None:
    store.write(path_of(cache_path, key), {"profile": profile.as_dict()})


def _curve(points: Any) -> Curve:
    return Curve(tuple((float(amount), float(seconds)) for amount, seconds in points))


def _rate(per_s: float) -> Curve:
    """In proportion from the first unit on."""
    return Curve(((1.0, 1.0 / per_s),))


_GUESSED_PER_S = {
    "product": 4e12,  # what the kernels reach in small batches on an H200, without tuning
    "elementwise": 1e12,  # an assumption: a fifth of the 4.8 TB/s of an H200's memory
}

REACHED = 1 / 3
"""Of its roofs, what a GPU that is filled by less work than an H200 is taken to reach."""

GUESSED = Profile(
    adapter="guessed",
    run_s=110e-6,  # submit, wait and map of an empty run: 0.11 ms on an H200
    # GPU time of a small dependent dispatch and its recording: 2.3-2.4 us and 1-3 us on an H200
    dispatch_s=5e-6,
    upload=_rate(5e9),  # the megabyte range of an H200 (4 MB up: 0.41 ms, an empty run included)
    download=_rate(5e9),  # likewise (4 MB down: 0.55 ms)
    families={family: _rate(per_s) for family, per_s in _GUESSED_PER_S.items()},
)
"""What is assumed where nothing was measured."""


def guessed_for(kind: str) -> Profile:
    """What is assumed of an adapter of a type (AdapterInfo.type) of which nothing was measured."""
    return (
        replace(GUESSED, dispatch_s=INTEGRATED_DISPATCH_S, families={}, roofs=INTEGRATED_ROOFS)
        if kind == "integrated"
        else GUESSED
    )
