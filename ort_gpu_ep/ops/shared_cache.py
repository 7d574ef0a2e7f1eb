"""MultiHeadAttention whose past and present are one cache (past_sequence_length tells how much of it there is): by the
kernels of GroupQueryAttention, with as many heads of keys as of queries.
"""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.graph import Attribute
from ort_gpu_ep.ir.types import INT32, INT64, TensorType
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Lowering, Operand, kernel
from ort_gpu_ep.ops.composed import Composed, Part, known

BIAS, PADDING, MASK, PAST_KEY, PAST_VALUE, PAST_LENGTH = 3, 4, 5, 6, 7, 8

record("step_lengths.wgsl", "elementwise")


def lower(node: BoundNode) -> Lowering:
    """As the row has it, over tokens [B, S, heads D]. Raises UnsupportedNodeError."""
    q, k, v, past = node.input(0), node.optional(1), node.optional(2), node.optional(PAST_KEY)
    heads = int(node.attr("num_heads"))
    if (
        not (node.wants(1) and node.wants(2) and node.has(PAST_VALUE))
        or node.wants(3)
        or node.input(PAST_LENGTH).size != 1
    ):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            "MultiHeadAttention with past_sequence_length, with its scores, or without both caches as "
            "inputs and outputs",
        )
    if (
        k is None
        or v is None
        or past is None
        or past.rank != 4
        or any(o.rank != 3 or o.shape != q.shape for o in (q, k, v))
    ):
        raise UnsupportedNodeError(
            Code.RANK,
            f"MultiHeadAttention with past_sequence_length of {q.type}, keys {k and k.type}, values {v and v.type} "
            f"and a cache "
            f"{past and past.type}; taken: three of [B, S, heads D], and [B, heads, tokens, D]",
        )
    composed = Composed(node)
    tokens = [_with_bias(composed, part, int(q.shape[2])) for part in range(3)]
    mask, rows = _mask(composed, heads), past.shape[2]
    batch, sequence, _ = q.shape
    lengths = TensorType(INT32, (batch,))
    composed.kernels.append(
        kernel(
            "step_lengths.wgsl",
            [lengths],
            reads={"past": PAST_LENGTH},
            writes={"y": "lengths"},
            reports=True,
            consts={
                "SEQUENCE": sequence,
                "ROWS": rows,
                "KEYS": mask.shape[3] if mask else 0,
                "MASKED": mask is not None,
            },
        )
    )
    composed.temps["lengths"] = lengths
    most = Part(None, Operand("", TensorType(INT64, (1,)), np.array([rows], object)))
    caches = composed.given(PAST_KEY), composed.given(PAST_VALUE)
    operands = [*tokens, *caches, Part("lengths", Operand("lengths", lengths)), most, None, None, None, mask]
    attributes = {
        "num_heads": heads,
        "kv_num_heads": heads,
        "causal": int(node.attr("unidirectional")),
        "scale": node.attr("scale") or 0.0,
    }
    composed.add_all("GroupQueryAttention", operands, (0, 1, 2), version=1, domain=DOMAIN, attributes=attributes)
    return composed.lowering()


def _with_bias(made: Composed, part: int, hidden: int) -> Part:
    """The queries, keys or values with their part of the bias."""
    tokens, bias = made.given(part), made.optional(BIAS)
    if bias is None:
        return tokens
    if bias.shape != (3 * hidden,):
        raise UnsupportedNodeError(
            Code.RANK, f"MultiHeadAttention with bias {bias.operand.type}; expected [{3 * hidden}]"
        )
    own = made.add("Slice", bias, known([part * hidden]), known([(part + 1) * hidden]))
    return made.elementwise("x + y", tokens, own, dtype=tokens.operand.dtype)


def _mask(made: Composed, heads: int) -> Part | None:
    """What is added to the scores, [B or 1, heads or 1, S or 1, keys], keys those of the cache so far and of this
    step."""
    node, padding, mask = made.node, made.optional(PADDING), made.optional(MASK)
    batch, sequence, _ = node.input(0).shape
    if mask is not None and (mask.operand.rank != 4 or padding is not None):
        raise UnsupportedNodeError(
            Code.RANK,
            f"MultiHeadAttention with past_sequence_length and attention_bias {mask.operand.type}"
            f"{' beside key_padding_mask' if padding else ''}; taken: one of both, four dimensions",
        )
    if padding is None:
        return mask
    if padding.operand.rank not in (2, 3):
        raise UnsupportedNodeError(
            Code.RANK,
            f"MultiHeadAttention with past_sequence_length and key_padding_mask {padding.operand.type}; taken: "
            f"[B, keys] and "
            "[B, S, keys]",
        )
    attributes: dict[str, Attribute] = {
        "scores": (batch, heads, sequence, padding.shape[-1]),
        "before": 0,
        "to": node.input(0).dtype.onnx,
        "mask_filter_value": float(node.attr("mask_filter_value")),
    }
    (made_mask,) = made.add_all(
        "AttentionMask", [padding], (None,), version=1, domain="ort_gpu_ep", attributes=attributes
    )
    return made_mask
