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
"""Queries and keys for which a fragment is worth its zeros."""
MAX_HEAD = 128
"""Elements of a head: more do not fit into registers."""
MOST_CHUNK = 64
"""Elements of a value that go through workgroup memory at a time."""

record(
    SHADER,
    "product",
    loop_bound=lambda k: ceil_div(k["SK"], k["BK"]) + 1,
    flops=lambda k: 2 * k["BATCH"] * k["HEADS"] * k["SQ"] * k["SK"] * (k["D"] + k["DV"]),
)


@dataclass(frozen=True, slots=True)
class UnitForm:
    """subgroups: of 32 invocations and 16 queries each, or what that makes of others. keys: of a step."""

    subgroups: int
    keys: int

    @property
    def name(self) -> str:
        return f"units, {self.queries} queries, {self.keys} keys"

    @property
    def queries(self) -> int:
        return 16 * self.subgroups

    @property
    def workgroup_size(self) -> int:
        return 32 * self.subgroups

    def divides(self, subgroup: int, fragment: Fragment, chunk: int) -> bool:
        """Whether each subgroup has whole fragments."""
        sharing = max(1, 2 * fragment.n // subgroup)
        rows = subgroup * sharing // 2
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
        line = width // 8 + 1
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
            for rows, elements in ((self.queries, width), (self.keys, width), (self.keys, chunk))
        )


FORMS = (UnitForm(4, 64),)


def chunk_of(values: int) -> int:
    """Elements of a value that go through workgroup memory at a time."""
    return max(n for n in range(16, MOST_CHUNK + 1, 16) if values % n == 0)


def forms_of(limits: Limits, dtype: DType, queries: int, keys: int, width: int, values: int) -> list[UnitForm]:
    """Those that may be taken. queries, keys: counts, hints of what a run brings; width, values: elements of a head."""
    plain = dtype is FLOAT16
    if not (plain or limits.precision in (TF32, "f16acc")) or no_attention_units(limits) or min(queries, keys) < LEAST:
        return []
    if width % 16 or values % 16 or max(width, values) > MAX_HEAD:
        return []
    chunk, fragment, subgroup = chunk_of(values), limits.fragment, limits.unit_subgroup(FRAGMENTS)
    assert fragment is not None, "no_attention_units says so"
    return [
        form
        for form in FORMS
        if form.loads_whole(width, chunk)
        and form.divides(subgroup, fragment, chunk)
        and form.workgroup_size <= limits.max_invocations
        and form.workgroup_nbytes(width, chunk) <= limits.max_workgroup_nbytes
    ]


def estimate_ns(form: UnitForm, target: Target, heads: int, queries: int, keys: int, elements: int) -> float:
    """heads: of all batches. elements: of a query and a value. A step of a workgroup takes its clocks of a compute
    unit, or as long as its barriers and loads.
    """
    by = target.figures
    groups, steps = heads * ceil_div(queries, form.queries), ceil_div(keys, form.keys)
    share = form.queries * form.keys * elements / (64 * 64 * 128)
    clocks = max(ceil_div(groups, by.units) * share * by.matrix_attention_clocks, by.matrix_attention_wait_clocks)
    return float(
        by.dispatch_ns + by.matrix_launch_ns + (steps * clocks + by.matrix_attention_wait_clocks) / by.clocks_per_ns
    )


def consts_of(form: UnitForm, limits: Limits, dtype: DType, width: int, values: int) -> dict[str, Const]:
    """What the shader has beside what attention.wgsl has."""
    chunk, subgroup = chunk_of(values), limits.unit_subgroup(FRAGMENTS)
    own: dict[str, Const] = {} if subgroup == USUAL_SUBGROUP else {"SUBGROUP": subgroup}
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
