"""Attention on an adapter's matrix units (attention_units.wgsl): a form beside those of attention.wgsl, for many
queries and keys.

Only where a probe saw right results (kernels/target.py MATRIX_ATTENTION), and only for float16 models,
`precision=f16acc` and `tf32`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ort_gpu_ep.ir.types import FLOAT16, DType
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import Const
from ort_gpu_ep.kernels.target import (
    FRAGMENTS,
    MATRIX_ATTENTION,
    MATRIX_UNITS,
    SUBGROUP_MATRIX,
    TF32,
    USUAL_SUBGROUP,
    Fragment,
    Limits,
    Target,
    no_attention_units,
)
from ort_gpu_ep.ops.matrix_units import fragment_consts

SHADER = "attention_units.wgsl"
FEATURES = (FLOAT16.feature, "subgroup", SUBGROUP_MATRIX, MATRIX_UNITS, MATRIX_ATTENTION)
LEAST = 16
"""Queries, keys and elements of a head for which a fragment is worth its zeros."""
MAX_HEAD = {2: 128, 4: 256}
"""Elements of a head whose queries and sums fit into the registers of so many invocations of a query."""
MOST_CHUNK = 64
"""Elements of a value that go through workgroup memory at a time."""
CHUNK_COST = 16
"""A chunk of values takes as long as so many more elements: its barriers, and what waits for them."""
WIDE_FACTOR = 1.5
"""How much longer a step with four invocations of a query takes for the same products: it loads as many keys for half
the queries. Set with care, since no GPU has measured it."""

record(
    SHADER,
    "product",
    loop_bound=lambda k: ceil_div(k["SK"], k["BK"]) + 1,
    flops=lambda k: 2 * k["BATCH"] * k["HEADS"] * k["SQ"] * k["SK"] * (k["D"] + k["DV"]),
)


@dataclass(frozen=True, slots=True)
class UnitForm:
    """subgroups: of 32 invocations, or what that makes of others. keys: of a step. lanes: invocations of a query."""

    subgroups: int
    keys: int
    lanes: int = 2

    @property
    def name(self) -> str:
        return f"units, {self.queries} queries, {self.keys} keys"

    @property
    def queries(self) -> int:
        return self.workgroup_size // self.lanes

    @property
    def workgroup_size(self) -> int:
        return 32 * self.subgroups

    def takes(self, width: int, values: int) -> bool:
        """Whether it is the form with the fewest invocations of a query whose registers hold such a head."""
        return self.lanes == min((n for n, most in MAX_HEAD.items() if max(width, values) <= most), default=0)

    @property
    def step(self) -> int:
        """Elements that a query's invocations have at a time: two fours each."""
        return 8 * self.lanes

    def padded(self, width: int) -> int:
        """Elements of a query or a key in workgroup memory: zeros behind its end make whole fragments."""
        return ceil_div(width, self.step) * self.step

    def chunk(self, values: int) -> int:
        """Elements of a value that go through workgroup memory at a time: the most that divide it, or those whose
        last chunk, with zeros behind the value's end, costs least."""
        sizes = range(self.step, max(self.step, MOST_CHUNK) + 1, self.step)
        whole = [n for n in sizes if values % n == 0]
        return max(whole) if whole else min(sizes, key=lambda n: ceil_div(values, n) * (n + CHUNK_COST))

    def divides(self, subgroup: int, fragment: Fragment, chunk: int) -> bool:
        """Whether each subgroup has whole fragments."""
        sharing = max(1, self.lanes * fragment.n // subgroup)
        rows = subgroup * sharing // self.lanes
        return (
            self.queries % rows
            == rows % fragment.n
            == self.keys % (sharing * fragment.m)
            == chunk % (sharing * fragment.m)
            == 0
            and self.keys % fragment.k == 0
        )

    def room(self, width: int, chunk: int) -> int:
        """Vectors of 16 bytes: of queries, keys, scores, powers with values, sums, of which each takes the place of the
        one before."""
        powers = self.queries * (self.keys // 8 + 1) + self.keys * (chunk // 8 + 1)
        line = self.padded(width) // 8 + 1
        return max(
            self.queries * line,
            self.keys * line,
            self.queries * (self.keys // 4 + 2),
            powers,
            self.queries * (chunk // 4 + 2),
        )

    def workgroup_nbytes(self, width: int, chunk: int) -> int:
        return 16 * self.room(width, chunk) + 12

    def loads_whole(self, width: int, chunk: int) -> bool:
        """Whether invocations have equally many vectors of what they bring in."""
        return all(
            rows * elements % (8 * self.workgroup_size) == 0
            for rows, elements in (
                (self.queries, self.padded(width)),
                (self.keys, self.padded(width)),
                (self.keys, chunk),
            )
        )


FORMS = (UnitForm(4, 64), UnitForm(4, 32, 4))


def forms_of(limits: Limits, dtype: DType, queries: int, keys: int, width: int, values: int) -> list[UnitForm]:
    """Those that may be taken. queries, keys: counts, hints of what a run brings; width, values: elements of a head."""
    plain = dtype is FLOAT16
    if not (plain or limits.precision in (TF32, "f16acc")) or no_attention_units(limits):
        return []
    if min(queries, keys, width, values) < LEAST:
        return []
    fragment, subgroup = limits.fragment, limits.unit_subgroup(FRAGMENTS)
    assert fragment is not None, "no_attention_units says so"
    return [
        form
        for form in FORMS
        if form.takes(width, values)
        and form.loads_whole(width, form.chunk(values))
        and form.divides(subgroup, fragment, form.chunk(values))
        and form.workgroup_size <= limits.max_invocations
        and form.workgroup_nbytes(width, form.chunk(values)) <= limits.max_workgroup_nbytes
    ]


def estimate_ns(form: UnitForm, target: Target, heads: int, queries: int, keys: int, width: int, values: int) -> float:
    """heads: of all batches. width, values: elements of a head, which count with the zeros behind them. A step of a
    workgroup takes its clocks of a compute unit, or as long as its barriers and loads.
    """
    by, chunk = target.figures, form.chunk(values)
    groups, steps = heads * ceil_div(queries, form.queries), ceil_div(keys, form.keys)
    elements = (form.padded(width) + ceil_div(values, chunk) * chunk) * (WIDE_FACTOR if form.lanes > 2 else 1)
    share = form.queries * form.keys * elements / (64 * 64 * 128)
    clocks = max(ceil_div(groups, by.units) * share * by.matrix_attention_clocks, by.matrix_attention_wait_clocks)
    return float(
        by.dispatch_ns + by.matrix_launch_ns + (steps * clocks + by.matrix_attention_wait_clocks) / by.clocks_per_ns
    )


def consts_of(form: UnitForm, limits: Limits, dtype: DType, width: int, values: int) -> dict[str, Const]:
    """What the shader has beside what attention.wgsl has."""
    chunk, subgroup = form.chunk(values), limits.unit_subgroup(FRAGMENTS)
    own: dict[str, Const] = {} if subgroup == USUAL_SUBGROUP else {"SUBGROUP": subgroup}
    if form.lanes > 2:
        own["LANES"] = form.lanes
    return {
        **fragment_consts(limits),
        **own,
        "D": width,
        "DV": values,
        "CHUNK": chunk,
        "BK": form.keys,
        "ROOM": form.room(width, chunk),
        "SCALED": limits.precision == TF32 and dtype is not FLOAT16,
        "HALVES": dtype is FLOAT16,
    }
