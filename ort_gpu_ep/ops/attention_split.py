"""Attention of one query for each head over many keys: the keys are split among workgroups and read once for heads that
share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ort_gpu_ep.ir.symbolic import hint, same
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, kernel
from ort_gpu_ep.kernels.target import Target
from ort_gpu_ep.ops.attention import OTHER_REGISTERS, SCALES, Codes, Heads, Mask, Options, mask_consts

MAX_SHARE = 4
"""Heads of a workgroup: each takes registers and workgroup memory of its own."""

LANES, NEIGHBOURS = 128, 8
"""Invocations of a workgroup; those that read a key at most: what they load lies together."""

VECTORS, MANY_KEYS = 1024, 4096
"""Of the keys that a workgroup reads, and of the values; caches of more tokens than that are split into parts of twice
as many, of which fewer are joined. Measured on an H200 with 32 heads of 128: a token behind 512 others takes 42.2, 42.6
and 53.8 us a layer with parts of 1024, 2048 and 4096 vectors, behind 4096 others 60.3, 54.8 and 74.1."""

JOIN_LANES = 128

record(
    "attention_split.wgsl",
    "product",
    loop_bound=lambda k: (
        ceil_div((k["SHARE"] + 2) * k["D4"], k.workgroup_size) + ceil_div(k["SHARE"] * k["D4"], k.workgroup_size)
    ),
    flops=lambda k: 16 * k["BATCH"] * k["HEADS"] * k["SK"] * k["D4"],
)
record(
    "attention_join.wgsl",
    "reduction",
    loop_bound=lambda k: (
        2 * ceil_div(k["SPLITS"], k.workgroup_size)
        + ceil_div(k["SPLITS"], 4 * (k.workgroup_size // k["D4"]))
        + 2 * k.workgroup_size.bit_length()
        + k.workgroup_size // k["D4"]
    ),
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


def fits(node: BoundNode, q: Heads, k: Heads, v: Heads) -> bool:
    """Whether there is one query for each head, and a head that this form takes."""
    width, limits = q.shape[3], node.target.limits
    is_alike = (
        width == k.shape[3] == v.shape[3]
        and width % 4 == 0
        and width // 4 <= LANES // 2
        and limits.max_invocations >= LANES
    )
    parts = _parts(width // 4)
    keys = LANES // parts
    return (
        is_alike and same(q.shape[2], 1) and _memory(MAX_SHARE, keys, parts, width // 4) <= limits.max_workgroup_nbytes
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
) -> tuple[list[Kernel], list[tuple[str, TensorType]]]:
    """The two kernels, or one for a whole window, and their temporaries. As `attend` has it, where it `fits`. newest:
    stands for q and the last key and value. codes: that k and v hold. Raises UnsupportedNodeError for the mask's shape.
    """
    batch, heads, _, width = q.shape
    tokens, d4, group = k.shape[2], width // 4, heads // int(k.shape[1])
    share = next(n for n in (4, 2, 1) if group % n == 0)
    parts = _parts(d4)
    vectors = VECTORS * (2 if hint(tokens) > MANY_KEYS else 1)
    lanes, keys = LANES, _keys(target, share, parts, d4, vectors)
    whole = _whole(target, share, parts, d4, keys, options) if codes is None else None
    lanes, keys = whole or (lanes, keys)
    splits, split_consts = 1 if whole else ceil_div(tokens, keys), options.consts()
    ends: dict[str, Const] = {
        "Y_B": y_strides[0] // 4,
        "Y_H": y_strides[1] // 4,
        "EMPTY_IS_ZERO": options.empty_is_zero,
    }
    consts: dict[str, Const] = {
        "BATCH": batch,
        "HEADS": heads,
        "SQ": 1,
        "SEQUENCE": 1,
        "SK": tokens,
        "D4": d4,
        "GROUP": group,
        "SHARE": share,
        "KEYS": keys,
        "PARTS": parts,
        "SPLITS": splits,
        "KEY_ROUNDS": keys * parts // lanes,
        "LOADS": ceil_div(keys, lanes // d4),
        "ROUNDS": ceil_div(keys * share, lanes),
        "POWERS": min(keys, lanes // share),
        **q.consts("Q"),
        **k.consts("K"),
        **v.consts("V"),
        **split_consts,
        **mask_consts(mask, (batch, heads, 1, tokens), options.least),
        "APPEND": newest is not None,
        **(newest.consts if newest else {}),
        **(codes.consts() if codes else {}),
        **({"WHOLE": True, **ends} if whole else {}),
    }
    sums = TensorType(FLOAT32, (batch, heads, splits, width))
    tops = TensorType(FLOAT32, (batch, heads, splits, 2))
    reads = options.reads()
    lengths = {name: at for name, at in reads.items() if name == "lengths"}
    sink = {"sink": reads.pop("sink")} if "sink" in reads else {}
    operands = newest.reads if newest else {"q": q.source, "k": k.source, "v": v.source}
    caches = ("keys", "values") if newest else ("k", "v")
    scales = codes.reads(values=newest is not None) if codes else {}
    writes: dict[str, int | str] = {"y": 0} if whole else {"sums": "attention_sums", "tops": "attention_tops"}
    split = kernel(
        "attention_split.wgsl",
        [*([out] if whole else [sums, tops]), *([newest.cache] * 2 if newest else [])],
        consts=consts,
        grid=(splits, heads // share, batch),
        workgroup_size=lanes,
        workgroup_nbytes=_memory(share, keys, parts, d4, lanes)
        + (32 * d4 if newest else 0)
        + (4 * share if whole else 0),
        vectors=(*(() if newest else ("q",)), *(() if codes else caches), "y" if whole else "sums"),
        words=caches if codes and newest else (),
        reports=options.lengths is not None,
        reads={**operands, **({"mask": mask[0]} if mask else {}), **reads, **scales, **(sink if whole else {})},
        writes={**writes, **(newest.writes if newest else {})},
    )
    own = newest.optionals if newest else ()
    split = replace(split, optionals=(*own, *((name, name in scales) for name in SCALES if codes)))
    if whole:
        return [split], []
    join = kernel(
        "attention_join.wgsl",
        [out],
        grid=(heads, batch, 1),
        workgroup_size=JOIN_LANES,
        workgroup_nbytes=20 * JOIN_LANES,
        consts={
            "D4": d4,
            "HEADS": heads,
            "SPLITS": splits,
            "KEYS": keys,
            **{name: split_consts[name] for name in ("BEFORE", "CAUSAL", "LENGTHS", "WINDOW")},
            "SINK": split_consts["SINK"],
            **ends,
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
    return [split, join], [("attention_sums", sums), ("attention_tops", tops)]


def _parts(d4: int) -> int:
    """Invocations that read a key."""
    return next(n for n in (NEIGHBOURS, 4, 2, 1) if d4 % n == 0)


def _keys(target: Target, share: int, parts: int, d4: int, vectors: int) -> int:
    """Of a workgroup: a power of two that makes about so many vectors; fewer where a compiler that loads ahead would not
    have registers for keys and values, or there is little workgroup memory."""
    by, keys = target.figures, LANES // parts
    while (
        2 * keys * d4 <= vectors
        and _memory(share, 2 * keys, parts, d4) + 32 * d4 <= target.limits.max_workgroup_nbytes
        and not (by.loads_ahead and 8 * ceil_div(2 * keys * d4, LANES) + OTHER_REGISTERS > by.lane_registers)
    ):
        keys *= 2
    return keys


def _whole(target: Target, share: int, parts: int, d4: int, keys: int, options: Options) -> tuple[int, int] | None:
    """Invocations and keys of a workgroup that has a whole window, whose parts nobody joins; None where it does not fit,
    or would read longer than a dispatch takes."""
    by, most = target.figures, target.limits.max_workgroup_nbytes
    if not options.window or not options.causal:
        return None
    for lanes in (2 * LANES, LANES):
        whole = max(lanes // parts, 1 << (options.window - 1).bit_length())
        longer_ns = 32 * d4 * max(0, whole - keys) * by.unit_byte_ns
        if (
            lanes <= target.limits.max_invocations
            and _memory(share, whole, parts, d4, lanes) + 4 * share + 32 * d4 <= most
            and 8 * ceil_div(whole * d4, lanes) + OTHER_REGISTERS <= by.lane_registers
            and longer_ns < by.dispatch_ns
        ):
            return lanes, whole
    return None


def _memory(share: int, keys: int, parts: int, d4: int, lanes: int = LANES) -> int:
    """Bytes of workgroup memory: queries, scores, one number an invocation, rows of values to be joined."""
    return 16 * share * d4 + 4 * (share * keys * parts + 32) + 4 * lanes + 16 * share * (lanes // d4) * d4
