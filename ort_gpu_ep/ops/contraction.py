"""Sums of products: which kernel, tile and split a matrix product (or a convolution as one) gets.

MatMul, Gemm and Conv state their product; this module owns the tables that choose how it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from ort_gpu_ep.ir.symbolic import hint, is_symbolic
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels.cost_parameters import within_registers
from ort_gpu_ep.kernels.forms import Form, lower
from ort_gpu_ep.kernels.problems import Problem, normal, problem
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import Const, Kernel, Lowering, Strided, kernel
from ort_gpu_ep.kernels.target import DEFAULT_TARGET, Choice, Target
from ort_gpu_ep.ops import matvec, split_k
from ort_gpu_ep.ops.matvec import Make, VectorProduct
from ort_gpu_ep.ops.matvec import Matrix as Matrix


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A workgroup's share of the product, m x n, and how deep in K one step reaches. An invocation owns 4 x 4
    elements. Compared by identity, which is sooner done."""

    m: int
    n: int
    k: int

    @property
    def workgroup_size(self) -> int:
        return self.m * self.n // 16

    @property
    def nbytes(self) -> int:
        """Workgroup memory: two buffers for each operand."""
        return 2 * 4 * self.k * (self.m + self.n)

    def registers(self, blocked: bool, window: bool) -> int:
        """Of an invocation: its sums, those of all blocks where there are several, what it multiplies, what it loads
        for the next step; of a window its pixels, and where each of its loads is."""
        loads = self.k * (self.m + self.n) // self.workgroup_size
        return (32 if blocked else 16) + 8 + (12 + 2 * loads if window else loads) + OTHER_REGISTERS


BLOCKED_STEPS = 32
"""Sums of more steps than this are added up in blocks: as gemm.wgsl has it."""

OTHER_REGISTERS = 28
"""Of an invocation, besides: places in memory, mostly. With these a matrix takes up to 11 less than Apple's compiler and
NVK's say, a window up to 24 more. Arm's, with 64, spills up to 150 of 32x32x16, also where K is one step."""

TILES = (Tile(64, 64, 16), Tile(32, 64, 16), Tile(64, 32, 16), Tile(32, 32, 16), Tile(16, 64, 8), Tile(64, 16, 8))
"""What gemm.wgsl may be told to use: at most two vec4 of each operand for an invocation to load in a step."""

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def form_of(tile: Tile, split: int) -> str:
    """The name of a form: K in so many parts."""
    return f"gemm {tile.m}x{tile.n}x{tile.k}*{split}"


def problems_of(tile: Tile) -> list[Problem]:
    """Around the tile's edges: each orientation, K whole and cut, a window that is read in place, a batch."""
    cut = _gemm_problem(2 * tile.m + 3, 9 * tile.k - 1, 5, True, True, form_of(tile, 2))
    whole = form_of(tile, 1)
    return [
        cut,
        _gemm_problem(tile.m, 4 * tile.k, tile.n, False, False, whole),
        _gemm_problem(tile.m + 1, 4 * tile.k + 1, tile.n - 1, True, False, whole),
        _gemm_problem(tile.m - 1, 37 * tile.k + 3, tile.n + 1, False, True, whole),
        problem(
            "Conv",
            11,
            normal(1, 3, 9, 11),
            normal(tile.m + 1, 3, 3, 3),
            forms=(whole,),
            pads=(1, 1, 1, 1),
            strides=(2, 1),
        ),
        problem("MatMul", 13, normal(2, 67, 131), normal(2, 131, 71), forms=(whole, form_of(tile, 3))),
    ]


def _gemm_problem(m: int, k: int, n: int, turned_a: bool, turned_b: bool, *forms: str) -> Problem:
    a, b = normal(*((k, m) if turned_a else (m, k))), normal(*((n, k) if turned_b else (k, n)))
    return problem(
        "Gemm",
        13,
        a,
        b,
        normal(n),
        tolerance=1e-5,
        forms=forms,
        alpha=0.5,
        beta=2.0,
        transA=int(turned_a),
        transB=int(turned_b),
    )


WINDOWS = (
    problem("Conv", 11, normal(2, 3, 7, 9), normal(15, 3, 3, 3), normal(15), pads=(1, 1, 1, 1)),
    problem("Conv", 11, normal(2, 17, 7, 9), normal(64, 17, 3, 3), normal(64), pads=(1, 1, 1, 1)),
    problem("Conv", 11, normal(2, 9, 7, 9), normal(65, 9, 3, 3), normal(65), pads=(1, 1, 1, 1)),
    problem("Conv", 11, normal(1, 33, 5, 13), normal(31, 33, 1, 1)),
    problem("Conv", 11, normal(1, 5, 31), normal(9, 5, 3), dilations=(2,), strides=(3,)),
    problem("Conv", 11, normal(1, 2, 5, 6, 7), normal(8, 2, 2, 3, 2)),
)
"""Convolutions as products: pointwise, padded, strided, dilated, of one and three dimensions, channels around tiles."""

record(
    "gemm.wgsl",
    "product",
    loop_bound=lambda k: k["STEPS"] * (1 + k["TK"] // 4) + 16,
    flops=lambda k: 2 * k["BATCH"] * k["M"] * k["N"] * k["K"],
    problems=[*WINDOWS, *(p for tile in TILES for p in problems_of(tile))],
)


@dataclass(frozen=True, slots=True)
class Product:
    """y[batch, m, n] = alpha * sum_k a[m, k] b[k, n] + beta * c, c read through `bias` (input 2) where there is one.

    window: constants of the implicit im2col of `b`; empty: `b` is stored as a matrix. images: elements between two
    images of a and of b where k is (image, output pixel) and n (channel, tap): the gradient of a convolution's weights.
    target: what it is to run on. fours: both operands are float32 and may be read by fours.
    """

    batch: int
    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    bias: Strided | None = None
    alpha: float = 1.0
    beta: float = 1.0
    window: Mapping[str, Const] = field(default_factory=dict)
    target: Target = DEFAULT_TARGET
    fours: bool = False
    images: tuple[int, int] | None = None

    @property
    def key(self) -> str:
        """What a choice is made for."""
        sizes = (self.batch, self.m, self.n, self.k)
        varying = "+" if any(map(is_symbolic, sizes)) else ""
        if not self.window and 1 in (self.m, self.n):
            by = _by_vector(self)
            order = "rows" if by.wide.k == 1 else "columns"
            return f"matvec {hint(by.batch)} x {hint(by.count)} x {hint(by.k)}{varying}, {order}"
        return f"matrices {' x '.join(str(hint(size)) for size in sizes)}{varying}{', window' if self.window else ''}"


def lower_product(product: Product, out: TensorType, target: int | str = 0) -> Lowering:
    """The kernels of a product that writes output 0, or the temporary `target`."""
    return lower(product.target, product.key, forms(product, target), out)


def forms(product: Product, target: int | str = 0) -> dict[str, Form]:
    """By matvec*.wgsl where an operand is a vector, else the tiles of gemm.wgsl with each number of parts of K."""
    if not product.window and 1 in (product.m, product.n):
        by_vector = matvec.kernels(_by_vector(product))
        return {name: Form(ns, partial(_lowered, product, make, target)) for name, (ns, make) in by_vector.items()}
    return {
        form_of(tile, split): Form(ns, partial(_lowered, product, partial(_gemm, product, tile, split), target))
        for tile, split, ns in _tiled(product)
    }


def _lowered(product: Product, make: Make, target: int | str, choice: Choice, out: TensorType) -> Lowering:
    """The product, and where K is cut the sum of its parts."""
    built, index = make(out), product.bias or Strided((1,), (0,))
    split, bias = int(dict(built.consts)["SPLIT"]), None if product.bias is None else 2
    last: tuple[float, float, int | None, Strided] = (product.alpha, product.beta, bias, index)
    alpha, beta, c, c_index = last if split == 1 else (1.0, 0.0, None, Strided((1,), (0,)))
    built = replace(
        built,
        consts=(*built.consts, ("ALPHA", float(alpha)), ("BETA", float(beta))),
        indices=(*built.indices, ("c_index", c_index)),
        reads=(*(built.reads or ()), *(() if c is None else (("c", c),))),
        writes=(("y", target),),
        choice=choice,
    )
    whole = Lowering((out,), (built,), () if target == 0 else ((str(target), out),))
    return whole if split == 1 else split_k.in_dispatch(whole, split, *last, target)


def _by_vector(product: Product) -> VectorProduct:
    wide, vector, count = (product.b, product.a, product.n) if product.m == 1 else (product.a, product.b, product.m)
    return VectorProduct(product.batch, count, product.k, wide, vector, product.fours, product.target)


def gemm_ns(product: Product) -> float:
    """What the best of gemm.wgsl's tiles is estimated to take, also for a vector."""
    return min(ns for _, _, ns in _tiled(product))


def _tiled(product: Product) -> Iterator[tuple[Tile, int, float]]:
    """Tiles that the adapter's limits allow, numbers of parts of K, nanoseconds; with each number of parts the tiles
    that an invocation has registers for. Where limits allow none, the claim says so of the least.

    Sizes that vary count as in the run that is planned.
    """
    limits = product.target.limits
    tiles = [t for t in TILES if t.workgroup_size <= limits.max_invocations and t.nbytes <= limits.max_workgroup_nbytes]
    product = replace(product, **{name: hint(getattr(product, name)) for name in ("batch", "m", "n", "k")})
    tiles = tiles or [min(TILES, key=lambda t: t.nbytes)]
    by, few, window = product.target.figures, tuple(tiles), bool(product.window)
    steps = [BLOCKED_STEPS * t.k for t in tiles]
    kept = {
        split: _with_registers(
            few, tuple(product.k > of_k * split for of_k in steps), window, by.lane_registers, by.registers
        )
        for split in SPLITS
    }
    for tile in tiles:
        for split in SPLITS:
            if tile in kept[split] and (split == 1 or split * tile.k * 2 <= product.k):
                yield tile, split, _estimate_ns(product, tile, split)


@lru_cache(256)
def _with_registers(
    tiles: tuple[Tile, ...], blocked: tuple[bool, ...], window: bool, of_lane: int, of_unit: int
) -> frozenset[Tile]:
    """Those that an invocation has registers for. blocked: which of them sum in blocks."""
    registers = {t: t.registers(b, window) for t, b in zip(tiles, blocked, strict=True)}
    return frozenset(within_registers(tiles, registers.__getitem__, of_lane, of_unit))


def _estimate_ns(product: Product, tile: Tile, split: int) -> float:
    """Time by the target's figures: each step takes the longer of its latency and the work of the workgroups that share
    a unit."""
    by = product.target.figures
    groups = product.batch * -(-product.m // tile.m) * -(-product.n // tile.n) * split
    steps = -(-product.k // (tile.k * split))
    work = tile.m * tile.n * tile.k * by.tile_fma_ns + (tile.m + tile.n) * tile.k * by.load_ns
    time = steps * max(by.step_ns, -(-groups // by.units) * work)
    if split > 1:
        time += by.dispatch_ns + 8 * split * product.batch * product.m * product.n * by.byte_ns
    return time


_NO_WINDOW = {f"{name}_{axis}": 1 for name in ("WINDOW", "STRIDE", "DILATION", "PAD") for axis in "ZYX"} | {
    "DEPTH": 1,
    "HEIGHT": 1,
    "WIDTH": 1,
    "OUT_DEPTH": 1,
    "OUT_HEIGHT": 1,
    "OUT_WIDTH": 1,
}


def _gemm(product: Product, tile: Tile, split: int, out: TensorType) -> Kernel:
    """A workgroup for each tile and part of K."""
    tiles_m, tiles_n = -(-product.m // tile.m), -(-product.n // tile.n)
    sizes: dict[str, Const] = {
        "M": product.m,
        "N": product.n,
        "K": product.k,
        "BATCH": product.batch,
        "TM": tile.m,
        "TN": tile.n,
        "TK": tile.k,
        "TILES_M": tiles_m,
        "TILES_N": tiles_n,
        "SPLIT": split,
        "STEPS": -(-product.k // (tile.k * split)),
        "A_ROW": product.a.outer,
        "A_K": product.a.k,
        "B_K": product.b.k,
        "B_COL": product.b.outer,
        "A_K_FAST": product.a.k == 1,
        "B_K_FAST": product.b.k == 1 and product.b.outer != 1 and not product.window,
        "IM2COL": bool(product.window),
        "GRADIENT": product.images is not None,
        **(product.window or _NO_WINDOW),
    }
    sizes |= dict(zip(("A_IMAGE", "B_IMAGE"), product.images or (1, 1), strict=True))
    return kernel(
        "gemm.wgsl",
        [out],
        consts=sizes,
        indices={"a_base": product.a.base, "b_base": product.b.base},
        groups=product.batch * tiles_m * tiles_n * split,
        workgroup_size=tile.workgroup_size,
        workgroup_nbytes=tile.nbytes,
        reads={"a": product.a.source, "b": product.b.source},
    )
