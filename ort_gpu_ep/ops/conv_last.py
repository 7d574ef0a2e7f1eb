"""Convolutions over channels that lie together: x [N, spatial..., C], y [N, spatial..., M]. What Conv and ConvTranspose
become where the layout pass says so. Over one or three spatial dimensions they do on matrix units alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import hint, is_symbolic
from ort_gpu_ep.ir.types import FLOAT32, Shape, TensorType
from ort_gpu_ep.kernels.forms import Form, Forms, best_ns, lower
from ort_gpu_ep.kernels.problems import Problem, Random, normal, problem
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Lowering, kernel
from ort_gpu_ep.kernels.target import Choice
from ort_gpu_ep.ops import tiles, unit_windows, winograd
from ort_gpu_ep.ops.channels_last import IMAGE_RANKS
from ort_gpu_ep.ops.window import INPUT_AXES, OUTPUT_AXES, Window, conv_window, transpose_window

MAX_PLANES = 4
"""A convolution of so few channels reads them from planes, [N, C, spatial...]: to reorder an image first would only cost."""

DEPTHWISE_WORKGROUP_SIZE = 128

GROUPED_WORKGROUP_SIZE = 128
GROUPED_FORMS = {
    f"{pixels} pixels, {slices} slices": (pixels, slices) for pixels in (1, 2, 4) for slices in (1, 2, 4, 8)
}
"""grouped_last.wgsl: invocations of a workgroup; pixels of a lane, and lanes that share their sums."""


def problem_of(
    x: Shape, w: Shape, op: str = "Conv", *, constant: bool = False, forms: Sequence[str] = (), **attributes: Any
) -> Problem:
    """With a bias. x: [N, C, H, W]. constant: the model has the weights and the bias."""
    planes = op == "Conv" and attributes.get("group", 1) == 1 and w[1] <= MAX_PLANES
    return problem(
        op,
        11,
        normal(*x),
        Random(w, constant=constant),
        Random(w[1:2] if op == "ConvTranspose" else w[:1], constant=constant),
        forms=forms,
        last=() if planes else (0,),
        **attributes,
    )


record(
    "grouped_last.wgsl",
    "direct",
    loop_bound=lambda k: ceil_div(k["WINDOW_Y"] * k["WINDOW_X"] * k["C4"], k["SLICES"]),
    flops=lambda k: 32 * k["LINES"] * k["OUT_WIDTH"] * k["M4"] * k["C4"] * k["WINDOW_Y"] * k["WINDOW_X"],
    problems=[
        problem_of((1, 64, 5, 7), (32, 32, 3, 3), forms=[*GROUPED_FORMS], group=2, pads=(1, 1, 1, 1)),
        problem_of(
            (2, 96, 9, 11),
            (36, 32, 1, 2),
            forms=[name for name, (_, slices) in GROUPED_FORMS.items() if slices < 8],  # its window has 16 steps
            group=3,
            strides=(2, 2),
            dilations=(1, 3),
        ),
    ],
)
record(
    "depthwise_last.wgsl",
    "direct",
    loop_bound=lambda k: k.nested("WINDOW_Y", "WINDOW_X"),
    flops=lambda k: 2 * k["ROWS"] * k["C4"] * 4 * k["WINDOW_Y"] * k["WINDOW_X"],
    problems=[
        problem_of((2, 12, 9, 7), (12, 1, 3, 3), group=12, pads=(1, 1, 1, 1), strides=(2, 2)),
        problem_of((1, 36, 11, 10), (36, 1, 7, 7), group=36, pads=(3, 3, 3, 3)),
        problem_of((1, 8, 13, 9), (8, 1, 3, 2), group=8, dilations=(2, 3)),
    ],
)


def reads_planes(node: BoundNode) -> bool:
    """Whether the x of a channels-last Conv is stored [N, C, spatial...] all the same."""
    return node.attr("group") == 1 and bool(node.input(1).shape[1] <= MAX_PLANES)


def writes_planes(node: BoundNode) -> bool:
    """Whether the y of a channels-last Conv or ConvTranspose is stored [N, M, spatial...] all the same: its filters are
    no fours."""
    return bool(_filters(node) % 4)


def _filters(node: BoundNode) -> int:
    return node.input(1).shape[1 if node.op == "ConvTranspose" else 0]


def takes(node: BoundNode) -> bool:
    """Whether a Conv can work channels-last on this adapter. Of float16, and over other than two spatial dimensions:
    where products of it use matrix units."""
    x, w = node.input(0), node.input(1)
    on_planes = x.rank == 4 and x.dtype is FLOAT32
    if x.rank not in IMAGE_RANKS or w.rank != x.rank or not (on_planes or unit_windows.may_use(node)):
        return False
    groups, (filters, channels) = node.attr("group"), w.shape[:2]
    if x.rank != 4 and groups > 1 and channels == 1:
        return False
    if groups == 1:
        return bool(channels % 4 == 0 or (channels <= MAX_PLANES and filters % 4 == 0)) and tiles.fits(node.target)
    if channels == 1:
        return bool(filters == groups and filters % 4 == 0)
    return bool(channels % 4 == 0 and filters // groups % 4 == 0) and tiles.fits(node.target)


def takes_transposed(node: BoundNode) -> bool:
    """Whether a ConvTranspose can."""
    x, w = node.input(0), node.input(1)
    on_planes = x.rank == 4 and x.dtype is FLOAT32
    if x.rank not in IMAGE_RANKS or w.rank != x.rank or not (on_planes or unit_windows.may_use(node)):
        return False
    if w.shape[0] % 4:
        return False
    taken = node.attr("group") == 1 and set(node.attr("dilations") or (1,)) == {1}
    return bool(taken and tiles.fits(node.target) and node.target.limits.allow("pack_phases.wgsl"))


def build(node: BoundNode) -> Lowering:
    """y[n, p, m] = sum over t, c of w[m, c, t] * x[n, p * stride + t * dilation - pad, c] + bias[m].

    x: [N, spatial..., C], or [N, C, spatial...] where `reads_planes`; y: [N, spatial'..., M]. Raises
    UnsupportedNodeError.
    """
    x, w = node.input(0), node.input(1)
    declined = UnsupportedNodeError(
        Code.ATTRIBUTE, f"Conv of {x.type} and {w.type} with group {node.attr('group')} is not taken channels-last"
    )
    if not takes(node):
        raise declined
    planes = reads_planes(node)
    if x.shape[1 if planes else -1] != w.shape[1] * node.attr("group"):
        raise UnsupportedNodeError(Code.RANK, f"Conv of {x.type}, channels last, and {w.type}: channels do not fit")
    window = conv_window(node, x.shape[2:] if planes else x.shape[1:-1], w.shape[2:])
    out = _output(node, window.small)
    if node.attr("group") > 1 and w.shape[1] == 1:
        return _depthwise(node, window, out)
    key, forms = _forms(node, window)
    if not forms:
        raise declined  # too small for matrix units
    return lower(node.target, key, forms, out)


def build_transposed(node: BoundNode) -> Lowering:
    """y[n, q, m] = sum over c, t, p with p * stride + t - pad = q of w[c, m, t] * x[n, p, c] + bias[m].

    x: [N, spatial..., C]; y: [N, spatial'..., M], or [N, M, spatial'...] where `writes_planes`. With q + pad = a * stride + phase, all
    phases of a see the same few p: one product, of the windows at a and (phase, m), whose sums are spread over y.
    Raises UnsupportedNodeError.
    """
    x, w = node.input(0), node.input(1)
    declined = UnsupportedNodeError(
        Code.ATTRIBUTE, f"ConvTranspose of {x.type} and {w.type} is not taken channels-last"
    )
    if not takes_transposed(node) or x.shape[-1] != w.shape[0]:
        raise declined
    window = transpose_window(node, x.shape[1:-1], w.shape[2:])
    key, forms = _transposed_forms(node, window)
    if not forms:
        raise declined  # too small for matrix units
    return lower(node.target, key, forms, _output(node, window.large))


def _output(node: BoundNode, spatial: Shape) -> TensorType:
    images, filters = node.input(0).shape[0], _filters(node)
    return TensorType(
        node.input(0).dtype, (images, filters, *spatial) if writes_planes(node) else (images, *spatial, filters)
    )


def transposed_ns(node: BoundNode, window: Window) -> float:
    """Of a ConvTranspose, likewise."""
    forms = _transposed_forms(node, window)[1]
    return best_ns(forms) if forms else math.inf


def _transposed_forms(node: BoundNode, window: Window) -> tuple[str, Forms]:
    product = _phases(node, window.in_plane)
    units = unit_windows.forms(unit_windows.of(node, product))
    return product.key, units if len(window.size) == 3 else tiles.forms(product) | units


def _phases(node: BoundNode, window: Window) -> tiles.TiledProduct:
    w, steps = node.input(1), window.strides
    phases = tiles.Phases(w.shape[1], window.size, steps)
    before = tuple(pad // step for pad, step in zip(window.pads, steps, strict=True))
    crop = tuple(pad % step for pad, step in zip(window.pads, steps, strict=True))
    reach = tuple(ceil_div(size + c, step) for size, c, step in zip(window.large, crop, steps, strict=True))
    pads = tuple(taps - 1 - b for taps, b in zip(phases.taps, before, strict=True))
    seen = Window(window.small, reach, phases.taps, (1,) * len(steps), (1,) * len(steps), pads)
    weights = tiles.Weights(1, w.shape[0], seen.taps, 0, 0, 0, w.is_constant, phases=phases, dtype=w.dtype)
    columns = ceil_div(math.prod(steps) * phases.filters, 4) * 4
    return tiles.TiledProduct(
        node.input(0).shape[0] * math.prod(reach),
        columns,
        weights,
        2 if node.has(2) else None,
        window=seen.consts(INPUT_AXES, OUTPUT_AXES),
        pointwise=seen.taps == 1 and not any(pads),
        strided=seen.large != seen.small,
        spread=tiles.Spread(phases.filters, steps, crop, window.large, writes_planes(node)),
        target=node.target,
        wide=tiles.are_wide(node),
    )


def estimate_ns(node: BoundNode, window: Window) -> float:
    """Of a Conv that is no depthwise one; whatever its x is stored like. Infinite where no form takes it."""
    forms = _forms(node, window)[1]
    return best_ns(forms) if forms else math.inf


def _forms(node: BoundNode, window: Window) -> tuple[str, Forms]:
    """What a choice is made for, and all forms of a Conv that is no depthwise one; over other than two spatial
    dimensions maybe none.

    Where a run brings sizes, of one product and Winograd's those that win on its side of a number of tiles: a plan
    holds there.
    """
    product = _product(node, window)
    if len(window.size) != 2:
        return product.key, unit_windows.forms(unit_windows.of(node, product))
    direct = tiles.forms(product)
    if node.attr("group") > 1:
        w, pixels = node.input(1), hint(node.input(0).shape[0]) * hint(math.prod(window.small))
        size = f"{pixels}x{w.shape[0]}x{window.taps}*{w.shape[1]}"
        key = f"grouped {size} of {node.attr('group')} steps {'x'.join(map(str, window.strides))}"
        return key, _grouped_forms(node, window) | direct | unit_windows.forms(unit_windows.of(node, product))
    units = unit_windows.forms(unit_windows.of(node, product))
    tiled = winograd.of(node, window, product) if node.input(0).dtype is FLOAT32 else None
    if tiled is None:
        return product.key, direct | units
    if not is_symbolic(tiled.product.rows):
        return product.key + tiled.key, direct | winograd.forms(tiled) | units
    fewest = winograd.fewest_tiles(tiled, product)
    return product.key + tiled.key, (
        winograd.forms(tiled) if fewest and tiled.product.rows >= fewest else direct
    ) | units


def _product(node: BoundNode, window: Window) -> tiles.TiledProduct:
    w, planes = node.input(1), reads_planes(node)
    groups, by_planes = node.attr("group"), writes_planes(node)
    ones = (1,) * len(window.in_plane.size)
    weights = tiles.Weights(
        1,
        w.shape[1],
        window.taps,
        math.prod(w.shape[1:]),
        window.taps,
        1,
        w.is_constant,
        filters=w.shape[0] if by_planes else 0,
        dtype=w.dtype,
    )
    return tiles.TiledProduct(
        node.input(0).shape[0] * math.prod(window.small),
        ceil_div(w.shape[0] // groups, 4) * 4,
        weights,
        2 if node.has(2) else None,
        window=window.consts(INPUT_AXES, OUTPUT_AXES),
        pointwise=window.taps == 1 and not any(window.pads) and not planes,
        strided=set(window.strides) != {1} or window.large != window.small,
        planes=w.shape[1] if planes else 0,
        groups=groups,
        spread=tiles.Spread(w.shape[0], ones, (0,) * len(ones), window.in_plane.small, True) if by_planes else None,
        target=node.target,
        wide=tiles.are_wide(node),
    )


def _grouped_forms(node: BoundNode, window: Window) -> dict[str, Form]:
    """Pixels and slices of grouped_last.wgsl."""
    w, by = node.input(1), node.target.figures
    steps, fours = ceil_div(math.prod(w.shape[1:]), 4), w.shape[0] // 4
    lines, width = hint(node.input(0).shape[0]) * hint(window.small[0]), hint(window.small[1])
    forms = dict[str, Form]()
    for name, (pixels, slices) in GROUPED_FORMS.items() if node.target.limits.allow("grouped_last.wgsl") else ():
        if slices > max(1, steps // 4) or _parts_nbytes(pixels, slices) > node.target.limits.max_workgroup_nbytes:
            continue
        loads = lines * ceil_div(width, pixels) * fours * steps * (4 + pixels)
        rounds = ceil_div(ceil_div(steps, slices), _ahead(pixels))
        ns = by.grouped_launch_ns + max(by.grouped_round_ns * rounds, by.grouped_load_ns * loads / by.units)
        forms[name] = Form(float(ns), partial(_grouped, node, window, pixels, slices))
    return forms


def _parts_nbytes(pixels: int, slices: int) -> int:
    """Of workgroup memory, in which lanes add up what they shared."""
    return 16 * pixels * GROUPED_WORKGROUP_SIZE if slices > 1 else 0


def _ahead(pixels: int) -> int:
    """Steps whose loads fit into registers together."""
    return 3 if pixels < 4 else 2


def _grouped(node: BoundNode, window: Window, pixels: int, slices: int, choice: Choice, out: TensorType) -> Lowering:
    w, groups = node.input(1), node.attr("group")
    packed = TensorType(FLOAT32, (math.prod(w.shape[1:]), w.shape[0]))
    weights = tiles.Weights(
        1, w.shape[1], window.taps, math.prod(w.shape[1:]), window.taps, 1, w.is_constant, dtype=w.dtype
    )
    bias = {"c": 2} if node.has(2) else {}
    blocks, team, fours = ceil_div(window.small[1], pixels), GROUPED_WORKGROUP_SIZE // slices, w.shape[0] // 4
    lines = out.shape[0] * window.small[0]
    ahead = min(_ahead(pixels), ceil_div(math.prod(w.shape[1:]) // 4, slices))
    built = kernel(
        "grouped_last.wgsl",
        [out],
        consts={
            "LINES": lines,
            "BLOCKS": blocks,
            "PIXELS": pixels,
            "SLICES": slices,
            "TEAM": team,
            "AHEAD": ahead,
            "M4": fours,
            "G4": fours // groups,
            "C4": w.shape[1] // 4,
            "ROW4": w.shape[1] // 4 * groups,
            **window.consts(INPUT_AXES, OUTPUT_AXES),
        },
        grid=(ceil_div(lines * blocks * fours, team), 1, 1),
        workgroup_size=GROUPED_WORKGROUP_SIZE,
        workgroup_nbytes=_parts_nbytes(pixels, slices),
        vectors=("x", "w", "y", *bias),
        reads={"x": 0, "w": "packed", **bias},
        writes={"y": 0},
        choice=choice,
    )
    return Lowering((out,), (tiles.packing(weights, packed), built), (("packed", packed),))


def _depthwise(node: BoundNode, window: Window, out: TensorType) -> Lowering:
    """A lane makes four channels of a pixel; neighbouring lanes have neighbouring channels."""
    channels, rows = out.shape[3], math.prod(out.shape[:3])
    packed = TensorType(FLOAT32, (window.taps, channels))
    weights = tiles.Weights(
        1, 1, window.taps, window.taps, 0, 1, node.input(1).is_constant, multiple=1, dtype=node.input(1).dtype
    )
    bias = {"c": 2} if node.has(2) else {}
    built = kernel(
        "depthwise_last.wgsl",
        [out],
        consts={"ROWS": rows, "C4": channels // 4, **window.consts(INPUT_AXES, OUTPUT_AXES)},
        grid=(ceil_div(rows * (channels // 4), DEPTHWISE_WORKGROUP_SIZE), 1, 1),
        workgroup_size=DEPTHWISE_WORKGROUP_SIZE,
        vectors=("x", "w", "y", *bias),
        reads={"x": 0, "w": "packed", **bias},
        writes={"y": 0},
    )
    return Lowering((out,), (tiles.packing(weights, packed), built), (("packed", packed),))
