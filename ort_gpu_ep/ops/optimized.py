"""Ops that ONNX Runtime's optimisers write: others with an activation, a normalization or a sum in one, and images
stored channels last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.graph import Step
from ort_gpu_ep.ir.symbolic import is_symbolic
from ort_gpu_ep.ir.types import FLOAT32, FLOATS, INT8, INT32, INT64, UINT8, TensorType
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Lowering, Strided, kernel, op
from ort_gpu_ep.ops import conv_last
from ort_gpu_ep.ops.axes import number_of
from ort_gpu_ep.ops.composed import Composed, Part, step_of
from ort_gpu_ep.ops.normalization import VARIANCE, normalized
from ort_gpu_ep.ops.reduce import rows_of

IDS, SEGMENT_IDS, WORDS, POSITIONS, SEGMENTS, GAMMA, BETA, MASK, PLACES = range(9)

TO_CHANNELS_LAST, TO_PLANES = (0, 2, 3, 1), (0, 3, 1, 2)

record("embed_tokens.wgsl", "gather", pairs=True)
record("position_bias.wgsl", "elementwise")


EMBEDDING = "ids segment_ids? words positions segments? gamma beta mask? places? -> y counts total"


@op("EmbedLayerNormalization", domain="ort_gpu_ep", dtypes={}, bindings=EMBEDDING)
@op("EmbedLayerNormalization", domain=DOMAIN, dtypes={"T": FLOATS, "T1": (INT32,)}, bindings=EMBEDDING)
def embed_layer_normalization(node: BoundNode) -> Lowering:
    """LayerNormalization of the sum of each token's word, position and segment; of each sequence how many tokens its
    mask leaves.

    ids, segment_ids, mask: [B, S], the first two of 64 bits where the partitioner left their Cast out; words,
    positions, segments: [rows, H]; places: [B, S] or [1, S]; y, total: [B, S, H]; counts: [B].
    """
    composed, ids, words = Composed(node), node.input(IDS), node.input(WORDS)
    if ids.rank != 2 or words.rank != 2 or node.has(SEGMENT_IDS) != node.has(SEGMENTS):
        raise UnsupportedNodeError(
            Code.RANK, f"EmbedLayerNormalization of {ids.type} and {words.type}; segments without ids, or ids alone"
        )
    (batch, length), hidden = ids.shape, words.shape[1]
    tables = [node.input(i) for i in (POSITIONS, SEGMENTS) if node.has(i)]
    alike = all(t.rank == 2 and t.shape[1] == hidden for t in tables) and all(
        node.input(i).shape == (hidden,) for i in (GAMMA, BETA)
    )
    optional = [node.input(i) for i in (SEGMENT_IDS, MASK, PLACES) if node.has(i)]
    if not alike or any(
        g.shape != (batch, length) and not (g is node.optional(PLACES) and g.shape == (1, length)) for g in optional
    ):
        raise UnsupportedNodeError(
            Code.RANK, f"EmbedLayerNormalization of {ids.type}, whose tables or ids are of other sizes"
        )
    if not node.has(PLACES) and length > node.input(POSITIONS).shape[0]:
        raise UnsupportedNodeError(
            Code.RANK, f"EmbedLayerNormalization of {length} tokens with {node.input(POSITIONS).shape[0]} positions"
        )
    total = composed.computed(
        _embedded(node, TensorType(words.dtype, (batch, length, hidden))), 2 if node.wants(2) else None
    )
    composed.add(
        "LayerNormalization",
        total,
        composed.given(GAMMA),
        composed.given(BETA),
        version=17,
        to=0,
        epsilon=float(node.attr("epsilon")),
    )
    if node.wants(1):
        seen = composed.given(MASK if node.has(MASK) else IDS)
        ones = composed.elementwise("select(0, 1, x == 1)" if node.has(MASK) else "x * 0", seen, dtype=INT32)
        composed.add("ReduceSum", ones, version=11, to=1, axes=(1,), keepdims=0)
    return composed.lowering()


def _embedded(node: BoundNode, out: TensorType) -> Kernel:
    places, segments = node.optional(PLACES), node.optional(SEGMENTS)
    consts = {
        "HIDDEN": out.shape[2],
        "WORDS": node.input(WORDS).shape[0],
        "POSITIONS": node.input(POSITIONS).shape[0],
        "SEGMENTS": segments.shape[0] if segments else 1,
        "LENGTH": out.shape[1],
        "PLACES": places.size if places else 1,
    }
    optional = {"segment_ids": SEGMENT_IDS, "segments": SEGMENTS, "places": PLACES}
    reads = {"ids": IDS, "words": WORDS, "positions": POSITIONS, **{n: i for n, i in optional.items() if node.has(i)}}
    built = kernel("embed_tokens.wgsl", [out], consts=consts, reads=reads, reports=True)
    return replace(built, optionals=tuple((name, node.has(i)) for name, i in optional.items()))


@op("RelativePositionBias", domain=DOMAIN, dtypes={"T": FLOATS, "U": (INT64,)}, bindings="table _queries _keys -> y")
def relative_position_bias(node: BoundNode) -> Kernel:
    """y[0, head, q, k] = the table's number for the distance of k from q, in buckets that grow with it. table: heads x
    buckets numbers.

    table: [buckets, heads], but its numbers are stored head by head, as ONNX Runtime wants it; y: [1, heads, queries,
    keys].
    """
    table, queries, keys = node.input(0), number_of(node, 1), number_of(node, 2)
    both, farthest = bool(node.attr("is_bidirectional")), int(node.attr("max_distance"))
    buckets, heads = (int(size) for size in table.shape) if table.rank == 2 else (0, 0)
    each = buckets // 2 if both else buckets
    if each < 2 or farthest <= each // 2:
        raise UnsupportedNodeError(
            Code.RANK,
            f"RelativePositionBias of {table.type} with max_distance {farthest}; expected [buckets, heads], and "
            f"a distance "
            "of more than half of a direction's buckets",
        )
    consts = {"QUERIES": queries, "KEYS": keys, "BUCKETS": buckets, "EACH": each, "BOTH": both, "FARTHEST": farthest}
    return kernel("position_bias.wgsl", [TensorType(table.dtype, (1, heads, queries, keys))], consts=consts)


@op("GroupNorm", domain=DOMAIN, dtypes={"T": FLOATS, "M": FLOATS}, bindings="x scale bias -> y")
def group_norm(node: BoundNode) -> Lowering:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias over each of `groups` groups of channels, and SiLU where
    `activation` is 1.

    x, y: [N, H, W, C], or [N, C, H, W] where `channels_last` is 0; scale, bias: [C].
    """
    composed = Composed(node)
    _grouped(composed, composed.given(0))
    return composed.lowering()


@op("SkipGroupNorm", domain=DOMAIN, dtypes={"T": FLOATS, "M": FLOATS}, bindings="x scale bias skip added? -> y total")
def skip_group_norm(node: BoundNode) -> Lowering:
    """GroupNorm of s = x + skip + added; s itself where it is wanted. skip: x's shape, [N, 1, 1, C] or [N, C]; added:
    [C]."""
    composed, x, skip, last = Composed(node), node.input(0), node.input(3), bool(node.attr("channels_last"))
    channels = x.shape[-1 if last else 1] if x.rank == 4 else 0
    whole = (x.shape[0], 1, 1, channels) if last else (x.shape[0], channels, 1, 1)
    skipped, terms = composed.given(3), "x + y"
    if skip.shape == (x.shape[0], channels):
        skipped = skipped.seen(whole)
    if x.rank != 4 or skipped.shape not in (x.shape, whole):
        raise UnsupportedNodeError(
            Code.RANK, f"SkipGroupNorm of {x.type} with skip {skip.type}; taken: x's shape, [N, 1, 1, C] or [N, C]"
        )
    parts = [composed.given(0), skipped]
    if node.has(4):
        if node.input(4).shape != (channels,):
            raise UnsupportedNodeError(
                Code.RANK, f"SkipGroupNorm of {x.type} with bias {node.input(4).type}; expected [{channels}]"
            )
        parts.append(composed.given(4).seen((channels,) if last else (channels, 1, 1)))
        terms = "x + y + z"
    _grouped(composed, composed.elementwise(terms, *parts, dtype=x.dtype, to=1 if node.wants(1) else None))
    return composed.lowering()


def _grouped(made: Composed, x: Part) -> None:
    """The normalisation of a node's `x` into its output 0, with its activation."""
    node, groups = made.node, int(made.node.attr("groups"))
    activation, last = int(node.attr("activation")), bool(node.attr("channels_last"))
    channels = x.shape[-1 if last else 1] if len(x.shape) == 4 else 0
    if (
        groups < 1
        or not channels
        or channels % groups
        or activation not in (0, 1)
        or any(node.input(i).shape != (channels,) for i in (1, 2))
    ):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op} of {x.operand.type} in {groups} groups, activation {activation}, scale {node.input(1).type}; "
            "taken: rank 4, groups that divide the channels, activation 0 (none) and 1 (SiLU)",
        )
    each = channels // groups
    if last:
        shape, axes, steps = (x.shape[0], x.shape[1] * x.shape[2], groups, each), (1, 3), (0, 0, each, 1)
    else:
        shape, axes, steps = (x.shape[0], groups, each, x.shape[2] * x.shape[3]), (2, 3), (0, each, 1, 0)
    where = Strided(shape, steps)
    built = normalized(
        x.operand.type,
        rows_of(shape, axes),
        {"scale_index": where, "bias_index": where},
        spread=VARIANCE,
        center=True,
        epsilon=float(node.attr("epsilon")),
    )
    made.computed(
        replace(
            built, reads=(("x", x.source or 0), ("scale", 1), ("bias", 2)), optionals=(("scale", True), ("bias", True))
        ),
        0,
        [Step("Silu", "x * sigmoid_f32(x)", ("v",), x.operand.dtype)] if activation else (),
    )


@op("NhwcConv", domain=DOMAIN, dtypes={"T": FLOATS}, bindings="x w bias? -> y")
def nhwc_conv(node: BoundNode) -> Lowering:
    """Conv of images stored [N, H, W, C], with filters [M, kH, kW, C / group]. x: [N, H, W, C]; bias: [M]; y: [N, H',
    W', M]."""
    x, w, composed = node.input(0), node.input(1), Composed(node)
    if x.rank != 4 or w.rank != 4 or x.shape[3] != w.shape[3] * node.attr("group"):
        raise UnsupportedNodeError(
            Code.RANK,
            f"NhwcConv of {x.type} and {w.type}, group {node.attr('group')}; expected [N, H, W, C] and [M, kH, "
            f"kW, C / group]",
        )
    filters = composed.add("Transpose", composed.given(1), perm=TO_PLANES)
    filters = replace(filters, operand=replace(filters.operand, fits=lambda: not w.exceeds_half))
    images, attributes = composed.given(0), _without(node)
    plain = composed.part("Conv", (replace(x, type=_turned(x.type, TO_PLANES)), filters.operand), attributes)
    fixed = not any(map(is_symbolic, w.shape))
    if fixed and conv_last.takes(plain) and not conv_last.reads_planes(plain) and not conv_last.writes_planes(plain):
        composed.add("Conv", images, filters, composed.optional(2), version=11, to=0, channels_last=True, **attributes)
    else:
        planes = composed.add(
            "Conv",
            composed.add("Transpose", images, perm=TO_PLANES),
            filters,
            composed.optional(2),
            version=11,
            **attributes,
        )
        composed.add("Transpose", planes, perm=TO_CHANNELS_LAST, to=0)
    return composed.lowering()


def _turned(tensor: TensorType, perm: tuple[int, ...]) -> TensorType:
    return TensorType(tensor.dtype, tuple(tensor.shape[axis] for axis in perm))


@op("NhwcMaxPool", domain=DOMAIN, dtypes={"T": (INT8, UINT8)}, bindings="x -> y")
def nhwc_max_pool(node: BoundNode) -> Lowering:
    """MaxPool of images stored [N, H, W, C]."""
    composed = Composed(node)
    composed.add("MaxPool", composed.given(0), version=12, to=0, channels_last=True, **_without(node))
    return composed.lowering()


@op("BiasSoftmax", domain=DOMAIN, dtypes={"T": FLOATS}, bindings="x bias -> y")
def bias_softmax(node: BoundNode) -> Lowering:
    """Softmax of x + bias over all axes from `axis` on. x, y: any shape; bias: broadcasts to it."""
    composed, x = Composed(node), node.input(0)
    total = composed.elementwise("x + y", composed.given(0), composed.given(1), dtype=x.dtype)
    if total.shape != x.shape:
        raise UnsupportedNodeError(
            Code.RANK, f"BiasSoftmax of {x.type} with bias {node.input(1).type}, which does not broadcast to it"
        )
    composed.add("Softmax", total, version=11, to=0, axis=int(node.attr("axis")))
    return composed.lowering()


PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
    "Clip": ("min", "max"),
}
"""Activations by name, and what they are given."""


def _activation(node: BoundNode, given: Mapping[str, Any]) -> list[Step]:
    """The step of the node's activation. given: its parameters by name. Raises UnsupportedNodeError."""
    name = str(node.attr("activation") or "")
    if name not in PARAMETERS or not set(PARAMETERS[name]) <= set(given):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op} with activation {name!r} of {dict(given)}; taken: {', '.join(filter(None, PARAMETERS))}",
        )
    attributes = {key: float(given[key]) for key in PARAMETERS[name]}
    return [step_of(name, node.input(0).dtype, 6, attributes)] if name else []


def _without(node: BoundNode, *prefixes: str) -> dict[str, Any]:
    """The node's attributes but for some."""
    return {name: value for name, value in node.node.attributes.items() if not name.startswith(prefixes)}


@op("FusedConv", domain=DOMAIN, dtypes={"T": FLOATS}, bindings="x w bias? added? -> y", weights=(1,))
def fused_conv(node: BoundNode) -> Lowering:
    """Conv, the sum with `added` (of y's shape), and an activation. x: [N, C, spatial...]; w: [M, C / group,
    window...]."""
    composed, name = Composed(node), str(node.attr("activation") or "")
    values = node.attr("activation_params") or ()
    steps = _activation(node, dict(zip(PARAMETERS.get(name, ()), values, strict=False)))
    conv, attributes = (composed.given(0), composed.given(1), composed.optional(2)), _without(node, "activation")
    if not node.has(3):
        composed.add("Conv", *conv, version=11, to=0, steps=steps, **attributes)
        return composed.lowering()
    product = composed.add("Conv", *conv, version=11, **attributes)
    if node.input(3).shape != product.shape:
        raise UnsupportedNodeError(
            Code.RANK, f"FusedConv of {product.operand.type} with Z {node.input(3).type}; expected the same shape"
        )
    composed.elementwise("x + y", product, composed.given(3), dtype=node.input(0).dtype, to=0, steps=steps)
    return composed.lowering()


@op("FusedGemm", domain=DOMAIN, dtypes={"T": FLOATS}, bindings="a b c? -> y", weights=(0, 1))
def fused_gemm(node: BoundNode) -> Lowering:
    """Gemm, and an activation. Shapes as Gemm's."""
    gemm = Composed(node)
    parameters = {n: v for n in ("alpha", "beta", "gamma") if (v := node.attr(f"activation_{n}")) is not None}
    gemm.add(
        "Gemm",
        gemm.given(0),
        gemm.given(1),
        gemm.optional(2),
        to=0,
        steps=_activation(node, parameters),
        **_without(node, "activation"),
    )
    return gemm.lowering()


BYTES = (INT8, UINT8)


@op(
    "MatMulIntegerToFloat",
    domain=DOMAIN,
    dtypes={"T1": BYTES, "T2": BYTES, "T3": FLOATS},
    bindings="a b a_scale b_scale a_zp? b_zp? bias? -> y",
)
def matmul_integer_to_float(node: BoundNode) -> Lowering:
    """y = (a - a's zero point) (b - b's zero point) a_scale b_scale + bias, shapes as numpy.matmul.

    Of b scale and zero point are scalars, or one a column; bias: [columns].
    """
    composed = Composed(node)
    sums = composed.add(
        "MatMulInteger", composed.given(0), composed.given(1), composed.optional(4), composed.optional(5), version=10
    )
    _scaled(composed, sums, composed.given(2), composed.given(3), composed.optional(6))
    return composed.lowering()


@op(
    "DynamicQuantizeMatMul",
    domain=DOMAIN,
    dtypes={"T1": (FLOAT32,), "T2": BYTES},
    bindings="a b b_scale b_zp? bias? -> y",
)
def dynamic_quantize_matmul(node: BoundNode) -> Lowering:
    """As MatMulIntegerToFloat, of an a that is rounded to 256 steps between its least and its most number."""
    composed = Composed(node)
    codes, scale, zero = composed.add_all("DynamicQuantizeLinear", (composed.given(0),), (None, None, None), version=11)
    sums = composed.add("MatMulInteger", codes, composed.given(1), zero, composed.optional(3), version=10)
    _scaled(composed, sums, scale, composed.given(2), composed.optional(4))
    return composed.lowering()


def _scaled(made: Composed, sums: Part, left: Part, right: Part, bias: Part | None) -> None:
    """The sums of a product of bytes as floats, into output 0. left, right: scales of its operands."""
    columns = sums.shape[-1:]
    if (
        left.operand.size != 1
        or (right.operand.size != 1 and right.shape != columns)
        or (bias and bias.shape != columns)
    ):
        raise UnsupportedNodeError(
            Code.RANK,
            f"{made.node.op} with scales {left.operand.type} and {right.operand.type}, bias "
            f"{bias and bias.operand.type}; taken "
            f"a scalar, a scalar or [{columns[0]}], [{columns[0]}]",
        )
    parts = [sums, left.seen(()), right if right.shape == columns else right.seen(())]
    made.elementwise(
        "f32(x) * (y * z) + w" if bias else "f32(x) * (y * z)",
        *parts,
        *([bias] if bias else []),
        dtype=right.operand.dtype,
        to=0,
    )
