"""product.wgsl with each of its tiles, depthwise_last.wgsl, grouped_last.wgsl, winograd*.wgsl: convolutions whose
channels lie together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import numpy as np

from ort_gpu_ep.health.probe import (
    CONVOLUTIONS,
    IN_GROUPS,
    Trial,
    Unsupported,
    agree,
    graph_of,
    pairs_of,
    probe,
    solve,
    solves,
)
from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.ir.types import FLOAT16
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.records import RECORDS
from ort_gpu_ep.kernels.target import LAST_ARRIVING
from ort_gpu_ep.ops import tiles, winograd
from ort_gpu_ep.ops.conv_last import problem_of
from ort_gpu_ep.ops.tiles import SPLIT_TILES, TILES, Tile

LAST_ROW = (r"if \((m\w+) < M4 && (o\w+) < ROWS\)", r"if (\1 < M4 && \2 + 1u < ROWS)")
"""The fault of the tiles' probes: the last row is left out."""

IN_HALVES = ("64x64", "32x32/4", "16x16")
"""Tiles of the probe in float16: of several teams and of one, of few columns."""

FIRST = next(tile for tile in TILES if tile.name == "32x32/4")
"""The tile that the first session of an adapter probes."""

SMALL = next(tile for tile in TILES if tile.name == "32x16/4")
"""The tile of products that are not what a probe is about: it is compiled soonest."""

ARRIVALS = 6
"""Runs of a round of the probe of the last arriving workgroup: what a cache holds back shows now and then."""


@contextmanager
def chosen(tile: Tile, split: int) -> Iterator[None]:
    """Every product in tiles that is lowered meanwhile gets this one (a worker probes in one thread)."""
    usual = tiles.shares
    tiles.shares = lambda product: {"probed": (tile, split)}
    try:
        with forced("probed"):
            yield
    finally:
        tiles.shares = usual


def _tile_probe(tile: Tile) -> None:
    """Adds the probe of a tile: windows and none, around its edges, K in steps and across them, whole and cut."""
    windows = (
        problem_of((1, 72, 5, 13), (tile.m + 4, 72, 1, 1)),
        problem_of((1, 64, 9, 8), (tile.m - 4, 64, 3, 3), pads=(1, 1, 1, 1)),
        problem_of((2, 16, 7, 5), (16, 16, 3, 2), strides=(2, 1)),
        problem_of((1, 3, 17, 15), (12, 3, 5, 5), pads=(2, 2, 2, 2), strides=(2, 2)),
    )
    splits = (1, 3) if tile.name in SPLIT_TILES else (1,)

    def check(trial: Trial) -> str:
        if not tile.fits(trial.gpu.limits):
            raise Unsupported("more workgroup memory or invocations than this adapter allows: not used")
        for _ in range(trial.rounds):
            turn = TILES.index(tile)
            for ((split, window),) in trial.some([*product(splits, windows)], of=len(splits) * len(windows), turn=turn):
                with chosen(tile, split):
                    solve(trial, window)
        return "4 windows"

    probe(f"product in tiles {tile.name}", "kernels", disables=("product.wgsl",), fault=LAST_ROW, quick=tile == FIRST)(
        check
    )


for _tile in TILES:
    _tile_probe(_tile)


@probe(
    "last arriving workgroup",
    "kernels",
    disables=(LAST_ARRIVING,),
    fault=(r"!= SPLIT - 1u", "!= SPLIT - 2u"),
    quick=True,
)
def last_arriving(trial: Trial) -> str:
    """Sums of whole numbers whose parts other workgroups stored, added up by the one that arrives last: each must be
    there."""
    usual = trial.gpu.limits
    trial.gpu.limits = replace(usual, features=usual.features | {LAST_ARRIVING})
    tile, split, arrivals = FIRST, 12, 2 if trial.gpu.info.is_software else ARRIVALS
    try:
        for _ in range(arrivals * trial.rounds if tile.fits(usual) else 0):
            a, b = (trial.integers(-8, 9, *shape).astype(np.float32) for shape in ((100, 1536), (1536, 64)))
            with chosen(tile, split):
                agree("a sum of 12 parts", trial.node("MatMul", 13, [a, b])[0], a @ b, 0.0)
    finally:
        trial.gpu.limits = usual
    return f"{8 * split} workgroups, {arrivals} times"


@probe("products in float16", "kernels", disables=(FLOAT16.feature,), fault=LAST_ROW)
def in_halves(trial: Trial) -> str:
    """Whole numbers that float16 holds, as it does the sums of them that it makes: nothing is rounded. By constant
    weights and others."""
    limits = trial.gpu.limits
    precisions = ["f16", *(["f16acc"] if limits.allow("product.wgsl", FLOAT16.feature) else [])]
    # the others are compiled for half a second and more
    forms = IN_HALVES[1:2] if trial.gpu.info.is_software else IN_HALVES
    ran = [tile for tile in TILES if tile.name in forms and tile.fits(limits) and tile.fits(limits, halves=True)]
    node = Node("MatMul", ("a", "b"), ("y",), version=13)
    for _ in range(trial.rounds):
        a, b = (trial.integers(-4, 5, *shape).astype(np.float32) for shape in ((70, 192), (192, 180)))
        constant, brought = graph_of({"a": a}, {"b": b}, node), graph_of({"a": a, "b": b}, {}, node)
        for tile, precision in trial.some(ran, (*precisions, ""), of=len(precisions)):
            with chosen(tile, 3 if tile.name in SPLIT_TILES else 1):
                (got,) = (
                    trial.graph(constant, [a], precision) if precision else trial.graph(brought, [a, b], precisions[-1])
                )
                agree(
                    f"{precision or precisions[-1]} by a {'constant' if precision else 'matrix'}, {tile.name}",
                    got,
                    a @ b,
                    0.0,
                )
    return f"{len(ran)} tiles, {', '.join(precisions)}"


solves(
    "depthwise, channels last",
    *RECORDS["depthwise_last.wgsl"].problems,
    about="Windows that are unrolled and one that is not, strides, dilations, a batch.",
    disables=("depthwise_last.wgsl",),
    fault=(r"if \(i >= ROWS \* C4\)", "if (i + 1u >= ROWS * C4)"),
    ops=IN_GROUPS,
)


@probe(
    "several groups, channels last",
    "kernels",
    disables=("grouped_last.wgsl",),
    fault=(r"block < LINES \* BLOCKS", "block + 1u < LINES * BLOCKS"),
    ops=IN_GROUPS,
    problems=RECORDS["grouped_last.wgsl"].problems,
)
def grouped(trial: Trial) -> str:
    """Every number of pixels and slices, where the last pixels of a row are alone; strides, dilations, a batch."""
    pairs = pairs_of(RECORDS["grouped_last.wgsl"].problems)
    for problem, form in pairs if trial.rounds > 1 else pairs[::5]:
        with forced(form):
            solve(trial, problem)
    return f"{len(pairs)} problems"


SPREAD = (
    problem_of((2, 12, 5, 7), (12, 8, 2, 2), "ConvTranspose", strides=(2, 2)),
    problem_of((1, 36, 6, 5), (36, 4, 4, 3), "ConvTranspose", strides=(2, 3), pads=(1, 0, 1, 2)),
    problem_of((1, 12, 7, 5), (12, 8, 3, 4), "ConvTranspose", strides=(2, 3)),
    problem_of((2, 16, 6, 5), (5, 16, 3, 3), pads=(1, 1, 1, 1)),
)
"""Convolutions whose outputs are sums of other places, and one whose filters are no fours."""
KEPT = problem_of((1, 16, 6, 5), (16, 3, 4, 4), "ConvTranspose", constant=True, strides=(2, 2), pads=(1, 1, 1, 1))


@probe(
    "sums of other places",
    "kernels",
    disables=("pack_phases.wgsl", "unpack_phases.wgsl"),
    ops={"ConvTranspose"},
    problems=(*SPREAD, KEPT),
)
def spread(trial: Trial) -> str:
    """ConvTranspose by phases, filters that are no fours; weights given back bit for bit."""
    for _ in range(trial.rounds):
        for problem in () if trial.gpu.info.is_software else SPREAD:
            solve(trial, problem)
        solve(trial, KEPT, back=True)
    return "5 convolutions"


PACKED = (
    problem_of((2, 16, 7, 5), (16, 16, 3, 2), constant=True, strides=(2, 1)),
    problem_of((1, 32, 9, 7), (16, 32, 1, 1), constant=True),
)


@probe("rows of weights", "kernels", disables=("pack_rows.wgsl", "unpack_rows.wgsl"), ops=CONVOLUTIONS, problems=PACKED)
def packed(trial: Trial) -> str:
    """Weights of windows, of planes and of a transposed matrix: packed once, used, and given back bit for bit."""
    for (problem,) in trial.repeated(PACKED, of=2):
        with chosen(FIRST, 1):  # whose probe has compiled the first product
            solve(trial, problem, back=True)
    return "2 shapes"


WINOGRAD = (
    problem_of((2, 12, 9, 6), (20, 12, 3, 3), constant=True, pads=(1, 1, 1, 1)),
    problem_of((1, 64, 8, 11), (32, 64, 3, 3), constant=True, pads=(0, 1, 2, 0)),
)


@probe("Winograd's convolution", "kernels", disables=winograd.SHADERS, ops=CONVOLUTIONS, problems=WINOGRAD)
def winograd_convolution(trial: Trial) -> str:
    """Tiles that reach over the edges of images, channels that fill no step, a bias; against the reference."""
    usual = trial.gpu.limits
    trial.gpu.limits = replace(usual, figures=replace(usual.figures, winograd_factor=1e-9))
    try:
        for (problem,) in trial.repeated(WINOGRAD, of=2, turn=1):
            solve(trial, problem)
    finally:
        trial.gpu.limits = usual
    return "2 shapes"
