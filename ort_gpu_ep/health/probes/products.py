"""gemm.wgsl with each tile that the table may choose, the products by a vector, sum_parts.wgsl."""

from __future__ import annotations

import time

import numpy as np

from ort_gpu_ep.health.probe import PRODUCTS, Trial, agree, probe, slower, solves
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.problems import normal, problem
from ort_gpu_ep.kernels.records import RECORDS
from ort_gpu_ep.ops.contraction import TILES, Tile, form_of, problems_of

FACTOR = 10.0
"""A variant that takes so many times longer than its fastest sibling, for the same work, is a fault."""

SLOW = "the first variant takes 1 s longer"


def _tile_probe(tile: Tile) -> None:
    """Adds the probe of a tile: each orientation, around its edges, whole and split, and with windows read in place. On a
    software adapter the split one: whole products and windows are then seen in other probes only."""
    problems = problems_of(tile)
    solves(
        f"gemm {tile.m}x{tile.n}x{tile.k}",
        *problems,
        of=sum(len(problem.forms) for problem in problems),
        about="The problems of the tile, around its edges.",
        disables=("gemm.wgsl", "sum_parts.wgsl"),
    )


@probe("matrix product", "kernels", disables=("gemm.wgsl", "sum_parts.wgsl"), quick=True)
def matrix_product(trial: Trial) -> str:
    """The tile and split that the table itself chooses."""
    for _ in range(trial.rounds):
        a, b = trial.normal(67, 129), trial.normal(129, 35)
        agree("MatMul", trial.node("MatMul", 13, [a, b])[0], a.astype(np.float64) @ b, 1e-5)
    return "67 x 129 x 35"


for _tile in TILES:
    _tile_probe(_tile)


for _name, _shader, _others in (
    ("matrix times vector", "matvec.wgsl", ("sum_parts.wgsl",)),
    ("matrix times vector, rows by fours", "matvec_rows.wgsl", ()),
    ("matrix times vector, columns by fours", "matvec_columns.wgsl", ("sum_parts.wgsl",)),
):
    solves(_name, *RECORDS[_shader].problems, of=4, disables=(_shader, *_others), ops=PRODUCTS)

solves(
    "sums of parts",
    *(problem("Gemm", 13, normal(17, 400), normal(400, 19), forms=(form_of(TILES[-1], split),)) for split in (12, 2)),
    of=2,
    about="A product whose K is cut into 2 and into 12 parts.",
    disables=("sum_parts.wgsl",),
)


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
