"""Matrix products on an adapter's matrix units (matrix_product.wgsl): float16 operands, sums in float32. A form beside
those without.

Only where a probe saw right results (kernels/target.py MATRIX_UNITS), and only for float16 models, `precision=f16acc`
and `tf32`. Tiles and the figures of the estimate were measured on an H200 (docs/decisions/0021-matrix-units.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from ort_gpu_ep.ir.symbolic import hint, is_symbolic
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, HALF, TensorType
from ort_gpu_ep.kernels.built import PINNED_SUBGROUP
from ort_gpu_ep.kernels.cost_parameters import Figures
from ort_gpu_ep.kernels.forms import Form
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Rounded, Strided, kernel
from ort_gpu_ep.kernels.target import (
    FRAGMENTS,
    MATRIX_UNITS,
    SUBGROUP_MATRIX,
    TF32,
    Choice,
    Fragment,
    Limits,
    Target,
    no_matrix_units,
)
from ort_gpu_ep.ops import split_k, tiles
from ort_gpu_ep.ops.contraction import Matrix, Product
from ort_gpu_ep.ops.tile_weights import Weights


@dataclass(frozen=True, slots=True)
class UnitTile:
    """A workgroup's share: m columns of n rows, k of them a step, over gn x gm subgroups of 32 invocations.

    efficiency: of figures.matrix_fma_per_ns. resident: workgroups that a compute unit has at once. step, end: the least
    that a step takes, and what workgroups that are there together take behind their last one, in
    figures.matrix_step_ns.
    """

    name: str
    m: int
    n: int
    k: int
    gm: int
    gn: int
    efficiency: float
    resident: int = 2
    step: float = 1.0
    end: float = 0.0

    def teams(self, subgroup: int) -> tuple[int, int]:
        """Subgroups of so many invocations across columns and rows: more of small ones, so that a workgroup has no
        fewer invocations."""
        return self.gm * (2 if subgroup <= 16 else 1), self.gn * (2 if subgroup <= 8 else 1)

    def workgroup_size(self, subgroup: int) -> int:
        gm, gn = self.teams(subgroup)
        return subgroup * gm * gn

    def divides(self, subgroup: int, fragment: Fragment) -> bool:
        """Whether each subgroup has whole fragments."""
        gm, gn = self.teams(subgroup)
        return self.m % (gm * fragment.m) == self.n % (gn * fragment.n) == self.k % fragment.k == 0

    def workgroup_nbytes(self, w_rows: bool, limits: Limits) -> int:
        """Of both operands, or the sums on their way out; and of the scales of rows."""
        lines = limits.fragment.n if limits.fragment is not None else 0
        w = self.k * (self.m // 8 + 1) if w_rows else self.m * (self.k // 8 + 1)
        _, gn = self.teams(limits.unit_subgroup(FRAGMENTS))
        return 16 * max(self.n * (self.k // 8 + 1) + w, gn * lines * (self.m // 4 + 2)) + 4 * self.n

    def fits(self, limits: Limits, w_rows: bool) -> bool:
        subgroup, fragment = limits.unit_subgroup(FRAGMENTS), limits.fragment
        return (
            fragment is not None
            and self.divides(subgroup, fragment)
            and self.workgroup_size(subgroup) <= limits.max_invocations
            and self.workgroup_nbytes(w_rows, limits) <= limits.max_workgroup_nbytes
        )


TILES: tuple[UnitTile, ...] = (
    UnitTile("units 128x128", 128, 128, 32, 2, 2, 1.06, 2, 1.33, 8.8),
    UnitTile("units 64x128", 64, 128, 32, 2, 2, 0.91, 5, 0.82, 7.0),
    UnitTile("units 64x64x32", 64, 64, 32, 2, 2, 0.62, 4, 0.90, 0.3),
    UnitTile("units 64x64", 64, 64, 64, 2, 2, 0.51, 8, 0.58, 3.5),
)
"""The smaller ones are for stores and sums that many workgroups at once hide; the larger ones read less."""

LEAST = 16
"""Rows, columns and k of a product for which a fragment is worth its zeros."""
PLAIN_WIDTH, ROUNDED_WIDTH, SCALED_WIDTH = 2.0, 3.2, 5.5
"""Bytes that an element on the way in counts for: of float16, of float32 that is rounded, and that is scaled before."""
ACROSS, BY_ELEMENTS = 0.9, 0.5
"""How much slower products are whose w lies along k, and for each operand that is read by elements."""
SCALES_TEAM = {True: 8, False: 64}
"""line_scales.wgsl: lanes that go along a line, where neighbours are other lines and where they are not."""

record(
    "matrix_product.wgsl",
    "product",
    loop_bound=lambda k: ceil_div(k["K"], k["TK"]) + 16 * k["TM"],
    flops=lambda k: 2 * k["BATCH"] * k["N"] * k["M"] * k["K"],
)
record("scaled_rows.wgsl", "movement")
record("line_scales.wgsl", "reduction", loop_bound=lambda k: ceil_div(k["LENGTH"], k["TEAM"]))


@dataclass(frozen=True, slots=True)
class Operand:
    """How the shader reads a matrix. outer: its lines (rows of x, columns of w). fours: as vectors. eights: by eight
    where it has 16 bits. along_k: what is next to each other.
    """

    matrix: Matrix
    outer: int
    fours: bool
    eights: bool
    along_k: bool
    constant: bool

    @property
    def batches(self) -> bool:
        """Whether batches differ."""
        return any(is_symbolic(stride) or stride != 0 for stride in self.matrix.base.strides)


@dataclass(frozen=True, slots=True)
class UnitProduct:
    """A product that matrix units may do. scaled: its operands are brought into float16's range by lines. plain: the
    model's float16. stored: w as the model has it, where it is constant, and scaled and stored in float16 once. halves:
    w is in float16, and scaled, whether x is or not.
    """

    product: Product
    x: Operand
    w: Operand
    scaled: bool
    plain: bool
    stored: Operand | None = None
    halves: bool = False


def of_product(node: BoundNode, product: Product) -> UnitProduct | None:
    """None where it is to stay off matrix units."""
    a, b = (node.input(int(matrix.source)) for matrix in (product.a, product.b))
    limits, plain = product.target.limits, a.dtype is FLOAT16
    if not (plain or limits.precision in (TF32, "f16acc")) or no_matrix_units(limits):
        return None
    if (
        a.decoded
        or b.decoded
        or product.window
        or product.images
        or min(map(hint, (product.m, product.n, product.k))) < LEAST
    ):
        return None
    if tiles.are_wide(node):
        return None
    x = operand(product.a, product.m, product.k, a.is_constant, product.fours)
    w = operand(product.b, product.n, product.k, b.is_constant, product.fours)
    scaled = limits.precision == TF32 and not plain
    static = not any(map(is_symbolic, (product.n, product.k, *product.b.base.strides)))
    if scaled and b.is_constant and static and not w.batches and product.b.base.offset == 0:
        ready = operand(Matrix(1, product.b.base, 1, product.n), product.n, product.k, True, product.fours)
        return UnitProduct(product, x, ready, scaled, plain, w)
    return UnitProduct(product, x, w, scaled, plain)


def operand(matrix: Matrix, outer: int, k: int, constant: bool, fours: bool) -> Operand:
    along_k = not is_symbolic(matrix.k) and matrix.k == 1
    beside, inner, other = (k, matrix.k, matrix.outer) if along_k else (outer, matrix.outer, matrix.k)
    numbers = (beside, other, *matrix.base.strides, matrix.base.offset)
    whole = not any(map(is_symbolic, (*numbers, inner))) and inner == 1 and all(n % 4 == 0 for n in numbers)
    return Operand(
        matrix, outer, fours and whole, fours and whole and all(n % 8 == 0 for n in numbers), along_k, constant
    )


def forms(units: UnitProduct | None) -> dict[str, Form]:
    """In each tile that may be taken."""
    if units is None:
        return {}
    return {tile.name: Form(estimate_ns(units, tile), partial(_lowered, units, tile)) for tile in tiles_of(units)}


def tiles_of(units: UnitProduct) -> Iterator[UnitTile]:
    """Those that may be taken."""
    limits, product = units.product.target.limits, units.product
    for tile in TILES:
        groups = (
            ceil_div(int(hint(product.m)), tile.n),
            ceil_div(int(hint(product.n)), tile.m),
            int(hint(product.batch)),
        )
        if tile.fits(limits, not units.w.along_k) and max(groups) <= limits.max_groups_per_dimension:
            yield tile


def estimate_ns(units: UnitProduct, tile: UnitTile, of_codes: float = 0.0, split: int = 1) -> float:
    """As tiles.estimate_ns, with the rate of matrix units; of scaled operands the dispatches that find the scales.

    of_codes: how much slower the product is where w is packed codes; 0: it is numbers. split: parts of k.
    """
    product, by = units.product, units.product.target.figures
    rows, columns, k, batch = (int(hint(n)) for n in (product.m, product.n, product.k, product.batch))
    factor = of_codes or (ACROSS if units.w.along_k else 1.0)
    x_width = PLAIN_WIDTH if units.plain else SCALED_WIDTH if units.scaled else ROUNDED_WIDTH
    widths = x_width, PLAIN_WIDTH if units.stored is not None or units.halves else x_width
    for operand in (units.x, units.w):
        # a matrix x along n is read by elements: a vector holds other rows
        factor *= 1.0 if _by_fours(units, operand) else BY_ELEMENTS
    time = tile_ns(by, tile, rows, columns, k, batch, factor, split, widths)
    for operand in (units.x, units.w):
        if units.scaled and not operand.constant:
            time += by.dispatch_ns + 4 * batch * int(hint(operand.outer)) * k * by.byte_ns
    return float(time)


def tile_ns(
    by: Figures,
    tile: UnitTile,
    rows: int,
    columns: int,
    k: int,
    batch: int,
    factor: float,
    split: int = 1,
    widths: tuple[float, float] = (0.0, 0.0),
) -> float:
    """Of matrix_product.wgsl: waves of workgroups, a step as long as its latency, or its work or its loads at `factor`
    of the rate; their ends; the stores.

    split: parts of k. widths: bytes that an element of x and of w counts for.
    """
    groups = batch * ceil_div(rows, tile.n) * ceil_div(columns, tile.m)
    waves = ceil_div(groups * split, by.units)
    resident = min(waves, tile.resident)
    work_ns = tile.m * tile.n * tile.k * resident / (by.matrix_fma_per_ns * tile.efficiency)
    load_ns = tile.k * (tile.n * widths[0] + tile.m * widths[1]) * resident / by.matrix_bytes_per_ns
    step_ns = max(by.matrix_step_ns * tile.step, max(work_ns, load_ns) / factor)
    wave_ns = ceil_div(ceil_div(k, tile.k), split) * step_ns + by.matrix_step_ns * tile.end
    time = by.matrix_launch_ns + waves / resident * wave_ns + 4 * groups * tile.m * tile.n * by.byte_ns
    return float(
        time + (by.matrix_arrival_ns + by.matrix_arrival_element_ns * split * tile.m * tile.n if split > 1 else 0.0)
    )


def fragment_consts(limits: Limits) -> dict[str, Const]:
    """What a shader has of its fragments where they are not of 16 x 16 x 16, and of its subgroups where their size has
    to be asked for."""
    fragment, pinned = limits.fragment, limits.pinned_subgroup(FRAGMENTS)
    assert fragment is not None, "no_matrix_units says so"
    sizes = {"FN": fragment.n, "FM": fragment.m, "FK": fragment.k}
    own: dict[str, Const] = {} if {*sizes.values()} == {16} else {**sizes}
    return own | ({PINNED_SUBGROUP: pinned} if pinned else {})


def consts_of(tile: UnitTile, limits: Limits) -> dict[str, Const]:
    """What matrix_product.wgsl has of its tile and its fragments; that w is no codes, k is whole and y is [row, column]."""
    gm, gn = tile.teams(limits.unit_subgroup(FRAGMENTS))
    of_tile = {"TM": tile.m, "TN": tile.n, "TK": tile.k, "GM": gm, "GN": gn}
    plain = {"CODES": 0, "BLOCK": 0, "CODE_FOURS": False, "SPLIT": 1, "PER": 0, "SPREAD": 0}
    return {**of_tile, **fragment_consts(limits), **plain}


def _by_fours(units: UnitProduct, operand: Operand) -> bool:
    return operand.fours and (operand.along_k or operand is not units.x)


def _lowered(units: UnitProduct, tile: UnitTile, choice: Choice, out: TensorType) -> Lowering:
    product = units.product
    kernels, temps = list[Kernel](), list[tuple[str, TensorType]]()
    reads: dict[str, int | str] = {
        "x": product.a.source,
        "w": product.b.source,
        **({} if product.bias is None else {"c": 2}),
    }
    for name, operand in (("x", units.x), ("w", units.stored or units.w)) if units.scaled else ():
        built = scales(product, operand, f"{name}_scales")
        kernels.append(built)
        temps.append((f"{name}_scales", built.outputs[0]))
        reads[f"{name}_scales"] = f"{name}_scales"
    if units.stored is not None:
        packed = TensorType(HALF, (product.k, product.n))
        kernels.append(
            ready_weights(
                packed,
                Weights(
                    product.b.source,
                    product.k,
                    1,
                    units.stored.matrix.outer,
                    units.stored.matrix.k,
                    0,
                    True,
                    multiple=1,
                ),
            )
        )
        temps.append(("packed", packed))
        reads["w"] = "packed"
    built = product_kernel(units, tile, choice, out, reads)
    source, scaled = product.a.source, tuple[tuple[str, int, bool], ...]()
    if units.scaled and not units.x.constant and isinstance(source, int):
        scaled = (("x_scales", source, False),)
    return Lowering((out,), (*kernels, built), tuple(temps), scaled=scaled)


def ready_weights(packed: TensorType, weights: Weights, target: str = "packed") -> Kernel:
    """Weights [K, M] times `w_scales`."""
    return kernel(
        "scaled_rows.wgsl",
        [packed],
        consts={
            "M": packed.shape[1],
            "PADDED": weights.padded,
            "CHANNELS": weights.channels,
            "TAPS": weights.taps,
            "W_M": weights.m_stride,
            "W_CHANNEL": weights.channel_stride,
            "W_TAP": weights.tap_stride,
        },
        reads={"w": weights.source, "scales": "w_scales"},
        writes={"y": target},
    )


def weight_scales(source: int | str, lines: int, length: int, line: int, step: int, less: int = 0) -> Kernel:
    """`w_scales` of a constant whose lines begin so far apart. less: how many powers of two below float16's largest
    they stay."""
    team = SCALES_TEAM[False]
    return kernel(
        "line_scales.wgsl",
        [TensorType(FLOAT32, (lines,))],
        workgroup_size=256,
        workgroup_nbytes=4 * (256 // team),
        consts={
            "BATCH": 1,
            "LINES": lines,
            "LENGTH": length,
            "LINE": line,
            "STEP": step,
            "TEAM": team,
            "ACROSS": False,
            "LESS": less,
        },
        indices={"x_base": Strided((1,), (0,))},
        groups=ceil_div(lines, 256 // team),
        reads={"x": source},
        writes={"scales": "w_scales"},
    )


def scales(product: Product, of: Operand, name: str) -> Kernel:
    batch = product.batch if of.batches else 1
    across = not of.along_k
    team = SCALES_TEAM[across]
    return kernel(
        "line_scales.wgsl",
        [TensorType(FLOAT32, (batch, of.outer))],
        workgroup_size=256,
        workgroup_nbytes=4 * (256 // team),
        consts={
            "BATCH": batch,
            "LINES": of.outer,
            "LENGTH": product.k,
            "LINE": of.matrix.outer,
            "STEP": of.matrix.k,
            "TEAM": team,
            "ACROSS": across,
            "LESS": 0,
        },
        indices={"x_base": of.matrix.base},
        groups=ceil_div(batch * of.outer, 256 // team),
        reads={"x": of.matrix.source},
        writes={"scales": name},
    )


def product_kernel(
    units: UnitProduct,
    tile: UnitTile,
    choice: Choice,
    out: TensorType,
    reads: dict[str, int | str],
    codes: Mapping[str, Const] | None = None,
) -> Kernel:
    """codes: constants of packed codes that w is, in place of numbers."""
    product, x, w = units.product, units.x, units.w
    x_fours, w_fours = _by_fours(units, x), _by_fours(units, w) and codes is None
    y_fours = product.fours and not is_symbolic(product.n) and product.n % 4 == 0
    bias = product.bias
    c_fours = y_fours and bias is not None and bias.strides == (0, 1) and bias.offset == 0
    consts: dict[str, Const] = {
        **consts_of(tile, product.target.limits),
        "IM2COL": False,
        "GIVES": 0,
        "GROUP_COUNT": 1,
        "BATCH": product.batch,
        "N": product.m,
        "M": product.n,
        "K": product.k,
        "X_N": x.matrix.outer,
        "X_K": x.matrix.k,
        "W_M": w.matrix.outer,
        "W_K": w.matrix.k,
        "X_FOURS": x_fours,
        "W_FOURS": w_fours,
        "X_EIGHTS": x_fours and x.eights,
        "W_EIGHTS": w_fours and w.eights,
        "X_ROWS": x.along_k,
        "W_ROWS": not w.along_k,
        "K_WHOLE": not is_symbolic(product.k) and product.k % tile.k == 0,
        "X_PLAIN": units.plain,
        "W_PLAIN": units.plain,
        "X_SCALED": units.scaled,
        "W_SCALED": units.scaled or units.halves,
        "X_BATCHES": x.batches,
        "W_BATCHES": w.batches,
        "Y_FOURS": y_fours,
        "C_FOURS": c_fours,
        "ALPHA": float(product.alpha),
        "BETA": float(product.beta),
        **(codes or {}),
    }
    names = (("x", x_fours), ("w", w_fours or consts["CODE_FOURS"]), ("y", y_fours), ("c", c_fours))
    words = tuple(name for name, eighths in (("x", consts["X_EIGHTS"]), ("w", consts["W_EIGHTS"])) if eighths)
    built = kernel(
        "matrix_product.wgsl",
        [out],
        consts=consts,
        workgroup_size=tile.workgroup_size(product.target.limits.unit_subgroup(FRAGMENTS)),
        workgroup_nbytes=tile.workgroup_nbytes(not w.along_k, product.target.limits),
        indices={"x_base": x.matrix.base, "w_base": w.matrix.base, "c_index": bias or Strided((1,), (0,))},
        grid=(ceil_div(product.n, tile.m), ceil_div(product.m, tile.n), product.batch),
        reads=reads,
        writes={"y": 0},
        vectors=tuple(name for name, fours in names if fours),
        words=words,
        choice=choice,
        features=(FLOAT16.feature, "subgroup", SUBGROUP_MATRIX, MATRIX_UNITS),
    )
    return built if units.scaled or units.plain or not x_fours else replace(built, rounded=(rounded(x.eights),))


def rounded(by_eight: bool) -> Rounded:
    """How matrix_product.wgsl reads an x of float32 that was stored in float16."""
    return Rounded("x", (("X_EIGHTS", by_eight), ("X_PLAIN", True)), by_eight)


MOST_SPLIT, LEAST_STEPS, MOST_WAVES, CUT_FACTOR = 8, 4, 4, 1.1
"""Parts of k, and steps of each; k is cut where each compute unit has fewer workgroups than that, and where that wins
clearly."""


def splits(target: Target, tile: UnitTile, rows: int, columns: int, k: int) -> Iterator[int]:
    """Parts that k may be cut into, each of enough steps; none where the whole keeps the compute units busy, or rows
    are the run's."""
    if is_symbolic(rows):
        return
    steps, there = ceil_div(k, tile.k), ceil_div(rows, tile.n) * ceil_div(columns, tile.m)
    nbytes = max(tile.workgroup_nbytes(w_rows, target.limits) for w_rows in (False, True))
    for split in range(2, MOST_SPLIT + 1) if there < MOST_WAVES * target.figures.units else ():
        size = split * there * tile.m * tile.n
        fits = split_k.may_arrive(target.limits, "matrix_product.wgsl", nbytes, size)
        if fits and steps >= split * LEAST_STEPS and ceil_div(steps, ceil_div(steps, split)) == split:
            yield split


def in_parts(whole: Lowering, tile: UnitTile, rows: int, columns: int, k: int, split: int) -> Lowering:
    """The same, whose last kernel is matrix_product.wgsl, in so many parts: the workgroup of a tile that arrives last
    adds them up."""
    if split == 1:
        return whole
    grid = (ceil_div(columns, tile.m), ceil_div(rows, tile.n), split)
    *before, product = whole.kernels
    whole = replace(whole, kernels=(*before, replace(product, grid=grid, groups=math.prod(grid))))
    consts = {"SPLIT": split, "PER": ceil_div(ceil_div(k, tile.k), split) * tile.k}
    return split_k.in_last_arriving(whole, grid[0] * grid[1], math.prod(grid) * tile.m * tile.n, consts)
