"""Convolutions over channels that lie together: x [N, H, W, C], y [N, H, W, M]. What Conv becomes where the layout pass says so."""

from __future__ import annotations

import math
from typing import Any

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.kernels import ceil_div, record
from ort_gpu_ep.ops import tiles, winograd
from ort_gpu_ep.ops.window import INPUT_AXES, OUTPUT_AXES, Window, conv_window
from ort_gpu_ep.registry import BoundNode, Kernel, Lowering, kernel
from ort_gpu_ep.symbolic import is_symbolic
from ort_gpu_ep.types import FLOAT32, TensorType

MAX_PLANES = 4
"""A convolution of so few channels reads them from planes, [N, C, H, W]: to reorder an image first would only cost."""

DEPTHWISE_WORKGROUP_SIZE = 128

record("depthwise_last.wgsl", "direct", loop_bound=lambda k: k.nested("WINDOW_Y", "WINDOW_X"),
       flops=lambda k: 2 * k["ROWS"] * k["C4"] * 4 * k["WINDOW_Y"] * k["WINDOW_X"])


def reads_planes(node: BoundNode) -> bool:
    """Whether the x of a channels-last Conv is stored [N, C, H, W] all the same."""
    return node.attr("group") == 1 and bool(node.input(1).shape[1] <= MAX_PLANES)


def takes(node: BoundNode) -> bool:
    """Whether a Conv can work channels-last on this adapter."""
    x, w = node.input(0), node.input(1)
    if x.rank != 4 or w.rank != 4 or x.dtype is not FLOAT32 or w.shape[0] % 4:
        return False
    groups, channels = node.attr("group"), w.shape[1]
    if groups == 1:
        return bool(channels % 4 == 0 or channels <= MAX_PLANES) and tiles.fits(node.target)
    return bool(channels == 1 and w.shape[0] == groups)


def build(node: BoundNode) -> Lowering:
    """y[n, p, m] = sum over t, c of w[m, c, t] * x[n, p * stride + t * dilation - pad, c] + bias[m].

    x: [N, H, W, C], or [N, C, H, W] where `reads_planes`; y: [N, H', W', M]. Raises UnsupportedNodeError.
    """
    x, w = node.input(0), node.input(1)
    if not takes(node):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"Conv of {x.type} and {w.type} with group {node.attr('group')} is not taken channels-last")
    planes = reads_planes(node)
    if (x.shape[1] if planes else x.shape[3]) != w.shape[1] * node.attr("group"):
        raise UnsupportedNodeError(Code.RANK, f"Conv of {x.type}, channels last, and {w.type}: channels do not fit")
    window = conv_window(node, x.shape[2:] if planes else x.shape[1:3], w.shape[2:])
    out = TensorType(FLOAT32, (x.shape[0], *window.small, w.shape[0]))
    if node.attr("group") > 1:
        return _depthwise(node, window, out)
    product = _product(node, window)
    tiled = winograd.of(node, window, product)
    if tiled is None:
        return tiles.lower_tiled(product, out)
    choice = node.target.choose(product.key + tiled.key, _weighed(product, tiled))
    if choice.form in winograd.forms(tiled.product):
        return winograd.lower(tiled, product.bias, out, choice)
    return tiles.lower_tiled(product, out, choice)


def estimate_ns(node: BoundNode, window: Window) -> float:
    """Of a Conv that is no depthwise one; whatever its x is stored like."""
    product = _product(node, window)
    tiled = winograd.of(node, window, product)
    return min((_weighed(product, tiled) if tiled else _direct_ns(product)).values())


def _weighed(product: tiles.TiledProduct, tiled: winograd.TiledConvolution) -> dict[str, float]:
    """Nanoseconds of each form. Where a run brings sizes, of those that win on its side of a number of tiles: a plan holds there."""
    if not is_symbolic(tiled.product.rows):
        return {**_direct_ns(product), **winograd.estimates_ns(tiled)}
    fewest = winograd.fewest_tiles(tiled, product)
    return winograd.estimates_ns(tiled) if fewest and tiled.product.rows >= fewest else _direct_ns(product)


def _direct_ns(product: tiles.TiledProduct) -> dict[str, float]:
    return tiles.estimates_ns(product, tiles.forms(product))


def _product(node: BoundNode, window: Window) -> tiles.TiledProduct:
    w, planes = node.input(1), reads_planes(node)
    weights = tiles.Weights(1, w.shape[1], window.taps, math.prod(w.shape[1:]), window.taps, 1, w.is_constant)
    return tiles.TiledProduct(
        node.input(0).shape[0] * math.prod(window.small), w.shape[0], weights, 2 if node.has(2) else None,
        window=window.consts(INPUT_AXES, OUTPUT_AXES), pointwise=window.taps == 1 and not any(window.pads) and not planes,
        strided=set(window.strides) != {1} or window.large != window.small, planes=w.shape[1] if planes else 0, target=node.target)


def _depthwise(node: BoundNode, window: Window, out: TensorType) -> Lowering:
    """A lane makes four channels of a pixel; neighbouring lanes have neighbouring channels."""
    channels, rows = out.shape[3], math.prod(out.shape[:3])
    packed = TensorType(FLOAT32, (window.taps, channels))
    weights = tiles.Weights(1, 1, window.taps, window.taps, 0, 1, node.input(1).is_constant, multiple=1)
    bias = {"c": 2} if node.has(2) else {}
    built: Kernel = kernel(
        "depthwise_last.wgsl", [out], consts={"ROWS": rows, "C4": channels // 4, **window.consts(INPUT_AXES, OUTPUT_AXES)},
        grid=(ceil_div(rows * (channels // 4), DEPTHWISE_WORKGROUP_SIZE), 1, 1), workgroup_size=DEPTHWISE_WORKGROUP_SIZE,
        vectors=("x", "w", "y", *bias), reads={"x": 0, "w": "packed", **bias}, writes={"y": 0})
    once: dict[str, Any] = {"once": ("packed",), "inverses": ((1, tiles.unpacking(weights, channels)),)} if weights.constant else {}
    return Lowering((out,), (tiles.packing(weights, packed), built), (("packed", packed),), **once)
