"""Attention in register tiles (attention_tiles.wgsl): a form beside those of attention.wgsl, for many queries and
keys."""

from __future__ import annotations

from dataclasses import dataclass

from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.kernels.problems import normal, problem
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import Const
from ort_gpu_ep.kernels.target import Target

SHADER = "attention_tiles.wgsl"
LEAST = 32
"""Queries and keys: with fewer, most of a tile would be empty."""
OTHER_REGISTERS = 40


@dataclass(frozen=True, slots=True)
class TileForm:
    """queries, keys: of a workgroup's step. own: queries of a lane. pieces: in which powers go through workgroup
    memory."""

    queries: int
    keys: int
    own: int = 4
    pieces: int = 1

    @property
    def name(self) -> str:
        pieces = f", {self.pieces} pieces" if self.pieces > 1 else ""
        return f"tile {self.queries} x {self.keys}, {self.own} a lane{pieces}"

    @property
    def across(self) -> int:
        """Lanes beside each other over keys, which have four each."""
        return self.keys // 4

    @property
    def workgroup_size(self) -> int:
        return self.across * (self.queries // self.own)

    def own_values(self, dv: int) -> int:
        """Vectors of a value that a lane has sums of, for each of its queries."""
        return ceil_div(dv, self.across)

    def registers(self, dq: int, dv: int) -> int:
        """Of a lane: its scores or what it multiplies, its sums, and what is under way."""
        loads = ceil_div(self.keys * max(dq, dv), self.workgroup_size)
        return 4 * (self.own * (2 + self.own_values(dv)) + loads + max(4, self.own_values(dv))) + OTHER_REGISTERS

    def workgroup_nbytes(self, dq: int, dv: int) -> int:
        """Queries; keys or values; largest scores or powers."""
        brought = max(dq * (self.keys + 1), dv * self.keys)
        passed = max(self.across // self.pieces * (self.queries + 1), self.workgroup_size * self.own // 4)
        return 16 * (dq * (self.queries + 1) + brought + passed)


FORMS = (
    TileForm(64, 32, 4, 2),
    TileForm(64, 32),
    TileForm(64, 32, 8, 2),
    TileForm(32, 32, 4, 2),
    TileForm(32, 64, 4, 2),
    TileForm(64, 64, 4, 2),
    TileForm(128, 32, 8, 2),
)


record(
    SHADER,
    "product",
    loop_bound=lambda k: (
        ceil_div(k["BQ"] * k["DQ"], k.workgroup_size) + (ceil_div(k["SK"], k["BK"]) + 1) * (k["DQ"] + k["BK"] // 4 + 2)
    ),
    problems=[
        problem(
            "Attention",
            23,
            normal(2, 3, 70, 8),
            normal(2, 3, 45, 8),
            normal(2, 3, 45, 12),
            forms=[form.name for form in FORMS],
        ),
        problem(
            "Attention",
            23,
            *[normal(1, 150, 64)] * 3,
            q_num_heads=2,
            kv_num_heads=2,
            is_causal=1,
            forms=[FORMS[0].name],
        ),
    ],
    flops=lambda k: 8 * k["BATCH"] * k["HEADS"] * k["SQ"] * k["SK"] * (k["DQ"] + k["DV"]),
)


def forms_of(target: Target, queries: int, keys: int, dq: int, dv: int) -> list[TileForm]:
    """Those that may be worth it. queries, keys: counts, which a run may bring; dq, dv: vectors of a head."""
    limits, figures = target.limits, target.figures
    if min(hint(queries), hint(keys)) < LEAST or not limits.allow(SHADER):
        return []
    return [
        form
        for form in FORMS
        if form.workgroup_size <= limits.max_invocations
        and form.workgroup_nbytes(dq, dv) <= limits.max_workgroup_nbytes
        and form.registers(dq, dv) <= min(figures.lane_registers, figures.registers // form.workgroup_size)
    ]


def estimate_ns(form: TileForm, target: Target, heads: int, queries: int, keys: int, dq: int, dv: int) -> float:
    """heads: of all batches. A step of a workgroup takes its multiply-adds at the tile's rate, or as long as its
    barriers."""
    by = target.figures
    groups, steps = heads * ceil_div(queries, form.queries), ceil_div(keys, form.keys)
    elements = dq + form.own_values(dv) * form.across
    share = form.queries * form.keys * elements / (64 * 32 * 32)
    clocks = max(ceil_div(groups, by.units) * share * by.attention_tile_clocks, by.attention_tile_wait_clocks)
    return float(by.dispatch_ns + by.attention_launch_ns + steps * clocks / by.clocks_per_ns)


def consts_of(form: TileForm, dq: int, dv: int) -> dict[str, Const]:
    """What the shader has beside what attention.wgsl has."""
    return {
        "DQ": dq,
        "DV": dv,
        "BQ": form.queries,
        "BK": form.keys,
        "RQ": form.own,
        "PIECES": form.pieces,
        "TEAM": form.workgroup_size,
        "TX": form.across,
        "TY": form.queries // form.own,
    }
