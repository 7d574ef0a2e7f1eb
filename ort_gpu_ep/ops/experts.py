"""Mixtures of experts: MoE, and QMoE with weights in codes.

Few tokens read the weights of their experts each by itself. Others are put in order by expert, whose weights are then
read once for several of its tokens: for a few of them by lanes that add up along a row, for many as a tile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.symbolic import counts_of, hint, is_symbolic
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, FLOATS, INT32, UINT8, TensorType
from ort_gpu_ep.kernels.forms import Form, lower
from ort_gpu_ep.kernels.records import KernelCall, ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Operand, kernel, op, part_count
from ort_gpu_ep.kernels.target import SUBNORMAL_HALVES, Choice, Target
from ort_gpu_ep.ops.composed import Composed, Part
from ort_gpu_ep.ops.packed_vectors import (
    HALVES,
    MAX_VECTORS,
    MIN_WORKGROUP_SIZE,
    UNIT_LANES,
    WORDS,
    closing_loops,
    decoding_ns,
    sums_of_workgroup,
)
from ort_gpu_ep.ops.unary import TANH_GELU
from ort_gpu_ep.shaders.composer import literal

WORKGROUP_SIZE, TEAMS, ROWS = 64, (16, 32, 64), 4
"""expert_product.wgsl: invocations of a workgroup, those that may share rows of weights, and how many rows these are."""
GROUPING_SIZE = 256
"""group_experts.wgsl: invocations of a workgroup."""
FEW_COLUMNS = 4
"""expert_product.wgsl: rows of x by expert of a workgroup."""
TILE_ROWS, TILE_COLUMNS, STEP = 64, (16, 32, 64), 32
"""expert_tiles.wgsl: rows of weights and of x of a workgroup, and elements of them in its memory at a time."""
WIDTHS = (FEW_COLUMNS, *TILE_COLUMNS)
EIGHT_REGISTERS = 96
"""Of a lane that has 8 x 4 sums; others have 4 x 4."""
MOST_FEW = 256
"""Tokens beyond which nobody asks whether each by itself is faster."""
ROUTER_WEIGHTS, GAMMA, SCORES_BIAS, ROUTER_SCALES, ROUTER_ZEROS = 14, 15, 16, 17, 18
"""The last input of QMoE, and those of RoutedMixture behind it."""
SCORES, SCORES_SIZE = "normalized_scores.wgsl", 256
"""The norm in front of a mixture with its scores; invocations of a workgroup."""
VECTORS, VECTOR_ROWS, MAX_VECTOR_LANES = "expert_matvec.wgsl", 8, 256
"""What each token's experts by themselves take where their weights are codes; rows of these of a workgroup, and its
invocations at most."""
BY_TOKEN, IN_HALVES, BY_EXPERT = "by token", "by token in halves", "by expert"
"""Forms of a node; the last with the rows of x of a workgroup."""
IN_ORDER = ("group_experts.wgsl", "sum_experts.wgsl")
"""What the second takes beside the products."""

record("route_experts.wgsl", "gather", loop_bound=lambda k: _routing_loops(k) + k["SLOTS"] // k.workgroup_size)
record(
    VECTORS,
    "matvec",
    flops=lambda k: 2 * k.size("y") * k["K"] * k["TERMS"] * (2 if k["GATING"] else 1),
    loop_bound=lambda k: (
        (_routing_loops(k) if k["ROUTES"] else 0)
        + (4 * (8 // k["BITS"]) + 1) * ceil_div(k["TERMS"] * k["K"], k["PER"] * k.workgroup_size)
        + closing_loops(k["ROWS"], k.workgroup_size)
        + 2 * (k["TERMS"] + k.workgroup_size)
    ),
)
record(
    "expert_product.wgsl",
    "matvec",
    flops=lambda k: 2 * k.size("y") * k["K"] * k["SUMS"] * (2 if k["GATING"] else 1),
    loop_bound=lambda k: ceil_div(k["SUMS"] * k["K"], k["PER"] * k["TEAM"]) + 8 * k["ROWS"] * k["TJ"] + k["SUMS"] + 32,
)
record(
    SCORES,
    "matvec",
    flops=lambda k: 2 * k.size("scores") * k["K"],
    loop_bound=lambda k: (
        ceil_div(k["K"], k["PER"] * k.workgroup_size)
        + ceil_div(k["K"], k["EXPERTS"] * k.workgroup_size)
        + closing_loops(2, k.workgroup_size)
        + k.workgroup_size
    ),
)
record("gated_halves.wgsl", "elementwise")
record(
    "group_experts.wgsl",
    "gather",
    loop_bound=lambda k: ceil_div(k["COUNT"], GROUPING_SIZE) * (2 + GROUPING_SIZE.bit_length()) + 16,
)
record(
    "expert_tiles.wgsl",
    "product",
    flops=lambda k: 2 * k.size("y") * k["K"],
    loop_bound=lambda k: ceil_div(k["K"], k["STEP"]) * (4 + k["STEP"]) + 64,
)
record("sum_experts.wgsl", "elementwise", loop_bound=lambda k: k["SLOTS"])


def _routing_loops(k: KernelCall) -> int:
    """Of include/routed.wgsl."""
    return (2 + k["EXPERTS"]) * (1 + k["EXPERTS"] // k.workgroup_size) + 2 * k["EXPERTS"] + 8


ACTIVATIONS = {"relu": "max(x, 0.0)", "gelu": TANH_GELU, "silu": "x * sigmoid_f32(x)", "identity": "x"}


@dataclass(frozen=True, slots=True)
class Layer:
    """Where a node has one of the layers of its experts: inputs, -1 for none. bits: of a code, 0 for floats."""

    weights: int
    bias: int
    scales: int = -1
    zeros: int = -1
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Experts:
    """A layer with its sizes: rows of k elements of each expert. consts: by which expert_weight.wgsl knows them."""

    layer: Layer
    rows: int
    k: int
    nbytes: int
    consts: Mapping[str, Const]
    reads: Mapping[str, int]
    block: int

    @property
    def per(self) -> int:
        """Elements that an invocation of expert_product.wgsl reads at a time."""
        bits = self.layer.bits
        if not bits:
            return 1 if self.k % 4 else 4
        return 1 if self.k % (128 // bits) or self.block % (32 // bits) else 128 // bits

    @property
    def by_fours(self) -> bool:
        """Whether four elements lie in one word, or vector, and have one scale."""
        return self.k % (32 // self.layer.bits if self.layer.bits else 4) == 0 and self.block % 4 == 0


@dataclass(frozen=True, slots=True)
class Mixture:
    """A node: its sizes, and what of it the forms share. gating: of expert_product.wgsl and gated_halves.wgsl, where
    the first layer has gates and ups."""

    node: BoundNode
    tokens: int
    slots: int
    experts: int
    first: Experts
    second: Experts
    third: Experts | None
    weights: int | None
    gating: Mapping[str, Const]

    @property
    def inner(self) -> int:
        return self.first.rows // 2 if self.gating else self.first.rows

    @property
    def layers(self) -> Sequence[Experts]:
        return [layer for layer in (self.first, self.second, self.third) if layer]


@op("MoE", domain=DOMAIN, dtypes={"T": FLOATS}, epilogue=True, bindings="x scores w1 c1? w2 c2? w3? c3? -> y")
def mixture(node: BoundNode) -> Lowering:
    """y = the sum over the k experts with the largest scores of share (w2 act(w1 x + c1) + c2); with w3 the act is
    multiplied by w3 x + c3.

    x, y: [tokens, H] or [B, S, H]; scores: [tokens, experts]; w1, w3: [experts, D, H]; w2: [experts, H, D]; biases:
    [experts, rows].
    """
    third = Layer(6, 7) if node.has(6) else None
    return _lowered(_sizes(node, (Layer(2, 3), Layer(4, 5), third), None))


@op(
    "QMoE",
    domain=DOMAIN,
    dtypes={"T": FLOATS, "T1": (UINT8,), "T2": FLOATS, "T4": (FLOAT32,)},
    epilogue=True,
    bindings="x scores w1 s1? c1? w2 s2? c2? w3? s3? c3? z1? z2? z3? weights? _g1? _g2? _a1? _a2? _b1? _b2? -> y",
)
def quantized_mixture(node: BoundNode) -> Lowering:
    """MoE with weights in codes of 2, 4 or 8 bits: (code - zero) scale, for a row or a block of it.

    w1, w3: [experts, D, H bits / 8]; w2: [experts, H, D bits / 8]; scales: [experts, rows] or [experts, rows, blocks];
    zeros: in codes; weights: [tokens, experts], by which experts count in place of the scores. Else as MoE.
    """
    return _lowered(_sizes(node, _packed_layers(node), ROUTER_WEIGHTS if node.has(ROUTER_WEIGHTS) else None))


def _packed_layers(node: BoundNode) -> tuple[Layer, Layer, Layer | None]:
    if (
        node.attr("quant_type") != "int"
        or any(node.has(i) for i in range(15, 21))
        or node.attr("weights_prepacked") == 1
    ):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op} with quant_type {node.attr('quant_type')!r}, scales of activations, or prepacked weights; "
            f"taken: 'int'",
        )
    common = int(node.attr("expert_weight_bits"))
    bits = [int(node.attr(f"fc{i}_expert_weight_bits") or common) for i in (1, 2, 3)]
    if any(b not in (2, 4, 8) for b in bits):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with codes of {bits} bits; taken: 2, 4, 8")
    third = Layer(8, 10, 9, 13, bits[2]) if node.has(8) else None
    return Layer(2, 4, 3, 11, bits[0]), Layer(5, 7, 6, 12, bits[1]), third


@op(
    "RoutedMixture",
    domain="ort_gpu_ep",
    dtypes={"T": (FLOAT32, FLOAT16, UINT8)},
    epilogue=True,
    bindings="x router w1 s1? c1? w2 s2? c2? w3? s3? c3? z1? z2? z3? _weights? gamma c? s0? z0? -> y",
)
def routed_mixture(node: BoundNode) -> Lowering:
    """QMoE of v = x / sqrt(mean x^2 + epsilon) * gamma, for few tokens, whose scores are v times router, + c.

    x, y: [.., H]; router: [H, experts], or codes of router_bits in blocks of router_block as MatMulNBits has them, with
    scales s0 and zero points z0; gamma: [H], c: [experts]. Else as QMoE.
    """
    as_qmoe = replace(node, node=replace(node.node, op="QMoE", domain=DOMAIN))  # whose defaults it has
    layers = _packed_layers(replace(as_qmoe, inputs=node.inputs[:GAMMA]))
    mixture, x = _sizes(as_qmoe, layers, None, router=True), node.input(0)
    width, experts, bias = mixture.first.k, mixture.experts, node.optional(SCORES_BIAS)
    if not mixture.tokens or mixture.tokens > min(_few(mixture), MAX_VECTORS):
        raise UnsupportedNodeError(
            Code.COST, f"{node.op} of {hint(mixture.tokens)} tokens: those by expert are estimated to be faster"
        )
    if (
        not all(_as_vectors(node.target, layer) for layer in mixture.layers)
        or not node.target.limits.allow(SCORES)
        or node.input(GAMMA).shape != (width,)
        or (bias and bias.shape != (experts,))
        or not _reads_router(node, width, experts)
    ):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op} of {x.type} with a gamma {node.input(GAMMA).type}, or codes that are read singly",
        )
    forms = {
        form: Form(_by_token_ns(mixture, int(hint(mixture.tokens)), decoding), partial(_normalized, mixture, decoding))
        for form, decoding in _by_token_forms(mixture).items()
    }
    key = f"{mixture.slots} of {experts} experts, {width} x {mixture.first.rows}, normalized"
    return lower(node.target, key, forms, x.type)


def _reads_router(node: BoundNode, width: int, experts: int) -> bool:
    """Whether a router in codes lies in whole words, each with one scale."""
    router, scales, zeros = node.input(1), node.optional(ROUTER_SCALES), node.optional(ROUTER_ZEROS)
    if router.dtype is not UINT8:
        return True
    bits, block = int(node.attr("router_bits")), int(node.attr("router_block"))
    return (
        bits in (2, 4, 8)
        and width % block == 0
        and block % (32 // bits) == 0
        and router.size * 8 == experts * width * bits
        and scales is not None
        and scales.size == experts * width // block
        and (zeros is None or (zeros.dtype is UINT8 and zeros.size == experts * ceil_div(width // block * bits, 8)))
    )


def _normalized(mixture: Mixture, decoding: str, choice: Choice, out: TensorType) -> Lowering:
    """The norm and the scores in one dispatch, behind which each workgroup finds the experts by itself."""
    node, width, experts = mixture.node, mixture.first.k, mixture.experts
    composed, subgroups = Composed(node), node.target.limits.allow(SCORES, "subgroup")
    packed = node.input(1).dtype is UINT8
    router = composed.given(1) if packed else composed.add("Transpose", composed.given(1), perm=(1, 0))
    bits, block = (int(node.attr(f"router_{name}")) if packed else 0 for name in ("bits", "block"))
    blocks = width // block if packed else 0
    size = min(SCORES_SIZE, node.target.limits.max_invocations)
    outputs = {
        "normal": TensorType(FLOAT32, (mixture.tokens, width)),
        "scores": TensorType(FLOAT32, (mixture.tokens, experts)),
    }
    others = {"c": SCORES_BIAS, "scales": ROUTER_SCALES, "zeros": ROUTER_ZEROS}
    others = {name: at for name, at in others.items() if node.has(at)}
    built = kernel(
        SCORES,
        list(outputs.values()),
        consts={
            "K": width,
            "EXPERTS": experts,
            "LAID_OUT": mixture.first.per,
            "N": experts,
            "BITS": bits,
            "PER": 32 // bits if packed else 4,
            "BLOCKS": blocks,
            "BLOCK": block,
            "ZERO_ROW": ceil_div(blocks * bits, 8),
            "EPSILON": float(node.attr("epsilon")),
            "SUBGROUPS": subgroups,
        },
        groups=mixture.tokens * experts,
        workgroup_size=size,
        workgroup_nbytes=8 * sums_of_workgroup(size, subgroups),
        reads={"x": 0, "gamma": GAMMA, "w": router.source or 0, **others},
        writes={"y": "normal", "scores": "scores"},
        vectors=("x", "gamma") if packed else ("x", "gamma", "w"),
        features=("subgroup",) if subgroups else (),
    )
    composed.kernels.append(replace(built, optionals=_optionals(others, "c", "scales", "zeros")))
    composed.temps |= outputs
    normal, scores = (Part(name, Operand(name, tensor)) for name, tensor in outputs.items())
    return _chosen_products(composed, mixture, normal, scores, decoding, True, choice, out)


def _sizes(
    node: BoundNode, layers: tuple[Layer, Layer, Layer | None], weights: int | None, router: bool = False
) -> Mixture:
    """router: the second input is what the scores are made with, [H, experts] or codes, in place of these."""
    x, scores, slots = node.input(0), node.input(1), int(node.attr("k"))
    packed = scores.dtype is UINT8
    if x.rank not in (2, 3) or scores.rank != 2 + packed or node.input(layers[0].weights).rank != 3:
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} of {x.type} with scores {scores.type}; expected [.., H] and [tokens, experts]"
        )
    tokens, hidden, experts = math.prod(x.shape[:-1]), int(x.shape[-1]), _count(node)
    other = node.attr("use_sparse_mixer") or node.attr("swiglu_limit_after_activation")
    if scores.shape[0] != (experts if packed else hidden if router else tokens) or not 1 <= slots <= experts or other:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op} of {tokens} tokens with k {slots}, scores {scores.type}, use_sparse_mixer or "
            "swiglu_limit_after_activation; taken: k up to the number of experts, neither of these",
        )
    if weights is not None and node.input(weights).shape != scores.shape:
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} with router_weights {node.input(weights).type}; expected {scores.type}"
        )
    gating = _gating(node, layers[2] is not None)
    first = _experts(node, layers[0], hidden)
    third = _experts(node, layers[2], hidden) if layers[2] else None
    if gating and first.rows % 2:
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} with gates and ups in {first.rows} rows; expected an even number"
        )
    second = _experts(node, layers[1], first.rows // 2 if gating else first.rows)
    if second.rows != hidden:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} of {x.type}, whose second layer makes {second.rows} elements")
    if third and third.rows != first.rows:
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} of {x.type}, whose first layer makes {first.rows} elements, the third {third.rows}"
        )
    return Mixture(node, tokens, slots, experts, first, second, third, weights, gating)


def _lowered(mixture: Mixture) -> Lowering:
    node, tokens, slots, experts = mixture.node, mixture.tokens, mixture.slots, mixture.experts
    few, limits = _few(mixture), node.target.limits
    # a plan for an open number of tokens serves many; where only the run's data tell how many there are, too
    many = is_symbolic(tokens) and (bool(counts_of(tokens)) or tokens > few)
    forms = {
        f"{BY_EXPERT} {width}": Form(
            _by_expert_ns(mixture, int(hint(tokens)), width), partial(_by_expert, mixture, width)
        )
        for width in WIDTHS
        if _lanes(node.target, width) <= limits.max_invocations and all(map(limits.allow, (*IN_ORDER, _shader(width))))
    }
    if not forms or (not many and limits.allow(_shader(FEW_COLUMNS))):
        forms |= {
            form: Form(_by_token_ns(mixture, int(hint(tokens)), decoding), partial(_by_token, mixture, decoding))
            for form, decoding in _by_token_forms(mixture).items()
        }
    varying = f"+, {'more' if many else 'up to'} {few}" if is_symbolic(tokens) else ""
    first = mixture.first
    sizes = f"{first.k} x {first.rows}, {first.layer.bits} bits, {hint(tokens)}{varying} tokens"
    return lower(node.target, f"{slots} of {experts} experts, {sizes}", forms, node.input(0).type)


def _count(node: BoundNode) -> int:
    """Of experts: by their scores, or by what makes these."""
    scores = node.input(1)
    return int(scores.shape[0] if scores.dtype is UINT8 else scores.shape[1])


def _experts(node: BoundNode, layer: Layer, k: int) -> Experts:
    """Raises UnsupportedNodeError where the inputs of a layer do not fit."""
    w, experts = node.input(layer.weights), _count(node)
    rows = int(w.shape[1]) if w.rank == 3 else 0
    if w.shape != (experts, rows, k * layer.bits // 8 if layer.bits else k) or (layer.bits and k * layer.bits % 8):
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} with weights {w.name!r} {w.type}; expected {experts} experts over {k} elements"
        )
    bias = node.optional(layer.bias)
    if bias and bias.shape != (experts, rows):
        raise UnsupportedNodeError(Code.RANK, f"{node.op} with bias {bias.type}; expected [{experts}, {rows}]")
    inputs = {"bias": layer.bias}
    if layer.bits:
        inputs |= {"scales": layer.scales, "zeros": layer.zeros}
    blocks = _blocks(node, layer, rows, k)
    consts = {"K": k, "N": rows, "EXPERTS": experts, "BITS": layer.bits, **blocks}
    reads = {"w": layer.weights, **{name: at for name, at in inputs.items() if node.has(at)}}
    return Experts(layer, rows, k, w.type.nbytes // max(experts, 1), consts, reads, int(blocks["BLOCK"]))


def _few(mixture: Mixture) -> int:
    """Up to how many tokens each by itself is estimated to be faster: a power of two, or none."""
    few = 0
    while 2 * max(few, 1) <= MOST_FEW:
        more = 2 * few or 1
        alone_ns = min(_by_token_ns(mixture, more, decoding) for decoding in _by_token_forms(mixture).values())
        if min(_by_expert_ns(mixture, more, width) for width in WIDTHS) < alone_ns:
            return few
        few = more
    return few


def _by_token_forms(mixture: Mixture) -> dict[str, str]:
    """How codes become floats in each form where every token reads its experts' weights."""
    target = mixture.node.target
    halves = target.limits.allow(VECTORS, SUBNORMAL_HALVES) and all(
        _as_vectors(target, layer) for layer in mixture.layers
    )
    return {BY_TOKEN: WORDS} | ({IN_HALVES: HALVES} if halves else {})


def _as_vectors(target: Target, layer: Experts) -> bool:
    """Whether expert_matvec.wgsl takes a layer: codes that are read by vectors, each with one scale."""
    bits = layer.layer.bits
    return bool(bits) and layer.per == 128 // bits and layer.block % layer.per == 0 and target.limits.allow(VECTORS)


def _by_token_ns(mixture: Mixture, tokens: int, decoding: str) -> float:
    """Each token reads its experts' weights."""
    count = tokens * mixture.slots
    return sum(_product_ns(mixture.node.target, layer, count, decoding) for layer in mixture.layers)


def _product_ns(target: Target, layer: Experts, count: float, decoding: str = WORDS) -> float:
    by = target.figures
    if layer.layer.bits:
        return float(by.matvec_launch_ns + decoding_ns(target, int(count * layer.rows * layer.k))[decoding])
    return float(by.matvec_launch_ns + count * layer.nbytes / by.matvec_bytes_per_ns)


def _by_expert_ns(mixture: Mixture, tokens: int, width: int) -> float:
    """Of experts that are chosen by chance; behind the order, before the sum."""
    target, experts, count = mixture.node.target, mixture.experts, tokens * mixture.slots
    met = experts * (1 - (1 - mixture.slots / experts) ** tokens)
    tiles = max(met, count / width + met / 2)
    of_layer = _few_ns if width == FEW_COLUMNS else _tiles_ns
    return 3 * target.figures.dispatch_ns + sum(of_layer(target, layer, tiles, width) for layer in mixture.layers)


def _few_ns(target: Target, layer: Experts, tiles: float, width: int) -> float:
    """As a product of a vector, the multiply-adds of all, and x, which ROWS rows of weights share, from the cache."""
    by, size = target.figures, tiles * width * layer.rows * layer.k
    return _product_ns(target, layer, tiles) + size * (by.fma_ns + 4 / ROWS * by.workgroup_byte_ns) / by.units


def _tiles_ns(target: Target, layer: Experts, tiles: float, width: int) -> float:
    """Tiles as packed_product.wgsl has them."""
    by = target.figures
    work = TILE_ROWS * width * STEP * by.tile_fma_ns + (2 * TILE_ROWS + width) * STEP * by.load_ns
    turns = math.ceil(tiles * ceil_div(layer.rows, TILE_ROWS) / by.units)
    return float(by.launch_ns + ceil_div(layer.k, STEP) * max(by.step_ns, turns * work))


def _lanes_of_rows(target: Target, groups: int, items: int) -> int:
    """Invocations of a workgroup of expert_matvec.wgsl: each unit gets UNIT_LANES, where each of these has something to
    read."""
    most, size = min(target.figures.units * UNIT_LANES // max(groups, 1), items, MAX_VECTOR_LANES), MIN_WORKGROUP_SIZE
    while 2 * size <= min(most, target.limits.max_invocations):
        size *= 2
    return size


def _routed(composed: Composed, mixture: Mixture, choice: Choice, scores: Part) -> tuple[Part, Part]:
    """The experts of each token, and their shares."""
    node, shape = mixture.node, (mixture.tokens, mixture.slots)
    consts: dict[str, Const] = {
        "EXPERTS": mixture.experts,
        "SLOTS": mixture.slots,
        "NORMALIZED": bool(node.attr("normalize_routing_weights")),
    }
    outputs = {"chosen": TensorType(INT32, shape), "shares": TensorType(FLOAT32, shape)}
    built = kernel(
        "route_experts.wgsl",
        list(outputs.values()),
        consts=consts,
        groups=mixture.tokens,
        workgroup_size=WORKGROUP_SIZE,
        workgroup_nbytes=4 * (mixture.experts + mixture.slots),
        reads={"scores": scores.source or 0, **({} if mixture.weights is None else {"weights": mixture.weights})},
        writes={name: name for name in outputs},
        choice=choice,
    )
    composed.kernels.append(replace(built, optionals=(("weights", mixture.weights is not None),)))
    composed.temps |= outputs
    chosen, shares = (Part(name, Operand(name, tensor)) for name, tensor in outputs.items())
    return chosen, shares


def _by_token(mixture: Mixture, decoding: str, choice: Choice, out: TensorType) -> Lowering:
    """Each token's experts by themselves."""
    x, scores = (Part(k, mixture.node.input(k)) for k in (0, 1))
    return _chosen_products(Composed(mixture.node), mixture, x, scores, decoding, False, choice, out)


def _chosen_products(
    composed: Composed,
    mixture: Mixture,
    x: Part,
    scores: Part,
    decoding: str,
    ordered: bool,
    choice: Choice,
    out: TensorType,
) -> Lowering:
    """ordered: elements of x lie as the lanes of expert_matvec.wgsl read them."""
    target, first, second, third = mixture.node.target, mixture.first, mixture.second, mixture.third
    in_order, halves = all(_as_vectors(target, layer) for layer in mixture.layers), decoding == HALVES
    laid_out = second.per if in_order else 0
    routing = _routing_product(mixture, x, scores, halves, ordered, laid_out) if _as_vectors(target, first) else None
    if routing is not None and _binds(mixture, routing) <= target.limits.max_buffers_per_stage:
        composed.kernels.append(replace(routing, choice=choice))
        names = dict(zip(("inner", "chosen", "shares"), routing.outputs, strict=True))
        composed.temps |= names
        inner, chosen, shares = (Part(name, Operand(name, tensor)) for name, tensor in names.items())
    else:
        routing = None
        chosen, shares = _routed(composed, mixture, choice, scores)

    def product(layer: Experts, of: Part, weighted: Part | None, gating: Mapping[str, Const], order: int) -> Kernel:
        if not _as_vectors(target, layer):
            return _product(mixture, layer, of, chosen, weighted, gating)
        reads = {"chosen": chosen.source or 0, **({"shares": weighted.source or 0} if weighted else {})}
        is_ordered = in_order if layer is second else ordered
        return _vectors(mixture, layer, of, reads, gating, halves, is_ordered, order)

    if routing is None:
        inner = composed.computed(product(first, x, None, mixture.gating, laid_out))
    gates = composed.computed(product(third, x, None, {}, laid_out)) if third else None
    act = inner if mixture.gating else _activated(composed, inner, gates)
    composed.kernels.append(replace(product(second, act, shares, {}, 0), writes=(("y", 0),)))
    return composed.lowering([out])


def _routing_product(mixture: Mixture, x: Part, scores: Part, halves: bool, ordered: bool, laid_out: int) -> Kernel:
    """The first layer of each token's experts, which it finds by itself and stores, with their shares."""
    weights, shape = mixture.weights, (mixture.tokens, mixture.slots)
    reads = {"scores": scores.source or 0, **({} if weights is None else {"weights": weights})}
    built = _vectors(mixture, mixture.first, x, reads, mixture.gating, halves, ordered, laid_out)
    outputs = (built.outputs[0], TensorType(INT32, shape), TensorType(FLOAT32, shape))
    return replace(built, outputs=outputs, writes=(("y", "inner"), ("chosen", "chosen"), ("shares", "shares")))


def _binds(mixture: Mixture, built: Kernel) -> int:
    """Buffers that a kernel binds, whose temporaries are small."""
    most = mixture.node.target.limits.max_binding_nbytes
    sources = [at for _, at in built.reads or ()]
    counts = (1 if isinstance(at, str) else part_count(mixture.node.input(at).type, most) for at in sources)
    return len(built.outputs) + sum(counts)


def _vectors(
    mixture: Mixture,
    layer: Experts,
    x: Part,
    others: Mapping[str, int | str],
    gating: Mapping[str, Const],
    halves: bool,
    ordered: bool,
    laid_out: int,
) -> Kernel:
    """expert_matvec.wgsl. others: scores, by which it finds the experts, or these; and shares by which they are added
    up."""
    target, (tokens, slots) = mixture.node.target, (mixture.tokens, mixture.slots)
    rows, each = (layer.rows // 2, VECTOR_ROWS // 2) if gating else (layer.rows, VECTOR_ROWS)
    summed = "shares" in others
    tiles, terms = (tokens, slots) if summed else (tokens * slots, 1)
    groups, items = tiles * ceil_div(rows, each), terms * layer.k // layer.per
    subgroups = target.limits.allow(VECTORS, "subgroup")
    size = _lanes_of_rows(target, int(hint(groups)), items)
    reads = {"x": x.source or 0, **others, **layer.reads}
    built = kernel(
        VECTORS,
        [mixture.node.input(0).type if summed else TensorType(FLOAT32, (tokens, slots, rows))],
        consts={
            **layer.consts,
            "PER": layer.per,
            "ROWS": VECTOR_ROWS,
            "TERMS": terms,
            "SLOTS": slots,
            "SHARED": 1 if layer is mixture.second else slots,
            "ROUTES": "scores" in others,
            "NORMALIZED": bool(mixture.node.attr("normalize_routing_weights")),
            "ORDERED": ordered,
            "LAID_OUT": laid_out,
            "HALVES": halves,
            "SUBGROUPS": subgroups,
            **(gating or {"GATING": 0}),
        },
        groups=groups,
        workgroup_size=size,
        workgroup_nbytes=4 * sums_of_workgroup(size, subgroups) * VECTOR_ROWS
        + (4 * (mixture.experts + slots) if "scores" in others else 0),
        reads=reads,
        vectors=("x", "w"),
        features=[name for name, used in (("subgroup", subgroups), (SUBNORMAL_HALVES, halves)) if used],
    )
    own = "weights" if "scores" in others else "shares"
    return replace(built, optionals=_optionals(reads, own, "bias", "scales", "zeros"))


def _product(
    mixture: Mixture, layer: Experts, x: Part, chosen: Part, shares: Part | None, gating: Mapping[str, Const]
) -> Kernel:
    """A layer of each token's experts. shares: by which they are added up. gating: of its rows, where they are gates
    and ups."""
    tokens, slots = mixture.tokens, mixture.slots
    rows = layer.rows // 2 if gating else layer.rows
    out = mixture.node.input(0).type if shares else TensorType(FLOAT32, (tokens, slots, rows))
    consts: dict[str, Const] = {"TJ": 1, "SUMS": slots if shares else 1, "SHARED": 1 if shares else slots}
    reads = {"x": x.source or 0, "chosen": chosen.source or 0, **({"shares": shares.source or 0} if shares else {})}
    return _along_rows(mixture, layer, out, tokens if shares else tokens * slots, consts, reads, gating)


def _along_rows(
    mixture: Mixture,
    layer: Experts,
    out: TensorType,
    tiles: int,
    more: Mapping[str, Const],
    others: Mapping[str, int | str],
    gating: Mapping[str, Const],
) -> Kernel:
    """expert_product.wgsl. tiles: of rows of x. more, others: constants, and what it reads besides the layer's."""
    rows, each = (layer.rows // 2, ROWS // 2) if gating else (layer.rows, ROWS)
    filling = mixture.node.target.figures.units * UNIT_LANES // max(int(hint(tiles)) * ceil_div(rows, each), 1)
    items = int(more["SUMS"]) * layer.k // layer.per
    team = next((team for team in TEAMS if team >= min(filling, items)), TEAMS[-1])
    consts: dict[str, Const] = {
        **layer.consts,
        "PER": layer.per,
        "WHOLE": layer.block % layer.per == 0,
        "ROWS": ROWS,
        "TEAM": team,
        **more,
        **(gating or {"GATING": 0}),
    }
    reads = {**others, **layer.reads}
    built = kernel(
        "expert_product.wgsl",
        [out],
        consts=consts,
        groups=tiles * ceil_div(rows, each * (WORKGROUP_SIZE // team)),
        workgroup_size=WORKGROUP_SIZE,
        workgroup_nbytes=16 * WORKGROUP_SIZE,
        reads=reads,
        vectors=("x", "w") if layer.per > 1 else (),
    )
    return replace(built, optionals=_optionals(reads, "bias", "shares", "scales", "zeros"))


def _optionals(reads: Mapping[str, object], *names: str) -> tuple[tuple[str, bool], ...]:
    return tuple((name, name in reads) for name in names)


def _by_expert(mixture: Mixture, width: int, choice: Choice, out: TensorType) -> Lowering:
    """The rows of all tokens by expert, whose weights a tile of them reads once."""
    composed, slots, count = Composed(mixture.node), mixture.slots, mixture.tokens * mixture.slots
    chosen, shares = _routed(composed, mixture, choice, Part(1, mixture.node.input(1)))
    places = composed.computed(
        kernel(
            "group_experts.wgsl",
            [TensorType(INT32, (mixture.experts + 1 + count,))],
            consts={"COUNT": count, "EXPERTS": mixture.experts},
            groups=mixture.experts,
            workgroup_size=GROUPING_SIZE,
            workgroup_nbytes=4 * GROUPING_SIZE,
            reads={"chosen": chosen.source or 0},
        )
    )
    x, few = Part(0, mixture.node.input(0)), width == FEW_COLUMNS
    inner = composed.computed(_rows(mixture, mixture.first, x, places, True, width))
    gates = composed.computed(_rows(mixture, mixture.third, x, places, True, width)) if mixture.third else None
    if few and mixture.gating:
        act = inner
    elif mixture.gating:
        act = composed.computed(
            kernel(
                "gated_halves.wgsl",
                [TensorType(FLOAT32, (count, mixture.inner))],
                consts={"D": mixture.inner, **mixture.gating},
                reads={"x": inner.source or 0},
            )
        )
    else:
        act = _activated(composed, inner, gates)
    products = composed.computed(_rows(mixture, mixture.second, act, places, False, width))
    composed.kernels.append(
        kernel(
            "sum_experts.wgsl",
            [out],
            consts={"SLOTS": slots, "N": mixture.second.rows},
            reads={"x": products.source or 0, "shares": shares.source or 0},
            writes={"y": 0},
        )
    )
    return composed.lowering([out])


def _shader(width: int) -> str:
    return "expert_product.wgsl" if width == FEW_COLUMNS else "expert_tiles.wgsl"


def _own(target: Target, width: int) -> int:
    """Fours of rows of weights of a lane of expert_tiles.wgsl."""
    return 2 if width > TILE_COLUMNS[0] and target.figures.lane_registers >= EIGHT_REGISTERS else 1


def _lanes(target: Target, width: int) -> int:
    """Of a workgroup."""
    return WORKGROUP_SIZE if width == FEW_COLUMNS else TILE_ROWS * width // (16 * _own(target, width))


def _rows(mixture: Mixture, layer: Experts, x: Part, places: Part, first: bool, width: int) -> Kernel:
    """A layer of rows by expert. first: it reads x of their tokens, else what the first layer made of them."""
    target, count = mixture.node.target, mixture.tokens * mixture.slots
    tiles = count // width + mixture.experts
    consts: dict[str, Const] = {"TJ": width, "FIRST": first, "SHARED": mixture.slots}
    reads = {"x": x.source or 0, "places": places.source or 0}
    if width == FEW_COLUMNS:
        gating = mixture.gating if layer is mixture.first else {}
        out = TensorType(FLOAT32, (count, mixture.inner if gating else layer.rows))
        return _along_rows(mixture, layer, out, tiles, {**consts, "SUMS": 1}, reads, gating)
    across = ceil_div(layer.rows, TILE_ROWS)
    more = {"TN": TILE_ROWS, "STEP": STEP, "OWN": _own(target, width), "TILES_N": across}
    built = kernel(
        "expert_tiles.wgsl",
        [TensorType(FLOAT32, (count, layer.rows))],
        consts={**layer.consts, **consts, **more, "PER": 4 if layer.by_fours else 1},
        groups=tiles * across,
        workgroup_size=_lanes(target, width),
        workgroup_nbytes=4 * STEP * (TILE_ROWS + width),
        reads={**reads, **layer.reads},
        vectors=(("x",) if layer.layer.bits else ("x", "w")) if layer.by_fours else (),
    )
    return replace(built, optionals=_optionals(layer.reads, "bias", "scales", "zeros"))


def _blocks(node: BoundNode, layer: Layer, rows: int, k: int) -> dict[str, Const]:
    """How the scales and zeros of codes lie."""
    if not layer.bits:
        return {"BLOCKS": 0, "BLOCK": 1, "ZERO_ROW": 0}
    scales, block = node.optional(layer.scales), int(node.attr("block_size") or 0)
    experts, per = _count(node), 8 // layer.bits
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


def _gating(node: BoundNode, third: bool) -> Mapping[str, Const]:
    """How gates and ups lie in the rows of the first layer; empty where they don't."""
    fusion = int(node.attr("swiglu_fusion"))
    if node.attr("activation_type") != "swiglu" or third or fusion not in (1, 2):
        return {}
    limit = node.attr("swiglu_limit")
    limited = limit is not None and math.isfinite(limit)
    return {
        "GATING": fusion,
        "ALPHA": float(node.attr("activation_alpha")),
        "BETA": float(node.attr("activation_beta")),
        "LIMITED": limited,
        "LIMIT": float(limit) if limited else 0.0,
    }


def _activated(made: Composed, inner: Part, gates: Part | None) -> Part:
    """What the second layer reads, where the first has no gates of its own."""
    node, name, fusion = made.node, made.node.attr("activation_type"), int(made.node.attr("swiglu_fusion"))
    alpha, beta, limit = (node.attr(n) for n in ("activation_alpha", "activation_beta", "swiglu_limit"))
    limited = limit is not None and math.isfinite(limit)
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
