"""Mixtures of experts: MoE, and QMoE with weights in codes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.types import FLOAT32, FLOATS, INT32, UINT8, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, kernel, op
from ort_gpu_ep.ops.composed import Composed, Part
from ort_gpu_ep.ops.unary import TANH_GELU
from ort_gpu_ep.shaders.composer import literal

WORKGROUP_SIZE, TEAM = 64, 16
"""expert_product.wgsl: invocations of a workgroup, and of an output."""

record("route_experts.wgsl", "gather", loop_bound=lambda k: k["SLOTS"] * (1 + k["EXPERTS"]) + k["EXPERTS"])
record(
    "expert_product.wgsl",
    "matvec",
    flops=lambda k: 2 * k.size("y") * k["SUMS"] * k["K"],
    loop_bound=lambda k: k["SUMS"] * (1 + ceil_div(k["K"], TEAM) + TEAM),
)
record("gated_halves.wgsl", "elementwise")

ACTIVATIONS = {"relu": "max(x, 0.0)", "gelu": TANH_GELU, "silu": "x * sigmoid_f32(x)", "identity": "x"}


@dataclass(frozen=True, slots=True)
class Layer:
    """Where a node has one of the layers of its experts: inputs, -1 for none. bits: of a code, 0 for floats."""

    weights: int
    bias: int
    scales: int = -1
    zeros: int = -1
    bits: int = 0


@op("MoE", domain=DOMAIN, dtypes={"T": FLOATS}, bindings="x scores w1 c1? w2 c2? w3? c3? -> y")
def mixture(node: BoundNode) -> Lowering:
    """y = the sum over the k experts with the largest scores of share (w2 act(w1 x + c1) + c2); with w3 the act is
    multiplied by w3 x + c3.

    x, y: [tokens, H] or [B, S, H]; scores: [tokens, experts]; w1, w3: [experts, D, H]; w2: [experts, H, D]; biases:
    [experts, rows].
    """
    third = Layer(6, 7) if node.has(6) else None
    return _mixture(node, (Layer(2, 3), Layer(4, 5), third), None)


@op(
    "QMoE",
    domain=DOMAIN,
    dtypes={"T": FLOATS, "T1": (UINT8,), "T2": FLOATS, "T4": (FLOAT32,)},
    bindings="x scores w1 s1? c1? w2 s2? c2? w3? s3? c3? z1? z2? z3? weights? _g1? _g2? _a1? _a2? _b1? _b2? -> y",
)
def quantized_mixture(node: BoundNode) -> Lowering:
    """MoE with weights in codes of 2, 4 or 8 bits: (code - zero) scale, for a row or a block of it.

    w1, w3: [experts, D, H bits / 8]; w2: [experts, H, D bits / 8]; scales: [experts, rows] or [experts, rows, blocks];
    zeros: in codes; weights: [tokens, experts], by which experts count in place of the scores. Else as MoE.
    """
    if (
        node.attr("quant_type") != "int"
        or any(node.has(i) for i in range(15, 21))
        or node.attr("weights_prepacked") == 1
    ):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"QMoE with quant_type {node.attr('quant_type')!r}, scales of activations, or prepacked weights; "
            f"taken: 'int'",
        )
    common = int(node.attr("expert_weight_bits"))
    bits = [int(node.attr(f"fc{i}_expert_weight_bits") or common) for i in (1, 2, 3)]
    if any(b not in (2, 4, 8) for b in bits):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"QMoE with codes of {bits} bits; taken: 2, 4, 8")
    third = Layer(8, 10, 9, 13, bits[2]) if node.has(8) else None
    return _mixture(
        node, (Layer(2, 4, 3, 11, bits[0]), Layer(5, 7, 6, 12, bits[1]), third), 14 if node.has(14) else None
    )


def _mixture(node: BoundNode, layers: tuple[Layer, Layer, Layer | None], weights: int | None) -> Lowering:
    x, scores, slots = node.input(0), node.input(1), int(node.attr("k"))
    if x.rank not in (2, 3) or scores.rank != 2 or node.input(layers[0].weights).rank != 3:
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} of {x.type} with scores {scores.type}; expected [.., H] and [tokens, experts]"
        )
    tokens, hidden, experts = math.prod(x.shape[:-1]), int(x.shape[-1]), int(scores.shape[1])
    other = node.attr("use_sparse_mixer") or node.attr("swiglu_limit_after_activation")
    if scores.shape[0] != tokens or not 1 <= slots <= experts or other:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op} of {tokens} tokens with k {slots}, scores {scores.type}, use_sparse_mixer or "
            "swiglu_limit_after_activation; taken: k up to the number of experts, neither of these",
        )
    if weights is not None and node.input(weights).shape != scores.shape:
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} with router_weights {node.input(weights).type}; expected {scores.type}"
        )
    composed = Composed(node)
    chosen, shares = (composed.computed(_route(node, tokens, slots, weights, share)) for share in (False, True))
    first, second, third = layers
    inner = composed.computed(_product(node, first, (tokens, slots, hidden), Part(0, x), chosen, None))
    gates = (
        composed.computed(_product(node, third, (tokens, slots, hidden), Part(0, x), chosen, None)) if third else None
    )
    act = _activated(composed, inner, gates)
    out = _product(node, second, (tokens, slots, int(act.shape[-1])), act, chosen, shares)
    if out.outputs[0].shape != x.shape:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} of {x.type}, whose second layer makes {out.outputs[0]}")
    composed.computed(out, 0)
    return composed.lowering()


def _route(node: BoundNode, tokens: int, slots: int, weights: int | None, share: bool) -> Kernel:
    consts: dict[str, Const] = {
        "EXPERTS": int(node.input(1).shape[1]),
        "SLOTS": slots,
        "SHARES": share,
        "NORMALIZED": bool(node.attr("normalize_routing_weights")),
    }
    reads = {"x": 1, **({} if weights is None else {"weights": weights})}
    built = kernel(
        "route_experts.wgsl", [TensorType(FLOAT32 if share else INT32, (tokens, slots))], consts=consts, reads=reads
    )
    return replace(built, optionals=(("weights", weights is not None),))


def _product(
    node: BoundNode,
    layer: Layer,
    of: tuple[int, int, int],
    x: Part,
    chosen: Part,
    shares: Part | None,
) -> Kernel:
    """A layer of each token's experts. of: tokens, experts of each, elements of x. shares: by which they are added
    up."""
    tokens, slots, k = of
    w, experts = node.input(layer.weights), int(node.input(1).shape[1])
    rows = int(w.shape[1]) if w.rank == 3 else 0
    if w.shape != (experts, rows, k * layer.bits // 8 if layer.bits else k) or (layer.bits and k * layer.bits % 8):
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} with weights {w.name!r} {w.type}; expected {experts} experts over {k} elements"
        )
    reads: dict[str, int | str | None] = {
        "bias": layer.bias if node.has(layer.bias) else None,
        "shares": None if shares is None else shares.source,
        "scales": layer.scales if layer.bits else None,
        "zeros": layer.zeros if layer.bits and node.has(layer.zeros) else None,
    }
    if reads["bias"] is not None and node.input(layer.bias).shape != (experts, rows):
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} with bias {node.input(layer.bias).type}; expected [{experts}, {rows}]"
        )
    consts: dict[str, Const] = {
        "K": k,
        "N": rows,
        "EXPERTS": experts,
        "BITS": layer.bits,
        "TEAM": TEAM,
        "SUMS": slots if shares else 1,
        "SHARED": 1 if shares else slots,
        **_blocks(node, layer, rows, k),
    }
    x_type = node.input(0).type
    out = TensorType(x_type.dtype, (*x_type.shape[:-1], rows)) if shares else TensorType(FLOAT32, (tokens, slots, rows))
    outputs = tokens if shares else tokens * slots
    built = kernel(
        "expert_product.wgsl",
        [out],
        consts=consts,
        groups=outputs * ceil_div(rows, WORKGROUP_SIZE // TEAM),
        workgroup_size=WORKGROUP_SIZE,
        workgroup_nbytes=4 * WORKGROUP_SIZE,
        reads={
            "x": x.source or 0,
            "chosen": chosen.source or 0,
            "w": layer.weights,
            **{n: at for n, at in reads.items() if at is not None},
        },
    )
    return replace(built, optionals=tuple((name, at is not None) for name, at in reads.items()))


def _blocks(node: BoundNode, layer: Layer, rows: int, k: int) -> dict[str, Const]:
    """How the scales and zeros of codes lie."""
    if not layer.bits:
        return {"BLOCKS": 0, "BLOCK": 1, "ZERO_ROW": 0}
    scales, block = node.optional(layer.scales), int(node.attr("block_size") or 0)
    experts, per = int(node.input(1).shape[1]), 8 // layer.bits
    blocks = k // block if block else 0
    shape = (experts, rows, blocks) if block else (experts, rows)
    zero_row = ceil_div(blocks if block else rows, per)
    zeros, expected = node.optional(layer.zeros), (experts, rows, zero_row) if block else (experts, zero_row)
    if scales is None or scales.shape != shape or (block and k % block) or (zeros and zeros.shape != expected):
        raise UnsupportedNodeError(
            Code.RANK,
            f"{node.op} with scales {scales and scales.type} and zero points {zeros and zeros.type}; expected "
            f"{list(shape)} and "
            f"{list(expected)}",
        )
    return {"BLOCKS": blocks, "BLOCK": block or k, "ZERO_ROW": zero_row}


def _activated(made: Composed, inner: Part, gates: Part | None) -> Part:
    """What the second layer reads."""
    node, name, fusion = made.node, made.node.attr("activation_type"), int(made.node.attr("swiglu_fusion"))
    alpha, beta, limit = (node.attr(n) for n in ("activation_alpha", "activation_beta", "swiglu_limit"))
    limited = limit is not None and math.isfinite(limit)
    if name == "swiglu" and gates is None and fusion in (1, 2) and inner.shape[-1] % 2 == 0:
        half = int(inner.shape[-1]) // 2
        consts: dict[str, Const] = {
            "D": half,
            "INTERLEAVED": fusion == 1,
            "ALPHA": float(alpha),
            "BETA": float(beta),
            "LIMITED": limited,
            "LIMIT": float(limit) if limited else 0.0,
        }
        return made.computed(
            kernel(
                "gated_halves.wgsl",
                [TensorType(FLOAT32, (*inner.shape[:-1], half))],
                consts=consts,
                reads={"x": inner.source or 0},
            )
        )
    if name == "swiglu" and gates is not None and not fusion:
        x, y = (
            (f"min(x, {literal(limit)})", f"clamp(y, -{literal(limit)}, {literal(limit)})") if limited else ("x", "y")
        )
        return made.elementwise(
            f"{x} * sigmoid_f32({literal(alpha)} * {x}) * ({y} + {literal(beta)})", inner, gates, dtype=FLOAT32
        )
    if name not in ACTIVATIONS:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op} with activation_type {name!r}, swiglu_fusion {fusion}; taken: {', '.join(ACTIVATIONS)}, swiglu",
        )
    if gates is not None:
        return made.elementwise(f"({ACTIVATIONS[name]}) * y", inner, gates, dtype=FLOAT32)
    return made.elementwise(ACTIVATIONS[name], inner, dtype=FLOAT32)
