"""Products of few vectors with packed weights where the model lets the vectors be rounded to bytes: the counterpart of rounded_products.py.

The vectors are rounded where they are read, of each 32 elements the largest to 127, and the weights are read as the model stores them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ort_gpu_ep.ir.types import FLOATS, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Lowering, kernel
from ort_gpu_ep.kernels.target import Target
from ort_gpu_ep.ops.packed_operands import Weights
from ort_gpu_ep.ops.packed_vectors import closing_loops, sums_of_workgroup

SHADER = "rounded_matvecs.wgsl"
PIECE = 32
"""Elements of x that an invocation rounds together."""
MAX_WORKGROUP_SIZE, MIN_WORKGROUP_SIZE = 256, 32
ROWS, MORE_ROWS, MANY = 4, 8, 16384
"""Rows of a workgroup; of a matrix with MANY rows, whose vector would be rounded too often."""

record(
    SHADER, "matvec", flops=lambda k: 2 * (k["N_0"] + k["N_1"] + k["N_2"]) * k["K"] * k["COLS"],
    loop_bound=lambda k: ceil_div(k["PIECES"], k.workgroup_size) + closing_loops(
        (k["WIDE"] * k["PER"] + 1) * k["COLS"], k.workgroup_size))


def takes(node: BoundNode, weights: Weights, x: int = 0) -> bool:
    """Whether these weights have such a kernel: whole pieces in blocks, rows one after another, zero points that are codes."""
    plain = weights.groups == weights.inner == 1 and weights.outer == weights.k and not (weights.codebook or weights.signed)
    pieces = weights.bits in (4, 8) and weights.k % PIECE == 0 and weights.block >= PIECE and weights.block % PIECE == 0
    whole = weights.zp is None or weights.zp_bits == weights.bits
    return bool(plain and pieces and whole and weights.k and node.input(x).dtype in FLOATS and node.target.limits.allow(SHADER))


def lower_rounded(
    node: BoundNode, matrices: Sequence[Weights], count: int, outs: Sequence[TensorType], given: Mapping[str, int],
    norm: tuple[int, float] | None = None, beside: bool = False,
) -> Lowering:
    """The kernel of `count` vectors of input 0 times matrices. given: WGSL name -> input, of biases. norm: input of its weight, epsilon."""
    first, rows, wide = matrices[0], [w.rows for w in matrices], 2 if beside else 1
    many = wide == count == 1 and max(rows) >= MANY
    per, subgroups = MORE_ROWS if many else ROWS, node.target.limits.allow(SHADER, "subgroup")
    held = (per * wide + (norm is not None)) * count
    size = _workgroup_size(node.target, first.k // PIECE, held, subgroups)
    shift = 128 if first.bits == 8 else 0
    consts: dict[str, Const] = {
        "BITS": first.bits, "K": first.k, "PIECES": first.k // PIECE, "STEPS_OF": first.block // PIECE, "COLS": count, "PER": per,
        "TABLE_ROW": first.table_strides[0], "TABLE_BLOCK": first.table_strides[1], "HAS_ZEROS": first.zp is not None,
        "ZP_ROW": first.zp_strides[0], "ZP_BLOCK": first.zp_strides[1], "TAKEN": int(first.zero) - shift, "FLIP": float(shift),
        "SUBGROUPS": subgroups, "MATRICES": len(rows), "WIDE": wide, "NORM": int(norm is not None), "EPSILON": norm[1] if norm else 0.0,
        **{f"N_{i}": n for i, n in enumerate([*rows, 0, 0][:3])}}
    reads: dict[str, int | str] = {"x": 0, **({"gamma": norm[0]} if norm else {})}
    for i, weights in enumerate(matrices):
        reads |= {f"w{i or ''}": weights.source, f"table{i or ''}": weights.table}
        reads |= {f"zp{i or ''}": weights.zp} if weights.zp is not None else {}
    built = kernel(
        SHADER, outs, consts=consts, groups=sum(ceil_div(n, per) for n in (rows[:1] if beside else rows)), workgroup_size=size,
        workgroup_nbytes=4 * sums_of_workgroup(size, subgroups) * held, reads={**reads, **given},
        writes={f"y{i or ''}": i for i in range(len(outs))},
        vectors=[n for n in reads if n.startswith("w") or n in ("x", "gamma")], features=["subgroup"] if subgroups else [])
    names = [f"c{i or ''}" for i in range(len(rows))]
    return Lowering(tuple(outs), (replace(built, optionals=tuple((name, name in given) for name in names)),))


def _workgroup_size(target: Target, pieces: int, held: int, subgroups: bool) -> int:
    """Invocations that share K: one for each piece, while their sums fit."""
    size, limits = MIN_WORKGROUP_SIZE, target.limits
    most = min(MAX_WORKGROUP_SIZE, limits.max_invocations, max(pieces, 1))
    while 2 * size <= most and 8 * sums_of_workgroup(size, subgroups) * held <= limits.max_workgroup_nbytes:
        size *= 2
    return size
