"""Products of the same few vectors with several packed weights in one dispatch, an RMS normalization in front of them
in it, too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, UINT8, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, kernel, op
from ort_gpu_ep.kernels.target import SUBNORMAL_HALVES, Choice
from ort_gpu_ep.ops import byte_vectors
from ort_gpu_ep.ops.packed import check_weights
from ort_gpu_ep.ops.packed_operands import Layout, Weights, interleaved
from ort_gpu_ep.ops.packed_products import ROUNDS, nbits_weights
from ort_gpu_ep.ops.packed_vectors import (
    HALVES,
    MANY_BYTES,
    MAX_VECTORS,
    are_tokens,
    closing_loops,
    decoding_ns,
    few_of,
    rounds_few,
    sums_of_workgroup,
    workgroup_size,
)

SHADER = "packed_matvecs.wgsl"
MOST = 3
"""Matrices of a dispatch: queries, keys and values."""
GAMMA, FIRST, EACH = 1, 2, 4
"""Input of the norm's weight, of the first matrix, and inputs of a matrix: codes, scales, zero points, bias."""

record(
    SHADER,
    "matvec",
    flops=lambda k: 2 * (k["N_0"] + k["N_1"] + k["N_2"]) * k["K"] * k["COLS"],
    loop_bound=lambda k: (
        (1 + k["HALVES"]) * ceil_div(k["WORDS"], 4 * k.workgroup_size)
        + closing_loops((k["WIDE"] * k["PER"] + 1) * k["COLS"], k.workgroup_size)
    ),
)


@op(
    "PackedProducts",
    domain="ort_gpu_ep",
    dtypes={"T": (FLOAT32, FLOAT16, UINT8)},
    epilogue=True,
    bindings="x gamma? w table zp? c? w1? table1? zp1? c1? w2? table2? zp2? c2? -> y y1 y2",
)
def packed_products(node: BoundNode) -> Lowering:
    """The MatMulNBits of up to three weights with at most four vectors x; gamma: of x / sqrt(mean x^2 + epsilon) *
    gamma.

    Each gives an output; with the attribute `beside` the second one is an argument of the fused steps instead. x: [...,
    K].
    """
    rows, x, beside = tuple(node.attr("N")), node.input(0), bool(node.attr("beside"))
    count = math.prod(x.shape[:-1])
    matrices = [nbits_weights(node, n, FIRST + EACH * i) for i, n in enumerate(rows)]
    _check(node, matrices, beside)
    rounds = node.attr("accuracy_level") == ROUNDS and all(rounds_few(node, weights) for weights in matrices)
    several = rounds and byte_vectors.takes(node, matrices)
    if count > (MANY_BYTES if several and are_tokens(node, 0) else MAX_VECTORS) or not count:
        raise UnsupportedNodeError(Code.COST, f"{node.op} of {hint(count)} vectors: tiles are estimated to be faster")
    outs = [TensorType(x.dtype, (*x.shape[:-1], n)) for n in (rows[:1] if beside else rows)]
    biases = {f"c{i or ''}": FIRST + EACH * i + 3 for i in range(len(rows))}
    biases = {name: at for name, at in biases.items() if node.has(at)}
    norm = {"gamma": GAMMA} if node.has(GAMMA) else {}
    if several or (rounds and count == 1):
        lowered = byte_vectors.lower_rounded(node, matrices, outs, few_of(count), {"x": 0, **norm, **biases}, beside)
        *before, product = lowered.kernels
        return replace(lowered, kernels=(*before, _without(product, biases, len(rows))))
    layouts = [interleaved(node, weights, str(i or "")) for i, weights in enumerate(matrices)]
    reads: dict[str, int | str] = {"x": 0, **norm, **biases}
    reads |= {name: source for layout in layouts for name, source in layout.sources.items()}
    consts, size, numbers, features, choice = _form(node, matrices, layouts[0], int(count), beside)
    built = kernel(
        SHADER,
        outs,
        consts=consts,
        groups=sum(ceil_div(n, 32 // matrices[0].bits) for n in (rows[:1] if beside else rows)),
        workgroup_size=size,
        workgroup_nbytes=4 * numbers,
        reads=reads,
        writes={f"y{i or ''}": i for i in range(len(outs))},
        vectors=[n for n in reads if n.startswith(("w", "scales")) or n in ("x", "gamma")],
        features=features,
        choice=choice,
    )
    built = _without(built, biases, len(rows), ("zp", False))
    return Lowering(
        tuple(outs),
        (*(step for layout in layouts for step in layout.kernels), built),
        tuple(temp for layout in layouts for temp in layout.temps),
    )


def _without(built: Kernel, biases: Mapping[str, int], count: int, *more: tuple[str, bool]) -> Kernel:
    """With a place for the bias of each matrix, whichever of them have one."""
    return replace(
        built, optionals=(*more, *((name, name in biases) for name in (f"c{i or ''}" for i in range(count))))
    )


def _check(node: BoundNode, matrices: list[Weights], beside: bool) -> None:
    """Raises UnsupportedNodeError for what this kernel does not do."""
    k, x = node.attr("K"), node.input(0)
    for weights in matrices:
        check_weights(node, weights)
    zeros = {w.zp is None or node.input(w.zp).dtype for w in matrices}
    if k % 4 or node.attr("block_size") >= k or len(zeros) > 1 or not zeros <= {True, UINT8}:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op} with K {k}, blocks of {node.attr('block_size')}; taken: a multiple of 4, several "
            f"blocks, all zero "
            "points alike",
        )
    if beside and (len(matrices) != 2 or matrices[0].rows != matrices[1].rows):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{node.op} of {node.attr('N')} rows, one beside the other; taken: two of as many"
        )
    if node.has(GAMMA) and (node.input(GAMMA).shape != (k,) or node.input(GAMMA).dtype is not x.dtype):
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} of {x.type} with a norm's weight {node.input(GAMMA).type}; expected [{k}]"
        )
    if any(node.has(at := FIRST + EACH * i + 3) and node.input(at).shape != (w.rows,) for i, w in enumerate(matrices)):
        raise UnsupportedNodeError(Code.RANK, f"{node.op} with a bias that is no vector of its rows")


def _form(
    node: BoundNode,
    matrices: Sequence[Weights],
    layout: Layout,
    count: int,
    beside: bool,
) -> tuple[dict[str, Const], int, int, list[str], Choice]:
    """The constants, invocations of a workgroup, numbers in its memory, features, and the choice between forms."""
    target, first, rows = node.target, matrices[0], [w.rows for w in matrices]
    per, wide, norm = 32 // first.bits, 2 if beside else 1, int(node.has(GAMMA))
    subgroups, sums = target.limits.allow(SHADER, "subgroup"), per * wide + norm
    choice = target.choose(
        f"vectors {first.rows} x {first.k}, {first.bits} bits", decoding_ns(target, first.rows * first.k, SHADER)
    )
    halves = choice.form == HALVES
    size = workgroup_size(
        target, sum(ceil_div(n, per) for n in rows[: 1 if beside else None]), layout.words, sums, count, subgroups
    )
    consts: dict[str, Const] = {
        "BITS": first.bits,
        "WORDS": layout.words,
        "K": first.k,
        "COLS": count,
        "PER": per,
        "CODEBOOK": False,
        "BLOCK": first.block,
        "BLOCKS": ceil_div(first.k, first.block),
        "HAS_ZEROS": first.zp is not None,
        "ZP_BITS": 0,
        "ZERO": first.zero if first.zp is None else 0.0,
        "WHOLE": True,
        "X4": True,
        "X_COL": first.k,
        "X_K": 1,
        "N": first.rows,
        "SUBGROUPS": subgroups,
        "HALVES": halves,
        "MATRICES": len(rows),
        "WIDE": wide,
        "NORM": norm,
        "EPSILON": float(node.attr("epsilon") or 0.0),
        **{f"N_{i}": n for i, n in enumerate([*rows, 0, 0][:MOST])},
    }
    features = [name for name, used in (("subgroup", subgroups), (SUBNORMAL_HALVES, halves)) if used]
    return consts, size, sums_of_workgroup(size, subgroups) * sums * count, features, choice
