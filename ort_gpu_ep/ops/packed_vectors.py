"""Products of up to four vectors with packed weights, bound by reading these: the kernels and how their invocations
share the work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

from ort_gpu_ep.ir.symbolic import hint, is_symbolic, same
from ort_gpu_ep.ir.types import FLOATS, TensorType
from ort_gpu_ep.kernels.forms import Form, lower
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Lowering, Strided, kernel
from ort_gpu_ep.kernels.target import SUBNORMAL_HALVES, Choice, Target
from ort_gpu_ep.ops import byte_vectors, rounded_vectors
from ort_gpu_ep.ops.byte_vectors import ROUNDED_BEFORE
from ort_gpu_ep.ops.packed_operands import Columns, Weights, interleaved
from ort_gpu_ep.ops.rounded_products import ROUNDED

MAX_VECTORS = 4
"""Columns of activations that packed_matvec.wgsl takes: more are worth a tile."""
MANY_VECTORS, MANY_BYTES = 16, 32
"""Columns up to which groups of them are a form beside tiles: exact ones, and those that are rounded to bytes."""
GROUPS = (MAX_VECTORS, 2 * MAX_VECTORS)
"""Columns of such a group."""
LIVE = 2
"""Registers that an invocation has in use for each of its sums, at most."""
UNIT_LANES = 1024
"""packed_matvec.wgsl: invocations that each compute unit gets, where the rows and K are enough for them."""
MAX_WORKGROUP_SIZE, MIN_WORKGROUP_SIZE = 512, 32
SEVERAL, SEVERAL_UNIT_LANES, SEVERAL_WORKGROUP_SIZE = range(3, MAX_VECTORS + 1), 2048, 128
"""Products of so many vectors have more invocations for each compute unit, in workgroups of at most so many. Measured
on an H200, four layers of an 8B model, passes of four tokens: 604 us with the sizes of fewer vectors, 598 with these.
With eight k an iteration (packed_sums.wgsl) 566; with both, and codes of two rows as floats at a time, 546."""
WORDS, HALVES = "codes in words", "codes in halves"
"""Forms of packed_matvec.wgsl: how codes become floats, one by one, or two by two where the adapter has
SUBNORMAL_HALVES."""
BOOK_ENTRIES, MAX_COPIES = 2048, 32
"""Of codebooks in workgroup memory, together: a copy for each bank, or as many as fit."""
HELD, HOLDING = "x held", "sparse_matvec_held.wgsl"
"""A form of sparse products, for adapters with subgroups, and its kernel."""
HELD_LANES = 32
"""sparse_matvec_held.wgsl: invocations of a workgroup for each of its rows."""
BOOK_NBYTES = 2048
"""The values of a sparse matrix in workgroup memory, a copy for each bank."""
SPARSE_TEAMS = {32: 128, 8: 64, 1: 64}
"""sparse_matvec.wgsl: invocations of a row -> of a workgroup. A row alone needs no barriers, but many rows to fill a
GPU."""

record(
    "packed_matvec.wgsl",
    "matvec",
    flops=lambda k: 2 * k["N"] * k["K"] * k["COLS"],
    loop_bound=lambda k: (
        (1 + k["HALVES"]) * ceil_div(k["WORDS"], 4 * k.workgroup_size)
        + closing_loops(k["PER"] * k["COLS"], k.workgroup_size)
    ),
)
record(
    "sparse_matvec.wgsl",
    "matvec",
    flops=lambda k: 2 * k.size("entries") * k["COLS"],
    loop_bound=lambda k: _sparse_loops(k["K"], k["TEAM"]),
    data_indices=True,
)
record(
    HOLDING,
    "matvec",
    flops=lambda k: 2 * k.size("entries") * k["COLS"],
    loop_bound=lambda k: (k["COLS"] * k["K"] + 512) // k.workgroup_size + k["ROWS"] * (1 + ceil_div(k["K"], 64)) + 8,
)


def lower_vectors(
    node: BoundNode,
    weights: Weights,
    columns: Columns,
    out: TensorType,
    bias: tuple[int, Strided] | None,
    alpha: float,
    beta: float,
    rounds: bool = False,
) -> Lowering:
    """The kernels of a product of at most MAX_VECTORS vectors with one group of rows. rounds: they may be rounded to
    bytes, where alpha and beta are 1."""
    if rounds and rounds_few(node, weights) and (forms := _rounded_forms(node, weights, columns, bias)):
        return lower(node.target, f"vectors {weights.rows} x {weights.k}, rounded", forms, out)
    decoding = decoding_ns(node.target, weights.rows * weights.k)
    forms = {
        name: Form(ns, partial(_vectors, node, weights, columns, bias, alpha, beta, 0, name == HALVES))
        for name, ns in decoding.items()
        if name == WORDS or not weights.codebook
    }
    return lower(node.target, f"vectors {weights.rows} x {weights.k}, {weights.bits} bits", forms, out)


def _vectors(
    node: BoundNode,
    weights: Weights,
    columns: Columns,
    bias: tuple[int, Strided] | None,
    alpha: float,
    beta: float,
    group: int,
    halves: bool,
    choice: Choice,
    out: TensorType,
) -> Lowering:
    """The weights interleaved, once, and the product. group: columns of each workgroup; 0: all of them. halves: codes
    become floats two by two."""
    layout, count, of_x = interleaved(node, weights), group or int(columns.count), node.input(columns.source)
    groups = ceil_div(columns.count, group) if group else 1
    x4 = of_x.dtype in FLOATS and columns.k == 1 and weights.k % 4 == 0 and (count == 1 or columns.column % 4 == 0)
    by_blocks, per, entries = (
        "scales" in layout.sources,
        32 // weights.bits,
        1 << weights.bits if weights.codebook else 0,
    )
    copies = min(MAX_COPIES, BOOK_ENTRIES // entries) if entries else 1
    subgroups = node.target.limits.allow("packed_matvec.wgsl", "subgroup")
    size = workgroup_size(node.target, ceil_div(weights.rows, per), layout.words, per, count, subgroups)
    zp = node.optional(weights.zp) if weights.zp is not None else None
    reads: dict[str, int | str] = {**layout.sources, "x": columns.source} | ({"c": bias[0]} if bias else {})
    reads |= {} if by_blocks else {"table": weights.table}
    reads |= {"zp": weights.zp} if weights.zp is not None and "zeros" not in layout.sources else {}
    built = kernel(
        "packed_matvec.wgsl",
        [out],
        consts={
            "BITS": weights.bits,
            "WORDS": layout.words,
            "N": weights.rows,
            "K": weights.k,
            "COLS": count,
            "PER": per,
            "CODEBOOK": weights.codebook,
            "ENTRIES": entries or 1,
            "COPY_BITS": copies.bit_length() - 1,
            "TABLE_SIZE": node.input(weights.table).size,
            "BLOCK": weights.block if by_blocks else 0,
            "BLOCKS": ceil_div(weights.k, weights.block) if by_blocks else 1,
            "HAS_ZEROS": "zeros" in layout.sources,
            "TABLE_ROW": weights.table_strides[0],
            "TABLE_BLOCK": weights.table_strides[1],
            "ZP_BITS": weights.zp_bits,
            "ZP_ROW": weights.zp_strides[0],
            "ZP_BLOCK": weights.zp_strides[1],
            "ZERO": float(weights.flip + (weights.zero if zp is None else 0.0)),
            "WHOLE": (zp is None and float(weights.zero).is_integer())
            or (zp is not None and zp.dtype.value in ("u32", "i32")),
            **weights.known_levels,
            "X4": x4,
            "X_COL": columns.column,
            "X_K": columns.k,
            "Y_COL": columns.y_column,
            "Y_ROW": columns.y_row,
            "ALPHA": float(alpha),
            "BETA": float(beta),
            "SUBGROUPS": subgroups,
            "HALVES": halves,
            **({"GROUPED": True, "COLUMN_GROUPS": groups, "COUNT": columns.count} if group else {}),
        },
        indices={"c_index": bias[1] if bias else Strided((1,), (0,))},
        groups=ceil_div(weights.rows, per) * groups,
        workgroup_size=size,
        workgroup_nbytes=4 * (sums_of_workgroup(size, subgroups) * per * count + (entries * copies if entries else 0)),
        reads=reads,
        writes={"y": 0},
        vectors=[n for n in ("w", "scales", "x") if n in reads and (n != "x" or x4)],
        features=[name for name, used in (("subgroup", subgroups), (SUBNORMAL_HALVES, halves)) if used],
        choice=choice,
    )
    return Lowering((out,), (*layout.kernels, built), layout.temps)


def grouped(
    node: BoundNode,
    weights: Weights,
    columns: Columns,
    bias: tuple[int, Strided] | None,
    alpha: float,
    beta: float,
    rounds: bool,
) -> dict[str, Form]:
    """Forms of more vectors than MAX_VECTORS, where there are some: in groups, which read the same rows one after
    another. rounds: they are rounded to bytes."""
    if not are_tokens(node, columns.source) or columns.count > (MANY_BYTES if rounds else MANY_VECTORS):
        return {}
    count, codes = int(hint(columns.count)), weights.rows * weights.k
    if rounds:
        return _rounded_forms(node, weights, columns, bias)
    by, decoding = node.target.figures, decoding_ns(node.target, codes)
    best = min(decoding, key=decoding.__getitem__)
    a_column = codes * by.packed_column_clocks / by.units / by.clocks_per_ns
    return {
        groups_of(size): Form(
            ceil_div(count, size) * (decoding[best] + (size - 1) * a_column),
            partial(_vectors, node, weights, columns, bias, alpha, beta, size, best == HALVES),
        )
        for size in GROUPS
        if size == MAX_VECTORS or LIVE * size * 32 // weights.bits < by.lane_registers
    }


def are_tokens(node: BoundNode, source: int) -> bool:
    """Whether the number of vectors is known, or is that of sequences with a token each, or with as many as the option
    `few_tokens` says: a plan for prompts, which are of any length, does not ask how long they are."""
    x, few = node.input(source), node.target.limits.few_tokens
    if not is_symbolic(prod(x.shape[:-1])):
        return True
    return x.rank == 3 and (same(x.shape[1], 1) or (few > 0 and x.shape[1] == few))


def few_of(vectors: int) -> int:
    """The number of vectors. Up to MAX_VECTORS it is pinned: the plan holds for this number alone; else it stays open."""
    return int(vectors) if vectors <= MAX_VECTORS else vectors


def groups_of(columns: int) -> str:
    return f"vectors in groups of {columns}"


def rounds_few(node: BoundNode, weights: Weights) -> bool:
    """Whether few vectors that may be rounded to bytes are: where that is faster for one. It says in which order the
    codes are on the device, so that the answer is the same for each product of the weight."""
    if not rounded_vectors.takes(node, [weights]):
        return False
    forms = decoding_ns(node.target, weights.rows * weights.k)
    forms[ROUNDED] = rounded_vectors.bytes_ns(node.target, weights.rows, weights.k)
    choice = node.target.choose(f"vectors {weights.rows} x {weights.k}, {weights.bits} bits, or bytes", forms)
    return choice.form == ROUNDED


def _rounded_forms(
    node: BoundNode, weights: Weights, columns: Columns, bias: tuple[int, Strided] | None
) -> dict[str, Form]:
    """Forms of vectors that are rounded to bytes: one by each workgroup for itself, several before."""
    vectors, (rows, k) = few_of(columns.count), (weights.rows, weights.k)
    reads = {"x": columns.source, **({"c": bias[0]} if bias else {})}

    def build(choice: Choice, out: TensorType) -> Lowering:
        return byte_vectors.lower_rounded(node, [weights], [out], vectors, reads, False, choice)

    if hint(vectors) == 1:
        return {ROUNDED: Form(rounded_vectors.bytes_ns(node.target, rows, k), build)}
    if not byte_vectors.takes(node, [weights]):
        return {}
    return {ROUNDED_BEFORE: Form(byte_vectors.estimate_ns(node.target, rows, k, int(hint(vectors))), build)}


def decoding_ns(target: Target, codes: int, shader: str = "packed_matvec.wgsl") -> dict[str, float]:
    """Of each form that the adapter can do."""
    clocks = {WORDS: target.figures.packed_words_clocks}
    if target.limits.allow(shader, SUBNORMAL_HALVES):
        clocks[HALVES] = target.figures.packed_halves_clocks
    by = target.figures
    return {form: by.packed_wait_ns + codes * each / by.units / by.clocks_per_ns for form, each in clocks.items()}


def workgroup_size(target: Target, groups: int, words: int, rows: int, count: int, subgroups: bool) -> int:
    """Invocations that share K: as many as the adapter has for each of the groups of rows, while each has a vector of
    words, and the sums of their outputs fit: rows of each of `count` vectors.
    """
    several, outputs = count in SEVERAL, rows * count
    threads = min(
        target.figures.units * (SEVERAL_UNIT_LANES if several else UNIT_LANES) // max(groups, 1),
        words // 4,
        SEVERAL_WORKGROUP_SIZE if several else MAX_WORKGROUP_SIZE,
        target.limits.max_invocations,
    )
    size = MIN_WORKGROUP_SIZE
    while (
        2 * size <= threads
        and 8 * sums_of_workgroup(size, subgroups) * outputs <= target.limits.max_workgroup_nbytes - 4 * BOOK_ENTRIES
    ):
        size *= 2
    return size


def sums_of_workgroup(size: int, subgroups: bool) -> int:
    """Sums of each output that a workgroup adds up: of each subgroup, whose size nobody knows before, or of each
    invocation."""
    return size // 4 if subgroups else size


def closing_loops(outputs: int, size: int) -> int:
    """Iterations in which the sums of a workgroup are added up, and its codebook is filled."""
    stored = ceil_div(outputs, size) * (1 + size // 4)
    return outputs + size.bit_length() + stored + ceil_div(BOOK_ENTRIES, size) + 8


def lower_sparse(
    node: BoundNode,
    rows: int,
    k: int,
    columns: Columns,
    out: TensorType,
    bias: tuple[int, Strided] | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Lowering:
    """The kernel of a product of few vectors with sparse rows: entries, values and starts are inputs 1, 2 and 3."""
    limits, count, entries = node.target.limits, int(columns.count), node.input(1).size
    build = partial(_sparse, node, rows, k, columns, bias, alpha, beta)
    forms = {
        f"team {team}": Form(_sparse_ns(node, rows, team), partial(build, _in_teams(rows, count, team)))
        for team in SPARSE_TEAMS
        if team == max(SPARSE_TEAMS) or (team >= count and _sparse_loops(k, team) <= limits.max_loop_iterations)
    }
    if (
        entries
        and 4 * (k + 1) * count + BOOK_NBYTES <= limits.max_workgroup_nbytes
        and limits.allow(HOLDING, "subgroup")
    ):
        forms[HELD] = Form(_held_ns(node, rows, k, count), partial(build, _held(node, rows, k, count)))
    return lower(node.target, f"sparse {rows} x {k}, {entries} entries", forms, out)


def _sparse(
    node: BoundNode,
    rows: int,
    k: int,
    columns: Columns,
    bias: tuple[int, Strided] | None,
    alpha: float,
    beta: float,
    shape: _Shape,
    choice: Choice,
    out: TensorType,
) -> Lowering:
    reads: dict[str, int | str] = {
        "entries": 1,
        "starts": 3,
        "x": columns.source,
        "table": 2,
        **({"c": bias[0]} if bias else {}),
    }
    consts: dict[str, Const] = {
        "N": rows,
        "K": k,
        "ENTRIES": node.input(1).size,
        "COLS": int(columns.count),
        "X_COL": columns.column,
        "X_K": columns.k,
        "Y_COL": columns.y_column,
        "Y_ROW": columns.y_row,
        "ALPHA": float(alpha),
        "BETA": float(beta),
    }
    return Lowering(
        (out,),
        (
            kernel(
                shape.shader,
                [out],
                consts={**consts, **shape.consts},
                indices={"c_index": bias[1] if bias else Strided((1,), (0,))},
                groups=shape.groups,
                workgroup_size=shape.size,
                workgroup_nbytes=shape.nbytes,
                reads=reads,
                writes={"y": 0},
                choice=choice,
                features=shape.features,
            ),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a sparse product is shared out. size: invocations of a workgroup. nbytes: of workgroup memory."""

    shader: str
    consts: Mapping[str, int]
    groups: int
    size: int
    nbytes: int
    features: tuple[str, ...] = ()


def _in_teams(rows: int, count: int, team: int) -> _Shape:
    size = SPARSE_TEAMS[team]
    return _Shape(
        "sparse_matvec.wgsl", {"TEAM": team}, ceil_div(rows, size // team), size, 4 * size * (1 + count) + BOOK_NBYTES
    )


def _held(node: BoundNode, rows: int, k: int, count: int) -> _Shape:
    """A workgroup for each unit, where there are rows enough: each brings x into its memory."""
    limits, each = node.target.limits, 2
    while 2 * each * HELD_LANES <= limits.max_invocations and each * limits.figures.units < rows:
        each *= 2
    return _Shape(
        HOLDING,
        {"ROWS": each},
        ceil_div(rows, each),
        each * HELD_LANES,
        4 * (k + 1) * count + BOOK_NBYTES,
        ("subgroup",),
    )


def _sparse_ns(node: BoundNode, rows: int, team: int) -> float:
    """Teams of all rows in turn, as many at a time as the units hold; and what reads at places that the data names
    take."""
    figures, entries = node.target.figures, node.input(1).size
    turns = max(1.0, rows * team / (figures.units * figures.unit_lanes))
    clocks = turns * (
        figures.sparse_entry_clocks * entries / max(rows, 1) / team
        + figures.sparse_halving_clocks * (team.bit_length() - 1)
    )
    return float(
        figures.matvec_launch_ns
        + (clocks + figures.sparse_gather_clocks * entries / figures.units) / figures.clocks_per_ns
    )


def _held_ns(node: BoundNode, rows: int, k: int, count: int) -> float:
    """x and the entries are waited for in turn; a workgroup brings x into its memory, and its subgroups add up twice
    for 512 entries."""
    figures, entries = node.target.figures, node.input(1).size
    turns = max(1.0, _held(node, rows, k, count).groups / figures.units)
    rounds = ceil_div(ceil_div(entries, max(rows, 1)), 512)
    clocks = turns * figures.sparse_staging_clocks * k * count + (2 * rounds + 1) * figures.sparse_halving_clocks
    clocks += figures.sparse_held_clocks * entries / figures.units
    return float(figures.matvec_launch_ns + 2 * figures.rows_wait_ns + clocks / figures.clocks_per_ns)


def _sparse_loops(k: int, team: int) -> int:
    """Iterations of an invocation, at most."""
    return 2 * ceil_div(k, 4 * team) + 64
