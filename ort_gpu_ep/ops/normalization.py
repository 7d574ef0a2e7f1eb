"""Normalisations: by the moments or norms of rows, by given moments (BatchNormalization), by neighbours (LRN)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.symbolic import hint, is_symbolic
from ort_gpu_ep.ir.types import FLOAT32, FLOATS, Shape, TensorType
from ort_gpu_ep.kernels.problems import integers, normal, problem
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import (
    BoundNode,
    Const,
    Kernel,
    Lowering,
    Operand,
    Strided,
    broadcast_strides,
    kernel,
    op,
)
from ort_gpu_ep.kernels.target import Choice, Target
from ort_gpu_ep.ops.channels_last import of_any_rank, own
from ort_gpu_ep.ops.reduce import Rows, normal_axes, reduced_shape, rows_of
from ort_gpu_ep.ops.row_forms import MOST_HELD, RowForm, any_ns, estimates_ns, forms, wide_ns

VARIANCE, DEVIATION, L2, L1 = range(4)
"""What rows are divided by: SPREAD of normalize.wgsl."""

MVN_EPSILON = 1e-9
"""MeanVarianceNormalization adds it to the standard deviation. Source: function body in ONNX's schema."""

record(
    "normalize.wgsl",
    "reduction",
    loop_bound=lambda k: k.rows(3),
    problems=[
        problem("InstanceNormalization", 6, normal(2, 5, 7, 9), normal(5), normal(5), epsilon=1e-5),
        *(
            problem("LayerNormalization", 17, normal(rows, n), normal(n), normal(n))
            for rows, n in ((3, 31), (7, 257), (300, 9), (2, 1025), (1, 40_001))
        ),
        problem("LpNormalization", 1, normal(6, 33), axis=1, p=2),
    ],
)
ROWS, MOMENTS, JOINED = "normalize_rows.wgsl", "moments_of_pieces.wgsl", "normalize_pieces.wgsl"
record(
    ROWS,
    "reduction_held",
    loop_bound=lambda k: 3 * (ceil_div(k["N4"] * k["PER_GROUP"], k.workgroup_size) + 64),
    problems=[
        problem("LayerNormalization", 17, normal(*shape), normal(shape[-1]), normal(shape[-1]))
        for shape in ((3, 4), (7, 132), (37, 1028), (5, 4100))
    ]
    + [problem("RMSNormalization", 23, normal(9, 260), normal(260))],
)
record(MOMENTS, "reduction_held", loop_bound=lambda k: 64)
record(JOINED, "reduction_held", loop_bound=lambda k: ceil_div(k["PIECE4"], k.workgroup_size) + 64)
record("row_moments.wgsl", "reduction", loop_bound=lambda k: k.rows(2, k.workgroup_size // k["PER_GROUP"]))
record(
    "channel_moments.wgsl",
    "reduction",
    loop_bound=lambda k: 2 * (2 * ceil_div(k["COUNT"], k.workgroup_size) + 16),
    flops=lambda k: 3 * k.size("x"),
    nbytes=lambda k: 2 * k.nbytes("x"),
    problems=[
        problem(
            "BatchNormalization",
            15,
            normal(3, 5, 7, 11),
            normal(5),
            normal(5),
            normal(5),
            normal(5),
            outputs=3,
            training_mode=1,
        )
    ],
)
record(
    "batch_norm.wgsl",
    "elementwise",
    problems=[
        problem(
            "BatchNormalization",
            15,
            normal(2, 13, 7, 5),
            normal(13),
            normal(13),
            normal(13),
            integers(1, 9, 13, dtype="float32"),
        )
    ],
)
record(
    "lrn.wgsl",
    "pool",
    loop_bound=lambda k: k["BEFORE"] + k["AFTER"] + 1,
    flops=lambda k: 2 * k.size("y") * (k["BEFORE"] + k["AFTER"] + 1),
)


def _normalize(
    node: BoundNode, rows: Rows, indices: dict[str, Strided], *, spread: int, center: bool, epsilon: float = 0.0
) -> Kernel:
    return normalized(node.input(0).type, rows, indices, spread=spread, center=center, epsilon=epsilon)


def normalized(
    out: TensorType,
    rows: Rows,
    indices: dict[str, Strided],
    *,
    spread: int,
    center: bool,
    epsilon: float = 0.0,
) -> Kernel:
    """The kernel for any rows. indices: `scale_index` and `bias_index`, as far as the node has scale and bias."""
    nowhere = Strided((), ())
    consts: dict[str, Const] = {**rows.consts, "SPREAD": spread, "CENTER": center, "EPSILON": float(epsilon)}
    for name in ("scale", "bias"):
        if f"{name}_index" not in indices:
            indices = {**indices, f"{name}_index": nowhere}
    return kernel(
        "normalize.wgsl",
        [out],
        consts=consts,
        indices={**rows.indices, **indices},
        groups=rows.groups,
        workgroup_size=rows.workgroup_size,
        workgroup_nbytes=4 * rows.workgroup_size,
        writes={"y": 0},
    )


PIECES = (2, 4, 8, 16, 32, 64, 128, 256)
"""normalize_pieces.wgsl: of a row; each of its workgroups looks at all of them, a lane at one."""
PIECE_WORKGROUP_SIZE, MOMENTS_WORKGROUP_SIZE = 512, 256


@dataclass(frozen=True, slots=True)
class _Channels:
    """Where rows find their scale and bias: `of` channels in all, `per_row` of them in a row, each for `plane`
    elements."""

    of: int
    per_row: int
    plane: int


def _held(
    node: BoundNode, rows: Rows, epsilon: float, *, rms: bool = False, channels: _Channels | None = None
) -> Kernel | Lowering | None:
    """The kernels for rows that lie together, kept in registers; None where that can't be, or isn't estimated to be
    faster.

    channels: None where scale and bias are vectors of a row's length.
    """
    x, operands, target = node.input(0), [o for o in (node.input(1), node.optional(2)) if o], node.target
    n = 0 if is_symbolic(rows.length) or rows.adjacent else rows.length
    if n == 0 or n % 4 or any(o.dtype not in FLOATS for o in (x, *operands)) or not target.limits.allow(ROWS):
        return None
    if channels is None and any(o.shape != (n,) for o in operands):
        return None
    if channels and (any(map(is_symbolic, (channels.plane, channels.of))) or channels.plane % 4):
        return None
    by_name = forms(target, n // 4)
    times = estimates_ns(target, by_name, rows.count, n // 4)
    pieces = _pieces(target, rows, n // 4) if channels and not rms else {}
    choice = target.choose(
        f"normalize {n}, about {1 << hint(rows.count).bit_length()} rows",
        {**times, **{name: ns for name, (_, ns) in pieces.items()}, "any": any_ns(target, rows)},
    )
    if choice.form == "any":
        return None
    bias = {"bias": 2} if node.has(2) else {}
    vectors = ("x", "y", *(() if channels else ("scale", *bias)))
    consts: dict[str, Const] = {
        "N4": n // 4,
        "EPSILON": float(epsilon),
        "CHANNELS": channels.of if channels else 0,
        "PER_ROW": channels.per_row if channels else 1,
        "PLANE4": channels.plane // 4 if channels else 1,
    }
    if choice.form in pieces:
        return _in_pieces(node, rows, pieces[choice.form][0], consts, {"x": 0, "scale": 1, **bias}, choice)
    form = by_name[choice.form]
    return kernel(
        ROWS,
        [x.type],
        consts={
            "COUNT": rows.count,
            "RMS": rms,
            "SKIP": False,
            "SUM": False,
            "EARLY": channels is None and _is_early(target, rows),
            **consts,
            **form.consts(target, ROWS),
        },
        groups=form.groups(rows.count),
        workgroup_size=form.workgroup_size,
        workgroup_nbytes=form.workgroup_nbytes(target, ROWS),
        reads={"x": 0, "scale": 1, **bias},
        writes={"y": 0},
        vectors=vectors,
        features=form.features(target, ROWS),
        choice=choice,
    )


def _is_early(target: Target, rows: Rows) -> bool:
    """Whether a row waits for what it reads: where there are few, registers for its scale are free."""
    return bool(hint(rows.count) <= target.figures.units)


def _pieces(target: Target, rows: Rows, n4: int) -> dict[str, tuple[RowForm, float]]:
    """Form -> how a workgroup has a piece of a row, and nanoseconds, for few rows that are too long for one each."""
    by_name, size = dict[str, tuple[RowForm, float]](), min(PIECE_WORKGROUP_SIZE, target.limits.max_invocations)
    if not (target.limits.allow(MOMENTS) and target.limits.allow(JOINED)):
        return by_name
    for count in PIECES:
        units = ceil_div(n4, count)
        form = RowForm(1, size, ceil_div(units, size))
        if form.held <= MOST_HELD and units >= size >= count:
            times = (wide_ns(target, form, hint(rows.count) * count, units, moved) for moved in (1, 2))
            by_name[f"{count} pieces"] = form, sum(times) + target.figures.normalize_piece_ns * count
    return by_name


def _in_pieces(
    node: BoundNode,
    rows: Rows,
    form: RowForm,
    consts: Mapping[str, Const],
    reads: Mapping[str, int],
    choice: Choice,
) -> Lowering:
    x, pieces, target = node.input(0).type, int(choice.form.split()[0]), node.target
    piece = ceil_div(ceil_div(rows.length // 4, pieces), form.workgroup_size) * form.workgroup_size
    pieces = ceil_div(rows.length // 4, piece)
    moments = TensorType(FLOAT32, (rows.count, pieces, 2))
    shared = {"PIECE4": piece, "PIECES": pieces}
    first = kernel(
        MOMENTS,
        [moments],
        consts={"N4": consts["N4"], **shared, **form.consts(target, MOMENTS)},
        groups=rows.count * pieces,
        workgroup_size=form.workgroup_size,
        workgroup_nbytes=form.workgroup_nbytes(target, MOMENTS),
        reads={"x": 0},
        writes={"moments": "moments"},
        vectors=("x",),
        features=form.features(target, MOMENTS),
    )
    second = kernel(
        JOINED,
        [x],
        consts={**consts, **shared, **form.consts(target, JOINED)},
        groups=rows.count * pieces,
        workgroup_size=form.workgroup_size,
        workgroup_nbytes=form.workgroup_nbytes(target, JOINED),
        reads={**reads, "moments": "moments"},
        writes={"y": 0},
        vectors=("x", "y"),
        features=form.features(target, JOINED),
        choice=choice,
    )
    return Lowering((x,), (first, second), (("moments", moments),))


def _broadcast(node: BoundNode, operand: Operand, shape: Shape) -> Strided:
    """Where an element of `shape` finds its value in an operand that broadcasts to it."""
    padded = (1,) * (len(shape) - operand.rank) + operand.shape
    if len(padded) != len(shape) or any(p not in (1, d) for p, d in zip(padded, shape, strict=True)):
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op}: {operand.name!r} {operand.type} does not broadcast to {list(shape)}"
        )
    return Strided(shape, broadcast_strides(operand.shape, shape))


def _per_channel(node: BoundNode, operand: Operand, shape: Shape, axis: int = 1) -> Strided:
    """Where an element of `shape` finds the value of its channel."""
    if operand.size != shape[axis]:
        raise UnsupportedNodeError(Code.RANK, f"{node.op}: {operand.name!r} {operand.type} for {shape[axis]} channels")
    return Strided(shape, tuple(int(a == axis) for a in range(len(shape))))


def _trailing(node: BoundNode) -> tuple[int, ...]:
    """The axes from `axis` on."""
    rank = node.input(0).rank
    (first,) = normal_axes(node, (int(node.attr("axis")),), rank)
    return tuple(range(first, rank))


@op("LayerNormalization", since=17, dtypes={"T": FLOATS}, bindings="x scale? bias? -> y mean inv_std", epilogue=True)
def layer_normalization(node: BoundNode) -> Kernel | Lowering:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias over the axes from `axis` on.

    x, y: any shape; scale, bias: broadcast to x; mean, inv_std: x's shape with 1 from `axis` on.
    """
    x, axes, epsilon = node.input(0), _trailing(node), float(node.attr("epsilon"))
    named = {"scale_index": node.optional(1), "bias_index": node.optional(2)}
    indices = {name: _broadcast(node, operand, x.shape) for name, operand in named.items() if operand}
    rows = rows_of(x.shape, axes)
    main = _held(node, rows, epsilon) if node.has(1) else None
    main = main or _normalize(node, rows, indices, spread=VARIANCE, center=True, epsilon=epsilon)
    if not node.wants(1) and not node.wants(2):
        return main
    assert isinstance(main, Kernel)  # one for rows that are scaled along themselves
    if node.attr("stash_type") != FLOAT32.onnx:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"LayerNormalization with stash_type {node.attr('stash_type')}; taken: 1"
        )
    stats = TensorType(FLOAT32, reduced_shape(x.shape, axes, True))
    moments = kernel(
        "row_moments.wgsl",
        [stats, stats],
        consts={
            "ROWS": rows.count,
            "N": rows.length,
            "PER_GROUP": rows.workgroup_size // rows.team,
            "SUBGROUPS": False,
            "EPSILON": epsilon,
        },
        groups=rows.groups,
        workgroup_size=rows.workgroup_size,
        workgroup_nbytes=4 * rows.workgroup_size,
        reads={"x": 0},
        writes={"mean": 1, "inv_std": 2},
    )
    return Lowering((x.type, stats, stats), (main, moments))


@op("RMSNormalization", since=23, dtypes={"T": FLOATS, "V": FLOATS}, bindings="x scale? bias? -> y", epilogue=True)
def rms_normalization(node: BoundNode) -> Kernel | Lowering:
    """y = x / sqrt(mean x^2 + epsilon) * scale over the axes from `axis` on. x, y: any shape; scale: broadcasts to
    x."""
    x, axes = node.input(0), _trailing(node)
    indices = {"scale_index": _broadcast(node, node.input(1), x.shape)}
    rows = rows_of(x.shape, axes)
    return _held(node, rows, node.attr("epsilon"), rms=True) or _normalize(
        node, rows, indices, spread=VARIANCE, center=False, epsilon=node.attr("epsilon")
    )


@op(
    "SimplifiedLayerNormalization",
    dtypes={"T": FLOATS, "V": FLOATS},
    bindings="x scale? bias? -> y inv_std",
    epilogue=True,
)
def simplified_layer_normalization(node: BoundNode) -> Kernel | Lowering:
    """RMSNormalization as ONNX Runtime has it: y = x / sqrt(mean x^2 + epsilon) * scale over the axes from `axis`
    on."""
    if node.wants(1):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, "SimplifiedLayerNormalization with its inverse deviation as an output"
        )
    x, axes, scale = node.input(0), _trailing(node), node.input(1)
    rows, epsilon = rows_of(x.shape, axes), float(node.attr("epsilon"))
    if x.dtype is not scale.dtype:
        raise UnsupportedNodeError(
            Code.DTYPE, f"SimplifiedLayerNormalization of {x.dtype} with scale {scale.dtype}; taken: the same type"
        )
    return _held(node, rows, epsilon, rms=True) or _normalize(
        node, rows, {"scale_index": _broadcast(node, scale, x.shape)}, spread=VARIANCE, center=False, epsilon=epsilon
    )


@op(
    "SkipLayerNormalization",
    domain=DOMAIN,
    dtypes={"T": FLOATS},
    bindings="x skip scale bias? added? -> y _mean _inv_std total",
    epilogue=True,
)
@op(
    "SkipSimplifiedLayerNormalization",
    domain=DOMAIN,
    dtypes={"T": FLOATS},
    bindings="x skip scale added? -> y _mean _inv_std total",
    epilogue=True,
)
def skip_normalization(node: BoundNode) -> Lowering:
    """LayerNormalization (Simplified: RMS normalization) of s = x + skip + added over the last axis; s itself where it
    is wanted.

    x, y, s: [..., N, H]; skip: the same, [1, N, H] or [N, H]; scale, bias, added: [H].
    """
    rms = node.op == "SkipSimplifiedLayerNormalization"
    optional = {"added": 3} if rms else {"bias": 3, "added": 4}
    x, skip, target = node.input(0), node.input(1), node.target
    reads = {name: k for name, k in optional.items() if node.has(k)}
    n = x.shape[-1] if x.rank > 1 else 0
    if is_symbolic(n) or n == 0 or n % 4 or any(node.input(k).shape != (n,) for k in (2, *reads.values())):
        raise UnsupportedNodeError(
            Code.RANK,
            f"{node.op} of {x.type} with scale {node.input(2).type}; taken: rows of a multiple of 4, and "
            "scale and biases of a row",
        )
    if skip.shape != x.shape and (x.rank != 3 or skip.shape not in ((1, *x.shape[1:]), x.shape[1:])):
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} of {x.type} with skip {skip.type}; taken: the same shape, or one for all batches"
        )
    if node.wants(1) or node.wants(2):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with its mean or inverse deviation as an output")
    rows = rows_of(x.shape, (x.rank - 1,))
    by_name = forms(target, n // 4)
    choice = target.choose(
        f"skip normalize {n}, about {1 << hint(rows.count).bit_length()} rows",
        estimates_ns(target, by_name, rows.count, n // 4),
    )
    form, wants_sum = by_name[choice.form], node.wants(3)
    consts: dict[str, Const] = {
        "COUNT": rows.count,
        "RMS": rms,
        "SKIP": True,
        "SUM": wants_sum,
        "EARLY": _is_early(target, rows),
        "SKIP_ROWS": prod(skip.shape[:-1]),
        "N4": n // 4,
        "EPSILON": float(node.attr("epsilon")),
        "CHANNELS": 0,
        "PER_ROW": 1,
        "PLANE4": 1,
        **form.consts(target, ROWS),
    }
    stored = {"y": 0, **({"total": 3} if wants_sum else {})}
    built = kernel(
        ROWS,
        [x.type] * len(stored),
        consts=consts,
        groups=form.groups(rows.count),
        workgroup_size=form.workgroup_size,
        workgroup_nbytes=form.workgroup_nbytes(target, ROWS),
        reads={"x": 0, "skip": 1, "scale": 2, **reads},
        writes=stored,
        vectors=("x", "skip", "scale", *reads, *stored),
        features=form.features(target, ROWS),
        choice=choice,
    )
    built = replace(built, optionals=(*tuple((name, name in reads) for name in ("bias", "added")), ("scale", True)))
    return Lowering((x.type, None, None, x.type if wants_sum else None)[: max(1, len(node.node.outputs))], (built,))


@op(
    "InstanceNormalization",
    since=6,
    dtypes={"T": FLOATS},
    bindings="x scale? bias? -> y",
    epilogue=True,
    channels_last=of_any_rank,
)
def instance_normalization(node: BoundNode) -> Kernel | Lowering:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias over the spatial axes. x, y: [N, C, spatial...]; scale,
    bias: [C]."""
    x = node.input(0)
    if x.rank < 3:
        raise UnsupportedNodeError(Code.RANK, f"InstanceNormalization of rank {x.rank}; taken: 3 and more")
    for operand in filter(None, map(node.optional, (1, 2))):
        if operand.rank != 1:
            raise UnsupportedNodeError(
                Code.RANK, f"InstanceNormalization with {operand.name!r} {operand.type}; taken: [C]"
            )
    last = node.node.channels_last
    channel, spatial = (x.rank - 1, range(1, x.rank - 1)) if last else (1, range(2, x.rank))
    indices = {
        f"{name}_index": _per_channel(node, node.input(k), x.shape, channel) for k, name in ((1, "scale"), (2, "bias"))
    }
    rows = rows_of(x.shape, spatial)
    channels = None if last else _Channels(x.shape[1], 1, rows.length)
    return (_held(node, rows, node.attr("epsilon"), channels=channels) if channels else None) or _normalize(
        node, rows, indices, spread=VARIANCE, center=True, epsilon=node.attr("epsilon")
    )


@op("GroupNormalization", since=18, dtypes={"T": FLOATS}, bindings="x scale? bias? -> y", epilogue=True)
def group_normalization(node: BoundNode) -> Kernel | Lowering:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias over each of `num_groups` groups of channels.

    x, y: [N, C, spatial...]; scale, bias: [C], before opset 21 [num_groups].
    """
    x, groups = node.input(0), int(node.attr("num_groups"))
    if x.rank < 2 or groups < 1 or x.shape[1] % groups:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"GroupNormalization with num_groups {groups} of {x.type}")
    batch, channels, inner = x.shape[0], x.shape[1], prod(x.shape[2:])
    shape = (batch, groups, channels // groups * inner) if node.version < 21 else (batch, channels, inner)
    indices = {
        "scale_index": _per_channel(node, node.input(1), shape),
        "bias_index": _per_channel(node, node.input(2), shape),
    }
    rows = rows_of((batch * groups, channels // groups * inner), (1,))
    scaled = _Channels(groups, 1, rows.length) if node.version < 21 else _Channels(channels, channels // groups, inner)
    return _held(node, rows, node.attr("epsilon"), channels=scaled) or _normalize(
        node, rows, indices, spread=VARIANCE, center=True, epsilon=node.attr("epsilon")
    )


@op("MeanVarianceNormalization", since=9, dtypes={"T": FLOATS}, bindings="x scale? bias? -> y", epilogue=True)
def mean_variance_normalization(node: BoundNode) -> Kernel:
    """y = (x - mean) / (sqrt(variance) + 1e-9) over `axes`. x, y: any shape."""
    return _over_axes(node, tuple(node.attr("axes")), DEVIATION, True, MVN_EPSILON)


@op("LpNormalization", dtypes={"T": FLOATS}, bindings="x scale? bias? -> y", epilogue=True)
def lp_normalization(node: BoundNode) -> Kernel:
    """y = x / norm along `axis`, 0 where the norm is 0; p = 1 or 2. x, y: any shape."""
    p = int(node.attr("p"))
    if p not in (1, 2):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"LpNormalization with p = {p}; taken: 1, 2")
    return _over_axes(node, (int(node.attr("axis")),), L1 if p == 1 else L2, False)


def _over_axes(node: BoundNode, axes: Sequence[int], spread: int, center: bool, epsilon: float = 0.0) -> Kernel:
    shape = node.input(0).shape
    rows = rows_of(shape, normal_axes(node, axes, len(shape)))
    return _normalize(node, rows, {}, spread=spread, center=center, epsilon=epsilon)


@op(
    "BatchNormalization",
    since=7,
    dtypes=dict.fromkeys(("T", "U", "T1", "T2"), FLOATS),
    bindings="x scale bias mean variance -> y next_mean next_variance",
    epilogue=True,
)
def batch_normalization(node: BoundNode) -> Kernel | Lowering:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias, in training (from opset 14 on) by the batch's own mean
    and variance.

    x, y: [N, C, spatial...]; the rest: [C].
    """
    x = node.input(0)
    # of other numbers onnxruntime takes none for true
    training = bool(node.version >= 14 and node.attr("training_mode") == 1)
    if not training and any(node.wants(k) for k in range(1, 5)):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"BatchNormalization of opset {node.version} in training mode; taken: from 14 on"
        )
    if node.attr("spatial") == 0:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, "BatchNormalization with spatial = 0 (moments per element); taken: 1"
        )
    channels = x.shape[1] if x.rank > 1 else 1
    if any(node.input(k).size != channels for k in range(1, 5)):
        raise UnsupportedNodeError(
            Code.RANK, f"BatchNormalization of {x.type}: scale, B, mean and var need {channels} elements"
        )
    consts: dict[str, Const] = {
        "CHANNELS": channels,
        "INNER": prod(x.shape[2:]),
        "EPSILON": float(node.attr("epsilon")),
    }
    if training:
        return _trained(node, channels, consts)
    return kernel("batch_norm.wgsl", [x.type], consts=consts, writes={"y": 0})


def _trained(node: BoundNode, channels: int, consts: dict[str, Const]) -> Lowering:
    """By the batch's mean and variance, which move the running ones."""
    x = node.input(0)
    count = x.size // max(node.input(1).size, 1)
    if count == 0:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"BatchNormalization of {x.type} in training mode: there is nothing to take a mean of"
        )
    now = TensorType(FLOAT32, node.input(1).shape)
    moments = kernel(
        "channel_moments.wgsl",
        [now, now, node.input(3).type, node.input(4).type],
        groups=channels,
        workgroup_size=MOMENTS_WORKGROUP_SIZE,
        workgroup_nbytes=4 * MOMENTS_WORKGROUP_SIZE,
        consts={
            "CHANNELS": channels,
            "INNER": consts["INNER"],
            "COUNT": count,
            "MOMENTUM": float(node.attr("momentum")),
        },
        reads={"x": 0, "mean": 3, "variance": 4},
        writes={"now_mean": "now_mean", "now_variance": "now_variance", "next_mean": 1, "next_variance": 2},
    )
    last = kernel(
        "batch_norm.wgsl",
        [x.type],
        consts=consts,
        reads={"x": 0, "scale": 1, "bias": 2, "mean": "now_mean", "variance": "now_variance"},
        writes={"y": 0},
    )
    outputs = tuple(
        t if node.wants(k) else None for k, t in enumerate((x.type, node.input(3).type, node.input(4).type))
    )
    return Lowering(
        outputs[: len(node.node.outputs)], (moments, last), temps=(("now_mean", now), ("now_variance", now))
    )


@op("LRN", dtypes={"T": FLOATS}, bindings="x -> y", epilogue=True, channels_last=own(0))
def lrn(node: BoundNode) -> Kernel:
    """y = x / (bias + alpha / size * sum x^2 over `size` neighbouring channels)^beta. x, y: [N, C, H, W]."""
    x, size, last = node.input(0), int(node.attr("size")), node.node.channels_last
    if x.rank != 4 or size < 1:
        raise UnsupportedNodeError(
            Code.RANK, f"LRN of {x.type} with size {size}; taken, as by ONNX Runtime's CPU: rank 4, size 1 and more"
        )
    consts: dict[str, Const] = {
        "CHANNELS": x.shape[-1] if last else x.shape[1],
        "INNER": 1 if last else prod(x.shape[2:]),
        "BEFORE": (size - 1) // 2,
        "AFTER": size // 2,
        "FACTOR": float(node.attr("alpha")) / size,
        "BIAS": float(node.attr("bias")),
        "BETA": float(node.attr("beta")),
    }
    return kernel("lrn.wgsl", [x.type], consts=consts)
