"""gemm.wgsl with each tile that the table may choose, the products by a vector, sum_parts.wgsl."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ort_gpu_ep.health.probe import PRODUCTS, Trial, agree, compare, probe, slower
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.ops import matvec
from ort_gpu_ep.ops.contraction import TILES, Tile

FACTOR = 10.0
"""A variant that takes so many times longer than its fastest sibling, for the same work, is a fault."""

SLOW = "the first variant takes 1 s longer"


def form_of(tile: Tile, split: int) -> str:
    return f"gemm {tile.m}x{tile.n}x{tile.k}*{split}"


def _product(trial: Trial, m: int, k: int, n: int, transposed: int, tolerance: float = 1e-5) -> None:
    """Gemm with bias; transposed: bit 0 A, bit 1 B."""
    a, b, c = (
        trial.normal(*((k, m) if transposed & 1 else (m, k))),
        trial.normal(*((n, k) if transposed & 2 else (k, n))),
        trial.normal(n),
    )
    wide_a, wide_b = (x.astype(np.float64) for x in (a, b))
    want = 0.5 * (wide_a.T if transposed & 1 else wide_a) @ (wide_b.T if transposed & 2 else wide_b) + 2.0 * c
    got = trial.node("Gemm", 13, [a, b, c], transA=transposed & 1, transB=transposed >> 1, alpha=0.5, beta=2.0)[0]
    agree(f"Gemm {m} x {k} x {n}, transposed {transposed:02b}", got, want, tolerance)


def _tile_probe(tile: Tile) -> None:
    """Adds the probe of a tile: each orientation, around its edges, whole and split, and with windows read in place."""
    whole = (
        (0, 1, (tile.m, 4 * tile.k, tile.n)),
        (1, 1, (tile.m + 1, 4 * tile.k + 1, tile.n - 1)),
        (2, 1, (tile.m - 1, 37 * tile.k + 3, tile.n + 1)),
    )
    cut = (3, 2, (2 * tile.m + 3, 9 * tile.k - 1, 5))

    def check(trial: Trial) -> str:
        for _ in range(trial.rounds):
            software = trial.gpu.info.is_software  # whole products and windows are then seen in other probes only
            for transposed, split, (m, k, n) in (cut,) if software else (*whole, cut):
                with forced(form_of(tile, split)):
                    _product(trial, m, k, n, transposed)
            if not software:
                with forced(form_of(tile, 1)):
                    filters = trial.normal(tile.m + 1, 3, 3, 3)
                    compare(trial, "Conv", 11, [trial.normal(1, 3, 9, 11), filters], pads=[1, 1, 1, 1], strides=[2, 1])
        return "4 shapes and a window"

    probe(f"gemm {tile.m}x{tile.n}x{tile.k}", "kernels", disables=("gemm.wgsl", "sum_parts.wgsl"))(check)


@probe("matrix product", "kernels", disables=("gemm.wgsl", "sum_parts.wgsl"), quick=True)
def matrix_product(trial: Trial) -> str:
    """The tile and split that the table itself chooses."""
    for _ in range(trial.rounds):
        a, b = trial.normal(67, 129), trial.normal(129, 35)
        agree("MatMul", trial.node("MatMul", 13, [a, b])[0], a.astype(np.float64) @ b, 1e-5)
    return "67 x 129 x 35"


for _tile in TILES:
    _tile_probe(_tile)


def _matvec_probe(
    name: str, shader: str, forms: Sequence[str], orders: Sequence[int], shapes: Sequence[tuple[int, int, int]]
) -> None:
    """Adds the probe of a kernel that multiplies by a vector. orders: whether B is transposed. shapes: m, k, n."""

    def check(trial: Trial) -> str:
        for form, (m, k, n), transposed in trial.repeated(forms, shapes, orders, of=4):
            with forced(form):
                _product(trial, m, k, n, transposed)
        return f"{len(forms) * len(orders) * len(shapes)} products"

    probe(
        name,
        "kernels",
        disables=(shader, "sum_parts.wgsl") if shader != "matvec_rows.wgsl" else (shader,),
        ops=PRODUCTS,
    )(check)


_matvec_probe(
    "matrix times vector",
    "matvec.wgsl",
    ("any",),
    (0, 2),
    ((1, 2051, 1000), (1, 33, 7), (1001, 130, 1), (5, 4099, 1), (1, 5000, 3)),
)
_matvec_probe(
    "matrix times vector, rows by fours",
    "matvec_rows.wgsl",
    [f"rows {rows}" for rows in matvec.ROWS],
    (2,),
    ((1, 2052, 1001), (1, 32, 7), (1001, 132, 1), (1, 5000, 3)),
)
_matvec_probe(
    "matrix times vector, columns by fours",
    "matvec_columns.wgsl",
    [f"columns {side}" for side in matvec.SIDES],
    (0,),
    ((1, 2051, 1000), (1, 33, 8), (1, 130, 1004), (1, 5001, 36)),
)


@probe("sums of parts", "kernels", disables=("sum_parts.wgsl",))
def sum_parts(trial: Trial) -> str:
    """A product whose K is cut into 2 and into 12 parts."""
    for (split,) in trial.some((2, 12), of=2, turn=1):
        with forced(form_of(TILES[-1], split)):
            _product(trial, 17, 400, 19, 0)
    return "2 splits"


@probe("speed of the tiles", "performance", disables=("gemm.wgsl",), fault=SLOW)
def speed(trial: Trial) -> str:
    """Each tile on a product that it fills exactly; none may take ten times as long as the fastest."""
    a, b = trial.normal(256, 128), trial.normal(256, 128)
    times: dict[str, float] = {}
    for tile in TILES[-2:] if trial.gpu.info.is_software else TILES:
        name = f"{tile.m}x{tile.n}x{tile.k}"
        with forced(form_of(tile, 1)):
            times[name] = min(_seconds(trial, a, b) for _ in range(4))
        if trial.planted == SLOW and len(times) == 1:
            times[name] += 1.0
    slower(times, FACTOR)
    return f"slowest {max(times.values()) / min(times.values()):.1f} times the fastest"


def _seconds(trial: Trial, a: Array, b: Array) -> float:
    start = time.perf_counter()
    trial.node("Gemm", 13, [a, b], transA=1)  # without transA it is a product for product.wgsl
    return time.perf_counter() - start
