"""GroupQueryAttention of ONNX Runtime: attention of language models, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.symbolic import same
from ort_gpu_ep.ir.types import FLOATS, INT8, INT32, UINT8, Shape, TensorType
from ort_gpu_ep.kernels.forms import Form
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, InPlace, Kernel, Lowering, kernel, op
from ort_gpu_ep.kernels.target import Choice
from ort_gpu_ep.ops import window_cache
from ort_gpu_ep.ops.attention import SCALES, Codes, Heads, Options, attend, factor_of
from ort_gpu_ep.ops.attention_split import IN_PARTS, Newest, estimate_ns, fits, split_attention

(
    QUERY,
    KEY,
    VALUE,
    PAST_KEY,
    PAST_VALUE,
    LENGTHS,
    TOTAL,
    COSINES,
    SINES,
    POSITIONS,
    BIAS,
    SINK,
    K_SCALE,
    V_SCALE,
    Q_NORM,
    K_NORM,
    QUERY_LENGTHS,
) = range(17)

record("append_tokens.wgsl", "movement", loop_bound=lambda k: k["HEAD"] if k["NORM"] else 0)
record("put_tokens.wgsl", "movement", loop_bound=lambda k: k["HEAD"] if k["NORM"] else 0)

PUT_WORKGROUP_SIZE = 64

_CODES = {8: INT8, 4: UINT8}
"""By the bits of a code, the type of a cache: two codes of 4 bits share a byte."""

_KINDS = ("PER_TENSOR", "PER_CHANNEL")

_QUANT_TYPES = ("k_quant_type", "v_quant_type")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Where the tokens of this step are in an input: [batch, token, first + head * size + element], with a row of
    `width` a token."""

    source: int
    width: int
    first: int


@dataclass(frozen=True, slots=True)
class Step:
    """What a node is about. heads, groups: of queries, of keys. size: elements of a head. capacity: rows of the cache
    behind this step. total: tokens of the longest batch, with this step's. codes: that the cache holds.
    """

    batch: int
    sequence: int
    heads: int
    groups: int
    size: int
    capacity: int
    total: int
    codes: Codes | None

    @property
    def stored(self) -> int:
        """Elements of a row of the cache: of codes of 4 bits, two are one."""
        return self.size if self.codes is None else self.size * self.codes.bits // 8

    @property
    def first(self) -> bool:
        """Whether no tokens came before: ONNX Runtime takes that where all tokens are of this step."""
        return bool(self.sequence == self.total)


# The scales have the mark of inputs for the host although kernels of quantized caches read them: without it, all other
# kernels of this op would have constants that say that there are none.
@op(
    "GroupQueryAttention",
    domain=DOMAIN,
    dtypes={"T": FLOATS, "T_CACHE": (*FLOATS, INT8, UINT8), "M": (INT32,)},
    bindings="q k? v? past_key? past_value? lengths _total cosines? sines? positions? bias? sink? _k_scale? _v_scale? "
    "q_weight? k_weight? "
    "_query_lengths? -> y present_key present_value _scores",
)
def group_query_attention(node: BoundNode) -> Lowering:
    """Attention of heads that share keys and values with others, which come behind those of a cache.

    q: [B, S, heads * size], or with keys and values behind it, [B, S, (heads + 2 groups) * size]; k, v: [B, S, groups *
    size]; past and present: [B, groups, tokens, size]; lengths: [B], tokens up to this step, less one; total: the
    largest of these plus one; positions: [B, S], of which a first step reads one element, where all of its batches
    begin; k_scale, v_scale: of caches that hold codes of 8 or 4 bits; y: [B, S, heads * size].
    """
    if node.attr("sliding_window_cache"):
        return window_cache.lower(node)
    _check(node)
    step, tokens = _step(node)
    q, k, v = tokens
    dtype, codes, rows = node.input(QUERY).dtype, step.codes, (step.batch, step.groups, step.capacity)
    cache = TensorType(_CODES[codes.bits] if codes else dtype, (*rows, step.stored))
    turns = bool(node.attr("do_rotary"))
    appended = [
        _appended(node, step, k, PAST_KEY, K_NORM, turns, cache, "present_key"),
        _appended(node, step, v, PAST_VALUE, None, False, cache, "present_value"),
    ]
    temps = [("present_key", cache), ("present_value", cache)]
    shape, batch = (step.batch, step.heads, step.sequence, step.size), step.sequence * q.width
    queries = Heads(q.source, shape, (batch, step.size, q.width))
    if turns or node.has(Q_NORM):
        turned = TensorType(dtype, shape)
        appended.append(_appended(node, step, q, None, Q_NORM, turns, turned, "queries"))
        temps.append(("queries", turned))
        queries = Heads(
            "queries", shape, (step.heads * step.sequence * step.size, step.sequence * step.size, step.size)
        )
    strides = (step.groups * step.capacity * step.size, step.capacity * step.size, step.size)
    keys, values = (Heads(name, (*rows, step.size), strides) for name in ("present_key", "present_value"))
    scale, window = node.attr("scale"), int(node.attr("local_window_size"))
    causal = bool(node.attr("causal"))
    options = Options(
        factor_of(node, scale or None, step.size),
        causal,
        float(node.attr("softcap") or 0.0),
        True,
        LENGTHS,
        step.total,
        step.first,
        max(window, 0) if causal else 0,
        SINK if node.has(SINK) else None,
        node.attr("smooth_softmax") == 1,
    )
    mask = (BIAS, node.input(BIAS)) if node.has(BIAS) else None
    out, width = TensorType(dtype, (step.batch, step.sequence, step.heads * step.size)), step.heads * step.size
    y_strides = (step.sequence * width, step.size, width)
    put = _put(node, step, appended[::-1])
    takes_few = fits(node, queries, keys, values, codes)

    def in_parts(choice: Choice | None, out: TensorType, newest: Newest | None = None) -> Lowering:
        return split_attention(node.target, queries, keys, values, mask, options, out, y_strides, newest, codes, choice)

    if takes_few and same(step.sequence, 1):
        attention, newest = in_parts(None, out), _newest(node, step, tokens, turns, cache)
        at_once = in_parts(None, out, newest).kernels if newest else ()
    else:
        others = {IN_PARTS: Form(estimate_ns(node.target, queries, keys, codes), in_parts)} if takes_few else {}
        attention, at_once = (
            attend(node, queries, keys, values, mask, options, out, y_strides, codes=codes, others=others),
            (),
        )
    stores = at_once and _bindings(at_once[0]) <= node.target.limits.max_buffers_per_stage
    changing = at_once if stores else (*put, *attention.kernels)
    present = [cache if node.wants(i) else None for i in (1, 2)]
    stays = (
        node.has(PAST_KEY) and node.wants(1) and node.wants(2) and same(node.input(PAST_KEY).shape[2], step.capacity)
    )
    return Lowering(
        (out, *present, None)[: max(1, len(node.node.outputs))],
        (*appended, *attention.kernels),
        (*temps, *attention.temps),
        stored=(("present_key", 1), ("present_value", 2)),
        in_place=InPlace(((1, PAST_KEY), (2, PAST_VALUE)), changing) if stays else None,
    )


def _check(node: BoundNode) -> None:
    """Raises UnsupportedNodeError for what these kernels don't do."""
    for wrong, what in (
        (node.has(QUERY_LENGTHS), "query_seqlens"),
        (node.wants(3), "its scores as an output"),
        (node.has(PAST_KEY) != node.has(PAST_VALUE), "past keys or past values alone"),
    ):
        if wrong:
            raise UnsupportedNodeError(Code.ATTRIBUTE, f"GroupQueryAttention with {what}")
    dtype = node.input(QUERY).dtype
    caches = () if _is_quantized(node) else (PAST_KEY, PAST_VALUE)
    others = [o for i in (KEY, VALUE, *caches, COSINES, SINES, SINK, Q_NORM, K_NORM) if (o := node.optional(i))]
    if any(o.dtype is not dtype for o in others):
        raise UnsupportedNodeError(Code.DTYPE, f"GroupQueryAttention of {dtype} with inputs of other types")


def _is_quantized(node: BoundNode) -> bool:
    return (
        node.has(K_SCALE)
        or node.has(V_SCALE)
        or bool(node.attr("kv_cache_bit_width"))
        or any(node.attr(name) != "NONE" for name in _QUANT_TYPES)
    )


def _codes(node: BoundNode, groups: int, size: int) -> Codes | None:
    """What the caches hold in place of numbers; None for numbers. Raises UnsupportedNodeError for all but two caches of
    codes of as many bits, each with scales of its kind's size: one, or one for each head's element.
    """
    if not _is_quantized(node):
        return None
    bits, kinds = int(node.attr("kv_cache_bit_width")), tuple(str(node.attr(name)) for name in _QUANT_TYPES)
    if bits not in _CODES or any(kind not in _KINDS for kind in kinds):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"GroupQueryAttention with kv_cache_bit_width {bits}, k_quant_type {kinds[0]} and v_quant_type {kinds[1]}; "
            f"taken: 8 or 4, and for both one of {', '.join(_KINDS)}",
        )
    for name, at in (("past_key", PAST_KEY), ("past_value", PAST_VALUE)):
        past = node.optional(at)
        if past is None or past.dtype is not _CODES[bits]:
            raise UnsupportedNodeError(
                Code.DTYPE,
                f"GroupQueryAttention with a quantized cache of {bits} bits and {name} {past and past.type}; expected "
                f"{_CODES[bits]}",
            )
    if size % (32 // bits):
        raise UnsupportedNodeError(
            Code.LIMIT,
            f"GroupQueryAttention with codes of {bits} bits and heads of {size}; taken: multiples of {32 // bits}",
        )
    for at, kind, name in zip((K_SCALE, V_SCALE), kinds, SCALES, strict=True):
        scale, count = node.optional(at), groups * size if kind == "PER_CHANNEL" else 1
        if scale is None or scale.size != count:
            raise UnsupportedNodeError(
                Code.RANK,
                f"GroupQueryAttention with {name} {scale and scale.type} for {kind}; expected {count} elements, "
                f"{f'[1, {groups}, 1, {size}]' if count > 1 else '[1]'}",
            )
    keys, values = (kind == "PER_CHANNEL" for kind in kinds)
    return Codes(bits, keys, values, (K_SCALE, V_SCALE), size)


def _step(node: BoundNode) -> tuple[Step, tuple[Tokens, Tokens, Tokens]]:
    """The node's sizes, and where queries, keys and values are. Raises UnsupportedNodeError where they do not fit."""
    q, heads, groups = node.input(QUERY), int(node.attr("num_heads")), int(node.attr("kv_num_heads"))
    packed = not node.has(KEY)
    shares = heads + 2 * groups if packed else heads
    if (
        q.rank != 3
        or heads < 1
        or groups < 1
        or heads % groups
        or int(q.shape[2]) % shares
        or node.has(VALUE) == packed
    ):
        raise UnsupportedNodeError(
            Code.RANK, f"GroupQueryAttention of {q.type} with {heads} heads and {groups} of keys"
        )
    batch, sequence, width = q.shape[0], q.shape[1], int(q.shape[2])
    size = width // shares
    others = [node.input(i) for i in (KEY, VALUE) if node.has(i)]
    if any(o.shape != (batch, sequence, groups * size) for o in others) or node.input(LENGTHS).size != batch:
        raise UnsupportedNodeError(
            Code.RANK,
            f"GroupQueryAttention of {q.type} with keys and values {', '.join(str(o.type) for o in others)} "
            f"and lengths "
            f"{node.input(LENGTHS).type}; expected [B, S, {groups * size}] and [B]",
        )
    codes = _codes(node, groups, size)
    stored = size if codes is None else size * codes.bits // 8
    (total,) = node.input(TOTAL).ints()
    past = node.optional(PAST_KEY)
    rows = past.shape[2] if past and past.rank == 4 else 0
    for operand in (past, node.optional(PAST_VALUE)):
        if operand and (operand.rank != 4 or operand.shape != (batch, groups, rows, stored)):
            raise UnsupportedNodeError(
                Code.RANK,
                f"GroupQueryAttention of {q.type} with a cache {operand.type}; expected [B, {groups}, tokens, {stored}]",
            )
    if total < sequence:
        raise UnsupportedNodeError(
            Code.RANK, f"GroupQueryAttention of {sequence} tokens with a total_sequence_length of {total}"
        )
    step = Step(batch, sequence, heads, groups, size, rows if rows >= total else total, total, codes)
    if packed:
        return step, (
            Tokens(QUERY, width, 0),
            Tokens(QUERY, width, heads * size),
            Tokens(QUERY, width, (heads + groups) * size),
        )
    return step, (Tokens(QUERY, width, 0), Tokens(KEY, groups * size, 0), Tokens(VALUE, groups * size, 0))


def _appended(
    node: BoundNode,
    step: Step,
    tokens: Tokens,
    past: int | None,
    weight: int | None,
    turns: bool,
    out: TensorType,
    name: str,
) -> Kernel:
    """The kernel that writes the temporary `name`: tokens normalized and turned, behind those of `past`; None: alone,
    as queries are."""
    weight, is_query = (weight if weight is not None and node.has(weight) else None), past is None
    pairs, rows = _angles(node, step) if turns else (0, 0)
    epsilon = node.attr("q_norm_epsilon" if is_query else "k_norm_epsilon")
    epsilon = node.attr("qk_norm_epsilon") if epsilon is None else epsilon
    if weight is not None and node.input(weight).shape != (step.size,):
        raise UnsupportedNodeError(
            Code.RANK, f"GroupQueryAttention with norm weights {node.input(weight).type}; expected [{step.size}]"
        )
    has_positions = turns and node.has(POSITIONS)
    sources: dict[str, int | None] = {
        "past": past if past is not None and node.has(past) else None,
        "cosines": COSINES if turns else None,
        "sines": SINES if turns else None,
        "positions": POSITIONS if has_positions else None,
        "weight": weight,
    }
    if has_positions and node.input(POSITIONS).shape != (step.batch, step.sequence):
        raise UnsupportedNodeError(
            Code.RANK, f"GroupQueryAttention with position_ids {node.input(POSITIONS).type}; expected [B, S]"
        )
    shape: Shape = out.shape
    before = node.input(past).shape[2] if sources["past"] is not None and past is not None else 0
    consts: dict[str, Const] = {
        "QUERY": is_query,
        "PART": (None, PAST_KEY, PAST_VALUE).index(past),
        "NORM": weight is not None,
        "ROTARY": turns,
        "SEQUENCE": step.sequence,
        "ROWS": shape[2],
        "HEADS": shape[1],
        "HEAD": step.size,
        "PAST": before,
        "TOTAL": step.total,
        "FIRST": step.first,
        "HALF": pairs,
        "COSINES": rows,
        "INTERLEAVED": bool(node.attr("rotary_interleaved")),
        "EPSILON": float(epsilon),
        "X_BATCH": step.sequence * tokens.width,
        "X_TOKEN": tokens.width,
        "X_FIRST": tokens.first,
    }
    if step.codes is not None and past is not None:
        at = (PAST_KEY, PAST_VALUE).index(past)
        sources |= {name: step.codes.scales[k] if k == at else None for k, name in enumerate(SCALES)}
        consts |= step.codes.consts()
    reads = {n: at for n, at in sources.items() if at is not None}
    built = kernel(
        "append_tokens.wgsl",
        [out],
        consts=consts,
        reads={"x": tokens.source, "lengths": LENGTHS, **reads},
        writes={"y": name},
        reports=True,
    )
    return replace(built, optionals=tuple((n, at is not None) for n, at in sources.items()))


def _put(node: BoundNode, step: Step, appended: Sequence[Kernel]) -> list[Kernel]:
    """The same for caches that hold what came before: one kernel, or several where it would have more buffers than the
    adapter takes.

    appended: of the values, of the keys and perhaps of the queries, from the last one on.
    """
    if len({dict(k.consts)["EPSILON"] for k in appended if dict(k.consts)["NORM"]}) < 2 and node.has(
        Q_NORM
    ) == node.has(K_NORM):
        whole = _put_together(step, appended)
        if _bindings(whole) <= node.target.limits.max_buffers_per_stage:
            return [whole]
    return [_put_together(step, [k]) for k in appended]


def _bindings(built: Kernel) -> int:
    return len(built.reads or ()) + len(built.outputs) + built.looks


def _newest(
    node: BoundNode, step: Step, tokens: tuple[Tokens, Tokens, Tokens], turns: bool, cache: TensorType
) -> Newest | None:
    """Of attention that stores the keys and values of its one token; None where these are normalized, which takes a
    kernel of its own, or not turned by fours."""
    pairs, rows = _angles(node, step) if turns else (0, 0)
    if node.has(Q_NORM) or node.has(K_NORM) or pairs % 4:
        return None
    q, k, v = tokens
    consts: dict[str, Const] = {
        "ROTARY": turns,
        "HEAD": step.size,
        "HALF": pairs,
        "COSINES": rows,
        "INTERLEAVED": bool(node.attr("rotary_interleaved")),
    }
    for letter, part in zip("QKV", tokens, strict=True):
        consts |= {f"{letter}_ROW": part.width, f"{letter}_AT": part.first}
    apart = {"x_k": k.source, "x_v": v.source} if k.source != q.source else {}
    angles = {"cosines": COSINES, "sines": SINES, **({"positions": POSITIONS} if node.has(POSITIONS) else {})}
    reads: dict[str, int | str] = {**apart, **(angles if turns else {})}
    optionals = tuple((name, name in reads) for name in ("x_k", "x_v", "cosines", "sines", "positions"))
    return Newest(
        consts, {"x": q.source, **reads}, optionals, {"keys": "present_key", "values": "present_value"}, cache
    )


def _put_together(step: Step, appended: Sequence[Kernel]) -> Kernel:
    consts = dict[str, Const](
        {f"{letter}_{what}": 0 for letter in "QKV" for what in ("BATCH", "TOKEN", "FIRST", "COUNT")}
    )
    consts |= {
        "QUERIES": False,
        "KEYS": False,
        "VALUES": False,
        "NORM": False,
        "ROTARY": False,
        "COSINES": 0,
        "HALF": 0,
    }
    optionals, reads = dict[str, bool](), dict[str, int | str]()
    names = {0: ("Q", "queries"), 1: ("K", "keys"), 2: ("V", "values")}
    writes, outputs, count = dict[str, int | str](), list[TensorType](), 0
    parts = sorted(appended, key=lambda k: int(dict(k.consts)["PART"]))
    for built in parts:
        its, (letter, name), sources = (
            dict(built.consts),
            names[int(dict(built.consts)["PART"])],
            dict(built.reads or ()),
        )
        own = step.batch * step.sequence * step.size * (step.heads if letter == "Q" else step.groups)
        own = own // step.codes.per_word if step.codes is not None and letter != "Q" else own
        count += own
        consts |= {f"{letter}_{what}": its[f"X_{what}"] for what in ("BATCH", "TOKEN", "FIRST")}
        consts |= {name.upper(): True, f"{letter}_COUNT": own}
        for key in ("NORM", "ROTARY", "COSINES", "HALF"):
            consts[key] = consts[key] or its[key]
        consts |= {key: its[key] for key in ("SEQUENCE", "TOTAL", "FIRST", "INTERLEAVED", "HEAD")}
        if its["NORM"] or "EPSILON" not in consts:
            consts["EPSILON"] = its["EPSILON"]
        common = ("lengths", "cosines", "sines", "positions", *SCALES)
        reads |= {n: at for n, at in sources.items() if n in common}
        if "x" not in reads:
            reads["x"] = sources["x"]
        elif sources["x"] != reads["x"]:
            reads[letter.lower()] = sources["x"]
        if "weight" in sources:
            reads["k_weight" if "weight" in reads else "weight"] = sources["weight"]
        writes[name], outputs = dict(built.writes or ())["y"], [*outputs, *built.outputs]
    consts |= {"HEADS": step.heads, "KEY_HEADS": step.groups, "ROWS": step.capacity, "COUNT": count}
    optionals = {n: n in reads for n in ("k", "v", "k_weight", "weight", "cosines", "sines", "positions")}
    has_codes = step.codes is not None and any(name != "queries" for name in writes)
    if step.codes is not None and has_codes:
        consts |= step.codes.consts()
        optionals |= {n: n in reads for n in SCALES}
    lowering = kernel(
        "put_tokens.wgsl",
        outputs,
        consts=consts,
        groups=ceil_div(count, PUT_WORKGROUP_SIZE),
        workgroup_size=PUT_WORKGROUP_SIZE,
        reads=reads,
        writes=writes,
        reports=True,
        words=tuple(name for name in writes if name != "queries") if has_codes else (),
    )
    return replace(lowering, optionals=tuple(optionals.items()))


def _angles(node: BoundNode, step: Step) -> tuple[int, int]:
    """Pairs of a head that are turned, and positions of the tables of their angles."""
    cosines, sines = node.optional(COSINES), node.optional(SINES)
    if (
        cosines is None
        or sines is None
        or cosines.rank != 2
        or cosines.shape != sines.shape
        or not 0 < 2 * cosines.shape[1] <= step.size
    ):
        raise UnsupportedNodeError(
            Code.RANK,
            f"GroupQueryAttention with do_rotary over heads of {step.size}, and tables {cosines and cosines.type} and "
            f"{sines and sines.type}; expected two of [positions, at most {step.size // 2}]",
        )
    return int(cosines.shape[1]), cosines.shape[0]
