"""Products of several vectors with 4-bit weights where the model lets the vectors be rounded to bytes
(MatMulNBits, accuracy_level 4), in two dispatches: the vectors as bytes, and the products, of which an invocation has 32
elements of the vectors in registers, and goes along the rows. Weights are read as the model stores them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ort_gpu_ep.ir.symbolic import hint, is_symbolic
from ort_gpu_ep.ir.types import FLOAT32, UINT32, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, kernel
from ort_gpu_ep.kernels.target import Choice, Target
from ort_gpu_ep.ops.packed_operands import Weights
from ort_gpu_ep.ops.rounded_vectors import UNIT, as_stored, can_round, rounded_product

ROUNDED_BEFORE = "vectors as bytes, rounded before"
"""The form of a product."""
SHADER, ROUNDING = "byte_vectors.wgsl", "round_vectors.wgsl"
COLUMNS = 8
"""Vectors of an invocation, at most, and where their number is open."""
ROWS = 2
"""Rows, of all matrices, that an invocation reads at a time."""
RESIDENT = 1024
"""Invocations that a compute unit is to have: each workgroup gets as many rows as that takes. Measured on an H200
with four vectors, four layers of an 8B model: 371 us, and with four rows at a time 396 to 402, with 1,536 and 2,048
invocations 395 and 380; with one vector, which a workgroup rounds for itself (rounded_vectors.py), 281."""
MOST_ITERS = 32
"""How often a workgroup takes rows, at most."""
LEAST_SUBGROUP, MOST_SUBGROUP = 4, 128
"""Invocations of a subgroup, where nobody knows how many."""
ROUNDING_LANES, TURNS = 256, 4
"""round_vectors.wgsl: invocations of a workgroup, each with eight elements. For a normalization a workgroup has a whole
vector, and more invocations where each would have more than TURNS eights."""

record(
    SHADER,
    "matvec",
    flops=lambda k: 2 * (k["N_0"] + k["N_1"] + k["N_2"]) * k["K"] * k["COLS"],
    loop_bound=lambda k: (
        8 * k["ITERS"] + ceil_div(k["ROWS"] * k["ITERS"] * k["COLS"], k.workgroup_size) * (1 + k["PARTS"])
    ),
)
record(ROUNDING, "reduction_held", loop_bound=lambda k: k.workgroup_size // 4)


def takes(node: BoundNode, matrices: Sequence[Weights]) -> bool:
    """Whether there is this form."""
    limits = node.target.limits
    return (
        can_round(node, matrices)
        and limits.allow(SHADER, "subgroup")
        and limits.allow(ROUNDING, "subgroup")
        and _size(node.target, matrices[0].k) <= limits.max_invocations
    )


def _size(target: Target, k: int) -> int:
    """Invocations that have the units of a row: each subgroup has a power of two."""
    units, whole = k // UNIT, target.limits.subgroup_size or MOST_SUBGROUP
    return ceil_div(units, whole) * whole if units > whole else max(LEAST_SUBGROUP, 1 << (units - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Shape:
    """How workgroups share the rows. size: invocations, a unit each. columns: vectors. rows: of each matrix at a time.
    iters: how often. parts: subgroups at most. groups: workgroups that have the same vectors."""

    size: int
    columns: int
    rows: int
    iters: int
    parts: int
    groups: int

    def nbytes(self, wide: int) -> int:
        """Of workgroup memory. wide: matrices of a workgroup."""
        return 4 * self.parts * self.iters * self.rows * wide * self.columns

    @classmethod
    def of(cls, target: Target, each: Sequence[int], k: int, count: int, wide: int) -> Shape:
        """each: rows of the matrices that have workgroups of their own. wide: matrices of a workgroup."""
        limits, size, rows = target.limits, _size(target, k), ROWS // wide
        columns = ceil_div(count, ceil_div(count, COLUMNS))
        parts = ceil_div(size, limits.subgroup_size or LEAST_SUBGROUP)
        slots, turns = target.figures.units * max(1, RESIDENT // size), sum(ceil_div(n, rows) for n in each)
        room = limits.max_workgroup_nbytes // (4 * parts * rows * wide * columns)
        iters = max(1, min(MOST_ITERS, room, ceil_div(turns, slots)))
        return cls(size, columns, rows, iters, parts, sum(ceil_div(n, rows * iters) for n in each))


def estimate_ns(target: Target, rows: int, k: int, count: int) -> float:
    """Of both dispatches: the second reads the codes, or multiplies."""
    by = target.figures
    groups = ceil_div(count, COLUMNS)
    clocks = max(by.packed_bytes_clocks, ceil_div(count, groups) * by.packed_dot_clocks)
    return float(by.dispatch_ns + groups * rows * k * clocks / by.units / by.clocks_per_ns)


def lower_rounded(
    node: BoundNode,
    matrices: Sequence[Weights],
    outs: Sequence[TensorType],
    vectors: int,
    reads: Mapping[str, int | str],
    beside: bool,
    choice: Choice | None = None,
) -> Lowering:
    """vectors: their number, which may be open; one vector is rounded by each workgroup for itself (rounded_vectors.py).
    reads: x, perhaps gamma, and biases c, c1, c2. beside: of two matrices, the second is an argument of the fused
    steps."""
    if hint(vectors) == 1:
        return Lowering(tuple(outs), (rounded_product(node, matrices, outs, reads, beside, choice),))
    first, wide = matrices[0], 2 if beside else 1
    count = COLUMNS if is_symbolic(vectors) else vectors
    shape = Shape.of(node.target, [w.rows for w in matrices[: 1 if beside else None]], first.k, count, wide)
    units, column_groups = first.k // UNIT, ceil_div(vectors, shape.columns)
    of_x = {name: reads[name] for name in ("x", "gamma") if name in reads}
    stored, codes_of = as_stored(matrices)
    consts: dict[str, Const] = {
        **stored,
        "COLS": shape.columns,
        "COLUMN_GROUPS": column_groups,
        "COUNT": vectors,
        "ROWS": shape.rows,
        "ITERS": shape.iters,
        "PARTS": shape.parts,
        "WIDE": wide,
    }
    biases = {name: source for name, source in reads.items() if name not in of_x}
    sources: dict[str, int | str] = {"x": "codes", "numbers": "numbers", **codes_of, **biases}
    product = kernel(
        SHADER,
        outs,
        consts=consts,
        groups=shape.groups * column_groups,
        workgroup_size=shape.size,
        workgroup_nbytes=shape.nbytes(wide),
        reads=sources,
        writes={f"y{i or ''}": i for i in range(len(outs))},
        vectors=[name for name in sources if name == "x" or name.startswith("w")],
        features=("subgroup",),
        choice=choice,
    )
    codes, numbers = TensorType(UINT32, (vectors, 2, 4 * units)), TensorType(FLOAT32, (vectors, 2, units))
    rounding = _rounding(node, first.k, vectors, of_x, (codes, numbers))
    return Lowering(tuple(outs), (rounding, product), (("codes", codes), ("numbers", numbers)))


def _rounding(
    node: BoundNode, k: int, vectors: int, of_x: Mapping[str, int | str], outs: tuple[TensorType, TensorType]
) -> Kernel:
    norm, eights, most = "gamma" in of_x, k // 8, node.target.limits.max_invocations
    size = ROUNDING_LANES if not norm else min(most, max(ROUNDING_LANES, ceil_div(eights, TURNS)) // 32 * 32)
    turns = 1 if not norm else ceil_div(eights, size)
    shares = ceil_div(eights, size * turns)
    return kernel(
        ROUNDING,
        outs,
        consts={
            "K": k,
            "NORM": norm,
            "EPSILON": float(node.attr("epsilon") or 0.0) if norm else 0.0,
            "SHARES": shares,
            "TURNS": turns,
        },
        groups=vectors * shares,
        workgroup_size=size,
        workgroup_nbytes=size if norm else 0,
        reads=of_x,
        writes={"codes": "codes", "numbers": "numbers"},
        vectors=tuple(of_x),
        features=("subgroup",),
    )
