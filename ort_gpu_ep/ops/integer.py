"""Products of 8-bit integers in 32-bit sums: MatMulInteger, QLinearMatMul, QGemm, ConvInteger, QLinearConv."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import hint, same
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, INT8, INT32, UINT8, Shape, TensorType
from ort_gpu_ep.kernels.cost_parameters import Figures
from ort_gpu_ep.kernels.problems import integers, problem
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import (
    BoundNode,
    ChannelsLast,
    Const,
    Kernel,
    Lowering,
    Strided,
    at_hand,
    broadcast,
    broadcast_strides,
    kernel,
    op,
)
from ort_gpu_ep.ops import byte_tiles, requantized
from ort_gpu_ep.ops.packed_operands import NO_WINDOW
from ort_gpu_ep.ops.quantized import DOMAIN
from ort_gpu_ep.ops.requantized import shift, zero_counts
from ort_gpu_ep.ops.window import INPUT_AXES, OUTPUT_AXES, conv_window

BYTES = (UINT8, INT8)
TILES = ((64, 64), (16, 64), (4, 128))
"""integer_product.wgsl: rows and columns of a workgroup, by falling number of rows that there are."""
STEPS = (64, 16)
"""Elements of a row in a step, where there are many and few."""

record("requantize.wgsl", "elementwise", problems=[requantized.probed(19)])
record(
    "integer_product.wgsl",
    "product",
    flops=lambda k: 2 * k.size("y") * k["K"],
    loop_bound=lambda k: (
        16
        + ceil_div(k["K"], k["STEP"])
        * (
            1
            + k["STEP"] // 4
            + sum(ceil_div(k[tile] // 4 * (k["STEP"] // 4), k.workgroup_size) for tile in ("TM", "TN"))
        )
    ),
    problems=[
        problem(
            "MatMulInteger", 10, *(integers(0, 256, *shape, dtype="uint8") for shape in ((17, 67), (67, 19), (), ()))
        ),
        problem(
            "MatMulInteger", 10, integers(0, 256, 3, 68, dtype="uint8"), integers(-128, 128, 68, 140, dtype="int8")
        ),
        problem(
            "MatMulInteger", 10, integers(-128, 128, 65, 64, dtype="int8"), integers(-128, 128, 64, 72, dtype="int8")
        ),
    ],
)


@dataclass(frozen=True, slots=True)
class Side:
    """An operand of an integer product: its input, where each batch begins, strides of its outer and its K index, its
    zero point's input.

    zp_stride: 1 where there is a zero point for each outer index, 0 for one for all.
    """

    source: int
    base: Strided
    outer: int
    k: int
    zp: int | None
    zp_stride: int = 0


@dataclass(frozen=True, slots=True)
class IntegerProduct:
    """y[batch, m, n] = sum over k of (a[m, k] - zero) (b[k, n] - zero) + bias[m]. window, groups: as Conv's; groups
    divide the batches.

    by_column: the bias, and what else there is for each output, is of n.
    """

    batch: int
    m: int
    n: int
    k: int
    a: Side
    b: Side
    bias: int | None = None
    groups: int = 1
    window: Mapping[str, Const] = field(default_factory=dict)
    by_column: bool = False


def integer_product(node: BoundNode, product: IntegerProduct, out: TensorType) -> Kernel:
    """The kernel that writes the sums to output 0."""
    a, b, rows = product.a, product.b, hint(product.m)
    in_words = not product.window and _in_words(b, along_k=False)
    tile_m, tile_n = next((t for t in TILES if rows > t[0] // 4), TILES[-1])
    step = STEPS[0] if hint(product.k) > STEPS[1] else STEPS[1]
    if not (in_words or product.window or _holds_bytes(node.target.figures, tile_m, step)):
        (tile_m, tile_n), step = TILES[min(TILES.index((tile_m, tile_n)), 1)], STEPS[1]
    tiles_m, tiles_n = ceil_div(product.m, tile_m), ceil_div(product.n, tile_n)
    consts: dict[str, Const] = {
        "M": product.m,
        "N": product.n,
        "K": product.k,
        "TILES_M": tiles_m,
        "TILES_N": tiles_n,
        "TM": tile_m,
        "TN": tile_n,
        "STEP": step,
        "A_ROW": a.outer,
        "A_K": a.k,
        "B_K": b.k,
        "B_COL": b.outer,
        "A_WORDS": _in_words(a, along_k=True),
        "B_WORDS": in_words,
        "A_ZP_ROW": a.zp_stride,
        "B_ZP_COL": b.zp_stride,
        "ZP_ROWS": product.groups > 1 and a.zp_stride > 0,
        "GROUP_COUNT": product.groups,
        "A_SHIFT": shift(node.input(a.source).dtype),
        "B_SHIFT": shift(node.input(b.source).dtype),
        "USE_A_ZP": zero_counts(node, a.source, a.zp),
        "USE_B_ZP": zero_counts(node, b.source, b.zp),
        "BY_COLUMN": product.by_column,
        "REQUANTIZED": False,
        "IM2COL": bool(product.window),
        **(product.window or NO_WINDOW),
    }
    reads: dict[str, int | str] = {"a": a.source, "b": b.source}
    reads |= {
        name: i for name, i in (("a_zp", a.zp), ("b_zp", b.zp), ("c", product.bias)) if i is not None and node.has(i)
    }
    return kernel(
        "integer_product.wgsl",
        [out],
        consts=consts,
        indices={"a_base": a.base, "b_base": b.base},
        groups=tiles_m * tiles_n * product.batch,
        workgroup_size=tile_m * tile_n // 16,
        workgroup_nbytes=step * (tile_m + tile_n),
        reads=reads,
    )


def _holds_bytes(by: Figures, tile_m: int, step: int) -> bool:
    """Whether an invocation has registers for what it loads byte by byte of b for a step, each with its place, where
    the compiler unrolls that loop and loads ahead: on Adreno 750 of them went to memory in the flattest tile.
    """
    return not by.loads_ahead or 4 * (16 * step // tile_m) <= by.lane_registers


def _in_words(side: Side, along_k: bool) -> bool:
    """Whether four neighbours, along k or along the outer index, always share a word."""
    fast, slow = (side.k, side.outer) if along_k else (side.outer, side.k)
    return (
        bool(fast == 1)
        and bool(slow % 4 == 0)
        and all(bool(s % 4 == 0) for s in (*side.base.strides, side.base.offset))
    )


@op("MatMulInteger", since=10, dtypes={"T1": BYTES, "T2": BYTES}, bindings="a b a_zp? b_zp? c? -> y", epilogue=True)
def matmul_integer(node: BoundNode) -> Kernel | Lowering:
    """y = (a - a's zero point) (b - b's zero point) in int32, shapes as numpy.matmul.

    Zero points: a scalar, one a row of a, or one a column of b.
    """
    return byte_tiles.sums(node) if byte_tiles.takes_sums(node) else _matrices(node, 0, 1, 2, 3)


@op(
    "QLinearMatMul",
    since=10,
    dtypes={"T1": BYTES, "T2": BYTES, "T3": BYTES, "TS": (FLOAT32, FLOAT16)},
    bindings="a a_scale a_zp? b b_scale b_zp? y_scale y_zp c? -> y",
    epilogue=True,
)
def qlinear_matmul(node: BoundNode) -> Lowering:
    """y = saturate(round((a - a's zero point) (b - b's zero point) a_scale b_scale / y_scale) + y's zero point), halves
    to even.

    Scales and zero points as MatMulInteger's, of y scalars.
    """
    if byte_tiles.takes_matrices(node):
        return byte_tiles.matrices(node)
    product = _matrices(node, 0, 3, 2, 5)
    sums = product.outputs[0]
    return _requantized(
        node, product, (_along(node, 1, sums.shape, -2), _along(node, 4, sums.shape, -1)), sums.shape[-1]
    )


@op(
    "QGemm",
    domain=DOMAIN,
    dtypes={"TA": BYTES, "TB": BYTES, "TYZ": BYTES},
    bindings="a a_scale a_zp b b_scale b_zp c? y_scale? y_zp? -> y",
    epilogue=True,
)
def qgemm(node: BoundNode) -> Lowering:
    """y = saturate(round((sum of (a - a's zero point) (b' - b's zero point) + c) alpha a_scale b_scale / y_scale) + y's
    zero point).

    a: [m, k]; b': [k, n], b transposed where transB says so; c: int32, [n]. Scales and zero points of a and y are
    scalars, of b also [n].
    """
    a, b, c = node.input(0), node.input(3), node.optional(6)
    if not node.has(7) or not node.has(8) or node.attr("transA") or a.rank != 2 or b.rank != 2:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"QGemm of {a.type} and {b.type}; taken: matrices, the first not transposed, to bytes"
        )
    if byte_tiles.takes_matrices(node):
        return byte_tiles.matrices(node)
    transposed = bool(node.attr("transB"))
    (m, k), (inner, n) = a.shape, b.shape[::-1] if transposed else b.shape
    if inner != k or (c and (c.size != n or c.shape[-1:] != (n,))) or _zp_stride(node, 2, 1):
        raise UnsupportedNodeError(Code.RANK, f"QGemm of {a.type}, {b.type} and {c and c.type}: shapes do not fit")
    whole = Strided((1,), (0,))
    right = Side(3, whole, *((k, 1) if transposed else (1, n)), 5, _zp_stride(node, 5, n))
    product = IntegerProduct(1, m, n, k, Side(0, whole, k, 1, 2), right, 6 if c else None, by_column=True)
    sums = TensorType(INT32, (m, n))
    scales = (_along(node, 1, sums.shape, -1), _along(node, 4, sums.shape, -1))
    return _requantized(node, integer_product(node, product, sums), scales, n)


@op("ConvInteger", since=10, dtypes={"T1": BYTES, "T2": BYTES}, bindings="x w b_zp? a_zp? c? -> y")
def conv_integer(node: BoundNode) -> Kernel:
    """Conv of x less its zero point and of w less its own (a scalar, or one a filter), in int32. Padding holds the zero
    point."""
    return _convolution(node, 0, 1, 2, 3, None)


def _layout(node: BoundNode) -> ChannelsLast | None:
    if not byte_tiles.takes_image(node):
        return None
    node = at_hand(node)
    w, group = node.input(3), node.attr("group")
    window = conv_window(node, node.input(0).shape[2:], w.shape[2:])
    if group > 1:
        return ChannelsLast((0,), gain_ns=node.target.figures.depthwise_gain_ns)
    pixels = node.input(0).shape[0] * math.prod(window.small)
    gain_ns = byte_tiles.plain_ns(node, w.shape[0], pixels, w.shape[1] * window.taps) - byte_tiles.image_ns(
        node, window
    )
    return ChannelsLast(() if byte_tiles.reads_planes(node) else (0,), gain_ns=gain_ns)


@op(
    "QLinearConv",
    since=10,
    dtypes={"T1": BYTES, "T2": BYTES, "T3": BYTES},
    bindings="x a_scale b_zp? w b_scale a_zp? y_scale y_zp c? -> y",
    epilogue=True,
    channels_last=_layout,
)
def qlinear_conv(node: BoundNode) -> Lowering:
    """y = saturate(round((ConvInteger + bias) x_scale w_scale / y_scale) + y's zero point), halves to even.

    x, y: one scale each; w: one, or one a filter. bias: int32.
    """
    if node.node.channels_last:
        return byte_tiles.image(node)
    product = _convolution(node, 0, 3, 2, 5, 8)
    sums = product.outputs[0]
    if node.input(1).size != 1:
        raise UnsupportedNodeError(Code.RANK, f"QLinearConv with x_scale {node.input(1).type}; taken: scalars")
    of_filters = Strided(sums.shape, tuple(int(k == 1 and node.input(4).size != 1) for k in range(len(sums.shape))))
    if node.input(4).size not in (1, sums.shape[1]):
        raise UnsupportedNodeError(
            Code.RANK, f"QLinearConv with w_scale {node.input(4).type}; taken: a scalar, or [{sums.shape[1]}]"
        )
    return _requantized(node, product, (_along(node, 1, sums.shape, -1), of_filters), sums.shape[1])


def _requantized(node: BoundNode, product: Kernel, indices: tuple[Strided, Strided], outputs: int) -> Lowering:
    """The sums as bytes: where four of a row fill a word, by the product itself.

    indices: of a's and of b's scale, which are inputs 1 and 4. outputs: columns, or filters.
    """
    y_scale, y_zero, _ = requantized.ends(node)
    if node.input(y_scale).size != 1 or node.input(y_zero).size != 1:
        raise UnsupportedNodeError(
            Code.RANK,
            f"{node.op} with y_scale {node.input(y_scale).type}, y_zero_point {node.input(y_zero).type}; "
            f"taken: scalars",
        )
    sums = product.outputs[0]
    out = TensorType(node.input(y_zero).dtype, sums.shape)
    consts = requantized.range_of(out.dtype)
    if node.input(1).size == 1 and same(dict(product.consts)["N"] % 4, 0):
        numbers = requantized.numbers(node, outputs)
        reads = {name: source for name, source in product.reads or () if name != "c"}
        own = dict(product.consts) | {"REQUANTIZED": True, "OUTPUTS": outputs, **consts}
        done = replace(
            product,
            outputs=(out,),
            consts=tuple(own.items()),
            reads=(*reads.items(), ("numbers", "numbers")),
            writes=(("y", 0),),
            words=("y",),
        )
        return Lowering((out,), (numbers, done), (("numbers", numbers.outputs[0]),))
    last = kernel(
        "requantize.wgsl",
        [out],
        consts={"ALPHA": requantized.alpha_of(node), **consts},
        indices=dict(zip(("a_index", "b_index"), indices, strict=True)),
        reads={"x": "sums", "a_scale": 1, "b_scale": 4, "y_scale": y_scale, "zp": y_zero},
        writes={"y": 0},
    )
    return Lowering((out,), (replace(product, writes=(("y", "sums"),)), last), (("sums", sums),))


def _matrices(node: BoundNode, left: int, right: int, left_zp: int, right_zp: int) -> Kernel:
    """The product of two inputs. left_zp, right_zp: the inputs with their zero points."""
    a, b = node.input(left), node.input(right)
    if a.rank < 2 or b.rank < 2 or a.shape[-1] != b.shape[-2]:
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} of {a.type} and {b.type}; taken: matrices and batches of them"
        )
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    batches: Shape = broadcast(a.shape[:-2], b.shape[:-2])
    rows_zp, columns_zp = _zp_stride(node, left_zp, m), _zp_stride(node, right_zp, n)
    shape, base = (*batches, m, n), [0] * len(batches)
    if math.prod(b.shape[:-2]) == 1 and not rows_zp:
        batches, m = (), math.prod(a.shape[:-1])  # all rows meet the same matrix
        left_base = right_base = Strided((1,), (0,))
    else:
        left_base = Strided(batches, tuple(s * m * k for s in broadcast_strides(a.shape[:-2], batches)) or tuple(base))
        right_base = Strided(batches, tuple(s * k * n for s in broadcast_strides(b.shape[:-2], batches)) or tuple(base))
    product = IntegerProduct(
        math.prod(batches),
        m,
        n,
        k,
        Side(left, left_base, k, 1, left_zp, rows_zp),
        Side(right, right_base, 1, n, right_zp, columns_zp),
        by_column=True,
    )
    return integer_product(node, product, TensorType(INT32, shape))


def _zp_stride(node: BoundNode, index: int, count: int) -> int:
    zp = node.optional(index)
    if zp is None or zp.size == 1:
        return 0
    if zp.shape != (count,):
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} with zero point {zp.name!r} {zp.type}; taken: a scalar, or [{count}]"
        )
    return 1


def _convolution(node: BoundNode, image: int, filters: int, image_zp: int, filters_zp: int, bias: int | None) -> Kernel:
    """The sums of a convolution; its padding holds the zero point of the image."""
    x, w, groups = node.input(image), node.input(filters), node.attr("group")
    fits = 3 <= x.rank <= 5 and w.rank == x.rank and x.shape[1] == w.shape[1] * groups and w.shape[0] % groups == 0
    c = node.optional(bias) if bias is not None else None
    if not fits or tuple(node.attr("kernel_shape") or w.shape[2:]) != w.shape[2:] or (c and c.shape != w.shape[:1]):
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} of {x.type} and {w.type} with group {groups}: shapes do not fit"
        )
    if _zp_stride(node, image_zp, 1):
        raise UnsupportedNodeError(Code.RANK, f"{node.op} with several zero points of x")
    window = conv_window(node, x.shape[2:], w.shape[2:])
    rows, k, pixels, plane = (
        w.shape[0] // groups,
        w.shape[1] * window.taps,
        math.prod(window.small),
        w.shape[1] * math.prod(window.large),
    )
    batches = (x.shape[0], groups)
    weights = Side(filters, Strided(batches, (0, rows * k)), k, 1, filters_zp, _zp_stride(node, filters_zp, w.shape[0]))
    images = Side(image, Strided(batches, (groups * plane, plane)), 1, pixels, image_zp)
    sliding = {} if window.is_pointwise else window.consts(INPUT_AXES, OUTPUT_AXES)
    product = IntegerProduct(math.prod(batches), rows, pixels, k, weights, images, bias if c else None, groups, sliding)
    return integer_product(node, product, TensorType(INT32, (x.shape[0], w.shape[0], *window.small)))


def _along(node: BoundNode, index: int, shape: Shape, axis: int) -> Strided:
    """Where an element of a product finds its scale: a scalar, or one for each row (axis -2) or column (-1)."""
    operand = node.input(index)
    if operand.size == 1:
        return Strided(shape, (0,) * len(shape))
    if operand.shape != (shape[axis],):
        raise UnsupportedNodeError(
            Code.RANK,
            f"{node.op} of {list(shape)} with {operand.name!r} {operand.type}; taken: a scalar, or [{shape[axis]}]",
        )
    return Strided(shape, tuple(int(k == len(shape) + axis) for k in range(len(shape))))
