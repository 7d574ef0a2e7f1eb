"""Attention of ONNX, and Attention and MultiHeadAttention of ONNX Runtime, with caches and masks of every kind."""

from __future__ import annotations

from dataclasses import replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.types import BOOL, BY_ONNX, FLOATS, INT8, INT32, INT64, UINT8, DType, Shape, TensorType
from ort_gpu_ep.kernels.registry import BoundNode, Lowering, Operand, op
from ort_gpu_ep.ops import shared_cache
from ort_gpu_ep.ops.attention import Heads, Options, factor_of, least
from ort_gpu_ep.ops.composed import Composed, Part
from ort_gpu_ep.ops.heads import (
    BY_KEY,
    COUNTS,
    ENDS,
    ENDS_AND_STARTS,
    SCORES,
    Assembly,
    Padding,
    assembled,
    contiguous,
    split,
)

BYTES = (UINT8, INT8)
BIAS, MASK = 3, 5
"""Of MultiHeadAttention: the input of the bias; of it and of ONNX Runtime's Attention: that of the mask which is
added."""

PADDING = {(DOMAIN, "MultiHeadAttention"): 4, (DOMAIN, "Attention"): 3}
"""The input that says which keys are padding."""


@op(
    "Attention",
    since=23,
    dtypes={"T1": FLOATS, "T2": FLOATS, "U": (*FLOATS, BOOL), "tensor(int64)": (INT64,)},
    bindings="q k v mask? past_key? past_value? lengths? -> y present_key present_value scores",
)
def attention(node: BoundNode) -> Lowering:
    """y = softmax(scale q k^T + mask) v for each head; causal, in a window, behind a cache's keys, of fewer heads of
    keys.

    q, y: [B, heads, S, D] or [B, S, heads D]; k, v likewise; mask: broadcasts to [B, heads, S, keys]; past and present:
    [B, heads, keys, D]; lengths: [B], keys that are there; scores: [B, heads, S, keys].
    """
    counts = node.attr("q_num_heads"), node.attr("kv_num_heads"), node.attr("kv_num_heads")
    q, k, v = (split(node.input(i), i, count, node.op) for i, count in enumerate(counts))
    scale, mode, dtype = node.attr("scale"), int(node.attr("qk_matmul_output_mode")), node.input(0).dtype
    if scale is not None and scale <= 0:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Attention with scale {scale:g}, which ONNX Runtime's CPU refuses")
    if mode not in range(4):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"Attention with qk_matmul_output_mode {mode}; expected 0, 1, 2 or 3"
        )
    if any(o.dtype is not dtype for i in (1, 2, 4, 5) if (o := node.optional(i))):
        raise UnsupportedNodeError(Code.DTYPE, f"Attention of {dtype} with keys or values of another type")
    past = [_past(node, i, heads) for i, heads in ((4, k), (5, v))]
    if (past[0] is None) != (past[1] is None) or (past[0] and node.has(6)):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, "Attention with past keys alone, past values alone, or lengths beside them"
        )
    if k.shape[3] != q.shape[3] or v.shape[2] != k.shape[2]:
        raise UnsupportedNodeError(
            Code.RANK, f"Attention of queries {list(q.shape)} with keys {list(k.shape)} and values {list(v.shape)}"
        )
    if past[0] and node.attr("is_causal") and k.shape[2] != q.shape[2] and q.shape[2] == 1:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"Attention with is_causal of one query behind a cache, and {k.shape[2]} keys: ONNX lets it see "
            f"one of them, "
            "ONNX Runtime's CPU all",
        )
    assembly, before = Assembly(node, dtype), past[0].shape[2] if past[0] else 0
    options = Options(
        factor_of(node, scale, q.shape[3]),
        bool(node.attr("is_causal")),
        float(node.attr("softcap") or 0.0),
        True,
        before=before,
        least=least(dtype),
    )
    window = tuple(
        -1 if (w := node.attr(name)) is None else int(w) for name in ("left_window_size", "right_window_size")
    )
    width = v.shape[3]
    queries = assembly.rows("queries", q)
    keys = assembly.rows("present_key", k, past[0], present=1 if node.wants(1) else None)
    values = assembly.rows("present_value", v, past[1], present=2 if node.wants(2) else None)
    scores = (q.shape[0], q.shape[1], q.shape[2], keys.shape[2])
    padding = None
    if node.has(6):
        if node.input(6).shape != (q.shape[0],):
            raise UnsupportedNodeError(
                Code.RANK, f"Attention with lengths {node.input(6).type}; expected [{q.shape[0]}]"
            )
        padding = Padding(COUNTS, 6)
    bias = (3, node.input(3)) if node.has(3) else None
    mask, options = assembly.mask(scores, bias, padding, 0.0, options, (window[0], window[1]))
    out = assembly.attend((queries, keys, values), width, mask, options, node.input(0).rank == 3)
    probabilities = assembly.scores(queries, keys, mask, options, mode) if node.wants(SCORES) else None
    presents = [TensorType(dtype, (*h.shape[:2], scores[3], h.shape[3])) for h in (k, v)]
    return assembly.lowering((out, *presents, probabilities))


def _past(node: BoundNode, index: int, new: Heads) -> Heads | None:
    """A cache [B, heads, keys, D]."""
    operand = node.optional(index)
    if operand is None:
        return None
    batch, heads, _, width = new.shape
    if operand.rank != 4 or (*operand.shape[:2], operand.shape[3]) != (batch, heads, width):
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} with a cache {operand.type}; expected [{batch}, {heads}, tokens, {width}]"
        )
    return contiguous(index, (batch, heads, operand.shape[2], width))


@op(
    "MultiHeadAttention",
    domain=DOMAIN,
    dtypes={"T": FLOATS, "M": (INT32,), "QK": FLOATS},
    bindings="q k? v? bias? padding? mask? past_key? past_value? _past_length? _cache_indirection? -> y present_key "
    "present_value scores",
)
def multi_head_attention(node: BoundNode) -> Lowering:
    """Attention of heads side by side, with a bias on q, k and v, and keys that are padding.

    q: [B, S, heads D], or with keys and values [B, S, heads, 3, D]; k: [B, L, heads D], or with values [B, L, heads, 2,
    D], or both as [B, heads, L, D]; bias: [all of a token]; padding: [B], [3 B + 2], [B, L] or [B, S, L]; mask:
    broadcasts to [B, heads, S, L]; past and present: [B, heads, tokens, D]; past_length: [1], where both are one cache
    with room behind its tokens; y: [B, S, heads D].
    """
    if node.has(9):
        raise UnsupportedNodeError(Code.ATTRIBUTE, "MultiHeadAttention with cache_indirection")
    if node.has(8) and node.has(6):
        return shared_cache.lower(node)
    q, k, v = _three(node)
    dtype, stands = node.input(0).dtype, node.has(1) and node.input(1).rank == 4
    past = [_past(node, i, heads) for i, heads in ((6, k), (7, v))]
    if (past[0] is None) != (past[1] is None) or (past[0] and stands):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, "MultiHeadAttention with past keys or past values alone, or beside keys of all tokens"
        )
    hidden = [int(heads.shape[1] * heads.shape[3]) for heads in (q, k, v)]
    offered = node.optional(3)
    if offered is not None and offered.shape != (sum(hidden),):
        raise UnsupportedNodeError(Code.RANK, f"MultiHeadAttention with bias {offered.type}; expected [{sum(hidden)}]")
    firsts = [(3, sum(hidden[:i])) if offered is not None and not (i and stands) else None for i in range(3)]
    assembly, before, scale = Assembly(node, dtype), past[0].shape[2] if past[0] else 0, node.attr("scale")
    queries = assembly.rows("queries", q, bias=firsts[0])
    keys = assembly.rows("present_key", k, past[0], firsts[1], 1 if node.wants(1) else None)
    values = assembly.rows("present_value", v, past[1], firsts[2], 2 if node.wants(2) else None)
    scores = (q.shape[0], q.shape[1], q.shape[2], keys.shape[2])
    options = Options(factor_of(node, scale or None, q.shape[3]), bool(node.attr("unidirectional")), before=before)
    padding = _padding(node, node.input(4), 4, scores, before) if node.has(4) else None
    bias = (5, node.input(5)) if node.has(5) else None
    # of which ONNX Runtime's CPU lets the last query see all
    more_keys = options.causal and bool(k.shape[2] > q.shape[2])
    mask, options = assembly.mask(
        scores, bias, padding, float(node.attr("mask_filter_value")), options, last_sees_all=more_keys
    )
    out = assembly.attend((queries, keys, values), v.shape[3], mask, options, True)
    raw = assembly.scores(queries, keys, mask, options, 2, True) if node.wants(SCORES) else None
    return assembly.lowering((out, *(TensorType(dtype, (*h.shape[:2], scores[3], h.shape[3])) for h in (k, v)), raw))


def _three(node: BoundNode) -> tuple[Heads, Heads, Heads]:
    """Queries, keys and values of MultiHeadAttention as [B, heads, S, D]. Raises UnsupportedNodeError."""
    q, k, v = node.input(0), node.optional(1), node.optional(2)
    heads = int(node.attr("num_heads"))
    if k is None and v is None and q.rank == 5 and q.shape[2] == heads and q.shape[3] == 3:
        return _interleaved(q, 0, 0, 3), _interleaved(q, 0, 1, 3), _interleaved(q, 0, 2, 3)
    if q.rank != 3 or k is None:
        raise UnsupportedNodeError(
            Code.RANK, f"MultiHeadAttention of {q.type} and keys {k and k.type}, with {heads} heads"
        )
    queries = split(q, 0, heads, node.op)
    if v is None and k.rank == 5 and k.shape[2] == heads and k.shape[3] == 2:
        return queries, _interleaved(k, 1, 0, 2), _interleaved(k, 1, 1, 2)
    if v is None or k.rank != v.rank:
        raise UnsupportedNodeError(
            Code.RANK, f"MultiHeadAttention of {q.type}, keys {k.type} and values {v and v.type}"
        )
    return queries, split(k, 1, heads, node.op), split(v, 2, heads, node.op)


def _interleaved(operand: Operand, source: int, place: int, of: int) -> Heads:
    """One of `of` tensors that lie side by side in each head: [B, S, heads, of, D]."""
    batch, rows, heads, _, width = operand.shape
    token = heads * of * width
    return Heads(source, (batch, heads, rows, int(width)), (rows * token, of * width, token), place * width)


def _padding(node: BoundNode, mask: Operand, source: int, scores: tuple[int, ...], before: int) -> Padding:
    """Which keys are padding, in ONNX Runtime's forms. Raises UnsupportedNodeError for others."""
    batch, _, queries, keys = scores
    if mask.rank == 1 and (mask.shape[0] == batch or mask.shape[0] == 3 * batch + 2):
        return Padding(ENDS, source)
    if mask.rank == 1 and mask.shape[0] == 2 * batch:
        return Padding(ENDS_AND_STARTS, source)
    if mask.rank == 2 and mask.shape == (batch, keys):
        return Padding(BY_KEY, source, (keys, 0))
    if mask.rank == 3 and mask.shape == (batch, queries, keys):
        return Padding(BY_KEY, source, (queries * keys, keys))
    if (
        mask.rank == 4
        and mask.shape[0] == batch
        and mask.shape[1] == 1
        and mask.shape[2] == mask.shape[3]
        and mask.shape[3] >= keys
    ):
        return Padding(BY_KEY, source, (mask.shape[2] * mask.shape[3], mask.shape[3]), before)
    raise UnsupportedNodeError(
        Code.RANK,
        f"{node.op} with mask {mask.name!r} {mask.type}; expected of {batch} batches, {queries} queries and "
        f"{keys} keys "
        "[B], [2 B], [3 B + 2], [B, keys], [B, queries, keys] or [B, 1, most keys, most keys]",
    )


def masked_scores(node: BoundNode) -> tuple[Shape, int, float]:
    """Of a node of PADDING that its row takes: scores [B, heads, S, keys], how many keys its cache has, and what
    padding adds."""
    heads, past = int(node.attr("num_heads")), node.optional(4 if node.op == "Attention" else 6)
    if node.op == "Attention":
        batch, rows, keys = node.input(0).shape[0], node.input(0).shape[1], node.input(0).shape[1]
    else:
        q, k, _ = _three(node)
        batch, rows, keys = q.shape[0], q.shape[2], k.shape[2]
    before = past.shape[-2] if past else 0
    return (batch, heads, rows, before + keys), before, float(node.attr("mask_filter_value"))


@op("AttentionMask", domain="ort_gpu_ep", dtypes={}, bindings="padding -> y")
def attention_mask(node: BoundNode) -> Lowering:
    """What is added to scores [B, heads, S, keys] where keys are padding: made once for all attention with the same
    padding.

    padding: as that of MultiHeadAttention; y: [B, 1, S or 1, keys]. Made by the partitioner
    (partitioner/attention_inputs.py).
    """
    scores, before, assembly = node.attr("scores"), node.attr("before"), Assembly(node, BY_ONNX[node.attr("to")])
    padding = _padding(node, node.input(0), 0, scores, before)
    assembly.mask(scores, None, padding, float(node.attr("mask_filter_value")), Options(1.0, before=before))
    out = TensorType(assembly.dtype, assembly.temps["mask"].shape)
    return Lowering((out,), (replace(assembly.kernels[0], outputs=(out,), writes=(("y", 0),)),))


@op(
    "Attention",
    domain=DOMAIN,
    dtypes={"T": FLOATS, "M": (INT32,)},
    bindings="x w bias? padding? past? mask? _past_length? -> y present",
    weights=(1,),
)
def packed_attention(node: BoundNode) -> Lowering:
    """Attention of heads side by side over q, k and v = x w + bias, with keys that are padding, behind those of a
    cache.

    x: [B, S, D]; w: [D, of q, k and v]; padding: [B], [2 B], [B, L], [B, S, L] or [B, 1, M, M]; past: [2, B, heads, P,
    H]; present: [2, B, heads, P + S, H]; mask: broadcasts to [B, heads, S, L]; y: [B, S, of v].
    """
    if node.has(6) or node.attr("do_rotary") or node.attr("past_present_share_buffer"):
        raise UnsupportedNodeError(Code.ATTRIBUTE, "Attention with a shared cache or do_rotary")
    x, w, count = node.input(0), node.input(1), int(node.attr("num_heads"))
    if x.rank != 3 or w.rank != 2 or w.shape[0] != x.shape[2] or count < 1:
        raise UnsupportedNodeError(
            Code.RANK,
            f"Attention of {x.type} by {w.type} with {count} heads; expected [B, S, D] and [D, of q, k and v]",
        )
    (batch, rows, _), width = x.shape, int(w.shape[1])
    sizes = tuple(int(size) for size in node.attr("qkv_hidden_sizes") or ()) or (width // 3,) * 3
    if sum(sizes) != width or len(sizes) != 3 or any(size % count for size in sizes) or sizes[0] != sizes[1]:
        raise UnsupportedNodeError(
            Code.RANK, f"Attention of {width} columns as q, k and v of {sizes}, with {count} heads"
        )
    product = Composed(node)
    projected = product.add(
        "Gemm", product.given(0).seen((batch * rows, x.shape[2])), product.given(1), product.optional(2)
    )
    return _attend(product, projected, (batch, rows), sizes, x.dtype, padding=3, past=4, added=5)


@op(
    "QAttention",
    domain=DOMAIN,
    dtypes={"T1": BYTES, "T2": BYTES, "T3": FLOATS, "T4": (INT32,)},
    bindings="x w bias x_scale w_scale padding? x_zp? w_zp? past? -> y present",
)
def quantized_attention(node: BoundNode) -> Lowering:
    """Attention of ONNX Runtime over q, k and v = (x - x's zero point) (w - w's zero point) x_scale w_scale + bias, of
    bytes.

    Of w scale and zero point are scalars, or one a column; else as Attention.
    """
    if node.attr("do_rotary") or node.attr("past_present_share_buffer"):
        raise UnsupportedNodeError(Code.ATTRIBUTE, "QAttention with a shared cache or do_rotary")
    x, w, count = node.input(0), node.input(1), int(node.attr("num_heads"))
    if x.rank != 3 or w.rank != 2 or w.shape[0] != x.shape[2] or count < 1 or int(w.shape[1]) % (3 * count):
        raise UnsupportedNodeError(
            Code.RANK,
            f"QAttention of {x.type} by {w.type} with {count} heads; expected [B, S, D] and [D, of q, k and v]",
        )
    product = Composed(node)
    sums = product.add(
        "MatMulIntegerToFloat",
        product.given(0),
        product.given(1),
        product.given(3),
        product.given(4),
        product.optional(6),
        product.optional(7),
        product.given(2),
        version=1,
        domain=DOMAIN,
    )
    return _attend(product, sums, x.shape[:2], (int(w.shape[1]) // 3,) * 3, node.input(2).dtype, padding=5, past=8)


def _attend(
    product: Composed,
    made: Part,
    tokens: Shape,
    sizes: tuple[int, ...],
    dtype: DType,
    padding: int,
    past: int,
    added: int | None = None,
) -> Lowering:
    """Attention over `made`, the rows of q, k and v, which are so wide. tokens: [B, S]. padding, past, added: the
    inputs of these, the last one a mask that is added.
    """
    node, count, width, (batch, rows) = product.node, int(product.node.attr("num_heads")), sum(sizes), tokens
    firsts = (0, sizes[0], sizes[0] + sizes[1])
    q, k, v = (
        Heads(made.source or 0, (batch, count, rows, size // count), (rows * width, size // count, width), first)
        for size, first in zip(sizes, firsts, strict=True)
    )
    around, scale = Assembly(node, dtype), node.attr("scale")
    keys, values, before, present = _cached(node, around, (k, v), past)
    scores = (batch, count, rows, before + rows)
    options = Options(factor_of(node, scale or None, q.shape[3]), bool(node.attr("unidirectional")), before=before)
    padded = _padding(node, node.input(padding), padding, scores, before) if node.has(padding) else None
    bias = (added, node.input(added)) if added is not None and node.has(added) else None
    mask, options = around.mask(scores, bias, padded, float(node.attr("mask_filter_value")), options)
    out = around.attend((around.rows("queries", q), keys, values), v.shape[3], mask, options, True)
    return product.before(around.lowering((out, present)))


def _cached(
    node: BoundNode,
    around: Assembly,
    new: tuple[Heads, Heads],
    at: int,
) -> tuple[Heads, Heads, int, TensorType | None]:
    """Keys and values behind those of `past`, input `at`; how many tokens that has, and what `present` is: both one
    tensor [2, B, heads, tokens, H].
    """
    k, v = new
    past = node.optional(at)
    if past is None and not node.wants(1):
        return around.rows("keys", k), around.rows("values", v), 0, None
    batch, count, rows, width = k.shape
    before = past.shape[3] if past and past.rank == 5 else 0
    if v.shape != k.shape or (past and past.shape != (2, batch, count, before, width)):
        raise UnsupportedNodeError(
            Code.RANK,
            f"{node.op} with past {past and past.type}; expected [2, {batch}, {count}, tokens, {width}], "
            f"values like keys",
        )
    tokens = before + rows
    present = TensorType(around.dtype, (2, batch, count, tokens, width))
    old = contiguous(at, (2 * batch, count, before, width)) if past else None
    flat = TensorType(around.dtype, (2 * batch, count, tokens, width))
    around.temps["present"] = present
    around.kernels.append(assembled(k, old, None, flat, "present", present, v.first - k.first))
    around.stored.append(("present", 1))
    shape = (batch, count, tokens, width)
    both = (contiguous("present", shape), contiguous("present", shape, batch * count * tokens * width))
    return around.rows("keys", both[0]), around.rows("values", both[1]), before, present
