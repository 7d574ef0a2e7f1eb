"""Pooling with a window that moves over the spatial axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import same
from ort_gpu_ep.ir.types import FLOATS, INT8, INT64, UINT8, TensorType
from ort_gpu_ep.kernels.problems import integers, normal, problem
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Rounded, kernel, op
from ort_gpu_ep.ops.channels_last import of_any_rank

MAX_SPATIAL = 3
WORKGROUP_SIZE = 128

record(
    "pool.wgsl",
    "pool",
    loop_bound=lambda k: k.nested("K0", "K1", "K2") * k["P"],
    flops=lambda k: 2 * k.size("y") * k["K0"] * k["K1"] * k["K2"] * k["P"],
    problems=[
        problem("MaxPool", 12, normal(2, 3, 9, 11), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1)),
        problem("AveragePool", 11, normal(2, 3, 9, 11), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    ],
)
record(
    "pool_last.wgsl",
    "pool",
    loop_bound=lambda k: k.nested("K1", "K2"),
    flops=lambda k: 2 * k.size("y") * k["K1"] * k["K2"],
    problems=[
        problem("MaxPool", 12, normal(2, 12, 9, 11), last=(0,), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1)),
        problem("AveragePool", 11, normal(1, 36, 17, 8), last=(0,), kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        problem(
            "AveragePool",
            11,
            normal(1, 4, 7, 9),
            last=(0,),
            kernel_shape=(3, 3),
            pads=(1, 1, 1, 1),
            count_include_pad=1,
        ),
    ],
)
record(
    "pool_last_bytes.wgsl",
    "pool",
    loop_bound=lambda k: k.nested("K1", "K2"),
    flops=lambda k: 2 * k.size("y") * k["K1"] * k["K2"],
    problems=[
        problem("MaxPool", 12, bytes_, last=(0,), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1))
        for bytes_ in (integers(0, 255, 2, 12, 9, 11, dtype="uint8"), integers(-128, 127, 2, 12, 9, 11, dtype="int8"))
    ],
)
record(
    "max_pool_indices.wgsl",
    "pool",
    pairs=True,
    loop_bound=lambda k: k.nested("K0", "K1", "K2"),
    flops=lambda k: 2 * k.size("indices") * k["K0"] * k["K1"] * k["K2"],
    problems=[problem("MaxPool", 12, normal(1, 2, 7, 9), outputs=2, kernel_shape=(3, 2), strides=(2, 2))],
)


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of a window: sizes, taps, stride, dilation, padding before (head) and after (tail)."""

    size: int
    out: int
    taps: int
    stride: int
    dilation: int
    head: int
    tail: int


def window_axes(node: BoundNode) -> list[Axis]:
    """The spatial axes of a pooling node. Raises UnsupportedNodeError(RANK) for other than one to three of them."""
    sizes = node.input(0).shape[1:-1] if node.node.channels_last else node.input(0).shape[2:]
    taps = node.attr("kernel_shape")
    if not 1 <= len(sizes) <= MAX_SPATIAL or len(taps) != len(sizes):
        raise UnsupportedNodeError(
            Code.RANK,
            f"{node.op} over {len(sizes)} spatial axes with kernel_shape {tuple(taps)}; taken: 1 to {MAX_SPATIAL} axes",
        )
    ones, n = (1,) * len(sizes), len(sizes)
    strides, dilations = node.attr("strides") or ones, node.attr("dilations") or ones
    pads = node.attr("pads") or (0,) * (2 * n)
    if any(p >= k for p, k in zip(pads, (*taps, *taps), strict=True)):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op} with pads {tuple(pads)} and kernel_shape {tuple(taps)}: ONNX Runtime refuses "
            f"windows of padding",
        )
    mode, up = node.attr("auto_pad") or "NOTSET", bool(node.attr("ceil_mode"))
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with auto_pad {mode!r}")
    if mode.startswith("SAME") and any(d != 1 for d in dilations):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op}: {mode} with dilations {tuple(dilations)}, where ONNX and ONNX Runtime give different sizes",
        )
    return [
        _axis(size, k, s, d, head, tail, mode, up)
        for size, k, s, d, head, tail in zip(sizes, taps, strides, dilations, pads[:n], pads[n:], strict=True)
    ]


def _axis(size: int, taps: int, stride: int, dilation: int, head: int, tail: int, mode: str, up: bool) -> Axis:
    """Resolves auto_pad and ceil_mode. A window of ceil_mode must start inside the input or the padding before it. One
    that is larger than the padded input has the places that ONNX Runtime's division towards zero gives it.
    """
    span = dilation * (taps - 1) + 1
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        out = -(-size // stride)
        total = max(0, (out - 1) * stride + span - size)
        head = total // 2 if mode == "SAME_UPPER" else total - total // 2
        return Axis(size, out, taps, stride, dilation, head, total - head)
    if mode == "VALID":
        head = tail = 0
    room = size + head + tail - span
    out = (-(-room // stride) if up or room < 0 else room // stride) + 1
    if out < 0:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"a window of {span} over {size} elements, padded by {head} and {tail}, which ONNX Runtime refuses",
        )
    if up and (out - 1) * stride >= size + head:
        out -= 1
    return Axis(size, out, taps, stride, dilation, head, tail)


def _consts(axes: list[Axis]) -> dict[str, Const]:
    consts: dict[str, Const] = {}
    for a, axis in enumerate([Axis(1, 1, 1, 1, 1, 0, 0)] * (MAX_SPATIAL - len(axes)) + axes):
        consts |= {
            f"IN{a}": axis.size,
            f"OUT{a}": axis.out,
            f"K{a}": axis.taps,
            f"S{a}": axis.stride,
            f"D{a}": axis.dilation,
            f"H{a}": axis.head,
            f"T{a}": axis.tail,
        }
    return consts


def _output(node: BoundNode, axes: list[Axis]) -> TensorType:
    x, out = node.input(0), tuple(a.out for a in axes)
    return TensorType(x.dtype, (x.shape[0], *out, x.shape[-1]) if node.node.channels_last else (*x.shape[:2], *out))


def _fours(node: BoundNode, *, highest: bool, count_pad: bool) -> Kernel:
    """Of two spatial axes, channels last."""
    axes = window_axes(node)
    out = _output(node, axes)
    consts: dict[str, Const] = {
        "TOTAL": out.size // 4,
        "INNER": out.shape[-1] // 4,
        "MAX": highest,
        "COUNT_PAD": count_pad,
        **_consts(axes),
    }
    built = kernel(
        "pool_last.wgsl",
        [out],
        consts=consts,
        groups=ceil_div(out.size, 4 * WORKGROUP_SIZE),
        workgroup_size=WORKGROUP_SIZE,
        vectors=("x", "y"),
        reads={"x": 0},
        writes={"y": 0},
    )
    return replace(built, rounded=(Rounded("x", passes=True),)) if highest else built


def in_words(node: BoundNode) -> bool:
    """Whether four channels of one place, of two spatial axes, are four neighbours."""
    x = node.input(0)
    return node.node.channels_last and x.rank == 4 and same(x.shape[-1] % 4, 0)


def word_pool(node: BoundNode, *, highest: bool, count_pad: bool, reads: Mapping[str, int], **consts: Const) -> Kernel:
    """Of bytes, two spatial axes, channels last. consts: what the mean needs beside the window."""
    axes = window_axes(node)
    out = _output(node, axes)
    words = out.size // 4
    values: dict[str, Const] = {
        "TOTAL": words,
        "INNER": out.shape[-1] // 4,
        "MAX": highest,
        "SIGNED": out.dtype is INT8,
        "COUNT_PAD": count_pad,
        **consts,
        **_consts(axes),
    }
    return kernel(
        "pool_last_bytes.wgsl",
        [out],
        consts=values,
        groups=ceil_div(words, WORKGROUP_SIZE),
        workgroup_size=WORKGROUP_SIZE,
        words=("y",),
        reads=reads,
        writes={"y": 0},
    )


def pool(
    node: BoundNode,
    *,
    highest: bool = False,
    mean: bool = False,
    count_pad: bool = False,
    p: int = 1,
    fours: bool = True,
) -> Kernel:
    """The kernel of a window. fours: four channels at a time where they are neighbours."""
    axes, dtype = window_axes(node), node.input(0).dtype
    if fours and in_words(node) and dtype in FLOATS and (highest or mean):
        return _fours(node, highest=highest, count_pad=count_pad)
    if fours and in_words(node) and dtype in (INT8, UINT8):
        return word_pool(node, highest=True, count_pad=False, reads={"x": 0})
    lowest: Const = {INT8: -128, UINT8: 0}.get(dtype, float("-3.4028234663852886e38"))
    consts: dict[str, Const] = {
        "MAX": highest,
        "MEAN": mean,
        "COUNT_PAD": count_pad,
        "P": p,
        "LOWEST": lowest,
        "FLOAT": dtype in FLOATS,
        **_consts(axes),
        "INNER": node.input(0).shape[-1] if node.node.channels_last else 1,
    }
    return kernel("pool.wgsl", [_output(node, axes)], consts=consts, reads={"x": 0}, writes={"y": 0})


@op(
    "MaxPool",
    dtypes={"T": (*FLOATS, INT8, UINT8)},
    bindings="x -> y indices",
    epilogue=True,
    channels_last=of_any_rank,
)
def max_pool(node: BoundNode) -> Kernel | Lowering:
    """y = max of x under the window; indices = where in x it is.

    x: [N, C, spatial...], y and indices: [N, C, out...]; or x and y channel-last.
    """
    values = pool(node, highest=True)
    if not node.wants(1):
        return values
    axes, out = window_axes(node), TensorType(INT64, values.outputs[0].shape)
    consts = {"COLUMN_MAJOR": bool(node.attr("storage_order")), **_consts(axes)}
    where = kernel("max_pool_indices.wgsl", [out], consts=consts, reads={"x": 0}, writes={"indices": 1})
    return Lowering((values.outputs[0], out), (values, where))


@op("AveragePool", dtypes={"T": FLOATS}, bindings="x -> y", epilogue=True, channels_last=of_any_rank)
def average_pool(node: BoundNode) -> Kernel:
    """y = mean of x under the window, over the taps inside x or (count_include_pad) inside the padding too.

    x: [N, C, spatial...], y: [N, C, out...].
    """
    return pool(node, mean=True, count_pad=bool(node.attr("count_include_pad")))


@op("LpPool", since=2, dtypes={"T": FLOATS}, bindings="x -> y", epilogue=True, channels_last=of_any_rank)
def lp_pool(node: BoundNode) -> Kernel:
    """y = (sum of |x|^p under the window)^(1/p).

    x: [N, C, spatial...], y: [N, C, out...].
    """
    p = int(node.attr("p"))
    if not 1 <= p <= 64:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"LpPool with p = {p}; taken: 1 to 64")
    return pool(node, p=p)
