"""Convolutions of 3 x 3 by Winograd's F(4 x 4, 3 x 3), channels last: 36 products for 16 outputs, where the sum itself
takes 144.

Three kernels: tiles of the input transformed, a batch of 36 matrix products (product.wgsl), their sums transformed
back. For large batches on hardware: between them the kernels move 2.25 times the activations, twice, and the
transformed weights are four times the size. Source: Lavin, Gray, Fast Algorithms for Convolutional Neural Networks
(2016). Points 0, +-3/4, +-3/2 and infinity: the error relative to float64 is 1.6 to 2 times that of a sum in one row
(64 to 512 channels, standard-normal and after Relu), with 0, +-1, +-2 3 to 4 times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOAT32, Shape, TensorType
from ort_gpu_ep.kernels.forms import Form, best_ns
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, kernel
from ort_gpu_ep.kernels.target import Choice
from ort_gpu_ep.ops import tiles
from ort_gpu_ep.ops.tiles import Tile, TiledProduct
from ort_gpu_ep.ops.window import Window

OUTPUTS, INPUTS = 4, 6
"""Of a tile, in each direction."""

PRODUCTS = INPUTS * INPUTS

WORKGROUP_SIZE = 64

MAX_NBYTES = 256 << 20
"""Of what the input is transformed to, and of the sums, each: a plan needs that much besides the activations."""

MOVED = 0.56
"""Of Figures.byte_ns: what a byte takes that a transform reads or writes."""

POWERS = tuple(2**k for k in range(16))
"""Numbers of tiles that are looked at for sizes that a run brings."""

FORM = "winograd "
"""What names of these forms begin with; the tile of their product follows."""

SHADERS = ("winograd_input.wgsl", "winograd_output.wgsl", "winograd_weights.wgsl")

REGISTERS = 192
"""Of an invocation of the two transforms: of 36 vectors AMD's compiler has so many at once, and those of adapters with
fewer spill."""

record("winograd_input.wgsl", "direct", flops=lambda k: 4 * 12 * 14 * k["TILES"] * k["C4"])
record("winograd_output.wgsl", "direct", flops=lambda k: 4 * 10 * 17 * k["TILES"] * k["M4"])
record("winograd_weights.wgsl", "movement")


@dataclass(frozen=True, slots=True)
class TiledConvolution:
    """x: input 0, [image, *large, channel], 3 x 3 weights: input 1. down, across: tiles of an image. product: what
    comes of all tiles.

    bias: the input that has it.
    """

    large: Shape
    small: Shape
    pads: Shape
    down: int
    across: int
    product: TiledProduct
    bias: int | None

    @property
    def key(self) -> str:
        """What a choice was made for, besides the sum as one product."""
        return f" in {hint(self.product.rows)} tiles"


def of(node: BoundNode, window: Window, direct: TiledProduct) -> TiledConvolution | None:
    """None where the convolution is another one, its weights are no constants, or it would need too much memory.

    direct: the convolution as one product.
    """
    allowed = all(map(node.target.limits.allow, SHADERS)) and node.target.figures.lane_registers > REGISTERS
    steps = {*window.strides, *window.dilations}
    if (
        not allowed
        or window.size != (3, 3)
        or steps != {1}
        or direct.planes
        or direct.spread
        or not direct.weights.constant
    ):
        return None
    down, across = (ceil_div(size, OUTPUTS) for size in window.small)
    rows, widest = node.input(0).shape[0] * down * across, max(direct.m, direct.weights.channels)
    if hint(rows) * widest * PRODUCTS * 4 > min(MAX_NBYTES, node.target.limits.max_binding_nbytes):
        return None
    product = TiledProduct(
        rows, direct.m, replace(direct.weights, source="weights", taps=1), target=node.target, batch=PRODUCTS
    )
    return TiledConvolution(window.large, window.small, window.pads, down, across, product, direct.bias)


def forms(conv: TiledConvolution) -> dict[str, Form]:
    """The batch of products in each tile."""
    return {
        FORM + tile.name: Form(_estimate_ns(conv, tile), partial(_lowered, conv, tile))
        for tile, split in tiles.shares(conv.product).values()
        if split == 1
    }


def _estimate_ns(conv: TiledConvolution, tile: Tile) -> float:
    """The products, what the other two kernels move, and the weights from memory, which are too many for a cache.

    On an H200 the products of 17 layers of 1 to 32 images took 0.7 to 1.1 times their part of it.
    """
    by, product = conv.product.target.figures, conv.product
    moved_nbytes = 4 * (PRODUCTS + OUTPUTS * OUTPUTS) * hint(product.rows) * (product.weights.channels + product.m)
    weights_nbytes = 4 * PRODUCTS * product.packed_rows * product.m
    beside_ns = 2 * by.dispatch_ns + (MOVED * moved_nbytes + weights_nbytes) * by.byte_ns
    return float(by.winograd_factor * (tiles.estimate_ns(product, tile, 1) + beside_ns))


def fewest_tiles(conv: TiledConvolution, direct: TiledProduct) -> int:
    """The power of two from which on this is estimated to be faster than `direct`, the convolution as one product; 0:
    it never is."""
    now = hint(conv.product.rows)
    outputs = hint(direct.rows) / now if now else OUTPUTS * OUTPUTS  # of a tile

    def wins(rows: int) -> bool:
        sums = replace(direct, rows=ceil(rows * outputs))
        return best_ns(forms(replace(conv, product=replace(conv.product, rows=rows)))) < best_ns(tiles.forms(sums))

    power = bisect_left(POWERS, True, key=wins)
    return POWERS[power] if power < len(POWERS) else 0


def _lowered(conv: TiledConvolution, tile: Tile, choice: Choice, out: TensorType) -> Lowering:
    """The three kernels, after one that transforms the weights once."""
    product, channels, m = conv.product, conv.product.weights.channels, conv.product.m
    weights = TensorType(FLOAT32, (PRODUCTS, product.packed_rows, m))
    seen, sums = (TensorType(FLOAT32, (PRODUCTS, product.rows, width)) for width in (channels, m))
    once = kernel(
        "winograd_weights.wgsl",
        [weights],
        consts={"M": m, "CHANNELS": channels, "ROWS": product.packed_rows},
        reads={"w": 1},
        writes={"y": "weights"},
    )
    (height, width), (out_height, out_width), (pad_y, pad_x) = conv.large, conv.small, conv.pads
    first = _by_lanes(
        "winograd_input.wgsl",
        conv,
        seen,
        {"C4": channels // 4, "HEIGHT": height, "WIDTH": width, "PAD_Y": pad_y, "PAD_X": pad_x},
        {"x": 0},
        {"y": "seen"},
    )
    middle = replace(
        tiles.tiled_kernel(product, tile, 1, ceil_div(product.fours, tile.fours), "weights", None, choice),
        outputs=(sums,),
        reads=(("x", "seen"), ("w", "weights")),
        writes=(("y", "sums"),),
    )
    last = _by_lanes(
        "winograd_output.wgsl",
        conv,
        out,
        {"M4": m // 4, "OUT_HEIGHT": out_height, "OUT_WIDTH": out_width},
        {"p": "sums", **({} if conv.bias is None else {"c": conv.bias})},
        {"y": 0},
    )
    return Lowering((out,), (once, first, middle, last), (("weights", weights), ("seen", seen), ("sums", sums)))


def _by_lanes(
    shader: str,
    conv: TiledConvolution,
    out: TensorType,
    consts: Mapping[str, Const],
    reads: Mapping[str, int | str],
    writes: Mapping[str, int | str],
) -> Kernel:
    """A lane makes four channels of a tile."""
    rows, fours = conv.product.rows, out.shape[-1] // 4
    return kernel(
        shader,
        [out],
        consts={"TILES": rows, "TILES_Y": conv.down, "TILES_X": conv.across, **consts},
        grid=(ceil_div(rows * fours, WORKGROUP_SIZE), 1, 1),
        workgroup_size=WORKGROUP_SIZE,
        vectors=(*reads, *writes),
        reads=reads,
        writes=writes,
    )
