"""product.wgsl with each of its tiles, depthwise_last.wgsl, grouped_last.wgsl, winograd*.wgsl: convolutions whose
channels lie together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ort_gpu_ep.health.probe import CONVOLUTIONS, IN_GROUPS, Trial, Unsupported, agree, graph_of, probe, reference
from ort_gpu_ep.ir.graph import Array, Graph, Node
from ort_gpu_ep.ir.types import FLOAT16, Shape
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.target import LAST_ARRIVING
from ort_gpu_ep.ops import conv_last, tiles, winograd
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


def _convolution(trial: Trial, x: Shape, w: Shape, op: str = "Conv", **attributes: Any) -> None:
    """With bias; against the reference over planes."""
    filters = w[1 if op == "ConvTranspose" else 0]
    image, weights, bias = trial.normal(*x), trial.normal(*w), trial.normal(filters)
    reads_planes = op == "Conv" and w[1] <= 4 and attributes.get("group", 1) == 1
    stored = image if reads_planes else _stored(image)
    arrays = {"x": stored, "w": weights, "c": bias}
    node = Node(op, ("x", "w", "c"), ("y",), "", "", 11, attributes, channels_last=True)
    (got,) = trial.graph(graph_of(arrays, {}, node), [*arrays.values()])
    (want,) = reference(op, 11, [image, weights, bias], **attributes)
    agree(
        f"{op} {list(x)} {list(w)} {attributes or ''}, channels last",
        got,
        want if filters % 4 else want.transpose(0, 2, 3, 1),
    )


def _tile_probe(tile: Tile) -> None:
    """Adds the probe of a tile: windows and none, around its edges, K in steps and across them, whole and cut."""
    windows: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
        ((1, 72, 5, 13), (tile.m + 4, 72, 1, 1), {}),
        ((1, 64, 9, 8), (tile.m - 4, 64, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((2, 16, 7, 5), (16, 16, 3, 2), {"strides": (2, 1)}),
        ((1, 3, 17, 15), (12, 3, 5, 5), {"pads": (2, 2, 2, 2), "strides": (2, 2)}),
    )

    splits = (1, 3) if tile.name in SPLIT_TILES else (1,)

    def check(trial: Trial) -> str:
        if not tile.fits(trial.gpu.limits):
            raise Unsupported("more workgroup memory or invocations than this adapter allows: not used")
        for _ in range(trial.rounds):
            turn = TILES.index(tile)
            for ((split, (x, w, attributes)),) in trial.some(
                [*product(splits, windows)], of=len(splits) * len(windows), turn=turn
            ):
                with chosen(tile, split):
                    _convolution(trial, x, w, **attributes)
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


@probe(
    "depthwise, channels last",
    "kernels",
    disables=("depthwise_last.wgsl",),
    fault=(r"if \(i >= ROWS \* C4\)", "if (i + 1u >= ROWS * C4)"),
    ops=IN_GROUPS,
)
def depthwise(trial: Trial) -> str:
    """Windows that are unrolled and one that is not, strides, dilations, a batch."""
    for _ in range(trial.rounds):
        _convolution(trial, (2, 12, 9, 7), (12, 1, 3, 3), group=12, pads=(1, 1, 1, 1), strides=(2, 2))
        _convolution(trial, (1, 36, 11, 10), (36, 1, 7, 7), group=36, pads=(3, 3, 3, 3))
        _convolution(trial, (1, 8, 13, 9), (8, 1, 3, 2), group=8, dilations=(2, 3))
    return "3 windows"


def _stored(image: Array) -> Array:
    return np.ascontiguousarray(image.transpose(0, 2, 3, 1))


def _packed_convolution(trial: Trial, image: Array, weights: Array, bias: Array, **attributes: Any) -> Graph:
    """Of an image [N, C, H, W], with weights that are constants; against the reference over planes."""
    node = Node("Conv", ("x", "w", "c"), ("y",), "", "", 11, attributes, channels_last=True)
    graph = graph_of({"x": _stored(image), "c": bias}, {"w": weights}, node)
    (got,) = trial.graph(graph, [_stored(image), bias])
    (want,) = reference("Conv", 11, [image, weights, bias], **attributes)
    agree(f"Conv {list(image.shape)} with packed weights {list(weights.shape)}", got, want.transpose(0, 2, 3, 1))
    return graph


GROUPS: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((1, 64, 5, 7), (32, 32, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    ((2, 96, 9, 11), (36, 32, 1, 2), {"group": 3, "strides": (2, 2), "dilations": (1, 3)}),
)
"""Windows of several groups."""


@probe(
    "several groups, channels last",
    "kernels",
    disables=("grouped_last.wgsl",),
    fault=(r"block < LINES \* BLOCKS", "block + 1u < LINES * BLOCKS"),
    ops=IN_GROUPS,
)
def grouped(trial: Trial) -> str:
    """Every number of pixels and slices, where the last pixels of a row are alone; strides, dilations, a batch."""
    forms = conv_last.GROUPED_FORMS
    for (pixels, slices), (x, w, attributes) in trial.some(forms if trial.rounds > 1 else forms[::5], GROUPS):
        with forced(f"{pixels} pixels, {slices} slices"):
            _convolution(trial, x, w, **attributes)
    return f"{len(forms)} forms"


SPREAD: tuple[tuple[Shape, Shape, str, dict[str, Any]], ...] = (
    ((2, 12, 5, 7), (12, 8, 2, 2), "ConvTranspose", {"strides": (2, 2)}),
    ((1, 36, 6, 5), (36, 4, 4, 3), "ConvTranspose", {"strides": (2, 3), "pads": (1, 0, 1, 2)}),
    ((1, 12, 7, 5), (12, 8, 3, 4), "ConvTranspose", {"strides": (2, 3)}),
    ((2, 16, 6, 5), (5, 16, 3, 3), "Conv", {"pads": (1, 1, 1, 1)}),
)
"""Convolutions whose outputs are sums of other places, and one whose filters are no fours."""


@probe("sums of other places", "kernels", disables=("pack_phases.wgsl", "unpack_phases.wgsl"), ops={"ConvTranspose"})
def spread(trial: Trial) -> str:
    """ConvTranspose by phases, filters that are no fours; weights given back bit for bit."""
    for _ in range(trial.rounds):
        for x, w, op, attributes in () if trial.gpu.info.is_software else SPREAD:
            _convolution(trial, x, w, op, **attributes)
        image, weights, bias = trial.normal(1, 6, 5, 16), trial.normal(16, 3, 4, 4), trial.normal(3)
        attributes = {"strides": (2, 2), "pads": (1, 1, 1, 1)}
        node = Node("ConvTranspose", ("x", "w", "c"), ("y",), "", "", 11, attributes, channels_last=True)
        graph = graph_of({"x": image, "c": bias}, {"w": weights}, node)
        (got,) = trial.graph(graph, [image, bias])
        (want,) = reference("ConvTranspose", 11, [image.transpose(0, 3, 1, 2), weights, bias], **attributes)
        agree("ConvTranspose with packed weights", got, want)
        agree("its weights given back", trial.weight(graph, [image, bias], "w"), weights, 0.0)
    return "5 convolutions"


@probe("rows of weights", "kernels", disables=("pack_rows.wgsl", "unpack_rows.wgsl"), ops=CONVOLUTIONS)
def packed(trial: Trial) -> str:
    """Weights of windows, of planes and of a transposed matrix: packed once, used, and given back bit for bit."""
    for ((x, w, attributes),) in trial.repeated(
        (((2, 16, 7, 5), (16, 16, 3, 2), {"strides": (2, 1)}), ((1, 32, 9, 7), (16, 32, 1, 1), {})), of=2
    ):
        image, weights, bias = trial.normal(*x), trial.normal(*w), trial.normal(w[0])
        with chosen(FIRST, 1):  # whose probe has compiled the first product
            graph = _packed_convolution(trial, image, weights, bias, **attributes)
            stored = trial.weight(graph, [_stored(image), bias], "w")
        agree(f"weights {list(w)} given back", stored, weights, 0.0)
    return "2 shapes"


@probe("Winograd's convolution", "kernels", disables=winograd.SHADERS, ops=CONVOLUTIONS)
def winograd_convolution(trial: Trial) -> str:
    """Tiles that reach over the edges of images, channels that fill no step, a bias; against the reference."""
    usual = trial.gpu.limits
    trial.gpu.limits = replace(usual, figures=replace(usual.figures, winograd_factor=1e-9))
    try:
        for _ in range(trial.rounds):
            images = ((2, 12, 9, 6), 20, (1, 1, 1, 1)), ((1, 64, 8, 11), 32, (0, 1, 2, 0))
            for ((shape, filters, pads),) in trial.some(images, of=2, turn=1):
                image, weights, bias = (
                    trial.normal(*shape),
                    trial.normal(filters, shape[1], 3, 3),
                    trial.normal(filters),
                )
                _packed_convolution(trial, image, weights, bias, pads=pads)
    finally:
        trial.gpu.limits = usual
    return "2 shapes"
