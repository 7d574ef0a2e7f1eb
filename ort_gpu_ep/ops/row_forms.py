"""Kernels that keep a row in registers (softmax_rows.wgsl, normalize_rows.wgsl): how invocations share rows that lie
together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ort_gpu_ep.ir.symbolic import hint, is_symbolic
from ort_gpu_ep.ir.types import Shape
from ort_gpu_ep.kernels.records import ceil_div
from ort_gpu_ep.kernels.registry import Const
from ort_gpu_ep.kernels.target import Target
from ort_gpu_ep.ops.reduce import Rows

MOST_HELD = 8
"""Units of a row that an invocation keeps; of a longer row it reads the others anew in each pass."""

OTHER_REGISTERS = 32
"""Of an invocation, besides the units that it keeps."""

AGAIN = 3.2
"""Loads that are not kept, in two more passes, to one that is: they wait for each other."""

TEAMS, LANES = 4, 32
"""Rows of a workgroup that has several, and its invocations for each of them."""

WIDE = (128, 256, 512, 1024)
"""Invocations of a workgroup that has one row."""


@dataclass(frozen=True, slots=True)
class RowForm:
    """teams: of a workgroup, each with a row at a time. held: units that an invocation keeps."""

    teams: int
    workgroup_size: int
    held: int

    def consts(self, target: Target, shader: str) -> dict[str, Const]:
        return {"PER_GROUP": self.teams, "HELD": self.held, "SUBGROUPS": bool(self.features(target, shader))}

    @property
    def registers(self) -> int:
        """Of an invocation."""
        return 4 * self.held + OTHER_REGISTERS

    def groups(self, count: int) -> int:
        return ceil_div(count, self.teams)

    def features(self, target: Target, shader: str) -> tuple[str, ...]:
        return ("subgroup",) if target.limits.allow(shader, "subgroup") else ()

    def workgroup_nbytes(self, target: Target, shader: str) -> int:
        return 0 if self.teams > 1 and self.features(target, shader) else 4 * self.workgroup_size


def forms(target: Target, units: int) -> dict[str, RowForm]:
    """By name, those for rows of so many units: a subgroup a row, or a workgroup."""
    by_name = {"fours": RowForm(TEAMS, TEAMS * LANES, ceil_div(units, LANES))} if units <= LANES * MOST_HELD else {}
    for size in WIDE:
        form = RowForm(1, size, min(MOST_HELD, ceil_div(units, size)))
        if (
            size <= target.limits.max_invocations
            and units > size // 2
            and form.registers * size <= target.figures.registers
        ):
            by_name[f"wide {size}"] = form
    return by_name


def estimates_ns(target: Target, found: Mapping[str, RowForm], count: int, units: int) -> dict[str, float]:
    """What a unit has at once, in turn: of a subgroup a row its rounds; of a workgroup a row its joining of sums, and
    its loads, or its share of the bytes.
    """
    return {
        name: _subgroups_ns(target, hint(count)) if form.teams > 1 else wide_ns(target, form, hint(count), units, 2)
        for name, form in found.items()
    }


def _subgroups_ns(target: Target, count: int) -> float:
    by = target.figures
    return float(by.normalize_fours_ns + by.normalize_round_ns * count / (by.unit_subgroups * by.units))


def wide_ns(target: Target, form: RowForm, count: int, units: int, moved: float) -> float:
    """Of so many workgroups with a row of units each, which they read and write that often; what they don't keep once
    more."""
    by, size = target.figures, form.workgroup_size
    waves, again = ceil_div(count * size, by.unit_lanes * by.units), max(0, ceil_div(units, size) - form.held)
    loads_ns = by.normalize_load_ns * waves * (form.held + AGAIN * again)
    bytes_ns = 16 * ceil_div(count, by.units) * (moved * units + again * size) * by.unit_byte_ns
    return float(by.normalize_fours_ns + by.normalize_lane_ns * size * waves + max(loads_ns, bytes_ns))


def any_ns(target: Target, rows: Rows) -> float:
    """Of the kernels that take every row: a pass over memory for each sum, element by element."""
    by = target.figures
    waves = ceil_div(hint(rows.count) * rows.team, by.unit_lanes * by.units)
    return float(by.normalize_any_ns + by.normalize_any_element_ns * hint(rows.length) / rows.team * waves)


def length_of(shape: Shape) -> int:
    """Of rows along all these axes, 0 where only a run knows."""
    return 0 if any(map(is_symbolic, shape)) else prod(shape)
