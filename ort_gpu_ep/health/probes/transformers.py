"""Probes of ONNX Runtime's own ops, most of them of transformers, against numpy, since ONNX's reference does not define
them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, graph_of, probe, solve
from ort_gpu_ep.ir.graph import Array, Node
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.problems import Problem, Random, normal, problem
from ort_gpu_ep.ops.attention_split import IN_PARTS
from ort_gpu_ep.ops.experts import BY_EXPERT, BY_TOKEN, FEW_COLUMNS, GAMMA, TILE_COLUMNS

DOMAIN = "com.microsoft"
TOKENS, EXPERTS, HIDDEN, INNER = 9, 6, 32, 24
SWIGLU: dict[str, Any] = {
    "k": 2,
    "activation_type": "swiglu",
    "swiglu_fusion": 1,
    "normalize_routing_weights": 1,
}


@probe(
    "embeddings",
    "kernels",
    disables=("embed_tokens.wgsl",),
    fault=(r"var sum = words_at\(", "var sum = 0.5 * words_at("),
)
def embeddings(trial: Trial) -> str:
    """EmbedLayerNormalization: words, positions that are given, and segments."""
    for _ in range(trial.rounds):
        words, positions, segments = trial.normal(50, 36), trial.normal(16, 36), trial.normal(2, 36)
        ids, places, kinds = (trial.integers(0, top, 2, 7, dtype="int32") for top in (50, 16, 2))
        total = words.astype(np.float64)[ids] + positions[places] + segments[kinds]
        want = (total - total.mean(-1, keepdims=True)) / np.sqrt(total.var(-1, keepdims=True) + 1e-5)
        one, zero = np.ones(36, np.float32), np.zeros(36, np.float32)
        (got,) = trial.node(
            "EmbedLayerNormalization",
            1,
            [ids, kinds, words, positions, segments, one, zero, None, places],
            domain=DOMAIN,
            epsilon=1e-5,
        )
        agree("EmbedLayerNormalization", got, want)
    return "14 tokens"


@probe("position bias", "kernels", disables=("position_bias.wgsl",))
def position_bias(trial: Trial) -> str:
    """RelativePositionBias of keys that come before their queries, each distance its own bucket."""
    for _ in range(trial.rounds):
        table = trial.normal(16, 3)
        distance = np.maximum(np.arange(8)[:, None] - np.arange(8), 0)
        (got,) = trial.node(
            "RelativePositionBias",
            1,
            [table, None, None],
            {1: np.array([8]), 2: np.array([8])},
            domain=DOMAIN,
            max_distance=64,
        )
        agree("RelativePositionBias", got, table.reshape(3, 16)[:, distance][None])
    return "8 tokens"


@probe("split gelu", "kernels", disables=("bias_split_gelu.wgsl",))
def split_gelu(trial: Trial) -> str:
    """BiasSplitGelu: the left half times the Gelu of the right one."""
    for _ in range(trial.rounds):
        x, bias = trial.normal(5, 70), trial.normal(70)
        left, right = np.split((x + bias).astype(np.float64), 2, axis=1)
        (got,) = trial.node("BiasSplitGelu", 1, [x, bias], domain=DOMAIN)
        agree("BiasSplitGelu", got, left * right * 0.5 * (1 + np.vectorize(math.erf)(right / math.sqrt(2))))
    return "5 rows"


def _linear(rule: str, *gates: Random) -> Problem:
    q, k, v, past = normal(2, 5, 48), Random((2, 5, 24), scale=0.25), normal(2, 5, 40), normal(2, 2, 12, 20)
    heads: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": 2}
    return problem("LinearAttention", 27, q, k, v, past, *gates, outputs=2, update_rule=rule, **heads)


LINEAR, GATED = _linear("linear"), _linear("gated_delta", normal(2, 5, 24), normal(2, 5, 2))
"""The gates are a decay, below zero, and a correction, above it."""


@probe(
    "linear attention", "kernels", disables=("linear_attention.wgsl",), fault=(r"column < DV\)", "column + 1u < DV)")
)
def linear_attention(trial: Trial) -> str:
    """States of more columns than a workgroup has, with and without decay and correction; twice as many heads of
    queries."""
    for _ in range(trial.rounds):
        for row in (LINEAR, GATED):
            values = row.draw(trial.rng)
            gates = [sign * abs(array) for sign, array in zip((-1, 1), values[4:], strict=False) if array is not None]
            solve(trial, row, [*values[:4], *gates])
    return "2 rules"


@probe("mixture of experts", "kernels", disables=("route_experts.wgsl", "expert_product.wgsl"))
def mixture(trial: Trial) -> str:
    """MoE with its two best experts, gates and ups in turn: each token by itself, and a few at a time by expert."""
    _mixture(trial, f"{BY_EXPERT} {FEW_COLUMNS}", TOKENS)
    return _mixture(trial, BY_TOKEN, TOKENS)


@probe(
    "experts of many tokens",
    "kernels",
    disables=("group_experts.wgsl", "expert_tiles.wgsl", "gated_halves.wgsl", "sum_experts.wgsl"),
)
def experts_of_many(trial: Trial) -> str:
    """The same, put in order by expert. All tokens go to the last one, too, so that the last tile of all has rows."""
    return _mixture(trial, f"{BY_EXPERT} {TILE_COLUMNS[0]}", 7, 9.0)


@probe("mixture of packed experts", "kernels", disables=("normalized_scores.wgsl", "expert_matvec.wgsl"))
def packed_mixture(trial: Trial) -> str:
    """Experts in codes of 4 bits behind a normalization, which also gives their scores, with biases."""
    hidden, inner, epsilon = 96, 64, 1e-5
    for _ in range(trial.rounds):
        x, gamma, router, c = (trial.normal(*s) for s in ((2, hidden), (hidden,), (hidden, EXPERTS), (EXPERTS,)))
        constants, dense = {"router": router, "gamma": gamma, "c": c}, list[Array]()
        for i, (rows, k) in enumerate(((2 * inner, hidden), (hidden, inner)), 1):
            codes = trial.integers(0, 256, EXPERTS, rows, k // 2).astype(np.uint8)
            scales = abs(trial.normal(EXPERTS, rows, k // 32)) / np.float32(30)
            constants |= {f"w{i}": codes, f"s{i}": scales, f"c{i}": trial.normal(EXPERTS, rows)}
            wide = np.stack((codes & 15, codes >> 4), 3).reshape(EXPERTS, rows, -1).astype(np.float64) - 8
            dense.append(wide * np.repeat(scales, 32, 2))
        node = Node(
            "RoutedMixture",
            ("x", "router", "w1", "s1", "c1", "w2", "s2", "c2", *[""] * (GAMMA - 8), "gamma", "c"),
            ("y",),
            domain="ort_gpu_ep",
            version=1,
            attributes={**SWIGLU, "expert_weight_bits": 4, "block_size": 32, "epsilon": epsilon},
        )
        (got,) = trial.graph(graph_of({"x": x}, constants, node), [x])
        normal = x.astype(np.float64) / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + epsilon) * gamma
        biases = constants["c1"], constants["c2"]
        agree("RoutedMixture", got, _mixed(normal, normal @ router + c, dense[0], dense[1], *biases))
    return f"2 tokens, {EXPERTS} experts"


def _mixture(trial: Trial, form: str, tokens: int, last: float = 0.0) -> str:
    for _ in range(trial.rounds):
        x, scores = trial.normal(tokens, HIDDEN), trial.normal(tokens, EXPERTS)
        scores[:, -1] += np.float32(last)
        first, second = (
            trial.normal(EXPERTS, 2 * INNER, HIDDEN) / np.float32(6),
            trial.normal(EXPERTS, HIDDEN, INNER) / np.float32(5),
        )
        with forced(form):
            (got,) = trial.node(
                "MoE",
                1,
                [x, scores, first, None, second],
                domain=DOMAIN,
                **SWIGLU,
            )
        agree("MoE", got, _mixed(x, scores, first, second))
    return f"{tokens} tokens, {EXPERTS} experts"


def _mixed(
    x: Array, scores: Array, first: Array, second: Array, first_bias: Array | float = 0.0, bias: Array | float = 0.0
) -> Array:
    y = np.zeros(x.shape)
    first_bias, bias = (np.broadcast_to(b, w.shape[:2]) for b, w in ((first_bias, first), (bias, second)))
    for t in range(len(x)):
        best = np.argsort(-scores[t], kind="stable")[:2]
        shares = np.exp(scores[t, best].astype(np.float64))
        for e, share in zip(best, shares / shares.sum(), strict=True):
            inner = first[e].astype(np.float64) @ x[t] + first_bias[e]
            gates, ups = inner[::2], inner[1::2]
            y[t] += share * (second[e] @ (gates / (1 + np.exp(-gates)) * ups) + bias[e])
    return y


@probe("cached tokens", "kernels", disables=("append_tokens.wgsl", "put_tokens.wgsl"))
def cached_tokens(trial: Trial) -> str:
    """GroupQueryAttention of one token behind a cache that grows, and in place in a longer one: normalized, turned;
    heads share keys."""
    return _cached_attention(trial, True)


@probe(
    "attention in parts",
    "kernels",
    disables=("attention_split.wgsl", "attention_join.wgsl"),
    fault=(r"exp2\(x \* 1\.44269504\)", "exp2(x)"),
)
def attention_in_parts(trial: Trial) -> str:
    """The same without the normalization, where the parts store the newest key: what they give, and their join. And of
    three tokens, whose nine queries of a head of keys are no multiple of a workgroup's."""
    _cached_attention(trial, False)
    with forced(IN_PARTS):
        _cached_attention(trial, False, tokens=3, heads=6)
    return "1 and 3 tokens"


def _cached_attention(trial: Trial, normed: bool, tokens: int = 1, heads: int = 4) -> str:
    for (rows,) in trial.repeated((150, 200), of=2 if not normed and tokens == 1 else 1):
        before, groups, size = 150, 2, 32
        q, k, v = (trial.normal(1, tokens, n * size) for n in (heads, groups, groups))
        past_k, past_v = trial.normal(1, groups, rows, size), trial.normal(1, groups, rows, size)
        tables = _tables(before + tokens, size // 2)
        weights = [trial.normal(size) for _ in range(2 * normed)]
        got = trial.node(
            "GroupQueryAttention",
            1,
            [
                q,
                k,
                v,
                past_k,
                past_v,
                np.array([before + tokens - 1], np.int32),
                None,
                *tables,
                *([None] * 5 if normed else []),
                *weights,
            ],
            {6: np.array(before + tokens, np.int32)},
            3,
            DOMAIN,
            num_heads=heads,
            kv_num_heads=groups,
            do_rotary=1,
        )
        wide = [a.reshape(tokens, -1, size).astype(np.float64) for a in (q, k)]
        if normed:
            wide = [a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-6) * w for a, w in zip(wide, weights, strict=True)]
        queries, new = (np.stack([_turned(a[t], tables, before + t) for t in range(tokens)]) for a in wide)
        keys, values = (
            np.concatenate([p[0, :, :before], t.swapaxes(0, 1)], 1).astype(np.float64)
            for p, t in ((past_k, new), (past_v, v.reshape(tokens, groups, size)))
        )
        shared = np.arange(heads) // (heads // groups)
        want = np.stack(
            [
                _attended(queries[t], keys[shared, : before + t + 1], values[shared, : before + t + 1])
                for t in range(tokens)
            ]
        )
        agree(f"GroupQueryAttention, {rows} rows", got[0].reshape(tokens, heads, size), want)
        for name, cache, expected in zip(("keys", "values"), got[1:], (keys, values), strict=True):
            agree(f"GroupQueryAttention, {rows} rows, {name}", cache[0, :, : before + tokens], expected)
    return "2 caches"


@probe(
    "caches of codes",
    "kernels",
    disables=("append_tokens.wgsl", "attention_split.wgsl"),
    fault=(r"clamp\(round\(", "clamp(floor("),
)
def coded_cache(trial: Trial) -> str:
    """GroupQueryAttention of one token whose cache grows with a scale for 8 bits, or has room, and scales for 4. Numbers
    are quarters of their scales, so that halves are met and no quotient is rounded."""
    for ((bits, rows),) in trial.repeated(((8, 90), (4, 130))):
        before, heads, groups, size = 90, 4, 2, 32
        most, of_head = 2 ** (bits - 1), (1, groups, 1, size)
        channels = bits == 4
        scales = [2.0 ** trial.integers(-5, -2, *(of_head if channels else (1,))) for _ in range(2)]
        past = [trial.integers(-most, most, 1, groups, rows, size, dtype="int32") for _ in range(2)]
        new = [trial.integers(-5 * most, 5 * most, *of_head, dtype="int32") / 4 for _ in range(2)]
        q = trial.normal(1, 1, heads * size)
        got = trial.node(
            "GroupQueryAttention",
            1,
            [
                q,
                *((n * s).astype(np.float32).reshape(1, 1, -1) for n, s in zip(new, scales, strict=True)),
                *(_packed(codes, bits) for codes in past),
                np.array([before], np.int32),
                *[None] * 6,
                *(s.astype(np.float32) for s in scales),
            ],
            {6: np.array(before + 1, np.int32)},
            3,
            DOMAIN,
            num_heads=heads,
            kv_num_heads=groups,
            kv_cache_bit_width=bits,
            k_quant_type="PER_CHANNEL" if channels else "PER_TENSOR",
            v_quant_type="PER_CHANNEL" if channels else "PER_TENSOR",
        )
        codes = [
            np.concatenate([p[:, :, :before], np.clip(np.round(n), -most, most - 1).astype(np.int32)], 2)
            for p, n in zip(past, new, strict=True)
        ]
        keys, values = ((c * s)[0].repeat(heads // groups, 0) for c, s in zip(codes, scales, strict=True))
        want = _attended(q.reshape(heads, size).astype(np.float64), keys, values)
        agree(f"attention over codes of {bits} bits", got[0].reshape(heads, size), want)
        for name, cache, expected in zip(("keys", "values"), got[1:], codes, strict=True):
            agree(f"{name} of {bits} bits", cache[:, :, : before + 1], _packed(expected, bits))
    return "2 caches"


def _packed(codes: Array, bits: int) -> Array:
    """Codes as a cache holds them: those of 4 bits have 8 added, and the first of two is the lower half of a byte."""
    if bits == 8:
        return codes.astype(np.int8)
    halves = (codes + 8).astype(np.uint8)
    packed: Array = halves[..., ::2] | halves[..., 1::2] << 4
    return packed


@probe("caches that keep a window", "kernels", disables=("window_start.wgsl", "window_rows.wgsl"))
def windowed_cache(trial: Trial) -> str:
    """GroupQueryAttention with sliding_window_cache: one token behind 18, of which the cache keeps 10; with it, it is
    full."""
    window, capacity, before, kept, size = 8, 11, 18, 10, 32
    for _ in range(trial.rounds):
        q, k, v = (trial.normal(1, 1, size) for _ in range(3))
        past_k, past_v = trial.normal(1, 1, capacity, size), trial.normal(1, 1, capacity, size)
        tables = _tables(before + 1, size // 2)
        got = trial.node(
            "GroupQueryAttention",
            1,
            [q, k, v, past_k, past_v, np.array([before], np.int32), None, *tables],
            {6: np.array(before + 1, np.int32)},
            3,
            DOMAIN,
            num_heads=1,
            kv_num_heads=1,
            do_rotary=1,
            local_window_size=window,
            sliding_window_cache=1,
        )
        query, key = (_turned(a[0].astype(np.float64), tables, before) for a in (q, k))
        keys, values = np.concatenate([past_k[0, 0, :kept], key]), np.concatenate([past_v[0, 0, :kept], v[0]])
        agree("one token behind a window", got[0][0], _attended(query, keys[None, -window:], values[None, -window:]))
        for name, cache, want in zip(("keys", "values"), got[1:], (keys, values), strict=True):
            agree(f"{name} that stay", cache[0, 0, : kept + 1], want)
    return "a cache of 11"


@probe("a shared cache", "kernels", disables=("step_lengths.wgsl",))
def shared_cache(trial: Trial) -> str:
    """MultiHeadAttention of one token over a cache that is past and present, with room behind what is there."""
    rows, before, heads, size = 12, 7, 2, 32
    for _ in range(trial.rounds):
        q, k, v = (trial.normal(1, 1, heads * size) for _ in range(3))
        past_k, past_v = trial.normal(1, heads, rows, size), trial.normal(1, heads, rows, size)
        got = trial.node(
            "MultiHeadAttention",
            1,
            [q, k, v, None, None, None, past_k, past_v, np.array([before], np.int32)],
            outputs=3,
            domain=DOMAIN,
            num_heads=heads,
        )
        keys, values = (
            np.concatenate([past[0, :, :before], new.reshape(heads, 1, size)], 1).astype(np.float64)
            for past, new in ((past_k, k), (past_v, v))
        )
        want = _attended(q.reshape(heads, size).astype(np.float64), keys, values)
        agree("one token over a shared cache", got[0].reshape(heads, size), want)
        for name, cache, expected in zip(("keys", "values"), got[1:], (keys, values), strict=True):
            agree(f"{name} of a shared cache", cache[0, :, : before + 1], expected)
    return f"{before + 1} of {rows} rows"


def _turned(x: Array, tables: list[Array], position: int) -> Array:
    """Pairs half a head apart, turned by the angles of a position."""
    cosines, sines = (t[position].astype(np.float64) for t in tables)
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], -1)


def _tables(positions: int, pairs: int) -> list[Array]:
    """Cosines and sines of the angles of positions."""
    angles = np.arange(positions)[:, None] * 100.0 ** (-np.arange(pairs) / pairs)
    return [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]


def _attended(queries: Array, keys: Array, values: Array) -> Array:
    """Attention of one token: queries [heads, size], keys and values [heads, tokens, size]."""
    powers = np.exp(np.einsum("hd,hkd->hk", queries, keys) / math.sqrt(queries.shape[-1]))
    rows: Array = np.einsum("hk,hkd->hd", powers / powers.sum(-1, keepdims=True), values)
    return rows


@probe("crops", "kernels", disables=("crop_and_resize.wgsl",))
def crops(trial: Trial) -> str:
    """CropAndResize of a region within an image and of one across its border, against a plane, which is linear between
    its elements."""
    height, width = 9, 13
    slope = trial.normal(2)
    plane = (np.arange(height)[:, None] * slope[0] + np.arange(width) * slope[1]).astype(np.float32)
    x = np.stack([np.stack([plane, -plane]), np.stack([2 * plane, plane + 1])])
    rois, batch, size = (
        np.array([[0.1, 0.2, 0.9, 0.7], [-0.5, 0.5, 0.5, 1.25]], np.float32),
        np.array([1, 0], np.int32),
        (5, 4),
    )
    (got,) = trial.node(
        "CropAndResize",
        1,
        [x, rois, batch, None],
        {3: np.array(size, np.int32)},
        domain=DOMAIN,
        extrapolation_value=-7.5,
    )
    for region, (y0, x0, y1, x1) in enumerate(rois.astype(np.float64)):
        y, across = np.linspace(y0, y1, size[0])[:, None] * (height - 1), np.linspace(x0, x1, size[1]) * (width - 1)
        inside = (y >= 0) & (y <= height - 1) & (across >= 0) & (across <= width - 1)
        value = y * slope[0] + across * slope[1]
        want = np.stack([2 * value, value + 1] if batch[region] else [value, -value])
        agree(f"region {region}", got[region], np.where(inside, want, -7.5), 1e-4)
    return "2 regions"
