"""Attention: scores, softmax and the sum of values in one kernel; ONNX's op, and the nodes that exporters write (made
by fusion)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import hint, same
from ort_gpu_ep.ir.types import BOOL, FLOAT32, FLOATS, DType, Shape, TensorType, names
from ort_gpu_ep.kernels.cost_parameters import Figures
from ort_gpu_ep.kernels.forms import Form, lower
from ort_gpu_ep.kernels.problems import normal, problem
from ort_gpu_ep.kernels.records import KernelCall, ceil_div, record
from ort_gpu_ep.kernels.registry import (
    BoundNode,
    Const,
    Lowering,
    Operand,
    Rounded,
    broadcast,
    broadcast_strides,
    kernel,
    op,
)
from ort_gpu_ep.kernels.target import Choice, Target
from ort_gpu_ep.ops import attention_units
from ort_gpu_ep.ops.attention_units import UnitForm

MAX_HEAD = 256
"""Elements of a head: more do not fit into registers, even of four invocations."""

KEYS = 4
"""That an invocation takes at a time, where its registers hold them: 8 were slower on an H200."""

OTHER_REGISTERS = 48
"""Of an invocation, besides its queries, its sums and what it loads: with so many the compilers of AMD, Intel, Apple
and NVK spill nothing of the forms that are offered (benchmarks/compilers.py)."""


def _loop_bound(k: KernelCall) -> int:
    """Keys of a slice, then the slices of a query, and for each chunk of its result those of an element."""
    joined = 2 * k["SLICES"] + k["DV"] * (k["SLICES"] + 1) * ceil_div(k["QL"] * k["PARTS"], k.workgroup_size)
    return ceil_div(k["SK"], k["SLICES"] * k["RK"]) + 1 + k["RQ"] * joined


record(
    "attention.wgsl",
    "product",
    loop_bound=_loop_bound,
    problems=[
        problem("Attention", 23, normal(2, 3, 37, 8), normal(2, 3, 70, 8), normal(2, 3, 70, 12)),
        problem("Attention", 23, normal(1, 4, 1, 64), normal(1, 2, 500, 64), normal(1, 2, 500, 64), normal(1, 500)),
        problem("Attention", 23, *[normal(1, 300, 64)] * 3, q_num_heads=2, kv_num_heads=2, is_causal=1),
    ],
    flops=lambda k: 8 * k["BATCH"] * k["HEADS"] * k["SQ"] * k["SK"] * k["PARTS"] * (k["DQ"] + k["DV"]),
)


@dataclass(frozen=True, slots=True)
class Heads:
    """A tensor as [batch, head, position, element]: elements lie together, the strides of the others are in elements,
    from `first` on."""

    source: int | str
    shape: tuple[int, int, int, int]
    strides: tuple[int, int, int]
    first: int = 0

    def consts(self, name: str, per: int = 4) -> dict[str, Const]:
        """Strides in vectors of `per` elements; 0 where one stands for all."""
        return {
            f"{name}_{axis}": stride // per
            for axis, stride in zip(("B", "H", "S", "FIRST"), (*self.strides, self.first), strict=True)
        }


def heads_of(operand: Operand, source: int, perm: Sequence[int]) -> Heads:
    """The tensor seen through a transposition to [batch, head, position, element]; of rank 3: without heads.

    Raises: UnsupportedNodeError, where elements do not lie together.
    """
    shape = operand.shape
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    seen, steps = [shape[axis] for axis in perm], [strides[axis] for axis in perm]
    if len(seen) == 3:
        seen.insert(1, 1)
        steps.insert(1, 0)
    if perm[-1] != len(shape) - 1:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"attention over {operand.name!r} {operand.type}, whose elements do not lie together"
        )
    return Heads(source, (seen[0], seen[1], seen[2], int(seen[3])), (steps[0], steps[1], steps[2]))


SCALES = "k_scale", "v_scale"


@dataclass(frozen=True, slots=True)
class Codes:
    """How caches hold keys and values as codes (include/cache_codes.wgsl). bits: of a code. keys, values: whether each
    head's element has a scale of its own. scales: the inputs with those of keys and of values. size: elements of a
    head.
    """

    bits: int
    keys: bool
    values: bool
    scales: tuple[int, int]
    size: int

    @property
    def per_word(self) -> int:
        return 32 // self.bits

    def consts(self) -> dict[str, Const]:
        return {"CODES": self.bits, "K_CHANNELS": int(self.keys), "V_CHANNELS": int(self.values), "HEAD": self.size}

    def reads(self, keys: bool = True, values: bool = True) -> dict[str, int | str]:
        return {name: at for name, at, reads in zip(SCALES, self.scales, (keys, values), strict=True) if reads}


@dataclass(frozen=True, slots=True)
class Problem:
    """What attention there is to compute. dq, dv: vectors of four elements of a head's queries and values."""

    batch: int
    heads: int
    queries: int
    keys: int
    dq: int
    dv: int


@dataclass(frozen=True, slots=True)
class Share:
    """How a workgroup shares its queries and keys, see attention.wgsl."""

    queries: int
    per_lane: int
    parts: int
    slices: int
    keys: int = KEYS

    @property
    def workgroup_size(self) -> int:
        return self.queries * self.parts * self.slices

    @property
    def name(self) -> str:
        fewer = "" if self.keys == KEYS else f", {self.keys} keys"
        return f"{self.per_lane} x {self.queries} queries, {self.parts} parts, {self.slices} slices{fewer}"


LEAST_OTHER_REGISTERS = 40
"""Likewise, as few as NVIDIA's compiler takes: workgroups of an H200 came in as many rounds as with so many."""


def registers_of(problem: Problem, form: Share, others: int = OTHER_REGISTERS) -> int:
    """Of an invocation: its queries and sums, and the keys' vectors, then the values', whose loads a compiler moves
    up."""
    own, ahead = form.per_lane * (problem.dq + problem.dv), form.keys * max(problem.dq, problem.dv)
    return 4 * (own + ahead) // form.parts + others


def forms_of(problem: Problem, target: Target) -> list[Share]:
    """All that the adapter allows and that may be worth it. Where its compiler loads ahead, those that fit into the
    registers of an invocation, with as many keys at a time as do; if none does, those that come closest.
    """
    forms, most = list(_forms_of(problem, target)), target.figures.lane_registers
    if not target.figures.loads_ahead:
        return forms
    fewer = [replace(form, keys=keys) for form in forms for keys in (KEYS, KEYS // 2, 1)]
    fitting: dict[Share, Share] = {}
    for form in fewer:
        if registers_of(problem, form) <= most:
            fitting.setdefault(replace(form, keys=KEYS), form)
    if fitting:
        return list(fitting.values())
    least = min(registers_of(problem, form) for form in fewer)
    return [form for form in fewer if registers_of(problem, form) == least]


def _forms_of(problem: Problem, target: Target) -> Iterator[Share]:
    """Full workgroups, as far as there are keys and registers for them; eight parts where four may not fit."""
    most, by = min(256, target.limits.max_invocations), target.figures
    quads = target.limits.allow("attention.wgsl", "subgroup")
    all_parts = (1, 2, 4, 8) if by.loads_ahead and by.least_lanes >= 8 else (1, 2, 4)
    count = 1
    while count < min(32, hint(problem.queries)):
        count *= 2
    for parts in all_parts if quads else (1,):
        if problem.dq % parts or problem.dv % parts:
            continue
        for queries in [q for q in (8, 16, 32) if q <= count] or [count]:
            for per_lane in (1, 2, 4):
                if per_lane > 1 and (
                    4 * per_lane * (problem.dq + problem.dv) > 160 * parts or per_lane * queries > hint(problem.queries)
                ):
                    continue
                if (
                    per_lane == 1
                    and parts == 2
                    and problem.dq + problem.dv > 16
                    and 2 * queries <= hint(problem.queries)
                ):
                    continue  # an H200 takes 2.5 to 4 times as long as with two queries a lane
                yield from _sliced(queries, per_lane, parts, hint(problem.keys), most)


def _sliced(queries: int, per_lane: int, parts: int, keys: int, most: int) -> Iterator[Share]:
    """With the most slices that there are keys and invocations for, and with half of them."""
    slices = 1
    while 2 * slices * queries * parts <= most and 4 * slices < keys:
        slices *= 2
    yield Share(queries, per_lane, parts, slices)
    if slices > 1 and slices * queries * parts > 64:
        yield Share(queries, per_lane, parts, slices // 2)


def estimate_ns(problem: Problem, form: Share, target: Target) -> float:
    """By the target's figures: workgroups come in rounds of as many as a unit has registers for. What the subgroups of a
    round do adds up, but a block of keys takes as long as its loads from the cache and what follows from them.
    """
    by, units = target.figures, target.figures.units
    groups = hint(problem.batch) * hint(problem.heads) * -(-hint(problem.queries) // (form.queries * form.per_lane))
    blocks = -(-hint(problem.keys) // (form.slices * form.keys))
    vectors = (problem.dq + problem.dv) / form.parts
    # keys that a warp reads at once, each in a line of its own
    addresses = max(1, 32 // (form.queries * form.parts))
    apart = addresses**by.attention_apart_power * (
        by.attention_parts_factor if form.parts >= 4 and addresses > 1 else 1
    )
    arithmetic = by.attention_vector_clocks * vectors + by.attention_query_clocks
    clocks = (
        form.keys
        * (by.attention_load_clocks * vectors * apart + form.per_lane * arithmetic)
        * _registers_factor(by, form, vectors)
    )
    waits = by.attention_wait_clocks + by.attention_query_wait_clocks * form.per_lane
    waits = waits + (by.attention_parts_wait_clocks if form.parts >= 4 else 0)
    registers = min(registers_of(problem, form, LEAST_OTHER_REGISTERS), by.lane_registers)
    most = max(1, by.registers // (registers * form.workgroup_size))
    together = min(most, -(-groups // units))
    work = -(-groups // (units * together)) * max(together * max(1.0, form.workgroup_size / 32) * clocks, waits)
    joining = (
        form.per_lane * (by.attention_join_clocks + by.attention_join_slice_clocks * form.slices)
        if form.slices > 1
        else 0.0
    )
    return float(by.dispatch_ns + by.attention_launch_ns + (blocks * work + joining) / by.clocks_per_ns)


def _registers_factor(by: Figures, form: Share, vectors: float) -> float:
    """What it costs that a lane's queries and sums take most of its registers: reads of memory."""
    return by.attention_spill_factor if 4 * form.per_lane * vectors > by.attention_spill_registers else 1.0


def estimates(problem: Problem, target: Target, dtype: DType = FLOAT32) -> dict[str, tuple[Share | UnitForm, float]]:
    """Every form that may be taken, by name, with its nanoseconds. dtype: of the queries."""
    by_name: dict[str, tuple[Share | UnitForm, float]] = {
        share.name: (share, estimate_ns(problem, share, target)) for share in forms_of(problem, target)
    }
    queries, keys, heads = (int(hint(n)) for n in (problem.queries, problem.keys, problem.batch * problem.heads))
    for form in attention_units.forms_of(target.limits, dtype, queries, keys, 4 * problem.dq, 4 * problem.dv):
        ns = attention_units.estimate_ns(form, target, heads, queries, keys, 4 * problem.dq, 4 * problem.dv)
        by_name[form.name] = (form, ns)
    return by_name


Mask: TypeAlias = tuple[int | str, Operand] | None
"""Where it is read, and as what."""


@dataclass(frozen=True, slots=True)
class Options:
    """scale: of scores. cap: 0 for none. empty_is_zero, nan_is_zero: a query without a key gets 0, and so does one
    whose powers are NaN. lengths: the input with the tokens of each batch, of which the longest has `total`; first:
    they have no tokens before this step. window: keys that a query sees at most, 0: any. sink: the input with a score
    for each head that stands for no key; smooth: such a score of 0. before: without lengths, keys before the first
    query's own. least: a number of an added mask up to this one hides a key, as minus infinity does; 0.0: no finite
    number does.
    """

    scale: float
    causal: bool = False
    cap: float = 0.0
    empty_is_zero: bool = False
    lengths: int | None = None
    total: int = 0
    first: bool = False
    window: int = 0
    sink: int | None = None
    smooth: bool = False
    before: int = 0
    nan_is_zero: bool = False
    least: float = 0.0

    def consts(self) -> dict[str, Const]:
        sink = 1 if self.sink is not None else 2 if self.smooth else 0
        return {
            "SCALE": float(self.scale),
            "CAUSAL": self.causal,
            "CAPPED": self.cap > 0,
            "CAP": float(self.cap),
            "EMPTY_IS_ZERO": 2 if self.nan_is_zero else self.empty_is_zero,
            "LENGTHS": self.lengths is not None,
            "TOTAL": self.total,
            "FIRST": self.first,
            "BEFORE": self.before,
            "WINDOW": self.window,
            "SINK": sink,
        }

    def reads(self) -> dict[str, int | str]:
        return {name: at for name, at in (("lengths", self.lengths), ("sink", self.sink)) if at is not None}


def least(dtype: DType) -> float:
    """The lowest number of a type of floats, by which ONNX's Attention hides a key."""
    return float(np.finfo(dtype.numpy).min)


def factor_of(node: BoundNode, scale: float | None, width: int) -> float:
    """Of scores: 1 / sqrt(elements of a head) where the node does not say. Raises UnsupportedNodeError for heads
    without elements."""
    if width < 1:
        raise UnsupportedNodeError(Code.LIMIT, f"{node.op} of heads without elements, which ONNX Runtime refuses")
    return width**-0.5 if scale is None else float(scale)


def attend(
    node: BoundNode,
    q: Heads,
    k: Heads,
    v: Heads,
    mask: Mask,
    options: Options,
    out: TensorType,
    y_strides: tuple[int, int, int],
    target: int | str = 0,
    codes: Codes | None = None,
    others: Mapping[str, Form] = {},
) -> Lowering:
    """The kernels of the form that is taken. y_strides: of a batch, a head, a query, in elements. target: what they
    write. codes: that k and v hold. others: forms beside those of this module. Raises UnsupportedNodeError."""
    batch, heads, queries, width = q.shape
    if (
        k.shape[3] != width
        or k.shape[2] != v.shape[2]
        or width % 4
        or v.shape[3] % 4
        or max(width, v.shape[3]) > MAX_HEAD
    ):
        raise UnsupportedNodeError(
            Code.LIMIT,
            f"attention over heads of {width} and {v.shape[3]} elements; taken: multiples of 4 up to {MAX_HEAD}",
        )
    if 0 in k.shape or 0 in out.shape:
        raise UnsupportedNodeError(
            Code.LIMIT, f"attention of {list(q.shape)} over keys {list(k.shape)}: an empty tensor"
        )
    if heads % int(k.shape[1]) or v.shape[1] != k.shape[1] or k.shape[0] != batch or v.shape[0] != batch:
        raise UnsupportedNodeError(
            Code.RANK, f"attention of {list(q.shape)} over keys {list(k.shape)} and values {list(v.shape)}"
        )
    problem = Problem(batch, heads, queries, k.shape[2], width // 4, v.shape[3] // 4)
    consts: dict[str, Const] = {
        "BATCH": batch,
        "HEADS": heads,
        "SQ": queries,
        "SK": problem.keys,
        "GROUP": heads // int(k.shape[1]),
        **q.consts("Q"),
        **k.consts("K"),
        **v.consts("V"),
        **Heads(-1, (0, 0, 0, 0), y_strides).consts("Y"),
        "SEQUENCE": queries,
        **options.consts(),
        **mask_consts(mask, (batch, heads, queries, problem.keys), options.least),
        **(codes.consts() if codes else {}),
    }
    reads = {
        "q": q.source,
        "k": k.source,
        "v": v.source,
        **({"mask": mask[0]} if mask else {}),
        **options.reads(),
        **(codes.reads() if codes else {}),
    }
    forms = {
        name: Form(ns, partial(_lowered, node, problem, (q, k, v), form, consts, reads, target))
        for name, (form, ns) in estimates(problem, node.target, node.input(0).dtype).items()
        if codes is None or isinstance(form, Share)
    }
    rounded = " ".join(str(1 << (hint(size) - 1).bit_length()) for size in (problem.queries, problem.keys))
    key = f"attention {hint(problem.batch * problem.heads)} x {rounded} x {problem.dq} {problem.dv}"
    key = f"{key}, codes of {codes.bits} bits" if codes else key
    key = f"{key}, or {', '.join(others)}" if others else key
    return lower(node.target, key, {**forms, **others}, out)


def _lowered(
    node: BoundNode,
    problem: Problem,
    of_heads: tuple[Heads, Heads, Heads],
    form: Share | UnitForm,
    consts: Mapping[str, Const],
    reads: Mapping[str, int | str],
    target: int | str,
    choice: Choice,
    out: TensorType,
) -> Lowering:
    """attention.wgsl in a share, or attention_units.wgsl. consts: what both have."""
    limits, features, words, rounded = node.target.limits, tuple[str, ...](), tuple[str, ...](), tuple[Rounded, ...]()
    if isinstance(form, UnitForm):
        shader, per_group, features = attention_units.SHADER, form.queries, attention_units.FEATURES
        width, values = 4 * problem.dq, 4 * problem.dv
        own = attention_units.consts_of(form, limits, node.input(0).dtype, width, values)
        memory = form.workgroup_nbytes(width, form.chunk(values))
        eights = tuple(name for name, heads in zip("qkv", of_heads, strict=True) if _by_eight(heads))
        own |= {f"{name.upper()}_EIGHTS": name in eights and bool(own["HALVES"]) for name in "qkv"}
        words = eights if own["HALVES"] else ()
        rounded = (
            ()
            if own["SCALED"] or own["HALVES"]
            else tuple(
                Rounded(name, ((f"{name.upper()}_EIGHTS", True),) if name in eights else (), name in eights)
                for name in "qkv"
            )
        )
    else:
        shader, per_group = "attention.wgsl", form.queries * form.per_lane
        features = ("subgroup",) if form.parts > 1 else ()
        own, memory = _shared(form, problem, limits.max_workgroup_nbytes)
    built = kernel(
        shader,
        [out],
        consts={**consts, **own},
        grid=(-(-problem.queries // per_group), problem.heads, problem.batch),
        workgroup_size=form.workgroup_size,
        workgroup_nbytes=memory,
        writes={"y": target},
        vectors=("q", "y") if "CODES" in consts else ("q", "k", "v", "y"),
        features=features,
        choice=choice,
        reads=reads,
    )
    return Lowering((out,), (replace(built, words=words, rounded=rounded),))


def _by_eight(heads: Heads) -> bool:
    """Whether each eight elements from the first one on lie together in a vector of 16 bytes, where they have 16
    bits."""
    return all(same(n % 8, 0) for n in (*heads.strides, heads.first, heads.shape[3]))


def _shared(form: Share, problem: Problem, most: int) -> tuple[dict[str, Const], int]:
    """How attention.wgsl shares its work, and the bytes of workgroup memory."""
    dq, dv = problem.dq // form.parts, problem.dv // form.parts
    chunk, memory = _chunk(form, dv, most)
    return {
        "DQ": dq,
        "DV": dv,
        "QL": form.queries,
        "RQ": form.per_lane,
        "RK": form.keys,
        "PARTS": form.parts,
        "SLICES": form.slices,
        "CHUNK": chunk,
    }, memory


def _chunk(form: Share, dv: int, most: int) -> tuple[int, int]:
    """Vectors of a result that slices join at a time, and the bytes of workgroup memory."""
    if form.slices == 1:
        return 1, 0
    fixed, vector = 8 * form.queries * form.slices, 16 * form.workgroup_size
    chunk = max(c for c in (1, 2, 3, 4) if dv % c == 0 and (c == 1 or fixed + c * vector <= min(most, 24576)))
    return chunk, fixed + chunk * vector


def mask_consts(mask: Mask, scores: Shape, least: float = 0.0) -> dict[str, Const]:
    """How the shader reads a mask that broadcasts to the scores. least: of Options. Raises UnsupportedNodeError."""
    if mask is None:
        return {"MASK": 0}
    operand = mask[1]
    if operand.rank == 4 and not same(operand.shape[3], 1):  # it may end with the last key that any query sees
        scores = (*scores[:3], operand.shape[3])
    if operand.dtype not in (*FLOATS, BOOL) or operand.rank > 4 or broadcast(operand.shape, scores) != scores:
        raise UnsupportedNodeError(
            Code.RANK, f"attention with mask {operand.name!r} {operand.type} over scores {list(scores)}"
        )
    strides = broadcast_strides(operand.shape, scores)
    places = {f"MASK_{axis}": stride for axis, stride in zip("BHQK", strides, strict=True)}
    if operand.dtype is BOOL or not least:
        return {"MASK": 2 if operand.dtype is BOOL else 1, "MASK_KEYS": scores[3], **places}
    return {"MASK": 3, "LEAST": least, "MASK_KEYS": scores[3], **places}


@op("Attention", domain="ort_gpu_ep", dtypes={}, bindings="q k v mask? -> y", epilogue=True)
def fused_attention(node: BoundNode) -> Lowering:
    """softmax(scale q k^T + mask) v, through the transpositions around it, in one dispatch.

    q, k, v: transposed by `q_perm`, `k_perm`, `v_perm` they are [B, heads, S, D] or [B, S, D]; mask: broadcasts to the
    scores; y: transposed by `y_perm`. `causal`: a query sees keys up to its own place. `empty`: a query that sees no
    key gets NaN (0) or 0 (1); with 2 one whose powers are NaN does, too.
    """
    if any(node.input(i).dtype not in FLOATS for i in range(3)):
        raise UnsupportedNodeError(Code.DTYPE, f"attention of {node.input(0).type}; taken: {names(FLOATS)}")
    q, k, v = (heads_of(node.input(i), i, node.attr(f"{name}_perm")) for i, name in enumerate("qkv"))
    if node.input(0).rank == 3 and node.has(3) and node.input(3).rank > 2:
        raise UnsupportedNodeError(Code.RANK, f"attention without heads with mask {node.input(3).type}")
    rank, perm = node.input(0).rank, node.attr("y_perm")
    plain = (q.shape[0], q.shape[1], q.shape[2], v.shape[3])
    logical = plain if rank == 4 else (plain[0], *plain[2:])
    shape = tuple(logical[axis] for axis in perm)
    strides: dict[int, int] = {}
    step = 1
    for axis, size in zip(reversed(perm), reversed(shape), strict=True):
        strides[axis] = step
        step *= size
    if perm[-1] != rank - 1:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"attention with its result transposed by {perm}")
    y_strides = (strides[0], strides[1] if rank == 4 else 0, strides[rank - 2])
    mask: Mask = (3, node.input(3)) if node.has(3) else None
    empty, dtype = node.attr("empty"), node.input(0).dtype
    options = Options(
        float(node.attr("scale")),
        bool(node.attr("causal")),
        empty_is_zero=empty > 0,
        nan_is_zero=empty > 1,
        least=least(dtype) if empty == 1 else 0.0,
    )
    return attend(node, q, k, v, mask, options, TensorType(dtype, shape), y_strides)
