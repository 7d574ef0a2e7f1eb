"""Products of bytes in register tiles (byte_product.wgsl): QLinearMatMul, QGemm, MatMulInteger, and QLinearConv over
channels that lie together.

Tiles and estimates are those of `tiles.py`, over words of four bytes: a word is an element of K. The estimates' figures
are its own. Weights are packed once; what the zero point of x adds to their sums is folded into the bias, so that it
costs nothing in a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import INT32, UINT32, TensorType
from ort_gpu_ep.kernels.forms import Form, best_ns, lower
from ort_gpu_ep.kernels.records import ceil_div, record, restored_by
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Operand, kernel
from ort_gpu_ep.kernels.target import Choice
from ort_gpu_ep.ops import requantized, tiles, unit_bytes
from ort_gpu_ep.ops.conv_last import DEPTHWISE_WORKGROUP_SIZE, MAX_PLANES
from ort_gpu_ep.ops.matrix_units import UnitTile
from ort_gpu_ep.ops.requantized import W_SCALE, W_ZERO, X_SCALE, X_ZERO, Folded, W, X, ends, shift
from ort_gpu_ep.ops.tiles import Tile, TiledProduct, Weights
from ort_gpu_ep.ops.window import INPUT_AXES, OUTPUT_AXES, Window, conv_window

GATHERING_NS = 3500.0
"""A step of integer_product.wgsl, 64 bytes of K: each byte of a window is loaded by itself. On an H200 ResNet-50 took 3
ms for 860."""

record(
    "byte_product.wgsl",
    "product",
    loop_bound=lambda k: k["PER"] + k["SPLIT"],
    flops=lambda k: 64 * k["ROWS"] * k["M4"] * k["KQ"],
)
record(
    "byte_depthwise.wgsl",
    "direct",
    loop_bound=lambda k: k.nested("WINDOW_Y", "WINDOW_X"),
    flops=lambda k: 2 * k["ROWS"] * k["C4"] * 4 * k["WINDOW_Y"] * k["WINDOW_X"],
)
record("column_sums.wgsl", "reduction", loop_bound=lambda k: k["K"])
record(
    "pack_bytes.wgsl",
    "movement",
    loop_bound=lambda k: 4,
    inverse=restored_by(
        "unpack_bytes.wgsl",
        "packed",
        consts=lambda k: {n: k[n] for n in ("M", "PADDED", "TAPS", "CHANNELS", "SHIFT")} | {"M_LAST": k["W_M"] == 1},
    ),
)
record("unpack_bytes.wgsl", "movement")


MIN_ROWS = 8
"""Of a MatMulInteger in tiles: for fewer most of the smallest tile would be padding."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What becomes of the sums. numbers: the kernel that writes once what that needs of weights. consts, reads, words:
    the product's."""

    numbers: Kernel
    consts: Mapping[str, Const]
    reads: Mapping[str, int] = field(default_factory=dict)
    words: tuple[str, ...] = ()


def reads_planes(node: BoundNode) -> bool:
    """Whether the x of a channels-last QLinearConv is stored [N, C, H, W] all the same."""
    return node.attr("group") == 1 and bool(node.input(W).shape[1] <= MAX_PLANES)


def _is_static(node: BoundNode, outputs: int) -> bool:
    """Whether all but x is constant, with one scale of x, and zero points that can be folded away."""
    if outputs % 4 or node.input(W_SCALE).size not in (1, outputs):
        return False
    ones = all(node.input(i).size == 1 for i in (X_SCALE, X_ZERO, *ends(node)[:2]) if node.has(i))
    return ones and requantized.are_constant(node) and not requantized.zero_counts(node, W, W_ZERO) and _may_run(node)


def _may_run(node: BoundNode) -> bool:
    """Whether the adapter can run one of the tiles, and nothing has put their shader out of use."""
    return tiles.fits(node.target) and node.target.limits.allow("byte_product.wgsl")


def takes_image(node: BoundNode) -> bool:
    """Whether a QLinearConv can work channels-last on this adapter."""
    x, w = node.input(X), node.input(W)
    if x.rank != 4 or w.rank != 4 or not _is_static(node, w.shape[0]):
        return False
    if node.attr("group") == 1:
        return w.shape[1] % 4 == 0 or w.shape[1] <= MAX_PLANES
    return w.shape[1] == 1 and w.shape[0] == node.attr("group")


def takes_matrices(node: BoundNode) -> bool:
    """Whether a QLinearMatMul or QGemm is a product of rows with a constant matrix, and in words."""
    a, b = node.input(X), node.input(W)
    if a.rank < 2 or b.rank != 2:
        return False
    k, m = _sizes(node)
    return bool(a.shape[-1] == k) and k % 4 == 0 and _is_summed(node, b, k) and _is_static(node, m)


def _sizes(node: BoundNode) -> tuple[int, int]:
    """Of the weights: how many are summed, and columns."""
    k, m = node.input(W).shape
    return (m, k) if node.attr("transB") else (k, m)


def _is_summed(node: BoundNode, b: Operand, k: int) -> bool:
    """Whether one invocation can add up a column of the weights."""
    return bool(b.size > 0) and k <= node.target.limits.max_loop_iterations


def matrices(node: BoundNode) -> Lowering:
    """Of a QLinearMatMul or QGemm that `takes_matrices`."""
    a, (k, m) = node.input(X), _sizes(node)
    folded = Folded(k, k, 1) if node.attr("transB") else Folded(k, 1, m)
    weights = Weights(W, k // 4, 1, 1, m, 0, constant=True)
    product = TiledProduct(math.prod(a.shape[:-1]), m, weights, target=node.target, bytes=True)
    out = TensorType(node.input(ends(node).y_zero).dtype, (*a.shape[:-1], m))
    return _lowered(node, product, out, k, folded, _as_bytes(node, out, m, folded))


def takes_sums(node: BoundNode) -> bool:
    """Whether a MatMulInteger is a product of rows with a constant matrix, and in words; a's zero point may be one of a
    run."""
    a, b, zero = node.input(0), node.input(1), node.optional(2)
    return (
        a.rank >= 2
        and b.rank == 2
        and b.is_constant
        and a.shape[-1] == b.shape[0]
        and b.shape[0] % 4 == 0
        and b.shape[1] % 4 == 0
        and _is_summed(node, b, b.shape[0])
        and (zero is None or zero.size == 1)
        and not requantized.zero_counts(node, 1, 3)
        and _may_run(node)
        and bool(hint(math.prod(a.shape[:-1])) >= MIN_ROWS)
    )


def sums(node: BoundNode) -> Lowering:
    """Of a MatMulInteger that `takes_sums`."""
    a, b, (k, m) = node.input(0), node.input(1), node.input(1).shape
    product = TiledProduct(
        math.prod(a.shape[:-1]), m, Weights(1, k // 4, 1, 1, m, 0, constant=True), target=node.target, bytes=True
    )
    numbers = kernel(
        "column_sums.wgsl",
        [TensorType(UINT32, (m,))],
        consts={"M": m, "K": k, "SHIFT": shift(b.dtype)},
        reads={"w": 1},
        writes={"y": "numbers"},
    )
    ending = Ending(numbers, {"REQUANTIZED": False, "X_SHIFT": shift(a.dtype)}, {"a_zp": 2} if node.has(2) else {})
    return _lowered(node, product, TensorType(INT32, (*a.shape[:-1], m)), k, Folded(k, 1, m), ending)


def _as_bytes(node: BoundNode, out: TensorType, outputs: int, folded: Folded) -> Ending:
    return Ending(
        requantized.numbers(node, outputs, folded),
        {"REQUANTIZED": True, **requantized.range_of(out.dtype)},
        words=("y",),
    )


def image(node: BoundNode) -> Lowering:
    """Of a QLinearConv whose node is channels-last. x: [N, H, W, C], or [N, C, H, W] where `reads_planes`; y: [N, H',
    W', M]."""
    x, w = node.input(X), node.input(W)
    if not takes_image(node):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"QLinearConv of {x.type} and {w.type} with group {node.attr('group')} is not taken channels-last",
        )
    planes = reads_planes(node)
    if (x.shape[1] if planes else x.shape[3]) != w.shape[1] * node.attr("group"):
        raise UnsupportedNodeError(
            Code.RANK, f"QLinearConv of {x.type}, channels last, and {w.type}: channels do not fit"
        )
    window = conv_window(node, x.shape[2:] if planes else x.shape[1:3], w.shape[2:])
    out = TensorType(node.input(ends(node).y_zero).dtype, (x.shape[0], *window.small, w.shape[0]))
    depth = w.shape[1] * window.taps
    if node.attr("group") > 1:
        return _depthwise(node, window, out, Folded(depth, depth, 1))
    folded = Folded(depth, depth, 1)
    return _lowered(node, _of_image(node, window), out, w.shape[1], folded, _as_bytes(node, out, w.shape[0], folded))


def image_ns(node: BoundNode, window: Window) -> float:
    """What a QLinearConv of one group is estimated to take channels-last."""
    product = _of_image(node, window)
    return min(
        [
            best_ns(tiles.forms(product)),
            *(unit_bytes.estimate_ns(product, tile) for tile in unit_bytes.tiles_of(product).values()),
        ]
    )


def _of_image(node: BoundNode, window: Window) -> TiledProduct:
    """Over words: of a pixel, or of the taps where x is planes."""
    w, planes = node.input(W), reads_planes(node)
    words, taps = (window.taps, 1) if planes else (w.shape[1] // 4, window.taps)
    return TiledProduct(
        node.input(X).shape[0] * math.prod(window.small),
        w.shape[0],
        Weights(W, words, taps, 0, 0, 0, constant=True),
        window=window.consts(INPUT_AXES, OUTPUT_AXES),
        pointwise=window.taps == 1 and not any(window.pads) and not planes,
        strided=set(window.strides) != {1} or window.large != window.small,
        planes=w.shape[1] if planes else 0,
        target=node.target,
        bytes=True,
    )


def _packing(node: BoundNode, source: int, words: int, m: int, folded: Folded, padded: int, taps: int) -> Kernel:
    """Weights to words, [words, m]. source: the input that has them. padded: words of a tap."""
    consts: dict[str, Const] = {
        "M": m,
        "PADDED": padded,
        "TAPS": taps,
        "CHANNELS": folded.k // taps,
        "SHIFT": shift(node.input(source).dtype),
        "W_M": folded.output,
        "W_CHANNEL": folded.along if folded.output == 1 else taps,
        "W_TAP": 1,
    }
    packed = TensorType(UINT32, (words, m))
    return kernel("pack_bytes.wgsl", [packed], consts=consts, reads={"w": source}, writes={"y": "packed"})


def _lowered(
    node: BoundNode,
    product: TiledProduct,
    out: TensorType,
    channels: int,
    folded: Folded,
    ending: Ending,
) -> Lowering:
    """In the best of its shares, or on matrix units. channels: of x, in bytes."""
    forms = {
        name: Form(
            tiles.estimate_ns(product, *share), partial(_in_tiles, node, product, share, channels, folded, ending)
        )
        for name, share in tiles.shares(product).items()
        if share[1] == 1 or tiles.may_arrive(product, *share)
    }
    forms |= {
        name: Form(
            unit_bytes.estimate_ns(product, tile), partial(_on_units, node, product, tile, channels, folded, ending)
        )
        for name, tile in unit_bytes.tiles_of(product).items()
    }
    return lower(product.target, product.key, forms, out)


def _on_units(
    node: BoundNode,
    product: TiledProduct,
    tile: UnitTile,
    channels: int,
    folded: Folded,
    ending: Ending,
    choice: Choice,
    out: TensorType,
) -> Lowering:
    """Weights lie along k, packed once; the model's own stay on the device, too."""
    words, source = 4 * unit_bytes.row_quads(product), int(product.weights.source)
    pack = _packing(
        node, source, words, product.m, folded, 1 if product.planes else product.weights.padded, folded.k // channels
    )
    packed = TensorType(UINT32, (product.m, words))
    consts = tuple((name, value) for name, value in pack.consts if name != "M")
    rows = replace(pack, shader="pack_byte_rows.wgsl", outputs=(packed,), consts=(*consts, ("WORDS", words)))
    built = unit_bytes.on_units(
        product, tile, _kernel(node, product, tiles.TILES[0], 1, choice, out, channels, ending), choice
    )
    temps = (("packed", packed), ("numbers", ending.numbers.outputs[0]))
    return Lowering((out,), (rows, ending.numbers, built), temps)


def _in_tiles(
    node: BoundNode,
    product: TiledProduct,
    share: tuple[Tile, int],
    channels: int,
    folded: Folded,
    ending: Ending,
    choice: Choice,
    out: TensorType,
) -> Lowering:
    tile, split = share
    taps = folded.k // channels
    source = int(product.weights.source)
    pack = _packing(
        node, source, product.packed_rows, product.m, folded, 1 if product.planes else product.weights.padded, taps
    )
    built = _kernel(node, product, tile, split, choice, out, channels, ending)
    temps = (("packed", pack.outputs[0]), ("numbers", ending.numbers.outputs[0]))
    whole = Lowering((out,), (pack, ending.numbers, built), temps)
    return tiles.in_last_arriving(whole, product, tile, split, UINT32) if split > 1 else whole


def _kernel(
    node: BoundNode,
    product: TiledProduct,
    tile: Tile,
    split: int,
    choice: Choice,
    out: TensorType,
    channels: int,
    ending: Ending,
) -> Kernel:
    x, quads = node.input(X), product.weights.padded // 4
    wide = not product.planes and channels % 16 == 0
    consts: dict[str, Const] = {
        "ROWS": product.rows,
        "M4": product.m // 4,
        "C4": quads,
        "CW": channels // 4,
        "KQ": product.fours,
        "LAST_WORD": x.size // 4 - 1,
        "X_TURN": 0x80808080 if shift(x.dtype) else 0,
        "STEPS": ceil_div(product.fours, tile.fours),
        "PER": ceil_div(ceil_div(product.fours, tile.fours), split),
        "SPLIT": split,
        "LAST": False,
        "WIDE": wide,
        "POINTWISE": product.pointwise,
        "STRIDED": product.strided,
        "PLANES": product.planes > 0,
        "CHANNELS": product.planes,
        "TAPS": not product.pointwise and not product.planes and quads % tile.fours == 0,
        **ending.consts,
        **tiles.consts_of(tile),
        **product.window,
    }
    return kernel(
        "byte_product.wgsl",
        [out],
        consts=consts,
        workgroup_size=tile.workgroup_size,
        workgroup_nbytes=16 * tile.shared,
        grid=(ceil_div(product.m, tile.m), ceil_div(product.rows, tile.n), split),
        writes={"y": 0},
        words=ending.words,
        choice=choice,
        reads={"x": X, "w": "packed", "numbers": "numbers", **ending.reads},
        vectors=("w", "numbers", *(("x",) if wide else ())),
    )


def _depthwise(node: BoundNode, window: Window, out: TensorType, folded: Folded) -> Lowering:
    """A lane makes four channels of a pixel; neighbouring lanes have neighbouring channels."""
    filters, rows = out.shape[3], math.prod(out.shape[:3])
    # a word of weights has a tap of four filters: as one of four channels
    four = Folded(4 * window.taps, 4 * window.taps, 1)
    pack = _packing(node, W, window.taps, filters // 4, four, 1, window.taps)
    numbers = requantized.numbers(node, filters, folded)
    built = kernel(
        "byte_depthwise.wgsl",
        [out],
        workgroup_size=DEPTHWISE_WORKGROUP_SIZE,
        consts={
            "ROWS": rows,
            "C4": filters // 4,
            "X_TURN": 0x80808080 if shift(node.input(X).dtype) else 0,
            **requantized.range_of(out.dtype),
            **window.consts(INPUT_AXES, OUTPUT_AXES),
        },
        grid=(ceil_div(rows * (filters // 4), DEPTHWISE_WORKGROUP_SIZE), 1, 1),
        vectors=("numbers",),
        words=("y",),
        reads={"x": X, "w": "packed", "numbers": "numbers"},
        writes={"y": 0},
    )
    return Lowering(
        (out,),
        (pack, numbers, built),
        (("packed", pack.outputs[0]), ("numbers", numbers.outputs[0])),
    )


def plain_ns(node: BoundNode, rows: int, columns: int, k: int) -> float:
    """What integer_product.wgsl is estimated to take over planes."""
    by = node.target.figures
    waves = ceil_div(ceil_div(hint(rows), 64) * ceil_div(hint(columns), 64), by.units)
    return by.launch_ns + waves * ceil_div(k, 64) * GATHERING_NS
