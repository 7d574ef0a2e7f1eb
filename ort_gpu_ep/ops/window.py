"""Windows that slide over spatial dimensions, as Conv and ConvTranspose describe them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.types import Shape
from ort_gpu_ep.kernels.registry import BoundNode, Const


@dataclass(frozen=True, slots=True)
class Window:
    """A window sliding over spatial dimensions; every tuple has one entry a dimension.

    small, large: the side it slides over (Conv's input, ConvTranspose's output) is `large`; each position of it is in
    `small`. pads: before each dimension; negative ones crop.
    """

    large: Shape
    small: Shape
    size: Shape
    strides: Shape
    dilations: Shape
    pads: Shape

    @property
    def taps(self) -> int:
        return math.prod(self.size)

    @property
    def is_pointwise(self) -> bool:
        """Each output position sees the input position of the same index only."""
        return self.taps == 1 and self.large == self.small and set(self.strides) <= {1} and not any(self.pads)

    @property
    def in_plane(self) -> Window:
        """The same of one dimension, with another one of size 1 before it."""
        if len(self.size) != 1:
            return self
        return Window(
            (1, *self.large),
            (1, *self.small),
            (1, *self.size),
            (1, *self.strides),
            (1, *self.dilations),
            (0, *self.pads),
        )

    def consts(self, large: tuple[str, str, str], small: tuple[str, str, str]) -> dict[str, Const]:
        """WGSL constants over three axes z, y, x; missing leading axes have size 1."""
        missing = 3 - len(self.size)
        values: dict[str, Const] = {}
        for names, sizes in ((large, self.large), (small, self.small)):
            values.update(zip(names, (1,) * missing + sizes, strict=True))
        for name, sizes, default in (
            ("WINDOW", self.size, 1),
            ("STRIDE", self.strides, 1),
            ("DILATION", self.dilations, 1),
            ("PAD", self.pads, 0),
        ):
            values.update(zip((f"{name}_{axis}" for axis in "ZYX"), (default,) * missing + sizes, strict=True))
        return values


INPUT_AXES = ("DEPTH", "HEIGHT", "WIDTH")
OUTPUT_AXES = ("OUT_DEPTH", "OUT_HEIGHT", "OUT_WIDTH")


def conv_window(node: BoundNode, spatial: Shape, size: Shape) -> Window:
    """The window of a Conv; its pads from auto_pad or pads. Raises UnsupportedNodeError."""
    rank = len(spatial)
    strides = tuple(node.attr("strides") or (1,) * rank)
    dilations = tuple(node.attr("dilations") or (1,) * rank)
    reach = tuple((s - 1) * d + 1 for s, d in zip(size, dilations, strict=True))
    auto = node.attr("auto_pad")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        out = tuple(-(-n // s) for n, s in zip(spatial, strides, strict=True))
        total = tuple(max((o - 1) * s + r - n, 0) for n, o, s, r in zip(spatial, out, strides, reach, strict=True))
        before = tuple(t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total)
        return Window(spatial, out, size, strides, dilations, before)
    pads = _pads(node, rank)
    padded = tuple(n + b + e for n, b, e in zip(spatial, pads[:rank], pads[rank:], strict=True))
    if any(n < r for n, r in zip(padded, reach, strict=True)):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op}: a window of {reach} over {padded} elements with their padding, which ONNX Runtime's "
            f"CPU refuses",
        )
    out = tuple((n - r) // s + 1 for n, r, s in zip(padded, reach, strides, strict=True))
    return Window(spatial, out, size, strides, dilations, pads[:rank])


def transpose_window(node: BoundNode, spatial: Shape, size: Shape) -> Window:
    """The window of a ConvTranspose; its pads from output_shape, auto_pad or pads. Raises UnsupportedNodeError."""
    rank = len(spatial)
    strides = tuple(node.attr("strides") or (1,) * rank)
    dilations = tuple(node.attr("dilations") or (1,) * rank)
    extra = tuple(node.attr("output_padding") or (0,) * rank)
    auto, shape = node.attr("auto_pad"), node.attr("output_shape")
    full = tuple(
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(spatial, strides, size, dilations, extra, strict=True)
    )
    if shape:
        out = tuple(shape[-rank:])
        _check_reached(node, out, full, strides)
    elif auto in (
        "SAME_UPPER",
        "SAME_LOWER",
    ):  # a window smaller than its stride reaches less far, and nothing is added
        reach = tuple((k - 1) * d + 1 + e for k, d, e in zip(size, dilations, extra, strict=True))
        out = tuple((n - 1) * s + min(s, r) for n, s, r in zip(spatial, strides, reach, strict=True))
    else:
        pads = _pads(node, rank)
        out = tuple(f - b - e for f, b, e in zip(full, pads[:rank], pads[rank:], strict=True))
        return Window(out, spatial, size, strides, dilations, pads[:rank])
    total = tuple(max(f - o, 0) for f, o in zip(full, out, strict=True))
    before = tuple(t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total)
    return Window(out, spatial, size, strides, dilations, before)


def _check_reached(node: BoundNode, wanted: Shape, full: Shape, strides: Shape) -> None:
    """onnxruntime refuses an output_shape that is so large that its last positions belong to inputs which are not
    there."""
    if any(o - f >= s for o, f, s in zip(wanted, full, strides, strict=True)):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{node.op} with output_shape {list(wanted)}, where all of the input gives {list(full)}"
        )


def _pads(node: BoundNode, rank: int) -> Shape:
    auto = node.attr("auto_pad") or "NOTSET"  # DeformConv has none
    if auto not in ("NOTSET", "VALID"):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with auto_pad {auto!r}")
    pads = tuple(node.attr("pads") or ()) if auto == "NOTSET" else ()
    return pads or (0,) * (2 * rank)
