"""Networks whose output is not one label: U-Net (a map) and a two-stage detector (boxes)."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from models.builder import Dim, Floats, Net, Value, require_multiple

_STRIDE = 16  # pixels of the image per position of the detector's features
_ANCHORS = ((32.0, 32.0), (72.0, 48.0), (48.0, 96.0))  # width and height in pixels
_ROI = 7  # bins per side that RoiAlign gives the head, as in Faster R-CNN


def unet(
    *,
    batch: Dim = 1,
    size: int = 128,
    channels: int = 1,
    width: int = 16,
    levels: int = 4,
    classes: int = 2,
    seed: int = 0,
) -> onnx.ModelProto:
    """U-Net with padded convolutions: `levels` halvings, ConvTranspose back up, skips by Concat.

    image: [batch, channels, size, size] -> probabilities: [batch, classes, size, size]

    Raises:
        ModelError: size is not a multiple of 2^levels.

    Source: Ronneberger et al., U-Net, 2015, arXiv:1505.04597 (there width 64, unpadded).
    """
    require_multiple("unet: size", size, 1 << levels)
    net = Net("unet", seed)
    x = net.input("image", [batch, channels, size, size])
    skips = []
    for level in range(levels):
        with net.scope(f"down{level}"):
            skips.append(_double_conv(net, x, width << level))
            x = net.max_pool(skips[-1], 2, 2)
    with net.scope("bottom"):
        x = _double_conv(net, x, width << levels)
    for level in reversed(range(levels)):
        with net.scope(f"up{level}"):
            x = net.conv_transpose(x, width << level, kernel=2, stride=2)
            x = _double_conv(net, net.concat(skips[level], x), width << level)
    x = net.op("Softmax", net.conv(x, classes, 1, gain=0.4), axis=1)
    net.output("probabilities", x, [batch, classes, size, size])
    return net.model()


def _double_conv(net: Net, x: Value, out: int) -> Value:
    for _ in range(2):
        x = net.relu(net.conv(x, out, 3, pad=1))
    return x


def detector(
    *, batch: Dim = 1, size: int = 160, classes: int = 21, max_boxes: int = 200, seed: int = 0
) -> onnx.ModelProto:
    """A two-stage detector: backbone, region proposals, NonMaxSuppression, RoiAlign, and a head over the boxes that are
    left.

    image: [batch, 3, size, size] -> boxes: [boxes, 4] (left, top, right, bottom in pixels), scores: [boxes, classes],
    objectness: [boxes], image_index: [boxes]. The number of boxes depends on the values, at most max_boxes an image.

    Raises:
        ModelError: size is not a multiple of 16.

    Source: Ren et al., Faster R-CNN, 2015, arXiv:1506.01497; RoiAlign of He et al., Mask R-CNN, 2017, arXiv:1703.06870.
    """
    require_multiple("detector: size", size, _STRIDE)
    net = Net("detector", seed)
    x = net.input("image", [batch, 3, size, size])
    with net.scope("backbone"):
        for width in (16, 32, 64, 64):
            x = net.relu(net.conv_bn(x, width, 3, stride=2, pad=1))
    with net.scope("proposals"):
        objectness, candidates = _propose(net, x, size)
        selected = _suppress(net, candidates, objectness, max_boxes)
        image_index = net.op("Gather", selected, net.constant(0, np.int64), axis=1)
        boxes = net.op("GatherND", candidates, net.op("Gather", selected, net.ints(0, 2), axis=1))
        kept = net.op("GatherND", objectness, selected)
    with net.scope("head"):
        scores, boxes = _classify(net, x, boxes, image_index, classes, size)
    net.output("boxes", boxes, ["boxes", 4])
    net.output("scores", scores, ["boxes", classes])
    net.output("objectness", kept, ["boxes"])
    net.output("image_index", image_index, ["boxes"], TensorProto.INT64)
    return net.model()


def _propose(net: Net, features: Value, size: int) -> tuple[Value, Value]:
    """Objectness [N, 1, A] and boxes [N, A, 4] of the A anchors."""
    shared = net.relu(net.conv(features, 64, 3, pad=1))
    logits = net.conv(shared, len(_ANCHORS), 1)
    objectness = net.op("Sigmoid", net.reshape(net.transpose(logits, 0, 2, 3, 1), 0, 1, -1))
    deltas = net.conv(shared, 4 * len(_ANCHORS), 1, gain=0.3)
    deltas = net.reshape(net.transpose(deltas, 0, 2, 3, 1), 0, -1, 4)
    centres, extents = _anchors(size)
    boxes = _decode(net, net.constant(centres), net.constant(extents), deltas, size)
    return objectness, boxes


def _anchors(size: int) -> tuple[Floats, Floats]:
    """Centres and extents [A, 2] as (x, y) in pixels, in the order row, column, shape."""
    steps = (np.arange(size // _STRIDE, dtype=np.float32) + np.float32(0.5)) * np.float32(_STRIDE)
    y, x, shape = np.meshgrid(steps, steps, np.arange(len(_ANCHORS)), indexing="ij")
    centres = np.stack([x.reshape(-1), y.reshape(-1)], axis=1)
    return centres.astype(np.float32), np.asarray(_ANCHORS, np.float32)[shape.reshape(-1)]


def _decode(net: Net, centre: Value, extent: Value, deltas: Value, size: int) -> Value:
    """Boxes [..., 4] from reference boxes and deltas [..., 4]: centre + d · extent, extent · exp(d), inside the image.

    Source: Girshick et al., R-CNN, 2013, arXiv:1311.2524, appendix C.
    """
    shift, growth = net.slice(deltas, 0, 2, axis=-1), net.slice(deltas, 2, 4, axis=-1)
    centre = net.add(net.op("Mul", shift, extent), centre)
    growth = net.op("Clip", growth, None, net.constant(math.log(1000.0 / 16.0)))  # torchvision's bound
    half = net.op("Mul", net.op("Mul", net.op("Exp", growth), extent), net.constant(0.5))
    corners = net.op("Concat", net.op("Sub", centre, half), net.add(centre, half), axis=-1)
    return net.op("Clip", corners, net.constant(0.0), net.constant(float(size)))


def _suppress(net: Net, boxes: Value, scores: Value, max_boxes: int) -> Value:
    """Indices [boxes, 3] as (image, class, box) of the boxes that overlap no better one."""
    limits = (net.ints(max_boxes), net.constant([0.5]), net.constant([0.5]))
    return net.op("NonMaxSuppression", boxes, scores, *limits, center_point_box=0)


def _classify(
    net: Net, features: Value, boxes: Value, image_index: Value, classes: int, size: int
) -> tuple[Value, Value]:
    """Class scores [boxes, classes] and the boxes [boxes, 4], moved by the head's deltas."""
    bins = net.op(
        "RoiAlign",
        features,
        boxes,
        image_index,
        mode="avg",
        output_height=_ROI,
        output_width=_ROI,
        sampling_ratio=2,
        spatial_scale=1 / _STRIDE,
    )
    x = net.relu(net.gemm(net.flatten(bins, _ROI * _ROI), 128))
    scores = net.op("Softmax", net.gemm(x, classes), axis=-1)
    low, high = net.slice(boxes, 0, 2, axis=1), net.slice(boxes, 2, 4, axis=1)
    extent = net.op("Sub", high, low)
    centre = net.add(low, net.op("Mul", extent, net.constant(0.5)))
    return scores, _decode(net, centre, extent, net.gemm(x, 4, gain=0.2), size)
