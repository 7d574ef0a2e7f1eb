"""Attention of few tokens over many keys: the keys are split among workgroups and read once for queries that share
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ort_gpu_ep.ir.symbolic import hint, is_symbolic, same
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Lowering, kernel
from ort_gpu_ep.kernels.target import Choice, Target
from ort_gpu_ep.ops.attention import OTHER_REGISTERS, SCALES, Codes, Heads, Mask, Options, mask_consts

IN_PARTS = "keys in parts"

MAX_TOKENS = 8
"""Of a sequence: more of them have enough queries for the forms of attention.py."""

MAX_SHARE, FEWER, SHARE_REGISTERS = 8, 4, 192
"""Queries of a workgroup, each with registers and workgroup memory of its own: at most, and where an invocation has not
so many registers. Measured on an H200, four tokens with 32 heads in 8 groups of 128 behind 512, 4,096
and 32,768 keys: float32 takes 9.6, 23.3 and 118 us with 8 queries, 10.7, 26.1 and 166 with 4, 14.2, 64.7 and 463 with 1
(benchmarks.long_caches). One token of 28 heads in 4 groups: 9.4, 14.3 and 45.1 with 8, 8.8, 13.4 and 59.2 with 4: so it
has more than 4 where keys and values are not in the cache when they are read again."""

LANES, NEIGHBOURS = 128, 8
"""Invocations of a workgroup; those that read a key at most: what they load lies together."""

VECTORS, CODE_KEYS, PER_UNIT = 1024, 64, 3
"""Of a step of float keys, and of as many values; keys of a step of codes; workgroups that a compute unit is to have,
each with as many steps as that leaves it. Measured on an H200, a token behind 32,768 others with 32 heads in 8 groups of
128: float32 takes 70.3 us with 3 of them, 84.9 with 4, 73.5 with 6, and in steps of 512 and 2048 vectors 77.6 and 77.5;
codes of 8 bits 49.8 with 3, 54.0 with 4, and in steps of 32 and 128 keys 66.2 and 62.1 (benchmarks.long_caches)."""

JOIN_LANES, JOIN_ROWS, JOIN_LOADS = 256, 16, 8
"""Of attention_join.wgsl: invocations; parts that are read at a time; of these, how many an invocation has under way,
each at most."""

record(
    "attention_split.wgsl",
    "product",
    loop_bound=lambda k: (
        2 * ceil_div((k["SHARE"] + 2) * k["D4"], k.workgroup_size)
        + ceil_div(k["SK"], k["KEYS"] * k["SPLITS"])
        + k["D4"] // k["PARTS"]
        + k["SHARE"]
    ),
    flops=lambda k: 16 * k["BATCH"] * k["HEADS"] * k["SQ"] * k["SK"] * k["D4"],
)
record(
    "attention_join.wgsl",
    "reduction",
    loop_bound=lambda k: ceil_div(k["SPLITS"], k["ROWS"] * k["LOADS"]),
)


@dataclass(frozen=True, slots=True)
class Newest:
    """The tokens of this step, one a batch, where the kernel turns them and stores their keys and values: constants,
    what is read, which of that may be missing; and for each cache what is written, and its type.
    """

    consts: Mapping[str, Const]
    reads: Mapping[str, int | str]
    optionals: tuple[tuple[str, bool], ...]
    writes: Mapping[str, str]
    cache: TensorType


@dataclass(frozen=True, slots=True)
class Reading:
    """How keys and values are read, by loads of so many elements: of keys, of values. d4: vectors of a head."""

    d4: int
    of_keys: int = 4
    of_values: int = 4

    @property
    def parts(self) -> int:
        """Invocations that read a key."""
        return _parts(4 * self.d4 // self.of_keys)

    @property
    def lanes(self) -> int:
        """Invocations that read a row of values."""
        return 4 * self.d4 // self.of_values

    def nbytes(self, share: int, keys: int, joined: int) -> int:
        """Of workgroup memory: queries with the newest key and value, scores or at the end sums, powers, one number an
        invocation."""
        sums = 16 * joined * (LANES // self.lanes) * self.d4
        scores = 4 * (share * keys * self.parts + 32)
        return 16 * (share + 2) * self.d4 + max(scores, sums) + 4 * share * (keys + 2) + 4 * LANES

    def joined(self, share: int, keys: int, most: int) -> int:
        """Queries whose sums are in workgroup memory at once."""
        return next((n for n in (4, 2) if share % n == 0 and self.nbytes(share, keys, n) <= most), 1)


def reading(width: int, codes: Codes | None) -> Reading:
    """Of heads of so many elements. Codes of keys by 16 bytes, where that leaves several invocations for each."""
    if codes is None:
        return Reading(width // 4)
    word = codes.per_word
    wide = 4 * word if width % (16 * word) == 0 else word
    return Reading(width // 4, wide, word)


def fits(node: BoundNode, q: Heads, k: Heads, v: Heads, codes: Codes | None) -> bool:
    """Whether there are few tokens, as many in each run, and a head that this form takes."""
    width, limits = q.shape[3], node.target.limits
    is_alike = (
        width == k.shape[3] == v.shape[3]
        and width % 4 == 0
        and width // 4 <= LANES // 2
        and limits.max_invocations >= LANES
    )
    read = reading(width, codes)
    return (
        is_alike
        and any(same(q.shape[2], n) for n in range(1, MAX_TOKENS + 1))
        and read.nbytes(MAX_SHARE, LANES // read.parts, 1) <= limits.max_workgroup_nbytes
    )


def split_attention(
    target: Target,
    q: Heads,
    k: Heads,
    v: Heads,
    mask: Mask,
    options: Options,
    out: TensorType,
    y_strides: tuple[int, int, int],
    newest: Newest | None = None,
    codes: Codes | None = None,
    choice: Choice | None = None,
) -> Lowering:
    """The two kernels, and their temporaries. As `attend` has it, where it `fits`. newest: of one token, stands for q
    and the last key and value. codes: that k and v hold. Raises UnsupportedNodeError for the mask's shape.
    """
    batch, heads, _, width = q.shape
    tokens, rows, d4, key_heads = int(q.shape[2]), k.shape[2], width // 4, int(k.shape[1])
    group, read, shares = heads // key_heads, reading(int(width), codes), shares_of(target, q, k, codes)
    share, keys, splits = shares.queries, shares.keys, shares.parts
    joined = read.joined(share, keys, target.limits.max_workgroup_nbytes)
    split_consts = options.consts()
    consts: dict[str, Const] = {
        "BATCH": batch,
        "HEADS": heads,
        "KEY_HEADS": key_heads,
        "SQ": tokens,
        "SEQUENCE": tokens,
        "SK": rows,
        "D4": d4,
        "GROUP": group,
        "SHARE": share,
        "KEYS": keys,
        "PARTS": read.parts,
        "SPLITS": splits,
        "KEY_ROUNDS": keys * read.parts // LANES,
        "KEY_LOADS": width // read.of_keys // read.parts,
        "KEY_WORDS": read.of_keys // codes.per_word if codes else 0,
        "K_FOURS": read.of_keys // 4,
        "V_FOURS": read.of_values // 4,
        "V_UNITS": read.lanes,
        "LOADS": ceil_div(keys, LANES // read.lanes),
        "JOINED": joined,
        "ROUNDS": ceil_div(keys * share, LANES),
        "POWERS": min(keys, LANES // share),
        **q.consts("Q"),
        **k.consts("K", read.of_keys),
        **v.consts("V", read.of_values),
        **split_consts,
        **mask_consts(mask, (batch, heads, tokens, rows), options.least),
        "APPEND": newest is not None,
        **(newest.consts if newest else {}),
        **(codes.consts() if codes else {}),
    }
    sums = TensorType(FLOAT32, (batch, tokens, heads, splits, width))
    tops = TensorType(FLOAT32, (batch, tokens, heads, splits, 2))
    reads = options.reads()
    lengths = {name: at for name, at in reads.items() if name == "lengths"}
    sink = {"sink": reads.pop("sink")} if "sink" in reads else {}
    operands = newest.reads if newest else {"q": q.source, "keys": k.source, "values": v.source}
    wide = codes is not None and read.of_keys > codes.per_word
    scales = codes.reads(values=newest is not None) if codes else {}
    split = kernel(
        "attention_split.wgsl",
        [sums, tops, *([newest.cache] * 2 if newest else [])],
        consts=consts,
        grid=(splits, ceil_div(group * tokens, share), batch * key_heads),
        workgroup_size=LANES,
        workgroup_nbytes=read.nbytes(share, keys, joined),
        choice=choice,
        vectors=(
            *(() if newest else ("q",)),
            *(() if codes and not wide else ("keys",)),
            *(() if codes else ("values",)),
            "sums",
        ),
        words=("keys", "values") if codes and newest else (),
        reports=options.lengths is not None,
        reads={**operands, **({"mask": mask[0]} if mask else {}), **reads, **scales},
        writes={"sums": "attention_sums", "tops": "attention_tops", **(newest.writes if newest else {})},
    )
    own = newest.optionals if newest else ()
    split = replace(split, optionals=(*own, *((name, name in scales) for name in SCALES if codes)))
    join_rows = min(JOIN_ROWS, min(JOIN_LANES, target.limits.max_invocations) // d4)
    join_loads = next((n for n in (1, 2, 4) if n * join_rows >= hint(splits)), JOIN_LOADS)
    join = kernel(
        "attention_join.wgsl",
        [out],
        grid=(heads, batch, tokens),
        workgroup_size=join_rows * d4,
        workgroup_nbytes=16 * join_rows * d4 + 8 * join_rows,
        consts={
            "D4": d4,
            "ROWS": join_rows,
            "LOADS": join_loads,
            "IS_LONG": is_symbolic(splits) or splits > join_rows * join_loads,
            "HEADS": heads,
            "SPLITS": splits,
            "KEYS": keys,
            "SK": rows,
            "SQ": tokens,
            **{name: split_consts[name] for name in ("BEFORE", "CAUSAL", "FIRST", "LENGTHS", "WINDOW")},
            **{f"Y_{axis}": stride // 4 for axis, stride in zip("BHS", y_strides, strict=True)},
            "SINK": split_consts["SINK"],
            "EMPTY_IS_ZERO": options.empty_is_zero,
            **({"GROUP": group, **codes.consts()} if codes else {}),
        },
        reads={
            "sums": "attention_sums",
            "tops": "attention_tops",
            **sink,
            **lengths,
            **(codes.reads(keys=False) if codes else {}),
        },
        writes={"y": 0},
        vectors=("sums", "y"),
    )
    join = replace(join, optionals=tuple((name, name == SCALES[1]) for name in SCALES)) if codes else join
    return Lowering((out,), (split, join), (("attention_sums", sums), ("attention_tops", tops)))


def estimate_ns(target: Target, q: Heads, k: Heads, codes: Codes | None) -> float:
    """Of both kernels: the steps of a workgroup, one after the other, or the bytes of keys and values."""
    by, shares, d4 = target.figures, shares_of(target, q, k, codes), int(q.shape[3]) // 4
    steps = ceil_div(ceil_div(int(hint(k.shape[2])), shares.keys), hint(shares.parts))
    rounds = ceil_div(shares.blocks * hint(shares.parts), PER_UNIT * by.units)
    clocks = by.attention_split_step_clocks + shares.queries * by.attention_split_query_clocks
    step_ns = clocks * shares.keys * d4 / VECTORS / by.clocks_per_ns
    read_ns = _cache_nbytes(k, codes) / by.rows_bytes_per_ns
    return float(2 * by.dispatch_ns + by.attention_split_launch_ns + max(rounds * steps * step_ns, read_ns))


@dataclass(frozen=True, slots=True)
class Shares:
    """queries: of a workgroup. keys: of a step. parts: of the keys. blocks: workgroups that have the same part."""

    queries: int
    keys: int
    parts: int
    blocks: int


def shares_of(target: Target, q: Heads, k: Heads, codes: Codes | None) -> Shares:
    """The fewest queries that let keys be read the fewest times, and keys as they allow."""
    by, tokens, read = target.figures, int(q.shape[2]), reading(int(q.shape[3]), codes)
    of_key_head = int(q.shape[1]) // int(k.shape[1]) * tokens
    has_all = by.lane_registers >= SHARE_REGISTERS and (tokens > 1 or _cache_nbytes(k, codes) > by.cache_nbytes)
    most = MAX_SHARE if has_all else min(FEWER, MAX_SHARE)
    share = min((n for n in (1, 2, 4, 8) if n <= most), key=lambda n: ceil_div(of_key_head, n))
    blocks = hint(k.shape[0]) * int(k.shape[1]) * ceil_div(of_key_head, share)
    keys = _keys(target, share, read, codes, k.shape[2], blocks)
    return Shares(share, keys, _splits(target, k.shape[2], keys, blocks), blocks)


def _cache_nbytes(k: Heads, codes: Codes | None) -> float:
    """Of keys and values; of floats, as they are in float32."""
    return float(2 * hint(k.shape[0]) * k.shape[1] * hint(k.shape[2]) * k.shape[3] * (codes.bits if codes else 32) / 8)


def _parts(loads: int) -> int:
    """Invocations that read a key."""
    return next(n for n in (NEIGHBOURS, 4, 2, 1) if loads % n == 0)


def _keys(target: Target, share: int, read: Reading, codes: Codes | None, tokens: int, blocks: int) -> int:
    """Of a step: a power of two; fewer where half of the units would have no workgroup, where a compiler that loads
    ahead would not have registers for keys and values, or where there is little workgroup memory."""
    by, keys, most = target.figures, LANES // read.parts, CODE_KEYS if codes else VECTORS // read.d4
    registers = 8 * read.d4 if codes is None else 8 * read.d4 * codes.bits // 32
    while (
        2 * keys <= most
        and 2 * blocks * ceil_div(hint(tokens), 2 * keys) >= by.units
        and read.nbytes(share, 2 * keys, 1) <= target.limits.max_workgroup_nbytes
        and not (by.loads_ahead and ceil_div(2 * keys * registers, LANES) + OTHER_REGISTERS > by.lane_registers)
    ):
        keys *= 2
    return keys


def _splits(target: Target, tokens: int, keys: int, blocks: int) -> int:
    """Parts of the keys: of a step each, or fewer."""
    most = _most_parts(target, blocks)
    return most if hint(tokens) > most * keys else ceil_div(tokens, keys)


def _most_parts(target: Target, blocks: int) -> int:
    """As many as the units have workgroups for. blocks: workgroups that read the same part."""
    return max(1, PER_UNIT * target.figures.units // blocks)
