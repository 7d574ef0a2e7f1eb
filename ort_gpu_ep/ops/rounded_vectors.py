"""Products of one vector with 4-bit weights where the model lets it be rounded to bytes (MatMulNBits, accuracy_level 4),
in one dispatch: each workgroup rounds the vector for itself. Weights are read as the model stores them. Of several
vectors that takes longer than their products: byte_vectors.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.types import FLOATS, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, kernel
from ort_gpu_ep.kernels.target import Choice, Target
from ort_gpu_ep.ops.packed_operands import Weights

SHADER = "rounded_matvecs.wgsl"
UNIT = 32
"""Elements that are rounded by one scale, and codes that an invocation reads at a time."""
TEAM_LANES, TEAMS, LANES = (256, 32), 4, 512
"""Invocations that share a row at most, and what they are a multiple of. Of a workgroup at most: teams, and invocations
where so many teams have fewer."""
UNDER_WAY, ITERS = 4, 4
"""Rows, of all matrices, that an invocation of LANES reads at a time, and how often it takes so many, at most."""
UNIT_LANES = 1400
"""Invocations that more rows and more iterations leave to each compute unit, at least. Measured on an H200, products in
passes of their own: 4096 x 4096 take 8.7 us with two rows a team, 9.7 with four; 2 x 14336 x 4096 26 us with two of each,
28.3 with four, 30.5 with two in two iterations, which take registers; 4096 x 14336, where a row takes two rounds anyhow,
17.4 us with two rows in two iterations, 20.2 with four rows, 21.2 in workgroups of 448; 2048 x 8192 8.7 us with two rows,
10.2 with one."""

record(
    SHADER,
    "matvec",
    flops=lambda k: 2 * (k["N_0"] + k["N_1"] + k["N_2"]) * k["K"],
    loop_bound=lambda k: (
        k["ITERS"] * (k["ROUNDS"] + 1)
        + ceil_div(k["ROWS"] * k["ITERS"] * k["TEAMS"], k.workgroup_size) * (1 + k.workgroup_size // 2)
    ),
)


def can_round(node: BoundNode, matrices: Sequence[Weights]) -> bool:
    """Whether vectors can meet the matrices as bytes: 4-bit codes in blocks of whole units as the model stores them,
    and zero points that are codes."""
    return node.input(0).dtype in FLOATS and all(
        w.bits == 4
        and w.block >= UNIT
        and w.block % UNIT == 0
        and w.k % w.block == 0
        and w.outer == w.k
        and w.inner == w.groups == 1
        and not (w.codebook or w.signed or w.swapped)
        and (w.zp is None or w.zp_bits == 4)
        for w in matrices
    )


def takes(node: BoundNode, matrices: Sequence[Weights]) -> bool:
    """Whether there is this form: a vector that fits into workgroup memory."""
    limits = node.target.limits
    return bool(
        can_round(node, matrices)
        and limits.allow(SHADER, "subgroup")
        and TEAM_LANES[1] <= limits.max_invocations
        and Shape.of(node.target, [matrices[0].rows], matrices[0].k, len(matrices)) is not None
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """How workgroups share the rows. team: invocations of a row. rows: of a team at a time. iters: how often. groups:
    workgroups."""

    team: int
    teams: int
    rows: int
    iters: int
    groups: int
    nbytes: int

    @property
    def size(self) -> int:
        return self.team * self.teams

    @classmethod
    def of(cls, target: Target, each: Sequence[int], k: int, wide: int) -> Shape | None:
        """each: rows of the matrices that have workgroups of their own. wide: matrices of a workgroup. None where the
        vector does not fit into a workgroup's memory."""
        limits, units = target.limits, target.figures.units
        most, step = TEAM_LANES
        sizes = range(step, min(most, limits.max_invocations) + 1, step)
        team = min(sizes, key=lambda size: (ceil_div(k // UNIT, size) * size, -size))  # the fewest idle turns

        def shape(rows: int, teams: int, iters: int) -> Shape:
            groups = sum(ceil_div(n, rows * teams * iters) for n in each)
            return cls(team, teams, rows, iters, groups, _memory(k, team * teams, rows * iters * wide))

        def fits(one: Shape) -> bool:
            return one.nbytes <= limits.max_workgroup_nbytes

        def last(shapes: Iterable[Shape]) -> Shape:
            """Of shapes with fewer and fewer workgroups, the last one that leaves each unit UNIT_LANES invocations, or
            the first."""
            first, *others = shapes
            return [first, *(one for one in others if fits(one) and one.groups * one.size >= UNIT_LANES * units)][-1]

        def doubled(most: int) -> list[int]:
            return [1 << n for n in range(max(most, 1).bit_length())]

        whole, rounds = limits.subgroup_size > 0 and team % limits.subgroup_size == 0, ceil_div(k // UNIT, team)
        teams = min(max(TEAMS, LANES // team), limits.max_invocations // team) if whole else 1
        alone = [one for n in doubled(teams) if fits(one := shape(1, n, 1)) and (n == 1 or one.groups >= units)]
        if not alone:
            return None
        chosen = alone[-1]
        rows = UNDER_WAY * min(LANES, chosen.size) // chosen.size // wide
        chosen = last(shape(n, chosen.teams, 1) for n in doubled(rows))
        return last(shape(chosen.rows, chosen.teams, n) for n in doubled(ITERS if rounds > 1 else 1))


def bytes_ns(target: Target, rows: int, k: int) -> float:
    """As packed_vectors.decoding_ns: of the codes, and of the elements of the vector, which each workgroup rounds."""
    by, shape = target.figures, Shape.of(target, [rows], k, 1)
    if shape is None:
        return math.inf
    clocks = rows * k * by.packed_bytes_clocks + shape.groups * k * by.packed_rounding_clocks
    return clocks / by.units / by.clocks_per_ns


def rounded_product(
    node: BoundNode,
    matrices: Sequence[Weights],
    outs: Sequence[TensorType],
    reads: Mapping[str, int | str],
    beside: bool,
    choice: Choice | None = None,
) -> Kernel:
    """reads: x, perhaps gamma, and biases c, c1, c2. beside: of two matrices, the second is an argument of the fused
    steps."""
    first, wide, norm = matrices[0], 2 if beside else 1, "gamma" in reads
    own = [w.rows for w in matrices[: 1 if beside else None]]
    shape = Shape.of(node.target, own, first.k, wide)
    if shape is None:
        raise UnsupportedNodeError(Code.LIMIT, f"{node.op}: a vector of {first.k} as bytes in a workgroup's memory")
    stored, sources = as_stored(matrices)
    consts: dict[str, Const] = {
        **stored,
        "ROWS": shape.rows,
        "ITERS": shape.iters,
        "ROUNDS": ceil_div(first.k // UNIT, shape.team),
        "TEAM": shape.team,
        "TEAMS": shape.teams,
        "WIDE": wide,
        "NORM": norm,
        "EPSILON": float(node.attr("epsilon") or 0.0) if norm else 0.0,
    }
    everything = {**reads, **sources}
    return kernel(
        SHADER,
        outs,
        consts=consts,
        groups=shape.groups,
        workgroup_size=shape.size,
        workgroup_nbytes=shape.nbytes,
        reads=everything,
        writes={f"y{i or ''}": i for i in range(len(outs))},
        vectors=[n for n in everything if n in ("x", "gamma") or n.startswith("w")],
        features=("subgroup",),
        choice=choice,
    )


def as_stored(matrices: Sequence[Weights]) -> tuple[dict[str, Const], dict[str, int | str]]:
    """The constants by which shaders know matrices of one K as the model stores them (stored_codes.wgsl), and what they
    read."""
    first, sources = matrices[0], dict[str, int | str]()
    for i, w in enumerate(matrices):
        sources |= {f"w{i or ''}": w.source, f"table{i or ''}": w.table}
        sources |= {f"zp{i or ''}": w.zp} if w.zp is not None else {}
    consts: dict[str, Const] = {
        "K": first.k,
        "BLOCK": first.block,
        "BLOCKS": first.k // first.block,
        "POINTS": first.zp is not None,
        "ZP_ROW": first.zp_strides[0],
        "ZERO": float(first.zero),
        "MATRICES": len(matrices),
        **{f"N_{i}": n for i, n in enumerate([*(w.rows for w in matrices), 0, 0][:3])},
    }
    return consts, sources


def _memory(k: int, size: int, sums: int) -> int:
    """Bytes of workgroup memory: bytes and numbers of the vector, `sums` and one of squares of each subgroup."""
    return k + 8 * (k // UNIT) + size // 4 * 4 * (sums + 1)
