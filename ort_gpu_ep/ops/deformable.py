"""DeformConv: a convolution whose taps lie where another tensor says; Col2Im: windows added back into an image."""

from __future__ import annotations

from math import prod

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.types import FLOATS, TensorType
from ort_gpu_ep.kernels.problems import Known, normal, problem
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, kernel, op
from ort_gpu_ep.ops.axes import vector_of
from ort_gpu_ep.ops.window import Window, conv_window

MAX_SPATIAL = 3
IMAGE, BLOCKS = ("DEPTH", "HEIGHT", "WIDTH"), ("OUT_DEPTH", "OUT_HEIGHT", "OUT_WIDTH")

record(
    "deform_conv.wgsl",
    "gather",
    loop_bound=lambda k: k.nested("CHANNELS", "WINDOW_Y", "WINDOW_X"),
    flops=lambda k: 12 * k.size("y") * k["CHANNELS"] * k["WINDOW_Y"] * k["WINDOW_X"],
    problems=[
        problem(
            "DeformConv",
            19,
            normal(1, 4, 5, 7),
            normal(6, 2, 3, 3),
            normal(1, 36, 3, 5),
            normal(6),
            normal(1, 18, 3, 5),
            group=2,
            offset_group=2,
            tolerance=1e-4,
        )
    ],
)
record(
    "col2im.wgsl",
    "direct",
    loop_bound=lambda k: k.nested("WINDOW_Z", "WINDOW_Y", "WINDOW_X"),
    flops=lambda k: k.size("y") * k["WINDOW_Z"] * k["WINDOW_Y"] * k["WINDOW_X"],
    problems=[problem("Col2Im", 18, normal(2, 12, 36), Known([7, 8]), Known([2, 3]), strides=(1, 1))],
)


@op("DeformConv", since=19, dtypes={"T": FLOATS}, bindings="x w offset c? mask? -> y", epilogue=True)
def deform_conv(node: BoundNode) -> Kernel:
    """y = the convolution of x by w, each tap moved by `offset`, read between four elements, and multiplied by `mask`.

    x: [N, C, H, W]; w: [M, C / group, kH, kW]; offset: [N, 2 offset_group kH kW, oH, oW], y first; mask: half as many;
    y: [N, M, oH, oW].
    """
    x, w, offset, groups, moved = (
        node.input(0),
        node.input(1),
        node.input(2),
        int(node.attr("group")),
        int(node.attr("offset_group")),
    )
    if (
        x.rank != 4
        or w.rank != 4
        or x.shape[1] != w.shape[1] * groups
        or w.shape[0] % groups
        or not moved
        or x.shape[1] % moved
    ):
        raise UnsupportedNodeError(
            Code.RANK,
            f"DeformConv of {x.type} by {w.type} in {groups} groups, {moved} of offsets; taken: [N, C, H, W] by "
            "[M, C / group, kH, kW]",
        )
    window = conv_window(node, x.shape[2:], w.shape[2:])
    taps, mask = moved * window.taps, node.optional(4)
    for name, operand, channels in (("offset", offset, 2 * taps), ("mask", mask, taps)):
        if operand is not None and operand.shape != (x.shape[0], channels, *window.small):
            raise UnsupportedNodeError(
                Code.RANK, f"DeformConv with {name} {operand.type}; expected {[x.shape[0], channels, *window.small]}"
            )
    consts: dict[str, Const] = {
        **window.consts(IMAGE, BLOCKS),
        "CHANNELS": w.shape[1],
        "FILTERS": w.shape[0],
        "GROUPS_OF_X": groups,
        "MOVED": moved,
    }
    return kernel("deform_conv.wgsl", [TensorType(x.dtype, (x.shape[0], w.shape[0], *window.small))], consts=consts)


@op("Col2Im", since=18, dtypes={"T": FLOATS}, bindings="x _image _block -> y", epilogue=True)
def col2im(node: BoundNode) -> Kernel:
    """y[n, c] = the sum of all windows of x, each at its place. x: [N, C prod(block), L]; y: [N, C, image...], one to
    three axes."""
    x, image, block = node.input(0), vector_of(node, node.input(1)), vector_of(node, node.input(2))
    axes, ones = len(image), (1,) * len(image)
    strides, dilations = tuple(node.attr("strides") or ones), tuple(node.attr("dilations") or ones)
    pads = tuple(node.attr("pads") or (0,) * (2 * axes))
    if not 1 <= axes <= MAX_SPATIAL or {len(block), len(strides), len(dilations), len(pads) // 2} != {axes}:
        raise UnsupportedNodeError(
            Code.RANK, f"Col2Im into an image {list(image)} by blocks {list(block)}; taken: 1 to {MAX_SPATIAL} axes"
        )
    small = tuple(
        (n + pads[a] + pads[a + axes] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1
        for a, n in enumerate(image)
    )
    if x.rank != 3 or x.shape[1] % prod(block) or x.shape[2] != prod(small) or min(small) < 1:
        raise UnsupportedNodeError(
            Code.RANK,
            f"Col2Im of {x.type} into an image {list(image)} by blocks {list(block)}: expected {prod(small)} columns, "
            f"and rows by {prod(block)}",
        )
    window = Window(tuple(image), small, tuple(block), strides, dilations, pads[:axes])
    out = TensorType(x.dtype, (x.shape[0], x.shape[1] // prod(block), *image))
    return kernel("col2im.wgsl", [out], consts=window.consts(IMAGE, BLOCKS))
