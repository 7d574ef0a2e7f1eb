"""Products in register tiles (product.wgsl): matrices whose rows lie along K, and convolutions over channels that lie
together.

This module owns the tiles, what each is estimated to take, and the packing of constant weights. The estimate's figures,
and each tile's part of the full rate, are fitted to what was measured on an H200: all products of ResNet-50 at batch 32
in eleven forms each, five of them also in bytes and in float16, 20 layers of benchmarks/tiles.py at batch 1 in ten; and
to an earlier estimate of one or two workgroups a unit, of its 56 layers in up to ten forms. Of what was measured it
picks what takes 1.1 % longer than the best, over ResNet-50 at batch 32, and 0.4 %, over the 20 layers; of a layer 6 %
at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from ort_gpu_ep.ir.symbolic import hint, is_symbolic
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, FLOATS, DType, Shape, TensorType
from ort_gpu_ep.kernels.cost_parameters import FMA_NBYTES, Figures, within_registers
from ort_gpu_ep.kernels.forms import Form, lower
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Strided, kernel
from ort_gpu_ep.kernels.target import DEFAULT_TARGET, Choice, Limits, Target
from ort_gpu_ep.ops import split_k
from ort_gpu_ep.ops.tile_weights import PACKED_ROWS as PACKED_ROWS
from ort_gpu_ep.ops.tile_weights import Phases as Phases
from ort_gpu_ep.ops.tile_weights import Weights as Weights
from ort_gpu_ep.ops.tile_weights import packing as packing


@dataclass(frozen=True, slots=True)
class Tile:
    """A workgroup's share of a product.

    m, n: columns and rows. fours: of K in a step. own_m, own_n: sums of a lane. slices: teams that share a step's K.
    efficiency: of a unit's multiply-adds at full rate, without what a step takes beside them.
    """

    name: str
    m: int
    n: int
    fours: int
    own_m: int
    own_n: int
    slices: int
    efficiency: float

    @property
    def team(self) -> int:
        return self.m // self.own_m * (self.n // self.own_n)

    @property
    def workgroup_size(self) -> int:
        return self.team * self.slices

    @property
    def row(self) -> int:
        """Between two fours of K in workgroup memory: padded, so that neighbours fall into different banks."""
        return self.n + max(1, 8 // self.fours)

    @property
    def rounds(self) -> int:
        """In which the teams' sums go through workgroup memory, 48 KiB at most."""
        rounds = 1
        while self.slices > 1 and self.slices * self.m * self.n * 4 // rounds > 49152:
            rounds *= 2
        return rounds

    @property
    def buffer(self) -> int:
        """Fours of a step."""
        return self.fours * (self.m + self.row)

    @property
    def sums(self) -> int:
        """Vectors of the teams' sums in a round."""
        return self.slices * self.m * self.n // 4 // self.rounds if self.slices > 1 else 0

    @property
    def read_nbytes(self) -> int:
        """Of workgroup memory in a step: of each four of K a lane reads a vector for each of its rows, and for each of
        its columns; lanes that read the same read it once."""
        return int(FMA_NBYTES / 2 * 16 * self.fours * self.team * (self.own_m + self.own_n))

    @property
    def shared(self) -> int:
        """Workgroup memory in vectors of 16 bytes: two buffers, or the teams' sums."""
        return max(2 * self.buffer, self.sums)

    @property
    def registers(self) -> int:
        """Of a lane: its sums, what it multiplies of four of K, and what it loads for the next step."""
        return self.own_m * self.own_n + 4 * (self.own_m + self.own_n + self.loads_m + self.loads_n) + OTHER_REGISTERS

    @property
    def loads_m(self) -> int:
        """Vectors of weights that a lane loads for a step."""
        return self.fours * self.m // self.workgroup_size

    @property
    def loads_n(self) -> int:
        """Likewise of rows."""
        return self.fours * self.n // self.workgroup_size

    def workgroup_nbytes(self, halves: bool) -> int:
        """In float16 the sums lie beside the buffers."""
        return 8 * 2 * self.buffer + 16 * self.sums if halves else 16 * self.shared

    def resident(self, by: Figures, halves: bool) -> int:
        """Workgroups that a compute unit has at once."""
        return max(1, by.unit_workgroup_nbytes // self.workgroup_nbytes(halves))

    def fits(self, limits: Limits, halves: bool = False) -> bool:
        """Whether the adapter can run it; in float16 also whether it is worth that: a lane has each sum in float32,
        too, and a step of four fours takes as little workgroup memory as one of two in float32."""
        nbytes, sums = self.workgroup_nbytes(halves), self.own_m * self.own_n
        return (
            self.workgroup_size <= limits.max_invocations
            and nbytes <= limits.max_workgroup_nbytes
            and not (halves and (sums > MOST_SUMS or self.fours < LEAST_FOURS))
        )


OTHER_REGISTERS = 40
"""Of a lane, besides those of its tile: places in memory, mostly. Intel's compiler, with 128, spills 306 of 128x128, 31
of 64x64, 6 of 64x32/4 where it has windows, and nothing of 64x64/4 (benchmarks/compilers.py)."""

TILES = (
    Tile("64x64/4", 64, 64, 8, 8, 4, 4, 0.651),
    Tile("64x32/4", 64, 32, 8, 8, 4, 4, 0.6045),
    Tile("32x32/4", 32, 32, 8, 4, 4, 4, 0.569),
    Tile("32x16/4", 32, 16, 8, 4, 4, 4, 0.476),
    Tile("32x64", 32, 64, 4, 4, 4, 1, 0.588),
    Tile("64x64", 64, 64, 4, 8, 4, 1, 0.67),
    Tile("128x128", 128, 128, 4, 8, 8, 1, 0.713),
    Tile("32x32", 32, 32, 4, 4, 4, 1, 0.5685),
    Tile("16x32/4", 16, 32, 8, 4, 4, 4, 0.379),
    Tile("16x16", 16, 16, 4, 4, 4, 1, 0.088),
    Tile("64x64x8", 64, 64, 2, 8, 4, 1, 0.7365),
    Tile("128x64x8", 128, 64, 2, 8, 8, 1, 0.74),
    Tile("64x32x8", 64, 32, 2, 8, 4, 1, 0.671),
)
"""Those of 16 are for few columns, and for adapters with little workgroup memory."""

MOST_SUMS = 32
"""Of a lane, in float16: with twice as many a unit has too few workgroups at once. On an H200 128x128 takes longer than
64x64."""

LEAST_FOURS = 4
"""Of a step, in float16."""

BYTE_CUT_FACTOR = 1.15
"""A product of bytes whose K is cut counts so many times its estimate: its parts are 32-bit sums, in networks whose
other values are bytes. ResNet-50 takes as long on an H200 with six of its products cut as without, and a quarter more
memory."""

BYTE_ENDS, BYTE_SUMS_FACTOR = 0.8, 1.2
"""Of what ends a product of bytes, the part that no other workgroup's steps hide; how much longer its work takes in a tile
of more than MOST_SUMS. On an H200 1024 to 2048 channels take 98 us in 128x128, 79 in 64x32x8."""

HALVES_GAIN = 1.27
"""How much faster products of float16 are on an H200 in a tile of one team; sums of several teams take as long as they
gain."""

CHUNK = 64
"""Of K: so many products in float16 are summed in float16. More would take less time, and lose digits."""

SPLIT_TILES = ("64x64/4", "64x32/4", "32x32/4", "64x64")
"""Those that are offered with K cut over workgroups."""
MIN_SPLIT_STEPS = 2

LOADED = 8
"""Vectors that a lane loads for the steps fused behind a product before it stores the first: half of what its largest
tile makes."""

record(
    "product.wgsl",
    "product",
    loop_bound=lambda k: k["PER"] + k["SPLIT"],
    flops=lambda k: 8 * k["ROWS"] * k["M"] * k["KQ"] * k["BATCH"] * k["GROUP_COUNT"],
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Where the sums of a row go: its pixel makes `steps` pixels of y [image, *size], of which those before `crop` are
    not there.

    filters: of y. planes: y is stored [image, filters, *size], and a column may be none of its filters.
    """

    filters: int
    steps: Shape
    crop: Shape
    size: Shape
    planes: bool

    @property
    def consts(self) -> dict[str, Const]:
        first = 3 - len(self.steps)
        names = (("STEP_Z", "STEP_Y", "STEP_X"), ("CROP_Z", "CROP_Y", "CROP_X"), ("DEPTH_Y", "HEIGHT_Y", "WIDTH_Y"))
        named = zip((n for some in names for n in some[first:]), (*self.steps, *self.crop, *self.size), strict=True)
        return {
            "SPREAD": 2 if self.planes else 1,
            "FILTERS": self.filters if self.planes else self.filters // 4,
            **dict(named),
        }


@dataclass(frozen=True, slots=True)
class TiledProduct:
    """y[row, m] = alpha * sum_k x[row, k] w[k, m] + bias[m]. x: input 0.

    window: what Window.consts writes, of a convolution; empty for a matrix. pointwise: one tap without padding.
    strided: with steps. planes: channels of an x that is stored in planes, else 0. bias: the input that has it. batch:
    of so many matrices, one after another in x, in y, and in packed weights. bytes: an element of K is a word of four
    (byte_tiles.py). groups: so many products of m columns side by side. spread: where y is not [row, m]. wide: an
    operand has numbers that float16 does not reach to.
    """

    rows: int
    m: int
    weights: Weights
    bias: int | None = None
    alpha: float = 1.0
    window: Mapping[str, Const] = field(default_factory=dict)
    pointwise: bool = True
    strided: bool = False
    planes: int = 0
    bytes: bool = False
    groups: int = 1
    spread: Spread | None = None
    target: Target = DEFAULT_TARGET
    batch: int = 1
    wide: bool = False

    @property
    def columns(self) -> int:
        """Of all groups."""
        return self.m * self.groups

    @property
    def fours(self) -> int:
        """Of K."""
        return self.weights.taps * self.weights.padded // 4

    @property
    def halves(self) -> bool:
        """Whether it is calculated in float16: `precision=f16acc`, but not a batch of products (Winograd's make errors
        larger), nor one of numbers that would be infinite there.
        """
        limits = self.target.limits
        plain = not self.bytes and self.batch == 1 and not self.wide
        return limits.precision == "f16acc" and plain and limits.allow("product.wgsl", FLOAT16.feature)

    @property
    def packed_rows(self) -> int:
        """Of packed weights: the same for every tile, so that forms share what was packed."""
        return ceil_div(self.fours * 4, PACKED_ROWS) * PACKED_ROWS

    @property
    def key(self) -> str:
        """What a choice was made for."""
        size = f"{hint(self.rows)}x{self.m}x{self.weights.taps}*{self.weights.channels}"
        varying = "+" if is_symbolic(self.rows) or any(is_symbolic(v) for v in self.window.values()) else ""
        steps = "".join(
            f" {name.lower()} {self.window[name]}"
            for name in ("STRIDE_Z", "STRIDE_Y", "STRIDE_X")
            if self.window.get(name, 1) != 1
        )
        forms = f"{' planes' if self.planes else ''}{f' of {self.groups}' if self.groups > 1 else ''}{' spread' if self.spread else ''}"
        return f"{'bytes' if self.bytes else 'product'} {size}{varying}{forms}{steps}"


def fits(target: Target) -> bool:
    """Whether the adapter can run one of the tiles."""
    return any(tile.fits(target.limits) for tile in TILES)


def forms(product: TiledProduct) -> dict[str, Form]:
    """product.wgsl in each of its shares."""
    return {
        name: Form(estimate_ns(product, *share), partial(_lowered, product, *share))
        for name, share in shares(product).items()
    }


def shares(product: TiledProduct) -> dict[str, tuple[Tile, int]]:
    """Every tile and number of parts of K that could be taken, by name. Small tiles of large products are more than a
    grid may have, and large ones more than a lane has registers for.
    """
    most, fitting = (
        product.target.limits.max_groups_per_dimension,
        [t for t in TILES if t.fits(product.target.limits, product.halves)],
    )
    rows, columns = int(hint(product.rows)), int(hint(product.m))
    by = product.target.figures
    of_registers = within_registers(fitting, lambda t: t.registers, by.lane_registers, by.registers)
    tiles = [t for t in of_registers if max(ceil_div(rows, t.n), ceil_div(columns, t.m)) <= most] or fitting
    return {f"{tile.name}*{split}": (tile, split) for tile in tiles for split in _splits(product, tile)}


def _splits(product: TiledProduct, tile: Tile) -> Iterator[int]:
    yield 1
    if tile.name not in SPLIT_TILES or (
        product.spread and (is_symbolic(product.rows) or not may_arrive(product, tile))
    ):
        return
    steps, tiles, by = ceil_div(product.fours, tile.fours), _tiles(product, tile), product.target.figures
    for split in sorted({aim // tiles for aim in (by.few_groups, by.many_groups)}):
        if 1 < split <= steps // MIN_SPLIT_STEPS:
            yield split


def _tiles(product: TiledProduct, tile: Tile) -> int:
    return max(1, int(hint(tiles_of(product, tile)))) * product.batch


def estimate_ns(product: TiledProduct, tile: Tile, split: int) -> float:
    """By the target's figures: the workgroups that a unit has at once, again and again until all are done, each step with
    what they wait for together and the work of each, or what that reads of workgroup memory; the stores, while the
    others go on.
    """
    by = product.target.figures
    groups = _tiles(product, tile) * split
    waves = ceil_div(groups, by.units)
    resident = min(waves, tile.resident(by, product.halves))
    steps = ceil_div(ceil_div(product.fours, tile.fours), split)
    launch_ns, step_ns, arrival_ns = (
        (by.byte_launch_ns, by.byte_step_ns, by.byte_arrival_ns)
        if product.bytes
        else (by.tile_launch_ns, by.tile_step_ns if product.pointwise else by.window_step_ns, by.arrival_ns)
    )
    gain = HALVES_GAIN if product.halves and tile.slices == 1 else 1.0
    work = tile.m * tile.n * tile.fours * 4 / (by.fma_per_ns * tile.efficiency * gain)
    work *= BYTE_SUMS_FACTOR if product.bytes and tile.own_m * tile.own_n > MOST_SUMS else 1.0
    reads = tile.read_nbytes / (2 if product.halves else 1) * by.workgroup_byte_ns
    time = launch_ns + steps * (ceil_div(waves, resident) * step_ns + waves * max(work, reads))
    # of bytes, too: what ends them takes as long
    alone = BYTE_ENDS if product.bytes else 0.0
    time += 4 * (groups // split) * tile.m * tile.n * by.byte_ns * (alone + (1.0 - alone) / resident)
    if split > 1 and may_arrive(product, tile):
        time += arrival_ns + by.arrival_element_ns * split * tile.m * tile.n
    elif split > 1:
        time += by.dispatch_ns + 8 * split * hint(product.rows) * product.columns * by.byte_ns
    return float(time * BYTE_CUT_FACTOR) if product.bytes and split > 1 else float(time)


def are_wide(node: BoundNode) -> bool:
    """Whether input 0 or 1 is a constant that float16 does not reach to. Asked for f16acc alone: to look at each weight
    takes long."""
    return node.target.limits.precision == "f16acc" and any(node.input(i).exceeds_half for i in (0, 1))


def of_matrices(
    node: BoundNode,
    rows: int,
    m: int,
    k: int,
    transposed: bool = False,
    bias: int | None = None,
    alpha: float = 1.0,
) -> TiledProduct | None:
    """The product of inputs 0, [rows, k], and 1, [k, m] (transposed: [m, k]); None where another kernel is to do it.

    bias: the input that holds [m].
    """
    a, b = node.input(0), node.input(1)
    if is_symbolic(m) or is_symbolic(k) or not (a.dtype is b.dtype and a.dtype in FLOATS and fits(node.target)):
        return None
    if k % 4 or m % 4 or k == 0 or m == 0 or hint(rows) < 2:
        return None
    weights = Weights(1, k, 1, k if transposed else 1, 1 if transposed else m, 0, b.is_constant, dtype=b.dtype)
    product = TiledProduct(rows, m, weights, bias, alpha, target=node.target, wide=are_wide(node))
    lies_right = weights.are_rows(m) and k % PACKED_ROWS == 0
    return product if weights.constant or lies_right else None


def lower_tiled(product: TiledProduct, out: TensorType) -> Lowering:
    """The kernels of a product in the best of its shares."""
    return lower(product.target, product.key, forms(product), out)


def _lowered(product: TiledProduct, tile: Tile, split: int, choice: Choice, out: TensorType) -> Lowering:
    """The weights packed, if they don't lie right already; the product; where K is cut and the parts are not added up by
    the product itself, their sum."""
    per = ceil_div(ceil_div(product.fours, tile.fours), split)
    rows = product.packed_rows
    kernels, temps = list[Kernel](), list[tuple[str, TensorType]]()
    weights: int | str = product.weights.source
    if rows != product.weights.taps * product.weights.channels or not product.weights.are_rows(product.columns):
        temps.append(("packed", TensorType(product.weights.dtype, (rows, product.columns))))
        kernels.append(packing(product.weights, temps[0][1]))
        weights = "packed"
    by_dispatch = split > 1 and not may_arrive(product, tile, split)
    built = tiled_kernel(product, tile, split, per, weights, None if by_dispatch else product.bias, choice)
    whole = Lowering((out,), (*kernels, replace(built, outputs=(out,), writes=(("y", 0),))), tuple(temps))
    if by_dispatch:
        index = Strided((product.rows, product.columns), (0, 1))
        return split_k.in_dispatch(whole, split, product.alpha, 1.0, product.bias, index)
    return whole if split == 1 else in_last_arriving(whole, product, tile, split)


def may_arrive(product: TiledProduct, tile: Tile, split: int = 0) -> bool:
    """Whether the last workgroup may add up so many parts of K; 0: how many is not looked at."""
    shader, nbytes = "byte_product.wgsl" if product.bytes else "product.wgsl", tile.workgroup_nbytes(product.halves)
    size = tiles_of(product, tile) * split * tile.m * tile.n if split else 0
    return split_k.may_arrive(product.target.limits, shader, nbytes, size)


def in_last_arriving(
    whole: Lowering, product: TiledProduct, tile: Tile, split: int, dtype: DType = FLOAT32
) -> Lowering:
    """A product in tiles in so many parts of K, of that type."""
    groups = tiles_of(product, tile)
    return split_k.in_last_arriving(whole, groups, groups * split * tile.m * tile.n, {"LAST": True}, dtype)


def tiles_of(product: TiledProduct, tile: Tile) -> int:
    """Workgroups that a product has in tiles of that size, with K whole."""
    return product.groups * ceil_div(product.m, tile.m) * ceil_div(product.rows, tile.n)


def consts_of(tile: Tile, halves: bool = False) -> dict[str, Const]:
    """What a shader of products in tiles has of its tile."""
    outputs = tile.own_m // 4 * tile.own_n
    return {
        "TM": tile.m,
        "TN": tile.n,
        "TQ": tile.fours,
        "MM": tile.own_m,
        "NN": tile.own_n,
        "SLICES": tile.slices,
        "TEAM": tile.team,
        "TX": tile.n // tile.own_n,
        "TY": tile.m // tile.own_m,
        "A_LOADS": tile.loads_m,
        "B_LOADS": tile.loads_n,
        "A_SIZE": tile.fours * tile.m,
        "B_ROW": tile.row,
        "BUFFER": tile.buffer,
        "SHARED": 2 * tile.buffer if halves else tile.shared,
        "SUMS": tile.sums,
        "ROUNDS": tile.rounds,
        "EACH": outputs // tile.rounds,
        "OUTPUTS": outputs // tile.slices if tile.slices > 1 else outputs,
    }


def tiled_kernel(
    product: TiledProduct, tile: Tile, split: int, per: int, weights: int | str, bias: int | None, choice: Choice
) -> Kernel:
    """product.wgsl without its output."""
    fours, outputs = product.weights.padded // 4, tile.own_m // 4 * tile.own_n
    consts: dict[str, Const] = {
        "ROWS": product.rows,
        "M": product.m,
        "M4": product.m // 4,
        "C4": fours,
        "KQ": product.fours,
        "STEPS": ceil_div(product.fours, tile.fours),
        "PER": per,
        "SPLIT": split,
        "LAST": False,
        "ALPHA": product.alpha,
        "LOADED": LOADED,
        "AT_ONCE": max(1, 24 // outputs * tile.slices),
        "BATCH": product.batch,
        "W_ROWS": product.packed_rows,
        "HALVES": product.halves,
        "CHUNK": CHUNK * tile.slices // (2 * 4 * tile.fours),
        **consts_of(tile, product.halves),
        "POINTWISE": product.pointwise,
        "STRIDED": product.strided,
        "PLANES": product.planes > 0,
        "CHANNELS": product.planes,
        "GROUP_COUNT": product.groups,
        **(product.spread.consts if product.spread else {"SPREAD": 0}),
        "TAPS": not product.pointwise and not product.planes and fours % tile.fours == 0,
        **product.window,
    }
    by_elements = product.spread is not None and product.spread.planes
    final = () if by_elements else ("y",) if bias is None else ("y", "c")
    vectors = ("w", *final, *(() if product.planes else ("x",)))
    return kernel(
        "product.wgsl",
        [],
        consts=consts,
        workgroup_size=tile.workgroup_size,
        workgroup_nbytes=tile.workgroup_nbytes(product.halves),
        grid=(product.groups * ceil_div(product.m, tile.m), ceil_div(product.rows, tile.n), split * product.batch),
        reads={"x": 0, "w": weights, **({} if bias is None else {"c": bias})},
        vectors=vectors,
        choice=choice,
        features=(FLOAT16.feature,) if product.halves else (),
    )
