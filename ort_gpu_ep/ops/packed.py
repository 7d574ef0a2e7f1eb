"""Products whose weights stay packed: which codes a weight is made of, in which order the kernels want them, which kernel sums them.

A weight is a matrix of rows (outputs) of k codes of a few bits: `Weights` says where each code, its scale and its zero point are. The
kernels read rows that begin at a word. Other orders are brought into that one once (repack.wgsl, in a program's prologue); what is on the
device is always packed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.kernels import ceil_div, record
from ort_gpu_ep.ops import tiles
from ort_gpu_ep.registry import BoundNode, Const, Kernel, Lowering, Strided, kernel
from ort_gpu_ep.symbolic import hint, is_symbolic
from ort_gpu_ep.target import Choice, Target
from ort_gpu_ep.types import FLOAT32, UINT32, TensorType

MAX_VECTORS = 4
"""Columns of activations that packed_matvec.wgsl takes: more are worth a tile."""
VECTOR_WORKGROUP_SIZE = 64
ROWS = 4
"""packed_matvec.wgsl: rows of a workgroup, which share each read of the activations."""
SPARSE_TEAMS = {32: 128, 8: 64, 1: 64}
"""sparse_matvec.wgsl: invocations of a row -> of a workgroup. A row alone needs no barriers, but many rows to fill a GPU."""
TILE_ROWS, TILE_COLUMNS = 64, (64, 16)
"""packed_product.wgsl: a workgroup's rows, its columns (many, few)."""
UNPACKED_GAIN = 0.8
"""A weight is written out for a run, into a slot of its dense size, where that takes so much less by estimate."""
IN_TILES, BEFORE = "unpacked in tiles", "unpacked before"
"""Forms of a product of many vectors: packed_product.wgsl; unpack_product.wgsl and a dense product."""
UNPACK_WORKGROUP_SIZE = 64
PLANES = {2: (2, 0), 3: (2, 1), 4: (4, 0), 5: (4, 1), 6: (4, 2), 7: (8, 0), 8: (8, 0)}
"""Bits of a code -> bits in the first and in the second plane, as the kernels read them."""

record("repack.wgsl", "movement", loop_bound=lambda k: 32 // k["BITS"])
record("restore_codes.wgsl", "movement", loop_bound=lambda k: 2 + k["ELEMENT"] // k["FROM"])
record(
    "packed_matvec.wgsl", "matvec", flops=lambda k: 2 * k["N"] * k["K"] * k["COLS"],
    loop_bound=lambda k: ceil_div(k["WORDS"], k["VEC"] * k.workgroup_size) + 8 + ceil_div(2048, k.workgroup_size))
record(
    "sparse_matvec.wgsl", "matvec", flops=lambda k: 2 * k.size("entries") * k["COLS"],
    loop_bound=lambda k: _sparse_loops(k["K"], k["TEAM"]), data_indices=True)
record("unpack_product.wgsl", "movement", loop_bound=lambda k: 32 // k["BITS"])
record(
    "packed_product.wgsl", "product", flops=lambda k: 2 * k.size("y") * k["K"],
    loop_bound=lambda k: ceil_div(k["K"], k["STEP"]) * (1 + 3 * k["STEP"] * k["TN"] // k.workgroup_size) + 16 + 256)


@dataclass(frozen=True, slots=True)
class Weights:
    """A matrix of `rows` x `k` codes in input `source`: code (row, k) is the (row * outer + k * inner)th.

    bits: of a code. signed: codes are two's complement. table, zp: inputs with scales (or the codebook) and zero points. block: codes of a
    row that share a scale, 0: the whole row. table_strides, zp_strides: of a row and of a block. zp_bits: zero points are codes of so many
    bits in a tensor of bytes; 0: elements. zero: where there are no zero points. groups: of rows, each with its own columns.
    """

    rows: int
    k: int
    outer: int
    inner: int
    bits: int
    source: int
    table: int
    signed: bool = False
    codebook: bool = False
    zp: int | None = None
    block: int = 0
    table_strides: tuple[int, int] = (0, 0)
    zp_strides: tuple[int, int] = (0, 0)
    zp_bits: int = 0
    zero: float = 0.0
    groups: int = 1

    @property
    def flip(self) -> int:
        """What makes a signed code an unsigned one, larger by as much."""
        return 1 << self.bits - 1 if self.signed else 0


@dataclass(frozen=True, slots=True)
class Columns:
    """What the weights meet: x[k, j] of input `source`, and where its product goes; `outer` is a batch and a group of rows.

    window: constants of an implicit im2col, where k is (channel, tap) and j an output position.
    """

    source: int
    count: int
    column: int
    k: int
    y_column: int
    y_row: int
    batches: int = 1
    batch: int = 0
    group: int = 0
    y_outer: int = 0
    window: Mapping[str, Const] = field(default_factory=dict)


NO_WINDOW: Mapping[str, Const] = {f"{name}_{axis}": 1 for name in ("WINDOW", "STRIDE", "DILATION", "PAD") for axis in "ZYX"} | {
    "DEPTH": 1, "HEIGHT": 1, "WIDTH": 1, "OUT_HEIGHT": 1, "OUT_WIDTH": 1}


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of whole words, as the kernels read them. words: of a row in the first plane. sources: WGSL name -> input or temporary."""

    words: int
    bits: int
    high: int
    flip: int
    sources: Mapping[str, int | str]
    kernels: tuple[Kernel, ...] = ()
    temps: tuple[tuple[str, TensorType], ...] = ()
    inverses: tuple[tuple[int, Kernel], ...] = ()


def lower_packed(
    node: BoundNode, weights: Weights, columns: Columns, out: TensorType, bias: tuple[int, Strided] | None = None,
    alpha: float = 1.0, beta: float = 1.0,
) -> Lowering:
    """The kernels of a product with packed weights. bias: its input, and where an element of y finds it. Raises UnsupportedNodeError."""
    _check(node, weights)
    rows = _rows(weights, node.input(weights.source).type)
    is_vector = columns.batches * weights.groups == 1 and not columns.window and hint(columns.count) <= MAX_VECTORS
    choice: Choice | None = None
    if not is_vector and (dense := _dense(node, weights, columns, bias, alpha, beta)) is not None:
        choice = choose(node.target, f"{dense.key}, {weights.bits} bits", {
            IN_TILES: UNPACKED_GAIN * product_ns(node.target, weights, columns),
            BEFORE: unpack_ns(node.target, weights) + tiles.best_ns(dense)})
        if choice.form == BEFORE:
            return _unpacked(node, weights, rows, dense, out, choice)
    built = _matvec(node, weights, columns, rows, out) if is_vector else replace(_product(weights, columns, rows, out), choice=choice)
    reads: dict[str, int | str] = {**rows.sources, "x": columns.source, "table": weights.table}
    reads |= {"zp": weights.zp} if weights.zp is not None else {}
    reads |= {"c": bias[0]} if bias else {}
    last = replace(
        built, reads=tuple(reads.items()), writes=(("y", 0),),
        consts=(*built.consts, *_described(node, weights, rows).items(), ("ALPHA", float(alpha)), ("BETA", float(beta))),
        indices=(("c_index", bias[1] if bias else Strided((1,), (0,))),))
    return Lowering((out,), (*rows.kernels, last), rows.temps, once=tuple(name for name, _ in rows.temps), inverses=rows.inverses)


def _dense(
    node: BoundNode, weights: Weights, columns: Columns, bias: tuple[int, Strided] | None, alpha: float, beta: float,
) -> tiles.TiledProduct | None:
    """The same product, once its weights are written out as rows along K; None where product.wgsl does not take it."""
    count, n, k = columns.count, weights.rows, weights.k
    x, c = node.input(columns.source), node.optional(bias[0]) if bias else None
    is_plain = not columns.window and columns.batches == weights.groups == columns.k == columns.y_row == 1
    lies_right = k > 0 and n > 0 and k % tiles.PACKED_ROWS == n % 4 == 0 and columns.column == k and columns.y_column == n
    takes_bias = bias is None or (bias[1] == Strided((count, n), (0, 1)) and beta == 1 and c is not None and c.dtype is FLOAT32)
    allowed = node.target.limits.allow("unpack_product.wgsl") and tiles.fits(node.target)
    if not (is_plain and lies_right and takes_bias and allowed and x.dtype is FLOAT32) or 4 * n * k > node.target.limits.max_binding_nbytes:
        return None
    rows = tiles.Weights("unpacked", k, 1, 1, n, 0, False)
    return tiles.TiledProduct(count, n, rows, bias[0] if bias else None, alpha, target=node.target)


def _unpacked(node: BoundNode, weights: Weights, rows: _Rows, dense: tiles.TiledProduct, out: TensorType, choice: Choice) -> Lowering:
    """The weights written out for this run, and the dense product."""
    written = ("unpacked", TensorType(FLOAT32, (weights.k, weights.rows)))
    unpack = kernel(
        "unpack_product.wgsl", [written[1]], consts=_described(node, weights, rows),
        groups=ceil_div(rows.words * weights.rows, UNPACK_WORKGROUP_SIZE), workgroup_size=UNPACK_WORKGROUP_SIZE, choice=choice,
        reads={**rows.sources, "table": weights.table, **({"zp": weights.zp} if weights.zp is not None else {})},
        writes={"y": "unpacked"})
    product = tiles.lower_tiled(dense, out)
    return replace(
        product, kernels=(*rows.kernels, unpack, *product.kernels), temps=(*rows.temps, written, *product.temps),
        once=tuple(name for name, _ in rows.temps), inverses=rows.inverses)


def product_ns(target: Target, weights: Weights, columns: Columns) -> float:
    """Of packed_product.wgsl, by the figures of gemm.wgsl, whose tiles are alike; a code takes two loads."""
    by, (tile, step) = target.figures, _tile(weights, columns)
    groups = ceil_div(weights.rows, TILE_ROWS) * ceil_div(hint(columns.count), tile) * hint(columns.batches) * weights.groups
    work = TILE_ROWS * tile * step * by.fma_ns + (2 * TILE_ROWS + tile) * step * by.load_ns
    return float(by.launch_ns + ceil_div(weights.k, step) * max(by.step_ns, ceil_div(groups, by.units) * work))


def unpack_ns(target: Target, weights: Weights) -> float:
    """Of writing a weight out: a dispatch, 4 bytes an element, and a memory sector of 32 for each word of codes."""
    by, size = target.figures, weights.rows * weights.groups * weights.k
    return float(by.dispatch_ns + (4 * size + 32 * (size * weights.bits / 32)) * by.byte_ns)


def lower_sparse(
    node: BoundNode, rows: int, k: int, columns: Columns, out: TensorType, bias: tuple[int, Strided] | None = None,
    alpha: float = 1.0, beta: float = 1.0,
) -> Kernel:
    """The kernel of a product of few vectors with sparse rows: entries, values and starts are inputs 1, 2 and 3."""
    if hint(columns.count) > MAX_VECTORS:
        raise UnsupportedNodeError(Code.COST, f"{node.op}: for {hint(columns.count)} vectors the zeros of a sparse matrix are written out")
    count = int(columns.count)
    teams = {f"team {team}": _sparse_ns(node, rows, team) for team in SPARSE_TEAMS
             if team == max(SPARSE_TEAMS) or (team >= count and _sparse_loops(k, team) <= node.target.limits.max_loop_iterations)}
    choice = choose(node.target, f"sparse {rows} x {k}, {node.input(1).size} entries", teams)
    team = int(choice.form.split()[1])
    workgroup_size = SPARSE_TEAMS[team]
    reads: dict[str, int | str] = {"entries": 1, "starts": 3, "x": columns.source, "table": 2, **({"c": bias[0]} if bias else {})}
    return kernel(
        "sparse_matvec.wgsl", [out], consts={
            "N": rows, "K": k, "ENTRIES": node.input(1).size, "COLS": count, "TEAM": team, "X_COL": columns.column, "X_K": columns.k,
            "Y_COL": columns.y_column, "Y_ROW": columns.y_row,
            "ALPHA": float(alpha), "BETA": float(beta)},
        indices={"c_index": bias[1] if bias else Strided((1,), (0,))}, groups=ceil_div(rows, workgroup_size // team),
        workgroup_size=workgroup_size, workgroup_nbytes=4 * workgroup_size * (1 + count) + 2048, reads=reads, writes={"y": 0},
        choice=choice)


def choose(target: Target, key: str, estimates: Mapping[str, float]) -> Choice:
    return target.choose(key, estimates)


def _sparse_ns(node: BoundNode, rows: int, team: int) -> float:
    """Teams of all rows in turn, as many at a time as the units hold."""
    figures, entries = node.target.figures, node.input(1).size / max(rows, 1)
    turns = max(1.0, rows * team / (figures.units * figures.unit_lanes))
    clocks = figures.sparse_entry_clocks * entries / team + figures.sparse_halving_clocks * (team.bit_length() - 1)
    return float(turns * clocks / figures.clocks_per_ns)


def _sparse_loops(k: int, team: int) -> int:
    """Iterations of an invocation, at most."""
    return 2 * ceil_div(k, 4 * team) + 64


def _check(node: BoundNode, weights: Weights) -> None:
    held = [i for i in (weights.source, weights.table, weights.zp) if i is not None]
    for i in held:
        if not node.input(i).is_constant:
            raise UnsupportedNodeError(Code.NOT_CONSTANT, f"{node.op}: {node.input(i).name!r} is no constant of the model")
    per = 32 // PLANES[weights.bits][0]
    if weights.block and weights.block % per and weights.block < weights.k:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{node.op}: a scale for {weights.block} codes of {weights.bits} bits; taken: multiples of {per}")


def _rows(weights: Weights, stored: TensorType) -> _Rows:
    """The codes where they are, if rows begin at words; else the planes that repack.wgsl makes of them, which then stand for them."""
    bits, high = PLANES[weights.bits]
    per = 32 // bits
    if weights.inner == 1 and bits == weights.bits and weights.outer * bits % 32 == 0:
        flip = weights.flip * sum(1 << bits * k for k in range(per))
        return _Rows(weights.outer // per, bits, 0, flip, {"w": weights.source})
    words = ceil_div(weights.k, per)
    words = -(-words // 4) * 4 if high else words       # so that a row of the second plane begins at a word, too
    kernels, temps, total = [], [], weights.rows * weights.groups
    for name, shift, width in (("rows", 0, bits), ("upper", bits, high)):
        if not width:
            continue
        count = words * width // bits
        made = TensorType(UINT32, (total, count))
        kernels.append(kernel(
            "repack.wgsl", [made], consts={
                "FROM": weights.bits, "SHIFT": shift, "BITS": width, "FLIP": weights.flip, "ROW": weights.outer, "STEP": weights.inner,
                "K": weights.k, "WORDS": count}, reads={"w": weights.source}, writes={"y": name}))
        temps.append((name, made))
    sources: dict[str, int | str] = {"w": "rows", "high": "upper"} if high else {"w": "rows"}
    inverse = kernel(
        "restore_codes.wgsl", [stored], consts={
            "FROM": weights.bits, "BITS": bits, "HIGH": high, "FLIP": weights.flip, "ROW": weights.outer, "STEP": weights.inner,
            "K": weights.k, "ROWS": total, "WORDS": words, "ELEMENT": stored.dtype.bits},
        reads={"rows": "rows", "upper": "upper"} if high else {"rows": "rows"}, writes={"y": weights.source})
    inverses = ((weights.source, inverse),) if 1 in (weights.outer, weights.inner) else ()
    return _Rows(words, bits, high, 0, sources, tuple(kernels), tuple(temps), inverses)


def _described(node: BoundNode, weights: Weights, rows: _Rows) -> dict[str, Const]:
    """The constants that both kernels know the weights by."""
    zp = node.optional(weights.zp) if weights.zp is not None else None
    block = weights.block if weights.block < weights.k else 0
    return {
        "BITS": rows.bits, "HIGH": rows.high, "FLIP": rows.flip, "WORDS": rows.words, "N": weights.rows, "K": weights.k, "BLOCK": block,
        "TABLE_ROW": weights.table_strides[0], "TABLE_BLOCK": weights.table_strides[1], "CODEBOOK": weights.codebook,
        "ENTRIES": 1 << weights.bits if weights.codebook else 1, "TABLE_SIZE": node.input(weights.table).size,
        "ZP_BITS": weights.zp_bits, "ZP_ROW": weights.zp_strides[0], "ZP_BLOCK": weights.zp_strides[1],
        "ZERO": float(weights.flip + (weights.zero if zp is None else 0.0)),
        "WHOLE": (zp is None and float(weights.zero).is_integer()) or (zp is not None and zp.dtype.value in ("u32", "i32"))}


def _matvec(node: BoundNode, weights: Weights, columns: Columns, rows: _Rows, out: TensorType) -> Kernel:
    count = int(columns.count)
    of_x = node.input(columns.source)
    x4 = of_x.dtype is FLOAT32 and columns.k == 1 and weights.k % 4 == 0 and (count == 1 or columns.column % 4 == 0)
    share = max(1, min(ROWS, weights.rows // (4 * node.target.figures.units)))
    share = 1 << share.bit_length() - 1
    return kernel(
        "packed_matvec.wgsl", [out],
        consts={"COLS": count, "ROWS": share, "VEC": max(1, min(rows.bits // 2, rows.words // VECTOR_WORKGROUP_SIZE)), "X4": x4,
                "X_COL": columns.column, "X_K": columns.k, "Y_COL": columns.y_column, "Y_ROW": columns.y_row},
        groups=ceil_div(weights.rows, share), workgroup_size=VECTOR_WORKGROUP_SIZE,
        workgroup_nbytes=4 * VECTOR_WORKGROUP_SIZE * share * count + (8192 if weights.codebook else 4), vectors=["x"] if x4 else [])


def _tile(weights: Weights, columns: Columns) -> tuple[int, int]:
    """Columns of a workgroup, and codes of a step: all within the 16 KB that every adapter has."""
    return TILE_COLUMNS[0] if hint(columns.count) > 2 * TILE_COLUMNS[1] else TILE_COLUMNS[1], 16 if weights.codebook else 32


def _product(weights: Weights, columns: Columns, rows: _Rows, out: TensorType) -> Kernel:
    tile, step = _tile(weights, columns)
    tiles_n, tiles_j = ceil_div(weights.rows, TILE_ROWS), ceil_div(columns.count, tile)
    return kernel(
        "packed_product.wgsl", [out],
        consts={"J": columns.count, "TILES_N": tiles_n, "TILES_J": tiles_j, "TN": TILE_ROWS, "TJ": tile, "STEP": step,
                "GROUPS_X": weights.groups, "X_BATCH": columns.batch, "X_GROUP": columns.group, "X_COL": columns.column, "X_K": columns.k,
                "X_K_FAST": not is_symbolic(columns.k) and columns.k == 1 and not columns.window, "Y_COL": columns.y_column,
                "Y_ROW": columns.y_row, "Y_OUTER": columns.y_outer, "IM2COL": bool(columns.window), **(columns.window or NO_WINDOW)},
        groups=tiles_n * tiles_j * columns.batches * weights.groups, workgroup_size=TILE_ROWS * tile // 16,
        workgroup_nbytes=4 * step * (TILE_ROWS + tile) + (4 << weights.bits if weights.codebook else 0))
