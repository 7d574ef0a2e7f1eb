"""Convolutions: the gradient of x is the transposed convolution of dy, that of w a convolution of x by dy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ort_gpu_ep.training.functions import function
from ort_gpu_ep.training.gradient import Gradients, Site, gradient
from ort_gpu_ep.training.writer import Value, Writer


@dataclass(frozen=True)
class Windows:
    """How windows of a kernel lie on an input: output place p, tap k read place p * stride + k * dilation - before."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def pads(self) -> list[int]:
        return [*self.before, *self.after]

    def reach(self, axis: int) -> int:
        """Places that one window spans."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1


def windows(n: Site, kernel: Sequence[int], image: Sequence[int], maps: Sequence[int]) -> Windows:
    """Those of a convolution or a pool. image, maps: spatial sizes on the two sides, of which auto_pad makes the
    pads."""
    rank = len(kernel)
    strides = tuple(n.attr("strides") or (1,) * rank)
    dilations = tuple(n.attr("dilations") or (1,) * rank)
    pads, mode = tuple(n.attr("pads") or (0,) * (2 * rank)), n.attr("auto_pad") or "NOTSET"
    if mode == "VALID":
        pads = (0,) * (2 * rank)
    elif mode != "NOTSET":
        total = [
            max(0, (m - 1) * s + (k - 1) * d + 1 - i)
            for m, s, k, d, i in zip(maps, strides, kernel, dilations, image, strict=True)
        ]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = tuple(small + large if mode == "SAME_UPPER" else large + small)
    return Windows(tuple(kernel), strides, dilations, pads[:rank], pads[rank:])


@gradient("Conv")
def conv(n: Site) -> Gradients:
    x, weight = n.x, n.input(1)
    lay = windows(n, weight.shape[2:], x.shape[2:], n.y.shape[2:])
    group = n.attr("group")
    dx = _input_gradient(n, lay, group) if n.wants(0) else None
    dw = weight_gradient(n.writer, x, n.dy, lay, group) if n.wants(1) else None
    return [dx, dw, channel_sums(n) if n.wants(2) else None]


def _input_gradient(n: Site, lay: Windows, group: int) -> Value:
    x, rank = n.x.shape[2:], len(lay.kernel)
    left = [
        x[i] - ((n.y.shape[2 + i] - 1) * lay.strides[i] + lay.reach(i) - lay.before[i] - lay.after[i])
        for i in range(rank)
    ]
    return n.writer.op(
        "ConvTranspose",
        n.dy,
        n.input(1),
        strides=list(lay.strides),
        dilations=list(lay.dilations),
        pads=lay.pads,
        output_padding=left,
        group=group,
    )


@gradient("ConvTranspose")
def conv_transpose(n: Site) -> Gradients:
    """With dy in the place of a convolution's image: dx is that convolution, dw the weight gradient with x in the place
    of dy."""
    weight, group = n.input(1), n.attr("group")
    lay = _transposed_windows(n, weight.shape[2:])
    dx = dw = None
    if n.wants(0):
        dx = n.writer.op(
            "Conv", n.dy, weight, strides=list(lay.strides), dilations=list(lay.dilations), pads=lay.pads, group=group
        )
        for axis, size in enumerate(n.x.shape[2:], start=2):
            dx = n.writer.slice(dx, axis, 0, size)
    if n.wants(1):
        dw = weight_gradient(n.writer, n.dy, n.x, lay, group)
    return [dx, dw, channel_sums(n) if n.wants(2) else None]


def _transposed_windows(n: Site, kernel: Sequence[int]) -> Windows:
    """Pads as they follow from the output's size, where that is what the model gives."""
    rank = len(kernel)
    strides, dilations = tuple(n.attr("strides") or (1,) * rank), tuple(n.attr("dilations") or (1,) * rank)
    if n.attr("output_shape") is None and (n.attr("auto_pad") or "NOTSET") in ("NOTSET", "VALID"):
        pads = tuple(n.attr("pads") or (0,) * (2 * rank)) if n.attr("auto_pad") != "VALID" else (0,) * (2 * rank)
        return Windows(tuple(kernel), strides, dilations, pads[:rank], pads[rank:])
    extra = n.attr("output_padding") or (0,) * rank
    total = [
        (n.x.shape[2 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + extra[i] - n.y.shape[2 + i]
        for i in range(rank)
    ]
    if min(total) < 0:
        raise n.unsupported("its output_shape is larger than its windows reach")
    upper = n.attr("auto_pad") == "SAME_UPPER"
    before = tuple(t // 2 if upper else t - t // 2 for t in total)
    return Windows(tuple(kernel), strides, dilations, before, tuple(t - b for t, b in zip(total, before, strict=True)))


def channel_sums(n: Site) -> Value:
    """The bias's gradient: dy summed over everything but the channels."""
    return n.writer.reduce("ReduceSum", n.dy, [0, *range(2, n.dy.rank)], keepdims=False)


def weight_gradient(writer: Writer, image: Value, maps: Value, lay: Windows, group: int) -> Value:
    """dw[m, c, k] = sum over n, p of maps[n, m, p] image[n, c, p * stride + k * dilation - pad], channels group by
    group.

    image: [N, group * C, ...], maps: [N, group * M, ...]; result [group * M, C, kernel].
    """
    pointwise = (
        all(k == 1 for k in lay.kernel) and not any(lay.pads) and all(s == 1 for s in lay.strides) and group == 1
    )
    if pointwise and image.shape[2:] == maps.shape[2:]:
        turned = [_channels_first(writer, v) for v in (maps, image)]
        return writer.reshape(writer.op("Gemm", *turned, transB=1), [maps.shape[1], image.shape[1], *lay.kernel])
    if len(lay.kernel) == 2 and group == image.shape[1] == maps.shape[1] > 1:
        types = [(image.dtype, (group, 1, *lay.kernel))]
        return writer.call(
            function("DepthwiseWeightGradient", writer.opset),
            types,
            image,
            maps,
            kernel_shape=list(lay.kernel),
            strides=list(lay.strides),
            dilations=list(lay.dilations),
            pads=lay.pads,
            group=group,
            planes=[1, -1, *image.shape[2:]],
        )[0]
    return _dense(writer, image, maps, lay, group)


def _channels_first(writer: Writer, x: Value) -> Value:
    """[N, C, ...] -> [C, N * ...]."""
    return writer.reshape(
        writer.transpose(x, [1, 0, *range(2, x.rank)]), [x.shape[1], x.shape[0] * math.prod(x.shape[2:])]
    )


def _dense(writer: Writer, image: Value, maps: Value, lay: Windows, group: int) -> Value:
    """One product where a kernel takes the function. Its body: batch and channels change places, strides and dilations
    too; the kernel slides over the image as the taps did, and where its windows end before the image does, there are
    taps too many.
    """
    batch, space, rest, rank = image.shape[0], image.shape[2:], maps.shape[2:], len(lay.kernel)
    channels, filters = image.shape[1] // group, maps.shape[1] // group
    axes, taps = range(3, 3 + rank), [*range(2, 2 + rank)]
    types = [(image.dtype, (group * filters, channels, *lay.kernel))]
    return writer.call(
        function("ConvWeightGradient", writer.opset),
        types,
        image,
        maps,
        kernel_shape=list(lay.kernel),
        strides=list(lay.strides),
        dilations=list(lay.dilations),
        pads=lay.pads,
        group=group,
        image_split=[batch, group, channels, *space],
        maps_split=[batch, group, filters, *rest],
        turn_image=[2, 1, 0, *axes],
        turn_maps=[1, 2, 0, *axes],
        image_flat=[channels, group * batch, *space],
        maps_flat=[group * filters, batch, *rest],
        axes=taps,
        first=[0] * rank,
        back=[1, 0, *taps],
    )[0]
