"""Convolutions: Conv and ConvTranspose over one to three spatial dimensions."""

from __future__ import annotations

import math
from dataclasses import replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import hint, is_symbolic
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, TensorType
from ort_gpu_ep.kernels.forms import Forms, lower, taken
from ort_gpu_ep.kernels.problems import normal, problem
from ort_gpu_ep.kernels.records import KernelCall, record
from ort_gpu_ep.kernels.registry import BoundNode, ChannelsLast, Kernel, Lowering, Strided, at_hand, kernel, op
from ort_gpu_ep.ops import contraction, conv_last, sparse_products
from ort_gpu_ep.ops.contraction import Matrix, Product
from ort_gpu_ep.ops.window import INPUT_AXES, OUTPUT_AXES, Window, conv_window, transpose_window

GEMM_MIN_FILTERS = 8
"""With fewer filters in a group most rows of the smallest matrix tile would be padding: the direct kernel reads
less."""

GEMM_MIN_CHANNELS = 8
"""Likewise for K of ConvTranspose's product: with fewer channels in a group most of a step would be padding."""
COLUMNS_MAX_NBYTES = 64 << 20
"""ConvTranspose's product is stored: half of what WebGPU lets every adapter bind."""

DIRECT_WORKGROUP_SIZE = 64
DIRECT_OUTPUTS = 4
"""conv_direct.wgsl: invocations of a workgroup, and the most outputs of one invocation (they share each weight)."""


def _transposed_flops(k: KernelCall) -> int:
    """Each position of x meets each tap of a filter once, for each channel unless these are summed already."""
    taps, positions = k["WINDOW_Z"] * k["WINDOW_Y"] * k["WINDOW_X"], k["DEPTH"] * k["HEIGHT"] * k["WIDTH"]
    planes = k.size("y") // max(k["OUT_DEPTH"] * k["OUT_HEIGHT"] * k["OUT_WIDTH"], 1)
    return planes * taps * positions * (1 if k["COLUMNS"] else 2 * k["CHANNELS"])


def _transposed_loops(k: KernelCall) -> int:
    """Of each axis the taps of an output that can hit x, which may be far smaller than the window; of an open size all
    of them."""
    total = 1 if k["COLUMNS"] else k["CHANNELS"]
    for axis, size in zip("XYZ", reversed(INPUT_AXES), strict=True):
        taps = k[f"WINDOW_{axis}"]
        if not is_symbolic(k[size]) and not is_symbolic(taps):
            taps = min(taps, max(k[size] - 1, 0) * k[f"STRIDE_{axis}"] // k[f"DILATION_{axis}"] + 1)
        total = taps * (1 + total)
    return total


record(
    "conv_direct.wgsl",
    "direct",
    loop_bound=lambda k: k.nested("CHANNELS", "WINDOW_Z", "WINDOW_Y", "WINDOW_X") + k["OUTPUTS"],
    flops=lambda k: 2 * k.size("y") * k["CHANNELS"] * k["WINDOW_Z"] * k["WINDOW_Y"] * k["WINDOW_X"],
    problems=[
        problem("Conv", 11, normal(2, 13, 7, 5), normal(13, 1, 3, 3), normal(13), group=13, pads=(1, 1, 1, 1)),
        problem("Conv", 11, normal(1, 6, 17, 19), normal(6, 2, 3, 3), group=3, strides=(1, 1)),
        problem("Conv", 11, normal(1, 4, 129), normal(4, 1, 5), group=4, strides=(2,)),
    ],
)
record(
    "conv_transpose.wgsl",
    "direct",
    loop_bound=_transposed_loops,
    flops=_transposed_flops,
    problems=[
        problem("ConvTranspose", 11, normal(1, 3, 5, 7), normal(3, 4, 3, 3), normal(4), strides=(2, 2)),
        problem("ConvTranspose", 11, normal(1, 17, 5, 4), normal(17, 3, 2, 2), strides=(2, 2)),
    ],
)


def _layout(node: BoundNode) -> ChannelsLast | None:
    gain_ns = channels_last_gain_ns(node)
    if math.isinf(gain_ns):
        return None
    return ChannelsLast(
        () if conv_last.reads_planes(node) else (0,),
        not conv_last.writes_planes(node),
        gain_ns=gain_ns,
        rank=node.input(0).rank,
    )


@op(
    "Conv", dtypes={"T": (FLOAT32, FLOAT16)}, bindings="x w c? -> y", epilogue=True, channels_last=_layout, weights=(1,)
)
def conv(node: BoundNode) -> Lowering | Kernel:
    """y[n, m, p] = sum over c, t of w[m, c, t] * x[n, group(m) + c, p * stride + t * dilation - pad] + bias[m].

    x: [n, groups * c, spatial...]; w: [groups * m, c, window...]; bias: [groups * m]. One to three spatial dimensions.
    A group is a matrix product of its filters and the windows (read in place), or with few filters a sum by each
    invocation. Filters that are mostly zeros are read without these.
    """
    if node.node.channels_last:
        return conv_last.build(node)
    x, w = node.input(0), node.input(1)
    _check(node, w.shape[1] * node.attr("group") if w.rank > 1 else 0, w.shape[0] if w.rank else 0)
    window = conv_window(node, x.shape[2:], w.shape[2:])
    out = TensorType(x.dtype, (x.shape[0], w.shape[0], *window.small))
    bias = Strided((x.shape[0], w.shape[0], math.prod(window.small)), (0, 1, 0)) if node.has(2) else None
    if _few_filters(node):
        return _direct(node, window, out)
    return lower(node.target, *_forms(node, window, bias), out)


def _forms(node: BoundNode, window: Window, bias: Strided | None) -> tuple[str, Forms]:
    """What a choice is made for, and the forms of a Conv over planes with many filters in a group."""
    sparse, product = _sparse(node, window), _product(node, window, bias)
    dense = {
        name: replace(form, ns=_over_planes_ns(node, form.ns)) for name, form in contraction.forms(product).items()
    }
    return (product.key, dense) if sparse is None else (sparse.key, sparse_products.forms(sparse) | dense)


def _sparse(node: BoundNode, window: Window) -> sparse_products.SparseProduct | None:
    return sparse_products.of_filters(node, window, sparse_products.of_dense(node, True), 2 if node.has(2) else None)


def _few_filters(node: BoundNode) -> bool:
    groups = node.attr("group")
    return groups > 1 and bool(node.input(1).shape[0] // groups < GEMM_MIN_FILTERS)


def _product(node: BoundNode, window: Window, bias: Strided | None) -> Product:
    """A matrix product for each image and group: filters times windows, which are read in place."""
    x, w = node.input(0), node.input(1)
    groups, filters, channels = node.attr("group"), w.shape[0], w.shape[1]
    rows, pixels, depth = filters // groups, math.prod(window.small), channels * window.taps
    batches, plane = (x.shape[0], groups), channels * math.prod(window.large)
    weights = Matrix(1, Strided(batches, (0, rows * depth)), depth, 1)
    image = Matrix(0, Strided(batches, (groups * plane, plane)), 1, pixels)
    sliding = {} if window.is_pointwise else window.consts(INPUT_AXES, OUTPUT_AXES)
    return Product(math.prod(batches), rows, pixels, depth, weights, image, bias, window=sliding, target=node.target)


def channels_last_gain_ns(node: BoundNode) -> float:
    """What a Conv (its types as the model has them) is estimated to save where its channels lie together; negative
    where it loses.

    Minus infinity where it can't.
    """
    if not conv_last.takes(node):
        return -math.inf
    if node.input(1).shape[1] == 1 and node.attr("group") > 1:
        return node.target.figures.depthwise_gain_ns
    node = at_hand(node)
    return _plain_ns(node) - conv_last.estimate_ns(node, _window(node))


def _window(node: BoundNode) -> Window:
    return conv_window(node, node.input(0).shape[2:], node.input(1).shape[2:])


def _plain_ns(node: BoundNode) -> float:
    """Of a Conv over planes, in the better of its ways."""
    if _few_filters(node) or _sparse(node, _window(node)) is None:
        return _dense_ns(node)
    key, forms = _forms(node, _window(node), None)
    return forms[taken(node.target, key, forms).form].ns


def _dense_ns(node: BoundNode) -> float:
    """Of a product over planes, or of few filters in a group."""
    if _few_filters(node):
        by, w = node.target.figures, node.input(1)
        window = _window(node)
        return by.launch_ns + 2 * w.size * node.input(0).shape[0] * math.prod(window.small) / by.direct_flops_per_ns
    return _over_planes_ns(node, contraction.gemm_ns(_product(node, _window(node), None)))


def _over_planes_ns(node: BoundNode, ns: float) -> float:
    """Of a product whose windows are read in place, by the estimate of one of matrices."""
    by = node.target.figures
    return float(by.launch_ns + by.planes_factor * ns)


def written_out_ns(node: BoundNode) -> float:
    """What a Conv of many filters is estimated to take with filters that are written out in each run, in its better
    layout."""
    node, by = at_hand(node), node.target.figures
    if not conv_last.takes(node) or node.attr("group") > 1:
        return _plain_ns(node)
    reordered_ns = by.dispatch_ns + 2 * node.input(1).type.nbytes * by.byte_ns
    return min(_plain_ns(node), conv_last.estimate_ns(node, _window(node)) + reordered_ns)


def _direct(node: BoundNode, window: Window, out: TensorType) -> Kernel:
    """Workgroups of one filter each; an invocation sums a few outputs."""
    pixels = math.prod(window.small)
    outputs = max(1, min(DIRECT_OUTPUTS, hint(pixels) // DIRECT_WORKGROUP_SIZE))
    blocks = -(-pixels // (DIRECT_WORKGROUP_SIZE * outputs))
    groups, (filters, channels) = node.attr("group"), node.input(1).shape[:2]
    return kernel(
        "conv_direct.wgsl",
        [out],
        consts={
            "PIXELS": pixels,
            "BLOCKS": blocks,
            "OUTPUTS": outputs,
            "FILTERS": filters,
            "GROUP_FILTERS": filters // groups,
            "CHANNELS": channels,
            "GROUP_COUNT": groups,
            **window.consts(INPUT_AXES, OUTPUT_AXES),
        },
        groups=out.shape[0] * filters * blocks,
        workgroup_size=DIRECT_WORKGROUP_SIZE,
    )


def _transposed_layout(node: BoundNode) -> ChannelsLast | None:
    if not conv_last.takes_transposed(node):
        return None
    node = at_hand(node)
    window = transpose_window(node, node.input(0).shape[2:], node.input(1).shape[2:])
    gain_ns = _gathered_ns(node, window) - conv_last.transposed_ns(node, window)
    if math.isinf(gain_ns):
        return None
    return ChannelsLast((0,), not conv_last.writes_planes(node), gain_ns=gain_ns, rank=node.input(0).rank)


def _gathered_ns(node: BoundNode, window: Window) -> float:
    """Of a ConvTranspose in plain: its product, which is written and read back, and the gathering."""
    x, w, by = node.input(0), node.input(1), node.target.figures
    channels, rows, positions = w.shape[0], w.shape[1] * window.taps, math.prod(window.small)
    product = _columns_product(x.shape[0], 1, rows, positions, channels, node)
    moved = 8 * x.shape[0] * rows * positions + 4 * x.shape[0] * w.shape[1] * math.prod(window.large)
    return float(_over_planes_ns(node, contraction.gemm_ns(product)) + by.dispatch_ns + moved * by.byte_ns)


@op(
    "ConvTranspose",
    dtypes={"T": (FLOAT32, FLOAT16)},
    bindings="x w c? -> y",
    epilogue=True,
    channels_last=_transposed_layout,
    weights=(1,),
)
def conv_transpose(node: BoundNode) -> Lowering:
    """y[n, m, q] = sum over c, t, p with p * stride + t * dilation - pad = q of w[c, m, t] * x[n, c, p] + bias[m].

    x: [n, groups * c, spatial...]; w: [groups * c, m, window...]; bias: [groups * m]. One to three spatial dimensions.
    With enough channels the sum over c is a matrix product for all (m, t) and p, and each output gathers its few of
    them.
    """
    if node.node.channels_last:
        return conv_last.build_transposed(node)
    x, w = node.input(0), node.input(1)
    groups = node.attr("group")
    _check(node, w.shape[0] if w.rank else 0, w.shape[1] * groups if w.rank > 1 else 0)
    window = transpose_window(node, x.shape[2:], w.shape[2:])
    channels, rows, positions = x.shape[1] // groups, w.shape[1] * window.taps, math.prod(window.small)
    out = TensorType(x.dtype, (x.shape[0], w.shape[1] * groups, *window.large))
    columns = TensorType(FLOAT32, (x.shape[0] * groups, rows, positions))
    by_columns = channels >= GEMM_MIN_CHANNELS and columns.nbytes <= COLUMNS_MAX_NBYTES
    gather = kernel(
        "conv_transpose.wgsl",
        [out],
        consts={
            "FILTERS": out.shape[1],
            "GROUP_FILTERS": w.shape[1],
            "CHANNELS": channels,
            "GROUP_COUNT": groups,
            "COLUMNS": by_columns,
            **window.consts(OUTPUT_AXES, INPUT_AXES),
        },
        reads={"x": "columns" if by_columns else 0, "w": 1, **({"c": 2} if node.has(2) else {})},
        writes={"y": 0},
    )
    if not by_columns:
        return Lowering((out,), (gather,))
    product = contraction.lower_product(
        _columns_product(x.shape[0], groups, rows, positions, channels, node), columns, "columns"
    )
    return Lowering((out,), (*product.kernels, gather), product.temps)


def _columns_product(images: int, groups: int, rows: int, positions: int, channels: int, node: BoundNode) -> Product:
    """The sums over channels, [images, groups, rows (m, t), positions]."""
    batches = (images, groups)
    weights = Matrix(1, Strided(batches, (0, channels * rows)), 1, rows)
    image = Matrix(0, Strided(batches, (groups * channels * positions, channels * positions)), 1, positions)
    return Product(math.prod(batches), rows, positions, channels, weights, image, target=node.target)


def _check(node: BoundNode, channels: int, filters: int) -> None:
    """Declines what the schema allows and the kernels don't; channels, filters: of the whole weight tensor."""
    x, w, bias = node.input(0), node.input(1), node.optional(2)
    if not 3 <= x.rank <= 5:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} of {x.type}: one to three spatial dimensions are taken")
    window = tuple(node.attr("kernel_shape") or w.shape[2:])
    fits = w.rank == x.rank and x.shape[1] == channels and filters % node.attr("group") == 0 and window == w.shape[2:]
    if not fits or (bias and bias.shape != (filters,)):
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} of {x.type} and {w.type} with group {node.attr('group')}: shapes do not fit"
        )
